//! The cable: slots change owners without a race, and the doorbell against the unmask.

use crate::{
    check,
    nic::{Ring, RingReceiver, RingSender, RxQueue},
    sync::{Arc, AtomicU32, Ordering, ends_after},
    sys,
};
use loom::thread;
use std::os::fd::AsRawFd;

#[test]
fn frames_cross_in_order_through_slots_used_again() {
    check(Some(3), || {
        let ring = Ring::new(2);
        let mut receiver = RingReceiver::new(ring.clone());
        let sender = thread::spawn(move || {
            let mut sender = RingSender::new(ring);
            for frame in 0..3 {
                while !sender.push(frame) {
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < 3 {
            let found = receiver.poll(8, &mut |frame| {
                assert_eq!(frame.bytes, [next]);
                next += 1;
            });
            if found == 0 {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_receiver_that_sleeps_on_the_interrupt_line_gets_every_frame() {
    // The frames come with doorbells over two rounds of the ring. An interrupt that fires late, after its frame was
    // taken and the line unmasked again, may cause an empty wake-up, but not for ever (loom's bound on branches).
    check(Some(3), || {
        let ring = Ring::new(4);
        let mut receiver = RingReceiver::new(ring.clone());
        let sender = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut sender = RingSender::new(ring);
                (0..2).for_each(|frame| sender.send(frame));
            })
        };
        let mut got = 0;
        while got < 2 {
            if ring.unmask() {
                let fd = ring.line.fd().as_raw_fd();
                sys::poll(fd, None);
                ring.line.mask();
            }
            got += receiver.poll(8, &mut |_| {});
        }
        sender.join().unwrap();
    });
}

#[test]
fn an_interrupt_line_that_fired_late_does_not_fire_for_ever() {
    check(Some(3), || {
        let ring = Ring::new(2);
        let mut receiver = RingReceiver::new(ring.clone());
        let fd = ring.line.fd().as_raw_fd();
        let readable = || sys::poll(fd, Some(std::time::Duration::ZERO)) > 0;
        assert!(ring.unmask());
        let sender = {
            let ring = ring.clone();
            thread::spawn(move || RingSender::new(ring).send(0))
        };
        let mut got = 0;
        while got < 1 {
            ring.line.mask();
            got += receiver.poll(8, &mut |_| {});
            ring.unmask();
            if got < 1 {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
        // The ring is empty and there is no sender: at most one late interrupt, then silence.
        ring.line.mask();
        assert!(ring.unmask());
        assert!(!readable(), "it would fire without a frame for ever");
    });
}

#[test]
fn a_receiver_gets_every_whole_frame_of_a_sender_that_ends_at_any_step() {
    // A frame takes a store in the ring, and, if the receiver sleeps, one in the line before its descriptor is readable.
    for stores in 0..7 {
        check(Some(3), move || {
            let ring = Ring::new(4);
            let ended = Arc::new(AtomicU32::new(0));
            let mut receiver = RingReceiver::new(ring.clone());
            let sender = {
                let (ring, ended) = (ring.clone(), ended.clone());
                thread::spawn(move || {
                    ends_after(stores, || {
                        let mut sender = RingSender::new(ring.clone());
                        (0..3).for_each(|frame| sender.send(frame));
                    });
                    // The kernel closes the descriptors of a process that has ended: the receiver's is readable then.
                    ended.store(1, Ordering::Release);
                    sys::signal(ring.line.fd().as_raw_fd());
                })
            };
            let mut got = 0;
            loop {
                let last = ended.load(Ordering::Acquire) == 1;
                receiver.poll(8, &mut |frame| {
                    assert_eq!(frame.bytes, [got]);
                    got += 1;
                });
                if last {
                    break;
                }
                if ring.unmask() {
                    sys::poll(ring.line.fd().as_raw_fd(), None);
                    ring.line.mask();
                }
            }
            sender.join().unwrap();
            assert_eq!(receiver.poll(8, &mut |_| {}), 0, "a frame came after the end");
        });
    }
}
