//! The state of a process that `attach` has changed.
#![allow(dead_code)] // each test file uses its own part

use std::os::fd::OwnedFd;

use busypoll_lab::LabHost;
use busypoll_linux::process::{Kind, Process};
use busypoll_linux::{socket, sockopt};

use super::echo::{Running, source};

pub const PORT: u16 = 7000;

pub fn sockets(pid: u32) -> Vec<(i32, OwnedFd)> {
    let process = Process::open(pid).unwrap();
    let found = process.descriptors().unwrap();
    found
        .into_iter()
        .filter(|found| matches!(found.kind, Kind::Socket { .. }))
        .filter_map(|found| Some((found.fd, process.duplicate_fd(found.fd).unwrap()?)))
        .collect()
}

/// `SO_BUSY_POLL` of each TCP and UDP socket that is not loopback's.
pub fn busy_polls(pid: u32) -> Vec<u32> {
    let ip = |taken: &OwnedFd| i32::from(socket::info(taken).unwrap().family) == libc::AF_INET;
    sockets(pid)
        .into_iter()
        .filter(|(_, taken)| ip(taken))
        .map(|(_, taken)| sockopt::busy_poll(taken).unwrap())
        .collect()
}

pub fn port() -> String {
    PORT.to_string()
}

pub fn python(host: &LabHost) -> Running {
    Running::start(host.command("python3").arg(source("echo.py")).arg(port()))
}
