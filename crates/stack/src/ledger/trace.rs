//! The trace of a ledger's sockets: which packets each delivery and each taking moved, and when, in a ring of the
//! shared memory. A tracer in another process turns it on by storing a time into each line; a line whose word is 0 costs
//! one load, next to what is stored anyway. Once that time is over the stack clears the word, so that a tracer that was
//! killed leaves nothing behind. Writers never wait: a reader that is late loses records, and knows how many.

use super::{ENTERING, Ledger, LedgerEntry, LedgerSlot, Line, SocketState};
use crate::{
    napi::{Pass, PolledBy, Upper},
    sys,
    time::{self, Instant},
};
use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// Records that the ring holds: 1 MiB, which takes memory only once it is used.
const SLOTS: usize = 1 << 14;

const DELIVERED: u64 = 1;
const TAKEN: u64 = 2;
const SENT: u64 = 4;
const DIRECT: u64 = 8;

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Ring {
    /// Until when new sockets are traced.
    until: AtomicU64,
    /// The number of the next record.
    next: AtomicU64,
    slots: [Slot; SLOTS],
}

/// A record. Its first word is twice its number and 2, or one less while it is written; 0 at first.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    state: AtomicU64,
    words: [AtomicU64; 6],
}

/// What made the pass that delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedBy {
    /// A busy poll.
    BusyPoll,
    /// The interrupt thread, or a leader in its place.
    Interrupt,
    /// No queue: it came from the kernel, or a call of the application did it.
    Kernel,
}

/// What happened to packets of a socket. Times are of the monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The number of the socket's line, and what tells it from the line's earlier sockets.
    pub line: (u32, u32),
    /// When it happened.
    pub at: u64,
    /// When the pass or the call began; 0: no call of the application sent it.
    pub began: u64,
    /// The thread.
    pub tid: u32,
    /// The CPU.
    pub cpu: u32,
    /// What made the pass.
    pub by: TracedBy,
    /// Data up to this position was delivered: of TCP a sequence number, of UDP the number of datagrams.
    pub delivered: Option<u32>,
    /// Data up to this position was taken.
    pub taken: Option<u32>,
    /// It was delivered straight into the buffer of a call, and has no position.
    pub direct: bool,
    /// Something was sent.
    pub sent: bool,
}

/// Reads a ledger's trace.
#[derive(Debug)]
pub struct TraceReader {
    ledger: Ledger,
    next: u64,
    /// The record that was not finished when it was last looked for.
    unfinished: Option<u64>,
    lost: u64,
}

impl TraceReader {
    /// Of what happens from now on.
    pub fn new(ledger: Ledger) -> TraceReader {
        let next = ledger.front().ring.next.load(Ordering::Acquire);
        TraceReader { ledger, next, unfinished: None, lost: 0 }
    }

    /// Traces all sockets until this time of the monotonic clock, in nanoseconds, and no longer.
    pub fn trace_until(&self, until: u64) {
        let ledger = &self.ledger;
        ledger.front().ring.until.store(until, Ordering::SeqCst);
        let used = ledger.head().used.load(Ordering::SeqCst).min(ledger.count);
        for line in (0..used).filter_map(|at| ledger.line(at)) {
            line.counts.traced_until.store(until, Ordering::Relaxed);
        }
    }

