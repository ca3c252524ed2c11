use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SPAN: u64 = 50 * US;

thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

fn count_step() {
    STEPS.set(STEPS.get() + 1);
}

/// Without a table.
fn new_record() -> Record {
    Record::new(|| None, |_| STEPS.get(), verdicts())
}

/// With the table of [`here`].
fn new_record_here() -> Record {
    Record::new(here, |_| STEPS.get(), verdicts())
}

/// Those of a test, as of a process.
fn verdicts() -> &'static Verdicts {
    thread_local!(static VERDICTS: &'static Verdicts = Box::leak(Box::new(Verdicts::new())));
    VERDICTS.with(|verdicts| *verdicts)
}

fn in_trial(record: &Record) -> bool {
    record.trial.get() > 0
}

/// A trial in which a wait takes `slept`, or `spun` of the time since the stretch began. Returns the time spent
/// spinning, if spinning was found harmful.
fn trial(slept: u64, spun: impl Fn(u64) -> u64) -> Option<u64> {
    trial_with_work(slept, spun, [0, 0])
}

/// The same with work between waits: after waits that slept, and after waits that spun.
fn trial_with_work(slept: u64, spun: impl Fn(u64) -> u64, work: [u64; 2]) -> Option<u64> {
    let record = new_record();
    let mut now = MS;
    record.start_trial(now);
    let mut spent = 0;
    while record.trial.get() > 0 {
        let spins = record.may_spin(now, SPAN);
        let length = if spins { spun(now - record.stretch.began.get()) } else { slept };
        spent += if spins { length } else { 0 };
        record.ended(spins, false, now, || now + length);
        count_step();
        now += length + work[usize::from(spins)];
    }
    record.backs_off(|| now).then_some(spent)
}

#[test]
fn waits_before_the_scheduler_separates_two_threads_do_not_count() {
    let parted = |since| if since < 2 * MS { 110 * US } else { 6 * US };
    assert_eq!(trial(60 * US, parted), None);
    assert_eq!(trial(10 * US, parted), None);
}

#[test]
fn spinning_that_makes_waits_longer_ends_soon() {
    for (slept, spun) in [(10 * US, 110 * US), (30 * US, 45 * US), (10 * US, 16 * US)] {
        let most = 2 * TRIAL as u64 * (STRETCH + spun);
        assert!(trial(slept, |_| spun).expect("harmful") < most);
    }
    // Clearly harmful.
    assert!(trial(10 * US, |_| 110 * US).unwrap() < 2 * CLEAR as u64 * STRETCH + 10 * MS);
    assert_eq!(trial(10 * US, |_| 10 * US + 600), None, "no difference");
}

#[test]
fn spinning_that_makes_the_work_between_waits_longer_ends() {
    // Redis and its client on one CPU.
    assert!(trial_with_work(30 * US, |_| 27 * US, [18 * US, 50 * US]).is_some());
    assert_eq!(trial_with_work(30 * US, |_| 10 * US, [18 * US, 22 * US]), None);
}

/// Two trials that found these waits; `wanted`: other threads wanted the CPU.
fn judged(slept: u64, spun: u64, wanted: bool) -> bool {
    let record = new_record();
    for _ in 0..2 {
        record.start_trial(MS);
        record.trial.set(0);
        for means in [&record.mean_waits, &record.mean_rounds] {
            for _ in 0..TRIAL {
                means[0].add(slept);
                means[1].add(spun);
            }
        }
        record.judge(false, wanted, MS);
    }
    record.backs_off(|| MS)
}

#[test]
fn spinning_in_vain_ends_if_other_threads_want_the_cpu() {
    for (slept, spun) in [(100 * US, 100 * US), (100 * US, 90 * US), (100 * US, 106 * US)] {
        assert!(judged(slept, spun, true));
        assert!(!judged(slept, spun, false));
    }
    assert!(!judged(100 * US, 80 * US, true), "it is of use");
}

#[test]
fn a_cpu_is_wanted_if_a_quarter_of_the_waits_that_spun_lost_it() {
    let record = new_record();
    let lost = |preemptions| record.is_wanted(Switches { waits: 1000, preemptions });
    assert!(!lost(100), "no wait spun");
    record.spun.set(400);
    record.preemptions.set(50);
    assert!(lost(150) && !lost(149) && !lost(0));
}

