/* What chosen processes open: sockets, accepted connections, epoll instances, reported at once (tp_btf/sys_exit).
 *
 * While attached, it adds a hash lookup to every system call on the machine.
 */
#include "lost.h"
#include "processes.h"

enum { OPENED = 1, FORKED = 2, EXITED = 3, EXECUTED = 4 };

struct event {
    u32 what, pid, tid;
    int fd; /* OPENED: the descriptor; FORKED: the child's pid */
    s64 syscall;
};

/* The system calls to report. */
struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 32);
    MAP_TYPE(key, s64);
    MAP_TYPE(value, u32);
} calls SEC(".maps");

struct {
    MAP_NUMBER(type, RINGBUF);
    MAP_NUMBER(max_entries, 262144);
} events SEC(".maps");

/* Whether the children of a followed process are followed too. */
const volatile u32 children = 0;

INLINE void tell(u32 what, u64 pid_tgid, int fd, s64 syscall) {
    struct event *e = ringbuf_reserve(&events, sizeof(*e), 0);
    if (!e) {
        count_lost();
        return;
    }
    e->what = what;
    e->pid = pid_tgid >> 32;
    e->tid = pid_tgid;
    e->fd = fd;
    e->syscall = syscall;
    ringbuf_submit(e, 0);
}

SEC("tp_btf/sys_exit")
int sys_exit(u64 *args) {
    u64 who = current_pid_tgid();
    u32 pid = who >> 32;
    if (!map_lookup(&pids, &pid))
        return 0;
    struct pt_regs *regs = (void *)args[0];
    s64 ret = args[1];
    if (ret < 0 || !PRESENT(regs->orig_ax))
        return 0;
    s64 call = regs->orig_ax;
    if (map_lookup(&calls, &call))
        tell(OPENED, who, ret, call);
    return 0;
}

SEC("tp_btf/sched_process_fork")
int sched_process_fork(u64 *args) {
    struct task_struct *parent = (void *)args[0];
    struct task_struct *child = (void *)args[1];
    u32 from = parent->tgid, to = child->tgid;
    u32 *followed = map_lookup(&pids, &from);
    /* A new thread is not a new process. */
    if (!children || !followed || from == to)
        return 0;
    u32 one = 1;
    map_update(&pids, &to, &one, ANY);
    tell(FORKED, (u64)from << 32 | (u32)parent->pid, to, -1);
    return 0;
}

SEC("tp_btf/sched_process_exec")
int sched_process_exec(void *args __attribute__((unused))) {
    u64 who = current_pid_tgid();
    u32 pid = who >> 32;
    if (map_lookup(&pids, &pid))
        tell(EXECUTED, who, 0, -1);
    return 0;
}

SEC("tp_btf/sched_process_exit")
int sched_process_exit(u64 *args) {
    struct task_struct *task = (void *)args[0];
    u32 pid = task->tgid;
    if (task->pid != task->tgid || !map_lookup(&pids, &pid))
        return 0;
    map_delete(&pids, &pid);
    tell(EXITED, (u64)pid << 32 | (u32)task->pid, 0, -1);
    return 0;
}
