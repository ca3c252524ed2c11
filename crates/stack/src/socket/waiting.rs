//! How the calls on one socket wait: the options that say so, and the one way that all of them take: what
//! is there; else busy poll; else sleep; and again. Knows neither datagrams nor connections.

use super::{
    busy::{Busy, Terms, busy_loop},
    options::{SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_PREFER_BUSY_POLL, at_least, errno},
};
use crate::{
    napi::{self, Context, Direct, NapiId, Outside, Poller, Waiter, Wake},
    signal,
    spin::Turn,
    time::{self, Instant},
};
use std::{
    any::Any,
    hint::cold_path,
    io, slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

/// What a socket's options say about waiting.
#[derive(Debug)]
pub(super) struct Waiting {
    busy_poll: AtomicU32,
    prefer_busy_poll: AtomicBool,
    busy_poll_budget: AtomicU16,
    nonblocking: AtomicBool,
    /// `SO_RCVTIMEO`.
    pub(super) reading: Timeout,
    /// `SO_SNDTIMEO`.
    pub(super) writing: Timeout,
}

/// How long a call may wait: nanoseconds, 0 for ever.
#[derive(Debug, Default)]
pub(super) struct Timeout(AtomicU64);

/// Where those sleep who wait for one thing, as the receivers of a socket do.
pub(super) trait Bed {
    /// Whether it is worth another attempt. Asked in the busy loop.
    fn is_ready(&self) -> bool;

    /// Told in the busy loop, unless ready, how many packets the last look has found, whosever they are, and how long
    /// the loop has lasted. Whether that makes another attempt worthwhile all the same.
    fn looked(&self, _found: usize, _polled: Duration) -> bool {
        false
    }

    /// Whether who polls here brings about himself what he waits for, piece by piece: then he goes on as long as
    /// pieces come, and sleeps only after a whole time of polling in vain.
    fn is_moved_by_polling(&self) -> bool {
        false
    }

    /// The name under which the socket busy polls.
    fn poller(&self) -> usize;

    /// What brings it, as the floor below knows it.
    fn likely(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }

    /// The context whose queue brings it.
    fn context(&self) -> Option<Arc<Context>>;

    /// Joins those who sleep, unless it is there. The context to sleep on, if one is known.
    fn join(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, Something>;

    /// Leaves them.
    fn leave(&self, waiter: &Arc<Waiter>);
}

/// What was waited for is there.
pub(super) struct Something;

/// A call that may have to wait.
pub(super) trait Call {
    type Output;

    /// Its result, if it need not wait.
    fn attempt(&mut self) -> Option<io::Result<Self::Output>>;

    /// Where its own find may go past the socket's queue.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }
}

impl<T, F: FnMut() -> Option<io::Result<T>>> Call for F {
    type Output = T;

    #[inline]
    fn attempt(&mut self) -> Option<io::Result<T>> {
        self()
    }
}

impl Waiting {
    /// Of a new socket on a host with this `busy_read`.
    pub(super) fn new(busy_read: u32) -> Waiting {
        Waiting {
            busy_poll: AtomicU32::new(busy_read),
            prefer_busy_poll: AtomicBool::new(false),
            busy_poll_budget: AtomicU16::new(napi::BUSY_POLL_BUDGET as u16),
            nonblocking: AtomicBool::new(false),
            reading: Timeout::default(),
            writing: Timeout::default(),
        }
    }

    /// What a connection has from the listener that it is accepted from, and a listener from the socket it was
    /// made of: all but whether it blocks.
    pub(super) fn handed_on(&self) -> Waiting {
        let heir = Waiting::new(self.busy_poll());
        heir.set_prefer_busy_poll(self.prefers_busy_poll());
        heir.set_budget(self.budget());
        heir.reading.0.store(self.reading.0.load(Ordering::Relaxed), Ordering::Relaxed);
        heir.writing.0.store(self.writing.0.load(Ordering::Relaxed), Ordering::Relaxed);
        heir
    }

    /// Sets an option of `SOL_SOCKET`. `None`: it is not one of these.
    pub(super) fn set(&self, name: i32, value: i32) -> Option<io::Result<()>> {
        let stored = match name {
            SO_BUSY_POLL => at_least(0, value).and_then(|micros| self.set_busy_poll(micros)),
            SO_PREFER_BUSY_POLL => {
                self.set_prefer_busy_poll(value != 0);
                Ok(())
            }
            SO_BUSY_POLL_BUDGET => match u16::try_from(value) {
                Ok(packets @ 1..) => {
                    self.set_budget(packets);
                    Ok(())
                }
                _ => Err(errno(libc::EINVAL)),
            },
            _ => return None,
        };
        Some(stored)
    }

    /// An option of `SOL_SOCKET`. `None`: it is not one of these.
    pub(super) fn get(&self, name: i32) -> Option<u32> {
        Some(match name {
            SO_BUSY_POLL => self.busy_poll(),
            SO_PREFER_BUSY_POLL => self.prefers_busy_poll().into(),
            SO_BUSY_POLL_BUDGET => self.budget().into(),
            _ => return None,
        })
    }

    /// # Errors
    /// EINVAL above 2^31 - 1.
    pub(super) fn set_busy_poll(&self, micros: u32) -> io::Result<()> {
        let micros = i32::try_from(micros).map_err(|_| errno(libc::EINVAL))?;
        self.busy_poll.store(micros.cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(super) fn busy_poll(&self) -> u32 {
        self.busy_poll.load(Ordering::Relaxed)
    }

    pub(super) fn set_prefer_busy_poll(&self, on: bool) {
        self.prefer_busy_poll.store(on, Ordering::Relaxed);
    }

    pub(super) fn prefers_busy_poll(&self) -> bool {
        self.prefer_busy_poll.load(Ordering::Relaxed)
    }

    pub(super) fn set_budget(&self, packets: u16) {
        let packets = if packets == 0 { napi::BUSY_POLL_BUDGET as u16 } else { packets };
        self.busy_poll_budget.store(packets, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn budget(&self) -> u16 {
        self.busy_poll_budget.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Makes `call`, top to bottom: what is there; else busy poll; else sleep; again.
    ///
    /// # Errors
    /// What the call comes to; `WouldBlock` if non-blocking or `timeout` is over, `Interrupted` by a signal.
    #[inline]
    pub(super) fn wait<C: Call>(
        &self,
        bed: &impl Bed,
        timeout: &Timeout,
        call: C,
    ) -> io::Result<C::Output> {
        self.wait_unless(self.is_nonblocking(), bed, timeout, call)
    }

    /// As [`wait`](Waiting::wait), non-blocking if `at_once`, whatever the socket is (`MSG_DONTWAIT`).
    ///
    /// # Errors
    /// As [`wait`](Waiting::wait).
    #[inline]
    pub(super) fn wait_unless<C: Call>(
        &self,
        at_once: bool,
        bed: &impl Bed,
        timeout: &Timeout,
        mut call: C,
    ) -> io::Result<C::Output> {
        if let Some(result) = call.attempt() {
            return result;
        }
        let deadline = timeout.deadline();
        let micros = if at_once { 0 } else { self.busy_poll() };
        let turn = Turn::begin(Duration::from_micros(micros.into()));
        loop {
            if turn.may_poll() && self.poll(at_once, bed, &mut call, deadline) {
                if let Some(result) = call.attempt() {
                    return result;
                }
                let over = || deadline.is_some_and(|deadline| deadline <= time::now());
                if bed.is_moved_by_polling() && !at_once && !signal::is_put_off() && !over() {
                    continue;
                }
            }
            if at_once {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            cold_path();
            let wake = sleep(bed, deadline)?;
            if let Some(result) = call.attempt() {
                return result;
            }
            match wake {
                Wake::Timeout => return Err(io::ErrorKind::WouldBlock.into()),
                Wake::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
                Wake::Woken | Wake::Readable | Wake::Outside => {
                    if signal::is_put_off() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
            }
        }
    }

    /// Looks at the queue once, if the socket busy polls: for who has nothing to wait for.
    pub(super) fn look(&self, bed: &impl Bed) {
        self.poll(true, bed, &mut || None::<io::Result<()>>, None);
    }

    /// Busy polls by `SO_BUSY_POLL` if a napi id is known. True if something came.
    #[inline]
    fn poll(
        &self,
        once: bool,
        bed: &impl Bed,
        call: &mut impl Call,
        deadline: Option<Instant>,
    ) -> bool {
        let micros = self.busy_poll();
        if micros == 0 {
            return false;
        }
        let Some(context) = bed.context() else { return false };
        let terms = Terms {
            span: Duration::from_micros(if once { 0 } else { micros.into() }),
            budget: self.budget().into(),
            deadline,
        };
        let mut poller = Poller {
            name: bed.poller(),
            prefer: self.prefers_busy_poll(),
            direct: call.direct(),
            likely: bed.likely(),
        };
        let contexts = slice::from_ref(&context);
        let mut began = None;
        let ready =
            |now, found| bed.is_ready() || bed.looked(found, now - *began.get_or_insert(now));
        busy_loop(contexts, &terms, &mut poller, ready) == Busy::Ready
    }
}

/// Sleeps until something may have come.
fn sleep(bed: &impl Bed, deadline: Option<Instant>) -> io::Result<Wake> {
    let waiter = Waiter::of_this_thread()?;
    waiter.start();
    if signal::is_put_off() {
        return Ok(Wake::Interrupted);
    }
    let Ok(context) = bed.join(&waiter) else { return Ok(Wake::Woken) };
    let timeout = deadline.map(|deadline| deadline - time::now());
    let wake = napi::sleep_for(context.as_slice(), &waiter, timeout, &mut Outside::nothing());
    // Who wakes a sleeper takes it off the queue; but it may have been woken by the late echo of an
    // earlier wait, and an entry left behind would swallow a later wake-up.
    if waiter.is_queued() || !waiter.is_woken() {
        bed.leave(&waiter);
    }
    Ok(wake)
}

impl Timeout {
    /// # Errors
    /// `InvalidInput` for zero, as in std.
    pub(super) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        let nanos = match timeout {
            Some(Duration::ZERO) => {
                let why = "a timeout of zero; use set_nonblocking to not wait at all";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
            None => 0,
        };
        self.0.store(nanos, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// When a call that begins now must end.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.get().map(|timeout| time::now() + timeout)
    }
}

/// The queue that a socket's packets last came over.
#[derive(Debug, Default)]
pub(super) struct Followed {
    napi: Option<NapiId>,
    /// The context named `napi`, once it was looked up.
    context: Option<Arc<Context>>,
}

impl Followed {
    /// A packet has come: the socket follows its queue, connected or not.
    #[inline]
    pub(super) fn follow(&mut self, napi: Option<NapiId>) {
        if napi.is_some() && self.napi != napi {
            cold_path();
            *self = Followed { napi, context: None };
        }
    }

    pub(super) fn napi(&self) -> Option<NapiId> {
        self.napi
    }

    /// The context that packets last came from. One that has gone is forgotten, and learnt anew from the next
    /// packet.
    #[inline]
    pub(super) fn context(&mut self) -> Option<Arc<Context>> {
        if self.context.as_ref().is_none_or(|context| context.is_gone()) {
            cold_path();
            self.context = self.napi.and_then(napi::by_id);
            if self.context.is_none() {
                self.napi = None;
            }
        }
        self.context.clone()
    }

    /// Holds no context any more.
    pub(super) fn forget(&mut self) {
        *self = Followed::default();
    }
}
