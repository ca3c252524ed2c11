//! How the calls on one socket wait: the options for it, and the loop that all calls share: try; else busy poll; else
//! sleep; try again. It is the same for datagrams and connections.

use super::{
    busy::{BusyLimits, BusyLoopEnd, busy_loop},
    options::{SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_PREFER_BUSY_POLL, at_least, errno},
};
use crate::{
    inet::{Context, Meta, Poller, UdpEndpoint, by_id, tcp::Flow},
    napi::{self, DirectBuffer, KernelFds, NapiId, Waiter, Wake},
    signal,
    spin::SpinTurn,
    time::{self, Instant},
};
use std::{
    hint::cold_path,
    io, slice,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The options of a socket about waiting.
#[derive(Debug)]
pub(super) struct WaitOptions {
    busy_poll: AtomicU32,
    prefer_busy_poll: AtomicBool,
    busy_poll_budget: AtomicU16,
    nonblocking: AtomicBool,
    /// `SO_RCVTIMEO`.
    pub(super) reading: Timeout,
    /// `SO_SNDTIMEO`.
    pub(super) writing: Timeout,
}

/// How long a call may wait, in nanoseconds; 0: for ever.
#[derive(Debug, Default)]
pub(super) struct Timeout(AtomicU64);

/// What a call waits on: one kind of event of a socket, as data to receive, and the queue of its sleepers.
pub(super) trait WaitChannel {
    /// Whether another attempt may succeed. Called in the busy loop.
    fn is_ready(&self) -> bool;

    /// Called in the busy loop after each pass while not ready: `found` is the number of packets of the pass, for
    /// any socket, `polled` how long the loop has lasted. Whether another attempt may succeed nevertheless.
    fn after_pass(&self, _found: usize, _polled: Duration) -> bool {
        false
    }

    /// Whether polling itself makes progress, as the acknowledgments that a sender's polls find make room bit by bit.
    /// Such a call polls on after each progress, and sleeps only after a whole busy-poll time without any.
    fn progresses_by_polling(&self) -> bool {
        false
    }

    /// The socket's id as a poller.
    fn poller_id(&self) -> usize;

    /// The connection that the packets are probably for.
    fn expected_flow(&self) -> Option<&Flow> {
        None
    }

    /// The datagram socket that the packets are probably for.
    fn expected_socket(&self) -> Option<&Arc<dyn UdpEndpoint>> {
        None
    }

    /// The NAPI context that the packets come from.
    fn context(&self) -> Option<Arc<Context>>;

    /// The same, if it is known without a lock.
    fn known_context(&self) -> Option<&Arc<Context>>;

    /// Queues `waiter` as a sleeper, unless the channel is ready. Returns the context to sleep on, if it is known.
    fn prepare_to_wait(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, AlreadyReady>;

    /// Removes `waiter` from the queue.
    fn finish_wait(&self, waiter: &Arc<Waiter>);
}

/// The channel is ready: no need to sleep.
pub struct AlreadyReady;

/// A call that may have to wait.
pub(super) trait Call {
    type Output;

    /// Tries once. `None`: it has to wait.
    fn attempt(&mut self) -> Option<io::Result<Self::Output>>;

    /// The buffers that the caller's own poll may deliver into, past the socket's queue.
    fn direct(&mut self) -> Option<&mut dyn DirectBuffer<Meta>> {
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

impl WaitOptions {
    /// The options of a new socket on a host with this `busy_read`.
    pub(super) fn new(busy_read: u32) -> WaitOptions {
        WaitOptions {
            busy_poll: AtomicU32::new(busy_read),
            prefer_busy_poll: AtomicBool::new(false),
            busy_poll_budget: AtomicU16::new(napi::BUSY_POLL_BUDGET as u16),
            nonblocking: AtomicBool::new(false),
            reading: Timeout::default(),
            writing: Timeout::default(),
        }
    }

    /// The options that an accepted connection inherits from its listener, and a listener from the socket it was
    /// made of: all but non-blocking mode.
    pub(super) fn inherited(&self) -> WaitOptions {
        let inherited = WaitOptions::new(self.busy_poll());
        inherited.set_prefer_busy_poll(self.prefers_busy_poll());
        inherited.set_budget(self.budget());
        inherited.reading.0.store(self.reading.0.load(Ordering::Relaxed), Ordering::Relaxed);
        inherited.writing.0.store(self.writing.0.load(Ordering::Relaxed), Ordering::Relaxed);
        inherited
    }

    /// Sets an option of `SOL_SOCKET`. `None` for any other option.
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

    /// An option of `SOL_SOCKET`. `None` for any other option.
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

    /// Makes `call`: tries; else busy polls; else sleeps; tries again.
    ///
    /// # Errors
    /// The call's own; `WouldBlock` if non-blocking or `timeout` is over, `Interrupted` by a signal.
    #[inline]
    pub(super) fn wait<C: Call>(
        &self,
        channel: &impl WaitChannel,
        timeout: &Timeout,
        mut call: C,
    ) -> io::Result<C::Output> {
        self.wait_nonblocking_if(self.is_nonblocking(), channel, timeout, &mut call)
    }

    /// As [`wait`](WaitOptions::wait), but `nonblocking` decides instead of the socket's mode (`MSG_DONTWAIT`).
    ///
    /// # Errors
    /// As [`wait`](WaitOptions::wait).
    #[inline]
    pub(super) fn wait_nonblocking_if<C: Call>(
        &self,
        nonblocking: bool,
        channel: &impl WaitChannel,
        timeout: &Timeout,
        call: &mut C,
    ) -> io::Result<C::Output> {
        if let Some(result) = call.attempt() {
            return result;
        }
        let deadline = timeout.deadline();
        let micros = if nonblocking { 0 } else { self.busy_poll() };
        let turn = SpinTurn::begin(Duration::from_micros(micros.into()));
        loop {
            if turn.may_poll() && self.busy_poll_queue(nonblocking, channel, call, deadline) {
                if let Some(result) = call.attempt() {
                    return result;
                }
                let over = || deadline.is_some_and(|deadline| deadline <= time::now());
                if channel.progresses_by_polling()
                    && !nonblocking
                    && !signal::has_deferred_signal()
                    && !over()
                {
                    continue;
                }
            }
            if nonblocking {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            cold_path();
            let wake = sleep(channel, deadline)?;
            if let Some(result) = call.attempt() {
                return result;
            }
            match wake {
                Wake::Timeout => return Err(io::ErrorKind::WouldBlock.into()),
                Wake::Signal => return Err(io::ErrorKind::Interrupted.into()),
                Wake::Woken | Wake::Interrupt | Wake::KernelFds => {
                    if signal::has_deferred_signal() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
            }
        }
    }

    /// Polls the queue once if the socket busy polls, for a caller with nothing to wait for.
    pub(super) fn poll_once(&self, channel: &impl WaitChannel) {
        self.busy_poll_queue(true, channel, &mut || None::<io::Result<()>>, None);
    }

    /// Busy polls as `SO_BUSY_POLL` says, if the socket's napi id is known. True if another attempt may succeed.
    #[inline]
    fn busy_poll_queue(
        &self,
        once: bool,
        channel: &impl WaitChannel,
        call: &mut impl Call,
        deadline: Option<Instant>,
    ) -> bool {
        let micros = self.busy_poll();
        if micros == 0 {
            return false;
        }
        let looked_up;
        let context = match channel.known_context() {
            Some(context) => context,
            None => {
                cold_path();
                looked_up = channel.context();
                let Some(context) = &looked_up else { return false };
                context
            }
        };
        let limits = BusyLimits {
            span: Duration::from_micros(if once { 0 } else { micros.into() }),
            budget: self.budget().into(),
            deadline,
        };
        let mut poller = Poller {
            name: channel.poller_id(),
            prefer: self.prefers_busy_poll(),
            direct: call.direct(),
            expected_flow: channel.expected_flow(),
            expected_socket: channel.expected_socket(),
        };
        let contexts = slice::from_ref(context);
        let mut began = None;
        let ready = |now, found| {
            channel.is_ready() || channel.after_pass(found, now - *began.get_or_insert(now))
        };
        busy_loop(contexts, &limits, &mut poller, ready) == BusyLoopEnd::Ready
    }
}

/// Sleeps until the channel may be ready.
fn sleep(channel: &impl WaitChannel, deadline: Option<Instant>) -> io::Result<Wake> {
    let waiter = Waiter::of_this_thread()?;
    waiter.start();
    if signal::has_deferred_signal() {
        return Ok(Wake::Signal);
    }
    let Ok(context) = channel.prepare_to_wait(&waiter) else { return Ok(Wake::Woken) };
    let timeout = deadline.map(|deadline| deadline - time::now());
    let wake = napi::sleep_for(context.as_slice(), &waiter, timeout, &mut KernelFds::none());
    // A wake-up removes the sleeper from the queue. But a late wake-up of an earlier wait does not, and an entry
    // left behind would swallow a later wake-up.
    if waiter.is_queued() || !waiter.is_woken() {
        channel.finish_wait(&waiter);
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

/// What of [`LastNapi`] is read without the socket's lock. Most sockets know one context all their life: it is kept,
/// and held, until the socket is dropped.
#[derive(Debug, Default)]
pub(super) struct KnownNapi {
    napi: AtomicU32,
    first: OnceLock<Arc<Context>>,
}

impl KnownNapi {
    /// Records the napi id of a packet, as [`LastNapi::mark`].
    #[inline]
    pub(super) fn mark(&self, napi: NapiId) {
        self.napi.store(napi.get(), Ordering::Relaxed);
    }

    /// Whether `napi` is the id recorded last.
    #[inline]
    pub(super) fn is(&self, napi: NapiId) -> bool {
        self.napi.load(Ordering::Relaxed) == napi.get()
    }

    /// Keeps the context that was looked up.
    pub(super) fn keep(&self, context: Option<&Arc<Context>>) {
        if let Some(context) = context {
            self.first.get_or_init(|| context.clone());
        }
    }

    /// The context that the last packet came from, if it is the one kept and not gone.
    #[inline]
    pub(super) fn context(&self) -> Option<&Arc<Context>> {
        self.first.get().filter(|context| self.is(context.id()) && !context.is_gone())
    }
}

/// The receive queue that a socket's last packet came from (Linux: `sk_napi_id`).
#[derive(Debug, Default)]
pub(super) struct LastNapi {
    napi: Option<NapiId>,
    /// The context with the id `napi`, once looked up.
    context: Option<Arc<Context>>,
}

impl LastNapi {
    /// Records the napi id of a packet (`sk_mark_napi_id`), whether or not the socket is connected.
    #[inline]
    pub(super) fn mark(&mut self, napi: Option<NapiId>) {
        if napi.is_some() && self.napi != napi {
            cold_path();
            *self = LastNapi { napi, context: None };
        }
    }

    pub(super) fn napi(&self) -> Option<NapiId> {
        self.napi
    }

    /// The context that the last packet came from. A context that is gone is forgotten; the next packet brings its
    /// successor.
    #[inline]
    pub(super) fn context(&mut self) -> Option<Arc<Context>> {
        if self.context.as_ref().is_none_or(|context| context.is_gone()) {
            cold_path();
            self.context = self.napi.and_then(by_id);
            if self.context.is_none() {
                self.napi = None;
            }
        }
        self.context.clone()
    }

    /// Releases the context.
    pub(super) fn forget(&mut self) {
        *self = LastNapi::default();
    }
}
