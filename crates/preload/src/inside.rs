//! Being inside the library. A hook enters first and leaves last; between the two the thread may hold locks of
//! ours and of the C library's memory allocator, so that
//!
//! - the library's own calls of the C library, which come to our hooks like the program's, go straight to the
//!   real functions ([`Inside::enter`] says no to them);
//! - a signal that the program handles is put off until the thread leaves ([`put_off`], called by the handler
//!   that stands in front of the program's). It ends what the thread waits for; then the program's handler runs,
//!   by the kernel's own delivery, before the call returns, and when all that the call held is let go. So a handler
//!   may call any socket function, and may longjmp. A call that goes on after it begins anew ([`AGAIN`]), as the
//!   kernel's do.
//!
//! Owns nothing but the thread's own state: taking no lock, it may be used in a signal's handler.

use crate::{cancel, errno, ordered};
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
    /// What signals were blocked before the one that was put off came, and whether calls go on after it.
    static PUT_OFF: Cell<Option<PutOff>> = Cell::new(None);
}

#[derive(Clone, Copy)]
struct PutOff {
    mask: libc::sigset_t,
    restart: bool,
    /// What is blocked afterwards, where that is something else.
    afterwards: Option<libc::sigset_t>,
}

/// The error of a call that is to begin anew, the kernel's own (`ERESTARTSYS`): the hook sees to that, no program sees
/// it.
pub(crate) const AGAIN: libc::c_int = 512;

/// A thread that is inside. Declared first in a hook, so that it is dropped after all that the hook holds.
pub(crate) struct Inside(PhantomData<*const ()>);

/// What becomes of a call that a signal interrupts (signal(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// It goes on if the handler was installed with `SA_RESTART`: transfers, accept, connect.
    BySignal,
    /// It fails with EINTR after any handler: poll, select, and transfers with a timeout.
    Never,
    /// As well after the process was stopped and continued, with no handler: epoll_wait.
    NeverNorAfterStop,
}

impl Inside {
    /// Enters. `None` if the thread is inside already: the call is the library's own, and is for the real
    /// function.
    #[inline]
    pub(crate) fn enter() -> Option<Inside> {
        match INSIDE.try_with(|inside| inside.replace(true)) {
            Ok(false) => {
                cancel::hold();
                Some(Inside(PhantomData))
            }
            _ => None,
        }
    }

    /// Makes `call`, which may wait. The call itself keeps to its deadline.
    ///
    /// # Errors
    /// Its own; after a handler EINTR or [`AGAIN`], as `restart` says.
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
            let goes_on = goes_on(restart, handled) && !cancel::is_due();
            if !goes_on || handled.is_some() {
                let error = if goes_on { AGAIN } else { libc::EINTR };
                return Err(io::Error::from_raw_os_error(error));
            }
        }
    }

    /// As [`wait`](Inside::wait), with the signals in `mask` blocked and no others for as long as it takes, as
    /// ppoll(2) does. `ready` looks first without waiting: what is there wins over a signal.
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
            // Signals that have come by now are pending again, behind a mask of our own.
            let ours = set_mask(&all_but_faults());
            let before = PUT_OFF.get().map_or(ours, |put_off| put_off.mask);
            set_mask(mask);
            let result = call();
            let interrupted =
                result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted);
            if interrupted && let Some(put_off) = PUT_OFF.get() {
                // Until its handlers run, with `mask`, nothing may come.
                PUT_OFF.set(Some(PutOff { afterwards: Some(before), ..put_off }));
                return result;
            }
            // A signal that only `mask` let through waits on, for the mask to come.
            PUT_OFF.take();
            ordered::forget();
            signal::settle();
            set_mask(&before);
            if !interrupted {
                return result;
            }
            if !goes_on(restart, None) || cancel::is_due() {
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
            wait_for_the_end();
        }
        cancel::let_go();
        if signal::is_put_off() {
            deliver();
        }
        cancel::test();
    }
}

