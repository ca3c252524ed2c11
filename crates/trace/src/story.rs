//! What happened to a packet, in one line: its longest stage, on which CPU, and what ran there.

use busypoll_bench::text::figures::time_text;
use busypoll_linux::bpf::trace::{Found, Received, Sent, Thread};

use crate::calls;
use crate::stages::{self, CALL, NAPI, PROTOCOL, QDISC, QUEUE, RETURN, RING, SCHEDULED, WAKE_UP};

/// The longest stage, the CPU where it passed, and the line.
pub struct Story {
    /// Its number.
    pub stage: usize,
    /// The CPU.
    pub cpu: u32,
    /// What happened.
    pub text: String,
}

/// Of a received packet with these stages.
pub fn of_receive(r: &Received, stages: &[u64]) -> Story {
    let stage = stages::longest(stages);
    let ns = stages[stage];
    let cpu = match stage {
        RING | NAPI | PROTOCOL => r.found_cpu,
        _ => r.cpu,
    };
    let long = us(ns);
    let found = found_by(r);
    let text = match stage {
        RING => format!("{long} in the ring before {found}"),
        NAPI => format!("{long} in the pass before it was handed up, {found}"),
        PROTOCOL => format!("{long} on the way to its socket, {found}"),
        QUEUE => format!("{long} in the socket's queue: {}", busy(r, ns)),
        WAKE_UP => format!("{long} until CPU {cpu} was told, {}", before(r, ns)),
        SCHEDULED => format!("{long} until its thread got CPU {cpu}, {}", before(r, ns)),
        RETURN => format!("{long} from taking it to the end of the call, on CPU {cpu}"),
        _ => long,
    };
    Story { stage, cpu, text }
}

fn us(ns: u64) -> String {
    time_text(ns as f64 / 1e3)
}

fn named(thread: &Thread) -> String {
    match thread.id {
        0 => "the idle loop".to_owned(),
        id => format!("{} ({id})", thread.name),
    }
}

/// Of a thread that takes what it found itself, the name would only be said twice.
fn found_by(r: &Received) -> String {
    let cpu = r.found_cpu;
    match r.found {
        Found::Thread { tid, .. } if tid == r.tid => {
            format!("its own thread found it on CPU {cpu}")
        }
        Found::Thread { tid, .. } => {
            format!("thread {tid} of {} found it on CPU {cpu}", r.ran.name)
        }
        Found::NapiThread { tid } => format!("{} ({tid}) found it on CPU {cpu}", r.ran.name),
        Found::Softirq => {
            let line =
                if r.line == 0 { String::new() } else { format!(" after interrupt {}", r.line) };
            format!("a softirq found it on CPU {cpu}{line}, where {} ran", named(&r.ran))
        }
    }
}

/// What had the CPU before the thread. Of several that had it in turn only the last is known.
fn before(r: &Received, waited: u64) -> String {
    let (thread, ran) = &r.before;
    match thread.id {
        0 => "which was idle".to_owned(),
        _ if *ran < waited / 2 => {
            format!("where several threads ran, the last {} for {}", named(thread), us(*ran))
        }
        _ => format!("where {} had run for {}", named(thread), us(*ran)),
    }
}

/// What the thread did while the packet was in the queue.
fn busy(r: &Received, queued: u64) -> String {
    let call = r.longest;
    let begin = call.end.saturating_sub(call.took);
    let meanwhile = call.end.min(r.taken).saturating_sub(begin.max(r.reached));
    match meanwhile * 2 > queued {
        true => format!("{} was in {} for {}", r.name, calls::name(call.number), us(call.took)),
        // Neither asleep nor waiting for a CPU.
        false => format!("{} ran on CPU {}, or was stopped", r.name, r.cpu),
    }
}

/// Of a sent packet.
pub fn of_send(s: &Sent, stages: &[u64]) -> Story {
    let stage = stages::longest(stages);
    let long = us(stages[stage]);
    let (cpu, text) = match stage {
        CALL => {
            (s.cpu, format!("{long} from the system call to the device's queue, on CPU {}", s.cpu))
        }
        QDISC => (
            s.start_cpu,
            format!("{long} in the qdisc, until CPU {} called the driver", s.start_cpu),
        ),
        _ => (s.start_cpu, format!("{long} in the driver, on CPU {}", s.start_cpu)),
    };
    Story { stage, cpu, text }
}

#[cfg(test)]
mod tests {
    use busypoll_linux::bpf::trace::Call;

    use super::*;
    use crate::stages::tests::sample;

    #[test]
    fn the_longest_stage_is_told_with_what_ran_there() {
        let r = sample();
        let text = |r: &Received| of_receive(r, &stages::of_receive(r, None)).text;
        let story = of_receive(&r, &stages::of_receive(&r, None));
        assert_eq!((story.stage, story.cpu), (SCHEDULED, 1));
        assert!(story.text.contains("got CPU 1, where hog (5) had run for"), "{}", story.text);
        let mut idle = r.clone();
        idle.before.0.id = 0;
        assert!(text(&idle).ends_with("which was idle"));
        let mut late = r.clone();
        late.sent = 1;
        let story = of_receive(&late, &stages::of_receive(&late, None));
        assert_eq!((story.stage, story.cpu), (RING, 0));
        assert!(story.text.contains("a softirq found it on CPU 0, where sender (7) ran"));
        late.found = Found::NapiThread { tid: 99 };
        late.ran.name = "napi/eth1-8193".into();
        assert!(text(&late).contains("before napi/eth1-8193 (99) found it"));
        let mut asleep = r;
        (asleep.runnable, asleep.switched) = (0, 0);
        asleep.longest = Call { number: libc::SYS_clock_nanosleep as u32, took: 500, end: 1190 };
        assert!(text(&asleep).contains("reader was in clock_nanosleep for"));
        // It ended before the packet came.
        asleep.longest.end = 1063;
        assert!(text(&asleep).contains("reader ran on CPU 1, or was stopped"));
    }
}
