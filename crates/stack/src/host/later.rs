//! Work that the host's kernel thread does a fixed time later, and what the kernel says of the connections that need it.

use super::companion::CompanionService;
use crate::{
    sync::{Mutex, lock},
    sys::{get_bytes, get_option, set_option},
    time::{self, Instant},
};
use std::{
    collections::VecDeque, io, net::TcpStream as KernelStream, sync::atomic::Ordering, thread,
    time::Duration,
};

/// The most work that waits.
const MOST: usize = 1024;

/// How late the work may be done.
const PATIENCE: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce() + Send>;

/// Work that waits, in order; `None`: it is being done.
#[derive(Default)]
pub(super) struct Later(Mutex<VecDeque<(Instant, Option<Work>)>>);

impl Later {
    /// How long the thread may sleep.
    pub(super) fn limit(&self) -> Option<Duration> {
        lock(&self.0).front().map(|(at, _)| at.since(time::now()))
    }

    /// Does what is due. For one thread.
    pub(super) fn run(&self) {
        loop {
            let mut waiting = lock(&self.0);
            let due = waiting.front_mut().filter(|(at, _)| *at <= time::now());
            let Some((_, work)) = due else { return };
            let work = work.take();
            drop(waiting);
            if let Some(work) = work {
                work();
            }
            lock(&self.0).pop_front();
        }
    }

    /// Waits until all that waits now is done. Not for the thread that does it; if that one has ended, not for ever.
    fn wait(&self) {
        let Some(last) = lock(&self.0).back().map(|(at, _)| *at) else { return };
        let give_up = last + PATIENCE;
        let is_left = || lock(&self.0).front().is_some_and(|(at, _)| *at <= last);
        while is_left() && time::now() < give_up {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl CompanionService {
    pub(crate) fn has_room_for_later(&self) -> bool {
        lock(&self.state().later.0).len() < MOST
    }

    /// Does `work` after `time`, which is the same for all, in the host's thread.
    pub(crate) fn later(&self, time: Duration, work: impl FnOnce() + Send + 'static) {
        let mut waiting = lock(&self.state().later.0);
        let sleeps = waiting.is_empty();
        waiting.push_back((time::now() + time, Some(Box::new(work))));
        drop(waiting);
        if sleeps {
            self.state().wake();
        }
    }

    /// Waits until all [that is to be done later](CompanionService::later) now is done.
    pub(crate) fn wait_for_later(&self) {
        self.state().later.wait();
    }

    /// Whether child processes [use](Host::connections_are_used) connections of this one.
    pub(crate) fn are_used_elsewhere(&self) -> bool {
        self.state().are_used.load(Ordering::Relaxed)
    }

    /// Whether the packets of an accepted connection of the kernel's come over a shared interface.
    pub(crate) fn comes_over_queues(&self, kernel: &KernelStream) -> bool {
        // For a peer on this machine the kernel names the interface that has the address, and uses loopback.
        if kernel.peer_addr().is_ok_and(|peer| self.has_address(peer.ip().to_canonical())) {
            return false;
        }
        let came_over = interface_of(kernel).ok();
        let is_it = |index: Option<u32>| index.is_some() && index == came_over;
        let mut shared = self.state().shared().iter();
        shared.any(|shared| shared.steering.is_some() && is_it(shared.interface.info().ifindex))
    }
}

/// The interface over which the last segment of an accepted connection's handshake came.
fn interface_of(kernel: &KernelStream) -> io::Result<u32> {
    if get_option(kernel, libc::SOL_SOCKET, libc::SO_DOMAIN)? == libc::AF_INET6 {
        // Set by the kernel for an accepted connection (`tcp_v6_syn_recv_sock`).
        let index = get_option(kernel, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF)?;
        return Ok(index.cast_unsigned());
    }
    set_option(kernel, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    /// include/uapi/linux/in.h: of a stream socket, the control messages of that segment.
    const IP_PKTOPTIONS: i32 = 9;
    let mut bytes = [0; 64];
    let len = get_bytes(kernel, libc::IPPROTO_IP, IP_PKTOPTIONS, &mut bytes);
    set_option(kernel, libc::IPPROTO_IP, libc::IP_PKTINFO, 0)?;
    // A header of 16 bytes, and then `struct in_pktinfo`.
    match (len? >= 20, bytes.get(16..).and_then(|info| info.first_chunk())) {
        (true, Some(index)) => Ok(u32::from_ne_bytes(*index)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
