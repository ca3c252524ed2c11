//! The program's signal handlers. A handler of ours calls each: it counts the signal, and puts it off while the thread
//! is [`inside`] the library. This module owns the actions that the program has installed; to the program it looks as
//! if the kernel had them.
//!
//! Handlers that are installed by the system call itself, as the Go runtime does, are not seen.

pub(crate) mod fatal;

use crate::{
    config::{self, Config},
    errno,
    handler_frames::Frame,
    inside::{self, FAULTS},
    queued_signals, real, seccomp,
};
use std::{
    cell::{Cell, RefCell},
    mem::{self, ManuallyDrop},
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering},
    },
};

// A thread that is cancelled in a handler is unwound through ours.
#[cfg(panic = "unwind")]
type Handler = unsafe extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
#[cfg(not(panic = "unwind"))]
type Handler = unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// One signal's handler; 0: the kernel's action is the program's.
struct Slot {
    handler: AtomicUsize,
    flags: AtomicI32,
}

/// Signals are numbered from 1 to 64.
pub(crate) const SIGNALS: usize = 65;

static SLOTS: [Slot; SIGNALS] =
    [const { Slot { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

/// Held while a handler is changed, and across a fork, so that the child finds it free. Handlers themselves take no
/// lock.
pub(crate) fn changing() -> MutexGuard<'static, ()> {
    static CHANGING: Mutex<()> = Mutex::new(());
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What siginterrupt(3) has set for handlers that signal(2) installs later.
static INTERRUPTS: [AtomicBool; SIGNALS] = [const { AtomicBool::new(false) }; SIGNALS];

fn slot(signal: libc::c_int) -> Option<&'static Slot> {
    SLOTS.get(usize::try_from(signal).ok()?)
}

/// Whether ours must stand in front of the program's handlers: the stack plane takes locks, and a wait of the kernel
/// plane that takes two system calls must notice a handler that ran between them.
fn needs_ours() -> bool {
    config::get().is_some_and(|config| config.is_stack() || config.is_kernel())
        && !inside::is_inside()
}

/// The program has installed a handler.
static ANY: AtomicBool = AtomicBool::new(false);

local! {
    static HANDLED: Cell<u32> = Cell::new(0);
}

/// How many signals the calling thread has handled so far, as far as our handler has seen them.
pub(crate) fn handled() -> u32 {
    HANDLED.try_with(Cell::get).unwrap_or_default()
}

/// All signals, blocked for as long as it lives.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> BlockedSignals {
        // SAFETY: our own two sets.
        unsafe {
            let (mut all, mut mask): (libc::sigset_t, libc::sigset_t) =
                (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut mask);
            BlockedSignals(mask)
        }
    }

    /// Blocks all signals, and fails if the calling thread has handled one since [`handled`] returned `before`. `None`
    /// where the program has no handlers.
    pub(crate) fn since(before: u32) -> Result<Option<BlockedSignals>, ()> {
        if !ANY.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let put_off = BlockedSignals::all();
        if handled() == before { Ok(Some(put_off)) } else { Err(()) }
    }

    /// The program's mask.
    pub(crate) fn mask(&self) -> *const libc::sigset_t {
        &raw const self.0
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: a set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Whether the program has a handler that bypasses ours. Slow.
#[cold]
pub(crate) fn any_bypasses_us() -> bool {
    (1..SIGNALS as libc::c_int).any(|signal| {
        // SAFETY: a plain struct, which is valid for writes.
        let action = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            real::sigaction(signal, ptr::null(), &raw mut action);
            action
        };
        let ours = on_signal as *const () as usize;
        ![libc::SIG_DFL, libc::SIG_IGN, ours].contains(&action.sa_sigaction)
            && !fatal::is_default(&action)
    })
}

/// sigaction(2).
///
/// # Safety
/// As sigaction(2): each pointer is null or valid.
pub(crate) unsafe fn sigaction(
    signal: libc::c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    let Some(slot) = slot(signal).filter(|_| needs_ours()) else {
        // SAFETY: as our caller says.
        return unsafe { real::sigaction(signal, new, old) };
    };
    if seccomp::is_confined() {
        // SAFETY: the caller's contract. A handler that changes an action during this is rare, but a system call too
        // many kills a confined program.
        return unsafe { change(signal, slot, new, old) };
    }
    // No handler runs on this thread while the lock is held.
    let _lock = ChangeLock::new();
    // SAFETY: as our caller says.
    unsafe { change(signal, slot, new, old) }
}

/// While it lives, no other thread changes an action, and no handler runs on this one.
pub(crate) fn lock_changes() -> impl Sized {
    ChangeLock::new()
}

/// The lock for changing actions. Fields drop in this order: the lock first, then the mask.
struct ChangeLock {
    _changing: MutexGuard<'static, ()>,
    _put_off: BlockedSignals,
}

impl ChangeLock {
    fn new() -> ChangeLock {
        let put_off = BlockedSignals::all();
        ChangeLock { _changing: changing(), _put_off: put_off }
    }
}

local! {
    static FORKING: RefCell<Option<ManuallyDrop<ChangeLock>>> = RefCell::new(None);
}

/// Called when the library is loaded: no child is forked in the middle of a change. The stack plane takes this lock,
/// and more, by itself.
pub(crate) fn prepare(config: &Config) {
    if config.is_kernel() && config.launch.dev.is_none() {
        // SAFETY: two functions that live as long as the library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    }
}

extern "C" fn before_fork() {
    let lock = ChangeLock::new();
    let _ = FORKING.try_with(|forking| forking.replace(Some(ManuallyDrop::new(lock))));
}

extern "C" fn after_fork() {
    let lock = FORKING.try_with(RefCell::take);
    drop(lock.ok().flatten().map(ManuallyDrop::into_inner));
}

/// # Safety
/// As [`sigaction`].
unsafe fn change(
    signal: libc::c_int,
    slot: &Slot,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    let before = (slot.handler.load(Ordering::Relaxed), slot.flags.load(Ordering::Relaxed));
    // SAFETY: null or valid by the caller's contract; `ours` and `kernels` are our own.
    unsafe {
        let new = new.as_ref().copied();
        let mut kernels: libc::sigaction = mem::zeroed();
        let result = match new {
            None => real::sigaction(signal, ptr::null(), &raw mut kernels),
            Some(action) if [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) => {
                let given = match action.sa_sigaction {
                    libc::SIG_DFL => fatal::default_of(signal),
                    _ => action,
                };
                let result = real::sigaction(signal, &raw const given, &raw mut kernels);
                if result == 0 {
                    slot.handler.store(0, Ordering::Release);
                    slot.flags.store(action.sa_flags, Ordering::Relaxed);
                }
                result
            }
            Some(action) => {
                ANY.store(true, Ordering::Relaxed);
                let mut ours = action;
                ours.sa_sigaction = on_signal as *const () as usize;
                // With SA_RESETHAND the kernel would restore the default for a signal that is only put off.
                ours.sa_flags = ours.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
                slot.flags.store(action.sa_flags, Ordering::Relaxed);
                slot.handler.store(action.sa_sigaction, Ordering::Release);
                let result = real::sigaction(signal, &raw const ours, &raw mut kernels);
                if result != 0 {
                    slot.flags.store(before.1, Ordering::Relaxed);
                    slot.handler.store(before.0, Ordering::Release);
                }
                result
            }
        };
        if result == 0
            && let Some(old) = old.as_mut()
        {
            if before.0 != 0 {
                (kernels.sa_sigaction, kernels.sa_flags) = before;
            } else if fatal::is_default(&kernels) {
                (kernels.sa_sigaction, kernels.sa_flags) = (libc::SIG_DFL, before.1);
                libc::sigemptyset(&raw mut kernels.sa_mask);
            }
            *old = kernels;
        }
        result
    }
}

/// signal(2), as in glibc: calls are restarted, the handler stays.
///
/// # Safety
/// As signal(2): `handler` is a function, or one of the two constants.
pub(crate) unsafe fn signal(
    signal: libc::c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    let interrupts = usize::try_from(signal).ok().and_then(|signal| INTERRUPTS.get(signal));
    let restart = !interrupts.is_some_and(|interrupts| interrupts.load(Ordering::Relaxed));
    // SAFETY: as our caller says.
    unsafe { install(signal, handler, if restart { libc::SA_RESTART } else { 0 }, true) }
}

/// sysv_signal(3): the handler runs once, and its signal is not blocked meanwhile.
///
/// # Safety
/// As [`signal`].
pub(crate) unsafe fn sysv_signal(
    signal: libc::c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    // SAFETY: as our caller says.
    unsafe { install(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, false) }
}

/// # Safety
/// As [`signal`].
unsafe fn install(
    signal: libc::c_int,
    handler: libc::sighandler_t,
    flags: libc::c_int,
    blocks_itself: bool,
) -> libc::sighandler_t {
    if handler == libc::SIG_ERR {
        errno::set(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: our own two; the handler is valid by the caller's contract.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if blocks_itself {
            libc::sigaddset(&raw mut new.sa_mask, signal);
        }
        match sigaction(signal, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// sigset(3): installs a handler and unblocks the signal, or blocks the signal.
///
/// # Safety
/// As [`signal`].
pub(crate) unsafe fn sigset(
    signal: libc::c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    /// `SIG_HOLD` of glibc's bits/signum-generic.h.
    const HOLD: libc::sighandler_t = 2;
    // SAFETY: our own sets; the handler is valid by the caller's contract.
    unsafe {
        let (mut one, mut before): (libc::sigset_t, libc::sigset_t) =
            (mem::zeroed(), mem::zeroed());
        if libc::sigaddset(&raw mut one, signal) != 0 {
            return libc::SIG_ERR;
        }
        let how = if handler == HOLD { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        let old = match handler {
            HOLD => {
                let mut action: libc::sigaction = mem::zeroed();
                if sigaction(signal, ptr::null(), &raw mut action) != 0 {
                    return libc::SIG_ERR;
                }
                action.sa_sigaction
            }
            handler => install(signal, handler, 0, false),
        };
        libc::pthread_sigmask(how, &raw const one, &raw mut before);
        if libc::sigismember(&raw const before, signal) == 1 { HOLD } else { old }
    }
}

/// sigignore(3).
///
/// # Safety
/// None beyond what sigaction(2) asks.
pub(crate) unsafe fn sigignore(signal: libc::c_int) -> libc::c_int {
    // SAFETY: our own action.
    unsafe {
        let mut ignore: libc::sigaction = mem::zeroed();
        ignore.sa_sigaction = libc::SIG_IGN;
        sigaction(signal, &raw const ignore, ptr::null_mut())
    }
}

/// siginterrupt(3): whether calls are restarted after `signal`.
///
/// # Safety
/// None beyond what sigaction(2) asks.
pub(crate) unsafe fn siginterrupt(signal: libc::c_int, interrupt: libc::c_int) -> libc::c_int {
    // SAFETY: our own action, as it was but for the flag.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        if sigaction(signal, ptr::null(), &raw mut action) != 0 {
            return -1;
        }
        if let Some(interrupts) = usize::try_from(signal).ok().and_then(|at| INTERRUPTS.get(at)) {
            interrupts.store(interrupt != 0, Ordering::Relaxed);
        }
        match interrupt {
            0 => action.sa_flags |= libc::SA_RESTART,
            _ => action.sa_flags &= !libc::SA_RESTART,
        }
        sigaction(signal, &raw const action, ptr::null_mut())
    }
}

/// The handler that the kernel calls for every signal that the program handles.
#[cfg(panic = "unwind")]
unsafe extern "C-unwind" fn on_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: as the kernel gave them to us.
    unsafe { handle(signal, info, context) };
}

/// The same.
#[cfg(not(panic = "unwind"))]
unsafe extern "C" fn on_signal(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: as the kernel gave them to us.
    unsafe { handle(signal, info, context) };
}

/// # Safety
/// `info` and `context` as the kernel gave them.
unsafe fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(slot) = slot(signal) else { return };
    let flags = slot.flags.load(Ordering::Relaxed);
    if inside::is_inside() && !FAULTS.contains(&signal) {
        // SAFETY: the thread's own errno.
        let errno = unsafe { *libc::__errno_location() };
        // SAFETY: as the kernel gave them to us.
        let put_off = unsafe {
            queued_signals::put_off(signal, &*info);
            let restart = flags & libc::SA_RESTART != 0;
            inside::put_off(signal, info, context, restart)
        };
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = errno };
        if put_off {
            return;
        }
    }
    let handler = slot.handler.load(Ordering::Acquire);
    if handler == 0 {
        // The program removed it after the kernel had chosen our handler.
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        slot.handler.store(0, Ordering::Release);
        let default = fatal::default_of(signal);
        // SAFETY: our own action: the default, as the kernel would have set it.
        unsafe { real::sigaction(signal, &raw const default, ptr::null_mut()) };
    }
    let _ = HANDLED.try_with(|handled| handled.set(handled.get().wrapping_add(1)));
    // SAFETY: as the kernel gave it to us.
    queued_signals::next(signal, unsafe { &mut *info });
    // SAFETY: the program's own handler, called as the kernel would: one that takes fewer arguments ignores the rest.
    let run = || unsafe { mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    Frame::new().run(run);
}
