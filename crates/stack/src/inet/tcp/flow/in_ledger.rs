//! What the ledger and a tracer see of a connection.

use super::State;
use crate::{
    inet::{Inet, Pass, tcp::tuple::Tuple},
    ledger::{Ledger, SocketCounts, SocketState},
    wire::Protocol,
};
use std::{hint::cold_path, sync::Arc};

impl State {
    /// Updates the ledger, if there is one.
    #[inline(always)]
    pub(in crate::inet::tcp) fn update_ledger(
        &mut self,
        tuple: &Tuple,
        inet: &Inet,
        pass: &Pass<'_>,
    ) {
        if let Some(ledger) = inet.ledger() {
            self.note_in_ledger(tuple, ledger, pass);
        }
    }

    #[inline(never)]
    fn note_in_ledger(&mut self, tuple: &Tuple, ledger: &Arc<Ledger>, pass: &Pass<'_>) {
        if self.ledger_entry.is_none() {
            cold_path();
            self.ledger_entry = ledger.enter(Protocol::TCP, tuple.local(), Some(tuple.remote()));
        }
        if let Some(ledger_entry) = &self.ledger_entry {
            if ledger_entry.is_traced() {
                self.trace(pass);
            }
            let connection = &self.connection;
            let found = self.endpoint.as_ref().map_or([0; 3], |endpoint| endpoint.deliveries());
            let [own_polls, other_polls, interrupts] = found;
            ledger_entry.note(&SocketState {
                state: connection.state().number(),
                snd_nxt: connection.snd_nxt.0,
                rcv_nxt: connection.rcv_nxt().0,
                unread: connection.unread(),
                unacknowledged: connection.unacknowledged(),
                napi: self.napi,
                counts: SocketCounts {
                    own_polls,
                    other_polls,
                    interrupts,
                    retransmits: connection.retransmitted().into(),
                    ..SocketCounts::default()
                },
            });
        }
    }

    /// Records for a tracer what is about to change in the ledger. Apart from the state that is noted there, which so
    /// needs no memory.
    #[cold]
    fn trace(&self, pass: &Pass<'_>) {
        let connection = &self.connection;
        let now = SocketState {
            state: connection.state().number(),
            snd_nxt: connection.snd_nxt.0,
            rcv_nxt: connection.rcv_nxt().0,
            unread: connection.unread(),
            ..SocketState::default()
        };
        if let Some(ledger_entry) = &self.ledger_entry {
            ledger_entry.trace_stream(&now, pass);
        }
    }
}
