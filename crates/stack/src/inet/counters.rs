//! The counters of inet, under the names that `nstat` uses (RFC 4293, RFC 4113 and Linux's TcpExt/IpExt) where it
//! has one. Every dropped packet is counted by cause.

use crate::{
    ledger::COUNTS,
    published::Published,
    sync::{AtomicU64, Ordering},
};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count { $($(#[$doc])* $name,)* }

        const NAMES: &[&str] = &[$(stringify!($name),)*];
    };
}

counts! {
    /// Frames shorter than their headers.
    LinkInTruncated,
    /// Frames for another host.
    LinkInOtherHost,
    /// Frames of a VLAN: no interface has VLANs.
    LinkInVlan,
    /// Frames with more VLAN tags than are parsed.
    LinkInTooManyTags,
    /// Frames that carry neither IP nor ARP, or IPv6 on an interface without an IPv6 address.
    LinkInUnknownProtos,
    /// Malformed or inconsistent ARP packets.
    ArpInErrors,
    /// ARP packets from another host that uses one of our addresses.
    ArpInConflicts,
    /// ARP requests and replies sent.
    ArpOutPackets,
    /// Neighbours that did not answer.
    NeighFailed,
    /// Packets dropped while their neighbour was unresolved: the queue was full, or it never answered.
    NeighDropped,
    /// Malformed IP headers.
    IpInHdrErrors,
    /// IP packets shorter than their length field or their header.
    IpExtInTruncatedPkts,
    /// IP headers of another version than the frame's (`IpInHdrErrors` too).
    IpInBadVersion,
    /// IP headers whose lengths contradict each other (`IpInHdrErrors` too).
    IpInBadLength,
    /// Fragments that cannot be part of any packet (`IpInHdrErrors` too).
    IpInBadFragment,
    /// IP headers with a wrong checksum (`IpInHdrErrors` too).
    IpInCsumErrors,
    /// Packets with a source route, which a host must not follow by default.
    IpInSourceRoutes,
    /// Packets for addresses that are not ours.
    IpInAddrErrors,
    /// Packets with an invalid source address: multicast, loopback, our own.
    IpInMartians,
    /// Packets of unsupported protocols.
    IpInUnknownProtos,
    /// Packets sent in fragments.
    IpFragOKs,
    /// Fragments created.
    IpFragCreates,
    /// Packets that could not be sent in fragments.
    IpFragFails,
    /// Fragments received.
    IpReasmReqds,
    /// Packets reassembled.
    IpReasmOKs,
    /// Packets whose reassembly failed.
    IpReasmFails,
    /// Of these: timed out.
    IpReasmTimeout,
    /// Of these: fragments overlapped or contradicted each other.
    IpReasmOverlaps,
    /// Of these: evicted for newer ones.
    IpReasmEvicted,
    /// Packets dropped because the transmit ring was full (replies and queued packets).
    IpOutDiscards,
    /// Packets without a route to their destination.
    IpOutNoRoutes,
    /// Malformed IPv6 headers, and packets that their extension headers make us reject.
    Ip6InHdrErrors,
    /// IPv6 headers of another version than the frame's (`Ip6InHdrErrors` too).
    Ip6InBadVersion,
    /// IPv6 packets shorter than their length field or their headers.
    Ip6InTruncatedPkts,
    /// IPv6 packets for addresses that are not ours.
    Ip6InAddrErrors,
    /// IPv6 packets with an invalid source address: multicast, loopback, IPv4-mapped, our own.
    Ip6InMartians,
    /// IPv6 packets of unsupported protocols.
    Ip6InUnknownProtos,
    /// Another host uses one of our IPv6 addresses, or probes for it.
    Ip6AddrConflicts,
    /// Our IPv6 addresses that failed duplicate address detection.
    Ip6AddrDuplicates,
    /// IPv6 packets sent in fragments.
    Ip6FragOKs,
    /// Fragments created.
    Ip6FragCreates,
    /// IPv6 packets that could not be sent in fragments.
    Ip6FragFails,
    /// Fragments received over IPv6.
    Ip6ReasmReqds,
    /// IPv6 packets reassembled.
    Ip6ReasmOKs,
    /// IPv6 packets whose reassembly failed.
    Ip6ReasmFails,
    /// Of these: timed out.
    Ip6ReasmTimeout,
    /// Of these: fragments overlapped or contradicted each other.
    Ip6ReasmOverlaps,
    /// Of these: evicted for newer ones.
    Ip6ReasmEvicted,
    /// ICMP messages received.
    IcmpInMsgs,
    /// Malformed ones, and errors about packets that none of our sockets has sent.
    IcmpInErrors,
    /// ICMP messages with a wrong checksum (`IcmpInErrors` too).
    IcmpInCsumErrors,
    /// Pings received.
    IcmpInEchos,
    /// Replies to pings.
    IcmpOutEchoReps,
    /// Destination unreachable, received and accepted.
    IcmpInDestUnreachs,
    /// Time exceeded, received and accepted.
    IcmpInTimeExcds,
    /// Parameter problem, received and accepted.
    IcmpInParmProbs,
    /// Destination unreachable, sent.
    IcmpOutDestUnreachs,
    /// Time exceeded, sent.
    IcmpOutTimeExcds,
    /// Errors not sent because of the rate limit.
    IcmpOutRateLimited,
    /// ICMPv6 messages received.
    Icmp6InMsgs,
    /// Malformed ones, and errors about packets that none of our sockets has sent.
    Icmp6InErrors,
    /// ICMPv6 messages with a wrong checksum (`Icmp6InErrors` too).
    Icmp6InCsumErrors,
    /// Pings received over IPv6.
    Icmp6InEchos,
    /// Replies to them.
    Icmp6OutEchoReplies,
    /// Destination unreachable, received and accepted.
    Icmp6InDestUnreachs,
    /// Packet too big, received and accepted.
    Icmp6InPktTooBigs,
    /// Time exceeded, received and accepted.
    Icmp6InTimeExcds,
    /// Parameter problem, received and accepted.
    Icmp6InParmProblems,
    /// Errors of unknown types, received and accepted.
    Icmp6InUnknownErrors,
    /// Destination unreachable, sent.
    Icmp6OutDestUnreachs,
    /// Time exceeded, sent.
    Icmp6OutTimeExcds,
    /// Parameter problem, sent.
    Icmp6OutParmProblems,
    /// Errors not sent because of the rate limit.
    Icmp6OutRateLimited,
    /// Neighbour solicitations received.
    Icmp6InNeighborSolicits,
    /// Neighbour advertisements received.
    Icmp6InNeighborAdvertisements,
    /// Neighbour solicitations sent.
    Icmp6OutNeighborSolicits,
    /// Neighbour advertisements sent.
    Icmp6OutNeighborAdvertisements,
    /// Datagrams delivered. This and all counters below cover both families.
    UdpInDatagrams,
    /// Of these: with a partial checksum.
    UdpInPartialCsums,
    /// Datagrams for ports without a socket.
    UdpNoPorts,
    /// Datagrams not delivered for any other reason.
    UdpInErrors,
    /// Of these: shorter than their header or their length field.
    UdpInTruncated,
    /// Of these: a length field below the header's length.
    UdpInBadLength,
    /// Of these: a wrong checksum.
    UdpInCsumErrors,
    /// Of these: the socket's receive buffer was full.
    UdpRcvbufErrors,
    /// Datagrams sent.
    UdpOutDatagrams,
    /// Datagrams refused because the transmit ring was full.
    UdpSndbufErrors,
    /// Valid segments received.
    TcpInSegs,
    /// Of these: with a partial checksum.
    TcpInPartialCsums,
    /// Malformed segments, and those of the next counter.
    TcpInErrs,
    /// Segments with a wrong checksum.
    TcpInCsumErrors,
    /// Segments sent.
    TcpOutSegs,
    /// RSTs sent.
    TcpOutRsts,
    /// Connections opened by this host.
    TcpActiveOpens,
    /// Connections opened by peers.
    TcpPassiveOpens,
    /// Handshakes that failed.
    TcpAttemptFails,
    /// Connections in ESTABLISHED or CLOSE_WAIT that ended without FINs.
    TcpEstabResets,
    /// Connections now in ESTABLISHED or CLOSE_WAIT: the only counter that also decreases.
    TcpCurrEstab,
    /// Segments retransmitted.
    TcpRetransSegs,
    /// SYN-ACKs that are cookies.
    TcpExtSyncookiesSent,
    /// Valid SYN cookies received.
    TcpExtSyncookiesRecv,
    /// Acknowledgments with an invalid SYN cookie.
    TcpExtSyncookiesFailed,
    /// Handshakes completed, and SYNs received, while the accept queue was full.
    TcpExtListenOverflows,
    /// SYNs and handshakes dropped, for that or another reason.
    TcpExtListenDrops,
    /// SYNs answered with cookies because the SYN queue was full.
    TcpExtTCPReqQFullDoCookies,
    /// SYNs dropped because the SYN queue was full.
    TcpExtTCPReqQFullDrop,
    /// Acknowledgments of SYN-ACKs without the data that the listener waits for (`TCP_DEFER_ACCEPT`).
    TcpExtTCPDeferAcceptDrop,
    /// TIME_WAITs that ended by their timer.
    TcpExtTW,
    /// TIME_WAITs recycled for a new connection of ours.
    TcpExtTWRecycled,
    /// Connections that ended without TIME_WAIT because there were too many.
    TcpExtTCPTimeWaitOverflow,
    /// ICMP errors that quote no segment in flight.
    TcpExtOutOfWindowIcmps,
    /// Segments with an old timestamp (PAWS).
    PAWSEstab,
    /// Challenge ACKs (RFC 5961).
    TCPChallengeACK,
    /// SYNs on an established connection.
    TCPSYNChallenge,
    /// Connections reset because data arrived after close, or by a linger of 0.
    TCPAbortOnData,
    /// Connections reset because data was left unread at close.
    TCPAbortOnClose,
    /// Connections reset because too many were orphaned (without a socket).
    TCPAbortOnMemory,
    /// Connections that timed out because the peer did not answer.
    TCPAbortOnTimeout,
    /// Keep-alive probes sent.
    TCPKeepAlive,
    /// Connections that came over the queues and stayed the kernel's at accept.
    TCPLeftToKernel,
    /// Of the connections opened by this host: over a link to another process of the machine.
    TcpLinkActiveOpens,
    /// Of the connections opened by peers: over a link.
    TcpLinkPassiveOpens,
}

/// Why packets were dropped. No two of them count the same packet.
pub const DROPS: &[Count] = &[
    Count::LinkInTruncated,
    Count::LinkInVlan,
    Count::LinkInTooManyTags,
    Count::LinkInUnknownProtos,
    Count::ArpInErrors,
    Count::NeighDropped,
    Count::IpInHdrErrors,
    Count::IpExtInTruncatedPkts,
    Count::IpInSourceRoutes,
    Count::IpInAddrErrors,
    Count::IpInMartians,
    Count::IpInUnknownProtos,
    Count::IpFragFails,
    Count::IpReasmFails,
    Count::IpOutDiscards,
    Count::IpOutNoRoutes,
    Count::Ip6InHdrErrors,
    Count::Ip6InTruncatedPkts,
    Count::Ip6InAddrErrors,
    Count::Ip6InMartians,
    Count::Ip6InUnknownProtos,
    Count::Ip6FragFails,
    Count::Ip6ReasmFails,
    Count::IcmpInErrors,
    Count::Icmp6InErrors,
    Count::UdpNoPorts,
    Count::UdpInTruncated,
    Count::UdpInBadLength,
    Count::UdpInCsumErrors,
    Count::UdpRcvbufErrors,
    Count::UdpSndbufErrors,
    Count::TcpInErrs,
    Count::TcpExtListenDrops,
    Count::TcpExtTCPDeferAcceptDrop,
    Count::PAWSEstab,
];

const _: () = assert!(NAMES.len() <= COUNTS);

impl Count {
    /// Its name.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// Identifies this list of counters: another build may have another one.
pub const fn list_id() -> u64 {
    // FNV-1a over the names.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < NAMES.len() {
        let name = NAMES[at].as_bytes();
        let mut byte = 0;
        while byte <= name.len() {
            let value = if byte < name.len() { name[byte] } else { b' ' };
            hash = (hash ^ value as u64).wrapping_mul(0x0100_0000_01b3);
            byte += 1;
        }
        at += 1;
    }
    hash
}

/// Counters that several threads increment: none is on the fast path of a valid packet.
#[derive(Debug)]
pub(super) struct Counters(Published<[AtomicU64; COUNTS]>);

impl Counters {
    pub(super) fn new() -> Counters {
        Counters::at(Published::private(std::array::from_fn(|_| AtomicU64::new(0))))
    }

    pub(super) fn at(place: Published<[AtomicU64; COUNTS]>) -> Counters {
        Counters(place)
    }

    #[cold]
    pub(super) fn add(&self, count: Count) {
        self.add_n(count, 1);
    }

    pub(super) fn add_n(&self, count: Count, n: u64) {
        self.0[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    #[cold]
    pub(super) fn decrement(&self, count: Count) {
        self.0[count as usize].fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }

    pub(super) fn names() -> &'static [&'static str] {
        NAMES
    }

    pub(super) fn all(&self) -> Vec<u64> {
        self.0.iter().take(NAMES.len()).map(|count| count.load(Ordering::Relaxed)).collect()
    }
}
