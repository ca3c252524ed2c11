//! Interrupt moderation of a cable: what delays an interrupt, for how long, and what fires it early.

use busypoll_stack::nic::{Coalesce, Interrupt, Nic, Queue, RxQueue, TxQueue, cable};
use std::{os::fd::AsRawFd, sync::Arc, time::Duration};

/// One direction of a cable.
struct Direction {
    tx: Box<dyn TxQueue>,
    rx: Box<dyn RxQueue>,
    interrupt: Arc<dyn Interrupt>,
}

fn direction(coalesce: Coalesce) -> Direction {
    let (mut near, mut far) =
        cable::pair(cable::Config { coalesce, ..cable::Config::default() }).unwrap();
    let Queue { rx, interrupt, .. } = near.open(0).unwrap();
    Direction { tx: far.open(0).unwrap().tx, rx, interrupt }
}

impl Direction {
    /// Sends `frames` frames with one doorbell.
    fn send(&mut self, frames: u32) {
        for _ in 0..frames {
            self.tx.push(60, false, &mut |_| {}).unwrap();
        }
        self.tx.flush();
    }

    /// Takes all frames, with the interrupt masked.
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

    /// The time until a delayed interrupt fires.
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

    /// The delay of a single frame's interrupt; a bit less if the timer runs already.
    fn held(&mut self) -> Duration {
        assert!(self.interrupt.unmask());
        self.send(1);
        let left = self.left();
        assert_eq!(self.receive(), 1);
        left
    }
}

/// Longer than any machine needs; only a fault takes it.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_frame_limit_fires_the_interrupt_early() {
    let rx_usecs = LONG.as_micros() as u32;
    let mut direction = direction(Coalesce { rx_usecs, rx_frames: 4, ..Coalesce::default() });
    assert!(direction.interrupt.unmask());
    for _ in 0..3 {
        direction.send(1);
        assert!(!direction.fires_within(Duration::ZERO));
    }
    direction.send(1);
    assert!(direction.fires_within(LONG / 2));
    assert_eq!(direction.receive(), 4);
    // One doorbell for all of them fires it too; frames already taken do not count.
    assert!(direction.interrupt.unmask());
    direction.send(3);
    assert!(!direction.fires_within(Duration::ZERO));
    assert_eq!(direction.receive(), 3);
    assert!(direction.interrupt.unmask());
    direction.send(2);
    assert!(!direction.fires_within(Duration::ZERO));
    direction.send(6);
    assert!(direction.fires_within(LONG / 2));
}

#[test]
fn without_a_frame_limit_only_the_time_counts() {
    let rx_usecs = LONG.as_micros() as u32;
    let mut direction = direction(Coalesce { rx_usecs, ..Coalesce::default() });
    assert!(direction.interrupt.unmask());
    direction.send(200);
    assert!(!direction.fires_within(Duration::ZERO));
    assert!((LONG / 2..=LONG).contains(&direction.left()), "{:?}", direction.left());
    direction.receive();
    assert!(direction.left().is_zero(), "masked, but its timer runs on");
    // A new setting applies from the next frame on.
    direction.interrupt.set_coalesce(Coalesce { rx_usecs: 1, ..Coalesce::default() }).unwrap();
    assert!(direction.interrupt.unmask());
    direction.send(1);
    assert!(direction.fires_within(LONG / 2));
}

/// The three steps of ixgbe: the more frames the last interrupts brought, the longer an interrupt is delayed.
#[test]
fn adaptive_moderation_follows_the_load() {
    let mut direction = direction(Coalesce { adaptive: true, ..Coalesce::default() });
    let micros = Duration::from_micros;
    for (frames, shorter, step) in
        [(1, 0, 10), (16, 10, 50), (100, 50, 125), (16, 10, 50), (1, 0, 10)]
    {
        // The frames that come while the interrupt is delayed are the load.
        for _ in 0..40 {
            assert!(direction.interrupt.unmask());
            direction.send(frames);
            direction.tx.flush();
            direction.receive();
        }
        // A timer that is read late shows less; among many reads one is not late.
        let longest = (0..1_000).map(|_| direction.held()).max().unwrap();
        assert!(longest <= micros(step), "{frames} frames: {longest:?}");
        assert!(longest > micros(shorter), "{frames} frames: {longest:?}");
    }
}
