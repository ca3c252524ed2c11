//! UDP: received datagrams to their socket, and sent ones over a [`Path`].

use super::{
    Inet, Pass, Path, Payload, SendError, SocketError,
    counters::Count,
    demux::Address,
    input::{Arrival, Cast, Inbound},
};
use crate::{
    napi::NapiId,
    nic::Checksum,
    time::Instant,
    wire::{self, Data, Rest, ipv4, udp},
};
use std::net::{IpAddr, SocketAddr};

/// The largest payload of a datagram over IPv4. Over IPv6 it is 20 bytes more, the length of the IPv4 header.
pub const MAX_PAYLOAD: usize = ipv4::MAX_LEN - ipv4::HEADER_LEN - udp::HEADER_LEN;

/// What is known of a received datagram besides its data.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub(crate) len: u32,
    pub(crate) napi: Option<NapiId>,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    pub(crate) arrived: Instant,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Its sender.
    pub from: SocketAddr,
    /// The address and port it was sent to.
    pub to: SocketAddr,
    /// The remaining hops (IPv4's time to live, IPv6's hop limit).
    pub ttl: u8,
    /// IPv4's type of service, IPv6's traffic class.
    pub tos: u8,
    /// Its data, in the ring: valid during the call only.
    pub payload: &'a [u8],
}

/// A socket as inet sees it. Called by the thread that polls the queue, or by a thread that sends a datagram to
/// an address of this Host: the caller of a send must hold no lock of the socket.
pub trait UdpEndpoint: Send + Sync {
    /// A datagram has arrived. False: the receive buffer is full; the datagram is dropped and counted.
    fn datagram(&self, datagram: &Datagram<'_>, pass: &mut Pass) -> bool;

    /// As [`datagram`](UdpEndpoint::datagram), for one whose data lies in several pieces: `rest` follows its payload.
    fn datagram_in_pieces(&self, datagram: &Datagram<'_>, rest: Rest<'_>, pass: &mut Pass) -> bool {
        let payload = Data { first: datagram.payload, rest }.to_vec();
        self.datagram(&Datagram { payload: &payload, ..*datagram }, pass)
    }

    /// Whether the socket accepts datagrams from `source` to the multicast `group` on the interface with index
    /// `interface`.
    fn accepts_group(&self, _group: IpAddr, _interface: u32, _source: IpAddr) -> bool {
        true
    }

    /// An error about a datagram sent to `remote` earlier.
    fn error(&self, error: SocketError, remote: SocketAddr, pass: &mut Pass);
}

impl std::fmt::Debug for dyn UdpEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UdpEndpoint")
    }
}

impl Inet {
    /// Processes a UDP datagram in an IP packet that is for us.
    #[inline(always)]
    pub(super) fn udp_input<'a, P: Inbound<'a>>(
        &self,
        arrival: &Arrival<'_>,
        packet: P,
        cast: Cast,
        pass: &mut Pass,
    ) {
        let udp = match udp::Packet::new_checked(packet.payload()) {
            Ok(udp) => udp,
            Err(error) => return self.udp_malformed(error),
        };
        if !P::CHECKSUM_OPTIONAL && !udp.has_checksum() {
            self.counters.add(Count::UdpInCsumErrors);
            return self.counters.add(Count::UdpInErrors);
        }
        let mut partial = false;
        match arrival.checksum {
            Checksum::Partial => partial = udp.has_checksum(),
            Checksum::Unverified | Checksum::MaybePartial => {
                let addresses = packet.address_sum();
                if udp.verify_checksum(addresses).is_err() {
                    partial = arrival.checksum == Checksum::MaybePartial
                        && udp.has_partial_checksum(addresses);
                    if !partial {
                        self.counters.add(Count::UdpInCsumErrors);
                        return self.counters.add(Count::UdpInErrors);
                    }
                }
            }
        }
        let ports = (udp.src_port(), udp.dst_port());
        let data = udp.payload().into();
        if !self.udp_deliver(arrival, packet, (cast, partial), ports, data, pass) {
            self.counters.add(Count::UdpNoPorts);
            packet.port_unreachable(self, arrival, pass);
        }
    }

