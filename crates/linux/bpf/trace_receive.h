/* Receives: a packet's times from the signal that announces it to the call that takes it.
 *
 * While a packet is on its way up it is known by its address, in a table of flights. From its socket on it is known by
 * its place in the socket's stream: a TCP sequence number, or the number of the datagram, because packets are joined and
 * copied there.
 */
#pragma once
#include "trace.h"

/* A packet between driver and socket; also one that its sender on this machine has handed to a veth or loopback. */
struct flight {
    u64 skb;
    u64 sent, signal, pass, handed;
    u32 line, zero;
};

enum { FLIGHTS = 4096, SLOTS = 8 };
struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, FLIGHTS);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct flight);
} flights SEC(".maps");

enum { FREE = 0, CLAIMED = 1, QUEUED = 2 };
enum { BY_SOFTIRQ = 0, BY_THREAD = 1, BY_NAPI_THREAD = 2 };

/* A packet that its socket has, until a call takes it. */
struct queued {
    u64 state;
    u64 sent, signal, pass, handed, reached;
    u32 place;
    u32 cpu, how, pid, tid;
    u32 napi_id, ifindex, line, len, ran;
    char ran_name[16];
};

struct socket_state {
    u64 packets; /* reached it */
    u64 taken, arrived;
    u64 last;    /* when the last one was taken or arrived */
    u64 foreign; /* when a process that is not traced took from it */
    u64 traced;  /* whether one that is traced did */
    struct queued slots[SLOTS];
};

struct {
    MAP_NUMBER(type, LRU_HASH);
    MAP_NUMBER(max_entries, 4096);
    MAP_TYPE(key, u64);
    MAP_TYPE(value, struct socket_state);
} sockets SEC(".maps");

/* One that is all zero: too large for the stack. */
struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct socket_state);
} blanks SEC(".maps");

struct received {
    u32 kind;
    u32 pid, tid, cpu;
    u64 sent, signal, pass, handed, reached, runnable, woken, switched, taken;
    u64 longest, longest_end, before_ran;
    u32 found_cpu, how, found_pid, found_tid;
    u32 napi_id, ifindex, line, len;
    u32 longest_call, before, ran, zero;
    char before_name[16], ran_name[16], name[16];
    struct ends ends;
};

struct returned {
    u32 kind;
    u32 tid;
    u64 at;
};

INLINE struct flight *flight_of(struct sk_buff *skb) {
    u64 address = (u64)skb;
    u32 slot = (address >> 6 ^ address >> 18) & (FLIGHTS - 1);
    return map_lookup(&flights, &slot);
}

/* The driver hands up a packet. */
INLINE void handed_up(struct sk_buff *skb, int again) {
    struct cpu *cpu = this_cpu();
    struct flight *f = flight_of(skb);
    if (!cpu || !f)
        return;
    int known = f->skb == (u64)skb;
    /* It has come here by GRO, or by the backlog of another CPU. */
    if (again && known && f->handed)
        return;
    u64 now = clock_ns();
    u64 pass = cpu->pass;
    u64 signal = cpu->signal;
    if (!cpu->first)
        cpu->first = now;
    if (cpu->softirq != NET_RX_SOFTIRQ + 1) {
        /* A busy poll or a NAPI thread: a pass begins where the last one ended, if the thread did not leave. */
        u32 tid = current_pid_tgid();
        struct thread *t = map_lookup(&threads, &tid);
        signal = 0;
        if (!t) {
            pass = cpu->first;
        } else {
            if (cpu->pass_tid != tid)
                pass = 0;
            if (t->runnable > pass)
                signal = t->runnable;
            if (pass < t->enter)
                pass = t->enter;
            if (pass < cpu->since)
                pass = cpu->since;
        }
    }
    f->sent = known && !f->handed ? f->sent : 0;
    f->signal = signal;
    f->pass = pass;
    f->handed = now;
    f->line = cpu->raised_line;
    f->skb = (u64)skb;
}

/* A sender on this machine hands a packet to a device whose other end is here, too. */
INLINE void sent_here(struct sk_buff *skb, u64 now) {
    struct net_device *dev = 0;
    const struct rtnl_link_ops *ops = 0;
    const char *kind = 0;
    u32 flags = 0, name = 0;
    READ(dev, skb->dev);
    READ(flags, dev->flags);
    if (!(flags & IFF_LOOPBACK)) {
        READ(ops, dev->rtnl_link_ops);
        if (!ops)
            return;
        READ(kind, ops->kind);
        probe_read_kernel(&name, sizeof(name), kind);
        if (name != 0x68746576 /* veth */)
            return;
    }
    struct flight *f = flight_of(skb);
    if (!f)
        return;
    f->handed = 0;
    f->sent = now;
    f->skb = (u64)skb;
}

