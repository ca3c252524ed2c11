//! Lines on standard error for the user, each once per cause and program.
//!
//! Neither allocates nor locks nor touches `errno`: it may be called from any point of the program.

mod once;

pub use once::{Once, OncePer};

use std::fmt::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::net::{AddressFamily, sockopt::socket_domain};

/// Writes `busypoll: what` and a newline to standard error, in one write, cut at 500 bytes.
pub fn line(what: fmt::Arguments<'_>) {
    let mut line = Line { text: [0; 500], len: 0 };
    // A line that is too long is cut.
    let _ = line.write_fmt(format_args!("busypoll: {what}"));
    let end = line.len.min(line.text.len() - 1);
    if let Some(last) = line.text.get_mut(end) {
        *last = b'\n';
    }
    if !is_heard() {
        return;
    }
    let stderr = stderr();
    let text = line.text.get(..=end).unwrap_or_default();
    // The reader may be gone. SIGPIPE must not end the program for a line that it has not written itself.
    busypoll_stack::stderr::without_sigpipe(|| {
        rustix::io::write(stderr, text) == Err(rustix::io::Errno::PIPE)
    });
}

fn stderr() -> BorrowedFd<'static> {
    // SAFETY: a closed descriptor 2 is an error of the calls with it and nothing else.
    unsafe { BorrowedFd::borrow_raw(2) }
}

/// Whether a line reaches the user.
fn is_heard() -> bool {
    is_for_lines(stderr())
}

/// The file that was standard error at load time: its device and inode.
static FIRST: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// Called at load time.
pub fn prepare() {
    FIRST.get_or_init(|| named(stderr()).map(|(file, _)| file));
    once::share();
}

fn named(fd: BorrowedFd<'_>) -> Option<((u64, u64), FileType)> {
    let stat = fstat(fd).ok()?;
    Some(((stat.st_dev, stat.st_ino), FileType::from_raw_mode(stat.st_mode)))
}

/// Whether standard error is still that file, or a terminal, a pipe or a log. The program may have closed it and reused
/// the number for a connection or a file. Under inetd it is the connection from the start, and a line in it would be
/// the peer's.
fn is_for_lines(stderr: BorrowedFd<'_>) -> bool {
    let Some((file, kind)) = named(stderr) else { return false };
    if kind == FileType::Socket
        && socket_domain(stderr).is_ok_and(|domain| domain != AddressFamily::UNIX)
    {
        return false;
    }
    FIRST.get().is_none_or(|first| *first == Some(file))
        || match kind {
            FileType::CharacterDevice | FileType::Fifo => true,
            FileType::RegularFile => {
                fcntl_getfl(stderr).is_ok_and(|flags| flags.contains(OFlags::APPEND))
            }
            _ => false,
        }
}

struct Line {
    text: [u8; 500],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.text.get_mut(self.len..).unwrap_or_default();
        let n = s.len().min(room.len());
        for (to, from) in room.iter_mut().zip(s.bytes()) {
            *to = from;
        }
        self.len += n;
        if n < s.len() { Err(fmt::Error) } else { Ok(()) }
    }
}
