//! The kind of an executable file, which decides whether a preloaded library sees its system calls.
//!
//! [`reach`] allocates nothing and reads only through rustix, so that it may be called between fork and exec.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, getxattr, open, stat};
use rustix::io::pread;
use rustix::path::Arg;
use rustix::process::{getegid, geteuid};

/// How a program can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The loader preloads a library that is named in `LD_PRELOAD`; also if the file cannot be read.
    Preload,
    /// It makes system calls itself: no library sees them.
    Raw(Kind),
    /// Neither works.
    Out(Why),
}

/// Why no library sees a program's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Statically linked.
    Static,
    /// Go makes system calls itself, also in dynamically linked programs.
    Go,
    /// Linked with a C library other than glibc.
    OtherLibc,
}

/// Why a program is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It runs with other rights than its user: setuid, setgid or file capabilities.
    Privileged,
    /// It is made for another processor.
    OtherMachine,
}

/// `e_machine` of the programs of this processor (elf(5)).
#[cfg(target_arch = "x86_64")]
pub const MACHINE: u16 = 62;
/// `e_machine` of the programs of this processor (elf(5)).
#[cfg(target_arch = "aarch64")]
pub const MACHINE: u16 = 183;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// A script's interpreter may be a script itself, up to four times (`fs/exec.c`).
const SCRIPTS: u32 = 4;

/// The length that the kernel reads of a script (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;

/// How the program in this file can be reached; for a script, its interpreter. `env` counts as a program like any
/// other.
pub fn reach(path: impl Arg + Copy) -> Reach {
    reach_through(path, SCRIPTS)
}

fn reach_through(path: impl Arg + Copy, scripts: u32) -> Reach {
    // Opening any other kind of file could block, and it cannot be executed.
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !stat(path).is_ok_and(|stat| is_file(&stat)) {
        return Reach::Preload;
    }
    let Ok(file) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        // Executable but not readable: only its mode and capabilities are known.
        let privileged = stat(path).is_ok_and(|stat| gains(path, &stat));
        return if privileged { Reach::Out(Why::Privileged) } else { Reach::Preload };
    };
    let mut head = [0; HEAD];
    read_some(&file, 0, &mut head);
    if let Some(interpreter) = interpreter(&mut head) {
        return scripts
            .checked_sub(1)
            .map_or(Reach::Preload, |left| reach_through(interpreter, left));
    }
    if !head.starts_with(b"\x7fELF") {
        return Reach::Preload;
    }
    if fstat(&file).is_ok_and(|stat| gains(path, &stat)) {
        return Reach::Out(Why::Privileged);
    }
    elf(&file).unwrap_or(Reach::Preload)
}

/// The file whose absence makes the start of a program fail: the interpreter of a script, also of one that interprets
/// a script, or the loader of a linked program. `None` if nothing is missing.
#[must_use]
pub fn missing(path: &CStr) -> Option<CString> {
    let mut path = path.to_owned();
    for _ in 0..=SCRIPTS {
        let next = started_for(&path)?;
        if matches!(stat(&next), Err(rustix::io::Errno::NOENT)) {
            return Some(next);
        }
        path = next;
    }
    None
}

/// The interpreter or loader that the kernel starts for a program.
fn started_for(path: &CStr) -> Option<CString> {
    let file =
        open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).ok()?;
    let mut head = [0; HEAD];
    read_some(&file, 0, &mut head);
    if let Some(interpreter) = interpreter(&mut head) {
        return Some(interpreter.to_owned());
    }
    let mut loader = None;
    if head.starts_with(b"\x7fELF\x02") {
        segments(&file, |kind, bytes| {
            if kind == PT_INTERP {
                loader = CStr::from_bytes_until_nul(bytes).ok().map(CStr::to_owned);
            }
        });
    }
    loader
}

/// The content of the note of this owner (elf(5)) in the ELF file `path`, if there is one.
#[must_use]
pub fn note(path: impl Arg, owner: &str) -> Option<Vec<u8>> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut found = None;
    segments(&file, |kind, bytes| {
        if kind == PT_NOTE && found.is_none() {
            found = note_in(bytes, owner.as_bytes());
        }
    })?;
    found
}

/// The content of the owner's note among those in `bytes`: each is three numbers (the length of its owner's name with
/// the final zero, the length of its content, its kind), the name and the content, both padded to four bytes.
fn note_in(bytes: &[u8], owner: &[u8]) -> Option<Vec<u8>> {
    let mut rest = bytes;
    loop {
        let name_len = usize::try_from(number(rest, 0, 4)?).ok()?;
        let len = usize::try_from(number(rest, 4, 4)?).ok()?;
        let content = 12_usize.checked_add(name_len.checked_next_multiple_of(4)?)?;
        if rest.get(12..)?.get(..name_len)?.strip_suffix(&[0]) == Some(owner) {
            return Some(rest.get(content..)?.get(..len)?.to_vec());
        }
        rest = rest.get(content.checked_add(len.checked_next_multiple_of(4)?)?..)?;
    }
}

