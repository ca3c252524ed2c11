//! The hot path allocates nothing: once warm, neither sends nor any kind of wait and receive allocates on the calling
//! threads.

mod common;

use busypoll_lab::{Lab, needs_root};
use busypoll_stack::{
    Epoll, EpollParams, Events, Host, Incoming, Outgoing, PollFd, Socket, TcpStream, UdpSocket,
    nic::xdp::Xdp, poll,
};
use common::{hosts, sockets, streams};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    io::{Read, Write},
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

std::thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: all calls go to the system allocator; counting touches only a constant thread local, which needs no
// allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // At the end of a thread the thread local is gone; its allocations are not counted.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const WARM_UP: usize = 1_000;
const ROUNDS: usize = 10_000;
/// One-time events such as a warning are not part of the path: the rounds are counted this often, and the least counts.
const TIMES: usize = 3;

/// One test at a time: lists are lent to threads from a pool of the process. The pool grows with the number of threads
/// that sleep at once, including those of other tests.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocations of this thread in `ROUNDS` rounds after the warm-up; the least of several counts.
fn allocations(mut round: impl FnMut()) -> u64 {
    (0..WARM_UP).for_each(|_| round());
    let mut count = || {
        let before = ALLOCATIONS.get();
        (0..ROUNDS).for_each(|_| round());
        ALLOCATIONS.get() - before
    };
    (0..TIMES).map(|_| count()).min().unwrap_or(u64::MAX)
}

/// A connected socket of either kind.
trait Exchange: Socket + Sync {
    fn send_ping(&self);
    fn receive_ping(&self);
    fn set_busy_poll(&self, micros: u32);
}

impl Exchange for UdpSocket {
    fn send_ping(&self) {
        self.send(b"word").unwrap();
    }

    fn receive_ping(&self) {
        self.recv(&mut [0; 16]).unwrap();
    }

    fn set_busy_poll(&self, micros: u32) {
        self.set_busy_poll(micros).unwrap();
    }
}

impl Exchange for TcpStream {
    fn send_ping(&self) {
        assert_eq!((&mut &*self).write(b"word").unwrap(), 4);
    }

    fn receive_ping(&self) {
        assert_eq!((&mut &*self).read(&mut [0; 16]).unwrap(), 4);
    }

    fn set_busy_poll(&self, micros: u32) {
        self.set_busy_poll(micros).unwrap();
    }
}

/// Ping-pong between two connected sockets on two threads; each receives by the closure that `waiter` makes for its
/// socket.
fn ping_pong<'a, S: Exchange, R: FnMut()>(pair: &'a (S, S), waiter: impl Fn(&'a S) -> R + Sync) {
    let (left, right) = pair;
    let [client, server] = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut receive = waiter(left);
            allocations(|| {
                left.send_ping();
                receive();
            })
        });
        let server = scope.spawn(|| {
            let mut receive = waiter(right);
            allocations(|| {
                receive();
                right.send_ping();
            })
        });
        [client, server].map(|thread| thread.join().unwrap())
    });
    assert_eq!((client, server), (0, 0), "allocations in {ROUNDS} rounds");
}

fn receiving<S: Exchange>(pair: &(S, S)) {
    for busy_poll in [1_000_000, 20, 0] {
        pair.0.set_busy_poll(busy_poll);
        pair.1.set_busy_poll(busy_poll);
        ping_pong(pair, |socket| || socket.receive_ping());
    }
}

fn epoll_waiting<S: Exchange>(one: &Host, two: &Host, pair: &(S, S)) {
    let host = |socket: &S| if std::ptr::eq(socket, &pair.0) { one } else { two };
    for busy_poll_usecs in [1_000_000, 20, 0] {
        for trigger in [Events::default(), Events::EDGE, Events::ONE_SHOT] {
            ping_pong(pair, |socket| {
                let epoll = Epoll::new(host(socket));
                epoll.set_params(EpollParams { busy_poll_usecs, ..Default::default() }).unwrap();
                epoll.add(socket, Events::READABLE | trigger, 0).unwrap();
                let mut events = Vec::with_capacity(4);
                move || {
                    epoll.wait(&mut events, 4, None).unwrap();
                    socket.receive_ping();
                    if trigger == Events::ONE_SHOT {
                        epoll.modify(socket, Events::READABLE | trigger).unwrap();
                    }
                }
            });
        }
    }
}

fn polling<S: Exchange>(one: &Host, two: &Host, pair: &(S, S)) {
    let idle = [one, two].map(UdpSocket::new);
    let pick = |socket: &S| if std::ptr::eq(socket, &pair.0) { &idle[0] } else { &idle[1] };
    for busy_poll in [1_000_000, 20, 0] {
        for (host, socket) in [(one, &pair.0), (two, &pair.1)] {
            host.set_busy_poll(busy_poll);
            socket.set_busy_poll(busy_poll);
        }
        ping_pong(pair, |socket| {
            move || {
                let events = Events::READABLE;
                let other = PollFd { socket: pick(socket), events, revents: events };
                poll(&mut [other, PollFd { socket, events, revents: events }], None).unwrap();
                socket.receive_ping();
            }
        });
    }
}

