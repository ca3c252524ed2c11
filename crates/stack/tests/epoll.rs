//! `Epoll` follows the rules of epoll(7), over the cable.

mod common;

use busypoll_stack::{
    Epoll, EpollEvent, EpollParams, Events, Host, TcpListener, TcpStream, UdpSocket,
    napi::{BUSY_POLL_BUDGET, NAPI_POLL_WEIGHT},
    nic::{
        Frame, Info, Nic, Queue, RxQueue,
        cable::{self, Cable},
    },
};
use common::{hosts, sockets};
use std::{
    collections::BTreeSet,
    io,
    net::Shutdown,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

const SOON: Option<Duration> = Some(Duration::from_secs(10));
/// Long enough to conclude that nothing comes.
const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// The events of one wait: each member's number and events.
fn wait(epoll: &Epoll, timeout: Option<Duration>) -> Vec<(u64, Events)> {
    let mut events = Vec::new();
    let count = epoll.wait(&mut events, 16, timeout).unwrap();
    assert_eq!(count, events.len());
    events.iter().map(|event: &EpollEvent| (event.data, event.events)).collect()
}

fn receive(socket: &UdpSocket) {
    socket.recv(&mut [0; 16]).unwrap();
}

/// An epoll of `host` with one member, number 7.
fn watching(host: &Host, socket: &UdpSocket, events: Events) -> Epoll {
    let epoll = Epoll::new(host);
    epoll.add(socket, events, 7).unwrap();
    epoll
}

#[test]
fn level_triggered_reports_while_there_is_data() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = watching(&two, &right, Events::READABLE);
    assert_eq!(wait(&epoll, SHORT), []);
    left.send(b"a").unwrap();
    left.send(b"b").unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&epoll, SOON), [(7, Events::READABLE)]);
    }
    receive(&right);
    assert_eq!(wait(&epoll, SOON), [(7, Events::READABLE)]);
    receive(&right);
    assert_eq!(wait(&epoll, SHORT), []);
}

#[test]
fn edge_triggered_reports_new_data_only() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = watching(&two, &right, Events::READABLE | Events::EDGE);
    for _ in 0..3 {
        left.send(b"x").unwrap();
        assert_eq!(wait(&epoll, SOON), [(7, Events::READABLE)]);
        assert_eq!(wait(&epoll, SHORT), [], "it is still there, but nothing new came");
    }
}

#[test]
fn one_shot_reports_once_until_modified() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let once = Events::READABLE | Events::ONE_SHOT;
    let epoll = watching(&two, &right, once);
    left.send(b"a").unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, Events::READABLE)]);
    left.send(b"b").unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    epoll.modify(&right, once).unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, Events::READABLE)], "armed again, and there is data");
    receive(&right);
    receive(&right);
    epoll.modify(&right, once).unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
}

#[test]
fn data_already_there_is_reported_after_add_and_modify() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    left.send(b"x").unwrap();
    right.peek_from(&mut [0; 4]).unwrap();
    for trigger in [Events::default(), Events::EDGE, Events::ONE_SHOT] {
        let epoll = watching(&two, &right, Events::READABLE | trigger);
        assert_eq!(wait(&epoll, SOON), [(7, Events::READABLE)]);
        // A change of interest reports it, too.
        epoll.modify(&right, Events::WRITABLE | trigger).unwrap();
        assert_eq!(wait(&epoll, SOON), [(7, Events::WRITABLE)]);
        let both = Events::READABLE | Events::WRITABLE;
        epoll.modify(&right, both | trigger).unwrap();
        assert_eq!(wait(&epoll, SOON), [(7, both)]);
    }
}

#[test]
fn a_member_is_added_once_and_can_be_removed_while_ready() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = watching(&two, &right, Events::READABLE);
    let again = epoll.add(&right, Events::READABLE, 8).unwrap_err();
    assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
    left.send(b"x").unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, Events::READABLE)]);
    epoll.remove(&right).unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    let gone = epoll.remove(&right).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
    let gone = epoll.modify(&right, Events::READABLE).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
    epoll.add(&right, Events::READABLE, 9).unwrap();
    assert_eq!(wait(&epoll, SOON), [(9, Events::READABLE)]);
}

