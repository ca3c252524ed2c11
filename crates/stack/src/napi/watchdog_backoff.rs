//! How often the watchdog looks at a queue that is polled all the time. With a watchdog of minutes, so that no clock
//! decides.

use super::*;
use crate::{Host, nic::cable, time};

const MINUTE: Duration = Duration::from_secs(60);

/// A queue that is left to its pollers, and its host.
fn watched() -> (Host, Arc<Context>) {
    let (near, _far) = cable::pair(cable::Config::default()).unwrap();
    let host = Host::builder().watchdog(MINUTE).interface(near, "10.0.0.1/24").build().unwrap();
    let context = host.contexts().next().unwrap().clone();
    // The interrupt thread looks once and rests: of its own it does no more, as nothing comes.
    while !context.handoff.take_interrupt() {
        std::thread::yield_now();
    }
    (host, context)
}

/// Polls, and has the watchdog look; how long after that the next look is due, in minutes, if there is one.
fn look(context: &Context) -> Option<u64> {
    context.handoff.watch();
    let now = time::now();
    context.busy_poll(1, now, &mut Poller::new(0));
    context.check_pollers(now).then(|| (context.check_due() - now).as_secs().div_ceil(60))
}

/// Looks until looks are put off no more. A test beside this one may have somebody asleep, who may be for any queue:
/// then they begin anew.
fn reach_max_backoff(context: &Context) {
    let mut before = 4;
    for _ in 0..100_000 {
        let now = look(context).expect("it was polled just now");
        assert!(now == 4 || now == 32.min(before * 2), "{now} minutes after {before}");
        if (before, now) == (32, 32) {
            return;
        }
        before = now;
        std::thread::yield_now();
    }
    panic!("it never calmed down");
}

/// Until the next look, in minutes.
fn due(context: &Context) -> u64 {
    (context.check_due() - time::now()).as_secs().div_ceil(60)
}

#[test]
fn looks_that_find_nobody_asleep_are_put_off_twice_as_long_each_time() {
    let (_host, context) = watched();
    reach_max_backoff(&context);
    assert!(context.handoff.lead());
    assert_eq!(look(&context), Some(4));
}

#[test]
fn who_goes_to_sleep_has_the_watchdog_look_in_time() {
    let waiter = Waiter::of_this_thread().unwrap();
    let (_other_host, other) = watched();
    for is_astray in [false, true] {
        let (_host, context) = watched();
        reach_max_backoff(&context);
        // One who leads sees to the queue himself.
        assert!(context.handoff.lead());
        assert_eq!(due(&context), 32);
        let contexts = [other.clone(), context.clone()];
        waiter.start();
        let timeout = Some(Duration::from_millis(1));
        sleep_for(&contexts[usize::from(!is_astray)..], &waiter, timeout, &mut Outside::nothing());
        assert_eq!(due(&context), 4);
    }
}

#[test]
fn pollers_that_have_gone_leave_no_calm_behind() {
    let (_host, context) = watched();
    reach_max_backoff(&context);
    context.handoff.watch();
    assert!(!context.check_pollers(time::now() + MINUTE * 16));
    // The interrupt thread, which was called, may have had the watchdog look again.
    assert!(due(&context) <= 8);
}

/// What a pass answers may be sent by a system call, which takes its time.
#[test]
fn who_is_in_a_pass_has_not_gone_however_long_it_takes() {
    let (_host, context) = watched();
    let much_later = time::now() + MINUTE * 16;
    assert!(context.word.lock_poll().is_ok());
    context.handoff.watch();
    let left = context.check_pollers(much_later);
    // Before anything may fail: the host would wait for the pass to end.
    context.word.unlock();
    assert!(left);
}
