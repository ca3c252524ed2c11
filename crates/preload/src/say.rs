//! What the library has to say to the user: one line on standard error, once per cause and process.
//!
//! Neither allocates nor locks nor touches `errno`: it is called wherever the program happens to be.

use std::fmt::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that is said at most once: `static NO_SUCH_DEVICE: Once = Once::new();`
pub struct Once(AtomicBool);

impl Once {
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Says it, unless it has been said.
    pub fn say(&self, what: fmt::Arguments<'_>) {
        if !self.0.swap(true, Ordering::Relaxed) {
            say(what);
        }
    }
}

/// Writes `busypoll: what` and a newline to standard error, in one write, cut at 500 bytes.
pub fn say(what: fmt::Arguments<'_>) {
    let mut line = Line { text: [0; 500], len: 0 };
    // A line that is too long is cut.
    let _ = line.write_fmt(format_args!("busypoll: {what}"));
    let end = line.len.min(line.text.len() - 1);
    if let Some(last) = line.text.get_mut(end) {
        *last = b'\n';
    }
    // SAFETY: a closed descriptor 2 is an error of the write below and nothing else.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let text = line.text.get(..=end).unwrap_or_default();
    // Whoever reads there may be gone: the program does not end of what it has not written itself.
    busypoll_stack::say::unheard(|| {
        rustix::io::write(stderr, text) == Err(rustix::io::Errno::PIPE)
    });
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
