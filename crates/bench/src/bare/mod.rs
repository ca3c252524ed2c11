//! The bare AF_XDP echo: both ends are raw rings in copy mode over the lab's veth, without a stack. It
//! needs only descriptors, buffers and the kernel's copy: the limit of any stack over AF_XDP on this NIC.
//!
//! It uses rings of its own, not the stack's driver, so that a flaw there cannot raise the limit.

mod bpf;
mod rings;
mod socket;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use busypoll_lab::{Lab, LabHost};

use crate::clock::Clock;
use crate::slot::{self, Plan, Slot};
use crate::units::{LAB_MTU, Size};
use crate::workload::{Endpoint, RECEIVE_TIMEOUT};
use bpf::Redirect;
use socket::XdpSocket;

pub(crate) const PORT: u16 = 7;
const HEADERS: usize = 14 + 20 + 8;
/// One message is in flight at a time: few frames stay in the CPU's caches.
const RING: u32 = 64;

/// The largest message of a bare arm: one frame at the lab's MTU.
pub const MAX_MESSAGE: usize = LAB_MTU - 20 - 8;

/// Runs the bare arm once.
///
/// # Errors
/// A message of one line.
pub fn run(plan: &Plan<'_>) -> Result<Slot, String> {
    let lab: &Lab = plan.lab.ok_or("needs the lab")?;
    only_at_the_usual_mtu(plan.mtu)?;
    let Size { request, response } = plan.size;
    if request.max(response) > MAX_MESSAGE {
        return Err(format!(
            "one frame carries at most {MAX_MESSAGE} bytes: choose a smaller --size"
        ));
    }
    slot::run(
        plan,
        |announce| {
            let end = Bare::open(&lab.server, &lab.client, RING)?;
            announce.ready(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)));
            Ok(Echo { end, clock: plan.clock })
        },
        |_| Ok(Echo { end: Bare::open(&lab.client, &lab.server, RING)?, clock: plan.clock }),
    )
}

/// Its rings have one frame for each packet.
pub(crate) fn only_at_the_usual_mtu(mtu: usize) -> Result<(), String> {
    match mtu {
        LAB_MTU => Ok(()),
        _ => Err(format!("its frames are those of MTU {LAB_MTU}; leave --mtu out")),
    }
}

/// One end. The redirection is dropped first, then the socket it leads to.
pub(crate) struct Bare {
    _redirect: Redirect,
    socket: XdpSocket,
    headers: [u8; HEADERS],
}

impl Bare {
    /// Takes over queue 0 of `from`'s interface with `ring` frames each way; must be called inside that host.
    pub(crate) fn open(from: &LabHost, to: &LabHost, ring: u32) -> Result<Self, String> {
        let name = from.interface();
        let socket =
            XdpSocket::open(from.ifindex(), ring).map_err(|(what, e)| explain(what, name, &e))?;
        let redirect = Redirect::attach(from.ifindex(), socket.fd())
            .map_err(|e| explain("attach an XDP program", name, &e))?;
        Ok(Self { _redirect: redirect, socket, headers: headers(from, to) })
    }

    /// Takes one frame off the ring and returns its message's length; none if it has no message for us.
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.socket.receive(|frame| {
            let message = message(frame)?;
            let n = message.len().min(buffer.len());
            buffer[..n].copy_from_slice(&message[..n]);
            Some(n)
        })?
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.push(message)?;
        self.socket.kick()
    }

    /// Sends `message` once for each free frame, with one system call.
    pub(crate) fn send_run(&mut self, message: &[u8]) -> io::Result<()> {
        loop {
            match self.push(message) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return self.socket.kick(),
                Err(e) => return Err(e),
            }
        }
    }

    #[inline]
    fn push(&mut self, message: &[u8]) -> io::Result<()> {
        complete(&mut self.headers, message.len());
        self.socket.push(HEADERS + message.len(), |frame| {
            frame[..HEADERS].copy_from_slice(&self.headers);
            frame[HEADERS..].copy_from_slice(message);
        })
    }
}

