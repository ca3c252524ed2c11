//! The moderation of a cable's interrupts: what holds one back, for how long, and what brings it forward.

use busypoll_stack::nic::{Coalesce, Interrupt, Nic, Queue, RxQueue, TxQueue, cable};
use std::{os::fd::AsRawFd, sync::Arc, time::Duration};

/// One direction of a cable.
struct Way {
    tx: Box<dyn TxQueue>,
    rx: Box<dyn RxQueue>,
    interrupt: Arc<dyn Interrupt>,
}

fn way(coalesce: Coalesce) -> Way {
    let (mut near, mut far) =
        cable::pair(cable::Config { coalesce, ..cable::Config::default() }).unwrap();
    let Queue { rx, interrupt, .. } = near.open(0).unwrap();
    Way { tx: far.open(0).unwrap().tx, rx, interrupt }
}

impl Way {
    /// So many frames with one doorbell.
    fn send(&mut self, frames: u32) {
        for _ in 0..frames {
            self.tx.push(60, false, &mut |_| {}).unwrap();
        }
        self.tx.flush();
    }

    /// Takes what has come, with the interrupt masked.
    fn receive(&mut self) -> usize {
        self.interrupt.mask();
        self.rx.poll(usize::MAX, &mut |_| {})
    }

    fn fires_within(&self, time: Duration) -> bool {
        let fd = self.interrupt.fd().as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, on the stack.
        unsafe { libc::poll(&mut poll, 1, time.as_millis() as i32) == 1 }
    }

    /// For how long an interrupt that is held back will be.
    fn left(&self) -> Duration {
        // SAFETY: zeroes are a valid `itimerspec`, which the call fills; the interrupt's descriptor is a
        // timerfd.
        let left = unsafe {
            let mut spec: libc::itimerspec = std::mem::zeroed();
            let fd = self.interrupt.fd().as_raw_fd();
            assert_eq!(libc::timerfd_gettime(fd, &raw mut spec), 0);
            spec.it_value
        };
        Duration::new(left.tv_sec as u64, left.tv_nsec as u32)
    }

    /// For how long the interrupt of a lone frame is held back; a bit less, if it runs already.
    fn held(&mut self) -> Duration {
        assert!(self.interrupt.unmask());
        self.send(1);
        let left = self.left();
        assert_eq!(self.receive(), 1);
        left
    }
}

/// Only a fault takes it.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn so_many_frames_bring_the_interrupt_forward() {
    let rx_usecs = LONG.as_micros() as u32;
    let mut way = way(Coalesce { rx_usecs, rx_frames: 4, ..Coalesce::default() });
    assert!(way.interrupt.unmask());
    for _ in 0..3 {
        way.send(1);
        assert!(!way.fires_within(Duration::ZERO));
    }
    way.send(1);
    assert!(way.fires_within(LONG / 2));
    assert_eq!(way.receive(), 4);
    // One doorbell for all of them does too; and what has been taken does not count.
    assert!(way.interrupt.unmask());
    way.send(3);
    assert!(!way.fires_within(Duration::ZERO));
    assert_eq!(way.receive(), 3);
    assert!(way.interrupt.unmask());
    way.send(2);
    assert!(!way.fires_within(Duration::ZERO));
    way.send(6);
    assert!(way.fires_within(LONG / 2));
}

#[test]
fn without_a_number_time_alone_decides() {
    let rx_usecs = LONG.as_micros() as u32;
    let mut way = way(Coalesce { rx_usecs, ..Coalesce::default() });
    assert!(way.interrupt.unmask());
    way.send(200);
    assert!(!way.fires_within(Duration::ZERO));
    assert!((LONG / 2..=LONG).contains(&way.left()), "{:?}", way.left());
    way.receive();
    assert!(way.left().is_zero(), "masked, and its clock runs on");
    // From the next frame on as it is set now.
    way.interrupt.set_coalesce(Coalesce { rx_usecs: 1, ..Coalesce::default() }).unwrap();
    assert!(way.interrupt.unmask());
    way.send(1);
    assert!(way.fires_within(LONG / 2));
}

/// The three steps of ixgbe: an interrupt is held back the longer the more frames the last ones brought.
#[test]
fn adaptive_moderation_goes_by_the_load() {
    let mut way = way(Coalesce { adaptive: true, ..Coalesce::default() });
    let micros = Duration::from_micros;
    for (frames, shorter, step) in
        [(1, 0, 10), (16, 10, 50), (100, 50, 125), (16, 10, 50), (1, 0, 10)]
    {
        // What comes while the interrupt is held back is the load.
        for _ in 0..40 {
            assert!(way.interrupt.unmask());
            way.send(frames);
            way.tx.flush();
            way.receive();
        }
        // A clock that has been looked at late tells less; once in many times it has not.
        let longest = (0..1_000).map(|_| way.held()).max().unwrap();
        assert!(longest <= micros(step), "{frames} frames: {longest:?}");
        assert!(longest > micros(shorter), "{frames} frames: {longest:?}");
    }
}
