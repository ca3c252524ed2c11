//! Messages with descriptors that the program has sent by an AF_UNIX stream whose other process is stopped: the kernel
//! gets them when it gets the stream, after all that was sent before.

use super::common::lock;
use crate::real;
use libc::{c_int, socklen_t};
use std::{
    io::IoSlice,
    mem,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    sync::Mutex,
};

/// The most messages of a stream, their bytes in all, and the descriptors of one (`SCM_MAX_FD`).
const MESSAGES: usize = 16;
const BYTES: usize = 16 * 1024;
const DESCRIPTORS: usize = 253;

/// The most that both ends hold of what was sent before, and what the kernel adds to a message.
const BEFORE: usize = 264 * 1024;
const OVERHEAD: usize = 2 * 1024;

/// The send buffer while they are sent.
const MOST: c_int = 1 << 20;

#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

#[derive(Debug, Default)]
pub struct Later(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    messages: Vec<Message>,
    is_over: bool,
}

impl Later {
    /// Keeps a message for the kernel's socket `by`. Returns its length; `None`: the stream takes none.
    pub fn add(
        &self,
        by: BorrowedFd<'_>,
        buffers: &[IoSlice<'_>],
        descriptors: Vec<OwnedFd>,
    ) -> Option<usize> {
        let len = buffers.iter().map(|part| part.len()).sum();
        let mut state = lock(&self.0);
        let in_all = state.messages.iter().map(|message| message.bytes.len()).sum::<usize>() + len;
        let is_full = state.is_over || state.messages.len() == MESSAGES;
        if is_full || in_all > BYTES || descriptors.len() > DESCRIPTORS || !has_room(by, in_all) {
            return None;
        }
        let bytes = buffers.iter().flat_map(|part| part.iter().copied()).collect();
        state.messages.push(Message { bytes, descriptors });
        Some(len)
    }

    /// From now on it takes none.
    pub fn end(&self) {
        lock(&self.0).is_over = true;
    }

    /// Sends them by the kernel's socket, and takes no more.
    pub fn send(&self, by: BorrowedFd<'_>) {
        let mut state = lock(&self.0);
        state.is_over = true;
        let messages = mem::take(&mut state.messages);
        if messages.is_empty() {
            return;
        }
        with_large_buffer(by, |_| messages.iter().for_each(|message| message.send(by)));
    }
}

/// Whether the kernel's socket will have room for all that was sent before, and messages of so many bytes: any user may
/// have less.
fn has_room(by: BorrowedFd<'_>, len: usize) -> bool {
    let mut there: c_int = 0;
    // SAFETY: room for a number.
    unsafe { libc::syscall(libc::SYS_ioctl, by.as_raw_fd(), libc::TIOCOUTQ, &raw mut there) };
    let data = BEFORE + len + there.max(0) as usize;
    with_large_buffer(by, |size| size >= data + data / 3 + MESSAGES * OVERHEAD)
}

/// `then` gets the size of the send buffer.
fn with_large_buffer<R>(by: BorrowedFd<'_>, then: impl FnOnce(usize) -> R) -> R {
    let before = send_buffer(by);
    set_send_buffer(by, libc::SO_SNDBUF, MOST);
    set_send_buffer(by, libc::SO_SNDBUFFORCE, MOST);
    let result = then(send_buffer(by).max(0) as usize);
    // The kernel doubles it.
    set_send_buffer(by, libc::SO_SNDBUF, before / 2);
    result
}

fn send_buffer(by: BorrowedFd<'_>) -> c_int {
    let (mut size, mut len) = (0, size_of::<c_int>() as socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_SNDBUF);
    // SAFETY: room for a number.
    unsafe {
        real::getsockopt(by.as_raw_fd(), level, name, (&raw mut size).cast(), &raw mut len);
    }
    size
}

fn set_send_buffer(by: BorrowedFd<'_>, name: c_int, size: c_int) {
    let (value, len) = ((&raw const size).cast(), size_of_val(&size) as socklen_t);
    // SAFETY: a number.
    unsafe { real::setsockopt(by.as_raw_fd(), libc::SOL_SOCKET, name, value, len) };
}

impl Message {
    fn send(&self, by: BorrowedFd<'_>) {
        let numbers: Vec<i32> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let size = size_of_val(&*numbers) as u32;
        // SAFETY: plain calculations.
        let (space, len) = unsafe { (libc::CMSG_SPACE(size), libc::CMSG_LEN(size)) };
        // Words, as a header is aligned.
        let mut control = vec![0_usize; (space as usize).div_ceil(size_of::<usize>())];
        let mut part = libc::iovec {
            iov_base: self.bytes.as_ptr().cast_mut().cast(),
            iov_len: self.bytes.len(),
        };
        // SAFETY: all zeroes are valid; there is room for the header and the numbers, and all of it outlives the call,
        // which only reads it.
        unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = space as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = len as _;
            let to = libc::CMSG_DATA(header).cast::<i32>();
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), to, numbers.len());
            // The peer may have closed it.
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            real::sendmsg(by.as_raw_fd(), &raw const message, flags);
        }
    }
}
