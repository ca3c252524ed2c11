//! ICMP errors about segments of ours. Any host can send one: it is accepted only if it quotes a sequence number that
//! is in flight (RFC 5927 section 4.1).

use super::{seq::Seq, table::Entry, tuple::Tuple};
use crate::inet::{Count, Inet, Pass, SocketError};
use std::net::SocketAddr;

/// The sequence number in the first 8 bytes of a header.
fn quoted_seq(quoted: &[u8; 8]) -> Seq {
    let [_, _, _, _, seq @ ..] = *quoted;
    Seq(u32::from_be_bytes(seq))
}

impl Inet {
    /// Whether a connection may have sent the segment that an ICMP error quotes: the connection exists, and the
    /// sequence number is in flight. `quoted` are the first 8 bytes of the header.
    pub(in crate::inet) fn tcp_has_sent(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        quoted: &[u8; 8],
    ) -> bool {
        let seq = quoted_seq(quoted);
        let sent = self.tcp.table.find(&Tuple::new(local, remote), |entry| match entry {
            Entry::Flow(core) => core.lock().connection.is_in_flight(seq),
            Entry::SynQueue(handshake) => handshake.has_sent(seq),
            Entry::TimeWait(_) => false,
        });
        if sent == Some(false) {
            self.tcp_count(Count::TcpExtOutOfWindowIcmps);
        }
        sent.unwrap_or(false)
    }

    /// An error about a segment for which [`tcp_has_sent`](Inet::tcp_has_sent) is true, or which we gave up because
    /// its next hop does not answer. With EMSGSIZE, `error.mtu` is the MTU of the path.
    pub(in crate::inet) fn tcp_error(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        quoted: &[u8; 8],
        error: SocketError,
        pass: &mut Pass<'_>,
    ) {
        let seq = quoted_seq(quoted);
        let unreachable = matches!(error.errno, libc::EHOSTUNREACH | libc::ENETUNREACH);
        self.tcp.table.find(&Tuple::new(local, remote), |entry| match entry {
            Entry::Flow(core) => {
                let mut state = core.enter(pass);
                if error.errno == libc::EMSGSIZE {
                    // The MTU of the path is recorded already; segments in flight that are too large are sent again
                    // in smaller pieces.
                    state.renew_path(&core.tuple, self, pass.now);
                } else {
                    state.connection.unreachable(error, seq);
                }
                core.finish(state, self, pass);
            }
            Entry::SynQueue(handshake) if unreachable && handshake.has_sent(seq) => {
                handshake.unreachable(self);
            }
            Entry::SynQueue(_) | Entry::TimeWait(_) => {}
        });
        self.deliver_local(pass);
    }
}