/// The message in a UDP datagram to our port; none for any other frame.
fn message(frame: &[u8]) -> Option<&[u8]> {
    let ours = frame.get(12..14)? == [0x08, 0x00]
        && *frame.get(14)? == 0x45
        && *frame.get(23)? == 17
        && frame.get(36..38)? == PORT.to_be_bytes();
    let length = usize::from(u16::from_be_bytes(*frame.get(38..)?.first_chunk()?));
    if !ours {
        return None;
    }
    frame.get(HEADERS..34usize.checked_add(length)?)
}

/// Ethernet, IPv4 and UDP headers. Lengths and the IPv4 checksum are set for each message, the UDP
/// checksum is left out as RFC 768 allows.
fn headers(from: &LabHost, to: &LabHost) -> [u8; HEADERS] {
    let mut h = [0; HEADERS];
    h[0..6].copy_from_slice(&to.mac());
    h[6..12].copy_from_slice(&from.mac());
    h[12..14].copy_from_slice(&[0x08, 0x00]);
    h[14] = 0x45;
    h[22] = 64;
    h[23] = 17;
    h[26..30].copy_from_slice(&from.ipv4().octets());
    h[30..34].copy_from_slice(&to.ipv4().octets());
    h[34..36].copy_from_slice(&PORT.to_be_bytes());
    h[36..38].copy_from_slice(&PORT.to_be_bytes());
    h
}

/// Sets the fields that depend on the message's length.
fn complete(h: &mut [u8; HEADERS], message: usize) {
    let ip_len = (message + 28) as u16;
    h[16..18].copy_from_slice(&ip_len.to_be_bytes());
    h[38..40].copy_from_slice(&(ip_len - 20).to_be_bytes());
    h[24..26].fill(0);
    let sum: u32 = h[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    h[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// An end that waits for the other end's message.
struct Echo<'a> {
    end: Bare,
    clock: &'a Clock,
}

impl Endpoint for Echo<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.end.send(message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let give_up = self.clock.now() + self.clock.ticks(RECEIVE_TIMEOUT);
        loop {
            if let Some(n) = self.end.take(buffer) {
                return Ok(Some(n));
            }
            if self.clock.now() > give_up {
                return Ok(None);
            }
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(self.end.take(buffer))
    }
}

/// The error of a failed call, with the remedy.
fn explain(doing: &str, interface: &str, e: &io::Error) -> String {
    let remedy = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            ": needs CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON outside any user namespace; run with sudo"
        }
        Some(libc::EAFNOSUPPORT) => ": needs a kernel with CONFIG_XDP_SOCKETS",
        Some(libc::ENOBUFS) => ": the limit of locked memory is too low; raise it with ulimit -l",
        _ => "",
    };
    format!("cannot {doing} on {interface}: {e}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut h = [0; HEADERS];
        h[12..14].copy_from_slice(&[8, 0]);
        h[14] = 0x45;
        h[23] = 17;
        h[26..34].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        h[36..38].copy_from_slice(&PORT.to_be_bytes());
        complete(&mut h, payload.len());
        [&h[..], payload].concat()
    }

    #[test]
    fn a_frame_carries_its_message() {
        for payload in [&b"x"[..], &[7; MAX_MESSAGE]] {
            assert_eq!(message(&frame(payload)), Some(payload));
        }
        // The sum over a header with a correct checksum is all ones (RFC 1071).
        let f = frame(b"hello");
        let sum: u32 = f[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn other_and_short_frames_are_not_messages() {
        let good = frame(b"hello");
        for n in 0..good.len() {
            assert_eq!(message(&good[..n]), None, "{n} bytes");
        }
        for (at, byte) in [(12, 0x86), (14, 0x46), (23, 6), (37, 8), (38, 0xff), (39, 3)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(message(&bad), None, "byte {at}");
        }
    }
}
