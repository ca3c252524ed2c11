//! How often the watchdog checks a queue that is polled all the time. The watchdog's period is a minute, so that the
//! tests do not depend on time.

use super::super::*;
use crate::{
    Host,
    inet::{Context, Input},
    nic::cable,
    time,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A queue that is left to its pollers, and its host.
fn watched() -> (Host, Arc<Context>) {
    let (near, _far) = cable::pair(cable::Config::default()).unwrap();
    let host = Host::builder().watchdog(MINUTE).interface(near, "10.0.0.1/24").build().unwrap();
    let context = host.contexts().next().unwrap().clone();
    // The interrupt thread polls once and goes to sleep. It does no more, because no packet comes.
    while !context.handoff.take_interrupt() {
        std::thread::yield_now();
    }
    (host, context)
}

/// Polls the queue, then makes the watchdog's check. Returns the minutes until the next check, if there is one.
fn look(context: &Context) -> Option<u64> {
    context.handoff.watch();
    let now = time::now();
    context.busy_poll(1, now, &mut Poller::new(0));
    context.check_pollers(now).then(|| (context.check_due() - now).as_secs().div_ceil(60))
}

/// Checks until the backoff grows no more. Another test may have an unbound sleeper, which resets the backoff.
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
    panic!("the backoff never reached its maximum");
}

/// Minutes until the next check.
fn due(context: &Context) -> u64 {
    (context.check_due() - time::now()).as_secs().div_ceil(60)
}

#[test]
fn each_check_without_a_sleeper_doubles_the_time_to_the_next() {
    let (_host, context) = watched();
    reach_max_backoff(&context);
    // A leader waits on the interrupt itself.
    let (_host, context) = watched();
    assert!(context.handoff.lead());
    reach_max_backoff(&context);
}

#[test]
fn a_thread_that_goes_to_sleep_resets_the_backoff() {
    let waiter = Waiter::of_this_thread().unwrap();
    let (_other_host, other) = watched();
    for is_unbound in [false, true] {
        let (_host, context) = watched();
        reach_max_backoff(&context);
        // With a leader there already, the thread sleeps as a follower.
        assert!(context.handoff.lead());
        assert_eq!(due(&context), 32);
        let contexts = [other.clone(), context.clone()];
        waiter.start();
        let timeout = Some(Duration::from_millis(1));
        sleep_for(&contexts[usize::from(!is_unbound)..], &waiter, timeout, &mut KernelFds::none());
        // A thread that leads on another queue gives this one to its interrupt thread.
        assert_eq!(due(&context), if is_unbound { 0 } else { 4 });
    }
}

/// Such a thread may be woken by a packet of any queue.
#[test]
fn a_thread_asleep_on_no_queue_of_its_own_is_a_sleeper_of_every_queue() {
    let (_host, context) = watched();
    let waiter = Arc::new(Waiter::new().unwrap());
    waiter.start();
    std::thread::scope(|scope| {
        let sleeper =
            scope.spawn(|| sleep_for::<Input>(&[], &waiter, None, &mut KernelFds::none()));
        let give_up = time::now() + MINUTE;
        while !context.has_sleeper() && time::now() < give_up {
            std::thread::yield_now();
        }
        let seen = context.has_sleeper();
        let checked = look(&context);
        waiter.wake();
        assert!(matches!(sleeper.join().unwrap(), Wake::Woken) && seen);
        assert_eq!(checked, Some(4), "it relies on the checks");
    });
}

#[test]
fn the_backoff_is_reset_when_pollers_have_left() {
    let (_host, context) = watched();
    reach_max_backoff(&context);
    context.handoff.watch();
    assert!(!context.check_pollers(time::now() + MINUTE * 16));
    // The kicked interrupt thread may have registered with the watchdog again.
    assert!(due(&context) <= 8);
}

/// The answers of a pass may be sent by a system call, which takes time.
#[test]
fn a_poller_in_a_pass_has_not_left_however_long_the_pass_takes() {
    let (_host, context) = watched();
    let much_later = time::now() + MINUTE * 16;
    assert!(context.word.lock_poll().is_ok());
    context.handoff.watch();
    let left = context.check_pollers(much_later);
    // Before an assertion can fail: dropping the host waits for the pass to end.
    context.word.unlock();
    assert!(left);
}
