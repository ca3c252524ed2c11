//! Tests of whole contexts.

mod preferred;
mod watchdog_backoff;
