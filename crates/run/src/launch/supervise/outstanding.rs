//! The call that a worker was told of last, in memory that outlives it. The kernel tells of a call once; if the worker
//! is killed before it answers, who called would wait for ever, as the keeper holds the listener.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use libc::seccomp_notif;

use super::serve::{go_on, ioctl};

/// Where the kernel writes, so that no call is lost between being told and being noted. All zero: none.
pub(super) struct Outstanding(NonNull<seccomp_notif>);

impl Outstanding {
    /// For the rest of this process's life, and shared with its children.
    pub fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let len = size_of::<seccomp_notif>();
        // SAFETY: new memory, all zeros.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
        let call = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        call.map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// The next call, if nobody has ended it meanwhile. The one before is answered.
    pub fn told(&self, notifications: &OwnedFd) -> Option<seccomp_notif> {
        let call = self.0.as_ptr();
        // SAFETY: mapped for ever; the keeper's other children have ended. Zeroes are what the kernel wants to find.
        unsafe { call.write(mem::zeroed()) };
        let told = ioctl(notifications, libc::SECCOMP_IOCTL_NOTIF_RECV, call) >= 0;
        // SAFETY: as above; the kernel has filled it.
        told.then(|| unsafe { call.read() })
    }

    /// Lets it go on, if the worker before has left it without an answer.
    pub fn let_go(&self, notifications: &OwnedFd) {
        // SAFETY: mapped for ever, and valid whatever it holds.
        go_on(notifications, unsafe { (*self.0.as_ptr()).id });
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
    fn what_a_killed_worker_has_left_goes_on() {
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
        outstanding.let_go(&notifications);
        outstanding.told(&notifications).unwrap();
        outstanding.let_go(&notifications);
        let answer = wait.recv_timeout(Duration::from_secs(20)).expect("it waits for ever");
        assert_eq!(answer, (-1, Some(libc::EBADF)));
    }
}
