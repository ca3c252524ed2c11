//! Hands a connection over to the kernel: what the kernel must know of it, and its end here, without a segment to the
//! peer. See `socket/tcp/hand_over.rs` for the kernel's side.

use super::PortRef;
use super::{
    application::Flow,
    connection::{Connection, State, errno},
    ownership::Failed,
    table::Entry,
    tuple::Tuple,
};
use crate::{
    inet::{Inet, Pass},
    time::Instant,
};
use std::{io, net::SocketAddr, sync::Arc};

/// The state of a connection, for the kernel.
#[derive(Debug)]
pub(crate) struct RepairState {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The number of the first byte that is not acknowledged.
    pub(crate) snd_una: u32,
    /// The data sent from there on, and the data not sent yet.
    pub(crate) sent: Vec<u8>,
    pub(crate) unsent: Vec<u8>,
    /// RCV.NXT, the peer's FIN counted, and the data received and not read. After a FIN the data is placed one number
    /// too low, which only its reader could notice.
    pub(crate) rcv_nxt: u32,
    pub(crate) unread: Vec<u8>,
    /// The largest segment the peer takes.
    pub(crate) mss: u16,
    /// The shifts of the windows, the peer's and ours.
    pub(crate) scale: Option<(u8, u8)>,
    pub(crate) sack: bool,
    /// The present value of our timestamp clock.
    pub(crate) timestamp: Option<u32>,
    pub(crate) snd_wl1: u32,
    pub(crate) snd_wnd: u32,
    pub(crate) snd_wnd_max: u32,
    /// The window we announced last, from RCV.NXT on.
    pub(crate) rcv_wnd: u32,
    /// Receiving, or sending, is shut down.
    pub(crate) read_shut: bool,
    pub(crate) write_shut: bool,
    /// The peer has ended it.
    pub(crate) peer_done: bool,
}

impl Connection {
    /// Its state, for the kernel.
    ///
    /// # Errors
    /// EINVAL in states that the kernel cannot be brought to; ENOMEM.
    fn repair_state(
        &self,
        (local, remote): (SocketAddr, SocketAddr),
        now: Instant,
    ) -> io::Result<RepairState> {
        let synchronised = matches!(
            self.state,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::FinWait2
                | State::Closing
                | State::LastAck
        );
        if !synchronised || self.error.is_some() {
            return Err(errno(libc::EINVAL));
        }
        let (start, end) = (self.buffer.start(), self.buffer.end());
        let sent = if self.snd_nxt.before(end) { self.snd_nxt } else { end };
        let (rcv_nxt, edge) = self.receiver.offered();
        let peer_done = self.peer_done || self.receiver.fin_reached();
        Ok(RepairState {
            local,
            remote,
            snd_una: start.0,
            sent: joined(self.buffer.pieces(start..sent), (sent - start) as usize)?,
            unsent: joined(self.buffer.pieces(sent..end), (end - sent) as usize)?,
            rcv_nxt: rcv_nxt.0,
            unread: joined(self.receiver.unread(), self.receiver.available())?,
            mss: self.peer_mss,
            scale: self.scaled.then_some((self.snd_shift, self.rcv_shift)),
            sack: self.sack,
            timestamp: self.timestamps.then(|| self.timestamp(now)),
            snd_wl1: self.snd_wl1.0,
            snd_wnd: self.snd_wnd,
            snd_wnd_max: self.snd_wnd_max.max(self.snd_wnd),
            rcv_wnd: edge - rcv_nxt,
            read_shut: self.read_shut || peer_done,
            write_shut: self.write_shut,
            peer_done,
        })
    }
}

/// A copy of `len` bytes, which may be too many for the memory there is.
fn joined<'a>(pieces: impl Iterator<Item = &'a [u8]>, len: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| errno(libc::ENOMEM))?;
    pieces.for_each(|piece| all.extend_from_slice(piece));
    Ok(all)
}

