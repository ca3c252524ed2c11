//! getsockopt(2) and setsockopt(2). Every option is set on the companion, which answers as for any program. An option
//! that our stack knows is set there as well.

use super::{
    activation, cmsg,
    common::{answer, checked, error},
    companion_options::{
        copy_congestion, copy_linger, get_number, query, set_number, set_timeout, timeout,
    },
    file::{Live, Ref, enter},
    groups, local_stream, not_accelerated, route, udp_links,
    unsupported_options::{TX_TIMESTAMPS, UnsupportedOption},
};
use crate::{inside::Inside, real};
use busypoll_policy::Protocol;
use busypoll_stack::{TcpInfo, TcpStream, options as known};
use libc::{IPPROTO_TCP, TCP_CONGESTION, c_int, c_void, socklen_t};
use std::{io, ptr, sync::atomic::Ordering, time::Duration};

// include/uapi/asm-generic/socket.h: the same layout on 64-bit machines, under a newer number.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
/// `SOF_TIMESTAMPING_OPT_ID` and `_OPT_ID_TCP` (linux/net_tstamp.h).
const OPT_ID_FLAGS: c_int = 1 << 7 | 1 << 16;
/// include/uapi/linux/in6.h.
const IPV6_PATHMTU: c_int = 61;

// include/uapi/asm-generic/socket.h, linux/tcp.h, linux/in.h, linux/in6.h.
const SO_BINDTOIFINDEX: c_int = 62;
const SO_TIMESTAMPING_NEW: c_int = 65;
const TCP_MD5SIG_EXT: c_int = 32;
const TCP_AO_ADD_KEY: c_int = 38;
const IP_MINTTL: c_int = 21;
const IPV6_MINHOPCOUNT: c_int = 73;
const UDP_CORK: c_int = 1;
const UDP_ENCAP: c_int = 100;

/// The older number of an option that has two.
fn older(level: c_int, name: c_int) -> c_int {
    match (level, name) {
        (libc::SOL_SOCKET, SO_RCVTIMEO_NEW) => libc::SO_RCVTIMEO,
        (libc::SOL_SOCKET, SO_SNDTIMEO_NEW) => libc::SO_SNDTIMEO,
        _ => name,
    }
}

/// The buffer whose size an option sets.
fn buffer(level: c_int, name: c_int) -> Option<c_int> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => Some(libc::SO_RCVBUF),
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => Some(libc::SO_SNDBUF),
        _ => None,
    }
}

/// The buffer size that the kernel has set at `fd`, within its limits and doubled. The program reads this value, and
/// our stack uses it.
fn size_of_buffer(fd: c_int, name: c_int) -> Option<c_int> {
    // SAFETY: a number.
    unsafe { query::<c_int>(fd, libc::SOL_SOCKET, name) }
}

/// # Safety
/// That of setsockopt(2).
pub unsafe fn setsockopt(
    file: Ref,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let name = older(level, name);
    if file.domain == libc::AF_UNIX {
        // SAFETY: the caller's contract.
        return unsafe { local_stream::setsockopt(file, fd, level, name, value, len) };
    }
    let number = value.cast::<c_int>();
    let refused = match (level, name) {
        // Our stack has no notification of completed sends. So the program copies, as on kernels without zero-copy.
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => Some(libc::EOPNOTSUPP),
        // Datagrams are delivered one by one, also those from the companion.
        (libc::IPPROTO_UDP, libc::UDP_GRO) => Some(libc::ENOPROTOOPT),
        _ => None,
    };
    if let Some(refused) = refused
        && !file.is_kernel_owned()
        && !value.is_null()
        && len as usize >= size_of::<c_int>()
        // SAFETY: as long as the caller says.
        && unsafe { number.read_unaligned() } != 0
    {
        return answer(Err(error(refused)));
    }
    // A negative timeout means not to wait (`sock_set_timeout`). The companion would return it as 0, which means for
    // ever.
    let tick = libc::timeval { tv_sec: 0, tv_usec: 1 };
    let (value, len) = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO)
            if !value.is_null()
                && len as usize >= size_of_val(&tick)
                // SAFETY: as long as the caller says.
                && unsafe { value.cast::<libc::timeval>().read_unaligned() }.tv_sec < 0 =>
        {
            ((&raw const tick).cast(), size_of_val(&tick) as socklen_t)
        }
        _ => (value, len),
    };
    if level == libc::SOL_SOCKET
        && matches!(name, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW)
        && !value.is_null()
        && len as usize >= size_of::<c_int>()
        && let Some(Live::Stream(_)) = file.live()
    {
        // SAFETY: as long as the caller says.
        return set_times_of_stream(&file, fd, name, unsafe { number.read_unaligned() });
    }
    // SAFETY: the caller's contract.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result != 0 {
        return result;
    }
    let Some((_inside, file)) = enter(file) else { return result };
    // SAFETY: the kernel has read as many bytes.
    let value = unsafe { super::iovec::readable(value.cast(), len as usize) };
    answer(value.and_then(|value| apply(&file, fd, level, name, value)).map(|()| 0))
}

