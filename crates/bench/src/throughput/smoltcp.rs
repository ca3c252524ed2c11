//! smoltcp over the same cable, for comparison: two of its interfaces, each polled in a loop on a CPU of its
//! own, with windows as large as the rings allow and without checksums, which the cable does not need.
//!
//! Its socket calls are used as in its examples: data is copied from the application's slice to the
//! socket's buffer and from there to the ring, as in the other arms.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant as Clock;

use busypoll_stack::nic::{self, Nic, Queue, TxQueue, cable};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::phy::{RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use super::place::{self, Gauge, Place, RunResult};

const PORT: u16 = 7000;
/// Two thirds of the ring: a frame that does not fit is lost, and smoltcp waits a second for it.
const WINDOW: usize = 1 << 20;
const RING: u32 = 1024;
/// Frames received before the resulting ones are sent.
const BATCH: usize = 64;
const CHUNK: usize = 64 * 1024;

const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

pub(super) fn stream(place: &Place<'_>) -> Result<RunResult, String> {
    let config = cable::Config { mtu: place.mtu, ring: RING, ..cable::Config::default() };
    let (ours, theirs) = cable::pair(config).map_err(|e| e.to_string())?;
    place::stream(
        place,
        |announce, gauge| {
            let mut end = End::new(theirs, RECEIVER)?;
            end.socket().listen(PORT).map_err(|e| format!("listen: {e}"))?;
            announce.ready(SocketAddr::from((RECEIVER, PORT)));
            let mut chunk = vec![0; CHUNK];
            end.run(gauge, |socket| {
                while let Ok(n @ 1..) = socket.recv_slice(&mut chunk) {
                    gauge.add(n as u64);
                }
            });
            Ok(())
        },
        |_, gauge| {
            let mut end = End::new(ours, SENDER)?;
            end.connect()?;
            let chunk = vec![7; CHUNK];
            end.run(gauge, |socket| while let Ok(1..) = socket.send_slice(&chunk) {});
            Ok(())
        },
    )
}

/// One interface with one socket.
struct End {
    queue: Queue,
    mtu: usize,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    start: Clock,
}

impl End {
    fn new(mut nic: cable::Cable, address: Ipv4Addr) -> Result<Self, String> {
        let mac = HardwareAddress::Ethernet(EthernetAddress(nic.info().mac.0));
        let mtu = nic.info().mtu + 14;
        let mut queue = nic.open(0).map_err(|e| e.to_string())?;
        let mut config = Config::new(mac);
        config.random_seed = 1;
        let mut wire = Wire { frame: None, tx: &mut *queue.tx, mtu };
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|all| {
            // There is room for more than one address.
            let _ = all.push(IpCidr::new(IpAddress::Ipv4(address), 24));
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Ok(Self { queue, mtu, interface, sockets, handle, start: Clock::now() })
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn connect(&mut self) -> Result<(), String> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let to = (IpAddress::Ipv4(RECEIVER), PORT);
        socket.connect(self.interface.context(), to, 49152).map_err(|e| format!("connect: {e}"))
    }

    /// Receives frames, lets the application read or write, sends frames; until the run is over.
    fn run(&mut self, gauge: &Gauge, mut work: impl FnMut(&mut tcp::Socket<'static>)) {
        let Self { queue: Queue { rx, tx, .. }, mtu, interface, sockets, handle, start } = self;
        while !gauge.is_over() {
            let now = Instant::from_micros(start.elapsed().as_micros() as i64);
            rx.poll(BATCH, &mut |frame| {
                let mut wire = Wire { frame: Some(frame), tx: &mut **tx, mtu: *mtu };
                interface.poll_ingress_single(now, &mut wire, sockets);
            });
            work(sockets.get_mut(*handle));
            let mut wire = Wire { frame: None, tx: &mut **tx, mtu: *mtu };
            interface.poll_egress(now, &mut wire, sockets);
            tx.flush();
        }
    }
}

/// The cable as a smoltcp device, for one call: possibly one received frame, and the transmit queue.
/// Frames are read and written in the ring.
struct Wire<'a> {
    frame: Option<nic::Frame<'a>>,
    tx: &'a mut dyn TxQueue,
    mtu: usize,
}

struct Rx<'a>(nic::Frame<'a>);
struct Tx<'a>(&'a mut dyn TxQueue);

impl<'f> Device for Wire<'f> {
    type RxToken<'a>
        = Rx<'f>
    where
        Self: 'a;
    type TxToken<'a>
        = Tx<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Rx<'f>, Tx<'_>)> {
        let frame = self.frame.take()?;
        Some((Rx(frame), Tx(&mut *self.tx)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut *self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities.checksum.ipv4 = Checksum::Both;
        capabilities
    }
}

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0.bytes)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut write = Some(write);
        let mut result = None;
        // A full ring drops the frame, as a link would.
        let pushed = self.0.push(len, true, &mut |room| {
            result = write.take().map(|write| write(room));
        });
        match (pushed, result, write) {
            (_, Some(result), _) => result,
            (_, None, Some(write)) => write(&mut vec![0; len]),
            // One of the two is always present.
            (_, None, None) => unreachable!("written twice"),
        }
    }
}
