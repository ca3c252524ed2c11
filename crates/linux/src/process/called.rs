//! What a process was started as: the path that exec was given, which a link or a script's first line may have led from.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Between two looks at an exec under way, and how many there are at most.
const PAUSE: Duration = Duration::from_millis(1);
const LOOKS: usize = 100;

/// Of a process (`/proc/PID`). `None` where it may not be read.
pub(super) fn called(process: &Path) -> Option<PathBuf> {
    let at = exec_path(process)?;
    // It is near the end of the stack: less may be there.
    let mut bytes = [0; libc::PATH_MAX as usize];
    let read =
        File::open(process.join("mem")).and_then(|file| file.read_at(&mut bytes, at)).ok()?;
    let path = CStr::from_bytes_until_nul(bytes.get(..read)?).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

/// Where its memory has it. An exec has its new memory, and a vfork(2) ends, before the vector is written
/// (`fs/binfmt_elf.c` `create_elf_tables`): the name is then a moment away.
fn exec_path(process: &Path) -> Option<u64> {
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        let vector = fs::read(process.join("auxv")).ok()?;
        match entry(&vector, libc::AT_EXECFN) {
            // Of a process that has ended, or of the kernel's.
            _ if vector.is_empty() => return None,
            Some(at) if at != 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// A value of an auxiliary vector: pairs of a type and a value.
fn entry(vector: &[u8], kind: libc::c_ulong) -> Option<u64> {
    let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let mut pairs = vector.chunks_exact(16).map(|pair| pair.split_at(8));
    let (_, value) = pairs.find(|(key, _)| number(key) == Some(kind))?;
    number(value)
}
