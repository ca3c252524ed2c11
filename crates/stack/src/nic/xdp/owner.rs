//! Each device has one owner. This file shows how another process learns which process that is.
//!
//! The lock is the link of the steering program: the kernel attaches one program to an interface, for a process with
//! the capabilities, and detaches it when its last holder ends in any way. So a process without these capabilities
//! cannot hold a device.
//!
//! The owner listens on a unix socket whose abstract name consists of interface, program and a random number. A query
//! connects to it: the kernel reports the listener's PID, and no data is exchanged. Any process may listen at such
//! names, so a PID counts only if its user is root or this user, or if the process has the program's link. The query
//! stays in the backlog until the owner [closes](OwnerName::close_queries) it.

use super::bpf::sys::is_link_of;
use crate::{sys, unix};
use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
};

/// The most names that are queried: all but one of them are forged.
const MAX_NAMES: usize = 256;

/// The listening socket by which other processes find this one, for as long as it drives the device.
pub(super) struct OwnerName(OwnedFd);

impl Drop for OwnerName {
    /// A process that another thread is starting may have our descriptors for a moment, and with them the name. After
    /// shutdown(2) a query is refused, and does not report this process as the owner.
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
    /// Makes this process known as the owner of `ifindex`, once `program` is attached to it. The name ends with `label`
    /// or a random number.
    pub(super) fn take(ifindex: u32, program: u32, label: Option<&str>) -> io::Result<OwnerName> {
        let prefix = prefix(ifindex, program);
        let name = match label {
            Some(label) => format!("{prefix}{label}"),
            None => format!("{prefix}{:016x}", sys::random::<8>().map(u64::from_ne_bytes)?),
        };
        unix::listen(&name, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).map(OwnerName)
    }

    /// Closes all waiting queries, which have their answer already, to make room in the backlog.
    pub(super) fn close_queries(&self) {
        // SAFETY: no address is wanted.
        let accept = || unsafe {
            libc::accept4(self.0.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        while sys::owned(accept()).is_ok() {}
    }
}

/// From now on `name`, handed over by another process, reports this process as the owner.
///
/// # Errors
/// Those of listen(2).
pub fn name_this_process(name: BorrowedFd<'_>) -> io::Result<()> {
    // Each listen(2) records the caller as the listener (`unix_listen`, net/unix/af_unix.c).
    // SAFETY: a plain system call.
    match unsafe { libc::listen(name.as_raw_fd(), unix::BACKLOG) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The PID of the owner of `ifindex`, which runs `program`: 0 if it is not visible from here, `None` if no trusted
/// process listens at such a name.
pub(super) fn owner(ifindex: u32, program: u32) -> Option<i32> {
    let names = unix::names(&prefix(ifindex, program));
    names.iter().take(MAX_NAMES).find_map(|name| {
        let (pid, user) = listener_of(name).ok()?;
        (unix::trusts(user) || has_link(pid, program)).then_some(pid)
    })
}

/// The labels of the names of `ifindex`, which runs `program`. Any process may have added some.
pub(super) fn labels(ifindex: u32, program: u32) -> Vec<String> {
    let prefix = prefix(ifindex, program);
    let names = unix::names(&prefix).into_iter().take(MAX_NAMES);
    names.filter_map(|name| name.strip_prefix(&prefix).map(str::to_owned)).collect()
}

/// The PID and user of the process that listens at a name.
fn listener_of(name: &str) -> io::Result<(i32, u32)> {
    // SAFETY: no pointers. Non-blocking, because a full backlog would block for ever.
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

/// Whether a process has the link by which `program` is attached, as far as /proc shows it.
fn has_link(pid: i32, program: u32) -> bool {
    let folder = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut infos = folder.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    infos.any(|info| is_link_of(&info, program))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Listens in threads with other user ids. No interface has this index.
    #[test]
    fn a_listener_of_another_user_without_the_link_is_not_the_owner() {
        busypoll_lab::needs_root!();
        let index = 0x7fff_0000 | std::process::id() & 0xffff;
        let listen = |user: u32| {
            let listen = move || {
                // SAFETY: a plain call, which changes only this thread. The thread ends with its work.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
                OwnerName::take(index, 1, None).unwrap()
            };
            thread::spawn(listen).join().unwrap()
        };
        assert_eq!(owner(index, 1), None);
        let forged = listen(65534);
        assert_eq!(owner(index, 1), None);
        let ours = listen(0);
        assert_eq!(owner(index, 1), Some(std::process::id().cast_signed()));
        assert_eq!(owner(index, 2), None, "another program");
        drop((forged, ours));
        assert_eq!(owner(index, 1), None);
    }
}
