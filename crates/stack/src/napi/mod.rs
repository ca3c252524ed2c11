//! NAPI: how a receive queue is polled. A [`Context`] has one queue of a NIC. Its ownership word says which thread may
//! poll the queue now. The interrupt thread polls it when no other thread does; a busy polling thread polls it from its
//! own receive call.
//!
//! Knows NICs below it and nothing of protocols: frames go up to the [`Upper`] it is given.

use crate::{
    sync::{Arc, Mutex, MutexGuard, lock},
    sys,
    thread::{Thread, serve},
};
use std::{
    io,
    sync::{LazyLock, Weak},
    time::Duration,
};

mod asleep;
mod context;
mod counters;
mod handoff;
mod id;
mod interrupt;
mod leader_epoll;
mod pass;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod wait;
mod watchdog;
mod word;

pub use asleep::sleep_for;
pub use context::{BUSY_POLL_BUDGET, BusyPoll, Context, NAPI_POLL_WEIGHT, Parts};
pub(crate) use counters::Counters;
pub use counters::{Counter, PlacedCounters, Stats};
pub use id::{MIN_NAPI_ID, NapiId};
pub use leader_epoll::KeptFd;
pub use pass::{DirectBuffer, Pass, PolledBy, Poller, Upper};
pub(crate) use wait::WakeOnEvent;
pub use wait::{KernelFds, Waiter, Wake, WakeList};
pub(crate) use word::Word;

use table::Table;
use watchdog::Watchdog;

/// How long after its last poll a queue stays with its pollers, at the least, before the interrupt thread takes
/// it; at the most it is four times as long. While no thread sleeps that a packet could wake, it is four times as long,
/// and after a time of nothing but polling up to 32 times.
pub const WATCHDOG: Duration = Duration::from_micros(200);

/// The contexts of a process over one kind of upper floor, by id, and the thread of their watchdog.
pub struct Contexts<U: Upper> {
    table: LazyLock<Table<Context<U>>>,
    watchdog_thread: Mutex<Weak<WatchdogThread<U>>>,
}

/// A context in service: enabled, in the table, its interrupt thread running. Dropping it closes the
/// context: it has no owner after that, no lookup finds it, and its thread has ended.
pub struct Serving<U: Upper> {
    contexts: &'static Contexts<U>,
    context: Arc<Context<U>>,
    thread: Option<Thread>,
    watchdog_thread: Arc<WatchdogThread<U>>,
}

/// The watchdog's thread, which lives while a context is in service.
struct WatchdogThread<U: Upper> {
    watchdog: Arc<Watchdog<U>>,
    thread: Option<Thread>,
}

/// Held during fork(2): no thread starts or ends the process's watchdog meanwhile. The child must
/// [forget](WatchdogLock::forget) it.
pub(crate) struct WatchdogLock<U: Upper>(MutexGuard<'static, Weak<WatchdogThread<U>>>);

impl<U: Upper> WatchdogLock<U> {
    /// In the child: this process has no watchdog.
    pub(crate) fn forget(mut self) {
        // Not dropped: that could drop the last reference and join the parent's thread.
        std::mem::forget(std::mem::take(&mut *self.0));
    }
}

impl<U: Upper> Contexts<U> {
    /// No contexts.
    #[expect(clippy::new_without_default, reason = "it is the value of a static")]
    pub const fn new() -> Contexts<U> {
        Contexts {
            table: LazyLock::new(|| Table::new(table::CAPACITY, MIN_NAPI_ID)),
            watchdog_thread: Mutex::new(Weak::new()),
        }
    }

    /// The context named `id`, unless it is closed. Lock-free; what Linux calls `napi_by_id`.
    #[inline]
    pub fn by_id(&self, id: NapiId) -> Option<Arc<Context<U>>> {
        self.table.get(id.get())
    }

    pub(crate) fn hold_watchdog(&'static self) -> WatchdogLock<U> {
        WatchdogLock(lock(&self.watchdog_thread))
    }

    /// The process's watchdog thread, started if there is none.
    fn watchdog_thread(&self) -> io::Result<Arc<WatchdogThread<U>>> {
        let mut current = lock(&self.watchdog_thread);
        if let Some(watchdog_thread) = current.upgrade() {
            return Ok(watchdog_thread);
        }
        let watchdog = Arc::new(Watchdog::new()?);
        let run = {
            let watchdog = watchdog.clone();
            move || {
                // The starting thread may be pinned to a CPU; the watchdog serves the whole process.
                sys::unpin_this_thread();
                watchdog.run();
            }
        };
        let thread = serve("napi/watchdog", run)?;
        let watchdog_thread = Arc::new(WatchdogThread { watchdog, thread: Some(thread) });
        *current = Arc::downgrade(&watchdog_thread);
        Ok(watchdog_thread)
    }

    /// Puts a queue into service.
    ///
    /// # Errors
    /// No descriptor or thread left, or 1,024 contexts exist already.
    pub fn start(&'static self, parts: Parts<U>) -> io::Result<Serving<U>> {
        let watchdog_thread = self.watchdog_thread()?;
        let mut failed = None;
        let context = self.table.insert_with(|id| {
            Context::new(NapiId::new(id)?, parts)
                .map(Arc::new)
                .map_err(|error| failed = Some(error))
                .ok()
        });
        let Some(context) = context else {
            return Err(failed.unwrap_or_else(|| {
                io::Error::new(
                    io::ErrorKind::QuotaExceeded,
                    format!(
                        "{} NAPI contexts are in service, the most there can be",
                        table::CAPACITY
                    ),
                )
            }));
        };
        context.enable();
        let watchdog = watchdog_thread.watchdog.clone();
        let mut serving =
            Serving { contexts: self, context: context.clone(), thread: None, watchdog_thread };
        let name = format!("napi/{}", context.id());
        let thread = serve(name, move || interrupt::serve(&context, &watchdog))?;
        serving.thread = Some(thread);
        Ok(serving)
    }
}

impl<U: Upper> Drop for WatchdogThread<U> {
    fn drop(&mut self) {
        self.watchdog.stop();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl<U: Upper> std::fmt::Debug for Serving<U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.context.fmt(f)
    }
}

impl<U: Upper> Serving<U> {
    /// The context.
    pub fn context(&self) -> &Arc<Context<U>> {
        &self.context
    }

    /// The interrupt thread, for its placement.
    pub fn thread(&self) -> Option<&Thread> {
        self.thread.as_ref()
    }
}

impl<U: Upper> Drop for Serving<U> {
    fn drop(&mut self) {
        self.contexts.table.remove(self.context.id().get());
        self.context.disable();
        self.context.line.stop();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
        self.watchdog_thread.watchdog.forget(&self.context);
    }
}
