//! What an AF_UNIX stream of the kernel's needs to move to a link later.

use super::{common::lock, local_stream_later::Later};
use busypoll_stack::{Source, StreamOffer, WakeSource, stream_ends};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

#[derive(Debug)]
pub struct LocalStream {
    /// It was accepted here; otherwise it has connected.
    pub is_accepted: bool,
    /// The inode number of the socket that has connected; 0: not known yet.
    inode: AtomicU32,
    /// Calls that send or receive, so far.
    calls: AtomicU32,
    /// From how many on it is looked at again.
    due: AtomicU32,
    offer: Mutex<Option<StreamOffer>>,
    /// Fired when it has moved: threads that wait for the kernel's socket begin anew.
    wake: Arc<WakeSource>,
    /// It may move while a thread waits to receive.
    moves_soon: AtomicBool,
    /// What is sent when the kernel has it again.
    pub later: Later,
}

impl LocalStream {
    pub fn new(is_accepted: bool, due: u32) -> LocalStream {
        LocalStream {
            is_accepted,
            inode: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            due: AtomicU32::new(due),
            offer: Mutex::default(),
            wake: Arc::default(),
            moves_soon: AtomicBool::new(false),
            later: Later::default(),
        }
    }

    pub fn set_inode(&self, inode: u32) {
        self.inode.store(inode, Ordering::Relaxed);
    }

    pub fn inode(&self) -> u32 {
        self.inode.load(Ordering::Relaxed)
    }

    /// Its ends, local and remote; `None`: they are not known.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (connected, accepted) = stream_ends(Some(self.inode()).filter(|inode| *inode != 0)?)?;
        Some(if self.is_accepted { (accepted, connected) } else { (connected, accepted) })
    }

    /// Counts a call. Returns whether the stream is to be looked at.
    #[inline]
    pub fn is_due(&self) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        calls >= self.due.load(Ordering::Relaxed)
    }

    pub fn due(&self) -> u32 {
        self.due.load(Ordering::Relaxed)
    }

    /// Returns whether it was `before`.
    pub fn set_due(&self, before: u32, due: u32) -> bool {
        let order = Ordering::Relaxed;
        self.due.compare_exchange(before, due, order, order).is_ok()
    }

    /// The other process can find it, by the inode number of its socket.
    pub fn set_offer(&self, inode: u32, offer: StreamOffer) {
        self.set_inode(inode);
        *lock(&self.offer) = Some(offer);
        self.set_moves_soon();
    }

    pub fn set_moves_soon(&self) {
        self.moves_soon.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub fn moves_soon(&self) -> bool {
        self.moves_soon.load(Ordering::Relaxed)
    }

    pub fn is_offered(&self) -> bool {
        lock(&self.offer).is_some()
    }

    pub fn end_offer(&self) {
        let offer = lock(&self.offer).take();
        drop(offer);
    }

    /// What a thread waits for beside the kernel's socket.
    pub fn wake_source(&self) -> Arc<dyn Source> {
        self.wake.clone()
    }

    /// Threads that wait begin anew.
    pub fn wake(&self) {
        self.wake.fire();
    }
}
