//! Rules about processes: their sockets, epoll instances and threads.

super::rules! { PROCESS;
SOCK_READY "BP-SOCK-READY" Fine,
    "receive calls on this socket busy poll, as far as can be seen without measuring",
    "SO_BUSY_POLL is set, a thread waits in a receive call, and the NAPI id is alive",
    "net/core/sock.c, sk_can_busy_loop and sk_busy_loop in include/net/busy_poll.h";

SOCK_IDLE "BP-SOCK-IDLE" Fine,
    "busy polling is switched on for a socket that no thread waits for",
    "only a thread that waits polls: while none waits, the setting has no effect",
    "net/core/sock.c, sk_can_busy_loop";

NO_SOCKETS "BP-NO-SOCKETS" Fine,
    "a process without a socket that packets of a network reach",
    "busy polling is for packets of a device's queue: UNIX sockets, pipes and timers have none",
    "include/net/busy_poll.h";

STOPPED "BP-STOPPED" Impossible,
    "the process is stopped",
    "a stopped process neither waits nor polls: packets fill its buffers until it continues",
    "proc_pid_stat(5), state T; signal(7), SIGSTOP";

CPU_QUOTA "BP-CPU-QUOTA" Harmful,
    "a control group's quota of CPU time stops a poller",
    "a poller uses CPU time even while no packets come: once the quota is used up all threads of the group stop until the next period, and packets wait that long",
    "Documentation/scheduler/sched-bwc.rst; cpu.stat, nr_throttled";

FIFO_POLLER "BP-FIFO-POLLER" Harmful,
    "a thread busy polls under SCHED_FIFO or SCHED_RR",
    "ksoftirqd and NAPI threads of its CPU, which have no such priority, do not run while it spins, and their work waits: timers, sending, other queues",
    "kernel/softirq.c, run_ksoftirqd; sched(7)";

SOCK_OFF "BP-SOCK-OFF" Off,
    "a thread waits in a receive call on a socket without SO_BUSY_POLL",
    "the receive call sleeps until an interrupt; with SO_BUSY_POLL it would poll the device first",
    "socket(7), SO_BUSY_POLL";

SOCK_SPIN "BP-SOCK-SPIN" Off,
    "a thread calls a non-blocking receive in a loop, on a socket without SO_BUSY_POLL",
    "such a call returns what an interrupt has brought; with SO_BUSY_POLL each call polls the device once, too",
    "include/net/busy_poll.h, sk_busy_loop; net/core/dev.c, napi_busy_loop without an end";

SOCK_POLL_OFF "BP-SOCK-POLL-OFF" Off,
    "a thread waits in poll or select on a socket without SO_BUSY_POLL",
    "poll and select busy poll only where both SO_BUSY_POLL and net.core.busy_poll, which applies to the whole machine, are above zero; a program started by `busypoll run` waits in an epoll instance instead",
    "fs/select.c, net_busy_loop_on; net/socket.c, sock_poll";

SOCK_IN_EPOLL "BP-SOCK-IN-EPOLL" NoEffect,
    "SO_BUSY_POLL on a socket that is waited for in epoll",
    "epoll never reads a member's SO_BUSY_POLL: it polls by parameters of its own (EPIOCSPARAMS) or net.core.busy_poll, and here neither is set",
    "fs/eventpoll.c, ep_busy_loop_on";

SOCK_IN_POLL "BP-SOCK-IN-POLL" NoEffect,
    "SO_BUSY_POLL on a socket that is waited for in poll or select, while net.core.busy_poll is 0",
    "poll and select busy poll only where both SO_BUSY_POLL and net.core.busy_poll are above zero; a program started by `busypoll run` waits in an epoll instance instead, and for one that cannot be restarted there is the setting of the whole machine: sysctl -w net.core.busy_poll=50",
    "fs/select.c, net_busy_loop_on; net/socket.c, sock_poll";

SOCK_IN_URING "BP-SOCK-IN-URING" NoEffect,
    "SO_BUSY_POLL on a socket of a program that waits in io_uring without IORING_REGISTER_NAPI",
    "io_uring's waits poll only the NAPI instances of a ring registered with IORING_REGISTER_NAPI; SO_BUSY_POLL gives a single pass per receive",
    "io_uring/napi.c";

SOCK_NO_NAPI "BP-SOCK-NO-NAPI" NoEffect,
    "busy polling is switched on, but the socket has no NAPI id",
    "a socket learns which queue to poll from the packets it receives: it has received none yet, or its device gives packets no NAPI id",
    "include/net/busy_poll.h, sk_mark_napi_id; `busypoll doctor IF` shows the device's part";

SOCK_LOOPBACK "BP-SOCK-LOOPBACK" Impossible,
    "a socket whose packets do not leave this host",
    "packets of a host to itself go by the loopback device and the per-CPU backlog, which cannot be busy polled",
    "drivers/net/loopback.c, net/core/dev.c (process_backlog)";

SOCK_STALE "BP-SOCK-STALE-NAPI" NoEffect,
    "the socket's NAPI id is dead; the next packet brings a new one",
    "the device was reset or reconfigured: until a packet comes every receive sleeps at once",
    "include/net/busy_poll.h, sk_mark_napi_id; net/core/dev.c, napi_by_id";

SOCK_STALE_FOREVER "BP-SOCK-STALE-NAPI-UDP" NoEffect,
    "an unconnected UDP socket keeps a dead NAPI id for ever",
    "such a socket takes its NAPI id from its first packet only, and the device was reset or reconfigured since: a new socket (restart the program) or connect(2) fixes it",
    "include/net/busy_poll.h, sk_mark_napi_id_once";

SOCK_KTLS "BP-SOCK-KTLS" NoEffect,
    "SO_BUSY_POLL on a kTLS connection that is read by receive calls",
    "receiving through kTLS never busy polls; epoll with parameters of its own does, also for kTLS members",
    "net/tls/tls_sw.c, which has no busy loop";

SOCK_MPTCP "BP-SOCK-MPTCP" Impossible,
    "busy polling is switched on for an MPTCP socket",
    "packets mark the subflows, never the MPTCP socket itself, so it has no NAPI id to poll",
    "net/mptcp/protocol.c, net/mptcp/sockopt.c";

SOCK_RAW "BP-SOCK-RAW" Impossible,
    "busy polling is switched on for a raw or packet socket",
    "raw and AF_PACKET sockets never learn a NAPI id and their receive calls have no busy loop",
    "net/ipv4/raw.c, net/packet/af_packet.c";

XDP_NO_NAPI "BP-XDP-SOCK-NO-NAPI" NoEffect,
    "busy polling is switched on for an AF_XDP socket without NAPI id",
    "since Linux 6.13 an AF_XDP socket has a NAPI id only on devices whose driver reports which queue belongs to which NAPI instance; elsewhere the option does nothing",
    "net/xdp/xsk.c, xsk_bind; netif_queue_set_napi";

PREFER_NO_DEFER "BP-PREFER-NO-DEFER" NoEffect,
    "busy polling is preferred, but the queue's interrupts are not deferred",
    "prefer_busy_poll keeps interrupts masked only where the NAPI instance has both defer-hard-irqs and gro-flush-timeout above zero",
    "net/core/dev.c, busy_poll_stop; Documentation/networking/napi.rst";

EPOLL_READY "BP-EPOLL-READY" Fine,
    "waits on this epoll instance busy poll, as far as can be seen without measuring",
    "it has busy-poll parameters, and all its members' packets come from one living NAPI instance",
    "fs/eventpoll.c, ep_busy_loop";

EPOLL_OFF "BP-EPOLL-OFF" Off,
    "an epoll instance without busy-poll parameters waits for sockets",
    "epoll_wait sleeps until an interrupt; with EPIOCSPARAMS it would poll the device first",
    "ioctl_eventpoll(2)";

EPOLL_NESTED "BP-EPOLL-NESTED" NoEffect,
    "busy polling is switched on for sockets of an epoll instance that is waited for through another",
    "an instance polls the queue of sockets that it watches itself: the outer one watches none, and no thread waits in the inner one. No setting of either fixes it: the instance in which threads wait must watch the sockets itself",
    "fs/eventpoll.c, ep_set_busy_poll_napi_id: sock_from_file of the watched file";

EPOLL_NESTED_OFF "BP-EPOLL-NESTED-OFF" Off,
    "sockets of an epoll instance that is waited for through another",
    "they cannot be busy polled: the outer instance watches no socket, and no thread waits in the inner one. No setting fixes it: the instance in which threads wait must watch the sockets itself",
    "fs/eventpoll.c, ep_set_busy_poll_napi_id: sock_from_file of the watched file";

EPOLL_SPIN "BP-EPOLL-SPIN" NoEffect,
    "an epoll instance with busy-poll parameters that is checked with a timeout of 0",
    "epoll_wait polls only while it may wait: with a timeout of 0 it sees what softirqs have brought, and never polls the queue. A timeout above 0, however short, polls",
    "fs/eventpoll.c, ep_poll: timed_out";

EPOLL_NO_NAPI "BP-EPOLL-NO-NAPI" NoEffect,
    "an epoll instance with busy-poll parameters, none of whose members has a living NAPI id",
    "epoll polls the NAPI instance of the last member that had data: here no member has one",
    "fs/eventpoll.c, ep_set_busy_poll_napi_id";

EPOLL_SEVERAL "BP-EPOLL-SEVERAL-NAPI" NoEffect,
    "one epoll instance whose members' packets come from several NAPI instances",
    "epoll polls one NAPI instance at a time, that of the last member that had data: the others' packets wait for an interrupt",
    "fs/eventpoll.c, struct eventpoll (napi_id)";

URING_OFF "BP-URING-OFF" Off,
    "a program waits in an io_uring without busy polling",
    "io_uring busy polls only where the program registers it (IORING_REGISTER_NAPI) or net.core.busy_poll was set when the ring was made",
    "io_uring/napi.c; io_uring_register_napi(3)";

STACK_PLANE "BP-STACK-PLANE" Fine,
    "a process of `busypoll run --plane stack` that drives an interface's queues itself",
    "its packets do not pass the kernel's sockets, whose options and counters say nothing about it",
    "docs/stack-plane.md";

SPINNERS_ONE_CPU "BP-SPINNERS-ONE-CPU" Harmful,
    "several threads that busy poll are bound to one CPU",
    "while one spins the other cannot run, even if it is to send the packet that would end the spin: much slower than no busy polling",
    "net/core/dev.c, busy_poll_stop and need_resched; measured with `busypoll bench`";

SPINNERS_TOO_MANY "BP-SPINNERS-TOO-MANY" Harmful,
    "more threads busy poll than there are CPUs for them",
    "spinners take turns on a CPU in time slices of milliseconds, and each waits for the others' empty spins",
    "Documentation/networking/napi.rst, busy polling";
}
