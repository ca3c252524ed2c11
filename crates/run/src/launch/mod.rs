//! `busypoll run`: a program and its children, started so that their sockets busy poll.
//!
//! | module | owns |
//! |---|---|
//! | [`cli`] | the command's options and the errors of its user |
//! | `program` | what kind of program it is: found, executable, dynamic, static, privileged |
//! | `library` | where the preload library is |
//! | `device` | the interface of the stack plane |
//! | `capabilities` | what this kernel and this user allow |
//! | `containers` | the directory by which other network namespaces are reached |
//! | `shared` | the memory in which the processes of a user's runs count their spinners |
//! | `start` | the environment, and the exec |
//! | `inherited_settings` | inherited settings that Rust's start-up changes |
//! | `supervise` | the supervisor of programs that cannot be preloaded |
//!
//! On the kernel plane this process **becomes** the program by exec, so signals, job control and
//! the exit status need no forwarding.

mod capabilities;
mod capture;
pub mod cli;
mod containers;
mod device;
mod error;
mod inherited_settings;
mod library;
mod program;
mod shared;
mod start;
mod supervise;

pub use error::{LaunchError, NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE};
pub use shared::VERSION as SPINNERS_VERSION;
pub use start::{execute, execute_child};
