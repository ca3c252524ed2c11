//! The last notification that a worker has received, in memory that outlives the worker. The kernel delivers a
//! notification once. If the worker is killed before it answers, the caller would wait for ever, as the keeper process
//! holds the listener.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use libc::seccomp_notif;

use super::serve::{continue_call, ioctl};

/// The kernel writes here directly, so that no notification is lost between receiving and storing it. All zero: none.
pub(super) struct Outstanding(NonNull<seccomp_notif>);

impl Outstanding {
    /// Maps it for the rest of this process's life, shared with its children.
    pub fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let len = size_of::<seccomp_notif>();
        // SAFETY: new memory, all zeros.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
        let call = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        call.map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// Receives the next call, unless it has been interrupted. The one before must be answered.
    pub fn receive(&self, notifications: &OwnedFd) -> Option<seccomp_notif> {
        let call = self.0.as_ptr();
        // SAFETY: mapped for ever; the keeper's other children have ended. The kernel requires zeroes.
        unsafe { call.write(mem::zeroed()) };
        let received = ioctl(notifications, libc::SECCOMP_IOCTL_NOTIF_RECV, call) >= 0;
        // SAFETY: as above; the kernel has filled it.
        received.then(|| unsafe { call.read() })
    }

    /// Lets the call continue that the previous worker has left without an answer, if any.
    pub fn resume(&self, notifications: &OwnedFd) {
        // SAFETY: mapped for ever, and valid whatever it holds.
        continue_call(notifications, unsafe { (*self.0.as_ptr()).id });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::super::filter;
    use super::*;

    #[test]
    fn a_call_left_by_a_killed_worker_continues() {
        let (say, hear) = mpsc::channel();
        let (done, wait) = mpsc::channel();
        thread::spawn(move || {
            let (notifications, _) = filter::install().unwrap();
            say.send(notifications).unwrap();
            // SAFETY: a plain call, which fails.
            let result = unsafe { libc::listen(-1, 0) };
            done.send((result, io::Error::last_os_error().raw_os_error())).unwrap();
        });
        let notifications = hear.recv().unwrap();
        let outstanding = Outstanding::new().unwrap();
        outstanding.resume(&notifications);
        outstanding.receive(&notifications).unwrap();
        outstanding.resume(&notifications);
        let answer = wait.recv_timeout(Duration::from_secs(20)).expect("the call never returned");
        assert_eq!(answer, (-1, Some(libc::EBADF)));
    }
}
