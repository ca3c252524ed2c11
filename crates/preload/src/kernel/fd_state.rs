//! What the kernel plane knows of each descriptor: one word, read without a lock.
//!
//! Two levels, the second in pages of 1,024 words that are mapped when first needed: memory depends on the highest
//! descriptor in use, not on the limit. A word may be stale, as the program may close a descriptor past our hooks
//! (stdio does). Code that acts on a stale word must still be correct, if slower.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::c_int;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// What a descriptor is to the kernel plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Not looked up yet.
    Unknown = 0,
    /// A TCP or UDP socket.
    Socket = 1,
    /// An epoll instance of the program's.
    Epoll = 2,
    /// Looked at: it cannot busy poll.
    Other = 3,
    /// The library's own, hidden from the program.
    Internal = 4,
}

const KIND: u32 = 0b111;
const SETTINGS_AT: u32 = 8;
const SETTINGS: u32 = 0xff << SETTINGS_AT;
const GENERATION_AT: u32 = 16;

/// The state of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdState(u32);

impl FdState {
    const UNKNOWN: Self = Self(0);
    /// The kernel polls for it.
    pub const ON: u32 = 1 << 3;
    /// The program has set its busy polling itself: the library does not change it.
    pub const SET_BY_PROGRAM: u32 = 1 << 4;
    /// A nonblocking socket.
    pub const NONBLOCKING: u32 = 1 << 5;
    /// An epoll instance that watches another one.
    pub const NESTED: u32 = 1 << 5;
    /// An epoll instance that watches a TCP or UDP socket.
    pub const WATCHES_SOCKET: u32 = 1 << 6;
    /// An epoll instance for which the kernel polls for less time than its settings say, as the wait was shorter.
    pub const SHORTENED: u32 = 1 << 7;

    pub fn kind(self) -> Kind {
        match self.0 & KIND {
            1 => Kind::Socket,
            2 => Kind::Epoll,
            3 => Kind::Other,
            4 => Kind::Internal,
            _ => Kind::Unknown,
        }
    }

    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }

    /// Index into [`crate::config::Config::settings`].
    pub fn settings(self) -> usize {
        ((self.0 & SETTINGS) >> SETTINGS_AT) as usize
    }

    /// Changes whenever the number gets another meaning.
    pub fn generation(self) -> u16 {
        (self.0 >> GENERATION_AT) as u16
    }
}

/// Words on a page. There are 1,024 pages: the kernel's limit on descriptors is 2^20 unless raised, and a descriptor
/// beyond that is simply unknown.
const PAGE: usize = 1024;
type Page = [AtomicU32; PAGE];

static PAGES: [AtomicPtr<Page>; 1024] = [const { AtomicPtr::new(ptr::null_mut()) }; 1024];

#[inline]
fn slot(fd: c_int) -> Option<&'static AtomicU32> {
    let fd = usize::try_from(fd).ok()?;
    let page = PAGES.get(fd / PAGE)?.load(Ordering::Acquire);
    // SAFETY: null, or a page that was mapped zeroed and is never unmapped.
    unsafe { page.as_ref() }?.get(fd % PAGE)
}

fn slot_to_set(fd: c_int) -> Option<&'static AtomicU32> {
    let page_slot = PAGES.get(usize::try_from(fd).ok()? / PAGE)?;
    if page_slot.load(Ordering::Acquire).is_null() {
        // SAFETY: new anonymous memory.
        let page = unsafe {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), size_of::<Page>(), both, MapFlags::PRIVATE).ok()?
        };
        let first = page_slot.compare_exchange(
            ptr::null_mut(),
            page.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if first.is_err() {
            // SAFETY: mapped above, and not published.
            let _ = unsafe { rustix::mm::munmap(page, size_of::<Page>()) };
        }
    }
    slot(fd)
}

/// The state of a descriptor.
#[inline]
pub fn get(fd: c_int) -> FdState {
    slot(fd).map_or(FdState::UNKNOWN, |slot| FdState(slot.load(Ordering::Relaxed)))
}

/// Gives a number a new meaning: `bits` of [`FdState`], and the index of its settings.
pub fn put(fd: c_int, kind: Kind, bits: u32, settings: usize) -> FdState {
    let settings = u32::try_from(settings).unwrap_or(0) << SETTINGS_AT & SETTINGS;
    renew(slot_to_set(fd), kind as u32 | bits | settings)
}

/// The number has no meaning any more.
pub fn forget(fd: c_int) {
    renew(slot(fd), 0);
}

/// Another number for the same file.
pub fn copy(from: c_int, to: c_int) {
    let old = get(from);
    if old.kind() == Kind::Unknown {
        forget(to);
    } else {
        renew(slot_to_set(to), old.0 & ((1 << GENERATION_AT) - 1));
    }
}

fn renew(slot: Option<&AtomicU32>, low: u32) -> FdState {
    let Some(slot) = slot else { return FdState::UNKNOWN };
    let mut old = slot.load(Ordering::Relaxed);
    loop {
        let new = low | (old & !((1 << GENERATION_AT) - 1)).wrapping_add(1 << GENERATION_AT);
        match slot.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return FdState(new),
            Err(now) => old = now,
        }
    }
}

/// Sets or clears bits of the state.
pub fn mark(fd: c_int, bits: u32, on: bool) {
    if let Some(slot) = slot(fd) {
        if on {
            slot.fetch_or(bits, Ordering::Relaxed);
        } else {
            slot.fetch_and(!bits, Ordering::Relaxed);
        }
    }
}

/// Changes the index of its settings.
pub fn set_settings(fd: c_int, settings: usize) {
    if let Some(slot) = slot(fd) {
        let settings = u32::try_from(settings).unwrap_or(0) << SETTINGS_AT & SETTINGS;
        let mut old = slot.load(Ordering::Relaxed);
        while let Err(now) = slot.compare_exchange_weak(
            old,
            old & !SETTINGS | settings,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            old = now;
        }
    }
}

/// The lowest number from `first` to `last` that has a meaning.
pub fn next_known(first: u32, last: u32) -> Option<(c_int, Kind)> {
    let mut at = first as usize;
    let last = last as usize;
    while at <= last {
        let page = PAGES.get(at / PAGE)?.load(Ordering::Acquire);
        // SAFETY: as in `slot`.
        let Some(page) = (unsafe { page.as_ref() }) else {
            at = (at / PAGE + 1) * PAGE;
            continue;
        };
        let kind = FdState(page.get(at % PAGE)?.load(Ordering::Relaxed)).kind();
        if kind != Kind::Unknown {
            return Some((c_int::try_from(at).ok()?, kind));
        }
        at += 1;
    }
    None
}
