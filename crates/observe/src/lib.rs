//! What busy polling does on a machine, read and changed by nothing: the one collector of `busypoll exporter` and
//! `busypoll top`. Each module reads one source, with limits, and fails as a whole only if it can read nothing.
//!
//! | module | reads | needs |
//! |---|---|---|
//! | [`machine`] | the kernel's counters in /proc | nothing |
//! | [`napi`] | NAPI instances of this network namespace over netlink | nothing |
//! | [`passes`] | passes over all queues, counted by BPF | CAP_BPF, CAP_PERFMON |
//! | [`runs`] | the ledgers of the stack plane's runs | root for all users' |
//! | [`spinners`] | the tables of CPUs that have a polling thread | the user's own, or CAP_DAC_READ_SEARCH |
//! | [`findings`] | what `busypoll doctor` finds, in a thread of its own | nothing; with more rights it sees more |

pub mod findings;
pub mod machine;
pub mod napi;
pub mod passes;
pub mod runs;
pub mod spinners;

/// What was read, and how much of it was left out or may not be read.
#[derive(Debug)]
pub struct Seen<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// How many more there are.
    pub unseen: u64,
}
