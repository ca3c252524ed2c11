//! Who sees to the queue: the interrupt thread, leaders, pollers that leave. The context, the thread's loop
//! and the line are the product's files; a packet left on the ring with everybody asleep is a deadlock,
//! which loom reports.

use crate::{
    check,
    napi::{
        self, Context, Outside, Pass, Poller, Upper, Waiter, Wake, Watchdog,
        handoff::{Handoff, Heir, Parting, Rest},
    },
    nic::{Frame, Ring, RingSender},
    sync::Arc,
    time::{self, Instant},
};
use loom::{sync::Mutex, thread};

/// Two sockets; a frame's byte says which one it is for.
#[derive(Clone, Default)]
struct Sockets(Arc<[Mutex<Socket>; 2]>);

#[derive(Default)]
struct Socket {
    packets: u32,
    waiter: Option<Arc<Waiter>>,
}

impl Upper for Sockets {
    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_>) {
        let mut socket = self.0[usize::from(frame.bytes[0])].lock().unwrap();
        socket.packets += 1;
        if let Some(waiter) = socket.waiter.take() {
            pass.wake.push(waiter);
        }
    }

    fn tick(&self, _pass: &mut Pass<'_>) -> Option<Instant> {
        None
    }
}

impl Sockets {
    fn packets(&self, at: usize) -> u32 {
        self.0[at].lock().unwrap().packets
    }

    /// A blocking receive; `sleep` is called with the queue empty and the waiter known.
    fn receive_by(&self, at: usize, waiter: &Arc<Waiter>, sleep: impl Fn(&Arc<Waiter>)) {
        loop {
            waiter.start();
            {
                let mut socket = self.0[at].lock().unwrap();
                if socket.packets > 0 {
                    socket.packets -= 1;
                    socket.waiter = None;
                    return;
                }
                socket.waiter = Some(waiter.clone());
            }
            sleep(waiter);
        }
    }
}

struct Stage {
    context: Arc<Context>,
    sockets: Sockets,
    sender: RingSender,
    napi: thread::JoinHandle<()>,
    watchdog: Arc<Watchdog>,
    guard: thread::JoinHandle<()>,
}

impl Stage {
    fn set() -> Stage {
        let ring = Ring::new(4);
        let sockets = Sockets::default();
        let context = napi::context(&ring, std::sync::Arc::new(sockets.clone()));
        let watchdog = napi::watchdog();
        let guard = {
            let watchdog = watchdog.clone();
            thread::spawn(move || napi::guard(&watchdog))
        };
        let napi = {
            let (context, watchdog) = (context.clone(), watchdog.clone());
            thread::spawn(move || napi::serve(&context, &watchdog))
        };
        Stage { context, sockets, sender: RingSender::new(ring), napi, watchdog, guard }
    }

    /// A thread that receives so many packets of a socket, asleep as the context has it sleep.
    fn receiver(&self, at: usize, packets: usize) -> thread::JoinHandle<()> {
        let (context, sockets) = (self.context.clone(), self.sockets.clone());
        thread::spawn(move || {
            let waiter = Arc::new(Waiter::new().unwrap());
            for _ in 0..packets {
                sockets.receive_by(at, &waiter, |waiter| {
                    context.sleep(waiter, None, &mut Outside::nothing());
                });
            }
        })
    }

    /// A thread that busy polls so many times and then leaves for good.
    fn poller(&self, times: usize) -> thread::JoinHandle<()> {
        let context = self.context.clone();
        thread::spawn(move || {
            for _ in 0..times {
                context.busy_poll(1, time::now(), &mut Poller::new(0));
            }
        })
    }

    /// Waits for a packet of a socket and does nothing for it.
    fn await_delivery(&self, at: usize) {
        let waiter = Arc::new(Waiter::new().unwrap());
        self.sockets.receive_by(at, &waiter, |waiter| {
            waiter.sleep(None, &mut Outside::nothing());
        });
    }

    /// Closes the context; whoever it served may still be at it. Its peer can go on sending.
    fn close(self) -> RingSender {
        napi::disable(&self.context);
        napi::stop(&self.context);
        self.napi.join().unwrap();
        napi::dismiss(&self.watchdog, &self.context);
        self.guard.join().unwrap();
        self.sender
    }
}

#[test]
fn a_leader_that_leaves_and_a_thread_that_rests_do_not_both_leave_it_to_the_other() {
    for heir in [Heir::Leader, Heir::Sleepers, Heir::Nobody] {
        check(None, move || {
            let handoff = Arc::new(Handoff::new());
            assert!(handoff.lead());
            let napi = {
                let handoff = handoff.clone();
                thread::spawn(move || handoff.rest() == Rest::Arm)
            };
            let parting = handoff.resign(heir);
            assert!(napi.join().unwrap() || parting != Parting::Nothing);
        });
    }
}

