//! Passes over NAPI instances, counted by BPF for as long as the value lives, in all network namespaces.

use busypoll_linux::bpf::deliveries::Deliveries;
use busypoll_linux::bpf::napi::{Counter, MAX_QUEUES, Passes};

/// By what passes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By NAPI instance only: for a count that goes on for days.
    Queue,
    /// By NAPI instance and polling thread, and packets by socket.
    Thread,
}

/// Rows of packets by socket, from which on the count begins again: nothing removes those of closed sockets.
const MOST_DELIVERIES: usize = 49_152;

/// The running count, or why there is none.
pub struct PassCount {
    counter: Result<Counter, String>,
    by: By,
}

/// What was counted.
#[derive(Debug)]
pub struct Counted {
    /// Passes by NAPI instance, and by thread where that is counted.
    pub passes: Vec<Passes>,
    /// Packets by socket, where these are counted; or why they are not.
    pub deliveries: Result<Deliveries, String>,
    /// The count begins again: the next one is less.
    pub begins_again: bool,
}

impl PassCount {
    /// Begins to count.
    pub fn start(by: By) -> Self {
        let counter = match by {
            By::Queue => Counter::start_by_queue(),
            By::Thread => Counter::start(),
        };
        PassCount { counter: counter.map_err(|error| error.to_string()), by }
    }

    /// Counts nothing, for this reason.
    pub fn off(why: &str) -> Self {
        PassCount { counter: Err(why.into()), by: By::Queue }
    }

    /// The counts so far.
    ///
    /// # Errors
    /// Why there are none.
    pub fn read(&mut self) -> Result<Counted, String> {
        let counter = self.counter.as_mut().map_err(|why| why.clone())?;
        let passes = counter.read().map_err(|error| error.to_string())?;
        let deliveries = match self.by {
            By::Queue => Ok(Deliveries::default()),
            By::Thread => counter.deliveries().map_err(|error| error.to_string()),
        };
        let rows = deliveries.as_ref().map_or(0, |all| all.rows.len());
        // Instances and sockets that are gone keep their rows: where these fill a table, the count begins again.
        let begins_again = passes.len() > MAX_QUEUES / 4 * 3 || rows > MOST_DELIVERIES;
        if begins_again {
            *self = Self::start(self.by);
        }
        Ok(Counted { passes, deliveries, begins_again })
    }
}
