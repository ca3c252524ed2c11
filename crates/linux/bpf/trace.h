/* What the parts of the tracer share: what is known of each CPU and of each thread, what it traces, and where its
 * records go.
 *
 * Every time is of the monotonic clock, in nanoseconds; 0 is a time that was not seen.
 */
#pragma once
#include "processes.h"

enum { HI_SOFTIRQ = 0, IFF_LOOPBACK = 8 };
enum { RECEIVED = 1, RETURNED = 2, SENT = 3, SCHEDULED = 4 };
/* The record's reader looks by itself, so that no record wakes it. */
enum { NO_WAKEUP = 1 };

/* If not 0, the device whose packets are traced, with its network namespace, whichever process receives them. */
const volatile u32 only_device = 0;
const volatile u32 only_netns = 0;
/* Whether the kernel has sock_recv_length: else a receive is seen when its system call returns. */
const volatile u32 sees_receives = 1;

/* What ran on a CPU, and until when. */
struct run {
    u64 end, ran;
    u32 pid, zero;
    char name[16];
};

/* Shorter runs hold nothing up; of the longer ones the last few are kept. */
enum { LONG_RUN = 20000, RUNS = 8 };

struct cpu {
    u64 softirq;  /* 1 + the number of the one that runs; 0: none */
    u64 irq;      /* since when an interrupt's handler runs */
    u64 raised;   /* since when NET_RX waits */
    u64 signal;   /* what `raised` was when NET_RX began */
    u64 pass;     /* since when a NAPI instance is polled */
    u64 first;    /* when the pass handed up its first packet */
    u64 since;    /* since when the current thread runs here */
    u32 pass_tid; /* whose pass ended at `pass`, if not a softirq's */
    u32 line, raised_line;
    u32 sends, next;
    struct run runs[RUNS];
};

struct {
    MAP_NUMBER(type, PERCPU_ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct cpu);
} cpus SEC(".maps");

/* A thread that has received or sent, or the kernel's thread of a NAPI instance. */
struct thread {
    u64 runnable; /* since when it waited for a CPU, the last time */
    u64 woken;    /* when it was on a CPU's run queue */
    u64 switched; /* when it got the CPU */
    u64 enter;    /* when its last system call began */
    u64 longest;  /* the longest system call since its last packet, and when it ended */
    u64 longest_end;
    u64 before_ran;
    u32 before; /* what ran there longest while it waited, and for how long */
    u32 call, longest_call;
    u32 took; /* a packet, in the present system call */
    char before_name[16];
    u32 told, zero; /* each time it gets a CPU is recorded: its packets are not the kernel's */
};

/* A thread got its CPU. */
struct scheduled {
    u32 kind, tid, cpu, before;
    u64 runnable, woken, switched, before_ran, enter;
    u32 call, zero;
    char before_name[16];
};

struct {
    MAP_NUMBER(type, LRU_HASH);
    MAP_NUMBER(max_entries, 8192);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct thread);
} threads SEC(".maps");

/* Every so many packets of a socket one is traced; written while the program runs. */
struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u64);
} every SEC(".maps");

enum { LOST = 0, PASSED_BY = 1, SEEN_IN = 2, SEEN_OUT = 3, CHOSEN_OUT = 4, COUNTS = 5 };
struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, COUNTS);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u64);
} counts SEC(".maps");

struct {
    MAP_NUMBER(type, RINGBUF);
    MAP_NUMBER(max_entries, 4194304);
} records SEC(".maps");

/* The two ends of a socket, as its owner sees them. */
struct ends {
    u16 family, protocol;
    u16 local_port, peer_port; /* the peer's in the network's byte order */
    u8 local[16], peer[16];
    u64 cookie;
};

INLINE struct cpu *this_cpu(void) {
    u32 zero = 0;
    return map_lookup(&cpus, &zero);
}

INLINE void add(u32 which) {
    u64 *n = map_lookup(&counts, &which);
    if (n)
        __sync_fetch_and_add(n, 1);
}

INLINE u64 one_in(void) {
    u32 zero = 0;
    u64 *n = map_lookup(&every, &zero);
    return n && *n ? *n : 1;
}

INLINE int is_traced(u32 pid) {
    return only_device || map_lookup(&pids, &pid);
}

INLINE struct thread *thread_of(u32 tid) {
    struct thread *t = map_lookup(&threads, &tid);
    if (!t) {
        struct thread new = {};
        map_update(&threads, &tid, &new, NOEXIST);
    }
    return t;
}

INLINE int is_only_device(struct sk_buff *skb) {
    struct net_device *dev = 0;
    struct net *net = 0;
    u32 index = 0, ns = 0;
    READ(dev, skb->dev);
    if (!dev)
        return 0;
    READ(index, dev->ifindex);
    READ(net, dev->nd_net.net);
    READ(ns, net->ns.inum);
    return index == only_device && ns == only_netns;
}

INLINE void read_ends(struct ends *e, struct sock *sk) {
    READ(e->family, sk->__sk_common.skc_family);
    READ(e->protocol, sk->sk_protocol);
    READ(e->local_port, sk->__sk_common.skc_num);
    READ(e->peer_port, sk->__sk_common.skc_dport);
    READ(e->cookie, sk->__sk_common.skc_cookie.counter);
    if (e->family == 2) {
        READ(*(u32 *)e->local, sk->__sk_common.skc_rcv_saddr);
        READ(*(u32 *)e->peer, sk->__sk_common.skc_daddr);
    } else {
        READ(e->local, sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr8);
        READ(e->peer, sk->__sk_common.skc_v6_daddr.in6_u.u6_addr8);
    }
}
