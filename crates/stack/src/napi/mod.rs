//! NAPI: what drives a receive queue. A [`Context`] owns one queue of a NIC; its ownership word says who may
//! drive it now; its interrupt thread drives it when nobody else does; a busy polling thread drives it
//! from its own receive call.
//!
//! Knows NICs below it and nothing of protocols: frames go up to the [`Upper`] it is given.

use crate::{
    nic::{Interrupt, RxQueue},
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
mod pass;
#[cfg(test)]
mod preferred;
mod table;
pub(crate) mod wait;
mod watchdog;
#[cfg(test)]
mod watchdog_backoff;
mod word;

pub use asleep::sleep_for;
pub use context::{BUSY_POLL_BUDGET, BusyPoll, Context, NAPI_POLL_WEIGHT};
pub use counters::{Counter, Stats};
pub use id::{MIN_NAPI_ID, NapiId};
pub use pass::{Direct, Driver, Pass, Poller, Upper};
pub use wait::{Outside, Waiter, Wake, WakeList};
pub(crate) use word::Word;

use table::Table;
use watchdog::Watchdog;

/// How long a queue that pollers have left is left alone, at the least, before the interrupt thread takes
/// it; at the most it is four times as long. Where no thread sleeps that a packet could wake, it is four times, and
/// after a time of nothing but polling up to 32 times as long.
pub const WATCHDOG: Duration = Duration::from_micros(200);

static CONTEXTS: LazyLock<Table<Context>> =
    LazyLock::new(|| Table::new(table::CAPACITY, MIN_NAPI_ID));

/// The context named `id`, unless it is closed. Lock-free; what Linux calls `napi_by_id`.
#[inline]
pub fn by_id(id: NapiId) -> Option<Arc<Context>> {
    CONTEXTS.get(id.get())
}

/// A context in service: enabled, in the table, its interrupt thread running. Dropping it closes the
/// context: no owner after that, nobody finds it, the thread has ended.
#[derive(Debug)]
pub struct Serving {
    context: Arc<Context>,
    thread: Option<Thread>,
    watchdog_thread: Arc<WatchdogThread>,
}

/// The watchdog's thread, which lives while a context is in service.
#[derive(Debug)]
struct WatchdogThread {
    watchdog: Arc<Watchdog>,
    thread: Option<Thread>,
}

static WATCHDOG_THREAD: Mutex<Weak<WatchdogThread>> = Mutex::new(Weak::new());

/// The watchdog of this process, for a fork: nobody starts or ends one meanwhile. A child is to leave it behind.
pub(crate) struct WatchdogLock(MutexGuard<'static, Weak<WatchdogThread>>);

impl WatchdogLock {
    pub(crate) fn hold() -> WatchdogLock {
        WatchdogLock(lock(&WATCHDOG_THREAD))
    }

    /// There is no watchdog in this process.
    pub(crate) fn forget(mut self) {
        // Not dropped: the last count may be the parent's thread's, which would be joined.
        std::mem::forget(std::mem::take(&mut *self.0));
    }
}

impl WatchdogThread {
    /// The process's one, started if need be.
    fn get() -> io::Result<Arc<WatchdogThread>> {
        let mut current = lock(&WATCHDOG_THREAD);
        if let Some(watchdog_thread) = current.upgrade() {
            return Ok(watchdog_thread);
        }
        let watchdog = Arc::new(Watchdog::new()?);
        let run = {
            let watchdog = watchdog.clone();
            move || {
                // Whoever starts it may be bound to a CPU; it serves the whole process.
                sys::unpin_this_thread();
                watchdog.run();
            }
        };
        let thread = serve("napi/watchdog", run)?;
        let watchdog_thread = Arc::new(WatchdogThread { watchdog, thread: Some(thread) });
        *current = Arc::downgrade(&watchdog_thread);
        Ok(watchdog_thread)
    }
}

impl Drop for WatchdogThread {
    fn drop(&mut self) {
        self.watchdog.stop();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Serving {
    /// Puts a queue into service.
    ///
    /// # Errors
    /// No descriptor or thread left, or 1,024 contexts live already.
    pub fn start(
        device: String,
        queue: u32,
        rx: Box<dyn RxQueue>,
        interrupt: Arc<dyn Interrupt>,
        upper: Arc<dyn Upper>,
        watchdog: Duration,
    ) -> io::Result<Serving> {
        let watchdog_thread = WatchdogThread::get()?;
        let mut failed = None;
        let mut parts = Some((device, queue, rx, interrupt, upper));
        let context = CONTEXTS.insert_with(|id| {
            let id = NapiId::new(id)?;
            let (device, queue, rx, interrupt, upper) = parts.take()?;
            match Context::new(id, device, queue, rx, interrupt, upper, watchdog) {
                Ok(context) => Some(Arc::new(context)),
                Err(error) => {
                    failed = Some(error);
                    None
                }
            }
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
        let mut serving = Serving { context: context.clone(), thread: None, watchdog_thread };
        let name = format!("napi/{}", context.id());
        let thread = serve(name, move || interrupt::serve(&context, &watchdog))?;
        serving.thread = Some(thread);
        Ok(serving)
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The interrupt thread, for its placement.
    pub fn thread(&self) -> Option<&Thread> {
        self.thread.as_ref()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        CONTEXTS.remove(self.context.id().get());
        self.context.disable();
        self.context.line.stop();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
        self.watchdog_thread.watchdog.forget(&self.context);
    }
}