/* The end of a segment's data in its stream; 0 of a segment without data, or with unusual headers. */
INLINE int tcp_end(struct __sk_buff *ctx, u32 len, u32 *end) {
    u8 first = 0, offset = 0, next = IPPROTO_TCP, seq[4] = {};
    u32 headers;
    skb_load_bytes(ctx, 0, &first, 1);
    if (first >> 4 == 4) {
        headers = (first & 15) * 4;
    } else {
        skb_load_bytes(ctx, 6, &next, 1);
        headers = 40;
    }
    if (next != IPPROTO_TCP || skb_load_bytes(ctx, headers + 12, &offset, 1) ||
        skb_load_bytes(ctx, headers + 4, seq, 4))
        return 0;
    headers += (offset >> 4) * 4;
    if (len <= headers)
        return 0;
    *end = ((u32)seq[0] << 24 | (u32)seq[1] << 16 | (u32)seq[2] << 8 | seq[3]) + len - headers;
    return 1;
}

/* The number of a datagram that arrives, among those of its socket. */
INLINE u32 datagram_place(struct socket_state *s, struct sock *sk, u64 now) {
    u32 queue = 0, reader = 0;
    READ(queue, sk->sk_receive_queue.qlen);
    READ(reader, ((struct udp_sock *)sk)->reader_queue.qlen);
    queue += reader;
    u32 waiting = s->arrived - s->taken;
    /* More may be under way to a reader than the queue holds, but not for long. */
    if (waiting < queue || waiting > queue + 16 || (waiting != queue && now - s->last > 200000)) {
        s->arrived = s->taken + queue;
        for (int i = 0; i < SLOTS; i++)
            s->slots[i].state = FREE;
    }
    s->last = now;
    return __sync_fetch_and_add(&s->arrived, 1);
}

/* A packet has reached its socket, in the context that took it from its queue. */
INLINE void reached_socket(struct __sk_buff *ctx) {
    struct sk_buff *skb = (void *)ctx;
    struct sock *sk = 0;
    u32 len = 0, end = 0;
    u16 protocol = 0;
    READ(sk, skb->sk);
    if (!sk)
        return;
    READ(len, skb->len);
    READ(protocol, sk->sk_protocol);
    if (protocol == IPPROTO_TCP ? !tcp_end(ctx, len, &end) : protocol != IPPROTO_UDP)
        return;
    u64 cookie = socket_cookie(ctx);
    struct socket_state *s = map_lookup(&sockets, &cookie);
    u64 now = clock_ns();
    if (!s) {
        if (only_device && !is_only_device(skb))
            return;
        u32 zero = 0;
        struct socket_state *blank = map_lookup(&blanks, &zero);
        if (!blank)
            return;
        map_update(&sockets, &cookie, blank, NOEXIST);
        s = map_lookup(&sockets, &cookie);
        if (!s)
            return;
    }
    if (s->foreign && now - s->foreign < 1000000000)
        return;
    u32 place = end;
    if (protocol == IPPROTO_TCP) {
        u32 copied = 0;
        READ(copied, ((struct tcp_sock *)sk)->copied_seq);
        /* A copy of what the program has. */
        if ((int)(end - copied) <= 0)
            return;
    } else {
        place = datagram_place(s, sk, now);
    }
    u64 n = s->packets++;
    int ours = s->traced || only_device;
    if (ours)
        add(SEEN_IN);
    if (n % one_in())
        return;
    struct queued *q = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (s->slots[i].state == FREE && __sync_val_compare_and_swap(&s->slots[i].state, FREE, CLAIMED) == FREE) {
            q = &s->slots[i];
            break;
        }
    }
    struct cpu *cpu = this_cpu();
    struct flight *f = flight_of(skb);
    if (!q || !cpu || !f) {
        if (ours)
            add(PASSED_BY);
        return;
    }
    int known = f->skb == (u64)skb && f->handed;
    q->sent = known ? f->sent : 0;
    q->signal = known ? f->signal : 0;
    q->pass = known ? f->pass : 0;
    q->handed = known ? f->handed : 0;
    q->line = known ? f->line : 0;
    f->skb = 0;
    q->reached = now;
    q->place = place;
    q->len = len;
    q->cpu = current_cpu();
    q->how = BY_SOFTIRQ;
    /* Older kernels give this kind of program the task, but not its numbers and its name. */
    struct task_struct *task = current_task();
    u32 tid = 0, flags = 0;
    READ(q->ran, task->tgid);
    READ_STRING(q->ran_name, task->comm);
    q->pid = q->tid = 0;
    if (!cpu->softirq) {
        READ(tid, task->pid);
        READ(flags, task->flags);
        q->pid = q->ran;
        q->tid = tid;
        q->how = flags & PF_KTHREAD ? BY_NAPI_THREAD : BY_THREAD;
        thread_of(tid);
    }
    struct net_device *dev = 0;
    READ(q->napi_id, skb->napi_id);
    READ(dev, skb->dev);
    READ(q->ifindex, dev->ifindex);
    q->state = QUEUED;
}

