//! `src/napi`, compiled over loom, without the counters: they decide nothing, and each would double the schedules to
//! explore.

#[path = "../../src/napi/asleep.rs"]
mod asleep;
#[path = "../../src/napi/context.rs"]
mod context;
#[path = "../../src/napi/handoff.rs"]
pub(crate) mod handoff;
#[path = "../../src/napi/id.rs"]
mod id;
#[path = "../../src/napi/interrupt.rs"]
mod interrupt;
#[path = "../../src/napi/leader_epoll.rs"]
mod leader_epoll;
#[path = "../../src/napi/pass.rs"]
mod pass;
#[path = "../../src/napi/table.rs"]
pub(crate) mod table;
#[path = "../../src/napi/wait.rs"]
mod wait;
#[path = "../../src/napi/watchdog.rs"]
mod watchdog;
#[path = "../../src/napi/word.rs"]
pub(crate) mod word;

pub(crate) use context::Context;
use context::Parts;
use id::{MIN_NAPI_ID, NapiId};
pub(crate) use leader_epoll::LeaderEpoll;
use pass::PolledBy;
pub(crate) use pass::{Pass, Poller, Upper};
use wait::WakeList;
pub(crate) use wait::{KernelFds, Waiter, Wake};
pub(crate) use watchdog::Watchdog;
use word::Word;

use crate::{
    nic::{Ring, RingReceiver},
    sync::Arc,
};

/// A context in service over `ring`, its interrupt thread not yet running.
pub(crate) fn context<U: Upper>(ring: &Arc<Ring>, upper: U) -> Arc<Context<U>> {
    let rx = Box::new(RingReceiver::new(ring.clone()));
    let interrupt: std::sync::Arc<dyn crate::nic::Interrupt> =
        std::sync::Arc::new(crate::nic::RingInterrupt(ring.clone()));
    let parts = Parts {
        device: String::new(),
        queue: 0,
        rx,
        interrupt: Arc::from_std(interrupt),
        upper: Arc::new(upper),
        watchdog: std::time::Duration::from_micros(200),
        counters: counters::PlacedCounters::default(),
    };
    let context = Context::new(NapiId::new(MIN_NAPI_ID).unwrap(), parts).unwrap();
    context.enable();
    Arc::new(context)
}

/// A watchdog whose thread is not yet running.
pub(crate) fn watchdog<U: Upper>() -> Arc<Watchdog<U>> {
    Arc::new(Watchdog::new().unwrap())
}

/// The body of the watchdog thread.
pub(crate) fn guard(watchdog: &Watchdog<impl Upper>) {
    watchdog.run();
}

/// The body of the interrupt thread.
pub(crate) fn serve<U: Upper>(context: &Arc<Context<U>>, watchdog: &Watchdog<U>) {
    interrupt::serve(context, watchdog);
}

/// Records a busy poll now.
pub(crate) fn note_poll(context: &Context<impl Upper>) {
    context.note_poll(crate::time::now(), false);
}

/// Whether the queue is still left to pollers `after` the busy poll.
pub(crate) fn is_left(context: &Context<impl Upper>, after: std::time::Duration) -> bool {
    context.is_polled(crate::time::now() + after)
}

/// Makes the caller the leader of the context.
pub(crate) fn lead(context: &Context<impl Upper>) -> bool {
    context.handoff.lead()
}

/// Ends the interrupt thread.
pub(crate) fn stop(context: &Context<impl Upper>) {
    context.line.stop();
}

/// Ends the watchdog thread.
pub(crate) fn dismiss<U: Upper>(watchdog: &Watchdog<U>, context: &Arc<Context<U>>) {
    watchdog.forget(context);
    watchdog.stop();
}

/// Closes the context, as dropping `Serving` does.
pub(crate) fn disable(context: &Context<impl Upper>) {
    context.disable();
}

mod counters {
    pub(crate) use busypoll_stack::napi::Stats;

    #[derive(Default)]
    pub(crate) struct Counter;

    impl Counter {
        pub(crate) fn add(&self, _n: u64) {}
        pub(crate) fn add_shared(&self) {}
    }

    #[derive(Default)]
    pub(crate) struct Counters {
        pub(crate) bp_yields: Counter,
        pub(crate) bp_misses: Counter,
        pub(crate) bp_cleaned: Counter,
        pub(crate) bp_crowded: Counter,
        pub(crate) napi_yields: Counter,
        pub(crate) polls: Counter,
        pub(crate) interrupts: Counter,
        pub(crate) watchdogs: Counter,
        pub(crate) packets: Counter,
    }

    pub(crate) type PlacedCounters = Counters;

    impl Counters {
        pub(crate) fn snapshot(&self, _rx_dropped: u64) -> Stats {
            Stats::default()
        }
    }
}
