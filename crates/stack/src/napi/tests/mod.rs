//! Tests of whole contexts.

mod kernel_fds;
mod leader_epoll;
mod preferred;
mod watchdog_backoff;
