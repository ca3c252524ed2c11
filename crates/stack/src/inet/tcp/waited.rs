//! How many threads of this process wait for a listener, so that other processes can learn whether one waits now. A
//! listener that several processes wait for takes a connection over a link only while one does. It is model-checked in
//! `tests/loom.rs`.

use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

/// A word that other processes read: how many connections the listener can take now.
pub(crate) trait WaitWord: Send + Sync {
    fn set(&self, can_take: u32);
}

#[derive(Default)]
pub(super) struct Waited {
    threads: AtomicU32,
    /// Connections that are offered to the process, which has not accepted them.
    offers: AtomicU32,
    is_shared: AtomicU32,
    word: Mutex<Option<Arc<dyn WaitWord>>>,
}

impl Waited {
    /// A thread begins, or ends, a wait.
    pub(super) fn waits(&self, begins: bool) {
        match begins {
            true => self.threads.fetch_add(1, Ordering::SeqCst),
            false => self.threads.fetch_sub(1, Ordering::SeqCst),
        };
        // Either this thread finds the word, or `share` counts this thread.
        if self.is_shared.load(Ordering::Acquire) != 0 {
            self.update();
        }
    }

    pub(super) fn threads(&self) -> u32 {
        self.threads.load(Ordering::SeqCst)
    }

    pub(super) fn set_offers(&self, offers: usize) {
        self.offers.store(offers as u32, Ordering::Relaxed);
        self.update();
    }

    /// How many connections it can take now: one for each thread that waits.
    pub(super) fn can_take(&self) -> u32 {
        self.threads().saturating_sub(self.offers.load(Ordering::Relaxed))
    }

    /// From now on `word` says it.
    pub(super) fn share(&self, word: Arc<dyn WaitWord>) {
        *lock(&self.word) = Some(word);
        self.is_shared.store(1, Ordering::Release);
        // Comes before or after each change of the number: a later one finds the word.
        self.threads.fetch_add(0, Ordering::AcqRel);
        self.update();
    }

    /// No word says it any more.
    pub(super) fn unshare(&self) {
        self.is_shared.store(0, Ordering::Release);
        *lock(&self.word) = None;
    }

    fn update(&self) {
        // The last of several updates reads what all of them have changed.
        let word = lock(&self.word);
        word.iter().for_each(|word| word.set(self.can_take()));
    }
}
