/* Where a packet's time goes: the times of its stages, from the interrupt or the poll that finds it to the return of the
 * call that takes it, and from the call that sends it to the driver.
 *
 * Each tracepoint stands here, with what it means for CPUs, threads, receives (trace_receive.h) and sends (trace_send.h).
 * Every packet on the machine passes some of them: those that are not traced leave after one or two lookups.
 */
#include "descriptors.h"
#include "trace.h"
#include "trace_receive.h"
#include "trace_send.h"

SEC("tp_btf/irq_handler_entry")
int irq_handler_entry(u64 *args) {
    struct cpu *cpu = this_cpu();
    if (cpu) {
        cpu->irq = clock_ns();
        cpu->line = args[0];
    }
    return 0;
}

SEC("tp_btf/irq_handler_exit")
int irq_handler_exit(void *args __attribute__((unused))) {
    struct cpu *cpu = this_cpu();
    if (cpu)
        cpu->irq = 0;
    return 0;
}

SEC("tp_btf/softirq_raise")
int softirq_raise(u64 *args) {
    struct cpu *cpu = this_cpu();
    if (!cpu || args[0] != NET_RX_SOFTIRQ || cpu->raised)
        return 0;
    cpu->raised = cpu->irq ? cpu->irq : clock_ns();
    cpu->raised_line = cpu->irq ? cpu->line : 0;
    return 0;
}

SEC("tp_btf/softirq_entry")
int softirq_entry(u64 *args) {
    struct cpu *cpu = this_cpu();
    if (!cpu)
        return 0;
    cpu->softirq = args[0] + 1;
    if (args[0] == NET_RX_SOFTIRQ) {
        cpu->pass = clock_ns();
        cpu->signal = cpu->raised ? cpu->raised : cpu->pass;
        cpu->raised = 0;
        cpu->first = 0;
        cpu->pass_tid = 0;
    }
    return 0;
}

SEC("tp_btf/softirq_exit")
int softirq_exit(void *args __attribute__((unused))) {
    struct cpu *cpu = this_cpu();
    if (cpu)
        cpu->softirq = 0;
    return 0;
}

/* At the end of a pass. */
SEC("tp_btf/napi_poll")
int napi_poll(void *args __attribute__((unused))) {
    struct cpu *cpu = this_cpu();
    if (!cpu)
        return 0;
    cpu->pass = clock_ns();
    cpu->first = 0;
    cpu->pass_tid = cpu->softirq ? 0 : current_pid_tgid();
    return 0;
}

SEC("tp_btf/napi_gro_receive_entry")
int napi_gro_receive_entry(u64 *args) {
    handed_up((void *)args[0], 0);
    return 0;
}

SEC("tp_btf/napi_gro_frags_entry")
int napi_gro_frags_entry(u64 *args) {
    handed_up((void *)args[0], 0);
    return 0;
}

SEC("tp_btf/netif_receive_skb_entry")
int netif_receive_skb_entry(u64 *args) {
    handed_up((void *)args[0], 0);
    return 0;
}

SEC("tp_btf/netif_receive_skb_list_entry")
int netif_receive_skb_list_entry(u64 *args) {
    handed_up((void *)args[0], 1);
    return 0;
}

/* Packets of the backlog come by no other tracepoint. */
SEC("tp_btf/netif_receive_skb")
int netif_receive_skb(u64 *args) {
    handed_up((void *)args[0], 1);
    return 0;
}

/* The context is the packet itself, which begins at the IP header here. It always passes. */
SEC("cgroup_skb/ingress")
int reached(struct __sk_buff *ctx) {
    reached_socket(ctx);
    return 1;
}

/* A datagram did not fit into the socket's buffer. */
SEC("tp_btf/udp_fail_queue_rcv_skb")
int udp_fail_queue_rcv_skb(u64 *args) {
    struct sock *sk = (void *)args[1];
    u64 cookie = 0;
    READ(cookie, sk->__sk_common.skc_cookie.counter);
    struct socket_state *s = map_lookup(&sockets, &cookie);
    if (!s)
        return 0;
    u32 place = __sync_fetch_and_add(&s->arrived, -1ULL) - 1;
    for (int i = 0; i < SLOTS; i++)
        if (s->slots[i].state == QUEUED && s->slots[i].place == place)
            s->slots[i].state = FREE;
    return 0;
}

SEC("tp_btf/sock_recv_length")
int sock_recv_length(u64 *args) {
    struct sock *sk = (void *)args[0];
    int got = args[1];
    u32 flags = args[2];
    /* MSG_PEEK, MSG_ERRQUEUE */
    if (got >= 0 && !(flags & 0x2002))
        taken(sk, 1, got);
    return 0;
}

SEC("tp_btf/sched_waking")
int sched_waking(u64 *args) {
    struct task_struct *task = (void *)args[0];
    u32 tid = task->pid;
    struct thread *t = map_lookup(&threads, &tid);
    /* It may be woken several times before it gets its CPU. */
    if (t && t->runnable <= t->switched) {
        t->runnable = clock_ns();
        t->woken = 0;
    }
    return 0;
}

SEC("tp_btf/sched_wakeup")
int sched_wakeup(u64 *args) {
    struct task_struct *task = (void *)args[0];
    u32 tid = task->pid;
    struct thread *t = map_lookup(&threads, &tid);
    if (t && t->runnable > t->switched && !t->woken)
        t->woken = clock_ns();
    return 0;
}

INLINE void tell(struct thread *t, u32 tid) {
    struct scheduled *r = ringbuf_reserve(&records, sizeof(*r), 0);
    if (!r) {
        add(LOST);
        return;
    }
    r->kind = SCHEDULED;
    r->tid = tid;
    r->cpu = current_cpu();
    r->before = t->before;
    r->runnable = t->runnable;
    r->woken = t->woken;
    r->switched = t->switched;
    r->before_ran = t->before_ran;
    r->enter = t->enter;
    r->call = t->call;
    r->zero = 0;
    __builtin_memcpy(r->before_name, t->before_name, 16);
    ringbuf_submit(r, NO_WAKEUP);
}

