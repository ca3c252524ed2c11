//! Being inside the library. A hook enters first and leaves last; between the two the thread may hold locks of
//! ours and of the C library's memory allocator, so that
//!
//! - the library's own calls of the C library, which come to our hooks like the program's, go straight to the
//!   real functions ([`Inside::enter`] returns `None` for them);
//! - a signal that the program handles is put off until the thread leaves ([`put_off`], called by the handler
//!   that stands in front of the program's). It ends the thread's wait. The kernel then delivers it again, before
//!   the call returns and after the call has released all it held. So a handler may call any socket function, and
//!   may longjmp. A call that goes on after a handler is made anew ([`ERESTARTSYS`]), as the kernel restarts its own.
//!
//! Owns nothing but thread-local state and takes no lock, so a signal handler may use it.

pub(crate) mod cancel;

use crate::{errno, queued_signals};
use busypoll_stack::{signal, thread};
use rustix::fs::{Mode, OFlags, RawDir};
use std::{
    cell::Cell,
    io,
    marker::PhantomData,
    mem::{self, MaybeUninit},
    ptr,
    sync::atomic::{AtomicI32, Ordering},
    time::Duration,
};

local! {
    static INSIDE: Cell<bool> = Cell::new(false);
    /// The mask from before the signal that was put off, and whether calls go on after it.
    static PUT_OFF: Cell<Option<PutOff>> = Cell::new(None);
}

#[derive(Clone, Copy)]
struct PutOff {
    mask: libc::sigset_t,
    restart: bool,
    /// The mask to set afterwards, where it is another.
    afterwards: Option<libc::sigset_t>,
}

/// The error of a call that is to be restarted, the kernel's own `ERESTARTSYS`. The hook restarts the call; no program
/// sees this value.
pub(crate) const ERESTARTSYS: libc::c_int = 512;

/// A thread that is inside. Declared first in a hook, so that it is dropped after all that the hook holds.
pub(crate) struct Inside(PhantomData<*const ()>);

/// What becomes of a call that a signal interrupts (signal(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// It is restarted if the handler was installed with `SA_RESTART`: transfers, accept, connect.
    BySignal,
    /// It fails with EINTR after any handler: poll, select, and transfers with a timeout.
    Never,
    /// It also fails with EINTR when the process was stopped and continued, without a handler: epoll_wait.
    NeverNorAfterStop,
}

impl Inside {
    /// Enters. `None` if the thread is inside already: then the library itself makes the call, and the real function
    /// serves it.
    #[inline]
    pub(crate) fn enter() -> Option<Inside> {
        match INSIDE.try_with(|inside| inside.replace(true)) {
            Ok(false) => {
                cancel::disable();
                Some(Inside(PhantomData))
            }
            _ => None,
        }
    }

    /// Makes `call`, which may wait. The call itself keeps to its deadline.
    ///
    /// # Errors
    /// Those of `call`; after a handler EINTR or [`ERESTARTSYS`], as `restart` says.
    pub(crate) fn wait<T>(
        &self,
        restart: Restart,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
            let handled = PUT_OFF.get().map(|put_off| put_off.restart);
            let restarts = restarts(restart, handled) && !cancel::is_pending();
            if !restarts || handled.is_some() {
                let error = if restarts { ERESTARTSYS } else { libc::EINTR };
                return Err(io::Error::from_raw_os_error(error));
            }
        }
    }

    /// As [`wait`](Inside::wait), with only the signals in `mask` blocked meanwhile, as ppoll(2) does. `ready` first
    /// looks without waiting: readiness wins over a signal.
    ///
    /// # Errors
    /// As [`wait`](Inside::wait).
    pub(crate) fn wait_masked<T>(
        &self,
        mask: Option<&libc::sigset_t>,
        restart: Restart,
        mut ready: impl FnMut() -> io::Result<Option<T>>,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(mask) = mask else { return self.wait(restart, call) };
        if let Some(there) = ready()? {
            return Ok(there);
        }
        loop {
            // Signals that came before this are made pending again, behind a mask of our own.
            let ours = set_mask(&all_but_faults());
            let before = PUT_OFF.get().map_or(ours, |put_off| put_off.mask);
            set_mask(mask);
            let result = call();
            let interrupted =
                result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted);
            if interrupted && let Some(put_off) = PUT_OFF.get() {
                // No signal may come until the handlers run, with `mask`.
                PUT_OFF.set(Some(PutOff { afterwards: Some(before), ..put_off }));
                return result;
            }
            // A signal that only `mask` lets through stays pending until the next wait.
            PUT_OFF.take();
            queued_signals::forget();
            signal::clear_deferred();
            set_mask(&before);
            if !interrupted {
                return result;
            }
            if !restarts(restart, None) || cancel::is_pending() {
                return Err(io::Error::from_raw_os_error(libc::EINTR));
            }
        }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(false);
        if ENDING.load(Ordering::Relaxed) != 0 {
            wait_for_process_end();
        }
        cancel::restore();
        if signal::has_deferred_signal() {
            deliver();
        }
        cancel::test_cancel();
    }
}

/// The thread that ends the process, while it does so; 0: none.
static ENDING: AtomicI32 = AtomicI32::new(0);

