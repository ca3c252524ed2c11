//! Our UDP socket made of a kernel socket, for a library that moves an existing program's sockets to the stack. bind(2)
//! on the kernel socket has already checked everything about the port.

use super::{Bound, UdpSocket};
use crate::{
    Host,
    inet::BindOptions,
    socket::options::{IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, errno},
    sync::lock,
    sys::get_option,
};
use std::{io, net::UdpSocket as KernelSocket, os::fd::AsFd};

impl UdpSocket {
    /// A socket at the address that `kernel` is bound to, connected to the same peer. `kernel` becomes the companion of
    /// the new socket: it holds the port; datagrams that reach it, also those that came before, are delivered here; and
    /// datagrams that our queues cannot carry are sent by it. Other processes may have descriptors of it, but must not
    /// receive from it.
    ///
    /// Of the options only those that bind(2) uses are copied.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if it is bound to no address of an interface that `host` shares, and what binding can fail
    /// with; no descriptor left.
    #[doc(hidden)]
    pub fn adopt(host: &Host, kernel: &KernelSocket) -> io::Result<UdpSocket> {
        let local = kernel.local_addr()?;
        let socket = UdpSocket::new(host);
        let only_v6 = local.is_ipv6()
            && get_option(kernel, IPPROTO_IPV6, IPV6_V6ONLY).is_ok_and(|on| on != 0);
        for name in [SO_REUSEADDR, SO_REUSEPORT] {
            if get_option(kernel, SOL_SOCKET, name).is_ok_and(|on| on != 0) {
                socket.setsockopt(SOL_SOCKET, name, 1)?;
            }
        }
        socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, only_v6.into())?;
        let inner = &*socket.0;
        let own = KernelSocket::from(kernel.as_fd().try_clone_to_owned()?);
        let companion = match host.kernel() {
            Some(service) => {
                service.adopt(own, (only_v6, host.peers().is_some()), inner.endpoint.clone())?
            }
            None => None,
        };
        let Some(companion) = companion else { return Err(errno(libc::EADDRNOTAVAIL)) };
        // bind(2) has already decided which sockets may share the port.
        let options = BindOptions { reuse_address: true, ..inner.endpoint.options.bind() };
        let inet = host.inet().udp_bind(local, options, inner.endpoint.clone())?;
        let remote = kernel.peer_addr().ok();
        if let Some(remote) = remote {
            inet.connect_from(local.ip(), remote)?;
            inner.endpoint.set_connected(true);
        }
        companion.steer(local)?;
        // Not before: if another process has the port's packets, it also has what the kernel socket receives.
        companion.receive()?;
        let bound = Bound { inet, remote, published: None, kernel: Some(companion) };
        inner.set_ledger_entry(lock(&inner.binding).insert(bound));
        Ok(socket)
    }

    /// Delivers at once the datagrams that the kernel socket of an [adopted](UdpSocket::adopt) socket has received; they
    /// come soon without this call.
    pub fn deliver_queued(&self) {
        if let Some(kernel) = lock(&self.0.binding).as_ref().and_then(|bound| bound.kernel.as_ref())
        {
            kernel.deliver_queued();
        }
    }
}
