//! smoltcp, an independent implementation, as the peer: ARP requests and replies, and datagrams in both directions.

use super::*;
use smoltcp::{
    iface::{Config, Interface as Peer, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::udp as smol,
    time::Instant as PeerInstant,
    wire::{EthernetAddress, IpAddress, IpCidr},
};

#[derive(Default)]
struct Link {
    to_peer: VecDeque<Vec<u8>>,
    to_us: Vec<Vec<u8>>,
}

struct In(Vec<u8>);
struct Out<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for In {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Out<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl Device for Link {
    type RxToken<'a> = In;
    type TxToken<'a> = Out<'a>;

    fn receive(&mut self, _: PeerInstant) -> Option<(In, Out<'_>)> {
        let frame = self.to_peer.pop_front()?;
        Some((In(frame), Out(&mut self.to_us)))
    }

    fn transmit(&mut self, _: PeerInstant) -> Option<Out<'_>> {
        Some(Out(&mut self.to_us))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

#[test]
fn datagrams_are_exchanged_with_smoltcp() {
    let mut a = Station::a();
    let (_binding, mailbox) = a.bind("0.0.0.0:7");
    let mut link = Link::default();
    let config = Config::new(EthernetAddress(MAC_B.0).into());
    let mut peer = Peer::new(config, &mut link, PeerInstant::from_millis(1000));
    peer.update_ip_addrs(|addresses| {
        addresses.push(IpCidr::new(IpAddress::v4(10, 0, 0, 2), 24)).unwrap();
    });
    let buffer =
        || smol::PacketBuffer::new(vec![smol::PacketMetadata::EMPTY; 64], vec![0; 1 << 17]);
    let mut socket = smol::Socket::new(buffer(), buffer());
    socket.bind(9).unwrap();
    let mut sockets = SocketSet::new(Vec::new());
    let handle = sockets.add(socket);

    let mut echoed = 0;
    for round in 0..200usize {
        let payload = vec![round as u8; round * 7];
        // In every other round the peer sends.
        if round % 2 == 0 {
            let path = a.path("0.0.0.0:7", "10.0.0.2:9");
            a.send(&path, &payload).unwrap();
        } else {
            let to = (IpAddress::v4(10, 0, 0, 1), 7);
            sockets.get_mut::<smol::Socket>(handle).send_slice(&payload, to).unwrap();
        }
        for _ in 0..4 {
            a.wait(Duration::from_millis(1));
            link.to_peer.extend(a.sent());
            let now = PeerInstant::from_micros((a.now.nanos() / 1000) as i64);
            peer.poll(now, &mut link, &mut sockets);
            link.to_us.drain(..).for_each(|frame| a.receive(&frame));
        }
        if round % 2 == 0 {
            let socket = sockets.get_mut::<smol::Socket>(handle);
            let (got, from) = socket.recv().unwrap();
            assert_eq!((got, from.endpoint.port), (&payload[..], 7));
        } else {
            assert_eq!(mailbox.take(), [data("10.0.0.2:9", "10.0.0.1:7", &payload)]);
        }
        echoed += 1;
    }
    assert_eq!((echoed, a.count(Count::UdpInErrors)), (200, 0));
    assert_eq!(a.count(Count::NeighFailed), 0);
}