fn this_thread() -> i32 {
    // SAFETY: a plain system call.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Runs the work that ends the process. Any other thread that leaves the library meanwhile stops here, so that the
/// program does not see its sockets close. It would not if the kernel had ended the process.
pub(crate) fn run_exclusively(work: impl FnOnce()) {
    let (done, other) = (Ordering::Relaxed, Ordering::Relaxed);
    if ENDING.compare_exchange(0, this_thread(), done, other).is_ok() {
        work();
        ENDING.store(0, Ordering::Relaxed);
    } else {
        wait_for_process_end();
    }
}

/// In the child of a fork, which does not end with its parent.
pub(crate) fn clear_ending() {
    ENDING.store(0, Ordering::Relaxed);
}

#[cold]
fn wait_for_process_end() {
    let me = this_thread();
    while ![0, me].contains(&ENDING.load(Ordering::Relaxed)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn restarts(restart: Restart, handled: Option<bool>) -> bool {
    match (restart, handled) {
        (Restart::BySignal, Some(restart)) => restart,
        (Restart::Never, Some(_)) | (Restart::NeverNorAfterStop, _) => false,
        (_, None) => true,
    }
}

/// Whether the calling thread is inside.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// The thread ids of the library's own threads; 0: none. Those of ended threads may remain.
static OWN_THREADS: [AtomicI32; 256] = [const { AtomicI32::new(0) }; 256];

/// The calling thread is one of the library's own: it stays inside for ever.
pub(crate) fn stay_inside() {
    INSIDE.set(true);
    // SAFETY: a plain system call.
    let this = unsafe { libc::syscall(libc::SYS_gettid) } as libc::pid_t;
    let _ = OWN_THREADS
        .iter()
        .any(|slot| slot.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// Whether the calling thread is the only thread of the process, apart from the library's own. False if that cannot be
/// found out. Allocates nothing.
pub(crate) fn is_single_threaded() -> bool {
    if has_only_own_threads() {
        return true;
    }
    // Read before the list: a thread that registers meanwhile is then recognised by its id.
    let starting = thread::starting();
    let access = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(tasks) = rustix::fs::open(c"/proc/self/task", access, Mode::empty()) else {
        return false;
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&tasks, &mut buffer);
    let mut program_threads = 0;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        // `.` and `..` are no numbers.
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        program_threads += usize::from(number.is_some_and(|number: libc::pid_t| {
            OWN_THREADS.iter().all(|own| own.load(Ordering::Relaxed) != number)
        }));
    }
    program_threads <= 1 + starting
}

/// Whether the number of threads says so, which is much faster to get than their ids. False also if some of the library's own
/// start or end meanwhile.
fn has_only_own_threads() -> bool {
    let own = || (thread::starting(), thread::running());
    let before = own();
    // Of two links each directory has; this one has another for each thread.
    let threads =
        rustix::fs::stat(c"/proc/self/task").map(|task| (task.st_nlink as usize).saturating_sub(2));
    before == own() && before.0 == 0 && threads == Ok(1 + before.1)
}

/// In a child of fork(2), which has none of these threads.
pub(crate) fn forget_own_threads() {
    OWN_THREADS.iter().for_each(|own| own.store(0, Ordering::Relaxed));
}

/// Puts off `signal`, which has just come to the calling thread, until the thread leaves: it is made pending again with
/// its whole siginfo, behind a mask that lets only faults through. False if the kernel's queue is full.
///
/// # Safety
/// `info` and `context` as the kernel gave them to the signal's handler, which calls this.
pub(crate) unsafe fn put_off(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    restart: bool,
) -> bool {
    let all = all_but_faults();
    let inside_handler = set_mask(&all);
    // SAFETY: plain calls; `info` is valid by the caller's contract.
    let queued = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            libc::getpid(),
            libc::syscall(libc::SYS_gettid),
            signal,
            info,
        )
    };
    if queued != 0 {
        set_mask(&inside_handler);
        return false;
    }
    // SAFETY: valid by the caller's contract. The kernel restores the mask from here when the handler returns.
    let mask = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    // A signal that came before the mask was set has done all this already; the mask replaced here is then ours, and
    // the outer handler stores the program's.
    let put_off = PutOff { mask: mem::replace(mask, all), restart, afterwards: None };
    PUT_OFF.set(Some(put_off));
    signal::note_deferred_signal();
    true
}

/// Unblocks the signals that were put off, so that their handlers run now.
///
/// The program does not see what they leave in `errno`: to it they ran before the call returned.
#[cold]
fn deliver() {
    let _errno = errno::Saved::new();
    if errno::get() == ERESTARTSYS {
        errno::set(libc::EINTR);
    }
    signal::clear_deferred();
    if let Some(put_off) = PUT_OFF.take() {
        set_mask(&put_off.mask);
        put_off.afterwards.iter().for_each(|mask| {
            set_mask(mask);
        });
        queued_signals::forget();
    }
}

/// Blocks the signals in `mask` and no others. Returns the mask from before.
fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: sets are plain data, both valid for the call.
    unsafe {
        let mut before = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::from_ref(mask), &raw mut before);
        before
    }
}

/// Signals of a fault of the thread itself, which cannot be put off.
pub(crate) const FAULTS: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// All signals, except those of a fault.
pub(crate) fn all_but_faults() -> libc::sigset_t {
    // SAFETY: a set is plain data.
    unsafe {
        let mut all = mem::zeroed();
        libc::sigfillset(&raw mut all);
        FAULTS.iter().for_each(|fault| {
            libc::sigdelset(&raw mut all, *fault);
        });
        all
    }
}
