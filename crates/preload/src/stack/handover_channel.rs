//! The connections that a child of fork(2) shares with its parent. The child shares their companions, which are not
//! connected: the connections are in the parent's memory. When the child uses one, it asks the parent over a channel
//! made at the fork to hand it over to the kernel ([`handover_parent`](super::handover_parent)); one that the parent
//! has closed was handed over before. From then on the companion is the connection, in all processes that share it. If
//! a child alone has it then, it takes it over from the kernel ([`follow`](super::follow)). When the channel closes,
//! the parent knows that no child has one any more.

use super::common::lock;
use libc::{c_int, c_void};
use rustix::{
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recv, send, sendmsg, socketpair,
    },
};
use std::{
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

/// A request from a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Hand it over to the kernel.
    HandOver(u32),
    /// The child has closed it.
    Release(u32),
    /// The child uses what was handed over before it asked. There is no reply.
    Use(u32),
    /// Has the child alone what was handed over for it? Then it will take it over from the kernel.
    Follow(u32),
}

/// The length of a request: kind, index, and where the reply is to go.
pub const MESSAGE: usize = 6;

/// The reply goes over the channel; otherwise over the socket sent along.
pub const OVER_CHANNEL: u8 = 1;

impl Message {
    fn bytes(self, reply: u8) -> [u8; MESSAGE] {
        let (kind, index) = match self {
            Message::HandOver(index) => (b'T', index),
            Message::Release(index) => (b'R', index),
            Message::Use(index) => (b'U', index),
            Message::Follow(index) => (b'F', index),
        };
        let [a, b, c, d] = index.to_ne_bytes();
        [kind, a, b, c, d, reply]
    }

    pub fn read(bytes: [u8; MESSAGE]) -> Option<Message> {
        let [kind, a, b, c, d, _] = bytes;
        let index = u32::from_ne_bytes([a, b, c, d]);
        match kind {
            b'T' => Some(Message::HandOver(index)),
            b'R' => Some(Message::Release(index)),
            b'U' => Some(Message::Use(index)),
            b'F' => Some(Message::Follow(index)),
            _ => None,
        }
    }
}

/// The parent's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
    /// Yes, and the child alone has it: it may take it over.
    Alone,
    /// Yes, or not now: if the child alone has it later, it may take it over.
    Later,
    /// Refused because of `--strict`: the child ends.
    Strict,
}

impl Answer {
    pub fn from(byte: u8) -> Answer {
        match byte {
            b'Y' => Answer::Yes,
            b'A' => Answer::Alone,
            b'L' => Answer::Later,
            b'S' => Answer::Strict,
            _ => Answer::No,
        }
    }

    pub fn byte(self) -> u8 {
        match self {
            Answer::Yes => b'Y',
            Answer::Alone => b'A',
            Answer::Later => b'L',
            Answer::No => b'N',
            Answer::Strict => b'S',
        }
    }
}

/// What the parent has handed over before a child has asked for it: an answer for each connection of a fork, or 0, in
/// memory that parent and child have both. The child adds [`IN_USE`]; the last byte says whether the parent knows that
/// children use connections.
#[derive(Debug)]
pub struct Board(NonNull<c_void>);

// SAFETY: the memory is used by atomics alone.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

/// In an answer on the [`Board`]: the child uses the connection.
const IN_USE: u8 = 0x80;

impl Board {
    /// One page; further connections have none.
    const LEN: usize = 4096;
    const KNOWN: usize = Board::LEN - 1;

