//! Scripts over a whole host, IPv4 and IPv6: with frames, the tables, the timer wheel, ARP and neighbour discovery.
//! Whatever holds for a bare connection must hold there too.

use super::{
    acks, alive, congestion, faults,
    floor::{ScriptTarget, Sent},
    handshake,
    hosts::{Tape, TestEndpoint},
    loss, nagle, path, records, script, states, timestamps, urgent, windows,
};
use crate::{
    inet::{
        Addressing, Inet, Interface, Pass, SocketError,
        tcp::{
            Config, ConnectOptions, Flow, ListenOptions, Listening, Mark, Ready, TcpOptions,
            connection::State, info::TcpInfo, parse, seq::Seq,
        },
    },
    napi::PolledBy,
    nic::{Checksum, Frame, Info},
    time::Instant,
    wire::{EtherType, MacAddr, Protocol, arp, ethernet, icmp, icmpv6, ipv4, ipv6, ndp, tcp},
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr},
    panic,
    sync::{Arc, atomic::Ordering},
};

/// The IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OUR4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OUR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const PORTS: (u16, u16) = (4000, 80);

impl Family {
    fn ours(self) -> IpAddr {
        if self == Family::V4 { OUR4.into() } else { OUR6.into() }
    }

    fn peers(self) -> IpAddr {
        if self == Family::V4 { PEER4.into() } else { PEER6.into() }
    }
}

/// A host whose only neighbour is played by the script.
pub(super) struct OverInet {
    family: Family,
    inet: Arc<Inet>,
    iface: Arc<Interface>,
    tape: Tape,
    options: TcpOptions,
    flow: Option<Flow>,
    listening: Option<Listening>,
    sent: Vec<Sent>,
}

impl OverInet {
    pub(super) fn new(
        family: Family,
        config: Config,
        mut options: TcpOptions,
        mss: u16,
        now: Instant,
    ) -> OverInet {
        let inet = Inet::with_tcp(7, config, Box::new(|_| {}));
        let tape = Tape::default();
        tape.room.store(u64::MAX, Ordering::Relaxed);
        let (header, own) = match family {
            Family::V4 => (40, "10.0.0.1/24"),
            Family::V6 => (60, "fd00::1/64"),
        };
        // No IPv6 link is as narrow as some scripts need.
        let mtu = (usize::from(mss) + header).max(1280);
        if mtu > usize::from(mss) + header && options.max_segment == 0 {
            options.max_segment = mss;
        }
        let info = Info {
            name: "script".into(),
            mode: "test".into(),
            mac: OUR_MAC,
            mtu,
            queues: 1,
            tx_checksum: false,
            ifindex: None,
        };
        let own = Addressing::Own(vec![own.parse().expect("an address")]);
        let iface = inet.add_interface(info, vec![Box::new(tape.clone())], own);
        let (flow, listening, sent) = (None, None, Vec::new());
        let mut host = OverInet { family, inet, iface, tape, options, flow, listening, sent };
        host.timer(now);
        host
    }

