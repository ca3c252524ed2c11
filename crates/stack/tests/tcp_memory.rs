//! What a TCP connection takes: how much while it is idle, and that nothing of it stays.

mod common;

use busypoll_stack::{Host, TcpListener, TcpStream, nic::cable};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    io::{Read, Write},
    sync::{
        Mutex,
        atomic::{AtomicIsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Counts the bytes in use, each with what the system's allocator adds to it.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// glibc: eight bytes before, in steps of sixteen, 24 usable at least.
fn cost(layout: Layout) -> isize {
    ((layout.size() + 8).next_multiple_of(16)).max(32) as isize
}

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(cost(layout), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(cost(layout), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Two tests at once would count each other's.
static ALONE: Mutex<()> = Mutex::new(());

fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// Bytes of this process in memory.
fn resident() -> isize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<isize>().unwrap() * 4096
}

/// Connects and exchanges a byte each way.
fn connect(one: &Host, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(one, listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut byte = [0];
    client.write_all(b"?").unwrap();
    server.read_exact(&mut byte).unwrap();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut byte).unwrap();
    (client, server)
}

/// Waits until at most `most` bytes are in use more than `before`; how many are.
fn falls_to(before: isize, most: isize) -> isize {
    let give_up = Instant::now() + Duration::from_secs(20);
    while live() - before > most && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(20));
    }
    live() - before
}

/// Both ends are in this process, so one connection is counted twice.
#[test]
fn an_idle_connection_is_small() {
    let _alone = ALONE.lock();
    let (one, two) = common::hosts();
    idle_connections_are_small(&one, &two);
}

/// Who polls takes the last answer in by himself, and owes its acknowledgment until a timer sends it.
#[test]
fn an_idle_connection_that_has_polled_is_small() {
    let _alone = ALONE.lock();
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let host = |nic, address| Host::builder().busy_read(1_000).interface(nic, address).build();
    let (one, two) = (host(a, "10.0.0.1/24").unwrap(), host(b, "10.0.0.2/24").unwrap());
    idle_connections_are_small(&one, &two);
}

fn idle_connections_are_small(one: &Host, two: &Host) {
    const CONNECTIONS: usize = 10_000;
    const MOST: isize = 2 << 10;
    let listener = TcpListener::bind(two, "10.0.0.2:80").unwrap();
    // Threads have their own, neighbours are known.
    let _first = connect(one, &listener);
    let (before, resident_before) = (live(), resident());
    let pairs: Vec<_> = (0..CONNECTIONS).map(|_| connect(one, &listener)).collect();
    let end = |bytes: isize| bytes / (2 * CONNECTIONS as isize);
    // Who rests does so a while after his last timer.
    let each = end(falls_to(before, 2 * CONNECTIONS as isize * MOST));
    println!(
        "{each} bytes for an idle end of a connection, {} resident",
        end(resident() - resident_before)
    );
    assert!(each <= MOST, "{each} bytes");
    drop(pairs);
}

/// Reset, so that no TIME_WAIT stays.
#[test]
fn a_connection_that_is_over_leaves_nothing() {
    let _alone = ALONE.lock();
    let (one, two) = common::hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    let storm = |count| {
        for n in 0..count {
            let (mut client, mut server) = connect(&one, &listener);
            if n % 2 == 0 {
                // With data on its way in either direction, and unread.
                client.write_all(&[1; 50_000]).unwrap();
                server.write_all(&[1; 10_000]).unwrap();
            }
            client.set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
        }
    };
    const CONNECTIONS: usize = 4_000;
    // Tables keep what they once grew to, and what other threads may still read is freed in batches: that
    // does not grow with the number of connections, a leak does.
    const MOST: isize = 64 * CONNECTIONS as isize;
    storm(500);
    let before = live();
    storm(CONNECTIONS);
    let left = falls_to(before, MOST);
    assert!(left <= MOST, "{left} bytes stay of {CONNECTIONS} connections");
}
