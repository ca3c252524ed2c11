//! Orphans: connections that the program has closed and that still have data, or their end, to deliver. The kernel
//! delivers it when the process ends.

use super::hand_over::{Target, hand_flow_over, repair_in_use};
use crate::{Host, inet::tcp::Flow, sys};
use std::{io, net::SocketAddr, os::fd::AsFd, time::Instant};

impl Host {
    /// Hands orphans over to the kernel, until then; those whose other process does not answer at once only if it
    /// `waits`. Those of which it cannot be done stay.
    #[doc(hidden)]
    pub fn hand_over_orphans(&self, until: Instant, waits: bool) {
        for orphan in self.inet().tcp_orphans() {
            let now = Instant::now();
            if now < until || orphan.link() == 0 {
                let _ = self.hand_over_orphan(&orphan, if waits { until } else { now });
            }
        }
    }

    fn hand_over_orphan(&self, orphan: &Flow, until: Instant) -> io::Result<()> {
        let domain = match orphan.local() {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        };
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: a plain call.
        let kernel = sys::owned(unsafe { libc::socket(domain, kind, 0) })?;
        let target = Target {
            kernel: kernel.as_fd(),
            reuse_address: true,
            reuse_port: false,
            is_used: false,
            repair: repair_in_use(),
            until: Some(until),
        };
        // The kernel delivers the rest once the socket is closed.
        hand_flow_over(orphan, self, &target, libc::ECONNABORTED, || ())
    }
}