    fn pass(now: Instant) -> Pass<'static> {
        Pass::new(None, now, PolledBy::Interrupt)
    }

    fn receive(&mut self, ethertype: EtherType, packet: &[u8], now: Instant) {
        let mut bytes = vec![0; ethernet::HEADER_LEN + packet.len()];
        let mut frame = ethernet::Frame::init(&mut bytes, OUR_MAC, PEER_MAC, ethertype).unwrap();
        frame.payload_mut().copy_from_slice(packet);
        let mut pass = OverInet::pass(now);
        let frame = Frame::whole(&bytes, Checksum::Unverified);
        self.inet.receive(&self.iface, 0, frame, &mut pass);
        self.inet.end_of_pass(&mut pass);
    }

    /// A packet from the peer.
    fn receive_ip(&mut self, protocol: Protocol, payload: &[u8], congested: bool, now: Instant) {
        let tos = if congested { 3 } else { 0 };
        let mut bytes = vec![0; 40 + payload.len()];
        if self.family == Family::V4 {
            bytes.truncate(20 + payload.len());
            let b = &mut bytes[..];
            let mut ip = ipv4::Packet::init(b, PEER4, OUR4, protocol, payload.len()).unwrap();
            ip.set_tos(tos);
            ip.payload_mut().copy_from_slice(payload);
            self.receive(EtherType::IPV4, &bytes, now);
        } else {
            let b = &mut bytes[..];
            let mut ip = ipv6::Packet::init(b, PEER6, OUR6, protocol, payload.len()).unwrap();
            ip.set_traffic_class(tos);
            ip.set_hop_limit(ndp::HOP_LIMIT);
            ip.payload_mut().copy_from_slice(payload);
            self.receive(EtherType::IPV6, &bytes, now);
        }
    }

    /// The frames that the host has sent: neighbour queries are answered, segments are kept.
    fn collect(&mut self, now: Instant) {
        loop {
            let frames: Vec<_> = self.tape.frames.lock().unwrap().drain(..).collect();
            if frames.is_empty() {
                return;
            }
            for frame in frames {
                let frame = ethernet::Frame::new_checked(&frame[..]).unwrap().untag().unwrap();
                match frame.ethertype {
                    EtherType::ARP => self.answer_arp(frame.payload, now),
                    EtherType::IPV4 => {
                        let ip = ipv4::Packet::new_checked(frame.payload).unwrap();
                        ip.verify_checksum().unwrap();
                        self.keep(ip.payload(), ip.address_sum(), ip.ecn());
                    }
                    _ => {
                        let ip = ipv6::Packet::new_checked(frame.payload).unwrap();
                        match ip.next_header() {
                            Protocol::TCP => self.keep(ip.payload(), ip.address_sum(), ip.ecn()),
                            _ => self.answer_icmp(&ip, now),
                        }
                    }
                }
            }
        }
    }

    fn keep(&mut self, bytes: &[u8], addresses: crate::wire::checksum::Sum, ecn: u8) {
        let packet = tcp::Packet::new_checked(bytes).unwrap();
        packet.verify_checksum(addresses).unwrap();
        assert_eq!((packet.src_port(), packet.dst_port()), PORTS);
        let segment = parse::parse(&packet, false);
        self.sent.push(Sent {
            header: packet.header_len(),
            payload: packet.payload().to_vec(),
            ecn_capable: ecn == 2,
            last: false,
            segment: crate::inet::tcp::segment::Segment {
                seq: segment.seq,
                ack: segment.ack,
                flags: segment.flags,
                window: segment.window,
                urgent: segment.urgent,
                options: segment.options,
                congested: false,
                ..crate::inet::tcp::segment::Segment::default()
            },
        });
    }

    fn answer_arp(&mut self, packet: &[u8], now: Instant) {
        let asked = arp::Packet::new_checked(packet).unwrap();
        if asked.operation() == arp::Operation::REQUEST && asked.target_ip() == PEER4 {
            let mut reply = [0; arp::LEN];
            let (from, to) = ((PEER_MAC, PEER4), (OUR_MAC, OUR4));
            arp::Packet::init(&mut reply, arp::Operation::REPLY, from, to).unwrap();
            self.receive(EtherType::ARP, &reply, now);
        }
    }

    fn answer_icmp(&mut self, ip: &ipv6::Packet<&[u8]>, now: Instant) {
        let message = icmpv6::Packet::new_checked(ip.payload()).unwrap();
        message.verify_checksum(ip.address_sum()).unwrap();
        if let Ok(Some(ndp::Message::NeighborSolicitation { target: PEER6, .. })) =
            ndp::parse(ip, &message)
        {
            let mut reply = [0; ndp::NEIGHBOR_LEN];
            let sum = ipv6::address_sum(PEER6, OUR6);
            ndp::put_neighbor_advertisement(&mut reply, sum, PEER6, PEER_MAC, true, true).unwrap();
            self.receive_ip(Protocol::ICMPV6, &reply, false, now);
        }
    }

    /// An ICMP error that quotes our segment at `quoted`.
    fn receive_error(&mut self, kind: u8, code: u8, rest: u32, quoted: Seq, now: Instant) {
        let header = tcp::Header {
            src_port: PORTS.0,
            dst_port: PORTS.1,
            seq: quoted.0,
            ..Default::default()
        };
        let mut segment = [0; 20];
        tcp::Packet::init(&mut segment, &header, 0).unwrap();
        let mut quote = [0; 60];
        if self.family == Family::V4 {
            let protocol = Protocol::TCP;
            let mut ip = ipv4::Packet::init(&mut quote[..40], OUR4, PEER4, protocol, 20).unwrap();
            ip.payload_mut().copy_from_slice(&segment);
            let mut error = [0; 48];
            icmp::Packet::init_error(&mut error, icmp::Type(kind), code, rest, &quote[..40])
                .unwrap();
            self.receive_ip(Protocol::ICMP, &error, false, now);
        } else {
            let mut ip = ipv6::Packet::init(&mut quote, OUR6, PEER6, Protocol::TCP, 20).unwrap();
            ip.payload_mut().copy_from_slice(&segment);
            let mut error = [0; 68];
            let sum = ipv6::address_sum(PEER6, OUR6);
            let kind = icmpv6::Type(kind);
            icmpv6::Packet::init_error(&mut error, sum, kind, code, rest, &quote).unwrap();
            self.receive_ip(Protocol::ICMPV6, &error, false, now);
        }
    }

    fn flow(&self) -> &Flow {
        self.flow.as_ref().expect("there is a connection")
    }
}

