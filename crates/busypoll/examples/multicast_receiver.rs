//! Receives a multicast feed on the stack plane: `multicast_receiver INTERFACE GROUP:PORT`.
//!
//! The kernel joins the group, so switches see the membership as they would see the kernel's own; the datagrams of the
//! group and port come over AF_XDP.

use busypoll::stack::{
    Host, Incoming, UdpSocket,
    nic::{Nic, xdp::Xdp},
    options::{SO_REUSEADDR, SOL_SOCKET},
};
use std::{env, io, net::SocketAddr};

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [interface, group] = &words[..] else {
        eprintln!("usage: multicast_receiver INTERFACE GROUP:PORT");
        return Ok(());
    };
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let socket = join(interface, group.parse().map_err(invalid)?)?;
    receive(&socket, |datagram, from| {
        println!("{from}: {} bytes", datagram.len());
        true
    })
}

/// A socket that receives the group, over the interface.
pub fn join(interface: &str, group: SocketAddr) -> io::Result<UdpSocket> {
    let nic = Xdp::open(interface)?;
    let index = nic.info().ifindex.unwrap_or(0);
    let host = Host::builder().shared_interface(nic).busy_read(50).build()?;
    let socket = UdpSocket::new(&host);
    // Other receivers of the group may use the port, too.
    socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)?;
    socket.bind_to(group)?;
    socket.join_multicast(group.ip(), index)?;
    Ok(socket)
}

/// Hands every datagram to `each` until that returns false. A burst is taken with one call.
pub fn receive(
    socket: &UdpSocket,
    mut each: impl FnMut(&[u8], SocketAddr) -> bool,
) -> io::Result<()> {
    let mut buffers = vec![[0; 2048]; 32];
    loop {
        let mut room: Vec<_> = buffers.iter_mut().map(|buffer| Incoming::new(buffer)).collect();
        let count = socket.recv_many(&mut room)?;
        for datagram in &room[..count] {
            let Some(from) = datagram.from else { continue };
            if !each(&datagram.buffer[..datagram.len], from) {
                return Ok(());
            }
        }
    }
}
