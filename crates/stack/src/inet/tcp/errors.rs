//! ICMP errors about segments of ours. Anybody can send one: it is believed only if it quotes a sequence number
//! that is in flight (RFC 5927 section 4.1).

use super::{seq::Seq, table::Entry, tuple::Tuple};
use crate::{
    inet::{Count, Inet, SocketError},
    napi::Pass,
};
use std::net::SocketAddr;

/// The sequence number in the first 8 bytes of a header.
fn quoted_seq(quoted: &[u8; 8]) -> Seq {
    let [_, _, _, _, seq @ ..] = *quoted;
    Seq(u32::from_be_bytes(seq))
}

impl Inet {
    /// Whether a connection may have sent the segment that an ICMP error quotes: there is one between these
    /// ends, and the sequence number is one of those in flight. `quoted` are the first 8 bytes of its header.
    pub(in crate::inet) fn tcp_has_sent(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        quoted: &[u8; 8],
    ) -> bool {
        let seq = quoted_seq(quoted);
        let sent = self.tcp.table.find(&Tuple::new(local, remote), |entry| match entry {
            Entry::Flow(core) => core.lock().connection.is_in_flight(seq),
            Entry::Pending(pending) => pending.has_sent(seq),
            Entry::Resting(_) => false,
        });
        if sent == Some(false) {
            self.tcp_count(Count::TcpExtOutOfWindowIcmps);
        }
        sent.unwrap_or(false)
    }

    /// What became of a segment for which [`tcp_has_sent`](Inet::tcp_has_sent) is true, or that we have given
    /// up ourselves as its next hop does not answer. With EMSGSIZE, `error.mtu` is what the path takes.
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
                    // Paths know already; what is in flight and too big goes again in smaller pieces.
                    state.renew_path(&core.tuple, self, pass.now);
                } else {
                    state.connection.unreachable(error, seq);
                }
                core.finish(state, self, pass);
            }
            Entry::Pending(pending) if unreachable && pending.has_sent(seq) => {
                pending.unreachable(self);
            }
            Entry::Pending(_) | Entry::Resting(_) => {}
        });
        self.deliver_local(pass);
    }
}