SEC("tp_btf/sched_switch")
int sched_switch(u64 *args) {
    struct task_struct *prev = (void *)args[1];
    struct task_struct *next = (void *)args[2];
    struct cpu *cpu = this_cpu();
    if (!cpu)
        return 0;
    u64 now = clock_ns();
    u32 from = prev->pid, to = next->pid;
    u64 ran = now - cpu->since;
    if (from && ran >= LONG_RUN) {
        struct run *run = &cpu->runs[cpu->next++ & (RUNS - 1)];
        run->end = now;
        run->ran = ran;
        run->pid = from;
        probe_read_kernel(run->name, sizeof(run->name), prev->comm);
    }
    struct thread *t = from ? map_lookup(&threads, &from) : 0;
    if (t) {
        /* Not asleep: something else runs in its place. */
        int waits = prev->__state == 0;
        t->runnable = waits ? now : 0;
        t->woken = waits ? now : 0;
    }
    t = to ? map_lookup(&threads, &to) : 0;
    if (t) {
        t->switched = now;
        t->before = from;
        t->before_ran = ran;
        probe_read_kernel(t->before_name, sizeof(t->before_name), prev->comm);
        u64 most = 0;
        for (int i = 0; i < RUNS; i++) {
            struct run *run = &cpu->runs[i];
            u64 begin = run->end - run->ran;
            if (begin < t->runnable)
                begin = t->runnable;
            if (t->runnable && run->end > begin && run->end - begin > most) {
                most = run->end - begin;
                t->before = run->pid;
                t->before_ran = most;
                __builtin_memcpy(t->before_name, run->name, 16);
            }
        }
        if (t->told)
            tell(t, to);
    }
    cpu->since = now;
    return 0;
}

SEC("tp_btf/sys_enter")
int sys_enter(u64 *args) {
    u64 who = current_pid_tgid();
    u32 tid = who, pid = who >> 32;
    struct thread *t = map_lookup(&threads, &tid);
    /* Its first receive may be its only one. */
    if (!t && !only_device && map_lookup(&pids, &pid)) {
        thread_of(tid);
        t = map_lookup(&threads, &tid);
    }
    if (t) {
        t->enter = clock_ns();
        t->call = args[1];
    }
    return 0;
}

/* The socket of a descriptor of this thread's. */
INLINE struct sock *socket_of(u32 fd) {
    struct file *file = socket_file(fd);
    struct socket *socket = 0;
    struct sock *sk = 0;
    if (!file)
        return 0;
    READ(socket, file->private_data);
    READ(sk, socket->sk);
    return sk;
}

SEC("tp_btf/sys_exit")
int sys_exit(u64 *args) {
    struct pt_regs *regs = (void *)args[0];
    s64 ret = args[1];
    u64 who = current_pid_tgid();
    u32 tid = who;
    struct thread *t = map_lookup(&threads, &tid);
    /* Before what is taken below: its return is no stage of its own. */
    u64 now = t || !sees_receives ? clock_ns() : 0;
    if (!sees_receives && ret >= 0 && PRESENT(regs->orig_ax)) {
        u64 call = regs->orig_ax, flags = 0;
        /* x86-64: read, readv, recvfrom, recvmsg, recvmmsg */
        int is_receive = call == 0 || call == 19 || call == 45 || call == 47 || call == 299;
        if (call == 45 || call == 299)
            flags = regs->r10;
        if (call == 47)
            flags = regs->dx;
        u32 pid = who >> 32;
        if (is_receive && !(flags & 0x2002) && is_traced(pid)) {
            struct sock *sk = socket_of(regs->di);
            if (sk)
                taken(sk, call == 299 ? ret : 1, call == 299 ? 1 << 30 : ret);
        }
    }
    if (!t)
        return 0;
    if (t->took) {
        t->took = 0;
        struct returned *r = ringbuf_reserve(&records, sizeof(*r), 0);
        if (r) {
            r->kind = RETURNED;
            r->tid = tid;
            r->at = now;
            ringbuf_submit(r, NO_WAKEUP);
        } else {
            add(LOST);
        }
    } else if (t->enter && now - t->enter > t->longest) {
        t->longest = now - t->enter;
        t->longest_end = now;
        t->longest_call = t->call;
    }
    return 0;
}

SEC("tp_btf/net_dev_queue")
int net_dev_queue(u64 *args) {
    send_queued((void *)args[0]);
    return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int net_dev_start_xmit(u64 *args) {
    u64 now = clock_ns();
    send_started((void *)args[0], now);
    sent_here((void *)args[0], now);
    return 0;
}

SEC("tp_btf/net_dev_xmit")
int net_dev_xmit(u64 *args) {
    send_done((void *)args[0], args[1], (void *)args[2], args[3]);
    return 0;
}

SEC("tp_btf/sched_process_fork")
int sched_process_fork(u64 *args) {
    struct task_struct *parent = (void *)args[0];
    struct task_struct *child = (void *)args[1];
    u32 from = parent->tgid, to = child->tgid, one = 1;
    if (from != to && map_lookup(&pids, &from))
        map_update(&pids, &to, &one, ANY);
    return 0;
}

SEC("tp_btf/sched_process_exit")
int sched_process_exit(u64 *args) {
    struct task_struct *task = (void *)args[0];
    u32 pid = task->tgid, tid = task->pid;
    if (pid == tid)
        map_delete(&pids, &pid);
    map_delete(&threads, &tid);
    return 0;
}
