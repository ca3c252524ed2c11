/* How the threads of chosen processes wait for packets: each call that can wait, how long it took, whether the thread
 * slept or polled meanwhile, and how long after its wake-up, or after the poll that found a packet, it returned.
 *
 * A wait is a call in which the thread slept or polled; a call that returned at once is none. While attached, it adds
 * a hash lookup to every system call, switch and wake-up on the machine.
 */
#include "descriptors.h"
#include "lost.h"
#include "processes.h"

enum { EAGAIN = 11 };
enum { SLEPT = 1, POLLED = 2, GOT = 4 };
/* A call of this kind waits for packets only if its descriptor is a socket. */
enum { IF_SOCKET = 2 };
/* Four steps for each power of two, up to 2^36 ns. */
enum { STEPS = 144 };

/* What a thread does now. */
struct state {
    u64 enter;       /* of the call that can wait; 0: in no such call */
    u64 left;        /* when the last wait ended */
    u64 off_since;   /* 0: it runs */
    u64 off, off_before; /* time without a CPU: since `enter`, and from `left` to `enter` */
    u64 woken, found;
    u64 spun;        /* on a CPU before it first slept */
    u32 call, flags;
    u32 calls, zero; /* system calls since `left` */
};

/* The waits of a thread so far. */
struct totals {
    u32 pid, call;
    u64 waits, slept, polled, got, at_once;
    u64 cpu_ns, spun_ns, vain_ns; /* on a CPU in waits, polling in them, polling without a packet */
    u32 lengths[STEPS];
    u32 delays[STEPS];
};

struct record {
    u32 pid, tid;
    u32 call, flags;
    u64 enter, leave, woken;
    u64 off, off_before;
    u32 calls, zero;
};

struct cpu {
    u64 in_net_rx;
};

/* The calls that can wait for packets; IF_SOCKET: on a socket. */
struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 32);
    MAP_TYPE(key, s64);
    MAP_TYPE(value, u32);
} calls SEC(".maps");

struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 16384);
    MAP_NUMBER(map_flags, NO_PREALLOC);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct state);
} threads SEC(".maps");

struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 4096);
    MAP_NUMBER(map_flags, NO_PREALLOC);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct totals);
} waits SEC(".maps");

/* A `struct totals` does not fit on the stack. */
struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct totals);
} no_waits SEC(".maps");

struct {
    MAP_NUMBER(type, RINGBUF);
    MAP_NUMBER(max_entries, 4194304);
} records SEC(".maps");

struct {
    MAP_NUMBER(type, PERCPU_ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct cpu);
} cpus SEC(".maps");

/* 1 << NAPI_STATE_IN_BUSY_POLL. */
const volatile u64 in_busy_poll = 0;
/* Whether the children of a process are watched too. */
const volatile u32 children = 0;
/* Whether each wait is reported, beside the totals. */
const volatile u32 each = 0;

INLINE struct cpu *this_cpu(void) {
    u32 zero = 0;
    return map_lookup(&cpus, &zero);
}

INLINE u32 step(u64 ns) {
    u32 log = 0;
    u64 n = ns;
#pragma unroll
    for (u32 shift = 32; shift; shift >>= 1) {
        if (n >> shift) {
            n >>= shift;
            log += shift;
        }
    }
    u32 at = log < 2 ? ns : log * 4 + ((ns >> (log - 2)) & 3) - 4;
    return at < STEPS ? at : STEPS - 1;
}

SEC("tp_btf/sys_enter")
int sys_enter(u64 *args) {
    u64 who = current_pid_tgid();
    u32 pid = who >> 32, tid = who;
    if (!map_lookup(&pids, &pid))
        return 0;
    struct pt_regs *regs = (void *)args[0];
    s64 call = args[1];
    struct state *s = map_lookup(&threads, &tid);
    if (!s) {
        struct state new = {};
        map_update(&threads, &tid, &new, NOEXIST);
        s = map_lookup(&threads, &tid);
        if (!s) {
            count_lost();
            return 0;
        }
    }
    s->calls++;
    u32 *kind = map_lookup(&calls, &call);
    if (!kind)
        return 0;
    if (*kind == IF_SOCKET && (!PRESENT(regs->di) || !socket_file(regs->di)))
        return 0;
    s->off_before += s->off;
    s->off = 0;
    s->woken = s->found = s->spun = 0;
    s->flags = 0;
    s->call = call;
    s->enter = clock_ns();
    return 0;
}

