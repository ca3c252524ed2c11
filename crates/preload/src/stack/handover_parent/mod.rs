//! Connections that children of this process share: the parent's side ([`handover_channel`](super::handover_channel) is
//! the child's side). A connection that a child uses is handed over to the kernel, and so are those that a child may
//! still use when this process ends. A connection is not closed before the last child has closed it, as with the
//! kernel's own.

mod give;

pub use give::{give_stream, hand_over, hand_over_each, left, steps_of_leaving};

use give::give_to_kernel;

use super::{
    common::lock,
    file::{FILES, File, Live, Ref, is_same},
    handover_channel::{Answer, Board, MESSAGE, Message, OVER_CHANNEL},
    host, internal_fds, not_accelerated,
};
use crate::{config, handler_frames, inside::Inside, real, report::Once};
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
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// The connections that the children of one fork share, and their channel.
struct ForkGroup {
    channel: Arc<OwnedFd>,
    /// Where its children see what was handed over before they asked.
    board: Option<Board>,
    files: Vec<Option<Shared>>,
    /// The connection that was accepted last before the fork.
    newest: Option<u32>,
    /// One that was handed over because its child is expected to use it, and has not used it yet.
    expected: Option<u32>,
}

/// What the child of the next fork does with the newest connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// That is not known.
    Nothing,
    /// Its predecessor was used by its child first, while this process kept it.
    Use,
    /// A child has not used what was expected: nothing is expected any more.
    NeverAgain,
}

/// A connection that children share.
enum Shared {
    /// It is this process's.
    Ours(Ref),
    /// It is being handed over to the kernel for the child. True: no other process has got it since.
    Moving(Ref, bool),
    /// It was handed over to the kernel for the child. No other process has it but this one, if it has a descriptor of
    /// the file.
    Handed(Ref, Ends),
    /// It was given up: the child takes it over from the kernel.
    GivenUp(Ends),
}

/// The addresses of a connection: ours, and the peer's.
type Ends = (SocketAddr, SocketAddr);

impl ForkGroup {
    fn ours(&self) -> impl Iterator<Item = &Ref> {
        self.files.iter().filter_map(|shared| match shared {
            Some(Shared::Ours(file)) => Some(file),
            _ => None,
        })
    }

    /// Those that are this process's, or are not the kernel's yet.
    fn ours_or_moving(&self) -> impl Iterator<Item = &Ref> {
        self.files.iter().filter_map(|shared| match shared {
            Some(Shared::Ours(file) | Shared::Moving(file, _)) => Some(file),
            _ => None,
        })
    }
}

struct Parent {
    groups: Vec<ForkGroup>,
    /// Children have these, and are expected to use them: the program has closed them, or their predecessors were used.
    early: Vec<Ref>,
    expects: Expects,
    /// Children use connections.
    has_users: bool,
    /// The eventfd that wakes the thread that serves them.
    wakeup: Option<Arc<OwnedFd>>,
}

static PARENT: Mutex<Parent> = Mutex::new(Parent {
    groups: Vec::new(),
    early: Vec::new(),
    expects: Expects::Nothing,
    has_users: false,
    wakeup: None,
});

/// Where the file of the connection is that was accepted last and has not been forked with.
static NEWEST: AtomicUsize = AtomicUsize::new(0);

static REPORTED: Once = Once::new();