#[test]
fn a_dropped_socket_is_removed_from_its_set() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = watching(&two, &right, Events::READABLE);
    left.send(b"x").unwrap();
    assert_eq!(wait(&epoll, SOON).len(), 1);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            epoll.modify(&right, Events::default()).unwrap();
            drop(right);
            wait(&epoll, SHORT)
        });
        assert_eq!(waiting.join().unwrap(), []);
    });
    // A new socket may get the address of the old one.
    for _ in 0..100 {
        let socket = UdpSocket::bind(&two, "10.0.0.2:0").unwrap();
        epoll.add(&socket, Events::READABLE | Events::ONE_SHOT, 1).unwrap();
    }
    assert_eq!(wait(&epoll, SHORT), []);
}

#[test]
fn errors_and_hang_ups_are_reported_without_interest() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = watching(&one, &left, Events::default());
    right.send(b"not asked for").unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    drop(right);
    left.send(b"anyone?").unwrap();
    assert_eq!(wait(&epoll, SOON), [(7, Events::ERROR)]);
    left.take_error().unwrap().unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    epoll.modify(&left, Events::EDGE).unwrap();
    left.shutdown(Shutdown::Read).unwrap();
    assert_eq!(wait(&epoll, SHORT), []);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(&epoll, SOON));
        thread::sleep(Duration::from_millis(10));
        left.shutdown(Shutdown::Write).unwrap();
        assert_eq!(waiting.join().unwrap(), [(7, Events::HANGUP)]);
    });
}

#[test]
fn zero_room_is_an_error_zero_time_returns_at_once_and_members_take_turns() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = watching(&two, &right, Events::READABLE);
    let mut events = Vec::new();
    let error = epoll.wait(&mut events, 0, SHORT).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(epoll.wait(&mut events, 1, Some(Duration::ZERO)).unwrap(), 0);
    let others: Vec<_> = (0..3).map(|_| UdpSocket::bind(&two, "10.0.0.2:0").unwrap()).collect();
    for (other, data) in others.iter().zip(100..) {
        epoll.add(other, Events::READABLE, data).unwrap();
        left.send_to(b"x", other.local_addr().unwrap()).unwrap();
    }
    let all_there = |other: &UdpSocket| other.peek_from(&mut [0; 4]).is_ok();
    assert!(others.iter().all(all_there));
    let mut seen = Vec::new();
    for _ in 0..3 {
        assert_eq!(epoll.wait(&mut events, 1, SOON).unwrap(), 1);
        seen.push(events[0].data);
    }
    seen.sort_unstable();
    assert_eq!(seen, [100, 101, 102], "with room for one, each member has its turn");
}

#[test]
fn an_event_wakes_one_of_many_waiters() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = Arc::new(watching(&two, &right, Events::READABLE | Events::EDGE));
    let (said, says) = mpsc::channel();
    let waiters = [(); 4].map(|()| {
        let (epoll, said) = (epoll.clone(), said.clone());
        thread::spawn(move || said.send(wait(&epoll, None).len()).unwrap())
    });
    // Most likely they wait by now.
    thread::sleep(Duration::from_millis(50));
    for _ in &waiters {
        left.send(b"x").unwrap();
        assert_eq!(says.recv_timeout(SOON.unwrap()), Ok(1));
        thread::sleep(SHORT.unwrap());
        assert!(says.try_recv().is_err(), "another waiter was woken");
    }
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

