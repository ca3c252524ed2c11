//! The stages of a packet, from the times that the kernel's programs noted. They add up to the whole.

use busypoll_linux::bpf::trace::{Received, Sent};

/// The stages of a receive, in order.
pub const RECEIVE: [&str; 7] =
    ["ring", "napi", "protocol", "queue", "wake-up", "scheduled", "return"];
/// The stages of a send.
pub const SEND: [&str; 3] = ["call", "qdisc", "driver"];

/// From the interrupt, or from the sending on this machine, to the pass that finds the packet.
pub const RING: usize = 0;
/// Until the driver has handed it up.
pub const NAPI: usize = 1;
/// Until it has reached its socket.
pub const PROTOCOL: usize = 2;
/// There, while no thread was on its way to take it.
pub const QUEUE: usize = 3;
/// Until the thread is on the run queue of a CPU.
pub const WAKE_UP: usize = 4;
/// Until it has that CPU.
pub const SCHEDULED: usize = 5;
/// From taking the packet to the end of the system call.
pub const RETURN: usize = 6;

/// From the system call to the device's queue; 0 where no system call sent the packet.
pub const CALL: usize = 0;
/// Until the driver is called.
pub const QDISC: usize = 1;
/// Until it has returned.
pub const DRIVER: usize = 2;

/// The stages of a receive, in ns. `returned` is when its system call ended, if that was seen.
pub fn of_receive(r: &Received, returned: Option<u64>) -> [u64; RECEIVE.len()] {
    let handed = within(r.handed, r.reached);
    let pass = within(r.pass, handed);
    let start = match (r.sent, r.signal) {
        (sent, _) if sent > 0 && sent <= handed => sent,
        (_, signal) if signal > 0 && signal <= pass => signal,
        _ => pass,
    };
    // A packet that is sent while a pass is under way waits for nothing.
    let pass = pass.max(start);
    let (wake_up, scheduled) = waited(r);
    let queue = r.taken.saturating_sub(r.reached).saturating_sub(wake_up + scheduled);
    [
        pass - start,
        handed - pass,
        r.reached - handed,
        queue,
        wake_up,
        scheduled,
        returned.map_or(0, |at| at.saturating_sub(r.taken)),
    ]
}

/// The stages on the stack plane of a packet that its own thread found, after the interrupt had woken it: here `wake-up`
/// and `scheduled` come first, and `ring` is the rest of the way to the pass.
pub fn of_woken(r: &Received) -> [u64; RECEIVE.len()] {
    let pass = within(r.pass, r.reached);
    let switched = within(r.switched, pass);
    let runnable = within(r.runnable, switched);
    let woken = if r.woken == 0 { runnable } else { r.woken.clamp(runnable, switched) };
    let mut stages = of_receive(&Received { signal: 0, runnable: 0, ..r.clone() }, None);
    (stages[RING], stages[WAKE_UP], stages[SCHEDULED]) =
        (pass - switched, woken - runnable, switched - woken);
    stages
}

/// A time that was seen and is not after `end`, else `end`.
fn within(time: u64, end: u64) -> u64 {
    if time == 0 || time > end { end } else { time }
}

/// How long the thread waited for a CPU after the packet had reached its socket: until it was on a run queue, and on it.
fn waited(r: &Received) -> (u64, u64) {
    let seen = r.runnable > 0 && r.runnable <= r.switched;
    if !seen || r.switched <= r.reached || r.switched > r.taken {
        return (0, 0);
    }
    let from = r.runnable.max(r.reached);
    // A thread that is woken on its own CPU may be put there at once.
    let woken = if r.woken == 0 { from } else { r.woken.clamp(from, r.switched) };
    (woken - from, r.switched - woken)
}

/// The stages of a send, in ns.
pub fn of_send(s: &Sent) -> [u64; SEND.len()] {
    let call = if s.enter == 0 { 0 } else { s.queue.saturating_sub(s.enter) };
    [call, s.start.saturating_sub(s.queue), s.done.saturating_sub(s.start)]
}

