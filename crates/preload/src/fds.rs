//! Which descriptors are sockets of the stack plane, and which are the library's own. One atomic load shows that a
//! descriptor is neither. A lookup takes no lock, so a signal handler may do it.
//!
//! Two levels: 2,048 pointers to pages of 512 descriptors each. A page is made when a descriptor in it is first
//! entered, so memory depends on the highest descriptor in use and not on RLIMIT_NOFILE. An entry points to a [`Cell`],
//! which is never freed but reused (as the kernel's files with SLAB_TYPESAFE_BY_RCU): a reader that has loaded the
//! pointer takes a reference, and then checks that the entry still holds the pointer.

use crate::{errno, inside::Inside, stack::File};
use libc::c_int;
use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ops::Deref,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, AtomicUsize, Ordering, fence},
    },
};

const PAGE: usize = 512;
const PAGES: usize = 2048;

type Slot = AtomicPtr<Cell>;
type Page = [Slot; PAGE];

static TABLE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(ptr::null_mut()) }; PAGES];

/// The entry of a descriptor that the library holds for itself.
const INTERNAL: *mut Cell = ptr::without_provenance_mut(1);

/// One more than the greatest descriptor that was ever a socket of the stack plane.
static END: AtomicUsize = AtomicUsize::new(0);

/// Free cells, for reuse.
static SPARE: Mutex<Vec<&'static Cell>> = Mutex::new(Vec::new());

/// A file and its reference count: descriptors, and calls in progress.
pub struct Cell {
    holders: AtomicUsize,
    /// Valid while there are holders.
    file: UnsafeCell<MaybeUninit<File>>,
}

// SAFETY: `file` is written only while `holders` is 0, by the thread that took the cell off SPARE. Only the last holder
// takes it out.
unsafe impl Sync for Cell {}
// SAFETY: as above.
unsafe impl Send for Cell {}

/// A reference to a file.
pub struct Ref(&'static Cell);

impl Ref {
    /// A new file, with one reference.
    pub fn new(file: File) -> Ref {
        let spare = spare().pop();
        let cell = spare.unwrap_or_else(|| {
            let file = UnsafeCell::new(MaybeUninit::uninit());
            Box::leak(Box::new(Cell { holders: AtomicUsize::new(0), file }))
        });
        // SAFETY: off the list, with no holders: no other thread accesses it.
        unsafe { (*cell.file.get()).write(file) };
        cell.holders.store(1, Ordering::Release);
        Ref(cell)
    }

    fn into_raw(self) -> *mut Cell {
        let cell = ptr::from_ref(self.0).cast_mut();
        std::mem::forget(self);
        cell
    }
}

impl Clone for Ref {
    fn clone(&self) -> Ref {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Ref(self.0)
    }
}

impl Deref for Ref {
    type Target = File;

    #[inline]
    fn deref(&self) -> &File {
        // SAFETY: a reference is held, so the file is there and not written.
        unsafe { (*self.0.file.get()).assume_init_ref() }
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // The last holder may be outside the library; closing what the file owns must still happen inside.
        let _errno = errno::Saved::new();
        let _inside = Inside::enter();
        // SAFETY: the last holder. A thread that still has the pointer finds no holders and leaves.
        unsafe { (*self.0.file.get()).assume_init_drop() };
        spare().push(self.0);
    }
}

/// The list of spare cells; held across a fork, so that the child finds it free.
pub fn spare() -> MutexGuard<'static, Vec<&'static Cell>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn slot(fd: c_int) -> Option<&'static Slot> {
    let fd = usize::try_from(fd).ok()?;
    let page = TABLE.get(fd / PAGE)?.load(Ordering::Acquire);
    // SAFETY: null, or a page that was leaked to be here.
    let page = unsafe { page.as_ref() }?;
    page.get(fd % PAGE)
}

/// As [`slot`], and makes the page if need be; `None` beyond a million descriptors.
fn make_slot(fd: c_int) -> Option<&'static Slot> {
    if let Some(slot) = slot(fd) {
        return Some(slot);
    }
    let entry = TABLE.get(usize::try_from(fd).ok()? / PAGE)?;
    let page: Box<Page> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE]);
    let page = Box::into_raw(page);
    if entry.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: ours alone: another thread was faster.
        drop(unsafe { Box::from_raw(page) });
    }
    slot(fd)
}

/// The socket of the stack plane at `fd`.
#[inline]
pub fn get(fd: c_int) -> Option<Ref> {
    let slot = slot(fd)?;
    let mut at = slot.load(Ordering::Acquire);
    loop {
        if at.is_null() || at == INTERNAL {
            return None;
        }
        // SAFETY: cells live for ever.
        let cell: &'static Cell = unsafe { &*at };
        let mut holders = cell.holders.load(Ordering::Relaxed);
        while holders != 0 {
            let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
            match cell.holders.compare_exchange_weak(holders, holders + 1, done, failed) {
                Ok(_) => {
                    let held = Ref(cell);
                    if slot.load(Ordering::Acquire) == at {
                        return Some(held);
                    }
                    // The cell was reused for another file meanwhile, or the entry has changed: look again.
                    break;
                }
                Err(now) => holders = now,
            }
        }
        at = slot.load(Ordering::Acquire);
    }
}