/// How soon it is tried again.
const SOON: Duration = Duration::from_millis(1);

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
                files.push(file);
            }
        }
        // The child gets the kernel's, too.
        forget_open(&mut self.parent);
        if files.is_empty() {
            return;
        }
        let flags = SocketFlags::CLOEXEC;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let Ok((channel, child_end)) = made else { return end_of_fork(files.iter()) };
        // SAFETY: the same descriptor, under its new number.
        let channel =
            unsafe { OwnedFd::from_raw_fd(internal_fds::make_internal(channel.into_raw_fd())) };
        self.child_end = Some(internal_fds::make_internal(child_end.into_raw_fd()));
        let newest = NEWEST.swap(0, Ordering::Relaxed);
        let newest = files.iter().position(|file| file.memberships.id() == newest);
        let newest = newest.map(|at| at as u32);
        let files = files.into_iter().map(|file| Some(Shared::Ours(file))).collect();
        let (channel, board) = (Arc::new(channel), Board::new(self.parent.has_users));
        self.parent.groups.push(ForkGroup { channel, board, files, newest, expected: None });
    }

    /// In the child: its end, and its board.
    pub fn child_end(&self) -> Option<(c_int, Option<Board>)> {
        let group = self.parent.groups.last();
        let board = group.and_then(|group| group.board.as_ref()).map(Board::in_child);
        self.child_end.map(|end| (end, board))
    }

    /// In the parent: closes the child's end.
    pub fn in_parent(&mut self) {
        let Some(child_end) = self.child_end.take() else { return };
        let parent = &mut *self.parent;
        if let Some(group) = parent.groups.last_mut() {
            end_of_fork(group.ours());
            group.expected = group.newest.filter(|_| parent.expects == Expects::Use);
            if let Some(Some(Shared::Ours(file))) =
                group.expected.and_then(|at| group.files.get(at as usize))
            {
                parent.early.push(file.clone());
            }
        }
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
        std::mem::forget(std::mem::take(&mut self.parent.early));
        std::mem::forget(self.parent.wakeup.take());
        self.parent.expects = Expects::Nothing;
        self.parent.has_users = false;
    }
}

/// `file` was accepted.
pub fn accepted(file: &Ref) {
    NEWEST.store(file.memberships.id(), Ordering::Relaxed);
}

/// Whether the program has neither sent nor received on `file` here.
fn is_unused(file: &Ref) -> bool {
    let Some(Live::Stream(stream)) = file.live() else { return false };
    let unread = stream.unread() as u64;
    stream.unacknowledged() == 0
        && stream.info().is_ok_and(|info| info.bytes_acked == 0 && info.bytes_received == unread)
}

/// The indices are those of one fork.
fn end_of_fork<'a>(files: impl Iterator<Item = &'a Ref>) {
    files.for_each(|file| file.set_shared_index(None));
}

/// Another process gets the descriptors of this one, and may keep them: of what the kernel has, no child is alone.
fn forget_open(parent: &mut Parent) {
    let is_moving =
        |shared: &Option<Shared>| matches!(shared, Some(Shared::Moving(..) | Shared::Handed(..)));
    if !parent.groups.iter().any(|group| group.files.iter().any(is_moving)) {
        return;
    }
    let open: Vec<Ref> = FILES.all().filter_map(|(_, file)| file).collect();
    for file in &open {
        forget(parent, file);
    }
}

fn forget(parent: &mut Parent, file: &Ref) {
    for shared in parent.groups.iter_mut().flat_map(|group| &mut group.files) {
        match shared {
            Some(Shared::Moving(known, is_alone)) if is_same(known, file) => *is_alone = false,
            Some(Shared::Handed(known, _)) if is_same(known, file) => *shared = None,
            _ => {}
        }
    }
}

/// Whether the program has a descriptor of `file`.
fn is_open(file: &Ref) -> bool {
    FILES.all().any(|(_, known)| known.is_some_and(|known| is_same(&known, file)))
}

/// A program is about to be started. Called inside.
pub fn before_spawn() {
    forget_open(&mut lock(&PARENT));
}

