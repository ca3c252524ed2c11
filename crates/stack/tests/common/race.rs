//! Threads that go round beside each other until each has come far enough.

use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Calls `run` with the ground, a thread's number and how far that one has come, which returns how far it is now: again
/// and again, on `N` threads, until `enough`. While they end, `meanwhile` goes round here. How far each has come.
///
/// Who panics, or takes longer than `limit`, ends it with a panic.
pub fn race<G: Send + Sync + 'static, const N: usize>(
    ground: &Arc<G>,
    limit: Duration,
    run: fn(&G, usize, u64) -> u64,
    enough: impl Fn([u64; N]) -> bool,
    mut meanwhile: impl FnMut(),
) -> [u64; N] {
    let over = Arc::new(AtomicBool::new(false));
    let come: Arc<[AtomicU64; N]> = Arc::new([const { AtomicU64::new(0) }; N]);
    let threads: Vec<_> = (0..N)
        .map(|runner| {
            let (ground, over, come) = (ground.clone(), over.clone(), come.clone());
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let so_far = come[runner].load(Ordering::Relaxed);
                    come[runner].store(run(&ground, runner, so_far), Ordering::Relaxed);
                }
            })
        })
        .collect();
    let far = || array::from_fn(|at| come[at].load(Ordering::Relaxed));
    // Who never gets there hangs.
    let late = Instant::now() + limit;
    while !enough(far()) && !threads.iter().any(|thread| thread.is_finished()) {
        assert!(Instant::now() < late, "somebody hangs, or is starved: {come:?}");
        thread::sleep(Duration::from_millis(5));
    }
    over.store(true, Ordering::Relaxed);
    while !threads.iter().all(|thread| thread.is_finished()) {
        assert!(Instant::now() < late, "somebody hangs: {come:?}");
        meanwhile();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    far()
}
