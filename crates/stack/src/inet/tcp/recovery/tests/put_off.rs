//! A deferred ACK must have the same effect: one `Recovery` that processes ACKs at once beside one that defers them.

use super::super::*;
use proptest::prelude::*;

const MSS: u32 = 1_000;

#[derive(Clone, Debug)]
enum Step {
    /// This many segments, as far as there is room for them.
    Send(u32),
    /// Everything sent so far is acknowledged.
    AckAll,
    /// SACK reports all segments in flight but the first.
    Sack,
    Wait(u64),
    /// The next timer fires.
    Fire,
    Repair,
    Resume,
    Shrink,
    /// `TCP_RTO_MIN_US`, in milliseconds.
    LeastTimeout(u64),
    Idle,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..3u32).prop_map(Step::Send),
        6 => Just(Step::AckAll),
        1 => Just(Step::Sack),
        3 => (0..400u64).prop_map(Step::Wait),
        1 => Just(Step::Fire),
        1 => Just(Step::Repair),
        2 => Just(Step::Resume),
        1 => Just(Step::Shrink),
        1 => prop::sample::select(vec![1, 200, 1_000]).prop_map(Step::LeastTimeout),
        1 => Just(Step::Idle),
    ]
}

/// `late`: as a connection that has nothing more to send.
fn take(recovery: &mut Recovery, step: &Step, late: bool, now: &mut Instant) {
    match *step {
        Step::Send(segments) => {
            for _ in 0..segments {
                if recovery.has_room() {
                    let start = recovery.nxt;
                    recovery.sent(start..start + MSS, *now);
                }
            }
        }
        Step::AckAll => {
            let ack = recovery.nxt;
            if !late || !recovery.acked_all_fast(ack, *now) {
                recovery.acked(&event(ack, &Sacks::default()), *now);
            }
        }
        Step::Sack => {
            let mut sacks = Sacks::default();
            let (una, nxt) = (recovery.una, recovery.nxt);
            if nxt - una > MSS && recovery.in_flight() > 0 {
                sacks.push(una + MSS..nxt);
                recovery.acked(&event(una, &sacks), *now);
            }
        }
        Step::Wait(ms) => *now = *now + Duration::from_millis(ms),
        Step::Fire => {
            if let Some(at) = recovery.deadline() {
                *now = at.max(*now);
                recovery.timer(*now);
            }
        }
        Step::Repair => {
            while let Some(range) = recovery.next_retransmission() {
                recovery.resent(range, *now);
            }
        }
        Step::Resume => recovery.idle_restart(*now),
        Step::Shrink => recovery.set_mss(MSS / 2, *now),
        Step::LeastTimeout(ms) => recovery.set_min_rto(Duration::from_millis(ms)),
        Step::Idle => recovery.free_idle_memory(),
    }
}

fn event(ack: Seq, sacks: &Sacks) -> AckEvent<'_> {
    AckEvent { ack, sacks, echoed: None, ece: false, pure: true, unsent: false }
}

fn shown(recovery: &Recovery) -> (bool, u32, Option<Range<Seq>>, Option<Instant>, bool) {
    (
        recovery.has_room(),
        recovery.in_flight(),
        recovery.next_retransmission(),
        recovery.deadline(),
        recovery.wants_new(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_deferred_ack_has_the_same_effect(
        measured: bool,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let settings = Settings::new(&Config::default(), &TcpOptions::default());
        let rtt = measured.then_some(Duration::from_millis(20));
        let agreed = Agreed { sack: true, rtt, ..Agreed::default() };
        let start = Instant::from_millis(1_000);
        let new = || Recovery::new(settings, agreed, MSS, Seq(u32::MAX - 5_000), start);
        let (mut at_once, mut late) = (new(), new());
        let (mut now, mut then) = (start, start);
        for step in &steps {
            take(&mut at_once, step, false, &mut now);
            take(&mut late, step, true, &mut then);
            prop_assert_eq!(shown(&late), shown(&at_once), "{:?}", step);
            prop_assert_eq!(then, now);
        }
        prop_assert_eq!(late.figures(), at_once.figures());
        prop_assert_eq!((late.room(), late.rto()), (at_once.room(), at_once.rto()));
    }
}
