//! What a UDP socket has to do with other processes of this machine. At a loopback address it is the kernel's, as any
//! program's, until a process asks for its datagrams to go over a link. Then the next call activates it, unless a
//! thread waits for it in the kernel: that one would sleep on there.

use super::common::lock;
use busypoll_stack::{PublishedUdp, time};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long a socket does not look again for a process that takes its datagrams.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// This process has made it, and no other has it.
pub const OWN: u32 = 1;
/// The program has bound it.
pub const BOUND: u32 = 2;
/// A thread has waited for it before it sent anything: a server's.
pub const WAITED: u32 = 4;
pub const SENT: u32 = 8;
/// The kernel's until a link is wanted.
pub const KERNELS: u32 = 16;
/// A link leads to its peer.
pub const WANTED: u32 = 32;
/// Its address is published.
pub const PUBLISHED: u32 = 64;

/// Set in [`KernelWait`]'s word while the socket is activated.
const ACTIVATING: u32 = 1 << 31;

#[derive(Debug, Default)]
pub struct LocalUdp {
    flags: AtomicU32,
    /// The number of threads that may wait for it in the kernel.
    kernel_waits: Arc<AtomicU32>,
    published: Mutex<Option<PublishedUdp>>,
    /// Its address and its peer's, if the kernel has connected it.
    ends: Mutex<Option<(SocketAddr, SocketAddr)>>,
    /// Until then, in nanoseconds, its datagrams are the kernel's without a look.
    kernels_until: AtomicU64,
}

/// A thread that may wait in the kernel.
#[derive(Debug)]
pub struct KernelWait(Arc<AtomicU32>);

/// Another thread activates the socket.
#[derive(Debug)]
pub struct Activating;

impl LocalUdp {
    /// Whether it has one of these flags.
    #[inline]
    pub fn is(&self, flags: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    pub fn set(&self, flags: u32) {
        if !self.is(flags) {
            self.flags.fetch_or(flags, Ordering::Relaxed);
        }
    }

    pub fn clear(&self, flags: u32) {
        self.flags.fetch_and(!flags, Ordering::Release);
    }

    /// Counts the calling thread until the value is dropped; `None`: the socket is never activated meanwhile.
    #[inline]
    pub fn begin_kernel_wait(&self) -> Result<Option<KernelWait>, Activating> {
        if !self.is(KERNELS) {
            return Ok(None);
        }
        let wait = KernelWait(self.kernel_waits.clone());
        match self.kernel_waits.fetch_add(1, Ordering::SeqCst) & ACTIVATING {
            0 => Ok(Some(wait)),
            _ => Err(Activating),
        }
    }

    /// Whether the calling thread may activate it; then no other thread begins to wait in the kernel.
    pub fn begin_activation(&self) -> bool {
        let order = Ordering::SeqCst;
        self.kernel_waits.compare_exchange(0, ACTIVATING, order, order).is_ok()
    }

    /// It was not activated after all.
    pub fn end_activation(&self) {
        self.kernel_waits.fetch_and(!ACTIVATING, Ordering::SeqCst);
    }

    pub fn publish(&self, published: PublishedUdp) {
        self.set(PUBLISHED);
        *lock(&self.published) = Some(published);
    }

    pub fn take_published(&self) -> Option<PublishedUdp> {
        lock(&self.published).take()
    }

    /// Whether another process has a datagram for it.
    pub fn is_asked(&self) -> bool {
        lock(&self.published).as_ref().is_some_and(PublishedUdp::is_asked)
    }

    pub fn set_ends(&self, ends: Option<(SocketAddr, SocketAddr)>) {
        *lock(&self.ends) = ends;
        self.kernels_until.store(0, Ordering::Relaxed);
    }

    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        *lock(&self.ends)
    }

    /// Whether no process was found for its datagrams lately.
    pub fn is_kernels_now(&self) -> bool {
        let until = self.kernels_until.load(Ordering::Relaxed);
        until != 0 && time::now().nanos() < until
    }

    /// No process was found.
    pub fn set_kernels_now(&self) {
        let until = time::now() + LOOK_AGAIN;
        self.kernels_until.store(until.nanos(), Ordering::Relaxed);
    }
}

impl Drop for KernelWait {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_a_thread_waits_for_in_the_kernel_is_not_activated() {
        let udp = LocalUdp::default();
        assert!(udp.begin_kernel_wait().unwrap().is_none());
        udp.set(KERNELS);
        let wait = udp.begin_kernel_wait().unwrap();
        assert!(!udp.begin_activation());
        drop(wait);
        assert!(udp.begin_activation());
        assert!(udp.begin_kernel_wait().is_err());
    }
}