/// No descriptor from here on is a socket of the stack plane. 0: there never was any.
#[inline]
pub fn end() -> usize {
    END.load(Ordering::Relaxed)
}

/// Enters `file` at `fd`. False if the number is too great; then nothing is entered.
pub fn set(fd: c_int, file: Ref) -> bool {
    let Some(slot) = make_slot(fd) else { return false };
    END.fetch_max(fd.unsigned_abs() as usize + 1, Ordering::Relaxed);
    release(slot.swap(file.into_raw(), Ordering::AcqRel));
    true
}

/// `fd` is no longer ours.
pub fn clear(fd: c_int) {
    if let Some(slot) = slot(fd) {
        release(slot.swap(ptr::null_mut(), Ordering::AcqRel));
    }
}

/// Removes `file` from `fd`, unless `fd` is another file already.
pub fn clear_if(fd: c_int, file: &Ref) {
    let mine = ptr::from_ref(file.0).cast_mut();
    if let Some(slot) = slot(fd)
        && slot.compare_exchange(mine, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        release(mine);
    }
}

/// Every descriptor that refers to `old` refers to `new` from now on.
pub fn replace(old: &Ref, new: &Ref) {
    let old = ptr::from_ref(old.0).cast_mut();
    for page in &TABLE {
        // SAFETY: null, or a page that was leaked to be here.
        let slots = unsafe { page.load(Ordering::Acquire).as_ref() };
        for slot in slots.into_iter().flatten() {
            if slot.load(Ordering::Relaxed) != old {
                continue;
            }
            let next = new.clone().into_raw();
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let swapped = slot.compare_exchange(old, next, done, failed);
            release(if swapped.is_ok() { old } else { next });
        }
    }
}

fn release(cell: *mut Cell) {
    if !cell.is_null() && cell != INTERNAL {
        // SAFETY: it was in the table, whose reference this is.
        drop(Ref(unsafe { &*cell }));
    }
}

/// `fd` is one of the library's own: the program cannot close it.
pub fn set_internal(fd: c_int) {
    if let Some(slot) = make_slot(fd) {
        release(slot.swap(INTERNAL, Ordering::AcqRel));
    }
}

/// Whether `fd` is one of the library's own.
#[inline]
pub fn is_internal(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| slot.load(Ordering::Relaxed) == INTERNAL)
}

/// Every descriptor in the table, from the lowest, with its file; `None` for the library's own.
pub fn all() -> impl Iterator<Item = (c_int, Option<Ref>)> {
    let pages = (0..).zip(&TABLE).filter(|(_, page)| !page.load(Ordering::Acquire).is_null());
    pages.flat_map(|(page, _)| (page * PAGE as c_int..).take(PAGE)).filter_map(|fd| {
        if is_internal(fd) { Some((fd, None)) } else { get(fd).map(|file| (fd, Some(file))) }
    })
}

/// In a child after _Fork(3), which has one thread: empties the table. The files are left as they are, and the
/// library's own descriptors are passed to `internal`. Allocates nothing.
pub fn clear_in_child(internal: impl Fn(c_int)) {
    for (page, entry) in (0..).zip(&TABLE) {
        // SAFETY: null, or a page that was leaked to be here.
        let slots = unsafe { entry.load(Ordering::Acquire).as_ref() };
        for (fd, slot) in (page * PAGE as c_int..).zip(slots.into_iter().flatten()) {
            if slot.swap(ptr::null_mut(), Ordering::Relaxed) == INTERNAL {
                internal(fd);
            }
        }
    }
}

/// In a child after fork(2), which has one thread: replaces every file by what `replacement` makes of it, once for all
/// its descriptors. The old files are left as they are and not dropped, so that no new cell reuses the place of an old
/// one. Descriptors that were the library's own are passed to `internal` and removed.
pub fn replace_in_child(
    mut replacement: impl FnMut(&File) -> Option<Ref>,
    mut internal: impl FnMut(c_int),
) {
    let mut seen: Vec<(*mut Cell, Option<Ref>)> = Vec::new();
    for (page, entry) in (0..).zip(&TABLE) {
        // SAFETY: null, or a page that was leaked to be here.
        let Some(slots) = (unsafe { entry.load(Ordering::Acquire).as_ref() }) else { continue };
        for (fd, slot) in (page * PAGE as c_int..).zip(slots) {
            let at = slot.load(Ordering::Relaxed);
            if at.is_null() {
                continue;
            }
            if at == INTERNAL {
                slot.store(ptr::null_mut(), Ordering::Relaxed);
                internal(fd);
                continue;
            }
            // SAFETY: the table holds a reference, which is never dropped.
            let (file, shared) = unsafe {
                let shared = (*at).holders.load(Ordering::Relaxed) > 1;
                ((*(*at).file.get()).assume_init_ref(), shared)
            };
            let known = seen.iter().find(|(old, _)| *old == at).map(|(_, new)| new.clone());
            let new = known.unwrap_or_else(|| {
                let new = replacement(file);
                if shared {
                    seen.push((at, new.clone()));
                }
                new
            });
            let new = new.map_or(ptr::null_mut(), Ref::into_raw);
            slot.store(new, Ordering::Relaxed);
        }
    }
}
