//! Listeners at one address that several processes wait for: workers that inherited one, or sockets with
//! `SO_REUSEPORT`. The processes and their clients share a page of memory with a word for each listener, which says how
//! many connections it can take now. A client asks a process whose word is not zero; if there is none, the kernel makes
//! the connection. So a connection never waits for a process that is busy while another one is idle.
//!
//! The word is a hint. The process that is asked answers when it accepts, or refuses; and a client that is not answered
//! in time goes elsewhere.

use crate::{inet::tcp::WaitWord, sys};
use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

/// The most listeners of a group; further ones are the kernel's.
const MOST: usize = 64;

const NAME: &CStr = c"busypoll-workers";

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// One listener.
#[repr(C, align(64))]
struct Member {
    /// Its process; 0: the place is free.
    pid: AtomicU32,
    can_take: AtomicU32,
}

type Page = [Member; MOST];

/// The listeners at one address.
pub(super) struct Group {
    page: NonNull<Page>,
    file: OwnedFd,
    /// Where the next search begins.
    next: AtomicUsize,
}

// SAFETY: a mapping belongs to no thread, and its words are atomics.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

/// The place of a listener of this process.
pub(super) struct Place {
    group: Arc<Group>,
    at: usize,
}

impl Group {
    /// # Errors
    /// No memory or descriptor left.
    pub(super) fn create() -> io::Result<Arc<Group>> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string.
        let file = sys::owned(unsafe { libc::memfd_create(NAME.as_ptr(), flags) })?;
        // SAFETY: plain system calls.
        let made = unsafe {
            libc::ftruncate(file.as_raw_fd(), size_of::<Page>() as libc::off_t) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
        };
        if !made {
            return Err(io::Error::last_os_error());
        }
        Group::map(file)
    }

    /// The group that another process has made.
    ///
    /// # Errors
    /// `InvalidData` if the memory is another's: it may shrink, or has another size.
    pub(super) fn open(file: OwnedFd) -> io::Result<Arc<Group>> {
        // SAFETY: a plain system call.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let is_sealed = seals >= 0 && seals & SEALS == SEALS;
        if !is_sealed || sys::size_of_file(file.as_fd())? != size_of::<Page>() as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Group::map(file)
    }

    fn map(file: OwnedFd) -> io::Result<Arc<Group>> {
        let (len, access) = (size_of::<Page>(), libc::PROT_READ | libc::PROT_WRITE);
        let (kind, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of that size, which cannot shrink.
        let page = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, fd, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // A copy is one of the library's descriptors, which the program does not close by chance.
        let file = file.try_clone()?;
        Ok(Arc::new(Group { page, file, next: AtomicUsize::new(0) }))
    }

    /// The memory, for another process.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn members(&self) -> &Page {
        // SAFETY: mapped until `self` is dropped, aligned to a page; any bytes are valid atomics.
        unsafe { self.page.as_ref() }
    }

    /// A place for a listener of this process; `None`: there is none left.
    pub(super) fn join(self: &Arc<Group>) -> Option<Arc<Place>> {
        let pid = std::process::id();
        let take = |member: &Member| {
            let taken = member.pid.compare_exchange(0, pid, Ordering::SeqCst, Ordering::Relaxed);
            taken.is_ok()
        };
        let at = self.members().iter().position(take)?;
        Some(Arc::new(Place { group: self.clone(), at }))
    }

    /// The processes that can take a connection now, by turns; not `own`.
    pub(super) fn waiting(&self, own: u32) -> impl Iterator<Item = u32> + '_ {
        let of = move |member: &Member| {
            let pid = member.pid.load(Ordering::Relaxed);
            // A place that is taken or left just now has none.
            (pid != 0 && pid != own && member.can_take.load(Ordering::Relaxed) > 0).then_some(pid)
        };
        let all = move || self.members().iter().filter_map(of);
        let count = all().count();
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % count.max(1);
        all().skip(turn).chain(all().take(turn))
    }

    /// Whether no process is there.
    pub(super) fn is_empty(&self) -> bool {
        self.members().iter().all(|member| member.pid.load(Ordering::Relaxed) == 0)
    }

    /// Processes that have ended leave.
    pub(super) fn remove_ended(&self) {
        for member in self.members() {
            let pid = member.pid.load(Ordering::Relaxed);
            if pid != 0 && sys::has_ended(pid) {
                self.remove(pid);
            }
        }
    }

    /// The process has ended.
    pub(super) fn remove(&self, pid: u32) {
        for member in self.members() {
            if member.pid.load(Ordering::Relaxed) == pid {
                member.can_take.store(0, Ordering::Relaxed);
                let order = Ordering::SeqCst;
                let _ = member.pid.compare_exchange(pid, 0, order, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size, unmapped once.
        unsafe { libc::munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}

impl WaitWord for Place {
    fn set(&self, can_take: u32) {
        self.group.members()[self.at].can_take.store(can_take, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (member, own) = (&self.group.members()[self.at], std::process::id());
        // Another process may have taken this one for ended.
        if member.pid.load(Ordering::Relaxed) == own {
            member.can_take.store(0, Ordering::Relaxed);
            let order = Ordering::SeqCst;
            let _ = member.pid.compare_exchange(own, 0, order, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_are_found_by_turns() {
        let ours = Group::create().unwrap();
        let theirs = Group::open(ours.file().try_clone_to_owned().unwrap()).unwrap();
        // As if other processes had taken them.
        for (at, pid) in [(0, 101), (1, 102), (2, 103)] {
            ours.members()[at].pid.store(pid, Ordering::Relaxed);
        }
        assert_eq!(theirs.waiting(std::process::id()).next(), None);
        let place = |at: usize| std::mem::ManuallyDrop::new(Place { group: ours.clone(), at });
        place(0).set(1);
        place(2).set(2);
        let found: Vec<u32> =
            (0..4).filter_map(|_| theirs.waiting(std::process::id()).next()).collect();
        assert!(found == [101, 103, 101, 103] || found == [103, 101, 103, 101], "{found:?}");
        assert_eq!(theirs.waiting(std::process::id()).count(), 2);
        place(0).set(0);
        assert_eq!(Vec::from_iter(theirs.waiting(std::process::id())), [103]);
        theirs.remove(103);
        assert_eq!(theirs.waiting(std::process::id()).next(), None);
        assert!(!theirs.is_empty());
    }

    #[test]
    fn a_place_is_left_when_its_listener_closes() {
        let group = Group::create().unwrap();
        let places: Vec<_> = std::iter::from_fn(|| group.join()).collect();
        assert_eq!(places.len(), MOST);
        places[3].set(1);
        // A process does not connect to itself over a link.
        assert_eq!(group.waiting(std::process::id()).next(), None);
        drop(places);
        assert!(group.is_empty());
        assert!(group.join().is_some());
    }

    #[test]
    fn other_memory_is_refused() {
        // SAFETY: a C string.
        let file = unsafe { libc::memfd_create(c"other".as_ptr(), libc::MFD_ALLOW_SEALING) };
        let file = sys::owned(file).unwrap();
        assert!(Group::open(file).is_err());
    }
}