impl Flow {
    /// Hands the connection to the kernel by `give`, during which the connection does not change. Then it is over
    /// here, and calls on it return `error`. Returns the reference to its port.
    ///
    /// # Errors
    /// EINVAL in a state that the kernel cannot be brought to; ENOMEM; those of `give`. Then the connection goes on
    /// here, or was reset.
    pub(crate) fn hand_over(
        &self,
        error: i32,
        pass: &mut Pass<'_>,
        give: impl FnOnce(&RepairState) -> Result<(), Failed<io::Error>>,
    ) -> io::Result<Option<PortRef>> {
        let ends = (self.local(), self.remote());
        let mut state = self.core.enter(pass);
        let repair_state = state.connection.repair_state(ends, pass.now);
        match give(&repair_state?) {
            Ok(()) => {}
            Err(Failed::Stays(why)) => return Err(why),
            Err(Failed::Lost(why)) => {
                state.connection.abort(pass.now);
                self.core.finish(state, &self.inet, pass);
                return Err(why);
            }
        }
        let port_ref = state.port_ref.clone();
        state.connection.end_handed_over(error);
        self.core.finish(state, &self.inet, pass);
        Ok(port_ref)
    }

    /// Nothing more is taken to be sent.
    pub(crate) fn hold_sends(&self) {
        self.core.lock().connection.buffer.hold();
    }

    /// Ends a connection that no program has accepted, without a word to the peer. Returns what has been received: the
    /// number after it, and the data.
    ///
    /// # Errors
    /// EINVAL in a state of no such connection; ENOMEM. Then it goes on.
    pub(crate) fn end_not_accepted(&self, pass: &mut Pass<'_>) -> io::Result<(u32, Vec<u8>)> {
        let mut received = (0, Vec::new());
        self.hand_over(libc::ECONNABORTED, pass, |state| {
            received = (state.rcv_nxt, state.unread.clone());
            Ok(())
        })?;
        Ok(received)
    }
}

impl Inet {
    /// The connections that the program has closed and whose peer has not acknowledged all.
    pub(crate) fn tcp_orphans(self: &Arc<Inet>) -> Vec<Flow> {
        let orphan = |entry| match entry {
            // The handle of any other would close it.
            Entry::Flow(core) if core.lock().connection.lingers() => {
                Some(Flow::new(core, self.clone()))
            }
            _ => None,
        };
        self.tcp.table.all().into_iter().filter_map(|(_, entry)| orphan(entry)).collect()
    }

    /// If the program has closed a connection: has `give` give away what is still to be sent, the number of its first byte
    /// and the data, or nothing if there is no such connection any more. Then it ends, without a word to the peer; if
    /// `give` fails, it goes on. `None`: the program has it still, or the handshake is not over, or there is no memory.
    pub(crate) fn tcp_hand_over_closed(
        &self,
        (local, remote): (SocketAddr, SocketAddr),
        pass: &mut Pass<'_>,
        give: impl FnOnce(u32, &[u8]) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        match self.tcp.table.find(&Tuple::new(local, remote), Entry::clone) {
            Some(Entry::Flow(core)) => {
                let mut state = core.enter(pass);
                let connection = &mut state.connection;
                if !connection.orphan {
                    return None;
                }
                let (start, end) = (connection.buffer.start(), connection.buffer.end());
                let rest = joined(connection.buffer.pieces(start..end), (end - start) as usize);
                let given = give(start.0, &rest.ok()?);
                if given.is_ok() {
                    connection.end_handed_over(libc::ECONNABORTED);
                    core.finish(state, self, pass);
                }
                Some(given)
            }
            Some(Entry::SynQueue(_)) => None,
            Some(Entry::TimeWait(_)) | None => Some(give(0, &[])),
        }
    }
}

impl Connection {
    /// Ends it here; only threads that wait for it are notified.
    pub(super) fn end_handed_over(&mut self, error: i32) {
        self.error = Some(error);
        self.receiver.clear();
        // By way of TIME_WAIT, so that it is not counted as a reset.
        self.enter(State::TimeWait);
        self.end();
    }
}
