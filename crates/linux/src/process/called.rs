//! What a process was started as: the path that exec was given, which a link or a script's first line may have led from.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Of a process (`/proc/PID`). `None` where it may not be read.
pub(super) fn called(process: &Path) -> Option<PathBuf> {
    let vector = fs::read(process.join("auxv")).ok()?;
    let at = entry(&vector, libc::AT_EXECFN)?;
    // It is near the end of the stack: less may be there.
    let mut bytes = [0; libc::PATH_MAX as usize];
    let read =
        File::open(process.join("mem")).and_then(|file| file.read_at(&mut bytes, at)).ok()?;
    let path = CStr::from_bytes_until_nul(bytes.get(..read)?).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

/// A value of an auxiliary vector: pairs of a type and a value.
fn entry(vector: &[u8], kind: libc::c_ulong) -> Option<u64> {
    let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let mut pairs = vector.chunks_exact(16).map(|pair| pair.split_at(8));
    let (_, value) = pairs.find(|(key, _)| number(key) == Some(kind))?;
    number(value)
}
