//! The cost of the hot paths in nanoseconds: a measurement, run by hand with
//! `cargo test --release -p busypoll-stack --lib cost -- --ignored --nocapture`.

use super::*;
use std::time::Instant as Clock;

/// An endpoint that costs nothing.
struct NullEndpoint;

impl UdpEndpoint for NullEndpoint {
    fn datagram(&self, datagram: &Datagram<'_>, _: &mut Pass) -> bool {
        std::hint::black_box(datagram.payload.len()) > 0
    }

    fn error(&self, _: SocketError, _: SocketAddr, _: &mut Pass) {}
}

/// A queue that keeps one frame.
struct Sink([u8; 2048]);

impl TxQueue for Sink {
    fn push(
        &mut self,
        len: usize,
        _: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        fill(&mut self.0[..len]);
        Ok(())
    }

    fn flush(&mut self) {
        std::hint::black_box(&self.0);
    }
}

fn best_of(mut once: impl FnMut()) -> f64 {
    const TIMES: u32 = 100_000;
    let run = |_| {
        let start = Clock::now();
        (0..TIMES).for_each(|_| once());
        start.elapsed().as_nanos() as f64 / f64::from(TIMES)
    };
    (0..20).map(run).fold(f64::MAX, f64::min)
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_datagram_in_and_out() {
    for tx_checksum in [false, true] {
        let inet = Inet::new(1, Box::new(|_| ()));
        let own = Addressing::Own(vec!["10.0.0.1/24".parse().unwrap()]);
        let info = Info { tx_checksum, ..info(MAC_A) };
        let iface = inet.add_interface(info, vec![Box::new(Sink([0; 2048]))], own);
        let checksum = if tx_checksum { Checksum::Partial } else { Checksum::Unverified };
        let mut pass = Pass::new(None, Instant::ZERO, PolledBy::Interrupt);
        let mut sockets = Vec::new();
        for count in [1u16, 10_000] {
            while sockets.len() < count.into() {
                let local = SocketAddr::from(([0, 0, 0, 0], 10_000 + sockets.len() as u16));
                sockets.push(
                    inet.udp_bind(local, BindOptions::default(), Arc::new(NullEndpoint)).unwrap(),
                );
            }
            let to = format!("10.0.0.1:{}", 10_000 + count - 1);
            for len in [1, 1400] {
                let frame = udp_to_a("10.0.0.2:9", &to, &vec![1; len]);
                let frame = Frame::whole(&frame, checksum);
                let cost = best_of(|| inet.receive(&iface, 0, frame, &mut pass));
                println!("receive {len} B, {count} sockets, {checksum:?}: {cost:.1} ns");
            }
        }
        sockets[0].connect("10.0.0.2:9".parse().unwrap()).unwrap();
        let frame = udp_to_a("10.0.0.2:9", "10.0.0.1:10000", b"x");
        let frame = Frame::whole(&frame, checksum);
        let cost = best_of(|| inet.receive(&iface, 0, frame, &mut pass));
        println!("receive 1 B, connected, {checksum:?}: {cost:.1} ns");
        let arp = arp_frame(arp::Operation::REQUEST, (MAC_B, B), (MAC_A, A));
        inet.receive(&iface, 0, Frame::whole(&arp, checksum), &mut pass);
        let (local, remote) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:9".parse().unwrap());
        let path = inet.path(local, remote, 0, PathOptions::default(), pass.now).unwrap();
        for len in [1, 1400] {
            let payload = vec![1; len];
            let cost = best_of(|| {
                assert!(path.is_current(&inet));
                inet.udp_send(&path, &payload[..], &mut pass).unwrap();
            });
            println!("send {len} B, partial {tx_checksum}: {cost:.1} ns");
        }
    }
}