#[test]
fn the_interrupt_thread_delivers_alone() {
    check(Some(3), || {
        let mut stage = Stage::set();
        for _ in 0..2 {
            stage.sender.send(0);
            stage.await_delivery(0);
        }
        stage.close();
    });
}

#[test]
fn what_a_leaving_poller_left_is_delivered() {
    check(Some(1), || {
        let mut stage = Stage::set();
        let poller = stage.poller(1);
        stage.sender.send(0);
        stage.sender.send(0);
        stage.await_delivery(0);
        stage.await_delivery(0);
        poller.join().unwrap();
        stage.close();
    });
}

#[test]
fn what_is_left_to_pollers_that_have_gone_is_the_watchdogs() {
    // The interrupt thread finds the queue polled, at every moment of the watchdog's own.
    check(Some(2), || {
        let mut stage = Stage::set();
        napi::note_poll(&stage.context);
        stage.sender.send(0);
        stage.await_delivery(0);
        stage.close();
    });
}

#[test]
fn where_nobody_sleeps_the_queue_is_left_to_its_poller_for_longer() {
    check(Some(1), || {
        let stage = Stage::set();
        let micros = std::time::Duration::from_micros;
        napi::note_poll(&stage.context);
        assert!(napi::is_left(&stage.context, micros(799)));
        assert!(!napi::is_left(&stage.context, micros(800)));
        assert!(napi::lead(&stage.context));
        assert!(napi::is_left(&stage.context, micros(199)));
        assert!(!napi::is_left(&stage.context, micros(200)));
        stage.close();
    });
}

#[test]
fn a_leader_is_woken_by_every_packet() {
    check(Some(2), || {
        let mut stage = Stage::set();
        let leader = stage.receiver(0, 2);
        stage.sender.send(0);
        stage.sender.send(0);
        leader.join().unwrap();
        stage.close();
    });
}

#[test]
fn after_a_leader_the_thread_delivers() {
    check(Some(2), || {
        let mut stage = Stage::set();
        let leader = stage.receiver(0, 1);
        stage.sender.send(0);
        stage.sender.send(1);
        stage.await_delivery(1);
        leader.join().unwrap();
        stage.close();
    });
}

#[test]
fn a_leader_and_a_poller_that_leaves() {
    check(Some(1), || {
        let mut stage = Stage::set();
        let leader = stage.receiver(0, 1);
        let poller = stage.poller(1);
        stage.sender.send(1);
        stage.sender.send(0);
        leader.join().unwrap();
        poller.join().unwrap();
        stage.close();
    });
}

#[test]
fn one_leader_follows_the_other() {
    // Four threads: one preemption is enough for what went wrong here once (see `Handoff::resign`).
    check(Some(1), || {
        let mut stage = Stage::set();
        let leaders = [stage.receiver(0, 1), stage.receiver(1, 1)];
        stage.sender.send(0);
        stage.sender.send(1);
        leaders.into_iter().for_each(|leader| leader.join().unwrap());
        // Both are gone: the thread has the queue again.
        stage.sender.send(0);
        stage.await_delivery(0);
        stage.close();
    });
}

#[test]
fn a_context_is_closed_over_a_leader_that_sleeps() {
    check(Some(1), || {
        let mut stage = Stage::set();
        let waiter = Arc::new(Waiter::new().unwrap());
        waiter.start();
        let leader = {
            let (context, waiter) = (stage.context.clone(), waiter.clone());
            thread::spawn(move || context.sleep(&waiter, None, &mut Outside::nothing()))
        };
        let sockets = stage.sockets.clone();
        stage.sender.send(0);
        let mut sender = stage.close();
        let delivered = sockets.packets(0);
        sender.send(0);
        // What closes a context sees to those who sleep there, too: nothing else ends their sleep.
        waiter.wake();
        assert_eq!(leader.join().unwrap(), Wake::Woken);
        assert_eq!(sockets.packets(0), delivered, "delivered by a closed context");
    });
}

#[test]
fn a_context_is_closed_over_a_poller_in_a_pass() {
    check(Some(1), || {
        let mut stage = Stage::set();
        let (context, sockets) = (stage.context.clone(), stage.sockets.clone());
        let poller = stage.poller(2);
        stage.sender.send(0);
        let mut sender = stage.close();
        let delivered = sockets.packets(0);
        sender.send(0);
        poller.join().unwrap();
        assert_eq!(sockets.packets(0), delivered, "delivered by a closed context");
        assert!(context.is_gone());
    });
}
