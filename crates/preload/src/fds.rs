//! A table of descriptors: which are files of the library, and which the library holds for itself. One atomic load shows
//! that a descriptor is neither. A lookup takes no lock, so a signal handler may do it.
//!
//! Two levels: 2,048 pointers to pages of 512 descriptors each. A page is made when a descriptor in it is first
//! entered, so memory depends on the highest descriptor in use and not on RLIMIT_NOFILE. An entry points to a [`Cell`],
//! which is never freed but reused (as the kernel's files with SLAB_TYPESAFE_BY_RCU): a reader that has loaded the
//! pointer takes a reference, and then checks that the entry still holds the pointer.

use crate::{errno, inside::Inside};
use libc::c_int;
use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ops::Deref,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence},
    },
};

const PAGE: usize = 512;
const PAGES: usize = 2048;

type Slot<F> = AtomicPtr<Cell<F>>;
type Page<F> = [Slot<F>; PAGE];

/// The entry of a descriptor that the library holds for itself.
const fn internal<F>() -> *mut Cell<F> {
    ptr::without_provenance_mut(1)
}

/// The files of type `F` by descriptor.
pub struct Table<F: 'static> {
    pages: [AtomicPtr<Page<F>>; PAGES],
    /// One more than the greatest descriptor that was ever a file.
    end: AtomicUsize,
    /// Free cells, for reuse.
    spare: Mutex<Vec<&'static Cell<F>>>,
}

/// A file and its reference count: descriptors, and calls in progress.
pub struct Cell<F: 'static> {
    table: &'static Table<F>,
    holders: AtomicUsize,
    /// What [`Table::is_marked`] reads.
    marked: AtomicBool,
    /// Valid while there are holders.
    file: UnsafeCell<MaybeUninit<F>>,
}

// SAFETY: `file` is written only while `holders` is 0, by the thread that took the cell off `spare`. Only the last
// holder takes it out.
unsafe impl<F: Send + Sync> Sync for Cell<F> {}
// SAFETY: as above.
unsafe impl<F: Send + Sync> Send for Cell<F> {}

/// A reference to a file.
pub struct Ref<F: 'static>(&'static Cell<F>);

impl<F> Ref<F> {
    /// Marks the file: see [`Table::is_marked`].
    #[inline]
    pub fn mark(&self) {
        if !self.0.marked.load(Ordering::Relaxed) {
            self.0.marked.store(true, Ordering::Release);
        }
    }

    fn into_raw(self) -> *mut Cell<F> {
        let cell = ptr::from_ref(self.0).cast_mut();
        std::mem::forget(self);
        cell
    }
}

impl<F> Clone for Ref<F> {
    fn clone(&self) -> Ref<F> {
        self.0.holders.fetch_add(1, Ordering::Relaxed);
        Ref(self.0)
    }
}

impl<F> Deref for Ref<F> {
    type Target = F;

    #[inline]
    fn deref(&self) -> &F {
        // SAFETY: a reference is held, so the file is there and not written.
        unsafe { (*self.0.file.get()).assume_init_ref() }
    }
}

impl<F> Drop for Ref<F> {
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
        self.0.table.spare().push(self.0);
    }
}

/// Whether an entry is a file's: it is in use, and not by the library itself.
#[inline]
fn is_file<F>(entry: *mut Cell<F>) -> bool {
    !entry.is_null() && entry != internal()
}

fn release<F>(cell: *mut Cell<F>) {
    if is_file(cell) {
        // SAFETY: it was in the table, whose reference this is.
        drop(Ref(unsafe { &*cell }));
    }
}

impl<F> Table<F> {
    /// An empty table.
    pub const fn new() -> Table<F> {
        Table {
            pages: [const { AtomicPtr::new(ptr::null_mut()) }; PAGES],
            end: AtomicUsize::new(0),
            spare: Mutex::new(Vec::new()),
        }
    }

    /// A new file, with one reference, at no descriptor yet.
    pub fn hold(&'static self, file: F) -> Ref<F> {
        let spare = self.spare().pop();
        let cell = spare.unwrap_or_else(|| {
            let file = UnsafeCell::new(MaybeUninit::uninit());
            let (holders, marked) = (AtomicUsize::new(0), AtomicBool::new(false));
            Box::leak(Box::new(Cell { table: self, holders, marked, file }))
        });
        cell.marked.store(false, Ordering::Relaxed);
        // SAFETY: off the list, with no holders: no other thread accesses it.
        unsafe { (*cell.file.get()).write(file) };
        cell.holders.store(1, Ordering::Release);
        Ref(cell)
    }

