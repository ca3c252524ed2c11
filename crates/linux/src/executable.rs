//! What kind of program a file is, as far as that decides who sees its system calls.
//!
//! [`reach`] allocates nothing, and all of it reads through rustix alone: a program may ask between fork and exec.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, getxattr, open, stat};
use rustix::io::pread;
use rustix::path::Arg;
use rustix::process::{getegid, geteuid};

/// How a program can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The loader loads a library before it that is named in `LD_PRELOAD`; also where nothing can be learnt.
    Preload,
    /// It makes its system calls itself: no library sees them.
    Raw(Kind),
    /// Neither, as the system protects it from us.
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

/// A script's interpreter may be a script itself, four times (`fs/exec.c`).
const SCRIPTS: u32 = 4;

/// What the kernel reads of a script (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;

/// How the program in this file can be reached; of a script, its interpreter. `env` is a program that starts another,
/// as any.
pub fn reach(path: impl Arg + Copy) -> Reach {
    look(path, SCRIPTS)
}

fn look(path: impl Arg + Copy, scripts: u32) -> Reach {
    // Anything else could make us wait, and cannot be run.
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !stat(path).is_ok_and(|stat| is_file(&stat)) {
        return Reach::Preload;
    }
    let Ok(file) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        // Executable and not readable: its rights are all there is to learn.
        let privileged = stat(path).is_ok_and(|stat| gains(path, &stat));
        return if privileged { Reach::Out(Why::Privileged) } else { Reach::Preload };
    };
    let mut head = [0; HEAD];
    read_some(&file, 0, &mut head);
    if let Some(interpreter) = interpreter(&mut head) {
        return scripts.checked_sub(1).map_or(Reach::Preload, |left| look(interpreter, left));
    }
    if !head.starts_with(b"\x7fELF") {
        return Reach::Preload;
    }
    if fstat(&file).is_ok_and(|stat| gains(path, &stat)) {
        return Reach::Out(Why::Privileged);
    }
    elf(&file).unwrap_or(Reach::Preload)
}

/// What a program's start ends at, since there is no such file: the interpreter of a script, or of a script that is
/// one, or the loader of a linked program. `None` where nothing is missing.
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

/// What the kernel starts in a program's place.
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

/// The content of the note of this owner (elf(5)) in the ELF file `path`; `None` if there is none.
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
/// a zero, of its content, its kind), the name and the content, both filled up to four bytes.
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

/// Whether the loader will keep our library out of it (`AT_SECURE`, ld.so(8)).
fn gains(path: impl Arg, stat: &Stat) -> bool {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let mode = stat.st_mode;
    let setuid = mode & libc::S_ISUID != 0 && stat.st_uid != uid;
    let setgid = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && stat.st_gid != gid;
    let mut value = [0_u8; 64];
    // Root has every capability already.
    let gains = uid != 0 && getxattr(path, c"security.capability", &mut value).is_ok_and(|n| n > 0);
    setuid || setgid || gains
}

/// 64 bits, this machine's byte order. `None` of a file that is spoilt.
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

/// The interpreter and the notes of a 64-bit ELF file, each as far as it is of use. `None` of a file that is spoilt.
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

/// Fills `to`; `None` if the file ends before.
fn read(file: &OwnedFd, at: u64, to: &mut [u8]) -> Option<()> {
    (read_some(file, at, to) == to.len()).then_some(())
}

/// Fills `to` as far as the file goes: how far.
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
    fn a_note_is_found_behind_others_and_only_whole() {
        let notes = [laid_out("GNU", &[1; 20]), laid_out("busypoll", b"abc123")].concat();
        assert_eq!(note_in(&notes, b"busypoll").as_deref(), Some(&b"abc123"[..]));
        assert_eq!(note_in(&notes, b"busy"), None);
        // The two bytes that fill the content up are not part of it.
        for cut in 0..notes.len() - 2 {
            assert_eq!(note_in(&notes[..cut], b"busypoll"), None, "cut at {cut}");
        }
    }

    #[test]
    fn lengths_beyond_the_file_are_no_note() {
        for spoilt in [0, 4] {
            let mut notes = laid_out("busypoll", b"abc123");
            notes[spoilt..spoilt + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(note_in(&notes, b"busypoll"), None);
        }
    }
}
