//! Both ends of a connection over a link become the kernel's: the end of one process at the request of the other.

use super::{
    HAND_OVER_PATIENCE, Host, OtherEnd, PATIENCE, Peers, Reached, Received, Rest, Shared,
    canonical, in_pass, is_own,
    requests::{Answer, HAND_OVER, PING, TAKE_BACK, ask},
};
use crate::{inet::tcp::TakesLinks, sync::lock};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    thread::sleep,
    time::{Duration, Instant},
};

/// A process that does not answer for so long is stopped, or short of CPU time. Meanwhile the connection is locked.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);

impl Peers {
    /// The kernel has the local end of a connection over `link`: has the other process give it the other end.
    ///
    /// # Errors
    /// `TimedOut` if the other process does not do so; `NotConnected` if it has ended; those of reaching it.
    pub(crate) fn hand_over_both(
        &self,
        link: u32,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> io::Result<OtherEnd> {
        let ends = (canonical(local), canonical(remote));
        let shared = &*self.shared;
        if lock(&shared.handing_over).contains(&ends) {
            // At the request of the other process, whose end the kernel has already.
            return Ok(OtherEnd::Kernels);
        }
        let peer = shared.peer_of(link).ok_or(io::ErrorKind::NotConnected)?;
        lock(&shared.handing_over).push(ends);
        let until = Instant::now() + HAND_OVER_PATIENCE;
        let asked = loop {
            match ask(&peer, HAND_OVER, (ends.1, ends.0), ANSWER_PATIENCE) {
                Ok(Answer::Done) => break Ok(OtherEnd::Kernels),
                Ok(Answer::NotAccepted(received)) => break Ok(OtherEnd::NotAccepted(received)),
                Ok(Answer::Closed(rest)) => break Ok(OtherEnd::Closed(rest)),
                Ok(Answer::NotNow) if Instant::now() < until => sleep(Duration::from_millis(1)),
                Ok(Answer::NotNow) => break Err(io::ErrorKind::TimedOut.into()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    break Err(io::ErrorKind::NotConnected.into());
                }
                Err(error) if is_late(&error) => break Err(io::ErrorKind::TimedOut.into()),
                Err(error) => break Err(error),
            }
        };
        lock(&shared.handing_over).retain(|known| *known != ends);
        self.take_no_more(local.port());
        asked
    }

    /// Waits, but not past `until`, for the process at the other end of `link` to answer: it may be stopped.
    ///
    /// # Errors
    /// `TimedOut`; `NotConnected` if it has ended.
    pub(crate) fn wait_for_answer(&self, link: u32, until: Option<Instant>) -> io::Result<()> {
        const LOOK: Duration = Duration::from_secs(10);
        const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        loop {
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let peer = self.shared.peer_of(link).ok_or(io::ErrorKind::NotConnected)?;
            match ask(&peer, PING, (ANY, ANY), left.min(LOOK)) {
                Ok(_) => return Ok(()),
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Other processes use connections that this one accepts at `port`: the next ones are the kernel's, which costs no
    /// hand-over.
    fn take_no_more(&self, port: u16) {
        let published = lock(&self.shared.published);
        let at_port = published.iter().filter(|known| known.address.port() == port);
        at_port.flat_map(|known| &known.listeners).for_each(|listener| {
            listener.never();
        });
    }

    /// Before a fork, and before a program is `executed`: connections that this process has not accepted become the
    /// kernel's. Before a fork only those of listeners from which it never has accepted, for a child may do so; they
    /// take no others until it does.
    pub(super) fn give_back(&self, executed: bool) {
        let shared = &*self.shared;
        let is_to_own = |known: &Reached| match known {
            Reached::Over(link) => shared.peer_of(link.0).is_some_and(|it| is_own(it.process)),
            Reached::OneOf(_) => false,
        };
        lock(&shared.reached).retain(|(_, known)| !is_to_own(known));
        let published = lock(&shared.published);
        let all = published.iter().flat_map(|known| &known.listeners);
        let listeners: Vec<_> = all.filter(|it| it.pause(executed)).cloned().collect();
        drop(published);
        shared.give_back(&listeners);
    }
}

impl Shared {
    pub(super) fn hand_over(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let ends = (local, remote);
        if lock(&self.handing_over).contains(&ends) {
            // Both processes hand it over at the same time.
            return true;
        }
        lock(&self.handing_over).push(ends);
        let done = (self.hand_over)(local, remote);
        lock(&self.handing_over).retain(|known| *known != ends);
        done
    }

    /// The connections that wait at these listeners, which take no others, become the kernel's.
    pub(super) fn give_back(&self, listeners: &[TakesLinks]) {
        let until = Instant::now() + HAND_OVER_PATIENCE;
        for listener in listeners {
            let handshakes_until = Instant::now() + PATIENCE;
            loop {
                match listener.queued() {
                    Some(queued) if queued.is_empty() => break,
                    None if Instant::now() > handshakes_until => break,
                    None => {}
                    Some(queued) => queued.into_iter().for_each(|(link, local, remote)| {
                        let left = until.saturating_duration_since(Instant::now());
                        let peer = self.peer_of(link).filter(|_| !left.is_zero());
                        let is_asked = peer.is_some_and(|peer| {
                            // Not by way of the thread, which is asked for this end then.
                            if is_own(peer.process) {
                                (self.hand_over)(remote, local);
                                return true;
                            }
                            ask(&peer, TAKE_BACK, (remote, local), left).is_ok()
                        });
                        if !is_asked && let Some(inner) = self.host.upgrade() {
                            // Otherwise its client would wait for ever.
                            let host = Host { inner };
                            let flow = listener.take(host.inet(), local, remote);
                            in_pass(|pass| flow.iter().for_each(|flow| flow.abort(pass)));
                        }
                    }),
                }
                sleep(Duration::from_millis(1));
            }
        }
    }

    /// If a listener has this connection and has not accepted it: ends it without a word. Returns what it has received.
    pub(super) fn end_not_accepted(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<Received> {
        let host = Host { inner: self.host.upgrade()? };
        let published = lock(&self.published);
        let mut all = published.iter().flat_map(|known| &known.listeners);
        let flow = all.find_map(|listener| listener.take(host.inet(), local, remote))?;
        drop(published);
        let (next, data) = in_pass(|pass| flow.end_not_accepted(pass)).ok()?;
        Some(Received { next, data })
    }

    /// If this process's program has closed this connection: ends it without a word. Returns what was still to be sent.
    pub(super) fn end_closed(&self, local: SocketAddr, remote: SocketAddr) -> Option<Rest> {
        let host = Host { inner: self.host.upgrade()? };
        let (first, data) = in_pass(|pass| host.inet().tcp_end_closed((local, remote), pass))?;
        Some(Rest { first, data })
    }
}

/// Whether a process has not answered in time.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
