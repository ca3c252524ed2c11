//! The table of contexts: lookups against removal, reuse of a slot, and closing of a context that was found.

use crate::{
    check,
    napi::{table::Table, word::Word},
    sync::{Arc, UnsafeCell, spin_wait},
};
use loom::thread;

const FIRST: u32 = 2;

fn table<T>(entries: impl Fn(u32) -> T) -> Arc<Table<T>> {
    let table = Table::new(1, FIRST);
    assert!(table.insert_with(|id| Some(Arc::new(entries(id)))).is_some());
    Arc::new(table)
}

#[test]
fn an_id_names_its_own_entry_or_nothing_while_its_slot_is_used_again() {
    check(None, || {
        let table = table(|id| id);
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                for id in [FIRST, FIRST + 1] {
                    if let Some(entry) = table.get(id) {
                        assert_eq!(*entry, id);
                    }
                }
            })
        };
        assert_eq!(table.remove(FIRST).as_deref(), Some(&FIRST));
        assert!(table.get(FIRST).is_none());
        let next = table.insert_with(|id| Some(Arc::new(id))).unwrap();
        assert_eq!(*next, FIRST + 1);
        reader.join().unwrap();
    });
}

#[test]
fn one_of_two_removals_gets_the_entry() {
    check(Some(3), || {
        let table = table(|id| id);
        let other = {
            let table = table.clone();
            thread::spawn(move || table.remove(FIRST).is_some())
        };
        let reader = {
            let table = table.clone();
            thread::spawn(move || drop(table.get(FIRST)))
        };
        let mine = table.remove(FIRST).is_some();
        assert!(mine != other.join().unwrap());
        reader.join().unwrap();
        assert!(table.get(FIRST).is_none());
    });
}

/// A context in this model: its ownership word and its queue.
struct Entry {
    word: Word,
    open: UnsafeCell<bool>,
}

// SAFETY: `open` is accessed by the word's owner, or by the thread that disabled it; loom checks that.
unsafe impl Sync for Entry {}
// SAFETY: not bound to a thread.
unsafe impl Send for Entry {}

#[test]
fn a_context_can_be_closed_during_lookups_and_polls() {
    check(Some(3), || {
        let table = table(|_| {
            let word = Word::new();
            word.enable();
            Entry { word, open: UnsafeCell::new(true) }
        });
        let poll = |table: Arc<Table<Entry>>| {
            move || {
                let Some(entry) = table.get(FIRST) else { return };
                if entry.word.lock_poll().is_ok() {
                    // SAFETY: this thread owns it. Loom checks it.
                    assert!(entry.open.with_mut(|open| unsafe { *open }), "polled a closed queue");
                    entry.word.unlock();
                }
            }
        };
        let pollers = [(); 2].map(|()| thread::spawn(poll(table.clone())));
        let entry = table.remove(FIRST).unwrap();
        while !entry.word.disable() {
            spin_wait();
        }
        // SAFETY: disabled: there is no owner and will be none. Loom checks it.
        entry.open.with_mut(|open| unsafe { *open = false });
        drop(entry);
        pollers.into_iter().for_each(|poller| poller.join().unwrap());
    });
}
