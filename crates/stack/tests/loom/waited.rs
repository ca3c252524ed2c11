//! The word that tells other processes how many connections a listener can take, while threads begin and end to wait,
//! connections are offered, and the listener begins to be shared.

use crate::{
    check,
    waited::{WaitWord, Waited},
};
use loom::{sync::Arc, thread};
use std::sync::atomic::{AtomicU32, Ordering};

/// No step of the model: the word is set under a lock.
#[derive(Clone, Default)]
struct Word(std::sync::Arc<AtomicU32>);

impl WaitWord for Word {
    fn set(&self, can_take: u32) {
        self.0.store(can_take, Ordering::Relaxed);
    }
}

/// A listener's side of it, and the word that others read.
struct Model {
    waited: Waited,
    word: Word,
}

impl Model {
    fn new() -> Arc<Model> {
        Arc::new(Model { waited: Waited::default(), word: Word::default() })
    }

    fn share(&self) {
        let word: std::sync::Arc<dyn WaitWord> = std::sync::Arc::new(self.word.clone());
        self.waited.share(Arc::from_std(word));
    }

    fn says(&self) -> u32 {
        self.word.0.load(Ordering::Relaxed)
    }
}

#[test]
fn the_word_says_how_many_connections_can_be_taken() {
    check(None, || {
        let model = Model::new();
        let (waited, says) = (&model.waited, || model.says());
        // A thread that waits already counts.
        waited.waits(true);
        assert_eq!(waited.can_take(), 1);
        model.share();
        assert_eq!(says(), 1);
        waited.waits(true);
        assert_eq!(says(), 2);
        waited.set_offers(1);
        assert_eq!(says(), 1);
        // The thread that accepts does not wait, and the offer is taken.
        waited.waits(false);
        assert_eq!(says(), 0);
        waited.set_offers(0);
        assert_eq!((says(), waited.can_take()), (1, 1));
        waited.unshare();
        waited.waits(false);
        assert_eq!((says(), waited.can_take()), (1, 0));
    });
}

#[test]
fn a_wait_that_begins_while_the_listener_begins_to_be_shared_is_counted() {
    check(None, || {
        let model = Model::new();
        let waiter = {
            let model = model.clone();
            thread::spawn(move || model.waited.waits(true))
        };
        model.share();
        waiter.join().unwrap();
        assert_eq!(model.says(), 1);
    });
}

/// One thread comes back to wait while the other one accepts: an offer that another process makes meanwhile is counted.
#[test]
fn the_last_change_is_said_whatever_the_order() {
    check(Some(3), || {
        let model = Model::new();
        model.waited.waits(true);
        model.share();
        let comes = {
            let model = model.clone();
            thread::spawn(move || model.waited.waits(true))
        };
        let offered = {
            let model = model.clone();
            thread::spawn(move || model.waited.set_offers(1))
        };
        model.waited.waits(false);
        comes.join().unwrap();
        offered.join().unwrap();
        assert_eq!((model.waited.can_take(), model.says()), (0, 0));
        model.waited.set_offers(0);
        assert_eq!(model.says(), 1);
    });
}