impl ScriptTarget for OverInet {
    fn connect(&mut self, now: Instant) {
        let local = SocketAddr::new(self.family.ours(), PORTS.0);
        let remote = SocketAddr::new(self.family.peers(), PORTS.1);
        let options = ConnectOptions { tcp: self.options, ..ConnectOptions::default() };
        let (endpoint, mut pass) = (Arc::new(TestEndpoint::default()), OverInet::pass(now));
        let flow = self.inet.tcp_connect(local, remote, &options, None, endpoint, &mut pass);
        let flow = flow.expect("a way to the peer");
        flow.send_syn(&mut pass);
        self.flow = Some(flow);
    }

    fn listen(&mut self) {
        let at = SocketAddr::new(self.family.ours(), PORTS.0);
        let options = ListenOptions { tcp: self.options, ..ListenOptions::default() };
        let listening = self.inet.tcp_listen(at, options, None, Arc::new(TestEndpoint::default()));
        self.listening = Some(listening.expect("a free port"));
    }

    fn segment(&mut self, bytes: &mut [u8], congested: bool, now: Instant) {
        bytes[..2].copy_from_slice(&PORTS.1.to_be_bytes());
        bytes[2..4].copy_from_slice(&PORTS.0.to_be_bytes());
        let addresses = match self.family {
            Family::V4 => ipv4::address_sum(PEER4, OUR4),
            Family::V6 => ipv6::address_sum(PEER6, OUR6),
        };
        tcp::Packet::new_checked(&mut *bytes).unwrap().fill_checksum(addresses);
        self.receive_ip(Protocol::TCP, bytes, congested, now);
        if self.flow.is_none() {
            self.flow = self.listening.as_ref().and_then(Listening::accept);
        }
    }

    fn sent(&mut self, now: Instant) -> Vec<Sent> {
        self.collect(now);
        std::mem::take(&mut self.sent)
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        self.inet.tick(&mut OverInet::pass(now))
    }

    fn timer(&mut self, now: Instant) {
        self.inet.tick(&mut OverInet::pass(now));
    }

    fn set_ring_room(&mut self, segments: u64) {
        self.tape.room.store(segments, Ordering::Relaxed);
    }

    fn unreachable(&mut self, error: SocketError, quoted: Seq, now: Instant) {
        use {icmp::code as four, icmpv6::code as six};
        let v4 = self.family == Family::V4;
        let code = match error.errno {
            libc::ENETUNREACH => (four::NET_UNREACHABLE, six::NO_ROUTE),
            libc::EHOSTUNREACH => (four::HOST_UNREACHABLE, six::ADDRESS_UNREACHABLE),
            _ => (four::PORT_UNREACHABLE, six::PORT_UNREACHABLE),
        };
        let (kind, code) = if v4 { (3, code.0) } else { (1, code.1) };
        self.receive_error(kind, code, 0, quoted, now);
    }

    fn too_big(&mut self, mss: u16, quoted: Seq, now: Instant) {
        match self.family {
            Family::V4 => {
                let code = icmp::code::FRAGMENTATION_NEEDED;
                self.receive_error(3, code, u32::from(mss) + 40, quoted, now);
            }
            Family::V6 => self.receive_error(2, 0, u32::from(mss) + 60, quoted, now),
        }
    }

