//! Whether the interface still exists. It can disappear while its queues are in use: its driver is unloaded, it is
//! deleted, or moved to another network namespace.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::net::netdevice::index_to_name_inlined;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// include/uapi/linux/rtnetlink.h.
const RTMGRP_LINK: u32 = 1;

/// An interface that is watched.
pub(super) struct LinkWatch {
    index: u32,
    changes: OwnedFd,
}

impl LinkWatch {
    /// Watches the interface with this index, in the network namespace of this process.
    ///
    /// # Errors
    /// No netlink.
    pub(super) fn watch(index: u32) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let changes = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&changes, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
        Ok(Self { index, changes })
    }

    /// Whether the interface has gone. A message about links is only the occasion to check.
    pub(super) fn is_gone(&self) -> bool {
        let mut messages = [0; 4096];
        while recv(&self.changes, &mut messages, RecvFlags::empty()).is_ok() {}
        index_to_name_inlined(&self.changes, self.index).is_err_and(|error| error == Errno::NODEV)
    }
}

impl AsFd for LinkWatch {
    /// Readable when the interface may have gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}
