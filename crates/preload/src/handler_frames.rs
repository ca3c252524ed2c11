//! Whether the calling thread runs a handler of the program's. The handler may have interrupted the C library's
//! allocator, which must not be entered again then; thread creation and fork(3) use it. Nothing else that the library
//! does is affected.
//!
//! A handler need not return: it may longjmp. So its frame bears a mark, and a reader checks whether the mark is still
//! there, further up on the same stack.

use std::{cell::Cell, mem::MaybeUninit, ptr};

local! {
    /// The innermost frame; null: none.
    static INNERMOST: Cell<*const Frame> = Cell::new(ptr::null());
}

/// On the stack of a handler while it runs.
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

/// A value that no stack holds by chance.
fn mark(frame: *const Frame) -> usize {
    frame.addr() ^ 0x6275_7379
}

/// Whether a handler runs on the calling thread. Takes two system calls in a thread where a handler has ever
/// left by longjmp.
pub(crate) fn is_running() -> bool {
    let frame = INNERMOST.get();
    !frame.is_null() && is_intact(frame)
}

#[cold]
#[inline(never)]
fn is_intact(frame: *const Frame) -> bool {
    let here = ptr::from_ref(&frame).addr();
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: a valid pointer for the answer; zeroes are a `stack_t`.
    let stack = unsafe {
        libc::sigaltstack(ptr::null(), stack.as_mut_ptr());
        stack.assume_init()
    };
    let alternate = stack.ss_sp.addr()..stack.ss_sp.addr().saturating_add(stack.ss_size);
    let is_on_it = stack.ss_flags & libc::SS_ONSTACK != 0;
    if here >= frame.addr() || is_on_it != alternate.contains(&frame.addr()) {
        return false;
    }
    // The stack that the frame was on may be unmapped.
    let page = frame.addr() & !4095;
    let mut resident = [0u8; 2];
    let len = frame.addr() + size_of::<Frame>() - page;
    // SAFETY: a plain system call, with room for two pages.
    let mapped = unsafe {
        libc::mincore(ptr::with_exposed_provenance_mut(page), len, resident.as_mut_ptr())
    };
    // SAFETY: mapped memory of a stack.
    mapped == 0
        && unsafe { (&raw const (*frame).mark).cast::<usize>().read_volatile() } == mark(frame)
}
