//! Rules about support for busy polling: kernel, privileges, devices, routes.

super::rules! { SUPPORT;
NOT_SEEN "BP-NOT-SEEN" NotSeen,
    "something could not be read",
    "what was not read may hide a fault",
    "the evidence names the refusal";

KERNEL_OK "BP-KERNEL-OK" Fine,
    "this kernel offers what busy polling needs",
    "each facility was tried on an object of the doctor's own, so the kernel's version does not matter",
    "net/core/sock.c, fs/eventpoll.c, net/core/netdev-genl.c";

KERNEL_NO_BUSY_POLL "BP-KERNEL-NO-BUSY-POLL" Impossible,
    "the kernel was built without busy polling",
    "without CONFIG_NET_RX_BUSY_POLL no socket and no epoll can poll a device",
    "net/core/sock.c, SO_BUSY_POLL under CONFIG_NET_RX_BUSY_POLL";

KERNEL_NO_EPOLL_PARAMS "BP-KERNEL-NO-EPOLL-PARAMS" Impossible,
    "epoll instances have no busy-poll parameters of their own (before Linux 6.9)",
    "a program that waits in epoll busy polls only where net.core.busy_poll is set for the whole machine",
    "fs/eventpoll.c, ep_eventpoll_bp_ioctl; ioctl_eventpoll(2)";

KERNEL_NO_NAPI_SETTINGS "BP-KERNEL-NO-NAPI-SETTINGS" Impossible,
    "NAPI instances cannot be listed or set one by one (before Linux 6.8 and 6.13)",
    "deferral of interrupts applies to a whole device, and interrupts cannot be suspended for epoll",
    "net/core/netdev-genl.c, netdev_nl_napi_set_doit";

USER_NAMESPACE "BP-USER-NAMESPACE" Impossible,
    "a user namespace of its own makes preferred busy polling and per-NAPI settings impossible",
    "SO_PREFER_BUSY_POLL, SO_BUSY_POLL_BUDGET and napi-set ask for CAP_NET_ADMIN in the initial user namespace, which no container's root has",
    "net/core/sock.c, sk_setsockopt: sockopt_capable; net/core/netdev-genl.c: GENL_ADMIN_PERM";

OLD_PRIVILEGE "BP-OLD-PRIVILEGE" Impossible,
    "this kernel lets only CAP_NET_ADMIN raise SO_BUSY_POLL (up to about Linux 6.1), and this user does not have it",
    "a program of this user cannot switch busy polling on; net.core.busy_read can do it for new sockets",
    "net/core/sock.c of Linux 6.1, SO_BUSY_POLL";

SYSCTL_POLL_WITHOUT_READ "BP-SYSCTL-POLL-WITHOUT-READ" NoEffect,
    "net.core.busy_poll is on and net.core.busy_read is off",
    "poll and select busy poll only for members whose own SO_BUSY_POLL is above zero, and new sockets start with busy_read",
    "net/socket.c, sock_poll; fs/select.c";

SYSCTL_LONG "BP-SYSCTL-LONG" Harmful,
    "net.core.busy_read or net.core.busy_poll is longer than a millisecond",
    "every receive or wait of every program on this machine may then hold a CPU for that long in vain",
    "Documentation/admin-guide/sysctl/net.rst: 50 for few sockets, 100 for hundreds";

DEVICE_DOWN "BP-DEVICE-DOWN" Impossible,
    "the device is down",
    "a device that is down receives nothing and has no NAPI instances",
    "net/core/dev.c, __dev_close_many";

DEVICE_OK "BP-DEVICE-OK" Fine,
    "packets of the device carry NAPI ids, and nothing sends them elsewhere",
    "a socket learns from its packets which queue to poll",
    "include/net/busy_poll.h, sk_mark_napi_id";

LOOPBACK "BP-LOOPBACK" Impossible,
    "loopback has no queue to poll",
    "its packets pass through the per-CPU backlog, which has no NAPI id; on one machine use a UNIX socket, shared memory or busypoll's own stack",
    "net/core/dev.c, process_backlog";

NO_NAPI "BP-NO-NAPI" Impossible,
    "the device has no NAPI instance that can be polled",
    "its packets carry no NAPI id, so a socket never learns what to poll",
    "net/core/dev.c, napi_hash_add; netdev netlink napi-get";

VETH_GRO_OFF "BP-VETH-GRO-OFF" Impossible,
    "GRO is off on a veth without an XDP program: it has no NAPI instances",
    "veth receives through NAPI only with GRO on or an XDP program attached, otherwise through the per-CPU backlog, which has no id",
    "drivers/net/veth.c, veth_xmit and veth_open";

VETH_TSO_ON "BP-VETH-TSO-ON" Impossible,
    "TSO is on at the sending end of a veth: its packets bypass the receiver's NAPI",
    "veth hands packets to the other end's NAPI only while the sender has no TCP segmentation offload; without it bulk TCP is slower",
    "drivers/net/veth.c, veth_skb_is_eligible_for_gro";

VETH_PEER_UNSEEN "BP-VETH-PEER-UNSEEN" NotSeen,
    "the other end of a veth is in a network namespace that cannot be entered",
    "whether packets carry NAPI ids depends on its TSO, and whether ours do there on its GRO",
    "drivers/net/veth.c, veth_skb_is_eligible_for_gro";

TUN "BP-TUN" Impossible,
    "a TUN or TAP device has no NAPI instance that can be polled, with IFF_NAPI or without",
    "the program behind it writes packets in; with IFF_NAPI they pass a NAPI instance that is kept out of busy polling",
    "drivers/net/tun.c, tun_napi_init: netif_napi_add_tx";

WIREGUARD "BP-WIREGUARD" Impossible,
    "WireGuard erases the NAPI id",
    "packets are decrypted by kernel threads and come up through instances that are kept out of busy polling",
    "drivers/net/wireguard/queueing.h, wg_reset_packet";

DRIVER_SKIPS_NAPI_ID "BP-DRIVER-SKIPS-NAPI-ID" Impossible,
    "the driver hands packets up without a NAPI id",
    "only napi_gro_receive and its variants mark packets; this driver calls netif_receive_skb or netif_rx",
    "the driver's own source";

STACKED "BP-STACKED" Fine,
    "the device is stacked on another one, and its packets keep the lower device's NAPI id",
    "sockets poll the device below, so its findings are the ones that count",
    "include/net/busy_poll.h, skb_mark_napi_id: a valid id is not overwritten";

STACKED_UNKNOWN "BP-STACKED-UNKNOWN" NotSeen,
    "which device is below this tunnel is not fixed",
    "the id of the device that receives the outer packets counts; ask for it with --peer and the tunnel's far end",
    "net/core/gro_cells.c";

RPS "BP-RPS" Harmful,
    "receive packet steering is on",
    "packets that a busy poll finds are sent on to another CPU's backlog by interrupt: it counts hits and saves nothing",
    "net/core/dev.c, netif_receive_skb_internal and get_rps_cpu; Documentation/networking/scaling.rst";

RFS "BP-RFS" Harmful,
    "receive flow steering is on",
    "packets that a busy poll finds go through a backlog once more, and follow the CPU that last received instead of the queue",
    "net/core/dev.c, get_rps_cpu; Documentation/networking/scaling.rst";

GRO_FLUSH_NO_POLLER "BP-GRO-FLUSH-NO-POLLER" Harmful,
    "gro_flush_timeout is set and nothing is seen to busy poll",
    "while no thread polls, packets wait for the timer, which adds to every round trip",
    "net/core/dev.c, napi_complete_done; Documentation/networking/napi.rst";

GRO_FLUSH_LOSS "BP-GRO-FLUSH-LOSS" Harmful,
    "interrupts are deferred for longer than any thread polls, and none prefers busy polling",
    "a packet that comes after the poll has ended waits for the timer, longer than for an interrupt; deferral helps only with SO_PREFER_BUSY_POLL or prefer_busy_poll",
    "net/core/dev.c, napi_complete_done and busy_poll_stop; Documentation/networking/napi.rst";

GRO_FLUSH_PRICE "BP-GRO-FLUSH-PRICE" Fine,
    "interrupts are deferred for threads that poll",
    "a packet that comes after the poll has ended waits for the timer: that is the price of no interrupts while it polls",
    "net/core/dev.c, napi_complete_done and busy_poll_stop; Documentation/networking/napi.rst";

DEFER_WITHOUT_FLUSH "BP-DEFER-WITHOUT-FLUSH" NoEffect,
    "interrupts are to be deferred, but there is no timer to defer them to",
    "defer-hard-irqs does nothing while gro-flush-timeout is zero, and prefer_busy_poll needs both",
    "net/core/dev.c, napi_complete_done and busy_poll_stop";

SUSPEND_WITHOUT_FLUSH "BP-SUSPEND-WITHOUT-FLUSH" NoEffect,
    "irq-suspend-timeout is set without defer-hard-irqs and gro-flush-timeout",
    "interrupts stay suspended only after a deferred one: both need small values above zero",
    "Documentation/networking/napi.rst, IRQ suspension";

XSK_NO_NAPI "BP-XSK-NO-NAPI" Fine,
    "an AF_XDP socket is bound to a queue whose NAPI instance the driver does not name",
    "since Linux 6.13 the kernel cannot busy poll for such a socket; a program that spins on the rings itself does not need the kernel for it",
    "net/xdp/xsk.c, xsk_bind; netdev netlink queue-get";

XDP_ATTACHED "BP-XDP-ATTACHED" Fine,
    "an XDP program is attached",
    "it sees every packet before the sockets do and may take some away",
    "rtnetlink IFLA_XDP";

PEER_LOCAL "BP-PEER-LOCAL" Impossible,
    "the peer is this machine itself",
    "packets to a local address take loopback, whatever device has the address",
    "net/ipv4/route.c, RTN_LOCAL";

PEER_ROUTE "BP-PEER-ROUTE" Fine,
    "the route to the peer",
    "answers normally come in by the device that requests leave by; a different route back uses other queues",
    "rtnetlink RTM_GETROUTE";
}