/// `SO_TIMESTAMPING` of a connection of ours. The companion is not connected, so it cannot have the OPT_ID flags.
#[cold]
fn set_times_of_stream(file: &Ref, fd: c_int, name: c_int, asked: c_int) -> c_int {
    if asked & TX_TIMESTAMPS != 0 {
        return answer(Err(error(libc::ENOPROTOOPT)));
    }
    let known = asked & !OPT_ID_FLAGS;
    let len = size_of_val(&known) as socklen_t;
    // SAFETY: a number, and its size.
    if unsafe { real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const known).cast(), len) } != 0
    {
        return -1;
    }
    let Some(_inside) = Inside::enter() else { return 0 };
    file.store_option(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, asked);
    answer(apply(file, fd, libc::SOL_SOCKET, name, &asked.to_ne_bytes()).map(|()| 0))
}

/// The kernel has accepted an option.
fn apply(file: &Ref, fd: c_int, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    if groups::apply(file, level, name, value) {
        return Ok(());
    }
    if let Some((option, asked)) = classify(level, name, value) {
        if asked {
            return match activation::require(file, fd, option) || name == libc::SO_MARK {
                true => Ok(()),
                false => Err(error(libc::ENOPROTOOPT)),
            };
        }
        file.drop_requirement(option);
    }
    let number = value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
    if let (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) = (level, name)
        && file.protocol == Protocol::Udp
        && number.is_some_and(|on| on != 0)
    {
        udp_links::share(file);
    }
    if let (Some(bit), Some(number)) = (cmsg::bit(level, name), number) {
        if number != 0 {
            file.cmsg_flags.fetch_and(!cmsg::excludes(bit), Ordering::Relaxed);
            file.cmsg_flags.fetch_or(bit, Ordering::Relaxed);
        } else {
            file.cmsg_flags.fetch_and(!bit, Ordering::Relaxed);
        }
        // Our stack needs the companion's ancillary data, so the companion's option stays on.
        return match file.live() {
            Some(Live::Udp(_)) if number == 0 => keep_companion_option(fd, level, name),
            _ => Ok(()),
        };
    }
    if let (libc::SOL_SOCKET, libc::SO_LINGER | libc::SO_RCVTIMEO | libc::SO_SNDTIMEO)
    | (IPPROTO_TCP, TCP_CONGESTION) = (level, name)
    {
        file.set_has_complex_options();
    }
    match (level, name, file.live()) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO, Some(live)) => {
            set_timeout(live, name, timeout(fd, name));
        }
        (libc::SOL_SOCKET, libc::SO_LINGER, Some(live)) => copy_linger(fd, live),
        (IPPROTO_TCP, TCP_CONGESTION, Some(live)) => copy_congestion(fd, live),
        (IPPROTO_TCP, TCP_CONGESTION, None) => {}
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | libc::SO_LINGER, None) => {}
        (_, _, live) => {
            let (name, number) = match buffer(level, name) {
                Some(buffer) => (buffer, size_of_buffer(fd, buffer)),
                // One byte is enough for many of IP's options.
                None => (name, number.or_else(|| value.first().map(|byte| c_int::from(*byte)))),
            };
            if let Some(number) = number {
                file.store_option(level, name, number);
                if let Some(live) = live {
                    // An option that the kernel accepts and our stack does not know may be ignored.
                    let _ = set_number(live, level, name, number);
                }
            }
        }
    }
    Ok(())
}

fn keep_companion_option(fd: c_int, level: c_int, name: c_int) -> io::Result<()> {
    if !matches!(level, libc::IPPROTO_IP | libc::IPPROTO_IPV6) {
        return Ok(());
    }
    let on: c_int = 1;
    let len = size_of_val(&on) as socklen_t;
    // SAFETY: a number, and its size.
    checked(unsafe { real::setsockopt(fd, level, name, (&raw const on).cast(), len) }).map(drop)
}

