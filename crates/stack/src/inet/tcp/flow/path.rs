//! The path of a connection's segments: looked up, renewed, and the segment size that fits it.

use super::State;
use crate::{
    inet::{Inet, Path, PathOptions, SendError, tcp::tuple::Tuple},
    time::Instant,
    wire::Protocol,
};
use std::net::SocketAddr;

impl State {
    /// The route has changed, or what is known of the path: looks the path up again.
    #[cold]
    pub(in crate::inet::tcp) fn renew_path(&mut self, tuple: &Tuple, inet: &Inet, now: Instant) {
        let ends = (tuple.local(), tuple.remote());
        // Without a new route the old path, if there is one, is used.
        if let Ok(path) = inet.tcp_path(ends, self.queue, self.path_options, now) {
            match &mut self.path {
                Some(old) => **old = path,
                none => *none = Some(Box::new(path)),
            }
            self.fit_path(now);
        }
    }

    /// Adapts the segment size to the path: smaller, or larger once an ICMP report has expired (Linux's
    /// `tcp_current_mss`).
    pub(in crate::inet::tcp) fn fit_path(&mut self, now: Instant) {
        if let Some(path) = &self.path {
            self.connection.path_mss(mss(path.max_transport_len()), now);
        }
    }

    /// `IP_TTL` and `IP_TOS` have changed.
    pub(in crate::inet::tcp) fn set_path_options(
        &mut self,
        options: PathOptions,
        tuple: &Tuple,
        inet: &Inet,
        now: Instant,
    ) {
        self.path_options = PathOptions { link: self.path_options.link, ..options };
        self.renew_path(tuple, inet, now);
    }
}

/// The largest segment of a path, bytes of data without options.
pub(in crate::inet::tcp) fn mss(most: usize) -> u16 {
    const HEADER: usize = crate::wire::tcp::HEADER_LEN;
    u16::try_from(most.saturating_sub(HEADER)).unwrap_or(u16::MAX)
}

impl Inet {
    /// The path of a connection's segments.
    pub(in crate::inet::tcp) fn tcp_path(
        &self,
        ends: (SocketAddr, SocketAddr),
        queue: u32,
        options: PathOptions,
        now: Instant,
    ) -> Result<Path, SendError> {
        self.path_of(Protocol::TCP, ends, queue, options, now)
    }
}
