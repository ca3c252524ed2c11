//! Both ends of a connection over a link become the kernel's: the end of one process at the request of the other.

use super::{
    HAND_OVER_PATIENCE, Host, OtherEnd, PATIENCE, Peers, Reached, Received, Shared, canonical,
    in_pass, is_own,
    local_streams::end_receiving,
    requests::{
        Answer, CLOSED, DONE, HAND_OVER, NOT_ACCEPTED, NOT_NOW, PING, Peer, TAKE_BACK, answer_on,
        ask, request, send_data, wait_for_answer,
    },
};
use crate::{inet::tcp::TakesLinks, sync::lock, sys::has_hung_up, unix::message};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

/// A process that does not answer for so long is stopped, or short of CPU time. Meanwhile the connection is locked.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);

/// A connection that this process is handing over.
pub(super) struct Handing {
    ends: (SocketAddr, SocketAddr),
    /// The request of the other process, if that has asked for it.
    asked: Option<Arc<OwnedFd>>,
    /// The other process has the answer that this end is the kernel's.
    is_answered: bool,
}

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
        let mut handing_over = lock(&shared.handing_over);
        if let Some(known) = handing_over.iter_mut().find(|it| it.ends == ends) {
            // At the request of the other process. If that does not wait any more, neither end goes.
            if let Some(asked) = &known.asked {
                let sent = message::send(asked.as_fd(), &[DONE], &[], 0);
                sent.map_err(|_| io::ErrorKind::TimedOut)?;
                known.is_answered = true;
            }
            return Ok(OtherEnd::Kernels);
        }
        let peer = shared.peer_of(link).ok_or(io::ErrorKind::NotConnected)?;
        handing_over.push(Handing { ends, asked: None, is_answered: false });
        drop(handing_over);
        let until = Instant::now() + HAND_OVER_PATIENCE;
        let asked = loop {
            match ask_for_end(&peer, (ends.1, ends.0)) {
                Ok(Answer::Done) => break Ok(OtherEnd::Kernels),
                Ok(Answer::NotAccepted(received)) => break Ok(OtherEnd::NotAccepted(received)),
                Ok(Answer::Closed(rest)) => break Ok(OtherEnd::Closed(rest)),
                Ok(Answer::NotNow) if Instant::now() < until => sleep(Duration::from_millis(1)),
                // By a signal, before the request was made.
                Err(error)
                    if error.kind() == io::ErrorKind::Interrupted && Instant::now() < until => {}
                Ok(Answer::NotNow) => break Err(io::ErrorKind::TimedOut.into()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    break Err(io::ErrorKind::NotConnected.into());
                }
                Err(error) if is_late(&error) => break Err(io::ErrorKind::TimedOut.into()),
                Err(error) => break Err(error),
            }
        };
        let known = shared.end_handing_over(ends);
        self.take_no_more(local.port());
        match asked {
            // It has asked for this end meanwhile, and goes on.
            Err(_) if known.is_some_and(|known| known.is_answered) => Ok(OtherEnd::Kernels),
            asked => asked,
        }
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
                Err(error) if is_late(&error) || error.kind() == io::ErrorKind::Interrupted => {}
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
    fn end_handing_over(&self, ends: (SocketAddr, SocketAddr)) -> Option<Handing> {
        let mut all = lock(&self.handing_over);
        let at = all.iter().position(|known| known.ends == ends)?;
        Some(all.swap_remove(at))
    }

    /// Answers the request of the other process to hand this end over.
    pub(super) fn answer_hand_over(
        &self,
        (local, remote): (SocketAddr, SocketAddr),
        socket: OwnedFd,
    ) -> io::Result<()> {
        if has_hung_up(socket.as_raw_fd()) {
            // This process was stopped, and the other one does not wait any more.
            return Ok(());
        }
        let (ends, socket) = ((local, remote), Arc::new(socket));
        let answer = |kind| message::send(socket.as_fd(), &[kind], &[], 0);
        let mut handing_over = lock(&self.handing_over);
        if let Some(known) = handing_over.iter_mut().find(|it| it.ends == ends) {
            // Both processes hand it over at the same time.
            known.is_answered |= answer(DONE).is_ok();
            return Ok(());
        }
        handing_over.push(Handing { ends, asked: Some(socket.clone()), is_answered: false });
        drop(handing_over);
        let is_done = (self.hand_over)(local, remote);
        if self.end_handing_over(ends).is_some_and(|known| known.is_answered) {
            return Ok(());
        }
        if !is_done {
            if let Some(Received { next, data }) = self.end_not_accepted(local, remote) {
                return send_data(&socket, NOT_ACCEPTED, next, &data);
            }
            let send_rest = |first, data: &[u8]| send_data(&socket, CLOSED, first, data);
            if let Some(sent) = self.hand_over_closed(ends, send_rest) {
                return sent;
            }
        }
        answer(if is_done { DONE } else { NOT_NOW }).map(drop)
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

    /// If this process's program has closed this connection: sends what is still to be sent, and ends it without a word.
    fn hand_over_closed(
        &self,
        ends: (SocketAddr, SocketAddr),
        send: impl FnOnce(u32, &[u8]) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let host = Host { inner: self.host.upgrade()? };
        in_pass(|pass| host.inet().tcp_hand_over_closed(ends, pass, send))
    }
}

/// Asks a process for its end of a connection, by these ends as it sees them.
fn ask_for_end(peer: &Peer, ends: (SocketAddr, SocketAddr)) -> io::Result<Answer> {
    let socket = request(peer, HAND_OVER, ends, ANSWER_PATIENCE)?;
    wait_for_answer(&socket, ANSWER_PATIENCE).and_then(|()| answer_on(&socket)).or_else(|late| {
        // From now on it cannot answer, and keeps its end. It may have done so just before.
        end_receiving(&socket);
        match answer_on(&socket) {
            Err(_) | Ok(Answer::NotNow) => Err(late),
            answered => answered,
        }
    })
}

/// Whether a process has not answered in time.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
