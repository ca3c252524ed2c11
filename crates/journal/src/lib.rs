//! What was changed on a system, written down durably before it is changed.
//!
//! Owns the files in the state directory ([`state_dir`]) and nothing else; what an entry means is the
//! caller's. The order that makes a change safe against `kill -9` at any instant:
//!
//! 1. [`Journal::open`]: one holder at a time, the second is told the first one's PID;
//! 2. [`Journal::append`] the value that stands: when it returns, the entry is on the disk;
//! 3. change the system;
//! 4. put everything back from [`Journal::entries`], newest first, then [`Journal::finish`].
//!
//! Whoever comes after a crash finds an entry for every change that may have been made. Putting back must
//! be idempotent: a crash in step 4 starts it again.
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