#[test]
fn receives_busy_polled_and_asleep_do_not_allocate() {
    let _alone = alone();
    let (one, two) = hosts();
    receiving(&sockets(&one, &two));
    receiving(&streams(&one, &two));
}

#[test]
fn epoll_busy_polled_and_asleep_does_not_allocate() {
    let _alone = alone();
    let (one, two) = hosts();
    epoll_waiting(&one, &two, &sockets(&one, &two));
    epoll_waiting(&one, &two, &streams(&one, &two));
}

#[test]
fn poll_busy_polled_and_asleep_does_not_allocate() {
    let _alone = alone();
    let (one, two) = hosts();
    polling(&one, &two, &sockets(&one, &two));
    polling(&one, &two, &streams(&one, &two));
}

/// One datagram wakes three threads: more than a pass has room for without allocating.
#[test]
fn waking_many_threads_at_once_does_not_allocate() {
    let _alone = alone();
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let (_, idle) = sockets(&one, &two);
    idle.set_nonblocking(true).unwrap();
    idle.set_busy_poll(1).unwrap();
    let (woken, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let epoll = Epoll::new(&two);
                epoll.add(&right, Events::READABLE | Events::EDGE, 0).unwrap();
                let mut events = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let timeout = Some(Duration::from_millis(100));
                    let count = epoll.wait(&mut events, 1, timeout).unwrap();
                    woken.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
        // All of them receive the first event.
        while woken.load(Ordering::Relaxed) < 3 {
            left.send(b"hello").unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        let allocated = allocations(|| {
            let before = woken.load(Ordering::Relaxed);
            left.send(b"all of you").unwrap();
            // This call drives the queue and wakes all of them.
            idle.recv(&mut [0; 16]).unwrap_err();
            while woken.load(Ordering::Relaxed) < before + 2 {
                thread::yield_now();
            }
            right.recv(&mut [0; 16]).unwrap();
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(allocated, 0, "allocations in {ROUNDS} rounds");
    });
}

/// More peers in turn than a socket caches paths for: to look one up again does not allocate either, even if the kernel
/// has the neighbour.
#[test]
fn sends_to_many_peers_over_a_shared_interface_do_not_allocate() {
    needs_root!();
    let _alone = alone();
    let lab = Lab::builder().build().unwrap();
    let xdp =
        || Host::builder().shared_interface(Xdp::open(lab.server.interface()).unwrap()).build();
    let host = lab.server.enter(xdp).unwrap().unwrap();
    let socket = lab.server.enter(|| UdpSocket::bind(&host, "0.0.0.0:7")).unwrap().unwrap();
    let peer = |_| lab.client.enter(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let peers: Vec<_> = (0..24).map(peer).collect();
    let port = |peer: &std::net::UdpSocket| peer.local_addr().unwrap().port();
    let to: Vec<_> =
        peers.iter().map(|peer| SocketAddr::from((lab.client.ipv4(), port(peer)))).collect();
    // The neighbour is known from now on.
    socket.send_to(b"hello", to[0]).unwrap();
    peers[0].recv(&mut [0; 16]).unwrap();
    for count in [2, to.len()] {
        let mut turn = to[..count].iter().cycle();
        let allocated = allocations(|| {
            let next = turn.next().unwrap();
            assert_eq!(socket.send_to(b"word", next).unwrap(), 4);
        });
        assert_eq!(allocated, 0, "allocations in {ROUNDS} rounds, {count} peers");
    }
}

#[test]
fn batches_and_unconnected_sockets_do_not_allocate() {
    let _alone = alone();
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    right.disconnect();
    let to = right.local_addr().unwrap();
    for socket in [&left, &right] {
        socket.set_busy_poll(50).unwrap();
    }
    let batch =
        [Outgoing { payload: b"one", to: None }, Outgoing { payload: b"two", to: Some(to) }];
    let [client, server] = thread::scope(|scope| {
        let client = scope.spawn(|| {
            allocations(|| {
                assert_eq!(left.send_many(&batch).unwrap(), 2);
                left.recv_from(&mut [0; 16]).unwrap();
            })
        });
        let server = scope.spawn(|| {
            allocations(|| {
                let (mut first, mut second) = ([0; 16], [0; 16]);
                let mut from = None;
                let mut left = 2;
                while left > 0 {
                    let mut rooms = [Incoming::new(&mut first), Incoming::new(&mut second)];
                    left -= right.recv_many(&mut rooms[..left]).unwrap();
                    from = rooms[0].from;
                }
                right.send_to(b"answer", from.unwrap()).unwrap();
            })
        });
        [client, server].map(|thread| thread.join().unwrap())
    });
    assert_eq!((client, server), (0, 0), "allocations in {ROUNDS} rounds");
}
