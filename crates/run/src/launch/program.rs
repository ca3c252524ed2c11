//! What kind of program it is. Reads files, changes nothing.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::LaunchError;

/// How a program can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The loader loads our library before it.
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

/// A program that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// How it can be reached.
    pub reach: Reach,
}

impl Program {
    /// Finds a program as execvp(3) does, and looks what it is.
    ///
    /// # Errors
    /// Not found, not executable.
    pub fn find(name: &OsStr) -> Result<Self, LaunchError> {
        let path = if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            match fs::metadata(&path) {
                Ok(m) if m.is_file() && m.mode() & 0o111 != 0 => path,
                Ok(_) => return Err(LaunchError::NotExecutable(path)),
                Err(_) => return Err(LaunchError::NotFound(path)),
            }
        } else {
            in_path(name)?
        };
        let reach = look(&path, 0);
        Ok(Self { path, reach })
    }
}

fn in_path(name: &OsStr) -> Result<PathBuf, LaunchError> {
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut unusable = None;
    for folder in env::split_paths(&folders) {
        let path = folder.join(name);
        match fs::metadata(&path) {
            Ok(m) if m.is_file() && m.mode() & 0o111 != 0 => return Ok(path),
            Ok(m) if m.is_file() => unusable = Some(path),
            _ => {}
        }
    }
    Err(match unusable {
        Some(path) => LaunchError::NotExecutable(path),
        None => LaunchError::NotInPath(name.to_string_lossy().into_owned()),
    })
}

/// A script's interpreter may be a script itself, four times (`fs/exec.c`).
const SCRIPTS: u32 = 4;

fn look(path: &Path, depth: u32) -> Reach {
    let (Ok(file), Ok(metadata)) = (File::open(path), fs::metadata(path)) else {
        // Executable and not readable: nothing to be learnt about it.
        return Reach::Preload;
    };
    let mut head = [0; 256];
    let n = (&file).read(&mut head).unwrap_or(0);
    let head = head.get(..n).unwrap_or_default();
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii();
        let interpreter = line.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
        // `env` finds what follows it in PATH.
        let after = line.get(interpreter.len()..).unwrap_or_default().trim_ascii();
        let target = if interpreter.ends_with(b"/env") {
            let name = after.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
            in_path(OsStr::from_bytes(name)).ok()
        } else {
            Some(PathBuf::from(OsString::from_vec(interpreter.to_vec())))
        };
        return match target {
            Some(target) if depth < SCRIPTS => look(&target, depth + 1),
            _ => Reach::Preload,
        };
    }
    if privileged(path, &metadata) {
        return Reach::Out(Why::Privileged);
    }
    Elf::read(&file).map_or(Reach::Preload, |elf| elf.reach())
}

/// Whether the loader will keep our library out of it (`AT_SECURE`, ld.so(8)).
fn privileged(path: &Path, metadata: &fs::Metadata) -> bool {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mode = metadata.mode();
    let setuid = mode & libc::S_ISUID != 0 && metadata.uid() != uid;
    let setgid = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && metadata.gid() != gid;
    let mut value = [0_u8; 64];
    // Root has every capability already.
    let gains = uid != 0
        && rustix::fs::getxattr(path, "security.capability", &mut value).is_ok_and(|n| n > 0);
    setuid || setgid || gains
}

/// The few facts of an ELF file that matter here (elf(5)), 64 bits, this machine's byte order.
struct Elf {
    machine: u16,
    interpreter: Option<Vec<u8>>,
    go: bool,
}

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

impl Elf {
    fn read(file: &File) -> Option<Self> {
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0).ok()?;
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        let machine = u16::from_le_bytes(*head.get(18..20)?.first_chunk()?);
        if head.get(4) != Some(&2) {
            return Some(Self { machine: 0, interpreter: None, go: false });
        }
        let table = u64::from_le_bytes(*head.get(32..40)?.first_chunk()?);
        let size = u16::from_le_bytes(*head.get(54..56)?.first_chunk()?);
        let count = u16::from_le_bytes(*head.get(56..58)?.first_chunk()?);
        let mut elf = Self { machine, interpreter: None, go: false };
        for index in 0..u64::from(count.min(64)) {
            let mut entry = [0; 56];
            file.read_exact_at(&mut entry, table.checked_add(index * u64::from(size))?).ok()?;
            let kind = u32::from_le_bytes(*entry.first_chunk()?);
            let at = u64::from_le_bytes(*entry.get(8..16)?.first_chunk()?);
            let len = u64::from_le_bytes(*entry.get(32..40)?.first_chunk()?);
            let mut bytes = vec![0; usize::try_from(len.min(4096)).ok()?];
            if matches!(kind, PT_INTERP | PT_NOTE) && file.read_exact_at(&mut bytes, at).is_ok() {
                match kind {
                    PT_INTERP => elf.interpreter = Some(bytes),
                    // The linker's note with the build id: owner "Go".
                    _ => elf.go |= bytes.windows(4).any(|w| w == b"Go\0\0"),
                }
            }
        }
        Some(elf)
    }

    fn reach(&self) -> Reach {
        match &self.interpreter {
            _ if self.machine != MACHINE => Reach::Out(Why::OtherMachine),
            _ if self.go => Reach::Raw(Kind::Go),
            None => Reach::Raw(Kind::Static),
            Some(path) if path.windows(7).any(|w| w == b"ld-musl") => Reach::Raw(Kind::OtherLibc),
            Some(_) => Reach::Preload,
        }
    }
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
