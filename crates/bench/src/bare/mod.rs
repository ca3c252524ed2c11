//! The bare AF_XDP echo: both ends raw rings in copy mode over the lab's veth, no stack at all. What is
//! left is descriptors, buffers and the kernel's copy: the limit of anything over AF_XDP on this NIC.
//!
//! It stands on a ring implementation that is not ours, so that a flaw of ours cannot raise the limit.

mod bpf;
mod memory;

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, LabHost};
use xdpilone::xdp::XdpDesc;
use xdpilone::{DeviceQueue, IfInfo, RingRx, RingTx, Socket, SocketConfig, Umem, UmemConfig};

use crate::clock::Clock;
use crate::slot::{self, Plan, Slot};
use crate::units::Size;
use crate::workload::{Endpoint, PATIENCE};
use bpf::Redirect;
use memory::Memory;

const PORT: u16 = 7;
const HEADERS: usize = 14 + 20 + 8;
const FRAME: u32 = 2048;
/// Frames to receive into, and as many to send from.
const RING: u32 = 64;
const XDP_COPY: u16 = 1 << 1;
const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
/// The kernel frees a socket's queue some time after its last descriptor is closed.
const REBIND: Duration = Duration::from_secs(1);

/// The largest message of a bare arm: one frame at the lab's MTU.
pub const MAX_MESSAGE: usize = 1500 - 20 - 8;

/// Runs the bare arm once.
///
/// # Errors
/// One line.
pub fn run(plan: &Plan<'_>) -> Result<Slot, String> {
    let lab: &Lab = plan.lab.ok_or("needs the lab")?;
    let Size { request, response } = plan.size;
    if request.max(response) > MAX_MESSAGE {
        return Err(format!(
            "one frame carries at most {MAX_MESSAGE} bytes: choose a smaller --size"
        ));
    }
    slot::run(
        plan,
        |announce| {
            let end = Bare::open(&lab.server, &lab.client, plan.clock)?;
            announce.ready(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)));
            Ok(end)
        },
        |_| Bare::open(&lab.client, &lab.server, plan.clock),
    )
}

/// One end. The fields drop in this order: no more frames, then the rings, then their memory.
struct Bare<'a> {
    _redirect: Redirect,
    rx: RingRx,
    tx: RingTx,
    device: DeviceQueue,
    _umem: Umem,
    memory: Memory,
    free: Vec<u64>,
    headers: [u8; HEADERS],
    clock: &'a Clock,
}

impl<'a> Bare<'a> {
    /// Takes over queue 0 of `from`'s interface; to be called inside that host.
    fn open(from: &LabHost, to: &LabHost, clock: &'a Clock) -> Result<Self, String> {
        let name = from.interface();
        let step = |doing: &'static str| {
            move |e: xdpilone::Errno| {
                explain(doing, name, &io::Error::from_raw_os_error(e.get_raw()))
            }
        };
        let memory = Memory::new((2 * RING * FRAME) as usize).ok_or("no memory for packets")?;
        let config = UmemConfig {
            fill_size: RING,
            complete_size: RING,
            frame_size: FRAME,
            headroom: 0,
            flags: 0,
        };
        // SAFETY: the area is page aligned, and `Bare` keeps it until the rings are gone.
        let umem = unsafe { Umem::new(config, memory.area()) }.map_err(step("register memory"))?;
        let mut info = IfInfo::invalid();
        let c_name = CString::new(name).map_err(|_| format!("{name}: not a name"))?;
        info.from_name(&c_name).map_err(step("find the interface"))?;
        let socket = Socket::with_shared(&info, &umem).map_err(step("open an AF_XDP socket"))?;
        let mut device = umem.fq_cq(&socket).map_err(step("make the fill ring"))?;
        let rings = SocketConfig {
            rx_size: NonZeroU32::new(RING),
            tx_size: NonZeroU32::new(RING),
            bind_flags: XDP_COPY | XDP_USE_NEED_WAKEUP,
        };
        let user = umem.rx_tx(&socket, &rings).map_err(step("make the rings"))?;
        let give_up = Instant::now() + REBIND;
        while let Err(e) = umem.bind(&user) {
            if e.get_raw() != libc::EBUSY || Instant::now() > give_up {
                return Err(step("bind to the queue")(e));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let rx = user.map_rx().map_err(step("map the receive ring"))?;
        let tx = user.map_tx().map_err(step("map the transmit ring"))?;
        let mut fill = device.fill(RING);
        fill.insert((0..RING).map(|i| u64::from(i * FRAME)));
        fill.commit();
        drop(fill);
        let redirect = Redirect::attach(from.ifindex(), rx.as_raw_fd())
            .map_err(|e| explain("attach an XDP program", name, &e))?;
        Ok(Self {
            _redirect: redirect,
            rx,
            tx,
            device,
            _umem: umem,
            memory,
            free: (RING..2 * RING).map(|i| u64::from(i * FRAME)).collect(),
            headers: headers(from, to),
            clock,
        })
    }

    /// Takes one frame off the ring; its message's length, none if there is none for us.
    fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut reader = self.rx.receive(1);
        let descriptor = reader.read()?;
        reader.release();
        drop(reader);
        let len = self
            .memory
            .piece(descriptor.addr, descriptor.len as usize)
            .and_then(|frame| message(frame))
            .map(|message| {
                let n = message.len().min(buffer.len());
                buffer[..n].copy_from_slice(&message[..n]);
                n
            });
        let mut fill = self.device.fill(1);
        // The frame's start: the kernel leaves room for headers before the data.
        fill.insert_once(descriptor.addr - descriptor.addr % u64::from(FRAME));
        fill.commit();
        drop(fill);
        if self.device.needs_wakeup() {
            self.device.wake();
        }
        len
    }
}

/// The message in a UDP datagram to our port; none for anybody else's frame.
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

/// Ethernet, IPv4 and UDP headers; lengths and the IPv4 checksum are filled in per message, the UDP
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

/// Fills in what depends on the message's length.
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

impl Endpoint for Bare<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut done = self.device.complete(RING);
        while let Some(frame) = done.read() {
            self.free.push(frame);
        }
        done.release();
        drop(done);
        let addr = self.free.pop().ok_or(io::ErrorKind::WouldBlock)?;
        let len = HEADERS + message.len();
        complete(&mut self.headers, message.len());
        let frame = self.memory.piece(addr, len).filter(|_| len <= FRAME as usize);
        let frame = frame.ok_or(io::ErrorKind::InvalidInput)?;
        frame[..HEADERS].copy_from_slice(&self.headers);
        frame[HEADERS..].copy_from_slice(message);
        let mut writer = self.tx.transmit(1);
        writer.insert_once(XdpDesc { addr, len: len as u32, options: 0 });
        writer.commit();
        drop(writer);
        // In copy mode this call is the transmission.
        if self.tx.needs_wakeup() {
            self.tx.wake();
        }
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let give_up = self.clock.now() + self.clock.ticks(PATIENCE);
        loop {
            if let Some(n) = self.take(buffer) {
                return Ok(Some(n));
            }
            if self.clock.now() > give_up {
                return Ok(None);
            }
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(self.take(buffer))
    }
}

/// Says what failed and what would help.
fn explain(doing: &str, interface: &str, e: &io::Error) -> String {
    let remedy = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            ": needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF outside any user namespace; run with sudo"
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
        // The sum over a header with a right checksum is all ones (RFC 1071).
        let f = frame(b"hello");
        let sum: u32 = f[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn foreign_and_short_frames_are_not_messages() {
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