    /// The next record, if there is one.
    pub fn next_event(&mut self) -> Option<TraceEvent> {
        let ring = &self.ledger.front().ring;
        loop {
            let behind = ring.next.load(Ordering::Acquire).wrapping_sub(self.next);
            if behind == 0 {
                return None;
            }
            // Another process counts it: it may say anything.
            if behind > SLOTS as u64 {
                let skipped = behind - SLOTS as u64;
                self.lost = self.lost.saturating_add(skipped);
                self.next = self.next.wrapping_add(skipped);
            }
            let number = self.next;
            let slot = ring.slot(number);
            let done = number.wrapping_mul(2).wrapping_add(2);
            let state = slot.state.load(Ordering::Acquire);
            // A writer between two stores ends soon; one that was killed there never does.
            if state != done && (state < done && self.unfinished != Some(number)) {
                self.unfinished = Some(number);
                return None;
            }
            let words = slot.words.each_ref().map(|word| word.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            self.next = number.wrapping_add(1);
            if state == done && slot.state.load(Ordering::Relaxed) == done {
                return Some(event(words));
            }
            self.lost = self.lost.saturating_add(1);
        }
    }

    /// The socket of a line, if it is still there.
    pub fn socket(&self, (line, generation): (u32, u32)) -> Option<LedgerEntry> {
        let line = self.ledger.line(line)?;
        let entry = line.read()?;
        (line.count.load(Ordering::Relaxed) == generation).then_some(entry)
    }

    /// Records that were overwritten before they were read, so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl Drop for TraceReader {
    fn drop(&mut self) {
        self.trace_until(0);
    }
}

impl Ring {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize % SLOTS]
    }

    fn write(&self, words: [u64; 6]) {
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        let slot = self.slot(number);
        let done = number.wrapping_mul(2).wrapping_add(2);
        let before = slot.state.load(Ordering::Relaxed);
        // A writer a whole ring behind is still at it, or one a ring ahead was here: the record is dropped.
        let is_free = before.is_multiple_of(2) && before < done;
        let (now, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if !is_free || slot.state.compare_exchange(before, done - 1, now, failed).is_err() {
            return;
        }
        fence(Ordering::Release);
        for (place, word) in slot.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        slot.state.store(done, Ordering::Release);
    }
}

fn event([at, began, who, line, what, positions]: [u64; 6]) -> TraceEvent {
    let (delivered, taken) = ((positions >> 32) as u32, positions as u32);
    let has = |bit| what & bit != 0;
    TraceEvent {
        line: ((line >> 32) as u32, line as u32),
        at,
        began,
        tid: (who >> 32) as u32,
        cpu: who as u32,
        by: match what >> 32 {
            0 => TracedBy::BusyPoll,
            1 => TracedBy::Interrupt,
            _ => TracedBy::Kernel,
        },
        delivered: has(DELIVERED).then_some(delivered),
        taken: has(TAKEN).then_some(taken),
        direct: has(DIRECT),
        sent: has(SENT),
    }
}

/// What is to be recorded.
struct Happened {
    what: u64,
    delivered: u32,
    taken: u32,
    by: TracedBy,
    /// When the pass or the call began.
    began: Option<Instant>,
}

impl Ledger {
    /// A new socket is traced if the others are.
    pub(super) fn trace_new(&self, line: &Line) {
        let until = self.front().ring.until.load(Ordering::SeqCst);
        line.counts.traced_until.store(until, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn trace(&self, number: u32, happened: &Happened) {
        let Some(line) = self.line(number) else { return };
        let (ours, at) = (time::now(), monotonic());
        if line.counts.traced_until.load(Ordering::Relaxed) <= at {
            line.counts.traced_until.store(0, Ordering::Relaxed);
            return;
        }
        let began = happened.began.map_or(0, |began| {
            at.saturating_sub(u64::try_from((ours - began).as_nanos()).unwrap_or(u64::MAX))
        });
        let by = match happened.by {
            TracedBy::BusyPoll => 0,
            TracedBy::Interrupt => 1,
            TracedBy::Kernel => 2,
        };
        let generation = line.count.load(Ordering::Relaxed);
        let cpu = sys::current_cpu().unwrap_or(0) as u32;
        self.front().ring.write([
            at,
            began,
            pair(this_thread(), cpu),
            pair(number, generation),
            pair(by, 0) | happened.what,
            pair(happened.delivered, happened.taken),
        ]);
    }
}

impl LedgerSlot {
    /// Whether what happens to the socket is to be recorded.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.ledger.line(self.at).is_some_and(Line::is_traced)
    }

    /// Records what a change of a connection's state moved. Called before [`note`](LedgerSlot::note) stores it.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_stream(&self, now: &SocketState, pass: &Pass<'_, impl Upper>) {
        let Some(line) = self.ledger.line(self.at) else { return };
        let state = line.state.load(Ordering::Relaxed);
        // A SYN or FIN takes a sequence number, too.
        if state == ENTERING || state as u8 != now.state {
            return;
        }
        let [received, unread, sent] =
            [&line.rcv_nxt, &line.unread, &line.snd_nxt].map(|word| word.load(Ordering::Relaxed));
        let (taken_before, taken) =
            (received.wrapping_sub(unread), now.rcv_nxt.wrapping_sub(now.unread as u32));
        let mut what = 0;
        for (before, after, bit) in [
            (received, now.rcv_nxt, DELIVERED),
            (taken_before, taken, TAKEN),
            (sent, now.snd_nxt, SENT),
        ] {
            if before != after {
                what |= bit;
            }
        }
        if what == 0 {
            return;
        }
        let is_call = pass.polled_by == PolledBy::Kernel && pass.napi.is_none();
        let began = (what & DELIVERED != 0 || is_call).then_some(pass.now);
        let happened =
            Happened { what, delivered: now.rcv_nxt, taken, by: by(pass.polled_by), began };
        self.ledger.trace(self.at, &happened);
    }