/// If the kernel owns `file`: it gets another descriptor, here or in another process, that is not in the table.
pub fn escapes(file: &Ref) {
    if file.follows() {
        file.set_kernel_owned();
    }
    let Some(_inside) = Inside::enter().filter(|_| file.is_kernel_owned()) else { return };
    forget(&mut lock(&PARENT), file);
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
        let early = std::mem::take(&mut lock(&PARENT).early);
        early.into_iter().for_each(|file| hand_over_early(&file));
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
    let mut bytes = [0; MESSAGE];
    let mut into = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let came = match recvmsg(channel, &mut into, &mut control, flags) {
        Ok(message) => message.bytes,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
        Err(_) => 0,
    };
    let over_channel = bytes[MESSAGE - 1] == OVER_CHANNEL;
    let mut given = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut given = given.next().into_iter().flatten();
    let answer = if over_channel { None } else { given.next() };
    let companion = given.next();
    let message = (came == MESSAGE).then(|| Message::read(bytes)).flatten();
    let mut parent = lock(&PARENT);
    let is_it = |group: &ForkGroup| Arc::ptr_eq(&group.channel, channel);
    let Some(at) = parent.groups.iter().position(is_it) else { return };
    let shared = |index: u32, parent: &mut Parent| {
        parent.groups.get_mut(at)?.files.get_mut(index as usize).map(Option::take)
    };
    if let Some(Message::HandOver(index)) = message {
        parent.groups[at].expected.take_if(|expected| *expected == index);
    }
    // Closed after the reply, for which the child waits.
    let mut taken = None;
    let answered = match message {
        Some(Message::HandOver(index)) => {
            match (&*taken.insert(shared(index, &mut parent)), &companion) {
                (Some(Some(Shared::Ours(file))), Some(companion)) => {
                    place(&mut parent, at, index, Some(Shared::Moving(file.clone(), true)));
                    let is_news = parent.expects == Expects::Nothing
                        && parent.groups[at].newest == Some(index);
                    // A thread that forks meanwhile must not wait for the kernel.
                    drop(parent);
                    if is_news {
                        learn(file);
                    }
                    if file.domain == libc::AF_UNIX {
                        return answer_by_thread((channel, index), file, companion, answer);
                    }
                    report_use();
                    let (to, now) = ((channel, index), Some(Instant::now()));
                    match hand_over_to_child(to, file, companion.as_fd(), true, now) {
                        Some(answer) => answer,
                        None => return answer_by_thread(to, file, companion, answer),
                    }
                }
                // It was handed over before: when it was closed here, or for another child, and then these say no.
                (Some(Some(Shared::Handed(..) | Shared::GivenUp(_))), _) => {
                    let mut handed = taken.take().flatten().flatten();
                    let answer = child_follows(&mut handed);
                    place(&mut parent, at, index, handed);
                    child_uses_handed(parent);
                    answer
                }
                // It is on its way for another process of the same fork: the thread waits for that.
                (Some(Some(Shared::Moving(file, is_alone))), Some(companion)) => {
                    let (file, is_alone) = (file.clone(), *is_alone);
                    place(&mut parent, at, index, Some(Shared::Moving(file.clone(), is_alone)));
                    drop(parent);
                    return answer_by_thread((channel, index), &file, companion, answer);
                }
                (Some(Some(Shared::Ours(_) | Shared::Moving(..))), None) => {
                    let back = taken.take().flatten().flatten();
                    place(&mut parent, at, index, back);
                    Answer::No
                }
                // Another child has claimed it before.
                (Some(_), _) => {
                    drop(parent);
                    taken.take().flatten().flatten().into_iter().for_each(release);
                    Answer::Yes
                }
                _ => Answer::No,
            }
        }
        Some(Message::Follow(index)) => {
            let place = parent.groups.get_mut(at).and_then(|it| it.files.get_mut(index as usize));
            let answer = place.map_or(Answer::No, child_follows);
            drop(parent);
            answer
        }
        Some(Message::Use(_)) => return child_uses_handed(parent),
        Some(Message::Release(index)) => {
            child_leaves(&mut parent, at, Some(index));
            let released = shared(index, &mut parent);
            drop(parent);
            released.flatten().into_iter().for_each(release);
            return;
        }
        None => {
            child_leaves(&mut parent, at, None);
            let over = parent.groups.swap_remove(at);
            drop(parent);
            over.files.into_iter().flatten().for_each(release);
            return;
        }
    };
    reply(channel, answer.as_ref(), matches!(message, Some(Message::HandOver(_))), answered);
}

