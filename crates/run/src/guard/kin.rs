//! Whether anybody of a run is left: processes are known by the environment they were started with, which daemons keep
//! that have left their session, their parent and their descriptors behind.

use std::fs;

/// Whether a process lives that was started with `text` in its environment.
pub(super) fn is_left(text: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    processes
        .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
        // Somebody else's processes are none of ours; those that have ended have no environment.
        .filter_map(|entry| fs::read(entry.path().join("environ")).ok())
        .any(|environment| environment.windows(text.len()).any(|part| part == text.as_bytes()))
}
