//! The ownership word of a receive queue: which side may poll it now. One atomic with the bits of the original ixgbe
//! implementation (`ixgbe_qv_lock_napi` and the functions beside it, Linux 3.11).
//!
//! Two sides want the queue: NAPI (the interrupt's side) and POLL (an application's thread). Neither ever blocks on the
//! word: a refused thread leaves a yield mark, and the owner's release reports it. `NAPI_YIELD` is what today's kernels
//! call `MISSED`: an interrupt came while a poller owned the queue. A [`Context`](super::Context) does not use the
//! report: a refused interrupt thread watches the queue (`handoff.rs`), and counts.

use crate::sync::{AtomicU32, Ordering};

const NAPI: u32 = 1;
const POLL: u32 = 2;
const DISABLED: u32 = 4;
const NAPI_YIELD: u32 = 8;
const POLL_YIELD: u32 = 16;
const OWNED: u32 = NAPI | POLL;
const LOCKED: u32 = OWNED | DISABLED;

/// Why the queue was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The other side, or another thread, owns it; the yield mark is set.
    Owned,
    /// It is disabled.
    Disabled,
}

/// The yield marks that were set while the queue was owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The interrupt's side was refused: the packets it was interrupted for may still be on the ring (Linux's
    /// `NAPI_STATE_MISSED`). If no other thread polls them, the releasing thread must.
    pub napi_yield: bool,
    /// A polling thread was refused.
    pub poll_yield: bool,
}

/// The word.
#[derive(Debug)]
pub struct Word(AtomicU32);

impl Default for Word {
    fn default() -> Self {
        Word::new()
    }
}

impl Word {
    /// A queue without an owner, not yet enabled.
    pub fn new() -> Word {
        Word(AtomicU32::new(DISABLED))
    }

    /// The interrupt's side wants the queue. Clears old yield marks, because it is about to poll everything.
    ///
    /// # Errors
    /// Refused; `NAPI_YIELD` is set, so that the owner's release reports it.
    #[inline]
    pub fn lock_napi(&self) -> Result<(), Refused> {
        self.acquire(NAPI_YIELD, |_| NAPI)
    }

    /// A thread wants to busy poll the queue. A mark of the interrupt's side stays.
    ///
    /// # Errors
    /// Refused; `POLL_YIELD` is set. The thread goes on looking at its own socket; it never blocks here.
    #[inline]
    pub fn lock_poll(&self) -> Result<(), Refused> {
        self.acquire(POLL_YIELD, |word| word | POLL)
    }

    #[inline]
    fn acquire(&self, mark: u32, own: impl Fn(u32) -> u32) -> Result<(), Refused> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            // The compare-exchange that saw the owner also sets the mark: set separately, the mark could land on a
            // word that was just released, and stay there.
            let refused = word & LOCKED != 0;
            let next = if refused { word | mark } else { own(word) };
            if refused && next == word && mark == POLL_YIELD {
                // A spinner that is refused again and again only reads. The interrupt's side always writes: the packets
                // it was interrupted for must be ordered before the release that reports its mark.
                return Err(Self::refusal(word));
            }
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if refused => return Err(Self::refusal(word)),
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    fn refusal(word: u32) -> Refused {
        if word & DISABLED != 0 { Refused::Disabled } else { Refused::Owned }
    }

    /// The owner releases the queue. Keeps only `DISABLED`.
    #[inline]
    pub fn unlock(&self) -> Released {
        let word = self.0.fetch_and(DISABLED, Ordering::AcqRel);
        debug_assert!(word & OWNED != 0, "released by no owner");
        Released { napi_yield: word & NAPI_YIELD != 0, poll_yield: word & POLL_YIELD != 0 }
    }

    /// Lets no thread own the queue until [`enable`](Word::enable). True once the queue has no owner; until then the
    /// caller calls again.
    #[must_use]
    pub fn disable(&self) -> bool {
        self.0.fetch_or(DISABLED, Ordering::AcqRel) & OWNED == 0
    }

    /// Opens the queue, after [`Word::new`] or a [`disable`](Word::disable) that returned true.
    pub fn enable(&self) {
        // A swap, not a store: a mark that a refused thread sets now either comes before the swap or fails.
        self.0.swap(0, Ordering::Release);
    }

    /// Whether a polling thread owns the queue now.
    pub fn is_polled(&self) -> bool {
        self.0.load(Ordering::Relaxed) & POLL != 0
    }

    /// Whether it is disabled.
    pub fn is_disabled(&self) -> bool {
        self.0.load(Ordering::Relaxed) & DISABLED != 0
    }
}
