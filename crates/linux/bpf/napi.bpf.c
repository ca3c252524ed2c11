/* Who drives each receive queue, and whether it was worth it: every pass over a NAPI instance, by kind.
 *
 * A pass is told apart at its end (tp_btf/napi_poll): no id: the per-CPU backlog and other instances that cannot
 * be busy polled; inside NET_RX: softirq; else IN_BUSY_POLL: a spin; else a thread named napi/: threaded; else
 * the last pass of a busy poll, which gives the queue back to its interrupt.
 * Counters are per CPU, so nothing here waits for another CPU.
 */
#include "kernel.h"

enum { NET_RX_SOFTIRQ = 3 };

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

/* 1 << NAPI_STATE_IN_BUSY_POLL: the bit has moved between kernels, and its enum has no name to look for. */
const volatile u64 in_busy_poll = 0;

INLINE struct cpu *this_cpu(void) {
    u32 zero = 0;
    return map_lookup(&cpus, &zero);
}

INLINE int is_napi_thread(void) {
    char comm[16] = {};
    current_comm(comm, sizeof(comm));
    return comm[0] == 'n' && comm[1] == 'a' && comm[2] == 'p' && comm[3] == 'i' && comm[4] == '/';
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
    /* A softirq has let go of the instance by now: the bit may be of another CPU's busy poll, begun since. */
    int spin = !cpu->in_net_rx && (napi->state & in_busy_poll) != 0;
    int thread = !spin && !cpu->in_net_rx && is_napi_thread();
    int rearm = !spin && !cpu->in_net_rx && !thread;
    u64 who = spin || rearm ? current_pid_tgid() : 0;
    struct key key = {id, who >> 32, who};
    struct counts *c = map_lookup(&passes, &key);
    if (!c) {
        struct counts new = {};
        struct net_device *dev = napi->dev;
        /* The backlog's device is a dummy, or none. */
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
