//! The stack plane: UDP and TCP in user space, over NICs whose queues the waiting threads poll themselves.
//!
//! A [`Host`] is made of NICs ([`nic`]): two joined in memory ([`nic::cable`]), any Linux interface over AF_XDP
//! ([`nic::xdp`]), a TAP ([`nic::tap`]). Its sockets wait as Linux's do: they return queued data, else busy poll for
//! `SO_BUSY_POLL` microseconds, else sleep. [`poll`] and [`Epoll`] wait for many of them; [`ReadyFd`] is a descriptor for
//! programs that wait in the kernel, and [`TaskWait`] is for the tasks of an async runtime.
//!
//! What this module and its submodules name is the interface. The rest of the crate `busypoll-stack` serves the
//! command `busypoll`, and changes without notice.

#[doc(inline)]
pub use busypoll_stack::{
    BufferSizes, Builder, Congestion, Direction, Ecn, Epoll, EpollEvent, EpollParams, Events, Host,
    Incoming, IncomingStreams, Message, Outgoing, PollFd, PollerTask, ReadyFd, ReceiveFlags,
    SendFlags, Socket, SocketStats, TaskWait, TcpConfig, TcpInfo, TcpListener, TcpStream,
    UdpSocket, options, poll,
};

/// NAPI contexts: the receive queues of a host, with their ids and counters.
pub mod napi {
    #[doc(inline)]
    pub use busypoll_stack::{
        inet::{Context, by_id},
        napi::{NapiId, Stats},
    };
}

/// NICs: those there are, the wrappers [`fault`](nic::fault) and [`pcap`](nic::pcap), and the traits of a NIC of your
/// own.
pub mod nic {
    #[doc(inline)]
    pub use busypoll_stack::{
        nic::{
            Checksum, Coalesce, Frame, Info, Interrupt, Nic, Queue, RingFull, RxQueue, Steering,
            TxQueue, cable, fault, pcap, tap,
        },
        wire::MacAddr,
    };

    /// AF_XDP on any Linux interface, shared with the kernel.
    pub mod xdp {
        #[doc(inline)]
        pub use busypoll_stack::nic::xdp::{Builder, Error, Xdp};
    }
}

/// Time as the stack counts it: arrival times of packets.
pub mod time {
    #[doc(inline)]
    pub use busypoll_stack::time::{Instant, now};
}

/// For signal handlers that are to end a wait in any case; by itself a signal ends a wait only while the thread sleeps.
pub mod signal {
    #[doc(inline)]
    pub use busypoll_stack::signal::{clear_deferred, note_deferred_signal};
}
