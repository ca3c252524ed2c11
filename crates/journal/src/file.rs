//! The journal's file. Handles `NAME.journal` and the order of write, sync and rename.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::{dir, format};

/// The name of a journal and the version of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind<'a> {
    /// The file's name without its suffix: letters, digits and `-`.
    pub name: &'a str,
    /// The version of the entries. A journal with a higher one is refused; a program with a raised version must still
    /// read the lower ones.
    pub version: u32,
}

/// A locked journal: no other holder is possible meanwhile, in this process or another.
///
/// The file exists from the first [`append`](Journal::append) to [`finish`](Journal::finish); dropping a
/// journal keeps it.
#[derive(Debug)]
pub struct Journal<T> {
    path: PathBuf,
    header: String,
    entries: Vec<T>,
    whole: u64,
    // Last: dropped after everything else.
    _lock: Lock,
}

impl<T: Serialize + DeserializeOwned + Clone> Journal<T> {
    /// Takes the lock and reads the journal. A torn last line is ignored: its change was
    /// never made. A journal of an earlier boot reads as empty.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Newer`], [`Error::Damaged`], [`Error::Io`].
    pub fn open(dir: &Path, kind: Kind<'_>) -> Result<Self> {
        let lock = Lock::take(dir, kind.name)?;
        let path = path(dir, kind);
        let boot = boot_id();
        let contents = format::parse(&path, kind, &boot, &bytes(&path)?)?;
        Ok(Journal {
            path,
            header: format::header(kind, &boot),
            entries: contents.entries,
            whole: contents.whole,
            _lock: lock,
        })
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &[T] {
        &self.entries
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds entries, all or none. When this returns they are on the disk, and the changes they describe
    /// may be made.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Io`]: the entries are not there, so change nothing.
    pub fn append(&mut self, entries: &[T]) -> Result<()> {
        let line = format::line(entries)
            .map_err(|e| Error::io("write", &self.path)(io::Error::other(e)))?;
        let text = if self.whole == 0 { self.header.clone() + &line } else { line };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&self.path)
            .map_err(Error::io("open", &self.path))?;
        // Overwrites the rest of a torn write, or a journal of an earlier boot.
        let written = file
            .set_len(self.whole)
            .and_then(|()| file.write_all_at(text.as_bytes(), self.whole))
            .and_then(|()| file.sync_all())
            .map_err(Error::io("write", &self.path))
            .and_then(|()| dir::sync(self.dir()));
        if let Err(e) = written {
            // Removes the entry, as its change will not be made. If this fails too, restoring a value that
            // was not changed does no harm.
            let _ = self.take_back(&file);
            return Err(e);
        }
        self.whole += text.len() as u64;
        self.entries.extend_from_slice(entries);
        Ok(())
    }

    fn take_back(&self, file: &File) -> io::Result<()> {
        if self.whole == 0 {
            return fs::remove_file(&self.path);
        }
        file.set_len(self.whole)?;
        file.sync_all()
    }

    /// Removes the file, durably: everything has been restored.
    ///
    /// # Errors
    /// [`Error::Io`]: the entries may be found again; restoring them again does no harm.
    pub fn finish(self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", &self.path)(e))
            }
            _ => dir::sync(self.dir()),
        }
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

/// The entries of a journal, read without its lock, oldest first; none if there is no journal.
///
/// # Errors
/// [`Error::Newer`], [`Error::Damaged`], [`Error::Io`].
pub fn read<T: DeserializeOwned>(dir: &Path, kind: Kind<'_>) -> Result<Vec<T>> {
    let path = path(dir, kind);
    Ok(format::parse(&path, kind, &boot_id(), &bytes(&path)?)?.entries)
}

fn path(dir: &Path, kind: Kind<'_>) -> PathBuf {
    dir.join(format!("{}.journal", kind.name))
}

fn bytes(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(Error::io("read", path)),
    }
}

/// The id of this boot; without one all boots count as the same.
fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id = id.trim();
    if id.is_empty() { "unknown".into() } else { id.into() }
}
