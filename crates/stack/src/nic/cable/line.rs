//! The interrupt line of a cable's ring: when it fires and which side fires it. No frame may wait while each side
//! expects the other to act. Within a process the descriptor is an eventfd or, with moderation, a timerfd; between
//! processes it is a socket.
//!
//! Does not see frames; callers pass their number. It is model-checked in `tests/loom.rs`.

use crate::{
    nic::Coalesce,
    sync::{AtomicU32, AtomicU64, Mutex, Ordering, fence, lock},
    sys,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

const MASKED: u32 = 0;
const ARMED: u32 = 1;
/// Frames wait, and the interrupt fires when the timer expires.
const HELD: u32 = 2;

/// The word and the descriptor of a line. Between processes each end has its own value of this, for the same word.
pub(crate) trait Bell {
    /// `MASKED`, `ARMED` or `HELD`. Another process may write anything here.
    fn armed(&self) -> &AtomicU32;
    /// The receiver waits until this is readable.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Makes the receiver's descriptor readable. Never blocks.
    fn ring(&self);
    /// Makes the descriptor not readable. Never blocks.
    fn silence(&self);
}

/// Both ends are in this process.
pub(crate) struct LocalBell {
    fd: OwnedFd,
    armed: AtomicU32,
}

impl Bell for LocalBell {
    fn armed(&self) -> &AtomicU32 {
        &self.armed
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn ring(&self) {
        sys::signal(self.fd.as_raw_fd());
    }

    fn silence(&self) {
        sys::drain(self.fd.as_raw_fd());
    }
}

/// The interrupt line of one ring.
pub(crate) struct Line<B = LocalBell> {
    bell: B,
    /// Only within a process.
    moderation: Option<Moderation>,
}

struct Moderation {
    coalesce: Mutex<Coalesce>,
    /// The smoothed number (x 16) of frames that waited when the last interrupts fired. Input of adaptive moderation.
    load: AtomicU64,
}

impl Line {
    pub(crate) fn new(coalesce: Coalesce) -> io::Result<Line> {
        let armed = AtomicU32::new(MASKED);
        if coalesce == Coalesce::default() {
            return Ok(Line::of(LocalBell { fd: sys::eventfd()?, armed }));
        }
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: a plain system call.
        let fd = sys::owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let moderation = Moderation { coalesce: Mutex::new(coalesce), load: AtomicU64::new(0) };
        Ok(Line { bell: LocalBell { fd, armed }, moderation: Some(moderation) })
    }
}

impl<B: Bell> Line<B> {
    /// A line without moderation.
    pub(crate) fn of(bell: B) -> Line<B> {
        Line { bell, moderation: None }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// The sender has written frames; `waiting` returns how many are on the ring.
    #[inline]
    pub(crate) fn doorbell(&self, waiting: impl FnOnce() -> u32) {
        // The sender writes the frames, then reads the line. `unmask` writes the line, then looks for frames. So one of
        // the two sees the other's write.
        fence(Ordering::SeqCst);
        if self.bell.armed().load(Ordering::Relaxed) != MASKED {
            self.fire(waiting());
        }
    }

    /// Lets the next frame fire; `frame_waits` returns whether one is on the ring. False if so: then the interrupt may
    /// never fire.
    pub(crate) fn unmask(&self, frame_waits: impl FnOnce() -> bool) -> bool {
        // `HELD` is not overwritten: its timer runs and will fire.
        let armed =
            self.bell.armed().compare_exchange(MASKED, ARMED, Ordering::AcqRel, Ordering::Acquire);
        if armed == Err(HELD) {
            return true;
        }
        fence(Ordering::SeqCst);
        if !frame_waits() {
            return true;
        }
        // If the sender saw `ARMED`, it has fired. Otherwise disarm again.
        self.bell
            .armed()
            .compare_exchange(ARMED, MASKED, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
    }

    /// `waiting` frames are on the ring and the line is not masked: fires it now, or starts the timer.
    #[cold]
    fn fire(&self, waiting: u32) {
        let Some(moderation) = &self.moderation else {
            if self.bell.armed().swap(MASKED, Ordering::AcqRel) != MASKED {
                self.bell.ring();
            }
            return;
        };
        // Held to the end: no `mask` may come between the change of the line and that of the timer.
        let coalesce = lock(&moderation.coalesce);
        let usecs = if coalesce.adaptive { moderation.adapted() } else { coalesce.rx_usecs };
        let enough = coalesce.rx_frames > 0 && waiting >= coalesce.rx_frames;
        if usecs == 0 || enough {
            if self.bell.armed().swap(MASKED, Ordering::AcqRel) != MASKED {
                moderation.fired(waiting);
                self.set_timer(1);
            }
        } else if self
            .bell
            .armed()
            .compare_exchange(ARMED, HELD, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.set_timer(u64::from(usecs) * 1_000);
        } else {
            moderation.fired(waiting);
        }
    }

    pub(crate) fn mask(&self) {
        let _one_step = self.moderation.as_ref().map(|moderation| lock(&moderation.coalesce));
        let was = self.bell.armed().swap(MASKED, Ordering::AcqRel);
        if self.moderation.is_some() && was == HELD {
            self.set_timer(0);
        }
        // Also if it has not fired since it was armed: a sender that was descheduled between masking the line and
        // signalling may have signalled since, and the descriptor would stay readable for ever.
        self.bell.silence();
    }

    /// Masks a line without moderation, and leaves the descriptor readable if it has fired.
    pub(crate) fn mask_alone(&self) {
        debug_assert!(self.moderation.is_none(), "its timer would go on");
        self.bell.armed().swap(MASKED, Ordering::AcqRel);
    }

    /// Makes the descriptor not readable.
    pub(crate) fn silence(&self) {
        self.bell.silence();
    }

    /// Makes the timerfd readable in `nanos` nanoseconds; 0: never.
    fn set_timer(&self, nanos: u64) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = sys::timespec(Duration::from_nanos(nanos));
        let spec = libc::itimerspec { it_interval: zero, it_value };
        // SAFETY: `spec` is valid for the call; a valid time on our own timerfd cannot fail.
        unsafe {
            libc::timerfd_settime(self.bell.fd().as_raw_fd(), 0, &spec, std::ptr::null_mut())
        };
    }

    pub(crate) fn set_coalesce(&self, coalesce: Coalesce) -> io::Result<()> {
        match &self.moderation {
            Some(moderation) => {
                *lock(&moderation.coalesce) = coalesce;
                Ok(())
            }
            None if coalesce == Coalesce::default() => Ok(()),
            None => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "cable: made without moderation; set Config::coalesce when making the pair",
            )),
        }
    }
}

impl Moderation {
    fn fired(&self, waiting: u32) {
        let load = self.load.load(Ordering::Relaxed);
        self.load.store(load - load / 4 + u64::from(waiting.min(1024)) * 4, Ordering::Relaxed);
    }

    /// The three steps of ixgbe's adaptive moderation (`ixgbe_update_itr`): 100,000, 20,000 and 8,000
    /// interrupts a second, by how many frames an interrupt brings.
    fn adapted(&self) -> u32 {
        match self.load.load(Ordering::Relaxed) / 16 {
            0..=4 => 10,
            5..=32 => 50,
            _ => 125,
        }
    }
}