    /// Delivers the data of a datagram with a correct checksum. False: no socket has its port.
    #[inline(always)]
    pub(super) fn udp_deliver<'a, P: Inbound<'a>>(
        &self,
        arrival: &Arrival<'_>,
        packet: P,
        (cast, partial): (Cast, bool),
        (src_port, dst_port): (u16, u16),
        data: Data<'_>,
        pass: &mut Pass,
    ) -> bool {
        let scope = arrival.scope();
        let (from, to) = ((packet.src(), src_port), (packet.dst(), dst_port));
        let datagram = Datagram {
            from: from.0.socket(from.1, scope),
            to: to.0.socket(to.1, scope),
            ttl: packet.ttl(),
            tos: packet.tos(),
            payload: data.first,
        };
        if cast == Cast::Multicast {
            self.udp_multicast_deliver::<P>(arrival, (from, to), &datagram, pass);
            return true;
        }
        let expected = pass.expected_socket;
        let deliver = |endpoint: &dyn UdpEndpoint| match data.rest.is_empty() {
            true => endpoint.datagram(&datagram, pass),
            false => endpoint.datagram_in_pieces(&datagram, data.rest, pass),
        };
        let taken = match (arrival.received, expected) {
            (Some(received), Some(expected)) => {
                let last = (P::Address::last(received), expected);
                P::demux(self).find_expected(to, from, last, deliver)
            }
            _ => P::demux(self).find(to, from, deliver),
        };
        match taken {
            Some(true) => match arrival.received {
                Some(received) => {
                    received.udp_datagrams.add(1);
                    if partial {
                        received.udp_partial.add(1);
                    }
                }
                None => self.counters.add(Count::UdpInDatagrams),
            },
            Some(false) => self.udp_rcvbuf_full(),
            None => {}
        }
        taken.is_some()
    }

    /// Delivers a datagram that the kernel's socket has received for `endpoint`.
    pub(crate) fn udp_from_kernel(
        &self,
        endpoint: &dyn UdpEndpoint,
        datagram: &Datagram<'_>,
        pass: &mut Pass,
    ) {
        match endpoint.datagram(datagram, pass) {
            true => self.counters.add(Count::UdpInDatagrams),
            false => self.udp_rcvbuf_full(),
        }
    }

    /// The receive ring had no room for so many datagrams.
    #[cold]
    pub(crate) fn udp_lost(&self, datagrams: u64) {
        self.counters.add_n(Count::UdpRcvbufErrors, datagrams);
        self.counters.add_n(Count::UdpInErrors, datagrams);
    }

    fn udp_multicast_deliver<'a, P: Inbound<'a>>(
        &self,
        arrival: &Arrival<'_>,
        (from, to): ((P::Address, u16), (P::Address, u16)),
        datagram: &Datagram<'_>,
        pass: &mut Pass,
    ) {
        let (mut found, mut taken) = (0, 0);
        let (group, source): (IpAddr, IpAddr) = (to.0.into(), from.0.into());
        let interface = arrival.iface.and_then(|iface| iface.info().ifindex).unwrap_or(0);
        P::demux(self).for_each(to, from, |endpoint| {
            if group.is_multicast() && !endpoint.accepts_group(group, interface, source) {
                return;
            }
            found += 1;
            if endpoint.datagram(datagram, pass) {
                taken += 1;
            } else {
                self.udp_rcvbuf_full();
            }
        });
        match arrival.received {
            Some(received) => received.udp_datagrams.add(taken),
            None => self.counters.add_n(Count::UdpInDatagrams, taken),
        }
        if found == 0 {
            self.counters.add(Count::UdpNoPorts);
        }
    }

    #[cold]
    fn udp_malformed(&self, error: wire::Error) {
        self.counters.add(match error {
            wire::Error::Truncated => Count::UdpInTruncated,
            _ => Count::UdpInBadLength,
        });
        self.counters.add(Count::UdpInErrors);
    }

    #[cold]
    fn udp_rcvbuf_full(&self) {
        self.counters.add(Count::UdpRcvbufErrors);
        self.counters.add(Count::UdpInErrors);
    }