    /// Records that a pass has queued this datagram; each socket counts its own.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_queued(&self, number: u32, pass: &Pass<'_, impl Upper>) {
        let happened = Happened {
            what: DELIVERED,
            delivered: number,
            taken: 0,
            by: by(pass.polled_by),
            began: Some(pass.now),
        };
        self.ledger.trace(self.at, &happened);
    }

    /// Records that the datagrams up to this number were taken.
    #[cold]
    #[inline(never)]
    pub(crate) fn trace_taken(&self, number: u32) {
        let by = TracedBy::Kernel;
        let happened = Happened { what: TAKEN, delivered: 0, taken: number, by, began: None };
        self.ledger.trace(self.at, &happened);
    }
}

/// Records that a pass has delivered a datagram into the buffer of the call that polls.
#[cold]
#[inline(never)]
pub(super) fn trace_direct(ledger: &Ledger, line: u32, pass: &Pass<'_, impl Upper>) {
    let happened = Happened {
        what: DELIVERED | TAKEN | DIRECT,
        delivered: 0,
        taken: 0,
        by: by(pass.polled_by),
        began: Some(pass.now),
    };
    ledger.trace(line, &happened);
}

/// Records that a call that began then has sent datagrams.
#[cold]
#[inline(never)]
pub(super) fn trace_sent(ledger: &Ledger, line: u32, began: Instant) {
    let by = TracedBy::Kernel;
    ledger.trace(line, &Happened { what: SENT, delivered: 0, taken: 0, by, began: Some(began) });
}

impl Line {
    #[inline]
    pub(super) fn is_traced(&self) -> bool {
        self.counts.traced_until.load(Ordering::Relaxed) != 0
    }
}

fn by(polled_by: PolledBy) -> TracedBy {
    match polled_by {
        PolledBy::BusyPoll(_) => TracedBy::BusyPoll,
        PolledBy::Interrupt => TracedBy::Interrupt,
        PolledBy::Kernel => TracedBy::Kernel,
    }
}

