//! Whether any process of a run is left. A process is recognised by the environment it was started with, which a daemon
//! keeps that has left its session, parent and descriptors behind; or by the mark that the preload library makes.

use std::fs;
use std::path::Path;

use busypoll_policy::mark;

/// Whether a process lives that was started with `text`, the address of its guard, in its environment, or that has
/// overwritten its environment and has the mark.
pub(super) fn any_process_left(text: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    processes
        .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
        .any(|entry| belongs_to(&entry.path(), text))
}

fn belongs_to(process: &Path, text: &str) -> bool {
    // Files of other users' processes cannot be read; ended processes have no environment and no memory.
    let has = |file: &str, text: &str| {
        let read = fs::read(process.join(file)).unwrap_or_default();
        read.windows(text.len()).any(|part| part == text.as_bytes())
    };
    has("environ", text) || has("maps", mark(text))
}