/// # Safety
/// That of getsockopt(2).
pub unsafe fn getsockopt(
    file: Ref,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let name = older(level, name);
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::getsockopt(fd, level, name, value, len) };
    if file.domain == libc::AF_UNIX && (level, name) != (libc::SOL_SOCKET, libc::SO_ERROR) {
        return by_kernel();
    }
    let Some((_inside, file)) = enter(file) else { return by_kernel() };
    if let Some(bit) = cmsg::bit(level, name)
        && name != libc::SO_TIMESTAMPING
        && file.has_level(level)
    {
        let on = c_int::from(file.cmsg_flags.load(Ordering::Relaxed) & bit != 0);
        // SAFETY: the caller's contract.
        return answer(unsafe { write_value(&on, value, len) });
    }
    let Some(live) = file.live() else { return by_kernel() };
    match (level, name, live) {
        (IPPROTO_TCP, libc::TCP_INFO, Live::Stream(stream)) => match stream.info() {
            Ok(info) => {
                // SAFETY: the caller's contract.
                answer(unsafe { write_value(&laid_out(&info, headers(stream)), value, len) })
            }
            Err(_) => by_kernel(),
        },
        (libc::IPPROTO_IP, libc::IP_MTU, Live::Stream(stream))
        | (libc::IPPROTO_IPV6, libc::IPV6_MTU | IPV6_PATHMTU, Live::Stream(stream))
            if file.has_level(level) =>
        {
            let Ok(info) = stream.info() else { return by_kernel() };
            let mtu = info.pmtu_mss + headers(stream);
            // `struct ip6_mtuinfo`: an address, which the kernel leaves zero, and the MTU.
            let with_address = [0, 0, 0, 0, 0, 0, 0, mtu];
            // SAFETY: the caller's contract.
            answer(unsafe {
                match name {
                    IPV6_PATHMTU => write_value(&with_address, value, len),
                    _ => write_value(&mtu, value, len),
                }
            })
        }
        (IPPROTO_TCP, TCP_CONGESTION, Live::Stream(stream)) => {
            let mut text = [0u8; 16];
            let name = stream.congestion().unwrap_or_default();
            text.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
            // SAFETY: the caller's contract.
            answer(unsafe { write_value(&text, value, len) })
        }
        (libc::SOL_SOCKET, libc::SO_LINGER, Live::Stream(stream)) => {
            let linger = stream.linger().ok().flatten();
            let seconds =
                linger.map_or(0, |span| i32::try_from(span.as_secs()).unwrap_or(i32::MAX));
            let linger = libc::linger { l_onoff: linger.is_some().into(), l_linger: seconds };
            // SAFETY: the caller's contract.
            answer(unsafe { write_value(&linger, value, len) })
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO, Live::Stream(stream)) => {
            let limit = match name {
                libc::SO_RCVTIMEO => stream.read_timeout(),
                _ => stream.write_timeout(),
            };
            let limit = limit.ok().flatten().unwrap_or_default();
            let time = libc::timeval {
                tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_usec: limit.subsec_micros().into(),
            };
            // SAFETY: the caller's contract.
            answer(unsafe { write_value(&time, value, len) })
        }
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW, Live::Stream(_))
            if let Some(asked) = file.stored_option(level, libc::SO_TIMESTAMPING) =>
        {
            // SAFETY: the caller's contract.
            answer(unsafe { write_value(&asked, value, len) })
        }
        // Our stack does not know all of these, and the companion is a socket of the same kind.
        (libc::SOL_SOCKET, libc::SO_DOMAIN | libc::SO_TYPE | libc::SO_PROTOCOL, _) => by_kernel(),
        (libc::IPPROTO_IPV6, known::IPV6_V6ONLY, _) => by_kernel(),
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF, Live::Udp(_) | Live::Listener(_)) => {
            by_kernel()
        }
        (_, _, live) => match get_number(live, level, name) {
            // SAFETY: the caller's contract.
            Ok(number) => answer(unsafe { write_value(&number, value, len) }),
            Err(_) => by_kernel(),
        },
    }
}

/// The size of the IP and TCP headers in bytes.
fn headers(stream: &TcpStream) -> u32 {
    let peer = stream.peer_addr().map(|peer| peer.ip().to_canonical());
    if peer.is_ok_and(|peer| peer.is_ipv6()) { 60 } else { 40 }
}

/// Writes an option's value for the program, cut if there is less room.
///
/// # Safety
/// `to` points to `*len` writable bytes.
unsafe fn write_value<T>(value: &T, to: *mut c_void, len: *mut socklen_t) -> io::Result<usize> {
    if to.is_null() || len.is_null() {
        return Err(error(libc::EFAULT));
    }
    // SAFETY: the caller's contract, here and below.
    let room = unsafe { *len };
    if c_int::try_from(room).is_err() {
        return Err(error(libc::EINVAL));
    }
    let size = (room as usize).min(size_of::<T>());
    // SAFETY: the caller's contract.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), size);
        *len = size as socklen_t;
    }
    Ok(0)
}

/// `struct tcp_info`, include/uapi/linux/tcp.h, up to `tcpi_reord_seen`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    bytes: [u8; 8],
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
}

