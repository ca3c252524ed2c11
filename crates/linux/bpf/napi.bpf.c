/* Which thread drives each receive queue, and what it finds: every pass over a NAPI instance, by kind.
 *
 * The kind of a pass is decided at its end (tp_btf/napi_poll). Without id: the per-CPU backlog or another instance
 * that cannot be busy polled. Inside NET_RX: softirq. IN_BUSY_POLL set: a spin. In a thread named napi/: threaded.
 * Any other is the last pass of a busy poll, which gives the queue back to its interrupt.
 * Counters are per CPU, so nothing here waits for another CPU.
 *
 * Also which socket each packet reached, and how it was found. When a packet is handed to a socket (sk_filter_trim_cap,
 * which TCP and UDP call for each and which runs the programs of the socket's control group), the context is still the
 * one that took it from the queue. The program lets every packet pass.
 */
#include "lost.h"

struct key {
    u32 napi_id;
    u32 pid, tid; /* of a spinner; 0 for softirqs and threads of the kernel's */
};

struct counts {
    u64 spin_hits, spin_packets, spin_empty;
    u64 rearm, rearm_packets;
    u64 softirq, softirq_packets;
    u64 threaded, threaded_packets;
    u64 wakeups; /* threads woken by softirq or threaded passes */
    u64 device;  /* ifindex, and the inode of its network namespace above it */
    u64 name[2];
};

struct cpu {
    u64 in_net_rx;
    u64 wakeups;
};

struct {
    MAP_NUMBER(type, PERCPU_HASH);
    MAP_NUMBER(max_entries, 2048);
    MAP_NUMBER(map_flags, NO_PREALLOC);
    MAP_TYPE(key, struct key);
    MAP_TYPE(value, struct counts);
} passes SEC(".maps");

struct {
    MAP_NUMBER(type, PERCPU_ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct cpu);
} cpus SEC(".maps");

enum { PASS = 1 };
enum { BY_SOFTIRQ = 0, BY_THREAD = 1, BY_NAPI_THREAD = 2 };

/* One socket, one queue, and one way in which its packets were found. */
struct delivery {
    u64 cookie; /* SO_COOKIE */
    u32 napi_id, cpu;
    u32 how;
    u32 pid, tid; /* BY_THREAD: in whose context, which is a busy poll if the packet has a NAPI id */
    u32 zero;
};

struct delivered {
    u64 packets;
    u32 netns;
    u32 local_port;
};

struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 65536);
    MAP_NUMBER(map_flags, NO_PREALLOC);
    MAP_TYPE(key, struct delivery);
    MAP_TYPE(value, struct delivered);
} deliveries SEC(".maps");

/* 1 << NAPI_STATE_IN_BUSY_POLL: the bit differs between kernels, and CO-RE cannot look up an unnamed enum. */
const volatile u64 in_busy_poll = 0;

/* Whether busy polls are counted for each thread, or only for each NAPI instance. */
const volatile u64 by_thread = 1;

INLINE struct cpu *this_cpu(void) {
    u32 zero = 0;
    return map_lookup(&cpus, &zero);
}

INLINE int is_napi_name(const char *comm) {
    return comm[0] == 'n' && comm[1] == 'a' && comm[2] == 'p' && comm[3] == 'i' && comm[4] == '/';
}

INLINE int is_napi_thread(void) {
    char comm[16] = {};
    current_comm(comm, sizeof(comm));
    return is_napi_name(comm);
}

SEC("tp_btf/softirq_entry")
int softirq_entry(u64 *args) {
    struct cpu *cpu = this_cpu();
    if (cpu && args[0] == NET_RX_SOFTIRQ) {
        cpu->in_net_rx = 1;
        cpu->wakeups = 0;
    }
    return 0;
}

SEC("tp_btf/softirq_exit")
int softirq_exit(u64 *args) {
    struct cpu *cpu = this_cpu();
    if (cpu && args[0] == NET_RX_SOFTIRQ)
        cpu->in_net_rx = 0;
    return 0;
}

SEC("tp_btf/sched_waking")
int sched_waking(void *args __attribute__((unused))) {
    struct cpu *cpu = this_cpu();
    if (cpu && (cpu->in_net_rx || is_napi_thread()))
        cpu->wakeups++;
    return 0;
}

