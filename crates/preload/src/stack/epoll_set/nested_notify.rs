//! Notifications from the kernel's halves of inner sets. The stack notifies an outer set of the inner sets' sockets of
//! ours. For what the kernel watches, the outer set has an epoll instance of its own, with the inner kernel instances
//! as edge-triggered members: it reports that there is something new, and the inner set is then asked what.

use super::EpollSet;
use crate::{
    real,
    stack::common::{checked, lock},
};
use busypoll_stack::{Events, Watch, napi::WakeList};
use libc::{c_int, epoll_event};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{Arc, Mutex, OnceLock, Weak},
};

/// The watchers to notify for one inner set.
type Watchers = Vec<Weak<dyn Watch>>;

/// The nested notifications of one set.
#[derive(Default)]
pub struct NestedNotify {
    epoll: OnceLock<OwnedFd>,
    watchers: Mutex<HashMap<u64, Watchers>>,
}

impl std::fmt::Debug for NestedNotify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.epoll.fmt(f)
    }
}

impl NestedNotify {
    /// The descriptor that becomes readable with a notification; `None` if there is none.
    pub fn fd(&self) -> Option<c_int> {
        self.epoll.get().map(AsRawFd::as_raw_fd)
    }

    fn make(&self) -> io::Result<c_int> {
        if let Some(known) = self.fd() {
            return Ok(known);
        }
        // By the hook, which makes it one of the library's own descriptors.
        // SAFETY: a plain system call.
        let epoll = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: just made, and ours.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        Ok(self.epoll.get_or_init(|| epoll).as_raw_fd())
    }

    /// From now on notifies `watch` of events in the kernel's half of `inner`, whose instance is `kernel`, and in those
    /// of its inner sets.
    ///
    /// # Errors
    /// No descriptor or memory left.
    pub fn watch_inner(
        &self,
        inner: &EpollSet,
        kernel: c_int,
        watch: &Arc<dyn Watch>,
    ) -> io::Result<()> {
        let epoll = self.make()?;
        let name = inner.memberships.id() as u64;
        lock(&self.watchers).entry(name).or_default().push(Arc::downgrade(watch));
        for fd in [kernel, inner.nested_notify().make()?] {
            let mut event =
                epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: name };
            // SAFETY: valid for the call.
            let added = unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
            match checked(added) {
                Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Passes pending notifications on.
    pub fn deliver(&self) {
        let Some(epoll) = self.fd() else { return };
        let mut events = [epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: room for 16 events.
        let count = unsafe { real::epoll_wait(epoll, events.as_mut_ptr(), 16, 0) };
        let mut wake = WakeList::default();
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            let name = event.u64;
            let mut watchers = lock(&self.watchers);
            let Some(list) = watchers.get_mut(&name) else { continue };
            list.retain(|watch| watch.strong_count() > 0);
            let watches: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
            drop(watchers);
            for watch in watches {
                watch.notify(Events::READABLE, None, &mut wake);
            }
        }
        wake.wake_all();
    }
}