INLINE void add(struct state *s, u32 pid, u32 tid, u64 now) {
    u64 length = now - s->enter;
    u64 cpu = length > s->off ? length - s->off : 0;
    u64 woken = s->flags & SLEPT ? s->woken : s->found;
    u64 spun = !(s->flags & POLLED) ? 0 : s->flags & SLEPT ? s->spun : cpu;
    struct totals *t = map_lookup(&waits, &tid);
    if (!t) {
        u32 zero = 0;
        struct totals *none = map_lookup(&no_waits, &zero);
        if (none)
            map_update(&waits, &tid, none, NOEXIST);
        t = map_lookup(&waits, &tid);
        if (!t) {
            count_lost();
            return;
        }
    }
    t->pid = pid;
    t->cpu_ns += cpu;
    t->spun_ns += spun;
    if ((s->flags & SLEPT) || !(s->flags & GOT))
        t->vain_ns += spun;
    if (!(s->flags & (SLEPT | POLLED))) {
        t->at_once++;
        return;
    }
    t->call = s->call;
    t->waits++;
    if (s->flags & SLEPT)
        t->slept++;
    if (s->flags & POLLED)
        t->polled++;
    if (s->flags & GOT) {
        t->got++;
        u32 at = step(length);
        if (at < STEPS)
            t->lengths[at]++;
        if (woken > s->enter && woken <= now) {
            at = step(now - woken);
            if (at < STEPS)
                t->delays[at]++;
        }
    }
    if (!each)
        return;
    struct record *r = ringbuf_reserve(&records, sizeof(*r), 0);
    if (!r) {
        count_lost();
        return;
    }
    r->pid = pid;
    r->tid = tid;
    r->call = s->call;
    r->flags = s->flags;
    r->enter = s->enter;
    r->leave = now;
    r->woken = woken;
    r->off = s->off;
    r->off_before = s->off_before;
    r->calls = s->calls;
    r->zero = 0;
    ringbuf_submit(r, 0);
}

SEC("tp_btf/sys_exit")
int sys_exit(u64 *args) {
    u64 who = current_pid_tgid();
    u32 pid = who >> 32, tid = who;
    if (!map_lookup(&pids, &pid))
        return 0;
    struct state *s = map_lookup(&threads, &tid);
    if (!s || !s->enter)
        return 0;
    u64 now = clock_ns();
    s64 ret = args[1];
    if (ret > 0)
        s->flags |= GOT;
    /* A call that does not block polls once. */
    if (ret == -EAGAIN)
        s->flags &= ~POLLED;
    add(s, pid, tid, now);
    s->off_before = s->flags & (SLEPT | POLLED) ? 0 : s->off_before + s->off;
    if (s->flags & (SLEPT | POLLED)) {
        s->calls = 0;
        s->left = now;
    }
    s->off = 0;
    s->enter = 0;
    return 0;
}

SEC("tp_btf/sched_switch")
int sched_switch(u64 *args) {
    int preempted = args[0] != 0;
    struct task_struct *prev = (void *)args[1];
    struct task_struct *next = (void *)args[2];
    u32 from = prev->pid, to = next->pid;
    u64 now = clock_ns();
    struct state *s = map_lookup(&threads, &from);
    if (s) {
        s->off_since = now;
        if (s->enter && !preempted && prev->__state && !(s->flags & SLEPT)) {
            s->spun = now - s->enter > s->off ? now - s->enter - s->off : 0;
            s->flags |= SLEPT;
        }
    }
    s = map_lookup(&threads, &to);
    if (s && s->off_since) {
        s->off += now - s->off_since;
        s->off_since = 0;
    }
    return 0;
}

SEC("tp_btf/sched_waking")
int sched_waking(u64 *args) {
    struct task_struct *task = (void *)args[0];
    u32 tid = task->pid;
    struct state *s = map_lookup(&threads, &tid);
    if (s && s->enter && (s->flags & SLEPT))
        s->woken = clock_ns();
    return 0;
}

SEC("tp_btf/softirq_entry")
int softirq_entry(u64 *args) {
    struct cpu *cpu = this_cpu();
    if (cpu && args[0] == NET_RX_SOFTIRQ)
        cpu->in_net_rx = 1;
    return 0;
}

SEC("tp_btf/softirq_exit")
int softirq_exit(u64 *args) {
    struct cpu *cpu = this_cpu();
    if (cpu && args[0] == NET_RX_SOFTIRQ)
        cpu->in_net_rx = 0;
    return 0;
}

SEC("tp_btf/napi_poll")
int napi_poll(u64 *args) {
    struct napi_struct *napi = (void *)args[0];
    int work = args[1];
    struct cpu *cpu = this_cpu();
    u32 tid = current_pid_tgid();
    if (!cpu || cpu->in_net_rx || !(napi->state & in_busy_poll))
        return 0;
    struct state *s = map_lookup(&threads, &tid);
    if (!s || !s->enter)
        return 0;
    s->flags |= POLLED;
    if (work > 0)
        s->found = clock_ns();
    return 0;
}

SEC("tp_btf/sched_process_fork")
int sched_process_fork(u64 *args) {
    struct task_struct *parent = (void *)args[0];
    struct task_struct *child = (void *)args[1];
    u32 from = parent->tgid, to = child->tgid, one = 1;
    if (children && from != to && map_lookup(&pids, &from))
        map_update(&pids, &to, &one, ANY);
    return 0;
}

SEC("tp_btf/sched_process_exit")
int sched_process_exit(u64 *args) {
    struct task_struct *task = (void *)args[0];
    u32 tid = task->pid, pid = task->tgid;
    map_delete(&threads, &tid);
    map_delete(&waits, &tid);
    if (tid == pid)
        map_delete(&pids, &pid);
    return 0;
}
