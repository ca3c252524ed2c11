//! NAPI: what drives a receive queue. A [`Context`] owns one queue of a NIC; its ownership word says who may
//! drive it now; its interrupt thread drives it when nobody else does; a busy polling thread drives it
//! from its own receive call.
//!
//! Knows NICs below it and nothing of protocols: frames go up to the [`Upper`] it is given.

use crate::{
    nic::{Interrupt, RxQueue},
    sync::Arc,
};
use std::{io, sync::LazyLock, thread, time::Duration};

mod context;
mod counters;
mod handoff;
mod id;
mod interrupt;
mod pass;
mod table;
pub(crate) mod wait;
mod word;

pub use context::{BUSY_POLL_BUDGET, BusyPoll, Context, NAPI_POLL_WEIGHT};
pub use counters::{Counter, Stats};
pub use id::{MIN_NAPI_ID, NapiId};
pub use pass::{Direct, Driver, Pass, Poller, Upper};
pub use wait::{Waiter, Wake, WakeList};
pub(crate) use word::Word;

use table::Table;

/// How long a queue that pollers have left is left alone before the interrupt thread takes it.
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
    thread: Option<thread::JoinHandle<()>>,
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
        let mut serving = Serving { context: context.clone(), thread: None };
        let thread = thread::Builder::new()
            .name(format!("napi/{}", context.id()))
            .spawn(move || interrupt::serve(&context))?;
        serving.thread = Some(thread);
        Ok(serving)
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The interrupt thread, for its placement.
    pub fn thread(&self) -> Option<&thread::JoinHandle<()>> {
        self.thread.as_ref()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        CONTEXTS.remove(self.context.id().get());
        self.context.disable();
        self.context.line.stop();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked with anything to tell us; closing goes on.
            let _ = thread.join();
        }
    }
}
