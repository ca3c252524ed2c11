//! The program's descriptors that are waited for beside a queue.

use super::super::*;
use std::{io::Write, os::fd::AsRawFd, os::unix::net::UnixStream};

#[test]
fn a_look_finds_a_descriptor_only_if_it_is_ready() {
    let mut fds = KernelFds::none();
    assert!(!fds.look() && fds.is_empty());
    let (near, mut far) = UnixStream::pair().unwrap();
    fds.push(near.as_raw_fd(), libc::POLLIN);
    assert!(!fds.look() && !fds.is_empty());
    far.write_all(b"x").unwrap();
    assert!(fds.look());
}