/// The thread that ends the process, while it does.
static ENDING: AtomicI32 = AtomicI32::new(0);

fn this_thread() -> i32 {
    // SAFETY: a plain system call.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Has the calling thread do what ends the process. No other that comes by here comes back to the program meanwhile: it
/// is to see nothing of sockets that close, as it would not if the kernel had ended it.
pub(crate) fn alone(work: impl FnOnce()) {
    let (done, other) = (Ordering::Relaxed, Ordering::Relaxed);
    if ENDING.compare_exchange(0, this_thread(), done, other).is_ok() {
        work();
        ENDING.store(0, Ordering::Relaxed);
    } else {
        wait_for_the_end();
    }
}

/// In the child of a fork: its process does not end.
pub(crate) fn goes_on_living() {
    ENDING.store(0, Ordering::Relaxed);
}

#[cold]
fn wait_for_the_end() {
    let me = this_thread();
    while ![0, me].contains(&ENDING.load(Ordering::Relaxed)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn goes_on(restart: Restart, handled: Option<bool>) -> bool {
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

/// The library's own threads, by their numbers; 0: none. Those that have ended may stand here still.
static OWN: [AtomicI32; 256] = [const { AtomicI32::new(0) }; 256];

/// The calling thread is one of the library's own, inside for good.
pub(crate) fn stay() {
    INSIDE.set(true);
    // SAFETY: a plain system call.
    let this = unsafe { libc::syscall(libc::SYS_gettid) } as libc::pid_t;
    let _ = OWN
        .iter()
        .any(|place| place.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// Whether the calling thread would be the process's only one, but for the library's. False if that cannot be told.
/// Allocates nothing.
pub(crate) fn is_alone_but_for_ours() -> bool {
    // Before the look: who calls the hook meanwhile is known by its number.
    let starting = thread::starting();
    let access = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(tasks) = rustix::fs::open(c"/proc/self/task", access, Mode::empty()) else {
        return false;
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&tasks, &mut buffer);
    let mut theirs = 0;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        // `.` and `..` are no numbers.
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        theirs += usize::from(number.is_some_and(|number: libc::pid_t| {
            OWN.iter().all(|own| own.load(Ordering::Relaxed) != number)
        }));
    }
    theirs <= 1 + starting
}

/// In a child of fork(2), which has none of them.
pub(crate) fn forget_own_threads() {
    OWN.iter().for_each(|own| own.store(0, Ordering::Relaxed));
}

/// Puts off `signal`, which has just come to the calling thread, until it leaves: it is made pending again, with
/// all that came with it, behind a mask that lets only faults through. False if the kernel takes no more.
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
    // SAFETY: plain calls; `info` is valid by the caller's word.
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
    // SAFETY: valid by the caller's word; the kernel reads the mask back when the handler returns.
    let mask = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    // A signal that came while we were on our way here has done all this; the outer mask counts, which is ours.
    let put_off = PutOff { mask: mem::replace(mask, all), restart, afterwards: None };
    PUT_OFF.set(Some(put_off));
    signal::put_off();
    true
}

/// The signals that were put off are handled now.
///
/// What they leave in `errno` is not the program's to see: to it they ran before the call returned.
#[cold]
fn deliver() {
    let _errno = errno::Kept::new();
    if errno::get() == AGAIN {
        errno::set(libc::EINTR);
    }
    signal::settle();
    if let Some(put_off) = PUT_OFF.take() {
        set_mask(&put_off.mask);
        put_off.afterwards.iter().for_each(|mask| {
            set_mask(mask);
        });
        ordered::forget();
    }
}

/// Blocks the signals in `mask` and no others; what was blocked before.
fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: sets are plain data, both valid for the call.
    unsafe {
        let mut before = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::from_ref(mask), &raw mut before);
        before
    }
}

/// Signals that tell of what the thread itself has just done, and cannot wait.
pub(crate) const FAULTS: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

fn all_but_faults() -> libc::sigset_t {
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