    /// Calls `found` with the socket that receives datagrams from `remote` to `local`.
    pub(super) fn udp_find<R>(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        found: impl FnOnce(&dyn UdpEndpoint) -> R,
    ) -> Option<R> {
        let ports = (local.port(), remote.port());
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                self.demux.find((local, ports.0), (remote, ports.1), found)
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                self.demux6.find((local, ports.0), (remote, ports.1), found)
            }
            _ => None,
        }
    }

    /// Sends one datagram. `Ok` means what it means for a kernel socket: the datagram is on the ring, or queued
    /// for its neighbour, or, over a path to this host, delivered by this thread.
    ///
    /// The path should be current. Over an outdated path the datagram still goes to the old next hop.
    ///
    /// # Errors
    /// `RingFull`, `TooBig`, or `UseKernel` above the MTU of an interface the kernel shares, if fragments are forbidden.
    #[inline]
    pub fn udp_send<P: Payload + ?Sized>(
        &self,
        path: &Path,
        payload: &P,
        pass: &mut Pass,
    ) -> Result<(), SendError> {
        let Some(iface) = path.fast_path(udp::HEADER_LEN + payload.len()) else {
            return self.udp_send_slow(path, payload, pass);
        };
        path.mark_neighbour_used(pass.now);
        let mut tx = iface.transmit(path.queue);
        if path.push_datagram(tx.ring(), payload).is_err() {
            return Err(self.udp_ring_full());
        }
        tx.count_datagram();
        Ok(())
    }

    /// Sends many datagrams over one path, under one lock and with one doorbell. Returns how many were sent
    /// before the first that failed.
    ///
    /// # Errors
    /// As [`udp_send`](Inet::udp_send), if the first datagram fails.
    pub fn udp_send_many<'a, P: Payload + ?Sized + 'a>(
        &self,
        path: &Path,
        payloads: impl IntoIterator<Item = &'a P>,
        pass: &mut Pass,
    ) -> Result<usize, SendError> {
        path.mark_neighbour_used(pass.now);
        let mut payloads = payloads.into_iter();
        let mut sent = 0;
        loop {
            // Datagrams that fit the template go out under one lock; the first that does not takes the slow path.
            let mut slow = None;
            let mut full = false;
            if let Some(iface) = path.fast_path(udp::HEADER_LEN) {
                let mut tx = iface.transmit(path.queue);
                for payload in payloads.by_ref() {
                    if path.fast_path(udp::HEADER_LEN + payload.len()).is_none() {
                        slow = Some(payload);
                        break;
                    }
                    full = path.push_datagram(tx.ring(), payload).is_err();
                    if full {
                        break;
                    }
                    tx.count_datagram();
                    sent += 1;
                }
            } else {
                slow = payloads.next();
            }
            let result = match slow {
                _ if full => Err(self.udp_ring_full()),
                Some(payload) => self.udp_send_slow(path, payload, pass),
                None => return Ok(sent),
            };
            match result {
                Ok(()) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => return Ok(sent),
            }
        }
    }

    #[cold]
    fn udp_ring_full(&self) -> SendError {
        self.counters.add(Count::UdpSndbufErrors);
        SendError::RingFull
    }

    /// Sends to this host, to an unresolved neighbour, in fragments; or anything whose cost does not matter.
    #[cold]
    pub(crate) fn udp_send_slow<P: Payload + ?Sized>(
        &self,
        path: &Path,
        payload: &P,
        pass: &mut Pass,
    ) -> Result<(), SendError> {
        let len = payload.len();
        if let Some(iface) = &path.iface
            && len.saturating_add(udp::HEADER_LEN) > path.max_transport_len()
            && !path.options.discover.fragments()
        {
            // The kernel also queues an error message, if the program has asked for these.
            let shared = iface.kernel().is_some() || iface.same_host().is_some();
            return Err(if shared { SendError::UseKernel } else { SendError::TooBig });
        }
        if len > path.largest_datagram() {
            return Err(SendError::TooBig);
        }
        let packet = path.datagram(payload);
        match &path.iface {
            None => self.local_input(&packet, pass),
            Some(iface) => {
                self.link_output(iface, path.queue, path.next_hop, &packet, path.mtu, pass.now)?
            }
        }
        self.counters.add(Count::UdpOutDatagrams);
        Ok(())
    }
}