/// The longest stage.
pub fn longest(stages: &[u64]) -> usize {
    (0..stages.len()).max_by_key(|nth| stages[*nth]).unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use busypoll_linux::bpf::trace::{Call, Ends, Found, Thread};

    use super::*;

    /// A receive that slept, found by a softirq; each stage takes ten times its number and 1.
    pub fn sample() -> Received {
        Received {
            pid: 10,
            tid: 11,
            name: "reader".into(),
            cpu: 1,
            sent: 1000,
            signal: 1005,
            pass: 1011,
            handed: 1032,
            reached: 1063,
            runnable: 1070,
            woken: 1104,
            switched: 1165,
            taken: 1200,
            longest: Call::default(),
            before: (Thread { id: 5, name: "hog".into() }, 90),
            found_cpu: 0,
            found: Found::Softirq,
            ran: Thread { id: 7, name: "sender".into() },
            napi: None,
            ifindex: 2,
            line: 0,
            len: 38,
            ends: Ends { tcp: false, local: ([10, 0, 0, 1], 7000).into(), peer: None },
        }
    }

    #[test]
    fn stages_add_up_to_the_whole() {
        let r = sample();
        let stages = of_receive(&r, Some(1250));
        assert_eq!(stages, [11, 21, 31, 7 + 35, 34, 61, 50]);
        assert_eq!(stages.iter().sum::<u64>(), 250);
        assert_eq!(longest(&stages), SCHEDULED);
        let unseen = Received { sent: 0, ..r.clone() };
        assert_eq!(of_receive(&unseen, None)[RING], 6);
        let polled = Received { sent: 0, signal: 0, ..r };
        assert_eq!(of_receive(&polled, None)[RING], 0);
    }

    #[test]
    fn a_thread_that_was_not_woken_leaves_the_packet_in_the_queue() {
        let mut r = sample();
        // It had its CPU before the packet came.
        (r.runnable, r.woken, r.switched) = (900, 910, 950);
        let stages = of_receive(&r, None);
        assert_eq!((stages[QUEUE], stages[WAKE_UP], stages[SCHEDULED]), (137, 0, 0));
        // It was waiting for the CPU when the packet came: only the rest counts.
        (r.runnable, r.woken, r.switched) = (900, 910, 1163);
        let stages = of_receive(&r, None);
        assert_eq!((stages[QUEUE], stages[WAKE_UP], stages[SCHEDULED]), (37, 0, 100));
    }

    #[test]
    fn times_that_were_not_seen_make_no_stage() {
        let mut r = sample();
        (r.sent, r.signal, r.pass, r.handed) = (0, 0, 0, 0);
        assert_eq!(of_receive(&r, None)[..3], [0, 0, 0]);
        // In the wrong order, as after a pointer was used again.
        (r.sent, r.pass, r.handed) = (5000, 4000, 3000);
        let stages = of_receive(&r, Some(1));
        assert_eq!((stages[..3].to_vec(), stages[RETURN]), (vec![0, 0, 0], 0));
    }

    #[test]
    fn a_thread_that_is_woken_to_find_a_packet_waits_for_its_cpu_first() {
        let mut r = sample();
        (r.sent, r.runnable, r.woken, r.switched) = (0, 900, 910, 950);
        let stages = of_woken(&r);
        assert_eq!(stages, [61, 21, 31, 137, 10, 40, 0]);
        assert_eq!(stages.iter().sum::<u64>(), r.taken - r.runnable);
        // Times that were not seen.
        (r.runnable, r.woken, r.switched) = (0, 0, 0);
        assert_eq!(of_woken(&r), [0, 21, 31, 137, 0, 0, 0]);
    }

    #[test]
    fn a_packet_sent_during_a_pass_did_not_wait_for_it() {
        let mut r = sample();
        (r.sent, r.pass) = (1020, 1011);
        assert_eq!(of_receive(&r, None)[..2], [0, 12]);
    }
}
