/* Every thread of every process: its current or last system call, and how often it was switched
 * (iter/task). As /proc/PID/task/TID/syscall, but also for a running thread such as a spinner.
 */
#include "kernel.h"

struct record {
    u32 pid, tid;
    u32 running; /* not asleep */
    u32 cpu;     /* where it runs or ran last */
    s64 syscall; /* -1: none, or not told on this processor */
    u64 args[6];
    u64 voluntary, involuntary;
    char comm[16];
};

/* If not 0, only this process. */
const volatile u32 only_pid = 0;

SEC("iter/task")
int threads(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    if (!task || task->flags & PF_KTHREAD)
        return 0;
    struct record r = {};
    r.pid = task->tgid;
    r.tid = task->pid;
    if (only_pid && r.pid != only_pid)
        return 0;
    r.running = task->__state == 0;
    r.cpu = task->wake_cpu;
    r.voluntary = task->nvcsw;
    r.involuntary = task->nivcsw;
    READ_STRING(r.comm, task->comm);
    r.syscall = -1;
    struct pt_regs *regs = task_pt_regs(task);
    if (regs && PRESENT(regs->orig_ax)) {
        r.syscall = regs->orig_ax;
        r.args[0] = regs->di;
        r.args[1] = regs->si;
        r.args[2] = regs->dx;
        r.args[3] = regs->r10;
        r.args[4] = regs->r8;
        r.args[5] = regs->r9;
    }
    seq_write(ctx->meta->seq, &r, sizeof(r));
    return 0;
}