INLINE void report(struct queued *q, struct sock *sk, struct thread *t, u64 who, u64 now) {
    struct received *r = ringbuf_reserve(&records, sizeof(*r), 0);
    if (!r) {
        add(LOST);
        return;
    }
    r->kind = RECEIVED;
    r->pid = who >> 32;
    r->tid = who;
    r->cpu = current_cpu();
    r->sent = q->sent;
    r->signal = q->signal;
    r->pass = q->pass;
    r->handed = q->handed;
    r->reached = q->reached;
    r->runnable = t->runnable;
    r->woken = t->woken;
    r->switched = t->switched;
    r->taken = now;
    r->longest = t->longest;
    r->longest_end = t->longest_end;
    r->before_ran = t->before_ran;
    r->found_cpu = q->cpu;
    r->how = q->how;
    r->found_pid = q->pid;
    r->found_tid = q->tid;
    r->napi_id = q->napi_id;
    r->ifindex = q->ifindex;
    r->line = q->line;
    r->len = q->len;
    r->longest_call = t->longest_call;
    r->before = t->before;
    r->ran = q->ran;
    r->zero = 0;
    __builtin_memcpy(r->before_name, t->before_name, 16);
    __builtin_memcpy(r->ran_name, q->ran_name, 16);
    current_comm(r->name, sizeof(r->name));
    struct ends none = {};
    r->ends = none;
    read_ends(&r->ends, sk);
    ringbuf_submit(r, NO_WAKEUP);
    t->took = 1;
}

/* A call has taken `messages` datagrams, or `bytes` of a stream. */
INLINE void taken(struct sock *sk, u32 messages, u32 bytes) {
    u64 cookie = 0;
    u16 protocol = 0;
    READ(cookie, sk->__sk_common.skc_cookie.counter);
    if (!cookie)
        return;
    struct socket_state *s = map_lookup(&sockets, &cookie);
    if (!s)
        return;
    u64 now = clock_ns();
    u64 who = current_pid_tgid();
    u32 tid = who;
    if (!is_traced(who >> 32)) {
        s->foreign = now;
        for (int i = 0; i < SLOTS; i++)
            s->slots[i].state = FREE;
        return;
    }
    s->foreign = 0;
    s->traced = 1;
    READ(protocol, sk->sk_protocol);
    u32 until = 0;
    if (protocol == IPPROTO_TCP) {
        READ(until, ((struct tcp_sock *)sk)->copied_seq);
    } else {
        s->last = now;
        until = __sync_fetch_and_add(&s->taken, (u64)messages) + messages;
    }
    /* Of a thread that sleeps in this call since before the trace it is not known when it got its CPU. */
    struct thread *t = thread_of(tid);
    for (int i = 0; i < SLOTS; i++) {
        struct queued *q = &s->slots[i];
        if (q->state != QUEUED)
            continue;
        int behind = until - q->place;
        if (behind < 0 || (protocol != IPPROTO_TCP && !behind))
            continue;
        if (__sync_val_compare_and_swap(&q->state, QUEUED, CLAIMED) != QUEUED)
            continue;
        /* What splice or a kernel's reader took before was not seen. */
        int is_of_this = protocol == IPPROTO_TCP ? behind < (int)bytes : behind <= (int)messages;
        if (t && is_of_this)
            report(q, sk, t, who, now);
        q->state = FREE;
    }
    if (t)
        t->longest = 0;
}