    fn is_listening(&self) -> bool {
        self.flow.is_none() && self.inet.tcp_connections() == 0
    }

    fn send(&mut self, data: &[u8], more: bool, now: Instant) -> io::Result<usize> {
        self.flow().send(&[IoSlice::new(data)], more, &mut OverInet::pass(now))
    }

    fn send_marked(&mut self, data: &[u8], mark: Mark, now: Instant) -> io::Result<usize> {
        let mut pass = OverInet::pass(now);
        self.flow().send_marked(&[IoSlice::new(data)], false, mark, &mut pass)
    }

    fn recv_urgent(&mut self, peek: bool) -> io::Result<Option<u8>> {
        self.flow().recv_urgent(peek)
    }

    fn is_at_mark(&self) -> bool {
        self.flow().is_at_mark()
    }

    fn unread(&self) -> usize {
        self.flow().unread()
    }

    fn ready(&mut self) -> Ready {
        self.flow().ready()
    }

    fn recv(&mut self, into: &mut [u8], now: Instant) -> io::Result<usize> {
        self.flow().recv(&mut [IoSliceMut::new(into)], false, &mut OverInet::pass(now))
    }

    fn shutdown(&mut self, how: Shutdown, now: Instant) {
        self.flow().shutdown(how, &mut OverInet::pass(now)).expect("connected");
    }

    fn close(&mut self, now: Instant) {
        self.flow().close(&mut OverInet::pass(now));
    }

    fn abort(&mut self, now: Instant) {
        self.flow().abort(&mut OverInet::pass(now));
    }

    fn options(&self) -> TcpOptions {
        self.flow().options()
    }

    fn set_options(&mut self, options: TcpOptions, now: Instant) {
        self.flow().set_options(options, &mut OverInet::pass(now));
    }

    fn state(&self) -> State {
        match self.flow().state() {
            // A TIME_WAIT entry has replaced it.
            State::Closed if self.inet.tcp_connections() > 0 => State::TimeWait,
            state => state,
        }
    }

    fn take_error(&mut self) -> Option<i32> {
        self.flow().take_error()
    }

    fn info(&mut self, now: Instant) -> TcpInfo {
        self.flow().info(now)
    }

    fn unacknowledged(&self) -> usize {
        self.flow().unacknowledged()
    }
}

macro_rules! scripts {
    ($($script:path,)*) => { &[$((stringify!($script), $script as fn())),*] };
}

