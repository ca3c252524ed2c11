//! The list of what an epoll instance watches, as `/proc/PID/fdinfo` shows it.

use std::fs;
use std::os::fd::RawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

/// One entry of an epoll instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Watch {
    /// The number it was added with. The descriptor may have been closed or reused since.
    pub fd: RawFd,
    /// The inode of the watched file. All anonymous files (eventfd, timerfd, epoll) share one.
    pub inode: u64,
    /// Whether it is a socket, whose inode this is.
    pub socket: bool,
    /// The events, `EPOLLIN` and so on.
    pub events: u32,
}

/// `None` if the file is not that of an epoll instance, or cannot be read.
///
/// An instance that watches nothing looks like any other file.
pub(super) fn read(path: &Path) -> Option<Vec<Watch>> {
    let mut list = parse(&fs::read_to_string(path).ok()?, socket_device())?;
    list.sort_unstable();
    Some(list)
}

/// The device number of all sockets, in the kernel's encoding; no device has the number 0.
fn socket_device() -> u64 {
    static DEVICE: OnceLock<u64> = OnceLock::new();
    let device = || {
        let id = rustix::fs::fstat(UnixDatagram::unbound().ok()?).ok()?.st_dev;
        Some(u64::from(rustix::fs::major(id)) << 20 | u64::from(rustix::fs::minor(id)))
    };
    match DEVICE.get() {
        Some(known) => *known,
        // If no descriptor is free, the next call tries again.
        None => device().map_or(0, |known| *DEVICE.get_or_init(|| known)),
    }
}

fn parse(text: &str, sockets: u64) -> Option<Vec<Watch>> {
    text.lines().filter(|line| line.starts_with("tfd:")).map(|line| watch(line, sockets)).collect()
}

/// `tfd:        5 events:       19 data:                5  pos:0 ino:2d1a sdev:9`
fn watch(line: &str, sockets: u64) -> Option<Watch> {
    let field = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split_whitespace().next()
    };
    Some(Watch {
        fd: field("tfd:")?.parse().ok()?,
        inode: u64::from_str_radix(field("ino:")?, 16).ok()?,
        socket: u64::from_str_radix(field("sdev:")?, 16).ok()? == sockets,
        events: u32::from_str_radix(field("events:")?, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read_and_others_refused() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t16\nino:\t1057\n\
            tfd:        7 events: 80000019 data:     7f00deadbeef  pos:0 ino:2d1a sdev:9\n\
            tfd:        5 events:        1 data:                5  pos:0 ino:421 sdev:10\n";
        assert_eq!(
            parse(text, 9),
            Some(vec![
                Watch { fd: 7, inode: 0x2d1a, socket: true, events: 0x8000_0019 },
                Watch { fd: 5, inode: 0x421, socket: false, events: 1 },
            ])
        );
        assert_eq!(parse("pos:\t0\nflags:\t02\n", 9), Some(vec![]));
        assert_eq!(parse("tfd: x events: 1 ino:1 sdev:9", 9), None);
        assert_eq!(parse("tfd: 1", 9), None);
    }
}
