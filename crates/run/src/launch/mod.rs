//! `busypoll run`: a program and its children, started so that their sockets busy poll.
//!
//! | module | owns |
//! |---|---|
//! | [`cli`] | the words of the command and the errors of its user |
//! | `program` | what kind of program it is: found, executable, dynamic, static, privileged |
//! | `library` | where the preload library is |
//! | `device` | which interface the stack plane has |
//! | `able` | what this kernel and this user allow |
//! | `shared` | the memory in which the processes of a user's runs count their spinners |
//! | `start` | the environment, and the exec |
//! | `given` | what Rust's start-up changes of what a program inherits |
//! | `supervise` | a process beside programs that no library sees |
//!
//! On the kernel plane this process **becomes** the program: signals, job control and the exit
//! status need no passing on.

mod able;
pub mod cli;
mod device;
mod error;
mod given;
mod library;
mod program;
mod shared;
mod start;
mod supervise;

pub use error::{LaunchError, NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE};
pub use start::{execute, execute_child};
