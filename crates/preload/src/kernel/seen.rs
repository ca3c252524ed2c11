//! What the kernel plane knows of each descriptor: one word, read without a lock.
//!
//! Two levels, the second in pages of 1,024 words that are mapped when a number in them first matters:
//! memory goes with the highest descriptor in use, not with the limit on them. A word is a note, not
//! the truth: the program may close a descriptor where no hook sees it (stdio does). Whoever acts on
//! a word must be right, if slower, where it is stale.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::c_int;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// What a descriptor is to the kernel plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Nobody has looked.
    Unknown = 0,
    /// A TCP or UDP socket.
    Socket = 1,
    /// An epoll instance of the program's.
    Epoll = 2,
    /// Looked at: nothing that busy polls.
    Other = 3,
    /// The library's own, which the program does not know.
    Internal = 4,
}

const KIND: u32 = 0b111;
const SETTINGS_AT: u32 = 8;
const SETTINGS: u32 = 0xff << SETTINGS_AT;
const GENERATION_AT: u32 = 16;

/// What is known of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u32);

impl Word {
    const UNKNOWN: Self = Self(0);
    /// The kernel has been told to poll for it.
    pub const ON: u32 = 1 << 3;
    /// The program has set its busy polling itself: hands off.
    pub const THEIRS: u32 = 1 << 4;
    /// A socket that does not wait.
    pub const NONBLOCKING: u32 = 1 << 5;
    /// An epoll instance that watches another one.
    pub const NESTS: u32 = 1 << 5;
    /// An epoll instance that watches a TCP or UDP socket.
    pub const WATCHES: u32 = 1 << 6;
    /// An epoll instance for which the kernel polls less long than its settings say: the wait was shorter.
    pub const CUT: u32 = 1 << 7;

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

    /// Which of [`crate::config::Config::settings`].
    pub fn settings(self) -> usize {
        ((self.0 & SETTINGS) >> SETTINGS_AT) as usize
    }

    /// Another one, once the number means another thing.
    pub fn generation(self) -> u16 {
        (self.0 >> GENERATION_AT) as u16
    }
}

/// Words on a page, and pages: the kernel's limit on descriptors is 2^20 unless raised on purpose,
/// and a descriptor beyond it is simply unknown.
const PAGE: usize = 1024;
type Page = [AtomicU32; PAGE];

static PAGES: [AtomicPtr<Page>; 1024] = [const { AtomicPtr::new(ptr::null_mut()) }; 1024];

#[inline]
fn word(fd: c_int) -> Option<&'static AtomicU32> {
    let fd = usize::try_from(fd).ok()?;
    let page = PAGES.get(fd / PAGE)?.load(Ordering::Acquire);
    // SAFETY: null, or a page that was mapped zeroed and is never unmapped.
    unsafe { page.as_ref() }?.get(fd % PAGE)
}

fn word_to_set(fd: c_int) -> Option<&'static AtomicU32> {
    let slot = PAGES.get(usize::try_from(fd).ok()? / PAGE)?;
    if slot.load(Ordering::Acquire).is_null() {
        // SAFETY: new anonymous memory.
        let page = unsafe {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), size_of::<Page>(), both, MapFlags::PRIVATE).ok()?
        };
        let first = slot.compare_exchange(
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
    word(fd)
}

/// What is known of a descriptor.
#[inline]
pub fn get(fd: c_int) -> Word {
    word(fd).map_or(Word::UNKNOWN, |word| Word(word.load(Ordering::Relaxed)))
}

/// A number has come to mean something: `bits` of [`Word`], and which settings it has.
pub fn put(fd: c_int, kind: Kind, bits: u32, settings: usize) -> Word {
    let settings = u32::try_from(settings).unwrap_or(0) << SETTINGS_AT & SETTINGS;
    renew(word_to_set(fd), kind as u32 | bits | settings)
}

/// A number means nothing any more.
pub fn forget(fd: c_int) {
    renew(word(fd), 0);
}

/// A second number for the same thing.
pub fn copy(from: c_int, to: c_int) {
    let old = get(from);
    if old.kind() == Kind::Unknown {
        forget(to);
    } else {
        renew(word_to_set(to), old.0 & ((1 << GENERATION_AT) - 1));
    }
}

fn renew(word: Option<&AtomicU32>, low: u32) -> Word {
    let Some(word) = word else { return Word::UNKNOWN };
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let new = low | (old & !((1 << GENERATION_AT) - 1)).wrapping_add(1 << GENERATION_AT);
        match word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Word(new),
            Err(now) => old = now,
        }
    }
}

/// Sets or clears bits of what is known.
pub fn mark(fd: c_int, bits: u32, on: bool) {
    if let Some(word) = word(fd) {
        if on {
            word.fetch_or(bits, Ordering::Relaxed);
        } else {
            word.fetch_and(!bits, Ordering::Relaxed);
        }
    }
}

/// Gives it other settings.
pub fn set_settings(fd: c_int, settings: usize) {
    if let Some(word) = word(fd) {
        let settings = u32::try_from(settings).unwrap_or(0) << SETTINGS_AT & SETTINGS;
        let mut old = word.load(Ordering::Relaxed);
        while let Err(now) = word.compare_exchange_weak(
            old,
            old & !SETTINGS | settings,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            old = now;
        }
    }
}

/// The lowest number from `first` on, up to `last`, that is known to be anything.
pub fn next_known(first: u32, last: u32) -> Option<(c_int, Kind)> {
    let mut at = first as usize;
    let last = last as usize;
    while at <= last {
        let page = PAGES.get(at / PAGE)?.load(Ordering::Acquire);
        // SAFETY: as in `word`.
        let Some(page) = (unsafe { page.as_ref() }) else {
            at = (at / PAGE + 1) * PAGE;
            continue;
        };
        let kind = Word(page.get(at % PAGE)?.load(Ordering::Relaxed)).kind();
        if kind != Kind::Unknown {
            return Some((c_int::try_from(at).ok()?, kind));
        }
        at += 1;
    }
    None
}
