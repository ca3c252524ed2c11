//! The stack's own threads. They block all signals, which are for the application's threads. Each calls a hook first,
//! by which the preload library knows that it is not the application's.
//!
//! They are made by pthread_create(3), because std's threads register thread-local destructors, both for the new thread
//! and for the one that starts it, which may be ending.

use std::{
    ffi::{CString, c_void},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

static ON_START: OnceLock<fn()> = OnceLock::new();

/// Threads that have been made and have yet to call the hook.
static STARTING: AtomicUsize = AtomicUsize::new(0);

/// Threads that have called the hook and run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// How many of the stack's threads run. One that is counted exists; one that is just ending may exist and not be counted.
pub fn running() -> usize {
    RUNNING.load(Ordering::Acquire)
}

/// How many of the stack's threads have been made and have yet to call the hook.
pub fn starting() -> usize {
    STARTING.load(Ordering::Acquire)
}

/// Waits until none is. For a fork that the C library knows nothing of: in the child, its setuid(2) and setgroups(2)
/// would wait for ever for a thread that was just being made.
pub fn wait_until_started() {
    while starting() > 0 {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// In a child of fork(2), which has none of them.
pub(crate) fn forget_starting() {
    STARTING.store(0, Ordering::Relaxed);
    RUNNING.store(0, Ordering::Relaxed);
}

/// Each thread that the stack starts from now on calls `hook` first. The first hook given stays.
pub fn on_start(hook: fn()) {
    let _ = ON_START.set(hook);
}

/// One of the stack's own threads. Dropping this detaches it.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

/// What a new thread needs.
struct Start {
    name: CString,
    run: Box<dyn FnOnce() + Send>,
}

/// The stack size of std's threads.
const STACK: usize = 2 << 20;

/// How often a thread goes on after a panic. The limit keeps a panic that recurs at once from using a whole CPU.
const MAX_PANICS: usize = 1000;

/// Starts a thread that runs `run` again after a panic, in a build that unwinds, so that its service continues.
pub(crate) fn serve(
    name: impl Into<String>,
    run: impl Fn() + Send + 'static,
) -> io::Result<Thread> {
    spawn(name, move || {
        let _ = (0..MAX_PANICS).any(|_| catch_unwind(AssertUnwindSafe(&run)).is_ok());
    })
}

/// Starts one of the stack's own threads.
pub fn spawn(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let name = CString::new(name.into()).unwrap_or_default();
    let start = Box::into_raw(Box::new(Start { name, run: Box::new(run) }));
    let before = block_signals();
    STARTING.fetch_add(1, Ordering::Relaxed);
    let mut thread = 0;
    // SAFETY: the attributes are initialised before use; `start` points to a `Start`, which the new thread takes; the
    // mask was this thread's.
    let failed = unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
        let failed =
            libc::pthread_create(&raw mut thread, &raw const attributes, begin, start.cast());
        libc::pthread_attr_destroy(&raw mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        failed
    };
    if failed != 0 {
        STARTING.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: no thread has taken it.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(failed));
    }
    Ok(Thread(thread))
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: the `Start` that `spawn` made for this thread.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: a terminated string. The kernel truncates a long one.
    unsafe { libc::prctl(libc::PR_SET_NAME, start.name.as_ptr()) };
    if let Some(hook) = ON_START.get() {
        hook();
    }
    RUNNING.fetch_add(1, Ordering::AcqRel);
    STARTING.fetch_sub(1, Ordering::Release);
    // A panic has been reported, and ends only this thread.
    let _ = catch_unwind(AssertUnwindSafe(start.run));
    RUNNING.fetch_sub(1, Ordering::AcqRel);
    ptr::null_mut()
}

impl Thread {
    /// Waits until the thread has ended.
    pub fn join(self) {
        let thread = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: a thread of ours, neither joined nor detached: that takes `self`.
        unsafe { libc::pthread_join(thread, ptr::null_mut()) };
    }

    /// The thread's id, valid until it is joined.
    pub fn id(&self) -> libc::pthread_t {
        self.0
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: as in `join`.
        unsafe { libc::pthread_detach(self.0) };
    }
}

/// Blocks all signals in the calling thread, because a new thread inherits the mask. Returns the old mask.
fn block_signals() -> libc::sigset_t {
    // SAFETY: sets are plain data, both valid for the calls.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}
