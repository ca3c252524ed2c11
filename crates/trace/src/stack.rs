//! The packets of the stack plane: what the stacks of the traced processes record in the memory of their ledgers, and the
//! kernel's records of how their threads got a CPU, become packets as the kernel plane has them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;

use busypoll_bench::data::FoundCounts;
use busypoll_linux::bpf::trace::{Ends, Found, Received, Scheduled, Sent, Thread, Tracer};
use busypoll_linux::process::{self, Kind, Process};
use busypoll_stack::ledger::{Ledger, LedgerEntry, TraceEvent, TraceReader, TracedBy};
use busypoll_stack::wire::Protocol;

use crate::error::TraceError;
use crate::stages;

/// Records of one stack that are read at a time.
const MOST_EVENTS: usize = 1 << 16;
/// Packets of a socket on their way, and wake-ups of a thread that may belong to a packet to come.
const MOST_PENDING: usize = 4096;
/// Sockets of a stack, and threads of all, before they are forgotten.
const MOST_KNOWN: usize = 1 << 14;

/// The stacks of the traced processes.
#[derive(Default)]
pub struct Stacks {
    stacks: Vec<Stack>,
    /// By process and inode.
    known: HashSet<(u32, u64)>,
    threads: HashMap<u32, Known>,
    /// Sockets that had gone before their records were read.
    lost: u64,
    /// What cannot be traced of them.
    pub unseen: Vec<String>,
}

struct Stack {
    inode: u64,
    reader: TraceReader,
    sockets: HashMap<(u32, u32), Socket>,
}

struct Socket {
    ends: Ends,
    delivered: VecDeque<TraceEvent>,
}

/// A thread of a stack.
#[derive(Default)]
struct Known {
    pid: u32,
    name: String,
    scheduled: VecDeque<Scheduled>,
    /// When the pass began for which the thread was woken, with that wake-up.
    last: Option<(u64, Scheduled)>,
}

/// How a packet was found.
type Way = fn(&mut FoundCounts) -> &mut u64;

/// A packet of the stack plane, with its stages.
pub enum Packet {
    /// Received, and how it was found.
    Received(Box<Received>, [u64; stages::RECEIVE.len()], Way),
    /// Sent.
    Sent(Box<Sent>),
}

impl Stacks {
    /// Takes up what stacks these processes and their children have by now.
    ///
    /// # Errors
    /// If the kernel's maps cannot be written.
    pub fn look(&mut self, pids: &[u32], tracer: &mut Tracer) -> Result<(), TraceError> {
        let mut new = pids.to_vec();
        let mut looked_at = HashSet::new();
        while let Some(pid) = new.pop() {
            // A process that has ended meanwhile has no stack.
            let Some(process) = Process::open(pid).ok().filter(|_| looked_at.insert(pid)) else {
                continue;
            };
            self.look_at(&process, tracer)?;
            new.extend(process.children());
        }
        Ok(())
    }

    fn look_at(&mut self, process: &Process, tracer: &mut Tracer) -> Result<(), TraceError> {
        let pid = process.pid();
        let descriptors = process.descriptors().unwrap_or_default();
        for found in descriptors.iter().filter(|found| found.kind == Kind::StackPlane) {
            let Ok(Some(memory)) = process.duplicate_fd(found.fd) else { continue };
            let Ok(inode) = rustix::fs::fstat(&memory).map(|stat| stat.st_ino) else { continue };
            if !self.known.insert((pid, inode)) {
                continue;
            }
            for thread in threads(pid) {
                self.know(thread, tracer)?;
            }
            // Its guard has the same.
            if self.stacks.iter().any(|stack| stack.inode == inode) {
                continue;
            }
            match Ledger::open(memory) {
                Ok(ledger) => {
                    let (reader, sockets) = (TraceReader::new(ledger), HashMap::new());
                    self.stacks.push(Stack { inode, reader, sockets });
                }
                Err(_) => self.unseen.push(format!(
                    "process {pid} has a stack of another version of busypoll, which is not traced"
                )),
            }
        }
        Ok(())
    }

