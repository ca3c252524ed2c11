//! A socket of ours made of the kernel's: for those who bring existing programs' sockets here, after bind(2) has
//! said all that is to be said about the port.

use super::{Bound, UdpSocket};
use crate::{
    Host,
    host::get_option,
    inet::BindOptions,
    socket::options::{IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, errno},
    sync::lock,
};
use std::{io, net::UdpSocket as KernelSocket, os::fd::AsFd};

impl UdpSocket {
    /// A socket at the address that `kernel` is bound to, connected where it is connected. `kernel` becomes the
    /// shadow of the new socket: it holds the port, what reaches it is delivered (also what came before), and what
    /// our queues cannot carry leaves by it. Others may hold descriptors of it; they must not receive from it.
    ///
    /// Options are not taken over but for those that bind(2) looks at.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if it is bound to no address of an interface that `host` shares, and what binding can fail
    /// with; no descriptor left.
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
        let shadow = match host.kernel() {
            Some(service) => service.adopt(own, only_v6, inner.endpoint.clone())?,
            None => None,
        };
        let Some(shadow) = shadow else { return Err(errno(libc::EADDRNOTAVAIL)) };
        // Who may share the port, bind(2) has said.
        let options = BindOptions { reuse_address: true, ..inner.endpoint.options.bind() };
        let inet = host.inet().udp_bind(local, options, inner.endpoint.clone())?;
        let remote = kernel.peer_addr().ok();
        if let Some(remote) = remote {
            inet.connect_from(local.ip(), remote)?;
            inner.endpoint.set_connected(true);
        }
        shadow.steer(local)?;
        let bound = Bound { inet, remote, kernel: Some(shadow) };
        inner.enlist(lock(&inner.binding).insert(bound));
        Ok(socket)
    }
}
