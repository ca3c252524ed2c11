//! The path that a process's exec was given; it may be a symbolic link or a script.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The pause between two reads during an exec, and the most reads.
const PAUSE: Duration = Duration::from_millis(1);
const MAX_READS: usize = 100;

/// The path for a process (`/proc/PID`). `None` if it may not be read.
pub(super) fn exec_path(process: &Path) -> Option<PathBuf> {
    let at = exec_path_address(process)?;
    // It is near the end of the stack, so the read may be short.
    let mut bytes = [0; libc::PATH_MAX as usize];
    let read =
        File::open(process.join("mem")).and_then(|file| file.read_at(&mut bytes, at)).ok()?;
    let path = CStr::from_bytes_until_nul(bytes.get(..read)?).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

/// The address of the path in its memory. During exec the new memory exists, and a vfork(2) has ended, before the
/// auxiliary vector is written (`fs/binfmt_elf.c` `create_elf_tables`): then it is read again a moment later.
fn exec_path_address(process: &Path) -> Option<u64> {
    for look in 0..MAX_READS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        let vector = fs::read(process.join("auxv")).ok()?;
        match entry(&vector, libc::AT_EXECFN) {
            // The process has ended, or is a kernel thread.
            _ if vector.is_empty() => return None,
            Some(at) if at != 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// One value of an auxiliary vector, which consists of pairs of a type and a value.
fn entry(vector: &[u8], kind: libc::c_ulong) -> Option<u64> {
    let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let mut pairs = vector.chunks_exact(16).map(|pair| pair.split_at(8));
    let (_, value) = pairs.find(|(key, _)| number(key) == Some(kind))?;
    number(value)
}
