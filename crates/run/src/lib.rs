//! Busy polling for programs nobody changes: run, attach, detach.

pub mod attach;
pub mod launch;
