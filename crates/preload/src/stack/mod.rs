//! The stack plane: TCP and UDP sockets of the chosen interface, run by our stack in this process.
//!
//! Each module imports only those below it in this table (`crates/stack/tests/floors.rs`):
//!
//! | module | owns |
//! |---|---|
//! | [`fork`](mod@self::fork) | fork, and what is prepared when the library is loaded |
//! | [`copy`](self::copy) | sendfile, splice |
//! | [`accept`](mod@self::accept) | accept, of our listeners and of the kernel's |
//! | [`descriptors`](self::descriptors) | close, dup, fcntl, ioctl |
//! | [`exec`](self::exec) | what becomes of connections when the process executes a program |
//! | [`receive`](self::receive), [`send`](self::send) | data in and out, by all the C functions for it |
//! | [`exit`](self::exit) | exit |
//! | [`libc_io`](self::libc_io) | fdopen, dprintf, aio: sockets used by calls that bypass the hooks |
//! | [`receive_one`](self::receive_one) | what a receive returns, and how long it waits |
//! | [`follow`](mod@self::follow) | a child that alone has a connection of its parent's takes it over |
//! | [`scm_rights`](self::scm_rights) | descriptors passed to another process |
//! | [`sockets`](self::sockets) | socket, bind, connect, listen, shutdown, getsockname, getpeername |
//! | [`links`](self::links) | connections to other programs of this machine, over memory |
//! | [`options`](self::options) | getsockopt, setsockopt |
//! | [`local_stream`](self::local_stream) | AF_UNIX streams to other programs of this machine, over memory |
//! | [`local_stream_end`](self::local_stream_end) | AF_UNIX streams become the kernel's again |
//! | [`handover_parent`](self::handover_parent) | connections that children share: the parent's side |
//! | [`wait`](self::wait) | poll, select, epoll |
//! | [`activation`](self::activation) | when and how a socket becomes ours, or the kernel's for good |
//! | [`foreign`](self::foreign) | sockets that other processes have made |
//! | [`udp_links`](self::udp_links) | datagrams to and from other programs of this machine, over memory |
//! | [`groups`](self::groups), [`cmsg`](self::cmsg) | multicast memberships; ancillary data |
//! | [`rings`] | io_uring: its sockets are the kernel's |
//! | [`route`](self::route) | which addresses are routed over the chosen interface |
//! | [`host`](self::host) | the process's Host, made when it is first needed |
//! | [`companion_options`](self::companion_options) | options of a companion and of its active socket |
//! | [`internal_fds`](self::internal_fds) | the descriptors that the library holds for itself |
//! | [`stream`](self::stream) | fclose, freopen |
//! | [`file`](self::file) | the open file description of a descriptor of ours |
//! | [`local_stream_state`](self::local_stream_state) | what an AF_UNIX stream needs to move to a link |
//! | [`local_stream_later`](self::local_stream_later) | descriptors that are sent by such a stream while its other process is stopped |
//! | [`local_udp`](self::local_udp) | what a UDP socket has to do with other programs of this machine |
//! | [`epoll_set`](self::epoll_set) | an epoll of the program: our members, and the kernel's instance for all others |
//! | [`handover_channel`](self::handover_channel) | connections that children share: the child's side, and the requests |
//! | [`companion_address`](self::companion_address) | what is known of a companion's address |
//! | [`unsupported_options`](self::unsupported_options) | options that our stack does not support |
//! | [`address`](self::address), [`iovec`](self::iovec) | socket addresses and buffers of the program |
//! | [`namespace`](self::namespace) | sockets made in another network namespace are the kernel's |
//! | [`thread_end`](self::thread_end) | what is released when a thread ends |
//! | [`not_accelerated`](self::not_accelerated) | the line that says what is not accelerated |
//! | [`common`](self::common) | results, locks and queries that all of these use |
//!
//! Each socket owns one kernel socket, its companion, whose descriptor the program has. Until the socket is activated,
//! the companion alone is bound, listens and has its options set like any other. So errors are the kernel's own, and a
//! socket that cannot be accelerated simply stays with the kernel.

mod accept;
mod activation;
mod address;
mod capture;
mod cmsg;
mod common;
mod companion_address;
mod companion_options;
mod copy;
mod descriptors;
mod epoll_set;
mod exec;
mod exit;
mod file;
mod follow;
mod foreign;
mod fork;
mod groups;
mod handover_channel;
mod handover_parent;
mod host;
mod internal_fds;
mod iovec;
mod libc_io;
mod links;
mod local_stream;
mod local_stream_end;
mod local_stream_later;
mod local_stream_state;
mod local_udp;
mod namespace;
mod not_accelerated;
mod options;
mod receive;
mod receive_one;
pub mod rings;
mod route;
mod scm_rights;
mod send;
mod sockets;
mod stream;
mod thread_end;
mod udp_links;
mod unsupported_options;
mod wait;

pub use accept::{accept, accept_other, accept4, accept4_other};
pub use copy::{sendfile, sendfile_other, splice, splice_to_other};
pub use descriptors::{
    close, close_other, close_range, closefrom, dup, dup2, dup2_other, dup3, dup3_other, fcntl,
    fcntl_other, ioctl, sockatmark,
};
pub use exec::{before_exec, before_spawn};
pub use exit::{close_all, daemon, exit};
pub use file::FILES;
pub use foreign::{recvmmsg_other, recvmsg_other};
pub use fork::{fork, forked_by, prepare, raw_fork};
pub use internal_fds::{eventfd, syscall_made, timerfd_create};
pub use libc_io::{
    add_dup2, aio_read, aio_write, before_dprintf, before_io_submit, fdopen, io_submit, lio_listio,
    vdprintf, vdprintf_chk,
};
pub use namespace::{setns, unshare};
pub use options::{getsockopt, setsockopt};
pub use receive::{
    preadv2, read, read_chk, readv, recv, recv_chk, recvfrom, recvfrom_chk, recvmmsg, recvmsg,
};
pub use scm_rights::{sendmmsg_other, sendmsg_other};
pub use send::{pwritev2, send, sendmmsg, sendmsg, sendto, write, writev};
pub use sockets::{bind, connect, getpeername, getsockname, listen, shutdown, socket};
pub use stream::{fclose, freopen, freopen64};
pub use wait::{
    epoll_create, epoll_create1, epoll_ctl, epoll_ctl_other, epoll_pwait, epoll_pwait2, epoll_wait,
    is_kernel_member, poll, poll_chk, ppoll, ppoll_chk, pselect, select,
};