    /// The list of spare cells; held across a fork, so that the child finds it free.
    pub fn spare(&'static self) -> MutexGuard<'static, Vec<&'static Cell<F>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn slot(&self, fd: c_int) -> Option<&'static Slot<F>> {
        let fd = usize::try_from(fd).ok()?;
        let page = self.pages.get(fd / PAGE)?.load(Ordering::Acquire);
        // SAFETY: null, or a page that was leaked to be here.
        let page = unsafe { page.as_ref() }?;
        page.get(fd % PAGE)
    }

    /// As [`slot`], and makes the page if need be; `None` beyond a million descriptors.
    fn make_slot(&self, fd: c_int) -> Option<&'static Slot<F>> {
        if let Some(slot) = self.slot(fd) {
            return Some(slot);
        }
        let entry = self.pages.get(usize::try_from(fd).ok()? / PAGE)?;
        let page: Box<Page<F>> = Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE]);
        let page = Box::into_raw(page);
        if entry
            .compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: ours alone: another thread was faster.
            drop(unsafe { Box::from_raw(page) });
        }
        self.slot(fd)
    }

    /// The file at `fd`.
    #[inline]
    pub fn get(&self, fd: c_int) -> Option<Ref<F>> {
        let slot = self.slot(fd)?;
        let mut at = slot.load(Ordering::Acquire);
        loop {
            if !is_file(at) {
                return None;
            }
            // SAFETY: cells live for ever.
            let cell: &'static Cell<F> = unsafe { &*at };
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

    /// Whether `fd` is a file that is [marked](Ref::mark). Takes no reference, so it is cheaper than [`get`](Table::get).
    #[inline]
    pub fn is_marked(&self, fd: c_int) -> bool {
        let Some(slot) = self.slot(fd) else { return false };
        let at = slot.load(Ordering::Acquire);
        if !is_file(at) {
            return false;
        }
        // SAFETY: cells live for ever.
        let marked = unsafe { &*at }.marked.load(Ordering::Acquire);
        // Else the cell may be that of another file by now.
        marked && slot.load(Ordering::Acquire) == at
    }

    /// Whether `fd` is a file.
    #[inline]
    pub fn has(&self, fd: c_int) -> bool {
        self.slot(fd).is_some_and(|slot| is_file(slot.load(Ordering::Acquire)))
    }

    /// No descriptor from here on is a file. 0: there never was any.
    #[inline]
    pub fn end(&self) -> usize {
        self.end.load(Ordering::Relaxed)
    }

    /// Enters `file` at `fd`. False if the number is too great; then nothing is entered.
    pub fn set(&self, fd: c_int, file: Ref<F>) -> bool {
        let Some(slot) = self.make_slot(fd) else { return false };
        self.end.fetch_max(fd.unsigned_abs() as usize + 1, Ordering::Relaxed);
        release(slot.swap(file.into_raw(), Ordering::AcqRel));
        true
    }

    /// `fd` is no longer ours.
    pub fn clear(&self, fd: c_int) {
        if let Some(slot) = self.slot(fd) {
            release(slot.swap(ptr::null_mut(), Ordering::AcqRel));
        }
    }

    /// Removes `file` from `fd`, unless `fd` is another file already.
    pub fn clear_if(&self, fd: c_int, file: &Ref<F>) {
        let mine = ptr::from_ref(file.0).cast_mut();
        if let Some(slot) = self.slot(fd)
            && slot
                .compare_exchange(mine, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            release(mine);
        }
    }

    /// Every descriptor that refers to `old` refers to `new` from now on.
    pub fn replace(&self, old: &Ref<F>, new: &Ref<F>) {
        let old = ptr::from_ref(old.0).cast_mut();
        for page in &self.pages {
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

    /// `fd` is one of the library's own: the program cannot close it.
    pub fn set_internal(&self, fd: c_int) {
        if let Some(slot) = self.make_slot(fd) {
            release(slot.swap(internal(), Ordering::AcqRel));
        }
    }

    /// Whether `fd` is one of the library's own.
    #[inline]
    pub fn is_internal(&self, fd: c_int) -> bool {
        self.slot(fd).is_some_and(|slot| slot.load(Ordering::Relaxed) == internal())
    }

    /// Every descriptor in the table, from the lowest, with its file; `None` for the library's own.
    pub fn all(&self) -> impl Iterator<Item = (c_int, Option<Ref<F>>)> {
        let pages =
            (0..).zip(&self.pages).filter(|(_, page)| !page.load(Ordering::Acquire).is_null());
        pages.flat_map(|(page, _)| (page * PAGE as c_int..).take(PAGE)).filter_map(|fd| {
            if self.is_internal(fd) {
                Some((fd, None))
            } else {
                self.get(fd).map(|file| (fd, Some(file)))
            }
        })
    }

    /// In a child after _Fork(3), which has one thread: empties the table. The files are left as they are, and the
    /// library's own descriptors are passed to `close`. Allocates nothing.
    pub fn clear_in_child(&self, close: impl Fn(c_int)) {
        for (page, entry) in (0..).zip(&self.pages) {
            // SAFETY: null, or a page that was leaked to be here.
            let slots = unsafe { entry.load(Ordering::Acquire).as_ref() };
            for (fd, slot) in (page * PAGE as c_int..).zip(slots.into_iter().flatten()) {
                if slot.swap(ptr::null_mut(), Ordering::Relaxed) == internal() {
                    close(fd);
                }
            }
        }
    }

    /// In a child after fork(2), which has one thread: replaces every file by what `replacement` makes of it, once for all
    /// its descriptors. The old files are left as they are and not dropped, so that no new cell reuses the place of an old
    /// one. Descriptors that were the library's own are passed to `close` and removed.
    pub fn replace_in_child(
        &self,
        mut replacement: impl FnMut(&F) -> Option<Ref<F>>,
        mut close: impl FnMut(c_int),
    ) {
        let mut seen: Vec<(*mut Cell<F>, Option<Ref<F>>)> = Vec::new();
        for (page, entry) in (0..).zip(&self.pages) {
            // SAFETY: null, or a page that was leaked to be here.
            let Some(slots) = (unsafe { entry.load(Ordering::Acquire).as_ref() }) else { continue };
            for (fd, slot) in (page * PAGE as c_int..).zip(slots) {
                let at = slot.load(Ordering::Relaxed);
                if at.is_null() {
                    continue;
                }
                if at == internal() {
                    slot.store(ptr::null_mut(), Ordering::Relaxed);
                    close(fd);
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
}