    /// A thread that is met: its wake-ups are recorded from now on.
    fn know(&mut self, tid: u32, tracer: &mut Tracer) -> Result<&mut Known, TraceError> {
        if self.threads.len() > MOST_KNOWN {
            self.threads.clear();
        }
        match self.threads.entry(tid) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                tracer.watch(tid)?;
                Ok(new.insert(Known {
                    pid: process_of(tid).unwrap_or(tid),
                    name: process::name(tid).unwrap_or_default(),
                    ..Known::default()
                }))
            }
        }
    }

    /// Lets the stacks record until this time of the monotonic clock, in ns.
    pub fn trace_until(&self, until: u64) {
        for stack in &self.stacks {
            stack.reader.trace_until(until);
        }
    }

    /// What they have recorded. To be read before the kernel's records, which then include the wake-ups before it.
    pub fn events(&mut self) -> Vec<(usize, TraceEvent)> {
        let mut all = Vec::new();
        for (nth, stack) in self.stacks.iter_mut().enumerate() {
            let next = std::iter::from_fn(|| stack.reader.next_event());
            all.extend(next.take(MOST_EVENTS).map(|event| (nth, event)));
        }
        all
    }

    /// The kernel's record of a thread.
    pub fn scheduled(&mut self, scheduled: Scheduled) {
        if let Some(thread) = self.threads.get_mut(&scheduled.tid) {
            if thread.scheduled.len() >= MOST_PENDING {
                thread.scheduled.pop_front();
            }
            thread.scheduled.push_back(scheduled);
        }
    }

    /// Records that were lost.
    pub fn lost(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.reader.lost()).sum::<u64>() + self.lost
    }

    /// The packets that these records complete.
    ///
    /// # Errors
    /// If the kernel's maps cannot be written.
    pub fn packets(
        &mut self,
        events: Vec<(usize, TraceEvent)>,
        tracer: &mut Tracer,
        mut each: impl FnMut(Packet),
    ) -> Result<(), TraceError> {
        for (nth, event) in events {
            self.know(event.tid, tracer)?;
            let Some(stack) = self.stacks.get_mut(nth) else { continue };
            let Some(socket) = stack.socket(event.line) else {
                self.lost += 1;
                continue;
            };
            let ends = socket.ends;
            let mut taken = Vec::new();
            if event.direct {
                taken.push(event);
            } else {
                if event.delivered.is_some() {
                    if socket.delivered.len() >= MOST_PENDING {
                        socket.delivered.pop_front();
                        self.lost += 1;
                    }
                    socket.delivered.push_back(event);
                }
                while let Some(until) = event.taken
                    && let Some(first) = socket.delivered.front()
                    && first.delivered.is_some_and(|end| until.wrapping_sub(end) as i32 >= 0)
                {
                    taken.extend(socket.delivered.pop_front());
                }
            }
            if event.sent {
                each(Packet::Sent(Box::new(self.sent(&event, ends))));
            }
            for delivered in taken {
                let (packet, stages, way) = self.received(&delivered, &event, ends);
                each(Packet::Received(Box::new(packet), stages, way));
            }
        }
        Ok(())
    }

    fn received(
        &mut self,
        delivered: &TraceEvent,
        taken: &TraceEvent,
        ends: Ends,
    ) -> (Received, [u64; stages::RECEIVE.len()], Way) {
        let itself = delivered.tid == taken.tid;
        let by_interrupt = delivered.by == TracedBy::Interrupt;
        let woken = by_interrupt.then(|| self.woken_for(delivered)).flatten();
        let waited = match by_interrupt && itself {
            true => woken.clone(),
            false => self.waited(taken.tid, (delivered.at, taken.at)),
        };
        let waited = waited.unwrap_or_default();
        let (finder, taker) = (self.threads.get(&delivered.tid), self.threads.get(&taken.tid));
        let name = |thread: Option<&Known>| thread.map(|it| it.name.clone()).unwrap_or_default();
        let pid = taker.map_or(taken.tid, |thread| thread.pid);
        let thread = Found::Thread { pid, tid: delivered.tid };
        let (found, way): (Found, Way) = match delivered.by {
            TracedBy::BusyPoll if itself => (thread, |found| &mut found.own_polls),
            TracedBy::BusyPoll => (thread, |found| &mut found.other_polls),
            TracedBy::Interrupt if itself => (thread, |found| &mut found.woken),
            TracedBy::Interrupt => {
                (Found::NapiThread { tid: delivered.tid }, |found| &mut found.napi_threads)
            }
            TracedBy::Kernel => (thread, |found| &mut found.direct),
        };
        let packet = Received {
            pid,
            tid: taken.tid,
            name: name(taker),
            cpu: taken.cpu,
            sent: 0,
            signal: woken.map_or(0, |woken| woken.runnable),
            pass: delivered.began,
            handed: delivered.began,
            reached: delivered.at,
            runnable: waited.runnable,
            woken: waited.woken,
            switched: waited.switched,
            taken: taken.at,
            longest: waited.call,
            before: waited.before,
            found_cpu: delivered.cpu,
            found,
            ran: Thread { id: delivered.tid, name: name(finder) },
            napi: None,
            ifindex: 0,
            line: 0,
            len: 0,
            ends,
        };
        let stages = match by_interrupt && itself {
            true => stages::of_woken(&packet),
            false => stages::of_receive(&packet, None),
        };
        (packet, stages, way)
    }

    /// The wake-up of the thread that made this pass. It explains no later pass.
    fn woken_for(&mut self, delivered: &TraceEvent) -> Option<Scheduled> {
        let thread = self.threads.get_mut(&delivered.tid)?;
        if let Some((pass, woken)) = &thread.last
            && *pass == delivered.began
        {
            return Some(woken.clone());
        }
        let mut found = None;
        while thread.scheduled.front().is_some_and(|next| next.switched <= delivered.began) {
            found = thread.scheduled.pop_front().filter(Scheduled::was_woken).or(found);
        }
        thread.last = found.clone().map(|woken| (delivered.began, woken));
        found
    }

    /// The thread's last wait for a CPU that ended in this time.
    fn waited(&self, tid: u32, (from, until): (u64, u64)) -> Option<Scheduled> {
        let all = &self.threads.get(&tid)?.scheduled;
        all.iter().rev().find(|it| it.switched > from && it.switched <= until).cloned()
    }

    fn sent(&self, event: &TraceEvent, ends: Ends) -> Sent {
        let thread = self.threads.get(&event.tid);
        let name = thread.map(|thread| thread.name.clone()).unwrap_or_default();
        let thread_of = || Thread { id: event.tid, name: name.clone() };
        Sent {
            thread: thread_of(),
            pid: thread.map_or(event.tid, |thread| thread.pid),
            cpu: event.cpu,
            enter: event.began,
            queue: event.at,
            start: event.at,
            done: event.at,
            start_cpu: event.cpu,
            ran: thread_of(),
            ifindex: 0,
            len: 0,
            ends,
        }
    }
}