const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
const TCPI_OPT_ECN: u8 = 8;

/// `headers`: the size of the IP and TCP headers. Unknown values are 0: pacing, delivery rate, the times that something
/// was the limit.
fn laid_out(info: &TcpInfo, headers: u32) -> Info {
    let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    let millis = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
    let flag = |on: bool, bit: u8| if on { bit } else { 0 };
    let options = flag(info.timestamps, TCPI_OPT_TIMESTAMPS)
        | flag(info.sack, TCPI_OPT_SACK)
        | flag(info.window_scale.is_some(), TCPI_OPT_WSCALE)
        | flag(info.ecn, TCPI_OPT_ECN);
    let (send, receive) = info.window_scale.unwrap_or_default();
    let low = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
    Info {
        bytes: [
            info.state.number(),
            info.ca_state,
            low(info.retransmits),
            low(info.probes),
            low(info.backoff),
            options,
            send & 15 | receive << 4,
            0,
        ],
        words: [
            micros(info.rto),
            0,
            info.snd_mss,
            info.rcv_mss,
            info.unacked,
            info.sacked,
            info.lost,
            info.retrans,
            0,
            millis(info.last_data_sent),
            0,
            millis(info.last_data_recv),
            millis(info.last_ack_recv),
            info.pmtu_mss + headers,
            0,
            micros(info.rtt),
            micros(info.rttvar),
            info.snd_ssthresh,
            info.snd_cwnd,
            info.advmss,
            info.reordering,
            micros(info.rcv_rtt),
            info.rcv_space,
            info.total_retrans,
        ],
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        segs_out: info.segs_out,
        segs_in: info.segs_in,
        notsent_bytes: info.notsent_bytes,
        min_rtt: micros(info.min_rtt),
        data_segs_in: info.data_segs_in,
        data_segs_out: info.data_segs_out,
        delivered: info.delivered,
        bytes_sent: info.bytes_sent,
        bytes_retrans: info.bytes_retrans,
        dsack_dups: info.dsack_dups,
        reord_seen: info.reord_seen,
        ..Info::default()
    }
}

/// The unsupported option that (`level`, `name`) is, and whether `value` sets or clears it.
fn classify(level: c_int, name: c_int, value: &[u8]) -> Option<(UnsupportedOption, bool)> {
    let number = value.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
    let (what, asked) = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => {
            let device = value.split(|byte| *byte == 0).next().unwrap_or_default();
            (
                "SO_BINDTODEVICE",
                !device.is_empty() && device != not_accelerated::device().as_bytes(),
            )
        }
        (libc::SOL_SOCKET, SO_BINDTOIFINDEX) => {
            ("SO_BINDTOIFINDEX", number != 0 && number.cast_unsigned() != route::index())
        }
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) => ("SO_ATTACH_FILTER", true),
        (libc::SOL_SOCKET, libc::SO_ATTACH_BPF) => ("SO_ATTACH_BPF", true),
        (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF) => ("SO_ATTACH_REUSEPORT_CBPF", true),
        (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF) => ("SO_ATTACH_REUSEPORT_EBPF", true),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW) => {
            ("SO_TIMESTAMPING of what it sends", number & TX_TIMESTAMPS != 0)
        }
        (libc::SOL_SOCKET, libc::SO_TXTIME) => ("SO_TXTIME", true),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => ("SO_PEEK_OFF", number >= 0),
        (libc::SOL_SOCKET, libc::SO_MARK) => ("SO_MARK", number != 0),
        (libc::IPPROTO_TCP, libc::TCP_MD5SIG | TCP_MD5SIG_EXT) => ("TCP_MD5SIG", true),
        (libc::IPPROTO_TCP, TCP_AO_ADD_KEY) => ("TCP_AO_ADD_KEY", true),
        // Errors are queued at the companion, where a thread that waits for our socket would not see them.
        (libc::IPPROTO_IP, libc::IP_RECVERR) => ("IP_RECVERR", number != 0),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => ("IPV6_RECVERR", number != 0),
        (libc::IPPROTO_IP, IP_MINTTL) => ("IP_MINTTL", number != 0),
        (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT) => ("IPV6_MINHOPCOUNT", number != 0),
        (libc::IPPROTO_UDP, UDP_CORK) => ("UDP_CORK", number != 0),
        (libc::IPPROTO_UDP, UDP_ENCAP) => ("UDP_ENCAP", number != 0),
        (libc::IPPROTO_UDP, libc::UDP_SEGMENT) => ("UDP_SEGMENT", number != 0),
        _ => return None,
    };
    Some((UnsupportedOption { level, name, what }, asked))
}
