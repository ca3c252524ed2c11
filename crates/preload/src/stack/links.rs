//! Connections to other processes of this machine, over links in memory. A process under busypoll that accepts
//! connections publishes its listeners ([`busypoll_stack::Host::reach_processes`]); a connection to an address of the
//! machine, or of another network namespace of it, at which none is published is the kernel's.

use super::{
    activation::deactivate,
    common::code,
    file::{File, Live, Ref, local_of},
    handover_parent, host, route,
};
use crate::{
    config,
    inside::{Inside, Restart},
};
use busypoll_stack::{TcpStream, is_in_directory, is_published};
use libc::c_int;
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    os::fd::AsRawFd,
    time::Instant,
};

/// So many of the processes that wait for a listener are tried: each may have become busy just now.
const ATTEMPTS: usize = 3;

/// Connects `file`, at `fd`, to a process of this machine.
///
/// # Errors
/// The file, perhaps another one at that descriptor: the kernel connects.
pub fn connect(
    inside: &Inside,
    file: Ref,
    fd: c_int,
    remote: SocketAddr,
) -> Result<io::Result<()>, Ref> {
    if !config::get().is_some_and(|config| config.launch.same_host) {
        return Err(file);
    }
    let Ok(bound) = local_of(&file, fd) else { return Err(file) };
    let local = (bound.port() != 0).then_some(bound);
    // To an address of this network namespace, or, if the policy says so, of another one.
    let is_own = route::is_own(remote.ip());
    let directory = (!is_own).then(|| file.containers(local, Some(remote))).flatten();
    let bound_here = || bound.ip().to_canonical().is_unspecified() || route::is_own(bound.ip());
    // A program that is executed may get standard input, output and error.
    let is_for_links = (directory.is_some() || is_own && bound_here())
        && !(0..=2).contains(&fd)
        && file.is_for_stack(local, Some(remote));
    if !is_for_links {
        return Err(file);
    }
    let is_found = match directory {
        Some(directory) => is_in_directory(directory, remote),
        None => host::existing().is_some() || is_published(remote),
    };
    if !is_found {
        return Err(file);
    }
    let source = directory.and_then(|_| route::source_to_container(remote.ip(), bound.ip()));
    if source.is_none() && !is_own {
        return Err(file);
    }
    let Some(host) = host::existing().or_else(host::for_links) else { return Err(file) };
    let mut file = file;
    for _ in 0..ATTEMPTS {
        let way = match source {
            None => host.way_to(remote),
            Some(source) => host.way_to_container((source, remote)),
        };
        let Some(way) = way else { break };
        let Some(stream) = file.stream(fd, local, (remote, true)) else { break };
        let connect = || stream.connect_over(way.link, (source, remote), way.patience);
        match inside.wait(Restart::Never, connect) {
            Err(failed) if code(&failed) == libc::EINPROGRESS => return Ok(Err(failed)),
            Ok(()) => return Ok(Ok(())),
            // At the request of the process at the other end, whose listener another process may accept from.
            Err(_) if file.is_kernel_owned() => return Ok(Ok(())),
            Err(failed) => {
                file = deactivate(&file);
                let is_refused = failed.kind() == ErrorKind::ConnectionRefused;
                if !host.is_no_way(&way, remote, is_refused) {
                    break;
                }
            }
        }
    }
    Err(file)
}

/// Hands the connection with these ends over to the kernel, at the request of the process at the other end.
pub fn hand_over(local: SocketAddr, remote: SocketAddr) -> bool {
    let is_it = |file: &File| match file.live() {
        Some(Live::Stream(stream)) => !file.is_kernel_owned() && has_ends(stream, local, remote),
        _ => false,
    };
    let found = handover_parent::find(is_it);
    found.is_some_and(|(file, companion)| {
        // That process waits for it.
        let now = Some(Instant::now());
        handover_parent::hand_over(&file, companion.as_raw_fd(), now).is_ok()
    })
}

/// Before a fork, and before a program is `executed`: connections that this process has not accepted become the
/// kernel's, as another process may be the one to accept them.
pub fn give_back(executed: bool) {
    if !executed {
        busypoll_stack::before_fork();
    }
    if config::get().is_some_and(|config| config.launch.same_host)
        && let Some(host) = host::existing()
    {
        host.give_back(executed);
    }
}

fn has_ends(stream: &TcpStream, local: SocketAddr, remote: SocketAddr) -> bool {
    let is = |end: io::Result<SocketAddr>, of: SocketAddr| {
        end.is_ok_and(|end| (end.ip().to_canonical(), end.port()) == (of.ip(), of.port()))
    };
    is(stream.local_addr(), local) && is(stream.peer_addr(), remote)
}
