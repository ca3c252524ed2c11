//! What a child of fork(2) has of its parent's connections. Their companions, which it shares with the parent, are not
//! connected: the connections live in the parent's memory. When the child uses one, it asks the parent to hand it to the
//! kernel ([`bequest`](super::bequest)), over a channel made at the fork; from then on the companion is the connection,
//! in all processes that have it. The channel's end tells the parent that no child holds one any more.

use super::{
    bequest::{Answer, Message},
    file::{File, Live, lock},
    host, names,
};
use crate::{
    fds::{self, Ref},
    inside::Inside,
    real,
    say::Once,
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

/// The child's end of a channel, shared by all that came over one fork.
#[derive(Debug)]
pub struct Channel {
    end: OwnedFd,
    /// Children of the child hold what it holds: that it lets go of one says nothing.
    shared: AtomicBool,
}

/// A connection of the parent's.
#[derive(Debug)]
pub struct Heir {
    channel: Arc<Channel>,
    /// Its place among what the parent has bequeathed.
    place: u32,
    /// The child has prepared it for a program that it is about to become.
    pub for_exec: AtomicBool,
}

/// The channels of this process, which its children are to have, too.
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

    /// In the child: one more, whose end is `end`.
    pub fn add(&mut self, end: c_int) -> Arc<Channel> {
        // SAFETY: made for this child, and nobody else's here.
        let end = unsafe { OwnedFd::from_raw_fd(end) };
        let channel = Arc::new(Channel { end, shared: AtomicBool::new(false) });
        self.0.push(Arc::downgrade(&channel));
        channel
    }

    /// Whether `fd` is the end of one.
    pub fn has(&self, fd: c_int) -> bool {
        self.0.iter().filter_map(Weak::upgrade).any(|channel| channel.end.as_raw_fd() == fd)
    }
}

impl Heir {
    pub fn new(channel: &Arc<Channel>, place: u32) -> Heir {
        Heir { channel: channel.clone(), place, for_exec: AtomicBool::new(false) }
    }

    /// The same, of a child's child.
    pub fn again(&self) -> Heir {
        Heir::new(&self.channel, self.place)
    }

    /// Has the kernel take the connection, whose companion is `fd`. Whether it has.
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
        let message = Message::Take(self.place).bytes();
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
                // The parent has gone.
                _ => return Answer::No,
            }
        }
    }
}

static LOST: Once = Once::new();
static LEFT: Once = Once::new();

/// `file`, a connection of the parent's, is used: the kernel has it from now on.
#[cold]
pub fn settle(file: &File) {
    let Some(heir) = file.heir() else { return };
    let mut all = fds::all();
    let is_it =
        |known: &Option<Ref>| known.as_ref().is_some_and(|known| std::ptr::eq(&**known, file));
    let fd = all.find_map(|(fd, known)| is_it(&known).then_some(fd));
    let answer = match fd {
        // SAFETY: one of the program's, open by its word.
        Some(fd) => heir.claim(unsafe { BorrowedFd::borrow_raw(fd) }),
        None => Answer::No,
    };
    file.give_up();
    match answer {
        Answer::Yes => {}
        // The parent has gone, and has left it to the kernel.
        Answer::No if fd.is_some_and(|fd| names::remote(fd).is_some()) => {
            let why = format_args!("{}: a child uses a connection of its parent's", host::device());
            host::goes_without(&LEFT, why, "it is the kernel's; --plane kernel is for such programs");
        }
        Answer::No => LOST.say(format_args!(
            "{}: a connection of the parent process cannot be handed to the kernel, so that a child finds it closed; \
             such a program needs --plane kernel",
            host::device()
        )),
        // The parent has said so.
        // SAFETY: ends the process, as was asked for.
        Answer::Strict => unsafe { libc::_exit(2) },
    }
}

/// Before an exec, after which nobody is here to ask: connections at the numbers of standard input, output and error, and
/// those that a child has prepared for the program, are the kernel's.
pub fn before_exec() {
    if fds::end() == 0 {
        return;
    }
    let Some(_inside) = Inside::enter() else { return };
    for (fd, file) in fds::all() {
        let Some(file) = file else { continue };
        let is_standard = (0..=2).contains(&fd);
        match (file.heir(), file.live()) {
            (Some(heir), _)
                if !file.is_kernels()
                    && (is_standard || heir.for_exec.load(Ordering::Relaxed) && stays_open(fd)) =>
            {
                settle(&file);
            }
            (None, Some(Live::Stream(_))) if is_standard => {
                // Where it cannot be, the program finds it closed.
                let _ = super::bequest::hand_over(&file, fd);
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

impl Drop for Heir {
    fn drop(&mut self) {
        if !self.channel.shared.load(Ordering::Relaxed) {
            let message = Message::Release(self.place).bytes();
            // Who is gone needs no telling; one that is slow will see the channel's end.
            let _ = send(&self.channel.end, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}
