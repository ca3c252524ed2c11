//! Lookups without a lock against changes: a value that a reader has found lives while the reader uses it, and a value
//! without readers is freed at once.

use crate::{
    check,
    hash::{Change, Changed, Layout, Table},
    rcu::Domain,
    sync::{Arc, AtomicU64, Ordering, UnsafeCell},
};
use loom::thread;
use std::hash::{BuildHasherDefault, Hasher};

/// A value in the structure: its drop is a write that no reader may race with.
struct Value {
    number: u64,
    alive: Arc<UnsafeCell<bool>>,
    left: Arc<AtomicU64>,
}

// SAFETY: `alive` is read by readers, and written when none is left; loom checks that.
unsafe impl Send for Value {}
// SAFETY: as above.
unsafe impl Sync for Value {}

impl Value {
    fn new(number: u64, left: &Arc<AtomicU64>) -> Value {
        left.fetch_add(1, Ordering::Relaxed);
        Value { number, alive: Arc::new(UnsafeCell::new(true)), left: left.clone() }
    }

    fn read(&self) -> u64 {
        // SAFETY: a read. Loom checks it.
        assert!(self.alive.with(|alive| unsafe { *alive }), "read after it was freed");
        self.number
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: no reader is left. Loom checks it.
        self.alive.with_mut(|alive| unsafe { *alive = false });
        self.left.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A key is its own hash: the models choose which keys share a slot.
#[derive(Default)]
struct Plain(u64);

impl Hasher for Plain {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Model = Table<u64, Value, BuildHasherDefault<Plain>>;

fn table(readers: usize) -> Arc<Model> {
    let layout = Layout { shards: 1, readers, batch: 1 };
    Arc::new(Table::new(BuildHasherDefault::default(), layout))
}

fn put(table: &Model, key: u64, value: Value) -> Option<Changed> {
    table.change(key, |_| Change::Put(value))
}

fn remove(table: &Model, key: u64) -> bool {
    let change =
        |found: Option<&Value>| if found.is_some() { Change::Remove } else { Change::Keep };
    table.change(key, change) == Some(Changed::Removed)
}

fn get(table: &Model, key: u64) -> Option<u64> {
    table.read().get(&key).map(Value::read)
}

/// One thread unlinks and retires a value that others read; `places` readers have a slot.
fn unlinking(readers: usize, places: usize, preemptions: Option<usize>) {
    check(preemptions, move || {
        let left = Arc::new(AtomicU64::new(0));
        let domain = Arc::new(Domain::new(places, 1));
        let value =
            Arc::new(crate::sync::AtomicPtr::new(Box::into_raw(Box::new(Value::new(1, &left)))));
        let read =
            |(domain, value): (Arc<Domain<Box<Value>>>, Arc<crate::sync::AtomicPtr<Value>>)| {
                move || {
                    let _section = domain.enter();
                    // SAFETY: a value reached in a read section is not freed during it.
                    if let Some(value) = unsafe { value.load(Ordering::Acquire).as_ref() } {
                        assert_eq!(value.read(), 1);
                    }
                }
            };
        let readers: Vec<_> =
            (0..readers).map(|_| thread::spawn(read((domain.clone(), value.clone())))).collect();
        let old = value.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made by `into_raw`, and unlinked only by this thread.
        domain.retire(unsafe { Box::from_raw(old) });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(left.load(Ordering::Relaxed), 0, "kept without a reader");
    });
}

#[test]
fn a_removed_value_lives_until_its_last_reader_leaves() {
    unlinking(1, 1, None);
    unlinking(2, 2, Some(3));
}

#[test]
fn a_removed_value_lives_for_readers_without_a_slot_too() {
    unlinking(2, 1, Some(3));
}

#[test]
fn a_later_read_section_does_not_keep_a_value_removed_before() {
    check(Some(3), || {
        let left = Arc::new(AtomicU64::new(0));
        let table = table(1);
        put(&table, 1, Value::new(1, &left));
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    get(&table, 1);
                }
            })
        };
        assert!(remove(&table, 1));
        assert_eq!(get(&table, 1), None);
        reader.join().unwrap();
        assert_eq!(left.load(Ordering::Relaxed), 0, "kept without a reader");
    });
}

#[test]
fn a_key_whose_value_is_replaced_is_always_found() {
    check(Some(3), || {
        let left = Arc::new(AtomicU64::new(0));
        let table = table(1);
        put(&table, 1, Value::new(1, &left));
        let reader = {
            let table = table.clone();
            thread::spawn(move || assert!(matches!(get(&table, 1), Some(1 | 2))))
        };
        assert_eq!(put(&table, 1, Value::new(2, &left)), Some(Changed::Put));
        reader.join().unwrap();
        assert_eq!((get(&table, 1), left.load(Ordering::Relaxed)), (Some(2), 1));
    });
}

#[test]
fn a_key_is_found_while_others_in_its_slot_come_and_go() {
    check(Some(3), || {
        let left = Arc::new(AtomicU64::new(0));
        let table = table(1);
        // All in one slot: the last is found behind the others.
        for key in [8, 16, 24] {
            put(&table, key, Value::new(key, &left));
        }
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                assert_eq!(get(&table, 24), Some(24));
                assert!(matches!(get(&table, 16), None | Some(16)));
                assert!(matches!(get(&table, 32), None | Some(32)));
            })
        };
        assert!(remove(&table, 16));
        put(&table, 32, Value::new(32, &left));
        reader.join().unwrap();
        assert_eq!(
            [8, 16, 24, 32].map(|key| get(&table, key)),
            [Some(8), None, Some(24), Some(32)]
        );
    });
}

#[test]
fn keys_are_found_while_the_table_grows() {
    check(Some(2), || {
        let left = Arc::new(AtomicU64::new(0));
        let table = table(1);
        for key in 1..=4 {
            put(&table, key, Value::new(key, &left));
        }
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                assert_eq!(get(&table, 4), Some(4));
                assert!(matches!(get(&table, 1), None | Some(1)));
            })
        };
        put(&table, 5, Value::new(5, &left));
        assert!(remove(&table, 1));
        reader.join().unwrap();
        assert_eq!(table.len(), 4);
        assert_eq!(left.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn of_two_insertions_of_a_key_one_succeeds() {
    check(Some(3), || {
        let left = Arc::new(AtomicU64::new(0));
        let table = table(1);
        let enter = |table: Arc<Model>, left: Arc<AtomicU64>, number| {
            move || {
                let value = Value::new(number, &left);
                let change = |found: Option<&Value>| match found {
                    None => Change::Put(value),
                    Some(_) => Change::Keep,
                };
                table.change(1, change).is_some()
            }
        };
        let other = thread::spawn(enter(table.clone(), left.clone(), 2));
        let mine = enter(table.clone(), left.clone(), 1)();
        assert!(mine != other.join().unwrap());
        assert_eq!(get(&table, 1), Some(if mine { 1 } else { 2 }));
        assert_eq!(left.load(Ordering::Relaxed), 1);
    });
}
