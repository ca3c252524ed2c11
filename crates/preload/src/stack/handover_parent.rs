//! Connections that children of this process share: the parent's side ([`handover_channel`](super::handover_channel) is the
//! child's side). A connection that a child uses is handed over to the kernel, and so are those that a child may still
//! use when this process ends. A connection is not closed before the last child has closed it, as with the kernel's
//! own.

use super::{
    activation::deactivate,
    common::{error, lock},
    companion_options,
    file::{FILES, File, Live, Ref},
    handover_channel::{Answer, Message},
    host, internal_fds, not_accelerated,
};
use crate::{config, handler_frames, inside::ERESTARTSYS, real, report::Once};
use busypoll_stack::thread;
use libc::c_int;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags,
        SocketFlags, SocketType, recvmsg, send, socketpair,
    },
};
use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard},
};

/// The connections that the children of one fork share, and their channel.
struct ForkGroup {
    channel: Arc<OwnedFd>,
    files: Vec<Option<Ref>>,
}

struct Parent {
    groups: Vec<ForkGroup>,
    /// The eventfd that wakes the thread that serves them.
    wakeup: Option<Arc<OwnedFd>>,
}

static PARENT: Mutex<Parent> = Mutex::new(Parent { groups: Vec::new(), wakeup: None });

static REPORTED: Once = Once::new();

/// Held across a fork. Locked before the table of descriptors.
pub struct Forking {
    parent: MutexGuard<'static, Parent>,
    /// The child's end of the channel.
    child_end: Option<c_int>,
}

impl Forking {
    pub fn take() -> Forking {
        Forking { parent: lock(&PARENT), child_end: None }
    }

    /// Shares the present connections with the child.
    pub fn share(&mut self) {
        // A handler must not start a thread, and without the thread requests would not be answered.
        if self.parent.wakeup.is_none() && handler_frames::is_running() {
            return;
        }
        let mut files = Vec::new();
        for (_, file) in FILES.all() {
            if let Some(file) = file
                && let Some(Live::Stream(stream)) = file.live()
                && !file.is_kernel_owned()
                && !stream.is_unconnected()
                // It may have several descriptors.
                && file.shared_index().is_none()
            {
                file.set_shared_index(Some(files.len() as u32));
                files.push(Some(file));
            }
        }
        if files.is_empty() {
            return;
        }
        let flags = SocketFlags::CLOEXEC;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let Ok((channel, child_end)) = made else { return end_of_fork(&files) };
        // SAFETY: the same descriptor, under its new number.
        let channel =
            unsafe { OwnedFd::from_raw_fd(internal_fds::make_internal(channel.into_raw_fd())) };
        self.child_end = Some(internal_fds::make_internal(child_end.into_raw_fd()));
        self.parent.groups.push(ForkGroup { channel: Arc::new(channel), files });
    }

    pub fn child_end(&self) -> Option<c_int> {
        self.child_end
    }

    /// In the parent: closes the child's end.
    pub fn in_parent(&mut self) {
        let Some(child_end) = self.child_end.take() else { return };
        self.parent.groups.last().into_iter().for_each(|group| end_of_fork(&group.files));
        // SAFETY: ours, and not used elsewhere in this process.
        drop(unsafe { OwnedFd::from_raw_fd(child_end) });
        match &self.parent.wakeup {
            Some(wakeup) => {
                // It fails only when the counter is full, and then the thread is woken already.
                let _ = rustix::io::write(wakeup, &1_u64.to_ne_bytes());
            }
            None => start_thread(&mut self.parent),
        }
    }

    /// In the child: these are the parent's, so they are forgotten and not closed.
    pub fn in_child(&mut self) {
        std::mem::forget(std::mem::take(&mut self.parent.groups));
        std::mem::forget(self.parent.wakeup.take());
    }
}

/// The indices are those of one fork.
fn end_of_fork(files: &[Option<Ref>]) {
    files.iter().flatten().for_each(|file| file.set_shared_index(None));
}

/// Starts the thread.
fn start_thread(parent: &mut Parent) {
    // SAFETY: a plain system call.
    let wakeup = internal_fds::make_internal(unsafe {
        real::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)
    });
    if wakeup < 0 {
        return;
    }
    // SAFETY: just made, and ours.
    let wakeup = Arc::new(unsafe { OwnedFd::from_raw_fd(wakeup) });
    parent.wakeup = Some(wakeup.clone());
    if thread::spawn("busypoll/children", move || serve(&wakeup)).is_err() {
        parent.wakeup = None;
    }
}

fn serve(wakeup: &OwnedFd) {
    loop {
        let channels: Vec<Arc<OwnedFd>> =
            lock(&PARENT).groups.iter().map(|group| group.channel.clone()).collect();
        let mut fds: Vec<PollFd<'_>> =
            channels.iter().map(|channel| PollFd::new(channel, PollFlags::IN)).collect();
        fds.push(PollFd::new(wakeup, PollFlags::IN));
        // The thread ignores signals.
        let _ = poll(&mut fds, None);
        let _ = rustix::io::read(wakeup, &mut [0; 8][..]);
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (channel, _) in channels.iter().zip(ready).filter(|(_, ready)| *ready) {
            handle_message(channel);
        }
    }
}

