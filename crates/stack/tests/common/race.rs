//! Threads that run at the same time until each has made enough progress.

use std::{
    array,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Calls `run` again and again on `N` threads until `enough`. It gets the shared state, the thread's number and the
/// thread's progress so far, and returns the new progress. While the threads end, `meanwhile` runs here. Returns each
/// thread's progress.
///
/// Panics if a thread panics or if it takes longer than `limit`.
pub fn race<G: Send + Sync + 'static, const N: usize>(
    shared: &Arc<G>,
    limit: Duration,
    run: fn(&G, usize, u64) -> u64,
    enough: impl Fn([u64; N]) -> bool,
    mut meanwhile: impl FnMut(),
) -> [u64; N] {
    let over = Arc::new(AtomicBool::new(false));
    let progress: Arc<[AtomicU64; N]> = Arc::new([const { AtomicU64::new(0) }; N]);
    let threads: Vec<_> = (0..N)
        .map(|runner| {
            let (shared, over, progress) = (shared.clone(), over.clone(), progress.clone());
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let so_far = progress[runner].load(Ordering::Relaxed);
                    progress[runner].store(run(&shared, runner, so_far), Ordering::Relaxed);
                }
            })
        })
        .collect();
    let all_progress = || array::from_fn(|at| progress[at].load(Ordering::Relaxed));
    // A thread that does not progress hangs.
    let late = Instant::now() + limit;
    while !enough(all_progress()) && !threads.iter().any(|thread| thread.is_finished()) {
        assert!(Instant::now() < late, "a thread hangs, or is starved: {progress:?}");
        thread::sleep(Duration::from_millis(5));
    }
    over.store(true, Ordering::Relaxed);
    while !threads.iter().all(|thread| thread.is_finished()) {
        assert!(Instant::now() < late, "a thread hangs: {progress:?}");
        meanwhile();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    all_progress()
}
