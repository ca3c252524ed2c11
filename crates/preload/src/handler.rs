//! Whether the calling thread is in a handler of the program's, which may have interrupted the C library where it must
//! not be entered again: in its allocator, which the start of a thread and fork(3) use. Nothing else that the library
//! does minds.
//!
//! A handler need not return: it may have jumped out of itself. So its frame bears a mark, and who asks looks whether
//! that still stands, further up on the same stack.

use std::{cell::Cell, mem::MaybeUninit, ptr};

local! {
    /// The innermost frame; null: none.
    static INNERMOST: Cell<*const Frame> = Cell::new(ptr::null());
}

/// On the stack of a handler for as long as it runs.
pub(crate) struct Frame {
    mark: Cell<usize>,
    outer: Cell<*const Frame>,
}

impl Frame {
    pub(crate) fn new() -> Frame {
        Frame { mark: Cell::new(0), outer: Cell::new(ptr::null()) }
    }

    /// Runs a handler on this frame.
    pub(crate) fn run(&self, handler: impl FnOnce()) {
        self.mark.set(mark(self));
        self.outer.set(INNERMOST.replace(self));
        handler();
        INNERMOST.set(self.outer.get());
        self.mark.set(0);
    }
}

/// What no stack holds by chance.
fn mark(frame: *const Frame) -> usize {
    frame.addr() ^ 0x6275_7379
}

/// Whether a handler runs on the calling thread. Slow where one has ever jumped out of itself.
pub(crate) fn is_running() -> bool {
    let frame = INNERMOST.get();
    !frame.is_null() && stands(frame)
}

#[cold]
#[inline(never)]
fn stands(frame: *const Frame) -> bool {
    let here = ptr::from_ref(&frame).addr();
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: a valid place for the answer; zeroes are a `stack_t`.
    let stack = unsafe {
        libc::sigaltstack(ptr::null(), stack.as_mut_ptr());
        stack.assume_init()
    };
    let alternate = stack.ss_sp.addr()..stack.ss_sp.addr().saturating_add(stack.ss_size);
    let is_on_it = stack.ss_flags & libc::SS_ONSTACK != 0;
    if here >= frame.addr() || is_on_it != alternate.contains(&frame.addr()) {
        return false;
    }
    // The stack it was on may be gone.
    let page = frame.addr() & !4095;
    let mut resident = [0u8; 2];
    let len = frame.addr() + size_of::<Frame>() - page;
    // SAFETY: a plain system call, with room for two pages.
    let mapped = unsafe {
        libc::mincore(ptr::with_exposed_provenance_mut(page), len, resident.as_mut_ptr())
    };
    // SAFETY: mapped memory, which is a stack's: that of a handler that runs, or was.
    mapped == 0
        && unsafe { (&raw const (*frame).mark).cast::<usize>().read_volatile() } == mark(frame)
}
