//! Tests of whole contexts.

mod kernel_fds;
mod preferred;
mod watchdog_backoff;
