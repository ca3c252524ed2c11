//! Busy polling for unchanged programs: run, attach, detach.

mod apart;
pub mod attach;
pub mod guard;
pub mod launch;
mod names;
pub mod ss;
