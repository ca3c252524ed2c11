//! One owner per device, and how a second process learns which that is.
//!
//! The lock is the link of the steering program: the kernel attaches one program to an interface, for a process with the
//! rights to, and takes it off however its last holder ends. So nobody without these rights can hold a device.
//!
//! The owner's PID is found by a listening socket with an abstract name, of interface, program and a random number. The
//! kernel says who listens there; nothing is exchanged. Anybody may listen at such names, so a PID counts only if it is
//! of root, of this user, or of a process that has the program's link. Who asked stays in the backlog until the owner
//! [dismisses](OwnerName::dismiss) it.

use super::bpf::sys::is_link_of;
use crate::{sys, unix};
use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
};

/// So many names are asked at the most: all but one of them are forged.
const MAX_NAMES: usize = 256;

/// By which others find this process, for as long as it drives the device.
pub(super) struct OwnerName(OwnedFd);

impl Drop for OwnerName {
    /// A process that another thread is starting has our descriptors for a moment, and with them the name. Whoever
    /// asks hears that nobody listens any more, and not that we still own the device.
    fn drop(&mut self) {
        // SAFETY: a plain system call.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl AsFd for OwnerName {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn prefix(ifindex: u32, program: u32) -> String {
    format!("busypoll/xdp/{ifindex}/{program}/")
}

impl OwnerName {
    /// Has this process found as the owner of `ifindex`, once `program` is attached to it.
    pub(super) fn take(ifindex: u32, program: u32) -> io::Result<OwnerName> {
        let name = format!(
            "{}{:016x}",
            prefix(ifindex, program),
            sys::random::<8>().map(u64::from_ne_bytes)?
        );
        unix::listen(&name, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).map(OwnerName)
    }

    /// Makes room for others to ask. Who has asked has its answer already.
    pub(super) fn close_queries(&self) {
        // SAFETY: no address is wanted.
        let accept = || unsafe {
            libc::accept4(self.0.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        while sys::owned(accept()).is_ok() {}
    }
}

/// From now on this process is the one that `name`, handed over by another, names.
pub(super) fn name_this_process(name: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel notes who listens at each listen(2) anew (`unix_listen`, net/unix/af_unix.c).
    // SAFETY: a plain system call.
    match unsafe { libc::listen(name.as_raw_fd(), unix::BACKLOG) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The PID of the owner of `ifindex`, which runs `program`: 0 if it cannot be seen from here, `None` if nobody says so
/// who is to be believed.
pub(super) fn owner(ifindex: u32, program: u32) -> Option<i32> {
    let names = unix::names(&prefix(ifindex, program));
    names.iter().take(MAX_NAMES).find_map(|name| {
        let (pid, user) = listener_of(name).ok()?;
        (unix::trusts(user) || has_link(pid, program)).then_some(pid)
    })
}

/// Who listens at a name.
fn listener_of(name: &str) -> io::Result<(i32, u32)> {
    // SAFETY: no pointers. Not blocking: where nobody accepts, a full backlog would hold us for ever.
    let fd = sys::owned(unsafe {
        libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    })?;
    let (address, len) = unix::address(name)?;
    // SAFETY: a valid address of that length.
    match unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => unix::peer(fd.as_fd()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a process has the link by which `program` is attached, as far as we may look.
fn has_link(pid: i32, program: u32) -> bool {
    let folder = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut infos = folder.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    infos.any(|info| is_link_of(&info, program))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// In threads that are another user's: no interface has this index.
    #[test]
    fn only_root_this_user_and_who_has_the_link_are_believed() {
        busypoll_lab::needs_root!();
        let index = 0x7fff_0000 | std::process::id() & 0xffff;
        let listen = |user: u32| {
            let listen = move || {
                // SAFETY: a plain call, which concerns this thread alone. It ends with its work.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
                OwnerName::take(index, 1).unwrap()
            };
            thread::spawn(listen).join().unwrap()
        };
        assert_eq!(owner(index, 1), None);
        let forged = listen(65534);
        assert_eq!(owner(index, 1), None);
        let ours = listen(0);
        assert_eq!(owner(index, 1), Some(std::process::id().cast_signed()));
        assert_eq!(owner(index, 2), None, "of another program");
        drop((forged, ours));
        assert_eq!(owner(index, 1), None);
    }
}
