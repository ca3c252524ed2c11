//! How many threads of this process wait for a listener, so that other processes can learn whether one waits now. A
//! listener that several processes wait for takes a connection over a link only while one does.

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
        if self.is_shared.load(Ordering::SeqCst) != 0 {
            self.update();
        }
    }

    pub(super) fn set_offers(&self, offers: usize) {
        self.offers.store(offers as u32, Ordering::SeqCst);
        self.update();
    }

    /// How many connections it can take now: one for each thread that waits.
    pub(super) fn can_take(&self) -> u32 {
        let threads = self.threads.load(Ordering::SeqCst);
        threads.saturating_sub(self.offers.load(Ordering::SeqCst))
    }

    /// From now on `word` says it.
    pub(super) fn share(&self, word: Arc<dyn WaitWord>) {
        *lock(&self.word) = Some(word);
        self.is_shared.store(1, Ordering::SeqCst);
        self.update();
    }

    /// No word says it any more.
    pub(super) fn unshare(&self) {
        self.is_shared.store(0, Ordering::SeqCst);
        *lock(&self.word) = None;
    }

    fn update(&self) {
        // The last of several updates reads what all of them have changed.
        let word = lock(&self.word);
        word.iter().for_each(|word| word.set(self.can_take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Word(AtomicU32);

    impl WaitWord for Word {
        fn set(&self, can_take: u32) {
            self.0.store(can_take, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_word_says_how_many_connections_can_be_taken() {
        let (waited, word) = (Waited::default(), Arc::new(Word::default()));
        let says = || word.0.load(Ordering::Relaxed);
        // A thread that waits already counts.
        waited.waits(true);
        assert_eq!(waited.can_take(), 1);
        waited.share(word.clone());
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
    }
}
