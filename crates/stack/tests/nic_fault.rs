//! The fault-injecting link, on a real cable.

use busypoll_stack::{
    nic::{
        Checksum, Frame, Interrupt, Nic, Queue, RingFull, RxQueue, cable,
        fault::{Config, Counters, Fault, Faults},
    },
    time,
    wire::{EtherType, MacAddr, Protocol, ethernet, ipv4, udp},
};
use std::{
    net::Ipv4Addr,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// A cable with faults at its near end.
struct Link {
    near: Queue,
    far: Queue,
    counters: Arc<Counters>,
}

fn link(config: Config) -> Link {
    let (near, far) = cable::pair(cable::Config { ring: 64, ..Default::default() }).unwrap();
    let mut near = Fault::new(Box::new(near), config).unwrap();
    let counters = near.counters();
    let mut far: Box<dyn Nic> = Box::new(far);
    Link { near: near.open(0).unwrap(), far: far.open(0).unwrap(), counters }
}

fn receiving(faults: Faults) -> Config {
    Config { seed: 3, receive: faults, ..Config::default() }
}

fn transmitting(faults: Faults) -> Config {
    Config { seed: 3, transmit: faults, ..Config::default() }
}

/// Pushes a frame that carries `number`, in no protocol.
fn push(queue: &mut Queue, number: u16) -> Result<(), RingFull> {
    queue.tx.push(60, false, &mut |frame| {
        frame.fill(0xee);
        frame[14..16].copy_from_slice(&number.to_be_bytes());
    })
}

fn send(queue: &mut Queue, number: u16) {
    push(queue, number).unwrap();
    queue.tx.flush();
}

/// The numbers of the frames that one poll finds.
fn poll(queue: &mut Queue, budget: usize) -> Vec<u16> {
    let mut numbers = Vec::new();
    let found = queue.rx.poll(budget, &mut |frame| {
        assert_eq!(frame.bytes.len(), 60);
        numbers.push(u16::from_be_bytes([frame.bytes[14], frame.bytes[15]]));
    });
    assert_eq!(found, numbers.len());
    assert!(found <= budget);
    numbers
}

fn fires_within(interrupt: &dyn Interrupt, millis: i32) -> bool {
    let fd = interrupt.fd().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, on the stack.
    unsafe { libc::poll(&mut poll, 1, millis) == 1 }
}

#[test]
fn the_same_seed_loses_the_same_frames_whatever_the_batches() {
    let survivors = |seed, batch: usize| {
        let faults = Faults { loss: 0.25, ..Faults::default() };
        let mut link = link(Config { seed, ..receiving(faults) });
        let mut numbers = Vec::new();
        for number in 0..2000 {
            send(&mut link.far, number);
            if usize::from(number) % batch == batch - 1 {
                numbers.extend(poll(&mut link.near, 64));
            }
        }
        let lost = link.counters.receive.lost.load(Relaxed);
        assert_eq!(lost + numbers.len() as u64, 2000);
        assert!((400..600).contains(&lost), "{lost} lost");
        assert!(numbers.is_sorted());
        numbers
    };
    assert_eq!(survivors(1, 1), survivors(1, 50));
    assert_ne!(survivors(1, 1), survivors(2, 1));
}

#[test]
fn a_link_without_faults_passes_everything_both_ways() {
    let mut link = link(Config::default());
    for number in 0..500 {
        send(&mut link.far, number);
        send(&mut link.near, number);
        assert_eq!(poll(&mut link.near, 8), [number]);
        assert_eq!(poll(&mut link.far, 8), [number]);
    }
    assert_eq!(link.counters.receive.frames.load(Relaxed), 500);
    assert_eq!(link.counters.transmit.frames.load(Relaxed), 500);
}

#[test]
fn a_delayed_frame_fires_the_interrupt_when_its_time_comes() {
    let delay = Duration::from_millis(30);
    let mut link = link(receiving(Faults { delay, ..Faults::default() }));
    assert!(link.near.interrupt.unmask());
    let sent = time::now();
    send(&mut link.far, 1);
    assert!(fires_within(&*link.near.interrupt, 5_000), "no interrupt for the arrival");
    let found = loop {
        link.near.interrupt.mask();
        let found = poll(&mut link.near, 8);
        if !found.is_empty() {
            break found;
        }
        if link.near.interrupt.unmask() {
            assert!(fires_within(&*link.near.interrupt, 5_000), "no interrupt for the time");
        }
    };
    assert_eq!(found, [1]);
    assert!(time::now() - sent >= delay);
}

#[test]
fn a_delayed_transmission_leaves_when_its_time_comes() {
    let delay = Duration::from_millis(30);
    let mut link = link(transmitting(Faults { delay, ..Faults::default() }));
    let sent = time::now();
    send(&mut link.near, 1);
    assert_eq!(poll(&mut link.far, 8), []);
    loop {
        link.near.interrupt.mask();
        assert_eq!(poll(&mut link.near, 8), []);
        let found = poll(&mut link.far, 8);
        if !found.is_empty() {
            assert_eq!(found, [1]);
            break;
        }
        if link.near.interrupt.unmask() {
            assert!(fires_within(&*link.near.interrupt, 5_000), "no interrupt");
        }
    }
    assert!(time::now() - sent >= delay);
}

#[test]
fn a_frame_delayed_while_unmasked_sets_the_timer() {
    let delay = Duration::from_millis(5);
    let mut link = link(transmitting(Faults { delay, ..Faults::default() }));
    assert!(link.near.interrupt.unmask());
    send(&mut link.near, 1);
    assert!(fires_within(&*link.near.interrupt, 5_000), "no interrupt");
}

#[test]
fn a_masked_timer_is_silent_and_a_due_frame_refuses_the_unmask() {
    let delay = Duration::from_millis(2);
    let mut link = link(receiving(Faults { delay, ..Faults::default() }));
    send(&mut link.far, 1);
    let taken = time::now();
    assert_eq!(poll(&mut link.near, 8), []);
    if link.near.interrupt.unmask() {
        assert!(fires_within(&*link.near.interrupt, 5_000), "no interrupt");
    }
    link.near.interrupt.mask();
    assert!(!fires_within(&*link.near.interrupt, 0), "the event was not taken back");
    while time::now() - taken <= delay * 2 {}
    assert!(!fires_within(&*link.near.interrupt, 0), "masked");
    assert!(!link.near.interrupt.unmask(), "a frame waits");
    assert_eq!(poll(&mut link.near, 8), [1]);
    assert!(link.near.interrupt.unmask());
    assert!(!fires_within(&*link.near.interrupt, 0), "nothing waits");
}

#[test]
fn copies_beyond_the_budget_wait_for_the_next_poll() {
    let mut link = link(receiving(Faults { duplication: 1.0, ..Faults::default() }));
    for number in 1..=2 {
        send(&mut link.far, number);
    }
    let mut found = Vec::new();
    for _ in 0..4 {
        assert!(!link.near.interrupt.unmask(), "frames wait");
        found.extend(poll(&mut link.near, 1));
    }
    assert_eq!(found, [1, 1, 2, 2]);
    assert!(link.near.interrupt.unmask());
    assert_eq!(link.counters.receive.duplicated.load(Relaxed), 2);
}

#[test]
fn reordered_frames_all_arrive() {
    let mut link = link(receiving(Faults { reordering: 0.2, ..Faults::default() }));
    let mut numbers = Vec::new();
    for number in 0..2000 {
        send(&mut link.far, number);
        numbers.extend(poll(&mut link.near, 8));
    }
    // The last delayed frame may have none after it; it comes by its own time.
    while numbers.len() < 2000 {
        numbers.extend(poll(&mut link.near, 8));
    }
    assert!(!numbers.is_sorted());
    assert!(link.counters.receive.reordered.load(Relaxed) > 200);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..2000));
}

