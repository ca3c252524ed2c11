//! The lock on a journal; a second taker gets the holder's PID. Handles `NAME.lock`.
//!
//! flock(2): the kernel releases it when the holder ends in any way. The PID inside is only for the error
//! message. The holder removes the file, so a taker that gets the lock checks that the file is still
//! the one of that name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::dir;
use crate::error::{Error, Result};

/// The lock on the changes of one journal; released when dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes `DIR/NAME.lock`.
    ///
    /// # Errors
    /// [`Error::Locked`], with the holder's PID.
    pub fn take(dir: &Path, name: &str) -> Result<Self> {
        dir::make(dir)?;
        let path = dir.join(format!("{name}.lock"));
        // A holder writes its PID just after it has taken the lock, so the PID may not be readable at once.
        for _ in 0..20 {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&path)
                .map_err(Error::io("open", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => return Ok(Self::signed(file, path)),
                // The last holder removed the file between open and flock.
                Ok(()) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(e) => return Err(Error::io("lock", &path)(e.into())),
            }
            if let Some(pid) = holder(&mut file).map_err(Error::io("read", &path))? {
                return Err(locked(path, Some(pid)));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(locked(path, None))
    }

    fn signed(file: File, path: PathBuf) -> Self {
        // On a full disk the lock is valid without a PID: a rollback must be possible.
        let _ = file.set_len(0);
        let _ = file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0);
        Lock { file, path }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While the lock is held no other process removes or replaces the file. A file left behind by a
        // killed holder is not locked.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether the path still leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata().is_ok_and(|a| fs::symlink_metadata(path).is_ok_and(|b| same(a, b)))
}

/// The PID in a lock file, if that process is alive; a killed holder may have left one.
fn holder(file: &mut File) -> io::Result<Option<u32>> {
    let mut text = String::new();
    io::Seek::rewind(file)?;
    file.take(32).read_to_string(&mut text)?;
    let pid = text.strip_suffix('\n').and_then(|t| t.parse().ok());
    Ok(pid.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()))
}

fn locked(path: PathBuf, pid: Option<u32>) -> Error {
    let command = pid.and_then(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
    let command = command.map(|bytes| {
        let words = bytes.split(|b| *b == 0).filter(|word| !word.is_empty());
        words.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ").replace('\n', " ")
    });
    let holder = match (pid, command.filter(|c| !c.is_empty())) {
        (Some(pid), Some(command)) => format!("PID {pid} ({command})"),
        (Some(pid), None) => format!("PID {pid}"),
        (None, _) => "another process (of another PID namespace)".into(),
    };
    Error::Locked { path, holder, pid }
}
