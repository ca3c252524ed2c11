//! A UDP echo directly on an AF_XDP queue, without the stack: `xdp_echo eth1 10.0.0.2:9000`.
//!
//! Shows the NIC trait in about fifty lines, and the least that a round trip can cost on an interface.

use busypoll_stack::nic::{Nic, Queue, xdp::Xdp};
use std::{convert::Infallible, env, error::Error, net::SocketAddr, process::ExitCode};

const UDP: u8 = 17;

fn main() -> ExitCode {
    let Err(error) = echo();
    eprintln!("xdp_echo: {error}");
    ExitCode::from(2)
}

fn echo() -> Result<Infallible, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [interface, address] = &arguments[..] else {
        return Err("usage: xdp_echo INTERFACE ADDRESS:PORT".into());
    };
    let address: SocketAddr = address.parse()?;

    let mut nic = Xdp::open(interface)?;
    println!("{}: {}, echoing UDP to {address}", nic.info().name, nic.info().mode);
    let Queue { mut rx, mut tx, .. } = nic.open(0)?;
    if let Some(steering) = nic.steering() {
        steering.add(UDP, address)?;
    }
    loop {
        let received = rx.poll(64, &mut |frame| {
            // No room: the echo is lost, as on any wire.
            let _ = tx.push(frame.data().len(), false, &mut |to| {
                frame.data().copy_to(to);
                swap_ends(to);
            });
        });
        if received > 0 {
            tx.flush();
        }
    }
}

/// Makes a UDP frame without VLAN tags or IP options its answer: swaps sender and receiver.
/// The IP checksum stays the same; the UDP checksum is left out, as RFC 768 allows.
fn swap_ends(to: &mut [u8]) {
    if let [link @ .., _, _] = &mut to[..14] {
        link.rotate_left(6);
    }
    to[26..34].rotate_left(4);
    to[34..38].rotate_left(2);
    to[40..42].fill(0);
}