/// The first word of a script's first line.
fn interpreter(head: &mut [u8; HEAD]) -> Option<&CStr> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = head.strip_prefix(b"#!")?;
    let start = 2 + line.iter().position(|byte| !blank(byte))?;
    let len = head[start..].iter().position(|byte| blank(byte) || matches!(byte, b'\n' | 0))?;
    head[start + len] = 0;
    CStr::from_bytes_with_nul(&head[start..=start + len]).ok()
}

/// Whether the loader would not preload our library into it (`AT_SECURE`, ld.so(8)).
fn gains(path: impl Arg, stat: &Stat) -> bool {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let mode = stat.st_mode;
    let setuid = mode & libc::S_ISUID != 0 && stat.st_uid != uid;
    let setgid = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && stat.st_gid != gid;
    let mut value = [0_u8; 64];
    // File capabilities add nothing to root's.
    let gains = uid != 0 && getxattr(path, c"security.capability", &mut value).is_ok_and(|n| n > 0);
    setuid || setgid || gains
}

/// For 64-bit ELF files in this machine's byte order. `None` for a damaged file.
fn elf(file: &OwnedFd) -> Option<Reach> {
    let mut head = [0; 64];
    read(file, 0, &mut head)?;
    if head[4] != 2 || number(&head, 18, 2)? != MACHINE.into() {
        return Some(Reach::Out(Why::OtherMachine));
    }
    let (mut interpreter, mut go, mut musl) = (false, false, false);
    segments(file, |kind, bytes| match kind {
        PT_INTERP => {
            interpreter = true;
            musl = bytes.windows(7).any(|w| w == b"ld-musl");
        }
        // The linker's note with the build id: owner "Go".
        _ => go |= bytes.windows(4).any(|w| w == b"Go\0\0"),
    })?;
    Some(match interpreter {
        _ if go => Reach::Raw(Kind::Go),
        false => Reach::Raw(Kind::Static),
        true if musl => Reach::Raw(Kind::OtherLibc),
        true => Reach::Preload,
    })
}

/// Calls `each` for the interpreter and the notes of a 64-bit ELF file, cut to 4096 bytes. `None` for a damaged file.
fn segments(file: &OwnedFd, mut each: impl FnMut(u32, &[u8])) -> Option<()> {
    let mut head = [0; 64];
    read(file, 0, &mut head)?;
    let (table, size, count) =
        (number(&head, 32, 8)?, number(&head, 54, 2)?, number(&head, 56, 2)?);
    for index in 0..count.min(64) {
        let mut entry = [0; 56];
        read(file, table.checked_add(index * size)?, &mut entry)?;
        let kind = number(&entry, 0, 4)? as u32;
        let mut bytes = [0; 4096];
        let len = usize::try_from(number(&entry, 32, 8)?).ok()?.min(bytes.len());
        let bytes = bytes.get_mut(..len)?;
        if matches!(kind, PT_INTERP | PT_NOTE) && read(file, number(&entry, 8, 8)?, bytes).is_some()
        {
            each(kind, bytes);
        }
    }
    Some(())
}

/// Fills `to`; `None` if the file ends earlier.
fn read(file: &OwnedFd, at: u64, to: &mut [u8]) -> Option<()> {
    (read_some(file, at, to) == to.len()).then_some(())
}

/// Fills `to` as far as the file goes, and returns how far.
fn read_some(file: &OwnedFd, at: u64, to: &mut [u8]) -> usize {
    let mut done = 0;
    while let (Some(room @ [_, ..]), Some(at)) = (to.get_mut(done..), at.checked_add(done as u64)) {
        match pread(file, room, at) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    done
}

/// The number of `len` bytes at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note as the linker lays it out.
    fn laid_out(owner: &str, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [owner.len() + 1, content.len(), 1] {
            bytes.extend(u32::try_from(number).unwrap().to_le_bytes());
        }
        for part in [[owner.as_bytes(), &[0]].concat().as_slice(), content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn a_note_is_found_behind_others_and_never_cut() {
        let notes = [laid_out("GNU", &[1; 20]), laid_out("busypoll", b"abc123")].concat();
        assert_eq!(note_in(&notes, b"busypoll").as_deref(), Some(&b"abc123"[..]));
        assert_eq!(note_in(&notes, b"busy"), None);
        // The two bytes of padding are not part of the content.
        for cut in 0..notes.len() - 2 {
            assert_eq!(note_in(&notes[..cut], b"busypoll"), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_length_beyond_the_file_is_refused() {
        for spoilt in [0, 4] {
            let mut notes = laid_out("busypoll", b"abc123");
            notes[spoilt..spoilt + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(note_in(&notes, b"busypoll"), None);
        }
    }
}