/// Answers a child's request, over the channel or over the socket that came with it.
fn reply(channel: &Arc<OwnedFd>, to: Option<&OwnedFd>, is_hand_over: bool, answer: Answer) {
    let answer = match answer {
        // What it would be left with is the kernel's for good.
        Answer::Yes | Answer::No if is_hand_over && is_strict() => {
            report("the child ends, as --strict requires");
            Answer::Strict
        }
        answer => answer,
    };
    // The child may be gone.
    let to = to.map_or(channel.as_fd(), AsFd::as_fd);
    let _ = send(to, &[answer.byte()], SendFlags::NOSIGNAL);
}

/// Puts `new` in the place of a connection of the group at `at`; returns what was there.
fn place(parent: &mut Parent, at: usize, index: u32, new: Option<Shared>) -> Option<Shared> {
    let place = parent.groups.get_mut(at)?.files.get_mut(index as usize)?;
    std::mem::replace(place, new)
}

/// The child of a fork, by its channel, has `file`, which is [moving](Shared::Moving) in its place: hands it over.
/// `None`: the process at the other end is stopped, and runs not until then.
fn hand_over_to_child(
    (channel, index): (&Arc<OwnedFd>, u32),
    file: &Ref,
    companion: BorrowedFd<'_>,
    is_used: bool,
    until: Option<Instant>,
) -> Option<Answer> {
    let place = |parent: &mut Parent, new: Option<Shared>| {
        let is_it = |group: &ForkGroup| Arc::ptr_eq(&group.channel, channel);
        let at = parent.groups.iter().position(is_it)?;
        place(parent, at, index, new)
    };
    let handed = give_to_kernel(file, companion, is_used, until, |parent, file_now, ends| {
        let is_alone = matches!(place(parent, None), Some(Shared::Moving(_, true)));
        if !is_alone || !file.is_private() || is_shared_by(parent, file) {
            return Answer::Yes;
        }
        let mut handed = Some(Shared::Handed(file_now, ends));
        let answer = child_follows(&mut handed);
        place(parent, handed);
        answer
    });
    if handed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        return None;
    }
    let mut parent = lock(&PARENT);
    let now = place(&mut parent, None);
    // What still counts as moving has failed, or was the kernel's before, or is an AF_UNIX stream: it is forgotten,
    // with the companion that may be kept.
    if !matches!(now, Some(Shared::Moving(..))) {
        place(&mut parent, now);
    }
    drop(parent);
    Some(handed.unwrap_or(Answer::No))
}

/// The same by a thread of its own, which answers: the process at the other end may be stopped, and other children ask.
fn answer_by_thread(
    (channel, index): (&Arc<OwnedFd>, u32),
    file: &Ref,
    companion: &OwnedFd,
    answer: Option<OwnedFd>,
) {
    let is_over_channel = answer.is_none();
    let started = companion.try_clone().and_then(|companion| {
        let (channel, file) = (channel.clone(), file.clone());
        thread::spawn("busypoll/child", move || {
            let given = hand_over_to_child((&channel, index), &file, companion.as_fd(), true, None);
            reply(&channel, answer.as_ref(), true, given.unwrap_or(Answer::No));
        })
    });
    if started.is_err() && is_over_channel {
        // The child waits for it. A socket of its own has been closed, which says the same.
        reply(channel, None, true, Answer::No);
    }
}

/// The program has closed its last descriptor of `file`, which children have: they will use it. The thread hands it
/// over now, while the child of an accepting server begins, and not while that child waits for it.
pub fn closed(file: &Ref) {
    let mut parent = lock(&PARENT);
    if parent.wakeup.is_none() || is_open(file) {
        return;
    }
    parent.early.push(file.clone());
    // It fails only when the counter is full, and then the thread is woken already.
    let _ = parent.wakeup.as_ref().map(|wakeup| rustix::io::write(wakeup, &1_u64.to_ne_bytes()));
}

