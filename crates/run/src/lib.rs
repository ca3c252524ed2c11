//! Busy polling for unchanged programs: run, attach, detach.

pub mod attach;
mod daemonize;
pub mod guard;
pub mod launch;
mod names;
pub mod ss;
mod watch;