#[test]
fn a_one_shot_member_is_reported_to_one_thread_at_a_time() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    left.set_nonblocking(false).unwrap();
    right.set_nonblocking(true).unwrap();
    let once = Events::READABLE | Events::ONE_SHOT;
    let epoll = watching(&two, &right, once);
    let (holders, received) = (AtomicU32::new(0), AtomicU32::new(0));
    let stop = AtomicBool::new(false);
    let rounds = 5_000;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if wait(&epoll, SHORT).is_empty() {
                        continue;
                    }
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "another thread has it");
                    while right.recv(&mut [0; 16]).is_ok() {
                        received.fetch_add(1, Ordering::SeqCst);
                    }
                    holders.fetch_sub(1, Ordering::SeqCst);
                    epoll.modify(&right, once).unwrap();
                }
            });
        }
        for n in 0..rounds {
            // Sometimes a burst, sometimes one at a time.
            if n % 8 == 0 {
                while received.load(Ordering::SeqCst) < n {
                    thread::yield_now();
                }
            }
            left.send(b"x").unwrap();
        }
        while received.load(Ordering::SeqCst) < rounds {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// For tests that must busy poll: the stack puts one of two spinners on a CPU to sleep.
static SPINNER: Mutex<()> = Mutex::new(());

/// Busy-poll passes of `host` so far, with or without packets.
fn passes(host: &Host) -> u64 {
    host.contexts()
        .map(|context| context.stats())
        .map(|stats| stats.bp_misses + stats.bp_yields)
        .sum()
}

#[test]
fn busy_polls_by_its_own_parameters_else_by_the_hosts() {
    let _alone = SPINNER.lock().unwrap_or_else(PoisonError::into_inner);
    let (one, two) = hosts();
    let (_left, right) = sockets(&one, &two);
    right.set_busy_poll(1_000).unwrap();
    let epoll = watching(&two, &right, Events::READABLE);
    let polls = |usecs, prefer, host| {
        let params =
            EpollParams { busy_poll_usecs: usecs, prefer_busy_poll: prefer, busy_poll_budget: 0 };
        epoll.set_params(params).unwrap();
        assert_eq!(epoll.params(), params);
        two.set_busy_poll(host);
        let before = passes(&two);
        assert_eq!(wait(&epoll, Some(Duration::from_millis(2))), []);
        passes(&two) - before
    };
    assert_eq!(polls(0, false, 0), 0, "a member's SO_BUSY_POLL is for its own receives");
    assert!(polls(100, false, 0) > 1);
    assert!(polls(0, false, 100) > 1);
    assert!(polls(0, true, 0) > 0, "preferred: a pass even with no time set");
    let wrong = EpollParams { busy_poll_usecs: 1 << 31, ..EpollParams::default() };
    assert_eq!(epoll.set_params(wrong).unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

/// The budgets of all passes except those of the interrupt thread.
type Budgets = Arc<Mutex<BTreeSet<usize>>>;

/// A cable that records the budgets.
struct Recording(Cable, Budgets);

impl Nic for Recording {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let Queue { rx, tx, interrupt } = self.0.open(index)?;
        Ok(Queue { rx: Box::new(RecordingQueue(rx, self.1.clone())), tx, interrupt })
    }
}

struct RecordingQueue(Box<dyn RxQueue>, Budgets);

impl RxQueue for RecordingQueue {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        if budget != NAPI_POLL_WEIGHT {
            self.1.lock().unwrap().insert(budget);
        }
        self.0.poll(budget, sink)
    }
}

/// The budgets of the passes that `poll` makes.
fn budgets(recorded: &Budgets, poll: impl Fn()) -> Vec<usize> {
    recorded.lock().unwrap().clear();
    // A poll that finds the queue owned makes no pass.
    while recorded.lock().unwrap().is_empty() {
        poll();
    }
    recorded.lock().unwrap().iter().copied().collect()
}

#[test]
fn a_pass_takes_no_more_than_the_pollers_budget() {
    let _alone = SPINNER.lock().unwrap_or_else(PoisonError::into_inner);
    let (one, two) = cable::pair(cable::Config::default()).unwrap();
    let recorded = Budgets::default();
    let one = Host::builder().interface(one, "10.0.0.1/24").build().unwrap();
    let two = Recording(two, recorded.clone());
    let two = Host::builder().interface(two, "10.0.0.2/24").build().unwrap();
    let (_left, right) = sockets(&one, &two);
    right.set_nonblocking(true).unwrap();
    right.set_busy_poll(50).unwrap();
    let epoll = watching(&two, &right, Events::READABLE);
    let receive = || assert!(right.recv(&mut [0; 8]).is_err());
    assert_eq!(budgets(&recorded, receive), [BUSY_POLL_BUDGET]);
    right.set_busy_poll_budget(3).unwrap();
    assert_eq!(budgets(&recorded, receive), [3]);
    for (busy_poll_budget, wanted) in [(0, BUSY_POLL_BUDGET), (5, 5)] {
        let params = EpollParams { busy_poll_usecs: 50, prefer_busy_poll: false, busy_poll_budget };
        epoll.set_params(params).unwrap();
        let look = || assert_eq!(wait(&epoll, Some(Duration::from_micros(200))), []);
        assert_eq!(budgets(&recorded, look), [wanted]);
    }
}

#[test]
fn every_queue_of_its_members_is_polled() {
    let _alone = SPINNER.lock().unwrap_or_else(PoisonError::into_inner);
    let worlds = [hosts(), hosts()];
    let pairs = worlds.each_ref().map(|(one, two)| sockets(one, two));
    let epoll = Epoll::new(&worlds[0].1);
    epoll.set_params(EpollParams { busy_poll_usecs: 1_000_000, ..EpollParams::default() }).unwrap();
    for ((_, right), data) in pairs.iter().zip(0..) {
        epoll.add(right, Events::READABLE, data).unwrap();
    }
    let polled = || pairs.iter().all(|(_, right)| right.stats().other_polls > 0);
    // A thread that is descheduled when packets come finds them delivered by the interrupt thread.
    for _ in 0..50 {
        thread::scope(|scope| {
            for (left, _) in &pairs {
                scope.spawn(|| {
                    for _ in 0..50 {
                        left.send(b"ping").unwrap();
                        receive(left);
                    }
                });
            }
            for _ in 0..100 {
                let data = wait(&epoll, SOON)[0].0;
                let (_, right) = &pairs[data as usize];
                receive(right);
                right.send(b"pong").unwrap();
            }
        });
        if polled() {
            break;
        }
    }
    for (_, right) in &pairs {
        assert!(right.stats().other_polls > 0, "{:?}", right.stats());
    }
}

/// Both queues must be known: of a datagram socket from its last packet, of a listener from its last connection.
#[test]
fn a_listener_s_queue_is_polled_from_the_moment_it_is_added() {
    let _alone = SPINNER.lock().unwrap_or_else(PoisonError::into_inner);
    let (one, two) = hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:7").unwrap();
    let connect = || TcpStream::connect(&one, "10.0.0.2:7").unwrap();
    let _first = (connect(), listener.accept().unwrap());
    let epoll = Epoll::new(&two);
    epoll.set_params(EpollParams { busy_poll_usecs: 100, ..EpollParams::default() }).unwrap();
    epoll.add(&listener, Events::READABLE, 1).unwrap();
    let before = passes(&two);
    assert_eq!(wait(&epoll, Some(Duration::from_millis(2))), []);
    assert!(passes(&two) > before);
    let _second = connect();
    assert_eq!(wait(&epoll, SOON), [(1, Events::READABLE)]);
}

#[test]
fn a_member_added_during_a_busy_poll_brings_its_queue() {
    let _alone = SPINNER.lock().unwrap_or_else(PoisonError::into_inner);
    let worlds = [hosts(), hosts()];
    let pairs = worlds.each_ref().map(|(one, two)| sockets(one, two));
    let [first, second] = [&worlds[0].1, &worlds[1].1];
    let params = EpollParams { busy_poll_usecs: 20_000_000, ..EpollParams::default() };
    // The stack may put the thread to sleep, because another spins on its CPU.
    let polled = (0..20).any(|_| {
        let epoll = watching(first, &pairs[0].1, Events::READABLE);
        epoll.set_params(params).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&epoll, SOON));
            let more = |host, before| {
                let mut looks = 0..200;
                looks.any(|_| {
                    thread::sleep(Duration::from_millis(1));
                    passes(host) > before
                })
            };
            let polls = more(first, passes(first));
            let before = passes(second);
            epoll.add(&pairs[1].1, Events::READABLE, 2).unwrap();
            let follows = polls && more(second, before);
            pairs[0].0.send(b"end").unwrap();
            assert_eq!(waiter.join().unwrap().len(), 1);
            receive(&pairs[0].1);
            follows
        })
    });
    assert!(polled);
}
