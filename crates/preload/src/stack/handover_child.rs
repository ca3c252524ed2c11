//! The connections that a child of fork(2) shares with its parent. The child shares their companions, which are not
//! connected: the connections are in the parent's memory. When the child uses one, it asks the parent over a channel
//! made at the fork to hand it over to the kernel ([`handover_parent`](super::handover_parent)). From then on the
//! companion is the connection, in all processes that share it. When the channel closes, the parent knows that no child
//! has one any more.

use super::{
    file::{File, Live, lock},
    handover_parent::{Answer, Message},
    host, libc_io, sockets,
};
use crate::{
    inside::Inside,
    real,
    report::Once,
    stack::{FILES, Ref},
};
use libc::c_int;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};
use std::{
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

/// The child's end of a channel, shared by all connections of one fork.
#[derive(Debug)]
pub struct Channel {
    end: OwnedFd,
    /// Grandchildren share the connections: then this process sends no release.
    shared: AtomicBool,
}

/// A connection of the parent's.
#[derive(Debug)]
pub struct InheritedConnection {
    channel: Arc<Channel>,
    /// Its index among the connections that the parent shares.
    index: u32,
}

/// The channels of this process, which its children share as well.
static CHANNELS: Mutex<Vec<Weak<Channel>>> = Mutex::new(Vec::new());

/// Held across a fork.
pub struct Channels(MutexGuard<'static, Vec<Weak<Channel>>>);

impl Channels {
    pub fn take() -> Channels {
        let mut channels = lock(&CHANNELS);
        channels.retain(|channel| channel.strong_count() > 0);
        channels.iter().filter_map(Weak::upgrade).for_each(|channel| {
            channel.shared.store(true, Ordering::Relaxed);
        });
        Channels(channels)
    }

    /// In the child: adds the channel whose end is `end`.
    pub fn add(&mut self, end: c_int) -> Arc<Channel> {
        // SAFETY: made for this child, and not used elsewhere here.
        let end = unsafe { OwnedFd::from_raw_fd(end) };
        let channel = Arc::new(Channel { end, shared: AtomicBool::new(false) });
        self.0.push(Arc::downgrade(&channel));
        channel
    }

    /// Whether `fd` is the end of a channel.
    pub fn has(&self, fd: c_int) -> bool {
        self.0.iter().filter_map(Weak::upgrade).any(|channel| channel.end.as_raw_fd() == fd)
    }
}

impl InheritedConnection {
    pub fn new(channel: &Arc<Channel>, index: u32) -> InheritedConnection {
        InheritedConnection { channel: channel.clone(), index }
    }

    /// The same, for a grandchild.
    pub fn for_grandchild(&self) -> InheritedConnection {
        InheritedConnection::new(&self.channel, self.index)
    }

    /// Asks the parent to hand the connection, whose companion is `fd`, over to the kernel.
    fn claim(&self, fd: BorrowedFd<'_>) -> Answer {
        let flags = SocketFlags::CLOEXEC;
        let Ok((ours, theirs)) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        else {
            return Answer::No;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd, theirs.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let message = Message::HandOver(self.index).bytes();
        let sent = sendmsg(
            &self.channel.end,
            &[IoSlice::new(&message)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        if sent.is_err() {
            return Answer::No;
        }
        drop(theirs);
        let mut answer = [0];
        loop {
            match recv(&ours, &mut answer[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok((_, 1)) => return Answer::from(answer[0]),
                // The parent is gone.
                _ => return Answer::No,
            }
        }
    }
}

static LOST: Once = Once::new();
static LEFT: Once = Once::new();
static PASSED: Once = Once::new();

/// `file`, a connection of the parent's, is used: it is handed over to the kernel.
#[cold]
pub fn hand_over_now(file: &File) {
    let Some(inherited) = file.inherited() else { return };
    let mut all = FILES.all();
    let is_it =
        |known: &Option<Ref>| known.as_ref().is_some_and(|known| std::ptr::eq(&**known, file));
    let fd = all.find_map(|(fd, known)| is_it(&known).then_some(fd));
    let answer = match fd {
        // SAFETY: a descriptor of the program's, open by the contract of its call.
        Some(fd) => inherited.claim(unsafe { BorrowedFd::borrow_raw(fd) }),
        None => Answer::No,
    };
    file.set_kernel_owned();
    match answer {
        Answer::Yes => {}
        // The parent is gone, and has handed it over to the kernel.
        Answer::No if fd.is_some_and(|fd| sockets::remote(fd).is_some()) => {
            let why = format_args!("{}: a child process uses a connection of its parent's", host::device());
            host::report_not_accelerated(&LEFT, why, "it is handed over to the kernel; such a program needs --plane kernel");
        }
        Answer::No => LOST.report(format_args!(
            "{}: a connection of the parent process cannot be handed over to the kernel, so the child finds it closed; \
             such a program needs --plane kernel",
            host::device()
        )),
        // The parent has reported it.
        // SAFETY: ends the process, as `--strict` requires.
        Answer::Strict => unsafe { libc::_exit(2) },
    }
}

/// Before an exec, after which no code of ours can ask the parent: hands over to the kernel the connections of this
/// process that stay open, and of its parent's those at standard input, output and error, and those that a child has
/// prepared for the new program. A listener of the parent's that is prepared for it cannot be handed over, and is reported.
pub fn before_exec() {
    if FILES.end() == 0 {
        return;
    }
    let Some(_inside) = Inside::enter() else { return };
    for (fd, file) in FILES.all() {
        let Some(file) = file else { continue };
        let is_standard = (0..=2).contains(&fd);
        match (file.inherited(), file.live()) {
            (Some(_), _)
                if !file.is_kernel_owned()
                    && (is_standard || file.for_exec.load(Ordering::Relaxed) && stays_open(fd)) =>
            {
                hand_over_now(&file);
            }
            // It would end with the memory of this process.
            (None, Some(Live::Stream(_))) if stays_open(fd) => libc_io::check_executed(fd, &file),
            _ if file.is_parents_listener()
                && (is_standard || file.for_exec.load(Ordering::Relaxed))
                && stays_open(fd) =>
            {
                let why = format_args!(
                    "{}: a listener is passed to an executed program, and its connections come over this run's queues",
                    host::device()
                );
                host::report_not_accelerated(
                    &PASSED,
                    why,
                    "that program accepts none of them; such a server needs --plane kernel",
                );
            }
            _ => {}
        }
    }
}

fn stays_open(fd: c_int) -> bool {
    // SAFETY: a plain system call.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

impl Drop for InheritedConnection {
    fn drop(&mut self) {
        if !self.channel.shared.load(Ordering::Relaxed) {
            let message = Message::Release(self.index).bytes();
            // If the parent is gone there is nothing to do; if it is slow, it will see the channel close.
            let _ = send(&self.channel.end, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}