#[test]
fn few_long_waits_decide_a_trial() {
    assert_eq!(trial(20 * MS, |_| 10 * MS), None);
    assert!(trial(10 * MS, |_| 20 * MS).is_some());
}

#[test]
fn the_interval_between_trials_doubles_while_spinning_is_harmless() {
    let record = new_record();
    let mut now = MS;
    for trusted in [200 * MS, 400 * MS, 800 * MS, TRIAL_INTERVAL_MAX, TRIAL_INTERVAL_MAX] {
        record.start_trial(now);
        while record.trial.get() > 0 {
            now += 60 * US;
            let spins = record.may_spin(now, SPAN);
            record.ended(spins, false, now, || now + 10 * US);
        }
        assert_eq!(record.no_trial_until.get(), now + trusted);
    }
}

/// A server that waited for its timer while it had no clients; then one connects.
#[test]
fn a_load_that_starts_is_not_taken_for_harm() {
    for seed in 1..200 {
        for idle in 1..8 {
            let record = new_record();
            record.random.set(seed);
            let mut now = MS;
            record.start_trial(now);
            while record.trial.get() > 0 {
                let spins = record.may_spin(now, SPAN);
                let length = if now < idle * 200 * MS { 100 * MS } else { 10 * US };
                record.ended(spins, false, now, || now + length);
                now += length;
            }
            assert!(!record.backs_off(|| now), "{seed} {idle}");
        }
    }
}

/// A client that has had its answers, and then gets one heartbeat a second.
#[test]
fn a_load_that_ends_is_not_taken_for_harm() {
    assert_eq!(trial(10 * MS, |_| 1000 * MS), None);
    assert_eq!(trial(10 * US, |_| 100 * MS), None);
}

#[test]
fn a_clock_that_goes_back_does_not_prolong_a_backoff_a_trial_or_an_interval() {
    let hour = 3600 * 1000 * MS;
    let record = new_record();
    record.backoff_until.set(hour + BACKOFF_FIRST);
    assert!(record.backs_off(|| hour));
    record.clock_skips.set(0);
    assert!(!record.backs_off(|| MS), "back by an hour");
    // In a trial the clock goes back again.
    record.stretch.began.set(hour);
    let mut now = MS;
    while record.trial.get() > 0 {
        assert!(now < 1000 * MS);
        let spins = record.may_spin(now, SPAN);
        record.ended(spins, false, now, || now + 10 * US);
        now += 20 * US;
    }
    let trusted = |until| is_ahead(until, MS, TRIAL_INTERVAL_MAX);
    assert!(trusted(2 * MS) && trusted(MS + TRIAL_INTERVAL_MAX) && !trusted(hour) && !trusted(MS));
}

/// Another program has the CPU in some of the stretches.
#[test]
fn a_few_slow_stretches_do_not_decide_a_trial() {
    let stretches = Cell::new((0, 0));
    let spun = |since: u64| {
        let (last, count) = stretches.get();
        stretches.set((since, count + u64::from(since < last)));
        if stretches.get().1 % 4 == 3 { 500 * US } else { 6 * US }
    };
    assert_eq!(trial(60 * US, spun), None);
}

#[test]
fn a_trial_without_a_free_cpu_to_spin_on_finds_no_harm() {
    let record = new_record();
    let mut now = MS;
    record.start_trial(now);
    while record.trial.get() > 0 {
        record.may_spin(now, SPAN);
        record.ended(false, false, now, || now + 10 * US);
        now += 10 * US;
    }
    assert!(!record.backs_off(|| now));
    assert!(now < STRETCHES as u64 * 2 * STRETCH);
}

/// A small difference decides if it is the same in nearly all stretches.
#[test]
fn rounds_that_are_always_a_little_longer_are_harm() {
    let work = |extra| [88 * US, 88 * US + extra];
    assert!(trial_with_work(10 * US, |_| 10 * US, work(10 * US)).is_some());
    assert_eq!(trial_with_work(10 * US, |_| 10 * US, work(4 * US)), None);
}

/// A wait that finds its data at once is not counted. If there are more of those without spinning, a round has
/// fewer waits, and is not longer.
#[test]
fn rounds_are_counted_by_steps_of_work_and_not_by_waits() {
    let record = new_record();
    let mut now = MS;
    record.start_trial(now);
    for round in 0.. {
        if record.trial.get() == 0 {
            break;
        }
        now += 90 * US;
        count_step();
        // The other half of the rounds find their data at once.
        if record.stretch.spins.get() || round % 2 == 0 {
            let spins = record.may_spin(now, SPAN);
            record.ended(spins, false, now, || now + 10 * US);
        }
        now += 10 * US;
    }
    assert!(!record.backs_off(|| now));
}

