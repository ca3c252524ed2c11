//! Which programs and sockets busy poll, and how: the policy file, and its compact form in the
//! environment of a program that runs under it.
//!
//! Touches only the file it is asked to read. The code from [`Launch::from_env`] to
//! [`Policy::for_socket`] runs inside other programs: it never panics, and
//! `for_socket` neither allocates nor locks.
//!
//! ```
//! use busypoll_policy::{Names, Policy, Protocol, Receive};
//!
//! let policy = Policy::parse(
//!     r#"
//!     busy_poll = "50us"
//!
//!     [[rule]]
//!     program = "redis-server"
//!     local_port = 6379
//!     receive = "aggressive"
//!     "#,
//! )?;
//! let local = "10.0.0.1:6379".parse().ok();
//! let program = Names::of("/usr/bin/redis-server");
//! let settings = policy.for_socket(&program, Protocol::Tcp, local, None);
//! assert_eq!((settings.busy_poll, settings.receive), (50, Receive::Aggressive));
//! # Ok::<(), busypoll_policy::Mistake>(())
//! ```

mod build;
pub mod cli;
mod date;
mod explain;
mod file;
#[cfg(feature = "tables")]
pub mod fit;
mod launch;
mod matcher;
mod names;
mod rules;
mod say;
mod settings;
pub mod small;
pub mod terminal;
pub mod text;
pub mod units;

pub use build::{BUILD, NOTE_OWNER, VERSION};
pub use date::utc;
pub use file::{FileError, Mistake};
pub use launch::{Launch, Profile, mark};
pub use matcher::{Match, Network, Ports, Protocol};
pub use names::Names;
pub use rules::{Policy, Rule};
pub use say::say;
pub use settings::{Change, Plane, Receive, Settings};