/// Every script.
const SCRIPTS: &[(&str, fn())] = scripts![
    acks::the_first_segments_are_acknowledged_at_once,
    acks::an_answer_carries_the_acknowledgment,
    acks::without_an_answer_the_acknowledgment_comes_after_40_ms,
    acks::every_second_full_segment_is_acknowledged_at_once,
    acks::quick_ack_switches_delays_off_and_on,
    acks::out_of_order_and_hole_filled_are_acknowledged_at_once,
    acks::the_newest_block_comes_first,
    acks::three_sack_blocks_fit_beside_timestamps,
    acks::a_duplicate_is_reported,
    acks::duplicates_are_not_reported_if_switched_off,
    acks::the_new_part_of_a_partly_old_segment_is_taken,
    acks::segments_that_overlap_make_one_stream,
    acks::without_sack_an_acknowledgment_out_of_order_says_only_what_is_missing,
    acks::data_beyond_the_window_is_dropped_and_answered,
    acks::old_acks_are_not_answered,
    acks::two_confused_peers_do_not_answer_each_other_for_ever,
    acks::a_fin_that_comes_again_is_answered_each_time,
    acks::a_peer_without_sack_gets_all_duplicate_acks_despite_a_full_ring,
    acks::a_peer_without_sack_gets_one_duplicate_ack_for_each_segment_of_a_batch,
    records::records_that_wait_together_are_sent_in_separate_segments,
    records::a_long_record_is_cut_at_its_end_and_a_fin_goes_with_the_last,
    records::retransmissions_keep_records_apart,
    urgent::the_byte_before_the_urgent_pointer_is_read_separately,
    urgent::an_urgent_byte_alone_is_no_readable_data,
    urgent::with_oobinline_the_urgent_byte_is_read_in_line_and_a_read_stops_before_it,
    urgent::an_urgent_byte_that_has_yet_to_arrive_blocks_no_call,
    urgent::a_later_urgent_pointer_counts_and_an_old_one_does_not,
    urgent::the_urgent_pointer_is_sent_until_the_urgent_byte_is_acknowledged,
    urgent::every_segment_before_the_urgent_byte_has_the_urgent_pointer,
    nagle::nodelay_sends_data_that_a_cork_holds,
    nagle::nodelay_with_nothing_queued_sends_no_later_data,
    acks::a_fin_on_a_silent_connection_is_acknowledged_at_once,
    acks::old_data_that_comes_with_a_fin_is_not_reported_as_duplicate,
    windows::unsent_data_exceeds_notsent_lowat_by_half_of_the_window_at_most,
    alive::an_idle_connection_is_not_touched,
    alive::keep_alive_probes_an_idle_peer_until_it_answers,
    alive::keep_alive_gives_up_and_resets,
    alive::data_from_the_peer_postpones_keep_alive,
    alive::keep_alive_does_not_probe_while_data_is_in_flight,
    alive::keep_alive_begins_after_two_hours_or_as_configured,
    alive::keep_alive_switched_on_later_works_too,
    alive::a_peer_that_does_not_acknowledge_is_given_up_after_fifteen_minutes,
    alive::with_an_unlimited_rto_max_a_closed_window_ends_no_connection,
    alive::an_icmp_error_is_reported_when_the_connection_times_out,
    alive::user_timeout_gives_up_in_time,
    alive::user_timeout_also_ends_a_connection_that_keeps_writing,
    alive::retransmission_intervals_double,
    alive::rto_min_may_be_a_millisecond,
    alive::rto_min_can_be_set_on_a_connection,
    alive::a_new_keep_idle_counts_the_idle_time_so_far,
    alive::linger_of_zero_resets,
    alive::close_with_data_unread_resets,
    alive::data_that_comes_after_close_is_answered_with_a_reset,
    alive::abort_resets_and_reports_it,
    alive::a_reset_waits_for_room_in_the_ring,
    alive::linger2_of_zero_does_not_wait_in_fin_wait_2,
    alive::an_orphan_whose_peer_vanished_times_out,
    alive::tcp_orphan_retries_limits_the_life_of_an_orphan,
    alive::an_orphan_whose_timeout_has_reached_its_limit_is_given_up,
    alive::an_abort_after_both_fins_resets_only_a_peer_that_lacks_data,
    alive::an_orphan_whose_peer_keeps_its_window_closed_times_out,
    congestion::the_initial_window_is_ten_segments,
    congestion::slow_start_doubles_the_window_each_round_trip,
    congestion::an_ack_of_many_segments_opens_the_window_by_all_of_them,
    congestion::acks_of_parts_of_segments_do_not_open_the_window_faster,
    congestion::an_application_that_sends_little_does_not_open_the_window,
    congestion::slow_start_restarts_after_idle,
    congestion::a_window_that_reopens_after_a_long_time_is_not_filled_at_once,
    congestion::the_algorithm_can_be_changed_on_a_connection,
    congestion::only_new_data_is_ecn_capable,
    congestion::a_ce_mark_is_echoed_until_cwr,
    congestion::the_first_ce_mark_is_acknowledged_at_once,
    congestion::ece_reduces_the_window_once_per_round_trip_and_is_answered_by_cwr,
    congestion::the_first_of_many_segments_carries_cwr,
    congestion::ece_counts_on_data_that_acknowledges_nothing_new,
    congestion::an_undone_reduction_sends_no_cwr,
    congestion::ece_without_negotiated_ecn_is_ignored,
    faults::an_ack_of_data_not_sent_is_answered_and_nothing_else,
    faults::a_syn_in_the_window_is_challenged_and_changes_nothing,
    faults::a_reset_in_the_window_but_not_at_its_edge_is_challenged,
    faults::a_reset_outside_of_the_window_is_not_even_answered,
    faults::data_injected_with_an_ack_out_of_range_is_dropped,
    faults::data_injected_with_an_ack_from_before_the_connection_is_dropped,
    faults::data_injected_with_an_ack_older_than_the_window_is_dropped,
    faults::challenge_acks_are_rate_limited,
    faults::the_number_and_the_pause_of_challenge_acks_are_configured,
    faults::the_right_edge_does_not_move_left_when_the_window_is_rounded_to_its_scale,
    faults::a_fin_out_of_order_is_kept,
    faults::a_fin_with_data_out_of_order_is_kept,
    faults::limited_transmit_sends_new_data_on_duplicate_acks,
    faults::a_partial_ack_sends_the_next_hole_at_once,
    faults::fin_wait_2_of_a_closed_socket_ends,
    faults::fin_wait_2_of_a_socket_that_still_reads_does_not_end,
    faults::small_reads_do_not_open_a_silly_window,
    faults::a_window_of_less_than_a_segment_is_not_filled_with_small_segments,
    faults::a_window_that_shrank_below_what_was_sent_does_not_stall,
    faults::a_fin_alone_in_flight_keeps_its_timeout_through_duplicate_acks,
    faults::one_pass_sends_no_more_than_the_window,
    faults::icmp_about_data_not_in_flight_is_ignored,
    faults::icmp_about_data_in_flight_does_not_end_a_connection_at_once,
    faults::data_behind_a_hole_is_kept,
    faults::acknowledgments_of_large_segments_are_not_delayed,
    faults::an_urgent_flag_does_not_disturb_the_stream,
    faults::segments_without_ack_are_dropped,
    handshake::a_syn_offers_all_that_the_host_allows,
    handshake::a_syn_offers_no_disabled_option,
    handshake::a_syn_ack_takes_only_what_the_syn_offered,
    handshake::a_full_syn_queue_answers_with_a_cookie,
    handshake::a_peer_that_names_no_mss_gets_536,
    handshake::an_mss_below_tcp_min_snd_mss_is_raised,
    handshake::no_setting_makes_segments_too_small_for_their_options,
    handshake::maxseg_limits_both_directions,
    handshake::segments_leave_room_for_timestamps,
    handshake::the_window_of_a_syn_is_not_scaled_and_those_after_it_are,
    handshake::the_window_of_a_syn_ack_in_a_simultaneous_open_is_not_scaled,
    handshake::the_window_of_the_third_ack_is_scaled,
    handshake::no_buffer_needs_a_shift_beyond_14,
    handshake::bytes_acked_counts_the_syn_of_an_active_open,
    handshake::a_syn_is_retransmitted_four_times_linearly_and_then_with_backoff,
    handshake::user_timeout_gives_up_a_connect_sooner,
    handshake::a_syn_ack_is_retransmitted_and_given_up,
    handshake::defer_accept_waits_for_data_without_retransmitting_the_syn_ack,
    handshake::a_syn_of_another_number_in_syn_received_is_answered_by_an_ack,
    handshake::a_syn_that_comes_twice_is_answered_twice,
    handshake::a_syn_ack_that_comes_twice_is_acknowledged_twice,
    handshake::the_third_ack_may_be_lost_if_data_follows_it,
    handshake::the_third_ack_may_carry_a_fin,
    handshake::without_a_round_trip_sample_the_rto_is_a_second,
    handshake::a_syn_ack_that_acknowledges_another_number_is_reset,
    handshake::a_syn_ack_that_echoes_another_timestamp_is_reset,
    handshake::an_ack_of_another_number_in_syn_sent_is_reset,
    handshake::a_reset_without_the_right_ack_does_not_refuse_a_connect,
    handshake::data_does_not_end_a_handshake_nor_does_a_fin,
    handshake::an_ack_of_another_number_in_syn_received_is_reset,
    handshake::icmp_refuses_a_connect_in_flight_and_no_other,
    handshake::data_written_before_the_handshake_ends_waits,
    handshake::ecn_is_requested_only_if_on_and_accepted_if_requested,
    handshake::a_peer_that_mirrors_the_flags_does_not_support_ecn,
    handshake::a_retransmitted_syn_does_not_request_ecn,
    loss::three_segments_sacked_beyond_a_hole_fill_it,
    loss::tcp_info_counts_segments_however_small,
    loss::one_ack_may_report_all_three,
    loss::several_holes_are_filled_in_one_round_trip,
    loss::a_retransmission_that_is_lost_is_sent_again_without_a_timeout,
    loss::reordering_by_less_than_a_quarter_of_a_round_trip_is_no_loss,
    loss::invalid_sack_blocks_are_ignored,
    loss::a_peer_may_renege_on_what_it_sacked,
    loss::a_lost_last_segment_gets_a_tail_probe_before_the_timeout,
    loss::a_tail_probe_sends_new_data_if_there_is_some,
    loss::a_tail_probe_that_has_waited_for_the_ring_is_dropped_once_it_is_acknowledged,
    loss::only_one_tail_probe_is_sent,
    loss::tail_probes_can_be_disabled,
    loss::after_a_timeout_all_data_is_retransmitted_in_slow_start,
    loss::a_timeout_is_undone_if_it_was_spurious,
    loss::frto_sends_a_small_segment_too,
    loss::lost_data_is_retransmitted_at_once_if_no_new_data_can_be_sent,
    loss::a_needless_retransmission_is_undone_by_dsack,
    loss::retransmitted_segments_give_no_round_trip_sample,
    loss::the_timeout_follows_the_round_trip,
    loss::a_loss_halves_the_window_or_nearly,
    loss::recovery_sends_about_one_segment_for_two_that_arrive,
    nagle::a_small_segment_goes_out_when_nothing_is_in_flight,
    nagle::a_second_small_segment_waits_for_the_ack_of_the_first,
    nagle::a_small_segment_does_not_wait_for_full_ones,
    nagle::nodelay_sends_each_write,
    nagle::nodelay_set_later_sends_held_data,
    nagle::a_cork_sends_only_full_segments_until_it_is_removed,
    nagle::a_cork_does_not_hold_data_for_ever,
    nagle::data_from_the_peer_does_not_postpone_held_data,
    nagle::msg_more_holds_data_until_more_comes,
    nagle::a_fin_is_sent_with_held_data,
    nagle::a_full_ring_loses_nothing_and_reorders_nothing,
    nagle::a_burst_cut_short_by_a_full_ring_continues_where_it_ended,
    nagle::a_retransmission_refused_by_a_full_ring_is_sent_later,
    path::a_packet_too_big_is_sent_again_in_smaller_pieces,
    path::the_path_mtu_may_be_the_minimum_of_ipv6,
    path::icmp_does_not_raise_the_path_mtu,
    path::a_smaller_path_mtu_does_not_reduce_the_window,
    path::maxseg_set_after_the_handshake_has_no_effect,
    path::with_nothing_in_flight_icmp_errors_are_ignored,
    path::a_hard_error_is_remembered_only_until_there_is_progress,
    states::closed_to_syn_sent_by_an_active_open,
    states::listen_to_syn_received_by_a_syn,
    states::syn_sent_to_established_by_a_syn_ack,
    states::syn_sent_to_syn_received_by_a_syn_and_on_to_established,
    states::syn_sent_to_closed_by_close,
    states::syn_received_to_established_by_the_ack_of_our_syn,
    states::syn_received_to_fin_wait_1_by_close,
    states::syn_received_to_listen_by_a_reset,
    states::established_to_fin_wait_1_by_close,
    states::fin_wait_1_to_fin_wait_2_by_the_ack_of_our_fin,
    states::fin_wait_2_to_time_wait_by_a_fin_and_to_closed_a_minute_later,
    states::fin_wait_1_to_closing_by_a_fin_and_to_time_wait_by_the_ack,
    states::fin_wait_1_to_time_wait_by_a_fin_that_acknowledges_ours,
    states::established_to_close_wait_by_a_fin,
    states::close_wait_to_last_ack_by_close_and_to_closed_by_the_ack,
    states::time_wait_answers_a_repeated_fin_and_restarts,
    states::after_our_fin_data_is_still_received,
    states::after_the_peers_fin_we_still_send,
    states::close_sends_what_is_queued_before_its_fin,
    states::a_fin_goes_with_the_last_data,
    states::the_last_of_many_full_segments_has_psh_and_the_fin,
    states::a_fin_with_data_is_received_with_it,
    states::a_lost_fin_is_retransmitted,
    states::a_reset_ends_every_state,
    states::a_refused_connect_reports_econnrefused,
    timestamps::our_clock_ticks_each_millisecond,
    timestamps::every_segment_has_our_timestamp_and_echoes_the_peers,
    timestamps::a_receiver_measures_the_round_trip_by_the_echoed_timestamps,
    timestamps::the_timestamp_of_a_segment_behind_a_hole_is_not_echoed,
    timestamps::an_echo_that_acknowledges_nothing_new_is_no_sample,
    timestamps::the_echo_is_of_the_segment_that_advanced_the_acknowledgment,
    timestamps::a_hole_keeps_the_echo_from_before_it,
    timestamps::an_old_segment_is_dropped_and_answered,
    timestamps::the_peers_clock_may_wrap,
    timestamps::a_reset_is_not_subject_to_paws,
    timestamps::after_24_days_the_last_timestamp_is_invalid,
    timestamps::with_timestamps_retransmissions_give_round_trip_samples,
    timestamps::a_segment_without_timestamps_is_accepted_as_in_linux,
    timestamps::an_echo_from_the_future_gives_no_round_trip_sample,
    windows::a_closed_window_is_probed_ever_more_rarely,
    windows::probes_go_on_as_long_as_they_are_answered,
    windows::probes_continue_after_their_counter_is_saturated,
    windows::unanswered_probes_end_in_a_timeout,
    windows::an_old_acknowledgment_is_no_answer_to_a_probe,
    windows::a_window_still_too_small_for_a_segment_does_not_bring_the_next_probe_forward,
    windows::a_window_that_opens_lets_data_out_at_once,
    windows::a_window_that_opens_by_less_than_a_segment_is_used_when_the_probe_is_due,
    windows::an_older_segment_does_not_bring_its_window_back,
    windows::an_older_acknowledgment_does_not_bring_its_window_back,
    windows::a_window_that_closes_is_respected,
    windows::a_tail_probe_stays_within_a_window_that_shrank,
    windows::acknowledgments_stay_within_a_window_that_shrank,
    windows::a_small_window_is_used_in_halves,
    windows::a_fin_waits_for_the_window_and_is_probed_for,
    windows::a_reader_that_stops_closes_our_window_and_one_that_starts_opens_it,
    windows::a_probe_of_our_closed_window_is_answered_and_its_byte_not_kept,
    windows::acknowledgments_that_come_while_our_window_is_closed_still_count,
    windows::the_window_grows_while_a_stream_is_read,
    windows::a_fixed_buffer_does_not_grow,
    windows::without_tcp_moderate_rcvbuf_no_window_grows,
];

