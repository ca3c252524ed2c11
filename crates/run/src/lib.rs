//! Busy polling for programs nobody changes: run, attach, detach.

mod apart;
pub mod attach;
pub mod guard;
pub mod launch;
mod names;
pub mod ss;
