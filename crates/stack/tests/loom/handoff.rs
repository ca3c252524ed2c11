//! Which thread takes the packets of a queue: the interrupt thread, leaders, or pollers that leave. The context, the
//! thread's loop and the interrupt line are the product's files. A packet left in the ring while all threads sleep is a
//! deadlock, which loom reports.

use crate::{
    check,
    napi::{
        self, Context, KernelFds, Pass, Poller, Upper, Waiter, Wake, Watchdog,
        handoff::{Handoff, IdleAction, ResignAction, Successor},
    },
    nic::{Frame, Ring, RingSender},
    sync::Arc,
    time::{self, Instant},
};
use loom::{sync::Mutex, thread};

/// Two sockets; the frame's byte selects the socket.
#[derive(Clone, Default)]
struct Sockets(Arc<[Mutex<Socket>; 2]>);

#[derive(Default)]
struct Socket {
    packets: u32,
    waiter: Option<Arc<Waiter>>,
}

impl Upper for Sockets {
    type Flow = ();
    type Socket = ();
    type Deferred = ();
    type Meta = ();

    fn receive(&self, frame: Frame<'_>, pass: &mut Pass<'_, Self>) {
        let mut socket = self.0[usize::from(frame.bytes[0])].lock().unwrap();
        socket.packets += 1;
        if let Some(waiter) = socket.waiter.take() {
            pass.wake.push(waiter);
        }
    }

    fn tick(&self, _pass: &mut Pass<'_, Self>) -> Option<Instant> {
        None
    }
}

impl Sockets {
    fn packets(&self, at: usize) -> u32 {
        self.0[at].lock().unwrap().packets
    }

    /// A blocking receive; `sleep` is called with the socket empty and the waiter registered.
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

struct Model {
    context: Arc<Context<Sockets>>,
    sockets: Sockets,
    sender: RingSender,
    napi: thread::JoinHandle<()>,
    watchdog: Arc<Watchdog<Sockets>>,
    guard: thread::JoinHandle<()>,
}

impl Model {
    fn new() -> Model {
        let ring = Ring::new(4);
        let sockets = Sockets::default();
        let context = napi::context(&ring, sockets.clone());
        let watchdog = napi::watchdog();
        let guard = {
            let watchdog = watchdog.clone();
            thread::spawn(move || napi::guard(&watchdog))
        };
        let napi = {
            let (context, watchdog) = (context.clone(), watchdog.clone());
            thread::spawn(move || napi::serve(&context, &watchdog))
        };
        Model { context, sockets, sender: RingSender::new(ring), napi, watchdog, guard }
    }

    /// A thread that receives `packets` packets of a socket and sleeps on the context.
    fn receiver(&self, at: usize, packets: usize) -> thread::JoinHandle<()> {
        let (context, sockets) = (self.context.clone(), self.sockets.clone());
        thread::spawn(move || {
            let waiter = Arc::new(Waiter::new().unwrap());
            for _ in 0..packets {
                sockets.receive_by(at, &waiter, |waiter| {
                    context.sleep(waiter, None, &mut KernelFds::none());
                });
            }
        })
    }

    /// A thread that busy polls `times` times and does not come back.
    fn poller(&self, times: usize) -> thread::JoinHandle<()> {
        let context = self.context.clone();
        thread::spawn(move || {
            for _ in 0..times {
                context.busy_poll(1, time::now(), &mut Poller::new(0));
            }
        })
    }

    /// Waits for a packet of a socket without driving the queue.
    fn await_delivery(&self, at: usize) {
        let waiter = Arc::new(Waiter::new().unwrap());
        self.sockets.receive_by(at, &waiter, |waiter| {
            waiter.sleep(None, &mut KernelFds::none());
        });
    }