/// The table of these tests, and the CPU of each of their threads.
fn here() -> Option<Cpu> {
    thread_local!(static TABLE: Spinners = Spinners::private().unwrap());
    Some(Cpu { spinners: TABLE.with(|table| *table), number: 3 })
}

/// Until when the process spins nowhere on that CPU.
fn quiet_until(now: u64) -> u64 {
    match verdicts().says(3, now) {
        Says::Quiet(until) => until,
        other => panic!("{other:?}"),
    }
}

fn spinners() -> Spinners {
    here().unwrap().spinners
}

/// A thread of the CPU whose waits are longer while another one spins there, as it does whenever it may. Returns
/// when it has judged.
fn trial_beside_a_spinner(record: &Record, mut now: u64) -> u64 {
    let spinners = spinners();
    record.start_trial(now);
    assert!(in_trial(record));
    while in_trial(record) {
        let spins = record.may_spin(now, SPAN);
        if !in_trial(record) {
            break;
        }
        let quiet = spinners.is_quiet(3, now);
        assert_eq!(quiet, !spins, "the other goes the same way");
        let length = if quiet { 10 * US } else { 40 * US };
        // The other has the CPU, so this one does not spin either way.
        record.ended(false, false, now, || now + length);
        count_step();
        now += length + 10 * US;
    }
    now
}

/// The threads of a gRPC server take turns on one CPU: one works, and another one spins for the next request.
#[test]
fn harm_by_another_thread_of_the_cpu_ends_its_spinning_too() {
    let (record, spinners) = (new_record_here(), spinners());
    let mut now = trial_beside_a_spinner(&record, MS);
    // It stays quiet as long as a thread of the process waits here: this one or another.
    let harmful_until = quiet_until(now);
    assert!(harmful_until >= now + BACKOFF_FIRST);
    let other = new_record_here();
    while now < harmful_until {
        assert!(spinners.is_quiet(3, now) && !spinners.is_quiet(2, now));
        assert!(if (now / MS).is_multiple_of(2) { &record } else { &other }.backs_off(|| now));
        now += MS;
    }
    assert!(!spinners.is_quiet(3, now), "then it is tried again");
    assert!(!other.backs_off(|| now) && in_trial(&other));
    assert!(!record.backs_off(|| now) && !in_trial(&record), "as the trial says");
}

/// Each of its threads waits for a third of a second and ends, as those of a gRPC server.
#[test]
fn what_a_thread_has_found_stays_when_it_ends() {
    let spinners = spinners();
    let mut now = MS;
    for seconds in [1, 2, 4, 8] {
        let finder = new_record_here();
        if seconds > 1 {
            assert!(!finder.backs_off(|| now) && in_trial(&finder));
        }
        now = trial_beside_a_spinner(&finder, now);
        finder.thread_ends(now);
        let harmful_until = quiet_until(now);
        assert!(harmful_until > now + seconds * BACKOFF_FIRST - 5 * MS, "{seconds}");
        while now < harmful_until {
            let next = new_record_here();
            for _ in 0..100 {
                assert!(now >= harmful_until || next.backs_off(|| now));
                now += 3 * MS;
            }
            assert!(now >= harmful_until || spinners.is_quiet(3, now));
            next.thread_ends(now);
        }
    }
    // The process waits elsewhere, or has ended: others may spin soon.
    assert!(!spinners.is_quiet(3, now + HOLD_QUIET));
}

#[test]
fn a_thread_that_ends_in_a_trial_that_repeats_another_leaves_it_to_the_next() {
    let record = new_record_here();
    let mut now = quiet_until(trial_beside_a_spinner(&record, MS));
    let next = new_record_here();
    assert!(!next.backs_off(|| now) && in_trial(&next));
    now += MS;
    next.thread_ends(now);
    assert!(record.backs_off(|| now), "not before a pause");
    now += TRIAL_INTERVAL_FIRST;
    assert!(!record.backs_off(|| now) && in_trial(&record));
}

