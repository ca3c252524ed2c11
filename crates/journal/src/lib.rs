//! A durable journal of the old values on a system, written before they are changed.
//!
//! Handles the files in the state directory ([`state_dir`]); the caller defines the entries. This order
//! makes a change safe against `kill -9` at any time:
//!
//! 1. [`Journal::open`]: one holder at a time; a second one gets an error with the first one's PID;
//! 2. [`Journal::append`] the current value: when it returns, the entry is on the disk;
//! 3. change the system;
//! 4. restore everything from [`Journal::entries`], newest first, then [`Journal::finish`].
//!
//! After a crash there is an entry for every change that may have been made. Restoring must
//! be idempotent: after a crash in step 4 it starts again.
//!
//! ```
//! use busypoll_journal::{Journal, Kind};
//! # let dir = std::env::temp_dir().join(format!("busypoll-journal-doc-{}", std::process::id()));
//! const KIND: Kind = Kind { name: "example", version: 1 };
//! let mut journal = Journal::<(String, u32)>::open(&dir, KIND)?;
//! journal.append(&[("rx-usecs".into(), 3)])?;
//! // … change rx-usecs, and later:
//! for (setting, old) in journal.entries().iter().rev() {
//!     println!("{setting} back to {old}");
//! }
//! journal.finish()?;
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok::<(), busypoll_journal::Error>(())
//! ```

mod dir;
mod error;
mod file;
mod format;
mod lock;

pub use dir::{find_state_dir, state_dir};
pub use error::{Error, Result};
pub use file::{Journal, Kind, read};
pub use lock::Lock;