#[test]
fn a_full_ring_below_is_reported_and_loses_nothing() {
    let mut link = link(transmitting(Faults { duplication: 1.0, ..Faults::default() }));
    let mut numbers = Vec::new();
    let mut refused = 0;
    for number in 0..1000 {
        while push(&mut link.near, number).is_err() {
            refused += 1;
            link.near.tx.flush();
            numbers.extend(poll(&mut link.far, 64));
        }
    }
    link.near.tx.flush();
    while numbers.len() < 2000 {
        numbers.extend(poll(&mut link.far, 64));
        // Frames refused by a full ring are retried by the near end's own polls.
        poll(&mut link.near, 8);
    }
    assert!(refused > 0);
    assert!(numbers.into_iter().eq((0..1000).flat_map(|number| [number, number])));
}

#[test]
fn corruption_shows_even_where_the_checksum_was_partial() {
    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    let datagram = |buf: &mut [u8]| {
        let (to, from) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let mut frame = ethernet::Frame::init(buf, to, from, EtherType::IPV4).unwrap();
        let mut ip = ipv4::Packet::init(frame.payload_mut(), A, B, Protocol::UDP, 8 + 100).unwrap();
        ip.fill_checksum();
        let mut udp = udp::Packet::init(ip.payload_mut(), 1, 2, 100).unwrap();
        udp.payload_mut().fill(0x55);
        udp.fill_partial_checksum(ipv4::address_sum(A, B));
    };
    let intact = |bytes: &[u8]| {
        let frame = ethernet::Frame::new_checked(bytes).ok()?;
        let ip = ipv4::Packet::new_checked(frame.payload()).ok()?;
        ip.verify_checksum().ok()?;
        let udp = udp::Packet::new_checked(ip.payload()).ok()?;
        udp.verify_checksum(ip.address_sum()).ok()
    };
    let corrupting = Faults { corruption: 1.0, ..Faults::default() };
    for config in [receiving(corrupting), transmitting(corrupting)] {
        let mut link = link(config);
        for _ in 0..500 {
            let (from, to) = if config.receive == corrupting {
                (&mut link.far, &mut link.near)
            } else {
                (&mut link.near, &mut link.far)
            };
            from.tx.push(14 + 20 + 8 + 100, true, &mut |buf| datagram(buf)).unwrap();
            from.tx.flush();
            let found = to.rx.poll(8, &mut |frame| {
                assert_eq!(frame.checksum, Checksum::Unverified);
                assert_eq!(intact(frame.bytes), None);
            });
            assert_eq!(found, 1);
        }
        let Counters { receive, transmit, .. } = &*link.counters;
        assert_eq!(receive.corrupted.load(Relaxed) + transmit.corrupted.load(Relaxed), 500);
    }
}

