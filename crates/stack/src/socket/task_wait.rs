//! A task of an async runtime waits at a socket as a thread does: in the socket's wait queue, with a waiter that wakes
//! the task instead of a thread.

use super::{
    readiness::Events,
    source::Socket,
    waiting::{AlreadyReady, WaitChannel, WaitOptions},
};
use crate::{host::PollerSlot, inet::Context, napi::Waiter};
use std::{
    fmt, io,
    sync::Arc,
    task::{self, Poll},
};

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To receive, or to accept.
    Read,
    /// To send, or to be connected.
    Write,
}

/// The wait queues of a socket, for tasks.
pub trait TaskChannel: Send + Sync {
    /// Queues `waiter`, unless the socket is ready. Returns the context that the task's own calls have polled.
    fn prepare_task(
        &self,
        direction: Direction,
        waiter: &Arc<Waiter>,
    ) -> Result<Option<Arc<Context>>, AlreadyReady>;

    /// Removes `waiter` from the queue.
    fn finish_task(&self, direction: Direction, waiter: &Arc<Waiter>);
}

/// As [`WaitChannel::prepare_to_wait`], for a task: the context only if the socket's calls busy poll it.
pub(super) fn prepare(
    channel: &impl WaitChannel,
    options: &WaitOptions,
    waiter: &Arc<Waiter>,
) -> Result<Option<Arc<Context>>, AlreadyReady> {
    let context = channel.prepare_to_wait(waiter)?;
    Ok(context.filter(|_| options.busy_poll() > 0))
}

/// How a task waits at a non-blocking socket, in one direction. It keeps nothing but the task's place in the wait
/// queue; one serves any number of waits, one after the other.
///
/// It belongs to no runtime: what polls the future gives the waker. `busypoll`'s feature `tokio` has ready types.
///
/// ```
/// use busypoll_stack::{Direction, Host, TaskWait, UdpSocket, nic::cable};
/// use std::{future::poll_fn, pin::pin, task::{Context, Poll, Waker}};
/// # let (a, _b) = cable::pair(cable::Config::default())?;
/// # let host = Host::builder().interface(a, "10.0.0.1/24").build()?;
/// let socket = UdpSocket::bind(&host, "10.0.0.1:7")?;
/// socket.set_nonblocking(true)?;
/// let mut wait = TaskWait::new(&socket, Direction::Read);
/// let mut buffer = [0; 16];
/// let mut receive = pin!(poll_fn(|cx| wait.poll(cx, || socket.recv(&mut buffer))));
/// # let mut cx = Context::from_waker(Waker::noop());
/// assert!(receive.as_mut().poll(&mut cx).is_pending());
/// socket.send_to(b"to myself", "10.0.0.1:7")?;
/// assert!(matches!(receive.as_mut().poll(&mut cx), Poll::Ready(Ok(9))));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TaskWait {
    channel: Arc<dyn TaskChannel>,
    direction: Direction,
    waiter: Arc<Waiter>,
    poller_slot: Arc<PollerSlot>,
    /// The waiter was put into the wait queue, and a wake-up may have removed it.
    waits: bool,
}

/// How often a call is tried that would wait although the socket says that it is ready.
const ATTEMPTS: usize = 3;

impl TaskWait {
    /// For a task that waits at `socket`.
    pub fn new(socket: &dyn Socket, direction: Direction) -> TaskWait {
        TaskWait {
            channel: socket.task_channel(),
            direction,
            waiter: Arc::new(Waiter::of_task()),
            poller_slot: socket.host().poller_slot().clone(),
            waits: false,
        }
    }

    /// Makes `call`, which must not wait: returns `WouldBlock` where it would. Then the task waits, and is woken to poll
    /// again. Only the task that has polled last is woken.
    pub fn poll<T>(
        &mut self,
        cx: &mut task::Context<'_>,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        if self.waits && (self.waiter.is_queued() || !self.waiter.is_woken()) {
            self.leave();
        }
        // Else a wake-up has removed the waiter, and the call answers it.
        self.waits = false;
        for _ in 0..ATTEMPTS {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
            self.waiter.arm_task(cx.waker());
            if let Ok(polled) = self.channel.prepare_task(self.direction, &self.waiter) {
                self.waits = true;
                self.poller_slot.begin_wait(polled.as_deref());
                return Poll::Pending;
            }
        }
        // No event will say when the transmit ring has room. Other tasks run meanwhile.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits until `socket`, which this is for, is ready in this direction, or has an error or its end.
    pub fn poll_ready(&mut self, cx: &mut task::Context<'_>, socket: &dyn Socket) -> Poll<Events> {
        let interest = match self.direction {
            Direction::Read => Events::READABLE | Events::READ_HANGUP,
            Direction::Write => Events::WRITABLE,
        };
        let waited = self.waits;
        let ready = self.poll(cx, || match socket.readiness().reported(interest) {
            found if found.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            found => Ok(found),
        });
        let Poll::Ready(Ok(found)) = ready else { return Poll::Pending };
        if waited {
            // What the wake-up was for is still there: it goes to the next sleeper, too.
            self.channel.finish_task(self.direction, &self.waiter);
        }
        Poll::Ready(found)
    }

    /// Ends the wait, as dropping this does: the task is not woken any more. A wake-up that has come goes to the next
    /// sleeper.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.channel.finish_task(self.direction, &self.waiter);
        }
    }
}

impl fmt::Debug for TaskWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskWait").field("direction", &self.direction).finish()
    }
}

impl Drop for TaskWait {
    fn drop(&mut self) {
        self.leave();
    }
}
