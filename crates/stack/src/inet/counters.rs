//! What inet counts, under the names `nstat` uses (RFC 4293, RFC 4113 and Linux's TcpExt/IpExt) where it
//! has one. Every drop has a cause here.

use crate::sync::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One thing counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count { $($(#[$doc])* $name,)* }

        const NAMES: &[&str] = &[$(stringify!($name),)*];
    };
}

counts! {
    /// Frames shorter than their headers.
    LinkInTruncated,
    /// Frames for another station.
    LinkInOtherHost,
    /// Frames with a VLAN id we have no interface for.
    LinkInVlan,
    /// Frames with more VLAN tags than are looked through.
    LinkInTooManyTags,
    /// Frames that carry neither IP nor ARP, or IPv6 where the interface has no address of it.
    LinkInUnknownProtos,
    /// ARP packets that are malformed or contradict themselves.
    ArpInErrors,
    /// Somebody else uses an address of ours.
    ArpInConflicts,
    /// Requests and replies sent.
    ArpOutPackets,
    /// Neighbours that did not answer.
    NeighFailed,
    /// Packets dropped while their neighbour was unresolved: too many waited, or it never answered.
    NeighDropped,
    /// IP headers that are malformed.
    IpInHdrErrors,
    /// IP packets shorter than they say, or than their headers.
    IpExtInTruncatedPkts,
    /// IP headers of another version than the frame's (`IpInHdrErrors` too).
    IpInBadVersion,
    /// IP headers whose lengths contradict each other (`IpInHdrErrors` too).
    IpInBadLength,
    /// Fragments that cannot be part of any packet (`IpInHdrErrors` too).
    IpInBadFragment,
    /// IP headers with a wrong checksum (`IpInHdrErrors` too).
    IpInCsumErrors,
    /// Source routes, which hosts must not follow unasked.
    IpInSourceRoutes,
    /// Packets for addresses that are not ours.
    IpInAddrErrors,
    /// Packets from addresses that cannot send: groups, loopback, our own.
    IpInMartians,
    /// Packets of protocols nobody here speaks.
    IpInUnknownProtos,
    /// Packets that left in fragments.
    IpFragOKs,
    /// Fragments made.
    IpFragCreates,
    /// Packets that could not leave in fragments.
    IpFragFails,
    /// Fragments received.
    IpReasmReqds,
    /// Packets put together.
    IpReasmOKs,
    /// Packets never put together.
    IpReasmFails,
    /// Of these: the time was over.
    IpReasmTimeout,
    /// Of these: fragments overlapped or contradicted each other.
    IpReasmOverlaps,
    /// Of these: given up for newer ones.
    IpReasmEvicted,
    /// Packets that found the transmit ring full on their way out (replies and queued packets).
    IpOutDiscards,
    /// Packets with no way to their destination.
    IpOutNoRoutes,
    /// IPv6 headers that are malformed, and packets that must be refused for what they ask.
    Ip6InHdrErrors,
    /// IPv6 headers of another version than the frame's (`Ip6InHdrErrors` too).
    Ip6InBadVersion,
    /// IPv6 packets shorter than they say, or than their headers.
    Ip6InTruncatedPkts,
    /// IPv6 packets for addresses that are not ours.
    Ip6InAddrErrors,
    /// IPv6 packets from addresses that cannot send: groups, loopback, mapped ones, our own.
    Ip6InMartians,
    /// IPv6 packets of protocols nobody here speaks.
    Ip6InUnknownProtos,
    /// Somebody else uses an IPv6 address of ours, or wants to.
    Ip6AddrConflicts,
    /// Our IPv6 addresses that somebody else had first, and that are given up.
    Ip6AddrDuplicates,
    /// IPv6 packets that left in fragments.
    Ip6FragOKs,
    /// Fragments made.
    Ip6FragCreates,
    /// IPv6 packets that could not leave in fragments.
    Ip6FragFails,
    /// Fragments received over IPv6.
    Ip6ReasmReqds,
    /// IPv6 packets put together.
    Ip6ReasmOKs,
    /// IPv6 packets never put together.
    Ip6ReasmFails,
    /// Of these: the time was over.
    Ip6ReasmTimeout,
    /// Of these: fragments overlapped or contradicted each other.
    Ip6ReasmOverlaps,
    /// Of these: given up for newer ones.
    Ip6ReasmEvicted,
    /// ICMP messages received.
    IcmpInMsgs,
    /// Malformed ones, and errors about packets that no socket of ours has sent.
    IcmpInErrors,
    /// ICMP messages with a wrong checksum (`IcmpInErrors` too).
    IcmpInCsumErrors,
    /// Pings.
    IcmpInEchos,
    /// Answers to pings.
    IcmpOutEchoReps,
    /// Destination unreachable, received and believed.
    IcmpInDestUnreachs,
    /// Time exceeded, received and believed.
    IcmpInTimeExcds,
    /// Parameter problem, received and believed.
    IcmpInParmProbs,
    /// Destination unreachable, sent.
    IcmpOutDestUnreachs,
    /// Time exceeded, sent.
    IcmpOutTimeExcds,
    /// Errors not sent, to keep within the rate.
    IcmpOutRateLimited,
    /// ICMPv6 messages received.
    Icmp6InMsgs,
    /// Malformed ones, and errors about packets that no socket of ours has sent.
    Icmp6InErrors,
    /// ICMPv6 messages with a wrong checksum (`Icmp6InErrors` too).
    Icmp6InCsumErrors,
    /// Pings over IPv6.
    Icmp6InEchos,
    /// Answers to them.
    Icmp6OutEchoReplies,
    /// Destination unreachable, received and believed.
    Icmp6InDestUnreachs,
    /// Packet too big, received and believed.
    Icmp6InPktTooBigs,
    /// Time exceeded, received and believed.
    Icmp6InTimeExcds,
    /// Parameter problem, received and believed.
    Icmp6InParmProblems,
    /// Errors of kinds unknown here, received and believed.
    Icmp6InUnknownErrors,
    /// Destination unreachable, sent.
    Icmp6OutDestUnreachs,
    /// Time exceeded, sent.
    Icmp6OutTimeExcds,
    /// Parameter problem, sent.
    Icmp6OutParmProblems,
    /// Errors not sent, to keep within the rate.
    Icmp6OutRateLimited,
    /// Who has this address? Received.
    Icmp6InNeighborSolicits,
    /// I have this address. Received.
    Icmp6InNeighborAdvertisements,
    /// Who has this address? Sent.
    Icmp6OutNeighborSolicits,
    /// I have this address. Sent.
    Icmp6OutNeighborAdvertisements,
    /// Datagrams delivered, of both families, as in all that follows.
    UdpInDatagrams,
    /// Of these: with a checksum its sender left to hardware.
    UdpInPartialCsums,
    /// Datagrams for ports where nobody listens.
    UdpNoPorts,
    /// Datagrams not delivered for any other reason.
    UdpInErrors,
    /// Of these: shorter than their header, or than they say.
    UdpInTruncated,
    /// Of these: a length below that of the header.
    UdpInBadLength,
    /// Of these: a wrong checksum.
    UdpInCsumErrors,
    /// Of these: the socket had no room.
    UdpRcvbufErrors,
    /// Datagrams sent.
    UdpOutDatagrams,
    /// Datagrams refused for want of room in the transmit ring.
    UdpSndbufErrors,
    /// Segments received, good ones.
    TcpInSegs,
    /// Of these: with a checksum its sender left to hardware.
    TcpInPartialCsums,
    /// Segments that are malformed, and those of the next count.
    TcpInErrs,
    /// Segments with a wrong checksum.
    TcpInCsumErrors,
    /// Segments sent.
    TcpOutSegs,
    /// RSTs sent.
    TcpOutRsts,
    /// Connections begun here.
    TcpActiveOpens,
    /// Connections begun by others.
    TcpPassiveOpens,
    /// Handshakes that came to nothing.
    TcpAttemptFails,
    /// Connections that ended otherwise than by FINs: out of ESTABLISHED or CLOSE_WAIT.
    TcpEstabResets,
    /// Connections in ESTABLISHED or CLOSE_WAIT at this moment: the only one that also falls.
    TcpCurrEstab,
    /// Segments sent again.
    TcpRetransSegs,
    /// SYN-ACKs that are cookies.
    TcpExtSyncookiesSent,
    /// Cookies that came back.
    TcpExtSyncookiesRecv,
    /// Acknowledgments that looked like cookies, and were none.
    TcpExtSyncookiesFailed,
    /// Handshakes complete while the accept queue was full, and SYNs that found it so.
    TcpExtListenOverflows,
    /// SYNs and handshakes dropped, for that or another reason.
    TcpExtListenDrops,
    /// SYNs that found the SYN queue full and were answered with cookies.
    TcpExtTCPReqQFullDoCookies,
    /// SYNs that found the SYN queue full and were dropped.
    TcpExtTCPReqQFullDrop,
    /// Acknowledgments of SYN-ACKs that brought no data, which the listener waits for (`TCP_DEFER_ACCEPT`).
    TcpExtTCPDeferAcceptDrop,
    /// TIME_WAITs that took their time.
    TcpExtTW,
    /// TIME_WAITs that made room for a connection of ours.
    TcpExtTWRecycled,
    /// Connections that ended without TIME_WAIT, as there were too many.
    TcpExtTCPTimeWaitOverflow,
    /// ICMP errors that quote nothing in flight.
    TcpExtOutOfWindowIcmps,
    /// Segments whose timestamp was from before (PAWS).
    PAWSEstab,
    /// Challenge ACKs (RFC 5961).
    TCPChallengeACK,
    /// SYNs in the midst of a connection.
    TCPSYNChallenge,
    /// Connections reset as data came after close, or by a linger of 0.
    TCPAbortOnData,
    /// Connections reset as data was left unread.
    TCPAbortOnClose,
    /// Connections reset as too many had no socket.
    TCPAbortOnMemory,
    /// Connections given up as the peer did not answer.
    TCPAbortOnTimeout,
    /// Keep-alive probes sent.
    TCPKeepAlive,
}

/// Counts that several threads raise at once: nothing on the path of a good packet.
#[derive(Debug)]
pub(super) struct Counters([AtomicU64; NAMES.len()]);

impl Counters {
    pub(super) fn new() -> Counters {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[cold]
    pub(super) fn add(&self, count: Count) {
        self.add_n(count, 1);
    }

    pub(super) fn add_n(&self, count: Count, n: u64) {
        self.0[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    #[cold]
    pub(super) fn one_less(&self, count: Count) {
        self.0[count as usize].fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }

    pub(super) fn names() -> &'static [&'static str] {
        NAMES
    }

    pub(super) fn all(&self) -> Vec<u64> {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}