/// No path of IPv6 is narrower than 1280 bytes.
const NOT_OVER_IPV6: &str = "path::a_packet_too_big_is_sent_again_in_smaller_pieces";

fn every_script_over(family: Family) {
    let failed: Vec<_> = SCRIPTS
        .iter()
        .filter(|(name, _)| family == Family::V4 || *name != NOT_OVER_IPV6)
        .filter(|(_, script)| panic::catch_unwind(|| script::over(family, *script)).is_err())
        .map(|(name, _)| name)
        .collect();
    assert!(failed.is_empty(), "over {family:?} these fail: {failed:#?}");
}

#[test]
fn every_script_holds_over_ipv4() {
    every_script_over(Family::V4);
}

#[test]
fn every_script_holds_over_ipv6() {
    every_script_over(Family::V6);
}

#[test]
fn every_script_is_in_the_list() {
    let files = [
        ("acks", include_str!("acks.rs")),
        ("alive", include_str!("alive.rs")),
        ("congestion", include_str!("congestion.rs")),
        ("faults", include_str!("faults.rs")),
        ("handshake", include_str!("handshake.rs")),
        ("loss", include_str!("loss.rs")),
        ("nagle", include_str!("nagle.rs")),
        ("path", include_str!("path.rs")),
        ("states", include_str!("states.rs")),
        ("timestamps", include_str!("timestamps.rs")),
        ("windows", include_str!("windows.rs")),
    ];
    for (file, text) in files {
        for rest in text.split("#[test]\n").skip(1) {
            let name = rest.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            let name = format!("{file}::{}", name.expect("a function").0);
            assert!(SCRIPTS.iter().any(|(listed, _)| *listed == name), "{name} is not in SCRIPTS");
        }
    }
}