#[test]
fn invalid_fault_settings_are_refused() {
    for (config, word) in [
        (receiving(Faults { loss: 1.5, ..Faults::default() }), "receive loss 1.5"),
        (transmitting(Faults { corruption: f64::NAN, ..Faults::default() }), "transmit corruption"),
        (Config { limit: 0, ..Config::default() }, "limit"),
    ] {
        let (nic, _) = cable::pair(cable::Config::default()).unwrap();
        let line = Fault::new(Box::new(nic), config).err().unwrap().to_string();
        assert!(line.contains(word) && line.contains("choose"), "{line}");
    }
}

#[test]
fn no_held_frame_is_forgotten_between_a_sender_and_a_sleeper() {
    let faults = Faults {
        delay: Duration::from_micros(20),
        reordering: 0.1,
        duplication: 0.1,
        ..Faults::default()
    };
    let Link { near, mut far, .. } = link(Config { receive: faults, ..transmitting(faults) });
    let Queue { mut rx, tx, interrupt } = near;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // The sleeper has nothing to receive: only the interrupt makes it send the due frames.
        scope.spawn(|| {
            while !done.load(Relaxed) {
                if interrupt.unmask() && !fires_within(&*interrupt, 5_000) {
                    return;
                }
                interrupt.mask();
                rx.poll(8, &mut |_| ());
            }
        });
        let mut sender = Queue { rx: Box::new(Nothing), tx, interrupt: interrupt.clone() };
        let deadline = time::now() + Duration::from_secs(60);
        for number in 0..5000 {
            while push(&mut sender, number).is_err() {}
            sender.tx.flush();
            let mut found = Vec::new();
            while !found.contains(&number) {
                assert!(time::now() < deadline, "frame {number} was forgotten");
                found.extend(poll(&mut far, 64));
            }
        }
        done.store(true, Relaxed);
        send(&mut sender, 0);
    });
}

/// The receive side of a queue whose real receive side is elsewhere.
struct Nothing;

impl RxQueue for Nothing {
    fn poll(&mut self, _: usize, _: &mut dyn FnMut(Frame<'_>)) -> usize {
        0
    }
}
