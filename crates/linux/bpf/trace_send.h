/* Sends: a packet's times from the system call to the driver. The packet is known by its address. */
#pragma once
#include "trace_receive.h"

struct sending {
    u64 skb;
    u64 enter, queue, start;
    u32 pid, tid, cpu, call;
    char name[16];
    struct ends ends;
};

enum { SENDINGS = 4096 };
struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, SENDINGS);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct sending);
} sendings SEC(".maps");

struct sent {
    u32 kind;
    u32 pid, tid, cpu;
    u64 enter, queue, start, done;
    u32 start_cpu, ifindex, len, ran;
    char name[16], ran_name[16];
    struct ends ends;
};

INLINE struct sending *sending_of(struct sk_buff *skb) {
    u64 address = (u64)skb;
    u32 slot = (address >> 6 ^ address >> 18) & (SENDINGS - 1);
    return map_lookup(&sendings, &slot);
}

/* The system calls that begin in order to send. One that waits for something else may send, too, but began earlier. */
struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 32);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u32);
} send_calls SEC(".maps");

/* Whether a segment carries no data. */
INLINE int is_bare(struct sk_buff *skb) {
    unsigned char *head = 0, *data = 0;
    u32 len = 0;
    u16 at = 0;
    u8 offset = 0;
    READ(head, skb->head);
    READ(data, skb->data);
    READ(at, skb->transport_header);
    READ(len, skb->len);
    probe_read_kernel(&offset, 1, head + at + 12);
    return len <= head + at - data + (offset >> 4) * 4;
}

INLINE void send_queued(struct sk_buff *skb) {
    struct cpu *cpu = this_cpu();
    struct sending *s = sending_of(skb);
    struct sock *sk = 0;
    if (!cpu || !s)
        return;
    u64 now = clock_ns();
    if (s->skb == (u64)skb) {
        /* The device below a VLAN, a bond or a tunnel queues it again. */
        if (s->start && now - s->start < 1000000)
            return;
        s->skb = 0;
    }
    READ(sk, skb->sk);
    if (!sk)
        return;
    u16 protocol = 0, family = 0;
    READ(family, sk->__sk_common.skc_family);
    if (family != 2 && family != 10)
        return;
    READ(protocol, sk->sk_protocol);
    if (protocol == IPPROTO_TCP ? is_bare(skb) : protocol != IPPROTO_UDP)
        return;
    u64 who = cpu->softirq ? 0 : current_pid_tgid();
    if (only_device) {
        if (!is_only_device(skb))
            return;
    } else if (who) {
        if (!is_traced(who >> 32))
            return;
    } else {
        /* By an acknowledgement or a timer: the socket tells whose it is. */
        u64 cookie = 0;
        READ(cookie, sk->__sk_common.skc_cookie.counter);
        struct socket_state *state = map_lookup(&sockets, &cookie);
        if (!state || state->foreign || !state->traced)
            return;
    }
    add(SEEN_OUT);
    if (cpu->sends++ % one_in())
        return;
    struct thread *t = who ? thread_of(who) : 0;
    s->enter = t && map_lookup(&send_calls, &t->call) ? t->enter : 0;
    s->call = t ? t->call : 0;
    s->pid = who >> 32;
    s->tid = who;
    s->cpu = current_cpu();
    s->name[0] = 0;
    if (who)
        current_comm(s->name, sizeof(s->name));
    struct ends none = {};
    s->ends = none;
    read_ends(&s->ends, sk);
    s->queue = now;
    s->start = 0;
    s->skb = (u64)skb;
    add(CHOSEN_OUT);
}

INLINE void send_started(struct sk_buff *skb, u64 now) {
    struct sending *s = sending_of(skb);
    if (s && s->skb == (u64)skb)
        s->start = now;
}

INLINE void send_done(struct sk_buff *skb, int code, struct net_device *dev, u32 len) {
    struct sending *s = sending_of(skb);
    if (!s || s->skb != (u64)skb || !s->start)
        return;
    /* NETDEV_TX_BUSY: it goes back to the queue. */
    if (code == 0x10) {
        s->start = 0;
        return;
    }
    s->skb = 0;
    struct sent *r = ringbuf_reserve(&records, sizeof(*r), 0);
    if (!r) {
        add(LOST);
        return;
    }
    r->kind = SENT;
    r->pid = s->pid;
    r->tid = s->tid;
    r->cpu = s->cpu;
    r->enter = s->enter;
    r->queue = s->queue;
    r->start = s->start;
    r->done = clock_ns();
    r->start_cpu = current_cpu();
    r->ifindex = dev->ifindex;
    r->len = len;
    r->ran = current_pid_tgid() >> 32;
    __builtin_memcpy(r->name, s->name, 16);
    current_comm(r->ran_name, sizeof(r->ran_name));
    r->ends = s->ends;
    ringbuf_submit(r, NO_WAKEUP);
}