/// Handles one message of a child's, or the end of the channel.
fn handle_message(channel: &Arc<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 5];
    let mut into = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let came = match recvmsg(channel, &mut into, &mut control, flags) {
        Ok(message) => message.bytes,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
        Err(_) => 0,
    };
    let mut given = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut given = given.next().into_iter().flatten();
    let (companion, answer) = (given.next(), given.next());
    let is_it = |group: &ForkGroup| Arc::ptr_eq(&group.channel, channel);
    let mut parent = lock(&PARENT);
    let Some(at) = parent.groups.iter().position(is_it) else { return };
    let message = (came == 5).then(|| Message::read(bytes)).flatten();
    let file = |index: u32, parent: &mut Parent| {
        parent.groups.get_mut(at)?.files.get_mut(index as usize).map(Option::take)
    };
    match message {
        Some(Message::HandOver(index)) => {
            let taken = file(index, &mut parent);
            // A thread that forks meanwhile must not wait for the kernel.
            drop(parent);
            let reply = match (taken, companion) {
                (Some(Some(file)), Some(companion)) => child_uses(&file, companion.as_fd()),
                // Another child has claimed it before.
                (Some(None), _) => Answer::Yes,
                _ => Answer::No,
            };
            // The child may be gone.
            let _ = answer.map(|to| send(&to, &[reply.byte()], SendFlags::NOSIGNAL));
        }
        Some(Message::Release(index)) => {
            let released = file(index, &mut parent);
            drop(parent);
            drop(released);
        }
        None => {
            let over = parent.groups.swap_remove(at);
            drop(parent);
            drop(over);
        }
    }
}

/// A child uses `file`.
fn child_uses(file: &Ref, companion: BorrowedFd<'_>) -> Answer {
    let strict = config::get().is_some_and(|config| config.launch.strict);
    let then = match strict {
        true => "the child ends, as --strict requires",
        false => "it is handed over to the kernel",
    };
    REPORTED.report(format_args!(
        "{}: a child process uses a connection of its parent's; {then}. For a program that serves connections in child \
         processes use --plane kernel, or a policy rule with that plane",
        not_accelerated::device()
    ));
    match (strict, give_to_kernel(file, companion)) {
        (true, _) => Answer::Strict,
        (false, Ok(())) => Answer::Yes,
        (false, Err(_)) => Answer::No,
    }
}

/// Hands a connection of this process, whose companion is `fd`, over to the kernel.
///
/// # Errors
/// It is not connected (any more), or the process lacks the capability. Then it stays ours.
pub fn hand_over(file: &Ref, fd: c_int) -> io::Result<()> {
    // SAFETY: open, by the contract of the program's call.
    give_to_kernel(file, unsafe { BorrowedFd::borrow_raw(fd) })
}

fn give_to_kernel(file: &Ref, companion: BorrowedFd<'_>) -> io::Result<()> {
    let _giving = lock(&file.activation);
    if file.is_kernel_owned() {
        return Ok(());
    }
    let Some(live @ Live::Stream(stream)) = file.live() else { return Err(error(libc::EINVAL)) };
    companion_options::copy_to_companion(live, companion.as_raw_fd());
    stream.hand_over(companion, ERESTARTSYS, host::repair, || file.set_kernel_owned())?;
    // In the epoll sets of this process the companion takes its place.
    deactivate(file).set_kernel_owned();
    Ok(())
}

/// The program closes its descriptor `fd` of `file`, and children still have theirs.
pub fn keep_companion(file: &File, fd: c_int) {
    // SAFETY: a plain system call.
    let copy = internal_fds::make_internal(unsafe { real::dup(fd) });
    if copy >= 0 {
        // SAFETY: just made, and ours.
        let _ = file.kept_companion.set(unsafe { OwnedFd::from_raw_fd(copy) });
    }
}

/// A connection that the program has closed and children still have, and its companion.
pub fn kept(is_it: impl Fn(&File) -> bool) -> Option<(Ref, OwnedFd)> {
    let parent = lock(&PARENT);
    let mut all = parent.groups.iter().flat_map(|group| group.files.iter().flatten());
    all.find_map(|file| {
        let companion = file.kept_companion().filter(|_| is_it(file))?;
        Some((file.clone(), companion.try_clone().ok()?))
    })
}

/// Whether children share `file`: then it stays open when it is closed here.
pub fn is_shared(file: &Ref) -> bool {
    let parent = lock(&PARENT);
    let mut all = parent.groups.iter().flat_map(|group| group.files.iter().flatten());
    all.any(|known| std::ptr::eq::<File>(&**known, &**file))
}

/// This process ends: hands what children may still use over to the kernel.
pub fn hand_over_all() {
    let groups = std::mem::take(&mut lock(&PARENT).groups);
    for ForkGroup { channel, files } in groups {
        let mut fds = [PollFd::new(&channel, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let looked = poll(&mut fds, Some(&now));
        if looked.is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            continue;
        }
        for file in files.into_iter().flatten() {
            let kept = file.kept_companion().map(AsRawFd::as_raw_fd);
            let is_it = |known: &Ref| std::ptr::eq::<File>(&**known, &*file);
            let fd = kept.or_else(|| {
                FILES.all().find_map(|(fd, known)| known.filter(|it| is_it(it)).map(|_| fd))
            });
            // A connection that cannot be handed over ends with this process.
            let _ = fd.map(|fd| hand_over(&file, fd));
        }
    }
}
