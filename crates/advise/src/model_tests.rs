use super::*;
use crate::recording::ThreadRounds;

/// Asleep 40 us, polling 25 us, on the stack plane 12 us; watching costs 1 us.
const COSTS: Costs = Costs {
    asleep_ns: 40_000.0,
    asleep_watched_ns: 41_000.0,
    kernel_ns: 25_000.0,
    stack_ns: Some(12_000.0),
    wake_up_ns: 10_000.0,
    found_ns: 2_000.0,
};

/// A packet comes `arrival` after the wait began; 10 us of work, 12 us to wake up.
fn round(arrival: u64) -> Round {
    Round {
        wait: arrival + 12_000,
        arrival,
        delay: 12_000,
        work: 10_000,
        work_cpu: 10_000,
        wait_cpu: 4_000,
        calls: 3,
    }
}

fn recording(rounds: Vec<Round>) -> Recording {
    let time = rounds.iter().map(|round| round.wait + round.work).sum();
    let thread = ThreadRounds { tid: 1, rounds, ..ThreadRounds::default() };
    Recording { time, threads: vec![thread], lost: 0 }
}

fn kernel(us: u64) -> Setting {
    Setting { plane: Plane::Kernel, poll: Some(Duration::from_micros(us)) }
}

const ALWAYS: Setting = Setting { plane: Plane::Kernel, poll: None };

#[test]
fn a_request_and_its_answer_gain_what_the_lab_gained_and_their_own_longer_wake_up() {
    let recording = recording(vec![round(20_000); 1000]);
    let off = predict(&recording, &COSTS, Setting::OFF).unwrap();
    assert_eq!((off.found, off.round_p50, off.delay_p50), (0.0, 41.0, 12.0));
    // 14 of 42 us on a CPU; in both 1 is not there without watching.
    assert!((off.cpu - 13.0 / 41.0).abs() < 1e-6, "{off:?}");
    // 41 us less the 15 of the lab, less the 2 by which its wake-up is slower than the lab's.
    let polled = predict(&recording, &COSTS, kernel(50)).unwrap();
    assert_eq!((polled.found, polled.round_p50, polled.delay_p50), (1.0, 24.0, 2.0));
    assert!((polled.cpu - 1.0).abs() < 1e-6, "{polled:?}");
    let stack = Setting { plane: Plane::Stack, ..kernel(50) };
    assert_eq!(predict(&recording, &COSTS, stack).unwrap().round_p50, 11.0);
}

#[test]
fn a_poll_that_is_too_short_costs_and_gains_nothing() {
    let recording = recording(vec![round(100_000); 100]);
    let off = predict(&recording, &COSTS, Setting::OFF).unwrap();
    let short = predict(&recording, &COSTS, kernel(50)).unwrap();
    assert_eq!((short.found, short.round_p50, short.delay_p99), (0.0, off.round_p50, 12.0));
    assert!(short.cpu > off.cpu + 0.35, "{short:?} {off:?}");
    let enough = predict(&recording, &COSTS, kernel(200)).unwrap();
    assert_eq!(enough.found, 1.0);
    assert!(enough.cpu > 0.99);
}

/// Nine packets in ten come soon, one after a pause: longer polling buys the tail.
#[test]
fn longer_polling_finds_more_of_mixed_waits() {
    let mut rounds = vec![round(20_000); 900];
    rounds.extend(vec![round(150_000); 90]);
    rounds.extend(vec![round(5_000_000); 10]);
    let recording = recording(rounds);
    let [short, long, always] =
        [kernel(50), kernel(200), ALWAYS].map(|it| predict(&recording, &COSTS, it).unwrap());
    assert_eq!([short, long, always].map(|it| it.found), [0.9, 0.99, 1.0]);
    assert_eq!([short, long, always].map(|it| it.delay_p99), [12.0, 2.0, 2.0]);
    assert!(short.cpu < long.cpu && long.cpu < always.cpu, "{short:?} {long:?} {always:?}");
    assert!(always.cpu <= 1.0 + 1e-9);
}

#[test]
fn without_a_measured_stack_plane_there_is_no_figure_for_it() {
    let costs = Costs { stack_ns: None, ..COSTS };
    let recording = recording(vec![round(20_000); 10]);
    let stack = Setting { plane: Plane::Stack, ..kernel(50) };
    assert_eq!(predict(&recording, &costs, stack), None);
    assert_eq!(predict(&Recording::default(), &COSTS, kernel(50)), None);
}

/// A second thread with waits of its own needs a CPU of its own.
#[test]
fn threads_add_up() {
    let mut recording = recording(vec![round(20_000); 1000]);
    recording.threads.push(recording.threads[0].clone());
    let always = predict(&recording, &COSTS, ALWAYS).unwrap();
    assert!((always.cpu - 2.0).abs() < 0.01, "{always:?}");
    assert_eq!(recording.pollers(), 2);
}
