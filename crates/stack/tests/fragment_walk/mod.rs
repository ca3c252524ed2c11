//! Arbitrary fragments of a few datagrams of both families, in frames of one buffer and of several, for a test and for the fuzzer: nothing panics, a datagram
//! that is delivered has the bytes that its fragments had, and one that comes unharmed afterwards is delivered.

#[path = "../xdp_support/fragments.rs"]
mod fragments;

use busypoll_stack::{
    inet::{Addressing, BindOptions, Datagram, Inet, Interface, Pass, SocketError, UdpEndpoint},
    napi::PolledBy,
    nic::{Checksum, Frame, Info, RingFull, TxQueue},
    time::Instant,
    wire::{MacAddr, Rest},
};
use fragments::{Ends, datagram, fragment};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Sends nothing.
struct Sink;

impl TxQueue for Sink {
    fn push(
        &mut self,
        len: usize,
        _: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        fill(&mut vec![0; len]);
        Ok(())
    }

    fn flush(&mut self) {}
}

#[derive(Default)]
struct Mailbox(Mutex<Vec<Vec<u8>>>);

impl UdpEndpoint for Mailbox {
    fn datagram(&self, datagram: &Datagram<'_>, _: &mut Pass) -> bool {
        self.0.lock().unwrap().push(datagram.payload.to_vec());
        true
    }

    fn error(&self, _: SocketError, _: SocketAddr, _: &mut Pass) {}
}

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn ends(six: bool) -> Ends {
    let [from, to] =
        if six { ["[fd00::2]:9", "[fd00::1]:7"] } else { ["10.0.0.2:9", "10.0.0.1:7"] };
    [(PEER, from.parse().unwrap()), (MAC, to.parse().unwrap())]
}

/// The data of the datagram with this identification. Each has its own length.
fn data(ident: u32) -> Vec<u8> {
    (0..100 + 60 * ident).map(|at| (at * 7 + ident * 31) as u8).collect()
}

struct Station {
    inet: Arc<Inet>,
    iface: Arc<Interface>,
    mailbox: Arc<Mailbox>,
    now: Instant,
    /// Frames come in buffers of that many bytes.
    buffer: usize,
}

impl Station {
    fn receive(&self, bytes: &[u8]) {
        let mut pass = Pass::new(None, self.now, PolledBy::Interrupt);
        let buffers: Vec<&[u8]> = bytes.chunks(self.buffer).collect();
        let (bytes, rest) = (buffers[0], &buffers[1..]);
        let frame = Frame { bytes, rest: Rest::of(&rest), checksum: Checksum::Unverified };
        self.inet.receive(&self.iface, 0, frame, &mut pass);
    }

    fn delivered(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.mailbox.0.lock().unwrap())
    }
}

/// Four bytes a step: family, datagram and buffers of its frame; offset; length; whether more follow, and how much time passes.
pub fn walk(bytes: &[u8]) {
    let inet = Inet::new(7, Box::new(|_| ()));
    let info = Info {
        name: "walk0".into(),
        mode: "test".into(),
        mac: MAC,
        mtu: 1500,
        queues: 1,
        tx_checksum: false,
        ifindex: None,
    };
    let own = ["10.0.0.1/24", "fd00::1/64"].map(|own| own.parse().unwrap());
    let iface = inet.add_interface(info, vec![Box::new(Sink)], Addressing::Own(own.to_vec()));
    let mailbox = Arc::new(Mailbox::default());
    let bind = |local: &str| {
        inet.udp_bind(local.parse().unwrap(), BindOptions::default(), mailbox.clone()).unwrap()
    };
    let _bound = [bind("10.0.0.1:7"), bind("[fd00::1]:7")];
    // Duplicate address detection is over.
    let mut station = Station {
        inet: inet.clone(),
        iface,
        mailbox: mailbox.clone(),
        now: Instant::from_millis(1),
        buffer: usize::MAX,
    };
    for _ in 0..5 {
        station.now = station.now + Duration::from_secs(1);
        inet.tick(&mut Pass::new(None, station.now, PolledBy::Interrupt));
    }
    for step in bytes.chunks_exact(4) {
        let [which, offset, len, rest] = [0, 1, 2, 3].map(|at| usize::from(step[at]));
        let (six, ident) = (which & 8 != 0, which as u32 & 7);
        station.buffer = match which >> 4 {
            0 => usize::MAX,
            size => 9 * size,
        };
        let whole = datagram(ends(six), &data(ident));
        let start = (offset * 8).min((whole.len() - 1) / 8 * 8);
        let (more, pause) = (rest & 1 != 0, rest as u64 >> 1);
        let end = if more { start + (len * 8).max(8) } else { start + len.max(1) };
        let end = if more { end.min(whole.len() / 8 * 8) } else { end.min(whole.len()) };
        if end > start {
            station.receive(&fragment(ends(six), ident, (start, &whole[start..end]), more));
        }
        if pause > 64 {
            station.now = station.now + Duration::from_secs(pause - 64);
            inet.tick(&mut Pass::new(None, station.now, PolledBy::Interrupt));
        }
        for got in station.delivered() {
            assert!((0..8).any(|ident| data(ident) == got), "{got:?}");
        }
    }
    for six in [false, true] {
        let whole = datagram(ends(six), &data(9));
        for (start, end) in [(400, whole.len()), (0, 200), (200, 400)] {
            let more = end < whole.len();
            station.receive(&fragment(ends(six), 9, (start, &whole[start..end]), more));
        }
        assert!(station.delivered() == [data(9)], "{six}");
    }
}
