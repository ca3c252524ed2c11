//! Messages with descriptors (unix(7), `SCM_RIGHTS`).

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// The most descriptors in one message: the kernel takes 253 (SCM_MAX_FD).
pub(crate) const DESCRIPTORS: usize = 250;

/// Room for the descriptors of one message, as the kernel lays them out.
#[repr(C, align(8))]
struct Control([u8; 64 + DESCRIPTORS * size_of::<RawFd>()]);

/// Sends `bytes` with descriptors, with these flags of sendmsg(2). Returns how many bytes were sent.
///
/// # Errors
/// More than [`DESCRIPTORS`] (`InvalidInput`); those of sendmsg(2).
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[RawFd],
    flags: libc::c_int,
) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let size = size_of_val(descriptors) as u32;
    // SAFETY: `control` has room for the descriptors and their header; all that the message points to outlives the
    // call, which only reads it.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            let to = libc::CMSG_DATA(header);
            ptr::copy_nonoverlapping(descriptors.as_ptr().cast(), to, size_of_val(descriptors));
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const message, flags | libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes and the descriptors that came with them. Returns how many bytes came; none if the peer has closed the
/// connection.
///
/// # Errors
/// Those of recvmsg(2).
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut descriptors = Vec::new();
    // SAFETY: all that the message points to is writable for the length given, and outlives the call; the control
    // messages are read as the kernel laid them out, and each descriptor is taken once.
    let received = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of_val(&control) as _;
        let received = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for at in 0..bytes / size_of::<RawFd>() {
                    let fd = first.add(at).read_unaligned();
                    descriptors.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        received
    };
    Ok((received.cast_unsigned(), descriptors))
}
