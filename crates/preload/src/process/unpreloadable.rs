//! Programs that the library cannot be preloaded into: static programs, Go programs, those with file capabilities or
//! set-user-ID. They are started through `busypoll run --child`, which has them supervised, or reports why they are not
//! accelerated, and then executes them.
//!
//! Uses memory that is mapped for this, as the environment does. Nothing here allocates.

use std::ffi::{CStr, c_char};
use std::ptr;

use busypoll_linux::executable::{self, Reach, Why};
use libc::c_void;
use rustix::fs::{Access, access};

use super::{OURS, Strings, mapping, string};

/// The longest path (`PATH_MAX`).
const PATH: usize = 4096;

/// The argument array of the command, in a mapping of its own.
pub struct ChildCommand {
    start: *mut c_void,
    len: usize,
    command: &'static CStr,
}

/// The number of arguments before the program's path and its own arguments from the second on.
const WORDS: usize = 6;

impl ChildCommand {
    /// The command to call for a program that cannot be preloaded. `None`: the program itself is called, also where its
    /// kind is unknown or it cannot be started.
    ///
    /// # Safety
    /// `file` and `argv` are those of exec(3); with `search` `file` is looked up in PATH.
    pub unsafe fn of(file: *const c_char, argv: Strings, search: bool) -> Option<Self> {
        let command: &'static CStr = OURS.get()?.as_ref()?.command.as_deref()?;
        // SAFETY: C strings, by the caller's contract.
        let (file, argv0) =
            unsafe { (string(file)?, string(*(!argv.is_null()).then_some(argv)?)?) };
        let mut buffer = [0; PATH];
        let path = found(file, search, &mut buffer)?;
        match executable::reach(path) {
            Reach::Raw(_) | Reach::Out(Why::Privileged) => {}
            Reach::Preload | Reach::Out(Why::OtherMachine) => return None,
        }
        let mut count = 0;
        // SAFETY: the array ends with a null pointer, and the loop stops there.
        while unsafe { !(*argv.add(count)).is_null() } {
            count += 1;
        }
        let path = path.to_bytes_with_nul();
        let pointers = WORDS + count + 1;
        let len = pointers * size_of::<*const c_char>() + path.len();
        let start = mapping(len)?;
        // SAFETY: the mapping has room for `pointers` pointers, the last of which stays null, and then for the path.
        unsafe {
            let array = start.cast::<*const c_char>();
            let text = array.add(pointers).cast::<u8>();
            ptr::copy_nonoverlapping(path.as_ptr(), text, path.len());
            let words = [
                command.as_ptr(),
                c"run".as_ptr(),
                c"--child".as_ptr(),
                c"--argv0".as_ptr(),
                argv0.as_ptr(),
                c"--".as_ptr(),
            ];
            ptr::copy_nonoverlapping(words.as_ptr(), array, WORDS);
            *array.add(WORDS) = text.cast_const().cast();
            ptr::copy_nonoverlapping(argv.add(1), array.add(WORDS + 1), count - 1);
        }
        Some(Self { start, len, command })
    }

    pub fn path(&self) -> *const c_char {
        self.command.as_ptr()
    }

    pub fn argv(&self) -> Strings {
        self.start.cast_const().cast()
    }
}

impl Drop for ChildCommand {
    /// Runs after an exec that failed, or a spawn.
    fn drop(&mut self) {
        let _errno = crate::errno::Saved::new();
        // SAFETY: the mapping is this value's own, and not read any more.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// The path of an executable program, with a `/` in it, as exec(3) finds it.
fn found<'p>(file: &CStr, search: bool, path: &'p mut [u8; PATH]) -> Option<&'p CStr> {
    if !search || file.to_bytes().contains(&b'/') {
        let folder = if file.to_bytes().contains(&b'/') { &b""[..] } else { b"./" };
        let path = joined([folder, file.to_bytes_with_nul()], path)?;
        return access(path, Access::EXEC_OK).is_ok().then_some(path);
    }
    // SAFETY: the name is a C string; the C library reads the variable in the same way.
    let folders = unsafe { string(libc::getenv(c"PATH".as_ptr())) };
    let folders = folders.map_or(&b"/bin:/usr/bin"[..], CStr::to_bytes);
    let mut folders = folders.split(|byte| *byte == b':');
    let is_there = |folder: &&[u8], path: &mut [u8; PATH]| {
        let path = join(folder, file, path);
        path.is_some_and(|path| access(path, Access::EXEC_OK).is_ok())
    };
    let folder = folders.find(|folder| is_there(folder, path))?;
    join(folder, file, path)
}

fn join<'p>(folder: &[u8], file: &CStr, path: &'p mut [u8; PATH]) -> Option<&'p CStr> {
    let folder = if folder.is_empty() { &b"."[..] } else { folder };
    joined([folder, b"/", file.to_bytes_with_nul()], path)
}

fn joined<'p, const N: usize>(parts: [&[u8]; N], path: &'p mut [u8; PATH]) -> Option<&'p CStr> {
    let mut len = 0;
    for part in parts {
        path.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    CStr::from_bytes_with_nul(path.get(..len)?).ok()
}