/// A child asks for `file`, the newest connection before its fork. If this process has it, and has not used it, the
/// children of later forks are expected to do the same.
fn learn(file: &Ref) {
    // With `--strict` nothing is the kernel's before a child uses it.
    if is_strict() || !is_open(file) || !is_unused(file) {
        return;
    }
    let expects = &mut lock(&PARENT).expects;
    if *expects == Expects::Nothing {
        *expects = Expects::Use;
    }
}

/// The children of the group at `at` do not have the connection `index`, or any, any more.
fn child_leaves(parent: &mut Parent, at: usize, index: Option<u32>) {
    let Some(group) = parent.groups.get_mut(at) else { return };
    let left = |expected: &mut u32| index.is_none_or(|index| index == *expected);
    let Some(expected) = group.expected.take_if(left) else { return };
    if !group.board.as_ref().is_some_and(|board| board.is_used(expected)) {
        parent.expects = Expects::NeverAgain;
    }
}

/// Hands over `file` before its child asks for it, if the child of one fork alone has it, beside this process.
fn hand_over_early(file: &Ref) {
    if file.kept_companion().is_none() && !is_unused(file) {
        // This process has begun to use it.
        return;
    }
    let mut parent = lock(&PARENT);
    let is_its = |it: &Option<Shared>| matches!(it, Some(Shared::Ours(it)) if is_same(it, file));
    let mut all = parent
        .groups
        .iter()
        .enumerate()
        .filter_map(|(at, group)| Some((at, group.files.iter().position(is_its)?)));
    let (Some((at, index)), None) = (all.next(), all.next()) else { return };
    let found = match file.kept_companion() {
        Some(_) => None,
        None => open(|it| std::ptr::eq::<File>(it, &**file)).map(|(_, companion)| companion),
    };
    let Some(companion) = file.kept_companion().or(found.as_ref()) else { return };
    let index = index as u32;
    let channel = parent.groups[at].channel.clone();
    place(&mut parent, at, index, Some(Shared::Moving(file.clone(), true)));
    drop(parent);
    // Whether the child will use it is not known.
    let (to, now) = ((&channel, index), Some(Instant::now()));
    let answer = hand_over_to_child(to, file, companion.as_fd(), false, now).unwrap_or(Answer::No);
    let mut parent = lock(&PARENT);
    let is_it = |group: &ForkGroup| Arc::ptr_eq(&group.channel, &channel);
    let Some(at) = parent.groups.iter().position(is_it) else { return };
    match answer {
        // The child may still ask.
        Answer::No => drop(place(&mut parent, at, index, Some(Shared::Ours(file.clone())))),
        Answer::Yes if is_strict() => {}
        answer => parent.groups[at].board.iter().for_each(|board| board.set(index, answer)),
    }
}

fn is_strict() -> bool {
    config::get().is_some_and(|config| config.launch.strict)
}

/// The children of a fork do not have `shared` any more. A connection that the kernel has may still be another
/// process's.
fn release(shared: Shared) {
    if let (Shared::GivenUp((local, remote)), Some(host)) = (shared, host::existing()) {
        host.take_back(local, remote);
    }
}

/// A child, for which a connection was handed over, asks for it; it has come from nowhere else.
fn child_follows(shared: &mut Option<Shared>) -> Answer {
    let ends = match shared {
        Some(Shared::Handed(file, _)) if is_open(file) => return Answer::Later,
        Some(Shared::Handed(_, ends) | Shared::GivenUp(ends)) => *ends,
        _ => return Answer::Yes,
    };
    let Some(host) = host::existing() else { return Answer::Yes };
    host.give_up(ends.0, ends.1);
    *shared = Some(Shared::GivenUp(ends));
    Answer::Alone
}

