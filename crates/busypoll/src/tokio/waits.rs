//! The waits of calls through a shared reference. Each future has a wait of its own, so that any number of tasks may wait
//! at one socket; the last one ended is kept for the next.

use busypoll_stack::{Direction, Events, Socket, TaskWait};
use std::{
    future::poll_fn,
    io,
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::task::coop::poll_proceed;

/// The waits at one socket in one direction.
#[derive(Debug)]
pub(super) struct Waits {
    direction: Direction,
    spare: Mutex<Option<TaskWait>>,
    /// The wait of the `poll_` methods, which lasts from one call to the next.
    polled: Mutex<Option<TaskWait>>,
}

/// A wait of one future.
struct Lent<'a> {
    wait: Option<TaskWait>,
    to: &'a Waits,
}

impl Waits {
    pub(super) fn new(direction: Direction) -> Waits {
        Waits { direction, spare: Mutex::default(), polled: Mutex::default() }
    }

    /// Makes `io` once it does not wait any more.
    pub(super) async fn call<T>(
        &self,
        socket: &dyn Socket,
        mut io: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut wait = self.lend(socket);
        poll_fn(|cx| poll_io(&mut wait, cx, &mut io)).await
    }

    /// Waits until the socket is ready.
    pub(super) async fn ready(&self, socket: &dyn Socket) -> Events {
        let mut wait = self.lend(socket);
        poll_fn(|cx| {
            let progress = ready!(poll_proceed(cx));
            let events = ready!(wait.poll_ready(cx, socket));
            progress.made_progress();
            Poll::Ready(events)
        })
        .await
    }

    /// As [`call`](Waits::call), for a `poll_` method: only the task of the last call is woken.
    pub(super) fn poll<T>(
        &self,
        socket: &dyn Socket,
        cx: &mut Context<'_>,
        io: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let mut polled = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = polled.get_or_insert_with(|| TaskWait::new(socket, self.direction));
        poll_io(wait, cx, io)
    }

    fn lend(&self, socket: &dyn Socket) -> Lent<'_> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        let wait = spare.unwrap_or_else(|| TaskWait::new(socket, self.direction));
        Lent { wait: Some(wait), to: self }
    }
}

/// Polls `io`, as tokio's own sockets do: a task that always finds data gives way to the others now and then.
#[inline]
pub(super) fn poll_io<T>(
    wait: &mut TaskWait,
    cx: &mut Context<'_>,
    io: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    let progress = ready!(poll_proceed(cx));
    let result = ready!(wait.poll(cx, io));
    progress.made_progress();
    Poll::Ready(result)
}

impl Deref for Lent<'_> {
    type Target = TaskWait;

    fn deref(&self) -> &TaskWait {
        self.wait.as_ref().expect("taken by drop alone")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut TaskWait {
        self.wait.as_mut().expect("taken by drop alone")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(mut wait) = self.wait.take() {
            wait.leave();
            *self.to.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(wait);
        }
    }
}
