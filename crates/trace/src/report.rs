//! The report of a trace: its sentence, and what has to be known about the figures.

use busypoll_bench::data::{Header, Kind, TraceFlow, TraceReport};
use busypoll_bench::machine;
use busypoll_bench::text::figures::{grouped, time_text};

use crate::watch::Outcome;

/// Of a trace of `target`, on a kernel that cannot show some things.
pub fn build(target: &str, outcome: Outcome, lacks: &[String]) -> TraceReport {
    let (receives, sends) = (outcome.receives.report(), outcome.sends.report());
    let counts = outcome.counts;
    let mut notes = Vec::new();
    let mut note = |is: bool, text: String| {
        if is {
            notes.push(text);
        }
    };
    note(
        outcome.one_in > 1,
        format!("one in {} packets of each socket was traced", outcome.one_in),
    );
    note(
        counts.passed_by > 0,
        format!(
            "{} packets were not followed, because eight of their socket were on their way",
            grouped(counts.passed_by as f64)
        ),
    );
    note(
        counts.lost > 0,
        format!("{} records were dropped: nothing read them in time", grouped(counts.lost as f64)),
    );
    let sent: u64 = sends.iter().map(|flow| flow.packets).sum();
    let unseen = counts.chosen_out.saturating_sub(sent);
    note(
        // The last may still be on their way.
        unseen * 20 > counts.chosen_out,
        format!(
            "{} of {} sent packets were lost from sight before the driver: dropped, cut into segments, or still queued",
            grouped(unseen as f64),
            grouped(counts.chosen_out as f64)
        ),
    );
    let kernels = receives.iter().filter(|flow| flow.plane == "kernel");
    let taken: u64 = kernels.map(|flow| flow.packets).sum::<u64>() + counts.passed_by;
    let left = counts.seen_in.saturating_sub(taken);
    note(
        // Sampling leaves out others.
        outcome.one_in == 1 && counts.lost == 0 && left * 20 > counts.seen_in,
        format!(
            "{} of {} packets that reached its sockets are not in the tables: no call has taken them",
            grouped(left as f64),
            grouped(counts.seen_in as f64)
        ),
    );
    notes.extend(lacks.iter().cloned());
    TraceReport {
        header: Header::now(Kind::Trace),
        machine: machine::host(),
        answer: answer(target, outcome.one_in, &receives, &sends),
        target: target.to_owned(),
        seconds: outcome.time.as_secs_f64(),
        one_in: outcome.one_in,
        receives,
        sends,
        slowest: outcome.slowest,
        cost: outcome.cost,
        lost: counts.lost,
        notes,
    }
}

/// In a sentence: of the busiest flow received and the busiest sent, the one whose packets took longer, all together.
fn answer(target: &str, one_in: u64, receives: &[TraceFlow], sends: &[TraceFlow]) -> String {
    let time = |flow: &TraceFlow| flow.total_us.mean * flow.packets as f64;
    let all = receives.first().map(|flow| (flow, "received")).into_iter();
    let all = all.chain(sends.first().map(|flow| (flow, "sent")));
    let Some((flow, verb)) = all.max_by(|(a, _), (b, _)| time(a).total_cmp(&time(b))) else {
        return format!(
            "{target}: no packet was taken or sent. One that reaches a TCP or UDP socket is traced when a call takes it."
        );
    };
    let verb = if one_in == 1 { verb.to_owned() } else { format!("of those {verb}") };
    let longest = flow.stages_us.iter().max_by(|a, b| a.mean.total_cmp(&b.mean));
    let longest = longest.filter(|stage| stage.mean > 0.0).map_or(String::new(), |stage| {
        let share = stage.mean / flow.total_us.mean * 100.0;
        format!("; {share:.0}% of the time was '{}'", stage.stage)
    });
    let tail = flow.total_us.p99.map_or(String::new(), |us| format!(", p99 {}", time_text(us)));
    format!(
        "{target}: {} packets {verb} at {} took {} at the median{tail}{longest}.",
        grouped(flow.packets as f64),
        flow.local,
        time_text(flow.total_us.p50)
    )
}
