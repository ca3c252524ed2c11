//! The memory of a TCP connection: how much while it is idle, and that none is left after it ends.

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

/// Counts the bytes in use, each block with the allocator's overhead.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// glibc: eight bytes of header, steps of sixteen, at least 24 usable.
fn cost(layout: Layout) -> isize {
    ((layout.size() + 8).next_multiple_of(16)).max(32) as isize
}

// SAFETY: all calls go to the system allocator.
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

/// Tests that run at once would count each other's memory.
static ALONE: Mutex<()> = Mutex::new(());

fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// The resident bytes of this process.
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

/// Waits until at most `most` bytes more than `before` are in use; returns the number.
fn falls_to(before: isize, most: isize) -> isize {
    let give_up = Instant::now() + Duration::from_secs(20);
    while live() - before > most && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(20));
    }
    live() - before
}

/// Both ends are in this process, so both count.
#[test]
fn an_idle_connection_takes_little_memory() {
    let _alone = ALONE.lock();
    let (one, two) = common::hosts();
    idle_connections_are_small(&one, &two, 2_000);
}

/// A busy-polling reader takes the last answer by direct delivery and owes its acknowledgment until a timer sends it.
#[test]
#[ignore = "long: half a minute"]
fn an_idle_connection_that_has_polled_takes_little_memory() {
    let _alone = ALONE.lock();
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let host = |nic, address| Host::builder().busy_read(1_000).interface(nic, address).build();
    let (one, two) = (host(a, "10.0.0.1/24").unwrap(), host(b, "10.0.0.2/24").unwrap());
    idle_connections_are_small(&one, &two, 10_000);
}

fn idle_connections_are_small(one: &Host, two: &Host, connections: usize) {
    const MOST: isize = 2 << 10;
    let listener = TcpListener::bind(two, "10.0.0.2:80").unwrap();
    // Threads have their own memory by now, and the neighbours are known.
    let _first = connect(one, &listener);
    let (before, resident_before) = (live(), resident());
    let pairs: Vec<_> = (0..connections).map(|_| connect(one, &listener)).collect();
    let end = |bytes: isize| bytes / (2 * connections as isize);
    // An idle connection is shrunk some time after its last timer.
    let each = end(falls_to(before, 2 * connections as isize * MOST));
    println!(
        "{each} bytes for an idle end of a connection, {} resident",
        end(resident() - resident_before)
    );
    assert!(each <= MOST, "{each} bytes");
    drop(pairs);
}

/// The connections are reset, so that no TIME_WAIT entry stays.
#[test]
#[ignore = "long: half a minute"]
fn a_closed_connection_frees_its_memory() {
    let _alone = ALONE.lock();
    let (one, two) = common::hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:80").unwrap();
    let storm = |count| {
        for n in 0..count {
            let (mut client, mut server) = connect(&one, &listener);
            if n % 2 == 0 {
                // With data in flight in both directions, and unread.
                client.write_all(&[1; 50_000]).unwrap();
                server.write_all(&[1; 10_000]).unwrap();
            }
            client.set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
        }
    };
    const CONNECTIONS: usize = 4_000;
    // Tables keep their largest size, and memory that other threads may still read is freed in batches. Neither grows
    // with the number of connections; a leak does.
    const MOST: isize = 64 * CONNECTIONS as isize;
    storm(500);
    let before = live();
    storm(CONNECTIONS);
    let left = falls_to(before, MOST);
    assert!(left <= MOST, "{left} bytes stay of {CONNECTIONS} connections");
}