#[test]
fn a_cpu_has_one_trial_at_a_time_and_a_pause_after_it() {
    let (first, second) = (new_record_here(), new_record_here());
    let mut now = MS;
    first.start_trial(now);
    second.start_trial(now);
    assert!(in_trial(&first) && !in_trial(&second));
    while in_trial(&first) {
        let spins = first.may_spin(now, SPAN);
        first.ended(spins, false, now, || now + 10 * US);
        count_step();
        now += 20 * US;
    }
    assert!(!first.backs_off(|| now) && !spinners().is_quiet(3, now));
    second.start_trial(now);
    assert!(!in_trial(&second));
    second.start_trial(now + TRIAL_INTERVAL_MAX);
    assert!(in_trial(&second));
}

#[test]
fn a_thread_that_ends_in_a_trial_leaves_the_cpu_to_others() {
    let record = new_record_here();
    let mut now = MS;
    record.start_trial(now);
    while record.may_spin(now, SPAN) {
        record.ended(false, false, now, || now + 10 * US);
        now += 10 * US;
    }
    assert!(spinners().is_quiet(3, now));
    record.thread_ends(now);
    assert!(!spinners().is_quiet(3, now) && !in_trial(&record));
}

#[test]
fn a_thread_that_may_not_try_again_goes_on_without_spinning() {
    let (record, other) = (new_record_here(), new_record_here());
    let mut now = trial_beside_a_spinner(&record, MS);
    assert!(!other.start_trial(now), "the CPU is quiet");
    now = quiet_until(now);
    // Of another process.
    let other = Record::new(here, |_| STEPS.get(), Box::leak(Box::new(Verdicts::new())));
    other.start_trial(now);
    assert!(in_trial(&other) && record.backs_off(|| now) && !in_trial(&record));
    other.thread_ends(now);
    assert!(record.backs_off(|| now) && !spinners().is_quiet(3, now), "the CPU is the other's");
    assert_eq!(verdicts().says(3, now), Says::PutOff);
    now += TRIAL_INTERVAL_FIRST;
    assert!(!record.backs_off(|| now) && in_trial(&record));
}

/// Each has found harm while the other did not wait.
#[test]
fn two_processes_that_both_know_harm_do_not_keep_each_other_from_trying() {
    let others: &'static Verdicts = Box::leak(Box::new(Verdicts::new()));
    let (ours, theirs) = (new_record_here(), Record::new(here, |_| STEPS.get(), others));
    let mut now = trial_beside_a_spinner(&ours, MS) + 2 * HOLD_QUIET;
    now = trial_beside_a_spinner(&theirs, now);
    let over = quiet_until(now) + BACKOFF_FIRST + TRIAL_INTERVAL_MAX;
    while !in_trial(&ours) && !in_trial(&theirs) {
        assert!(now < over, "neither tries");
        ours.backs_off(|| now);
        theirs.backs_off(|| now + US);
        now += 300 * US;
    }
}

#[test]
fn a_thread_that_was_moved_decides_for_itself_alone() {
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(3) });
    let anywhere = || here().map(|cpu| Cpu { number: NUMBER.get(), ..cpu });
    let (record, spinners) = (Record::new(anywhere, |_| STEPS.get(), verdicts()), spinners());
    let mut now = MS;
    record.start_trial(now);
    while in_trial(&record) {
        let spins = record.may_spin(now, SPAN);
        assert!(!spinners.is_quiet(4, now));
        let length = if spins { 100 * US } else { 10 * US };
        record.ended(spins, false, now, || now + length);
        count_step();
        now += length;
        NUMBER.set(4);
    }
    assert!(record.backs_off(|| now) && !spinners.is_quiet(3, now + HOLD));
    assert!(!spinners.is_quiet(4, now));
}

#[test]
fn a_child_begins_anew() {
    let record = new_record_here();
    let now = trial_beside_a_spinner(&record, MS);
    assert!(record.backs_off(|| now));
    record.in_child();
    assert!(!record.backs_off(|| now) && !in_trial(&record));
    assert!(spinners().is_quiet(3, now), "the parent goes on");
}

/// Most waits of an idle program end by their timeout, which is no step of work.
#[test]
fn rare_steps_are_not_taken_for_harm() {
    for seed in 1..400 {
        let record = new_record();
        record.random.set(seed);
        let (mut now, mut random) = (MS, seed);
        record.start_trial(now);
        while in_trial(&record) {
            let spins = record.may_spin(now, SPAN);
            record.ended(spins, false, now, || now + 100 * US);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 33 & 7 == 0 {
                count_step();
            }
            now += 101 * US;
        }
        assert!(!record.backs_off(|| now), "{seed}");
    }
}