    /// `is_known`: the parent knows that children use connections. `None`: no memory. Then the children ask.
    pub fn new(is_known: bool) -> Option<Board> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), Board::LEN, access, flags) };
        let board = at.ok().and_then(NonNull::new).map(Board)?;
        board.byte(Board::KNOWN).store(is_known.into(), Ordering::Relaxed);
        Some(board)
    }

    /// The same, in the child, which has its own mapping.
    pub fn in_child(&self) -> Board {
        Board(self.0)
    }

    fn at(&self, index: u32) -> Option<&AtomicU8> {
        let index = usize::try_from(index).ok().filter(|index| *index < Board::KNOWN)?;
        Some(self.byte(index))
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        debug_assert!(at < Board::LEN);
        // SAFETY: within the mapping, which lives as long as this.
        unsafe { self.0.cast::<AtomicU8>().add(at).as_ref() }
    }

    /// In the parent.
    pub fn set(&self, index: u32, answer: Answer) {
        let _ = self.at(index).map(|at| at.store(answer.byte(), Ordering::Release));
    }

    /// In the child, which uses the connection: the answer, and whether the parent is to be told.
    fn take(&self, index: u32) -> Option<(Answer, bool)> {
        let at = self.at(index)?;
        let byte = at.load(Ordering::Acquire) & !IN_USE;
        if byte == 0 {
            return None;
        }
        at.store(byte | IN_USE, Ordering::Relaxed);
        Some((Answer::from(byte), self.byte(Board::KNOWN).load(Ordering::Relaxed) == 0))
    }

    /// In the parent: whether the child uses the connection, which was handed over before it asked.
    pub fn is_used(&self, index: u32) -> bool {
        self.at(index).is_some_and(|at| at.load(Ordering::Relaxed) & IN_USE != 0)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: made by `new`, or inherited by the child; each process unmaps its own once.
        let _ = unsafe { munmap(self.0.as_ptr(), Board::LEN) };
    }
}

/// The child's end of a channel, shared by all connections of one fork.
#[derive(Debug)]
pub struct Channel {
    end: OwnedFd,
    board: Option<Board>,
    /// Grandchildren share the connections: then this process sends no release.
    shared: AtomicBool,
    /// Held by a thread that waits for a reply over the channel, which no other process reads.
    asking: Mutex<()>,
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
    pub fn add(&mut self, end: c_int, board: Option<Board>) -> Arc<Channel> {
        // SAFETY: made for this child, and not used elsewhere here.
        let end = unsafe { OwnedFd::from_raw_fd(end) };
        let channel = Arc::new(Channel {
            end,
            board,
            shared: AtomicBool::new(false),
            asking: Mutex::new(()),
        });
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
    pub fn claim(&self, fd: BorrowedFd<'_>) -> Answer {
        let handed = self.channel.board.as_ref().and_then(|board| board.take(self.index));
        if let Some((handed, is_news)) = handed {
            if is_news {
                self.tell(Message::Use(self.index));
            }
            return handed;
        }
        self.ask(Message::HandOver(self.index), Some(fd))
    }

    /// Sends a message that has no reply.
    fn tell(&self, message: Message) {
        // If the parent is gone there is nothing to do; if it is slow, it will see the channel close.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.channel.end, &message.bytes(0), flags);
    }

    /// Asks the parent whether this process alone has the connection, which was handed over to the kernel.
    pub fn is_alone(&self) -> Answer {
        self.ask(Message::Follow(self.index), None)
    }

    /// Whether other children may have it too, by the same channel.
    pub fn is_shared(&self) -> bool {
        self.channel.shared.load(Ordering::Relaxed)
    }

    fn ask(&self, message: Message, companion: Option<BorrowedFd<'_>>) -> Answer {
        let channel = &*self.channel;
        if !self.is_shared() {
            let _asking = lock(&channel.asking);
            // A thread that forks meanwhile has not the reply: the child reads none here.
            if !self.is_shared() {
                return match channel.send(message, OVER_CHANNEL, companion.as_slice()) {
                    true => receive_answer(&channel.end),
                    false => Answer::No,
                };
            }
        }
        let flags = SocketFlags::CLOEXEC;
        let Ok((ours, theirs)) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        else {
            return Answer::No;
        };
        let fds: Vec<BorrowedFd<'_>> =
            [Some(theirs.as_fd()), companion].into_iter().flatten().collect();
        if !channel.send(message, 0, &fds) {
            return Answer::No;
        }
        drop(theirs);
        receive_answer(&ours)
    }
}

impl Channel {
    /// Whether it is sent, with descriptors.
    fn send(&self, message: Message, reply: u8, fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let (message, flags) = (message.bytes(reply), SendFlags::NOSIGNAL);
        sendmsg(&self.end, &[IoSlice::new(&message)], &mut control, flags).is_ok()
    }
}

fn receive_answer(from: &OwnedFd) -> Answer {
    let mut answer = [0];
    loop {
        match recv(from, &mut answer[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok((_, 1)) => return Answer::from(answer[0]),
            // The parent is gone.
            _ => return Answer::No,
        }
    }
}

impl Drop for InheritedConnection {
    fn drop(&mut self) {
        if !self.is_shared() {
            self.tell(Message::Release(self.index));
        }
    }
}
