//! The entry point from IP: segments with a correct checksum, of either address family.

use super::{
    listener::Listener,
    local_stream::is_end_of_local_stream,
    parse,
    plain::Plain,
    request::Outcome as Handshake,
    segment::{Flags, Segment},
    seq::Seq,
    table::{Entry, Pick},
    time_wait::{Outcome as TimeWaitOutcome, TimeWaitEntry},
    tuple::Tuple,
};
use crate::{
    inet::{Inet, Pass, PathOptions, input::Arrival},
    wire::{Rest, tcp},
};
use std::sync::Arc;

/// How often to repeat a lookup whose entry was replaced meanwhile: a handshake becomes a flow.
const LOOKUPS: usize = 3;

/// What the entry found did with a segment.
enum Found {
    Taken,
    /// The entry has left the table, or is about to.
    Gone,
    /// A SYN that may replace the entry.
    NewSyn(Arc<TimeWaitEntry>, Seq),
}

impl Inet {
    /// Receives a segment with a correct checksum, and what follows its first piece, from one host to one address of
    /// ours. `congested`: its packet
    /// carries ECN CE. No lock is held.
    #[inline(always)]
    pub(in crate::inet) fn tcp_deliver(
        &self,
        arrival: &Arrival<'_>,
        tuple: Tuple,
        (packet, rest): (&tcp::Packet<&[u8]>, Rest<'_>),
        congested: bool,
        pass: &mut Pass<'_>,
    ) {
        let expected = pass.expected_flow.map(|flow| &flow.core).filter(|core| core.tuple == tuple);
        if let Some(core) = expected
            && !congested
            && rest.is_empty()
            && pass.deferred.is_none()
            && let Some((segment, data)) = Plain::parse(packet.bytes())
            && core.predicted(self, &segment, data, pass)
        {
            return self.deliver_local(pass);
        }
        let segment = Segment { rest, ..parse::parse(packet, congested) };
        if self.tcp_deferred_flow(&tuple, &segment, arrival, pass) {
            return;
        }
        if let Some(core) = expected
            && core.segment(self, &segment, arrival, pass)
        {
            return self.deliver_local(pass);
        }
        for _ in 0..LOOKUPS {
            let found = self.tcp.table.find(&tuple, |entry| match entry {
                Entry::Flow(core) => match core.segment(self, &segment, arrival, pass) {
                    true => Found::Taken,
                    false => Found::Gone,
                },
                Entry::SynQueue(handshake) => {
                    match handshake.segment(self, &segment, arrival, pass) {
                        Handshake::Done => Found::Taken,
                        Handshake::Gone => Found::Gone,
                    }
                }
                Entry::TimeWait(time_wait) => {
                    self.tcp_time_wait_input(time_wait, &segment, arrival, pass)
                }
            });
            match found {
                Some(Found::Taken) => break,
                Some(Found::Gone) => {}
                Some(Found::NewSyn(time_wait, iss)) => {
                    self.tcp_no_connection(tuple, &segment, Some((&time_wait, iss)), arrival, pass);
                    break;
                }
                None => {
                    self.tcp_no_connection(tuple, &segment, None, arrival, pass);
                    break;
                }
            }
        }
        self.deliver_local(pass);
    }

    /// Segments of a flow come in runs: the flow last deferred to the end of this pass is tried before the table.
    /// Returns whether the segment belongs to it.
    #[inline]
    fn tcp_deferred_flow(
        &self,
        tuple: &Tuple,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> bool {
        let Some(last) = pass.deferred.take() else { return false };
        let taken = last.tuple == *tuple && last.segment_again(self, segment, arrival, pass);
        pass.deferred = Some(last);
        taken
    }

    #[cold]
    fn tcp_time_wait_input(
        &self,
        time_wait: &Arc<TimeWaitEntry>,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) -> Found {
        match time_wait.segment(self, segment, pass.now) {
            TimeWaitOutcome::Nothing => Found::Taken,
            TimeWaitOutcome::Answer(answer) => {
                time_wait.answer(self, answer, arrival, pass.now);
                Found::Taken
            }
            TimeWaitOutcome::NewSyn(iss) => Found::NewSyn(time_wait.clone(), iss),
            TimeWaitOutcome::Gone => Found::Gone,
        }
    }

    /// A segment of no connection: goes to a listener, or is refused.
    #[cold]
    fn tcp_no_connection(
        &self,
        tuple: Tuple,
        segment: &Segment<'_>,
        after: Option<(&Arc<TimeWaitEntry>, Seq)>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) {
        let pick = Pick { hash: self.tcp.secrets.pick(&tuple), queue: arrival.queue };
        let takes =
            |it: &Listener| arrival.link() == 0 || it.takes_links() && !arrival.is_closing();
        let Some(listener) = self.tcp.table.listener(&tuple, pick, takes) else {
            // TIME_WAIT ends only if the new connection can begin.
            return self.tcp_refuse(&tuple, segment, arrival, pass);
        };
        let asked = Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN;
        let control = Flags(segment.flags.0 & asked.0);
        if control == Flags::SYN {
            // A connection from an end to itself needs connect(2) on both sides.
            if tuple.local() != tuple.remote() {
                self.tcp_syn(&listener, tuple, segment, after, arrival, pass);
            }
        } else if segment.flags.has(Flags::ACK)
            && !self.tcp_cookie_input(&listener, tuple, segment, arrival, pass)
        {
            //= RFC 9293 3.10.7.2
            //# Any acknowledgment is bad if it arrives on a connection still in the LISTEN state. An acceptable reset
            //# segment should be formed for any arriving ACK-bearing segment.
            // A segment with neither ACK nor SYN is dropped; and so is, as in Linux, a SYN with FIN.
            self.tcp_refuse(&tuple, segment, arrival, pass);
        }
    }

    //= RFC 9293 3.10.7.1
    //# all data in the incoming segment is discarded. An incoming segment containing a RST is discarded. An incoming
    //# segment not containing a RST causes a RST to be sent in response.
    fn tcp_refuse(
        &self,
        tuple: &Tuple,
        segment: &Segment<'_>,
        arrival: &Arrival<'_>,
        pass: &mut Pass<'_>,
    ) {
        // The kernel has no connections over a link.
        let may_be_kernels = || arrival.link() == 0 && self.tcp_is_taking_over(pass.now);
        if may_be_kernels() {
            return self.tcp_to_kernel(arrival, pass.now);
        }
        // A local stream that is the kernel's now.
        let was_local = || arrival.link() != 0 && is_end_of_local_stream(tuple.local());
        if segment.flags.has(Flags::RST) || was_local() {
            return;
        }
        let options = PathOptions::default();
        if let Ok(route) = self.tcp_reply_route(tuple, arrival, options, pass.now) {
            self.tcp_answer(&route, tuple, segment.refusal(), pass);
        }
    }
}