/// A child uses a connection that was handed over before it asked.
fn child_uses_handed(mut parent: MutexGuard<'_, Parent>) {
    parent.has_users = true;
    drop(parent);
    host::existing().into_iter().for_each(|host| host.connections_are_used());
    report_use();
}

fn report_use() {
    if !is_strict() {
        report(
            "it is handed over to the kernel, and comes back only if it lasts and no other process has it",
        );
    }
}

fn report(then: &str) {
    REPORTED.report(format_args!(
        "{}: a child process uses a connection of its parent's; {then}. For a program that serves short connections in \
         child processes use --plane kernel, or a policy rule with that plane",
        not_accelerated::device()
    ));
}

/// The program closes its descriptor `fd` of `file`, and children still have theirs.
pub fn keep_companion(file: &File, fd: c_int) {
    if let Some(copy) = internal_fds::copy_of(fd) {
        let _ = file.kept_companion.set(copy);
    }
}

/// The file that is it, open or [kept](kept), and a descriptor of its companion: the program may close its own
/// meanwhile.
pub fn find(is_it: impl Fn(&File) -> bool) -> Option<(Ref, OwnedFd)> {
    if let Some(found) = kept(&is_it) {
        return Some(found);
    }
    open(is_it)
}

/// The file that is it, open, and a descriptor of its companion.
fn open(is_it: impl Fn(&File) -> bool) -> Option<(Ref, OwnedFd)> {
    let mut all = FILES.all();
    let (fd, file) = all.find_map(|(fd, file)| Some((fd, file.filter(|file| is_it(file))?)))?;
    let copy = internal_fds::copy_of(fd)?;
    FILES.get(fd).is_some_and(|now| is_same(&now, &file)).then_some((file, copy))
}

/// A connection that the program has closed and children still have, and its companion.
fn kept(is_it: impl Fn(&File) -> bool) -> Option<(Ref, OwnedFd)> {
    let parent = lock(&PARENT);
    let mut all = parent.groups.iter().flat_map(ForkGroup::ours);
    all.find_map(|file| {
        let companion = file.kept_companion().filter(|_| is_it(file))?;
        Some((file.clone(), companion.try_clone().ok()?))
    })
}

/// Whether children share `file`: then it stays open when it is closed here. One that is moving may be needed again: if
/// the move fails, or this process ends.
pub fn is_shared(file: &Ref) -> bool {
    let parent = lock(&PARENT);
    let mut all = parent.groups.iter().flat_map(ForkGroup::ours_or_moving);
    all.any(|known| is_same(known, file))
}

fn is_shared_by(parent: &Parent, file: &Ref) -> bool {
    let mut all = parent.groups.iter().flat_map(ForkGroup::ours);
    all.any(|known| is_same(known, file))
}

/// This process ends: hands what children may still use over to the kernel, AF_UNIX streams until then.
pub fn hand_over_all(until: Instant) {
    let groups = std::mem::take(&mut lock(&PARENT).groups);
    let mut all = Vec::new();
    for group in &groups {
        let channel = &group.channel;
        let mut fds = [PollFd::new(channel, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let looked = poll(&mut fds, Some(&now));
        if looked.is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            continue;
        }
        for file in group.ours_or_moving() {
            let kept = file.kept_companion().map(AsRawFd::as_raw_fd);
            let fd = kept.or_else(|| {
                FILES.all().find_map(|(fd, known)| known.filter(|it| is_same(it, file)).map(|_| fd))
            });
            all.extend(fd.map(|fd| (file.clone(), fd)));
        }
    }
    // A connection that cannot be handed over ends with this process.
    hand_over_each(all, until);
}

/// This process executes a program: hands over what it has closed and children still have, until then.
pub fn hand_over_kept(until: Instant) {
    let kept = |file: &Ref| Some((file.clone(), file.kept_companion()?.as_raw_fd()));
    let parent = lock(&PARENT);
    let all = parent.groups.iter().flat_map(ForkGroup::ours_or_moving).filter_map(kept).collect();
    drop(parent);
    hand_over_each(all, until);
}