impl Stack {
    fn socket(&mut self, line: (u32, u32)) -> Option<&mut Socket> {
        if self.sockets.len() > MOST_KNOWN {
            self.sockets.clear();
        }
        match self.sockets.entry(line) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let entry = self.reader.socket(line)?;
                Some(new.insert(Socket { ends: ends(&entry), delivered: VecDeque::new() }))
            }
        }
    }
}

fn ends(entry: &LedgerEntry) -> Ends {
    Ends {
        tcp: entry.protocol == Protocol::TCP,
        local: entry.local,
        peer: Some(entry.remote).filter(|peer| peer.port() != 0),
    }
}

fn threads(pid: u32) -> Vec<u32> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    all.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
}

fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")).and_then(|id| id.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: &str = "10.0.0.1:7000";

    fn event(tid: u32, by: TracedBy, (began, at): (u64, u64)) -> TraceEvent {
        TraceEvent {
            line: (0, 1),
            at,
            began,
            tid,
            cpu: 1,
            by,
            delivered: Some(1),
            taken: None,
            direct: false,
            sent: false,
        }
    }

    fn scheduled(tid: u32, [runnable, woken, switched]: [u64; 3]) -> Scheduled {
        Scheduled { tid, runnable, woken, switched, ..Scheduled::default() }
    }

    fn stacks(all: &[Scheduled]) -> Stacks {
        let mut stacks = Stacks::default();
        for tid in [7, 8] {
            stacks.threads.insert(tid, Known { pid: 7, ..Known::default() });
        }
        all.iter().for_each(|one| stacks.scheduled(one.clone()));
        stacks
    }

    fn received(
        stacks: &mut Stacks,
        found: &TraceEvent,
        taken: &TraceEvent,
    ) -> (Vec<u64>, FoundCounts) {
        let ends = Ends { tcp: false, local: ENDS.parse().expect("an address"), peer: None };
        let (packet, stages, way) = stacks.received(found, taken, ends);
        let mut counts = FoundCounts::default();
        *way(&mut counts) += 1;
        let begin = [packet.signal, packet.pass].into_iter().find(|time| *time > 0);
        let whole = taken.at - begin.expect("a beginning");
        assert_eq!(stages.iter().sum::<u64>(), whole, "{packet:?}");
        (stages.to_vec(), counts)
    }

    #[test]
    fn a_poll_finds_at_once_and_another_threads_wakes_the_reader() {
        let mut stacks = stacks(&[scheduled(7, [90, 95, 99]), scheduled(7, [160, 170, 180])]);
        let own = event(7, TracedBy::BusyPoll, (100, 130));
        let (stages, found) = received(&mut stacks, &own, &own);
        assert_eq!((stages, found.own_polls), (vec![0, 0, 30, 0, 0, 0, 0], 1));
        let other = event(8, TracedBy::BusyPoll, (100, 150));
        let take = event(7, TracedBy::Kernel, (0, 200));
        let (stages, found) = received(&mut stacks, &other, &take);
        assert_eq!((stages, found.other_polls), (vec![0, 0, 50, 30, 10, 10, 0], 1));
    }

    #[test]
    fn the_interrupt_wakes_the_reader_itself_or_the_interrupt_thread() {
        let mut stacks = stacks(&[scheduled(7, [100, 110, 130]), scheduled(8, [300, 320, 340])]);
        let leader = event(7, TracedBy::Interrupt, (150, 160));
        let take = event(7, TracedBy::Kernel, (0, 170));
        for _ in 0..2 {
            // Two packets of one pass.
            let (stages, found) = received(&mut stacks, &leader, &take);
            assert_eq!((stages, found.woken), (vec![20, 0, 10, 10, 10, 20, 0], 1));
        }
        // A later pass was not what it was woken for.
        let later = event(7, TracedBy::Interrupt, (200, 210));
        let (stages, _) = received(&mut stacks, &later, &event(7, TracedBy::Kernel, (0, 215)));
        assert_eq!(stages, [0, 0, 10, 5, 0, 0, 0]);
        let thread = event(8, TracedBy::Interrupt, (350, 360));
        let (stages, found) = received(&mut stacks, &thread, &event(7, TracedBy::Kernel, (0, 400)));
        assert_eq!((stages, found.napi_threads), (vec![50, 0, 10, 40, 0, 0, 0], 1));
    }

    #[test]
    fn a_thread_that_was_displaced_was_not_woken() {
        let mut stacks = stacks(&[scheduled(7, [100, 100, 130])]);
        let leader = event(7, TracedBy::Interrupt, (150, 160));
        let take = event(7, TracedBy::Kernel, (0, 170));
        let (stages, found) = received(&mut stacks, &leader, &take);
        assert_eq!((stages, found.woken), (vec![0, 0, 10, 10, 0, 0, 0], 1));
    }
}
