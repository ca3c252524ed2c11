//! The table of contexts: lookups against removal, re-use of a slot, and the closing of what was found.

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

/// What a context is to this model: its word and its queue.
struct Entry {
    word: Word,
    open: UnsafeCell<bool>,
}

// SAFETY: `open` is touched by the word's owner, or by who disabled it; loom checks it.
unsafe impl Sync for Entry {}
// SAFETY: bound to no thread.
unsafe impl Send for Entry {}

#[test]
fn a_context_is_closed_while_others_look_it_up_and_poll_it() {
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
                    // SAFETY: we own it. Loom checks it.
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
        // SAFETY: disabled: nobody owns it, nobody will. Loom checks it.
        entry.open.with_mut(|open| unsafe { *open = false });
        drop(entry);
        pollers.into_iter().for_each(|poller| poller.join().unwrap());
    });
}