SEC("tp_btf/napi_poll")
int napi_poll(u64 *args) {
    struct napi_struct *napi = (void *)args[0];
    int work = args[1];
    struct cpu *cpu = this_cpu();
    if (!cpu)
        return 0;
    u32 id = napi->napi_id;
    /* A softirq has released the instance by now: the bit may belong to another CPU's busy poll that began since. */
    int spin = !cpu->in_net_rx && (napi->state & in_busy_poll) != 0;
    int thread = !spin && !cpu->in_net_rx && is_napi_thread();
    int rearm = !spin && !cpu->in_net_rx && !thread;
    u64 who = by_thread && (spin || rearm) ? current_pid_tgid() : 0;
    struct key key = {id, who >> 32, who};
    struct counts *c = map_lookup(&passes, &key);
    if (!c) {
        struct counts new = {};
        struct net_device *dev = napi->dev;
        /* The backlog's device is a dummy, or missing. */
        if (id && dev) {
            new.device = (u32)dev->ifindex | (u64)dev->nd_net.net->ns.inum << 32;
            probe_read_kernel_str(new.name, sizeof(new.name), dev->name);
        }
        map_update(&passes, &key, &new, NOEXIST);
        c = map_lookup(&passes, &key);
        if (!c)
            return 0;
    }
    u64 packets = work > 0 ? work : 0;
    if (spin) {
        if (packets)
            c->spin_hits++;
        else
            c->spin_empty++;
        c->spin_packets += packets;
    } else if (rearm) {
        c->rearm++;
        c->rearm_packets += packets;
    } else if (thread) {
        c->threaded++;
        c->threaded_packets += packets;
    } else {
        c->softirq++;
        c->softirq_packets += packets;
    }
    if (thread || cpu->in_net_rx) {
        c->wakeups += cpu->wakeups;
        cpu->wakeups = 0;
    }
    return 0;
}

/* The length of a TCP segment's data; the whole length if the headers are not laid out as usual. */
INLINE u32 tcp_data(struct __sk_buff *ctx, u32 len) {
    u8 first = 0, offset = 0;
    u32 headers;
    skb_load_bytes(ctx, 0, &first, 1);
    if (first >> 4 == 4) {
        headers = (first & 15) * 4;
    } else {
        u8 next = 0;
        skb_load_bytes(ctx, 6, &next, 1);
        if (next != IPPROTO_TCP)
            return len;
        headers = 40;
    }
    if (skb_load_bytes(ctx, headers + 12, &offset, 1))
        return len;
    headers += (offset >> 4) * 4;
    return len > headers ? len - headers : 0;
}

/* The context is the packet itself, which begins at the IP header here. */
SEC("cgroup_skb/ingress")
int delivered_to(struct __sk_buff *ctx) {
    struct sk_buff *skb = (void *)ctx;
    struct cpu *cpu = this_cpu();
    struct sock *sk = 0;
    struct net *net = 0;
    u32 len = 0;
    u16 protocol = 0;
    READ(sk, skb->sk);
    if (!cpu || !sk)
        return PASS;
    READ(len, skb->len);
    READ(protocol, sk->sk_protocol);
    /* No thread waits for an acknowledgement without data. */
    if (protocol == IPPROTO_TCP && !tcp_data(ctx, len))
        return PASS;
    struct delivery key = {socket_cookie(ctx)};
    READ(key.napi_id, skb->napi_id);
    key.cpu = current_cpu();
    if (!cpu->in_net_rx) {
        struct task_struct *task = current_task();
        u32 flags = 0;
        READ(flags, task->flags);
        READ(key.tid, task->pid);
        if (!(flags & PF_KTHREAD)) {
            key.how = BY_THREAD;
            READ(key.pid, task->tgid);
        } else {
            char comm[16] = {};
            READ_STRING(comm, task->comm);
            if (is_napi_name(comm))
                key.how = BY_NAPI_THREAD;
            else
                key.tid = 0;
        }
    }
    struct delivered *d = map_lookup(&deliveries, &key);
    if (!d) {
        struct delivered new = {};
        u16 port = 0;
        READ(net, sk->__sk_common.skc_net.net);
        READ(new.netns, net->ns.inum);
        READ(port, sk->__sk_common.skc_num);
        new.local_port = port;
        map_update(&deliveries, &key, &new, NOEXIST);
        d = map_lookup(&deliveries, &key);
    }
    if (d)
        __sync_fetch_and_add(&d->packets, 1);
    else
        count_lost();
    return PASS;
}
