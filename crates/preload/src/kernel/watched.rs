//! The descriptors that an epoll instance watches, from `/proc`. Allocates nothing.

use std::ffi::CStr;
use std::io::Write;

use libc::c_int;
use rustix::fs::{Mode, OFlags, open};

/// Calls `each` for every descriptor that an instance watches (proc(5), `/proc/PID/fdinfo`).
pub fn watched(epoll: c_int, mut each: impl FnMut(c_int)) {
    let mut path = [0; 48];
    // The last byte stays zero.
    let end = path.len() - 1;
    if write!(&mut path[..end], "/proc/thread-self/fdinfo/{epoll}").is_err() {
        return;
    }
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return };
    let Ok(file) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    let (mut buffer, mut line) = ([0; 1024], Line::default());
    while let Ok(len @ 1..) = rustix::io::read(&file, &mut buffer) {
        for byte in buffer.iter().take(len) {
            if let Some(fd) = line.take(*byte) {
                each(fd);
            }
        }
    }
}

/// The beginning of a line.
#[derive(Default)]
struct Line {
    bytes: [u8; 24],
    len: usize,
}

impl Line {
    /// Adds the next byte; returns the descriptor of a line that this byte ends.
    fn take(&mut self, byte: u8) -> Option<c_int> {
        if byte != b'\n' {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = byte;
                self.len += 1;
            }
            return None;
        }
        let line = self.bytes.get(..std::mem::take(&mut self.len))?;
        let rest = str::from_utf8(line).ok()?.strip_prefix("tfd:")?;
        rest.split_whitespace().next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_of_an_instance_are_parsed() {
        let text = "pos:\t0\nflags:\t02\ntfd:        5 events:       19 data: 5  pos:0 ino:2\n\
            tfd:   123456 events: 1\ntfd: x\ntfd:\n\ntfd: 7";
        let mut line = Line::default();
        let found: Vec<c_int> = text.bytes().filter_map(|byte| line.take(byte)).collect();
        assert_eq!(found, [5, 123_456]);
    }
}