fn pair(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

/// The kernel's monotonic clock, which its tracepoints use, in nanoseconds. No system call (vdso).
fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

thread_local!(static TID: Cell<u32> = const { Cell::new(0) });

/// The calling thread's number, asked for once.
fn this_thread() -> u32 {
    TID.with(|known| {
        if known.get() == 0 {
            // SAFETY: a plain call.
            known.set(unsafe { libc::syscall(libc::SYS_gettid) } as u32);
        }
        known.get()
    })
}

/// In a child after fork(2): its only thread has another number.
pub(crate) fn forget_thread() {
    TID.with(|known| known.set(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{inet::Pass, ledger::ESTABLISHED, wire::Protocol};
    use std::{sync::Arc, thread};

    fn traced() -> (Arc<Ledger>, TraceReader, LedgerSlot) {
        let ledger = Arc::new(Ledger::create(4).unwrap());
        let theirs = Ledger::open(ledger.memory().try_clone_to_owned().unwrap()).unwrap();
        let reader = TraceReader::new(theirs);
        let ends = ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:4000".parse().unwrap());
        let slot = ledger.enter(Protocol::TCP, ends.0, Some(ends.1)).unwrap();
        (ledger, reader, slot)
    }

    fn state(rcv_nxt: u32, unread: usize, snd_nxt: u32) -> SocketState {
        SocketState { state: ESTABLISHED, rcv_nxt, unread, snd_nxt, ..SocketState::default() }
    }

    #[test]
    fn what_moved_is_recorded_while_a_tracer_asks_for_it() {
        let (_ledger, mut reader, slot) = traced();
        let pass = Pass::new(None, time::now(), PolledBy::BusyPoll(1));
        let change = |now: &SocketState, pass: &Pass<'_>| {
            if slot.is_traced() {
                slot.trace_stream(now, pass);
            }
            slot.note(now);
        };
        change(&state(100, 0, 1), &pass);
        change(&state(110, 10, 1), &pass);
        assert_eq!(reader.next_event(), None, "not traced");
        let begin = monotonic();
        reader.trace_until(begin + 3_600_000_000_000);
        change(&state(120, 20, 1), &pass);
        let found = reader.next_event().unwrap();
        assert_eq!((found.delivered, found.taken, found.sent), (Some(120), None, false));
        assert_eq!((found.by, found.tid), (TracedBy::BusyPoll, this_thread()));
        assert!(found.began <= found.at && (begin..=monotonic()).contains(&found.at), "{found:?}");
        assert_eq!(reader.socket(found.line).unwrap().local, "10.0.0.1:80".parse().unwrap());
        change(&state(120, 20, 1), &pass);
        let call = Pass::new(None, time::now(), PolledBy::Kernel);
        change(&state(120, 5, 9), &call);
        let taken = reader.next_event().unwrap();
        assert_eq!((taken.delivered, taken.taken, taken.sent), (None, Some(115), true));
        assert!(taken.began > 0);
        // Data that an acknowledgment lets go was sent by no call; a FIN is no data.
        change(&state(120, 5, 10), &pass);
        assert_eq!(reader.next_event().unwrap().began, 0);
        change(&SocketState { state: 8, ..state(121, 5, 10) }, &pass);
        assert_eq!(reader.next_event(), None);
        let line = found.line;
        drop(slot);
        assert_eq!(reader.socket(line), None, "another socket may have it by now");
    }

    #[test]
    fn a_tracer_that_is_gone_leaves_nothing_behind() {
        let (ledger, reader, slot) = traced();
        let pass = Pass::new(None, time::now(), PolledBy::Interrupt);
        slot.note(&state(1, 0, 1));
        reader.trace_until(1);
        assert!(slot.is_traced());
        slot.trace_queued(1, &pass);
        assert!(!slot.is_traced(), "the time is over");
        reader.trace_until(u64::MAX);
        let second = ledger.enter(Protocol::UDP, "10.0.0.1:1".parse().unwrap(), None).unwrap();
        assert!(second.is_traced(), "a new socket, too");
        drop(reader);
        assert!(!slot.is_traced() && !second.is_traced());
    }

    #[test]
    fn what_a_late_reader_lost_is_counted_and_writers_do_not_mix_records() {
        let (ledger, mut reader, slot) = traced();
        reader.trace_until(u64::MAX);
        let threads = 4;
        let each = SLOTS as u32;
        let write = |thread: u32| {
            for n in 0..each {
                let number = thread << 24 | n;
                let pass = Pass::new(None, Instant::ZERO, PolledBy::Interrupt);
                ledger.trace(
                    slot.at,
                    &Happened {
                        what: DELIVERED | TAKEN,
                        delivered: number,
                        taken: !number,
                        by: by(pass.polled_by),
                        began: None,
                    },
                );
            }
        };
        let mut seen = 0u64;
        thread::scope(|scope| {
            let writers: Vec<_> = (0..threads).map(|n| scope.spawn(move || write(n))).collect();
            let mut over = false;
            while !over {
                over = writers.iter().all(|writer| writer.is_finished());
                // The second look passes by a record that is never finished.
                for _ in 0..2 {
                    while let Some(event) = reader.next_event() {
                        assert_eq!(event.delivered, event.taken.map(|taken| !taken));
                        seen += 1;
                    }
                }
            }
        });
        assert_eq!(seen + reader.lost(), u64::from(threads * each));
        assert!(seen > 0);
        // Nothing reads for a whole ring and more.
        (0..2).for_each(write);
        let lost = reader.lost();
        let rest = std::iter::from_fn(|| reader.next_event()).count() as u64;
        assert!(rest <= SLOTS as u64 && rest + reader.lost() - lost == u64::from(2 * each));
    }
}