    /// Closes the context; threads it served may still run. The peer can go on sending.
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
fn a_leaving_leader_and_a_resting_interrupt_thread_do_not_both_drop_the_queue() {
    for successor in [Successor::Leader, Successor::Followers, Successor::InterruptThread] {
        check(None, move || {
            let handoff = Arc::new(Handoff::new());
            assert!(handoff.lead());
            let napi = {
                let handoff = handoff.clone();
                thread::spawn(move || handoff.go_idle() == IdleAction::Arm)
            };
            let parting = handoff.resign(successor);
            assert!(napi.join().unwrap() || parting != ResignAction::Nothing);
        });
    }
}

#[test]
#[ignore = "long: half a minute of interleavings"]
fn the_interrupt_thread_delivers_without_a_leader() {
    check(Some(3), || {
        let mut model = Model::new();
        for _ in 0..2 {
            model.sender.send(0);
            model.await_delivery(0);
        }
        model.close();
    });
}

#[test]
fn packets_left_by_a_leaving_poller_are_delivered() {
    check(Some(1), || {
        let mut model = Model::new();
        let poller = model.poller(1);
        model.sender.send(0);
        model.sender.send(0);
        model.await_delivery(0);
        model.await_delivery(0);
        poller.join().unwrap();
        model.close();
    });
}

#[test]
fn the_watchdog_serves_a_queue_whose_pollers_have_gone() {
    // The interrupt thread finds the queue polled recently, whenever the watchdog kicks it.
    check(Some(2), || {
        let mut model = Model::new();
        napi::note_poll(&model.context);
        model.sender.send(0);
        model.await_delivery(0);
        model.close();
    });
}

#[test]
fn without_sleepers_the_queue_is_left_to_its_poller_for_longer() {
    check(Some(1), || {
        let model = Model::new();
        let micros = std::time::Duration::from_micros;
        napi::note_poll(&model.context);
        assert!(napi::is_left(&model.context, micros(799)));
        assert!(!napi::is_left(&model.context, micros(800)));
        assert!(napi::lead(&model.context));
        assert!(napi::is_left(&model.context, micros(199)));
        assert!(!napi::is_left(&model.context, micros(200)));
        model.close();
    });
}

#[test]
#[ignore = "long: half a minute of interleavings"]
fn a_leader_is_woken_by_every_packet() {
    check(Some(2), || {
        let mut model = Model::new();
        let leader = model.receiver(0, 2);
        model.sender.send(0);
        model.sender.send(0);
        leader.join().unwrap();
        model.close();
    });
}

#[test]
#[ignore = "long: half a minute of interleavings"]
fn after_a_leader_the_interrupt_thread_delivers() {
    check(Some(2), || {
        let mut model = Model::new();
        let leader = model.receiver(0, 1);
        model.sender.send(0);
        model.sender.send(1);
        model.await_delivery(1);
        leader.join().unwrap();
        model.close();
    });
}

#[test]
#[ignore = "long: a minute and a half of interleavings"]
fn a_leader_takes_packets_left_by_a_leaving_poller() {
    check(Some(1), || {
        let mut model = Model::new();
        let leader = model.receiver(0, 1);
        let poller = model.poller(1);
        model.sender.send(1);
        model.sender.send(0);
        leader.join().unwrap();
        poller.join().unwrap();
        model.close();
    });
}

#[test]
#[ignore = "long: half a minute of interleavings"]
fn a_second_leader_takes_over_from_the_first() {
    // Four threads: one preemption finds the bug that `Handoff::resign` once had.
    check(Some(1), || {
        let mut model = Model::new();
        let leaders = [model.receiver(0, 1), model.receiver(1, 1)];
        model.sender.send(0);
        model.sender.send(1);
        leaders.into_iter().for_each(|leader| leader.join().unwrap());
        // Both leaders are gone: the interrupt thread has the queue again.
        model.sender.send(0);
        model.await_delivery(0);
        model.close();
    });
}

#[test]
fn a_context_can_be_closed_while_a_leader_sleeps() {
    check(Some(1), || {
        let mut model = Model::new();
        let waiter = Arc::new(Waiter::new().unwrap());
        waiter.start();
        let leader = {
            let (context, waiter) = (model.context.clone(), waiter.clone());
            thread::spawn(move || context.sleep(&waiter, None, &mut KernelFds::none()))
        };
        let sockets = model.sockets.clone();
        model.sender.send(0);
        let mut sender = model.close();
        let delivered = sockets.packets(0);
        sender.send(0);
        // The code that closes a context also wakes its sleepers: nothing else ends their sleep.
        waiter.wake();
        assert_eq!(leader.join().unwrap(), Wake::Woken);
        assert_eq!(sockets.packets(0), delivered, "delivered by a closed context");
    });
}

#[test]
fn a_context_can_be_closed_during_a_pollers_pass() {
    check(Some(1), || {
        let mut model = Model::new();
        let (context, sockets) = (model.context.clone(), model.sockets.clone());
        let poller = model.poller(2);
        model.sender.send(0);
        let mut sender = model.close();
        let delivered = sockets.packets(0);
        sender.send(0);
        poller.join().unwrap();
        assert_eq!(sockets.packets(0), delivered, "delivered by a closed context");
        assert!(context.is_gone());
    });
}
