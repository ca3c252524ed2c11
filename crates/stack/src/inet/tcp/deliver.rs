//! Where IP hands over: segments whose checksum is right, and ICMP errors about segments of ours. Both
//! families come the same way.

use super::super::{Inet, SocketError, input::Arrival};
use crate::{napi::Pass, wire::tcp};
use std::net::{IpAddr, SocketAddr};

/// Who a segment is for and from.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Ends {
    /// Ours, or where a segment of ours came from.
    pub(in super::super) local: IpAddr,
    pub(in super::super) remote: IpAddr,
}

impl Inet {
    /// A segment has come: its checksum is right, and it came for one address of ours from one of somebody's.
    /// `congested`: its packet carries ECN CE. No lock is held.
    #[inline]
    pub(in super::super) fn tcp_deliver(
        &self,
        _arrival: &Arrival<'_>,
        _ends: Ends,
        _segment: &tcp::Packet<&[u8]>,
        _congested: bool,
        _pass: &mut Pass,
    ) {
    }

    /// Whether a connection may have sent the segment that an ICMP error quotes: there is one between these
    /// ends, and the sequence number is one of those in flight (RFC 5927 section 4.1). `quoted` are the first 8
    /// bytes of its header.
    pub(in super::super) fn tcp_has_sent(
        &self,
        _local: SocketAddr,
        _remote: SocketAddr,
        _quoted: &[u8; 8],
    ) -> bool {
        false
    }

    /// What became of a segment for which [`tcp_has_sent`](Inet::tcp_has_sent) is true, or that we have given
    /// up ourselves as its next hop does not answer. With EMSGSIZE, `error.mtu` is what the path takes.
    pub(in super::super) fn tcp_error(
        &self,
        _local: SocketAddr,
        _remote: SocketAddr,
        _quoted: &[u8; 8],
        _error: SocketError,
        _pass: &mut Pass,
    ) {
    }
}
