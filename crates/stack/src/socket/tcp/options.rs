//! The options of TCP sockets: their values, and the calls. Accepted connections start with the listener's options.

use super::{
    listener::TcpListener,
    stream::{TcpStream, pass},
};
use crate::{
    host::ReservationOptions,
    inet::{
        PathOptions, PmtuDiscover,
        tcp::{
            Algorithm, CompactOptions, Config, ConnectOptions, ListenOptions, TcpOptions,
            info::TcpInfo, timeouts_for,
        },
    },
    socket::options::*,
    sync::lock,
    time,
};
use std::{io, time::Duration};

/// The option values of a socket. Once there is a connection, the flow has the current values of `tcp`.
#[derive(Clone, Debug)]
pub(super) struct Values {
    pub(super) tcp: CompactOptions,
    pub(super) path: PathOptions,
    pub(super) reuse_address: bool,
    pub(super) reuse_port: bool,
    by_queue: bool,
    pub(super) only_v6: bool,
}

/// The greatest values that Linux accepts (include/net/tcp.h).
const MAX_KEEP_SECONDS: i32 = 32_767;
const MAX_COUNT: i32 = 127;
const MAX_LINGER2: i32 = 120;
/// The least and greatest `TCP_MAXSEG`.
const SEGMENT: std::ops::RangeInclusive<i32> = 88..=32_767;
/// `TCP_MAXSEG` before there is a connection (`TCP_MSS_DEFAULT`).
const DEFAULT_SEGMENT: u16 = 536;

impl Values {
    pub(super) fn new() -> Values {
        Values {
            tcp: CompactOptions::default(),
            path: PathOptions { discover: PmtuDiscover::DO, ..PathOptions::default() },
            reuse_address: false,
            reuse_port: false,
            by_queue: false,
            only_v6: false,
        }
    }

    /// The options of the port reservation on an interface shared with the kernel.
    pub(super) fn reservation(&self) -> ReservationOptions {
        let Values { reuse_address, reuse_port, only_v6, .. } = *self;
        ReservationOptions { reuse_address, reuse_port, only_v6 }
    }

    /// For listening.
    pub(super) fn listen(&self, backlog: u32) -> ListenOptions {
        ListenOptions {
            backlog,
            reuse_address: self.reuse_address,
            reuse_port: self.reuse_port,
            by_queue: self.by_queue,
            only_v6: self.only_v6,
            tcp: self.tcp.get(),
            path: self.path,
        }
    }

    /// For connecting.
    pub(super) fn connect(&self) -> ConnectOptions {
        ConnectOptions {
            reuse_address: self.reuse_address,
            reuse_port: self.reuse_port,
            queue: 0,
            path: self.path,
            source: None,
            tcp: self.tcp.get(),
        }
    }

    /// # Errors
    /// ENOPROTOOPT for a name that is unknown or read only, EINVAL for a value out of range.
    fn set(&mut self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let on = value != 0;
        let within = |least: i32, most: i32| match value {
            good if (least..=most).contains(&good) => Ok(good.cast_unsigned()),
            _ => Err(errno(libc::EINVAL)),
        };
        let seconds = || -> io::Result<Duration> {
            Ok(Duration::from_secs(within(1, MAX_KEEP_SECONDS)?.into()))
        };
        let mut tcp = self.tcp.get();
        match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR) => self.reuse_address = on,
            (SOL_SOCKET, SO_REUSEPORT) => self.reuse_port = on,
            (SOL_SOCKET, SO_KEEPALIVE) => tcp.keepalive = on,
            (SOL_SOCKET, SO_RCVBUF) => tcp.receive_buffer = at_least(1, value)?,
            (SOL_SOCKET, SO_SNDBUF) => tcp.send_buffer = at_least(1, value)?,
            (SOL_SOCKET, SO_RCVLOWAT) => tcp.receive_low_water = at_least(0, value)?,
            (SOL_SOCKET, SO_OOBINLINE) => tcp.oob_inline = on,
            (IPPROTO_TCP, TCP_NODELAY) => tcp.nodelay = on,
            (IPPROTO_TCP, TCP_CORK) => tcp.cork = on,
            (IPPROTO_TCP, TCP_QUICKACK) => tcp.quick_ack = Some(on),
            (IPPROTO_TCP, TCP_MAXSEG) if value == 0 => tcp.max_segment = 0,
            (IPPROTO_TCP, TCP_MAXSEG) => {
                tcp.max_segment = within(*SEGMENT.start(), *SEGMENT.end())? as u16;
            }
            (IPPROTO_TCP, TCP_KEEPIDLE) => tcp.keep_idle = seconds()?,
            (IPPROTO_TCP, TCP_KEEPINTVL) => tcp.keep_interval = seconds()?,
            (IPPROTO_TCP, TCP_KEEPCNT) => tcp.keep_count = within(1, MAX_COUNT)? as u8,
            (IPPROTO_TCP, TCP_SYNCNT) => tcp.syn_count = within(1, MAX_COUNT)? as u8,
            (IPPROTO_TCP, TCP_USER_TIMEOUT) => {
                tcp.user_timeout = Duration::from_millis(at_least(0, value)?.into());
            }
            (IPPROTO_TCP, TCP_LINGER2) => {
                // Below zero: no FIN_WAIT_2; zero: the host's value (`do_tcp_setsockopt`).
                tcp.linger2 = match value {
                    ..0 => Some(Duration::ZERO),
                    0 => None,
                    more => Some(Duration::from_secs(more.min(MAX_LINGER2).unsigned_abs().into())),
                };
            }
            (IPPROTO_TCP, TCP_DEFER_ACCEPT) => {
                tcp.defer_accept = Duration::from_secs(value.max(0).unsigned_abs().into());
            }
            (IPPROTO_TCP, TCP_WINDOW_CLAMP) => tcp.window_clamp = at_least(0, value)?,
            (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => tcp.notsent_low_water = value.cast_unsigned(),
            (IPPROTO_TCP, TCP_RTO_MIN_US) => {
                tcp.rto_min = Duration::from_micros(within(1_000, 120_000_000)?.into());
            }
            (IPPROTO_IP, IP_TTL) | (IPPROTO_IPV6, IPV6_UNICAST_HOPS) if value == -1 => {
                self.path.ttl = PathOptions::default().ttl;
            }
            (IPPROTO_IP, IP_TTL) | (IPPROTO_IPV6, IPV6_UNICAST_HOPS) => {
                self.path.ttl = within(1, 255)? as u8;
            }
            // RFC 3542 section 6.5: "use kernel default".
            (IPPROTO_IPV6, IPV6_TCLASS) if value == -1 => self.path.tos = 0,
            // The ECN bits belong to TCP (`do_ip_setsockopt`).
            (IPPROTO_IP, IP_TOS) | (IPPROTO_IPV6, IPV6_TCLASS) => self.path.tos = value as u8 & !3,
            (IPPROTO_IPV6, IPV6_V6ONLY) => self.only_v6 = on,
            _ => return Err(errno(libc::ENOPROTOOPT)),
        }
        self.tcp = CompactOptions::new(&tcp);
        Ok(())
    }

    /// # Errors
    /// ENOPROTOOPT for an unknown name.
    fn get(&self, level: i32, name: i32, config: &Config) -> io::Result<i32> {
        let tcp = self.tcp.get();
        let or = |own: u32, host: u32| if own == 0 { host } else { own };
        let seconds = |own: Duration, host: Duration| {
            u32::try_from(if own.is_zero() { host } else { own }.as_secs()).unwrap_or(u32::MAX)
        };
        let value: u32 = match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR) => self.reuse_address.into(),
            (SOL_SOCKET, SO_REUSEPORT) => self.reuse_port.into(),
            (SOL_SOCKET, SO_KEEPALIVE) => tcp.keepalive.into(),
            (SOL_SOCKET, SO_RCVBUF) => or(tcp.receive_buffer, config.tcp_rmem.initial),
            (SOL_SOCKET, SO_SNDBUF) => or(tcp.send_buffer, config.tcp_wmem.initial),
            (SOL_SOCKET, SO_RCVLOWAT) => or(tcp.receive_low_water, 1),
            (SOL_SOCKET, SO_OOBINLINE) => tcp.oob_inline.into(),
            (SOL_SOCKET, SO_TYPE) => libc::SOCK_STREAM.cast_unsigned(),
            (SOL_SOCKET, SO_PROTOCOL) => libc::IPPROTO_TCP.cast_unsigned(),
            (IPPROTO_TCP, TCP_NODELAY) => tcp.nodelay.into(),
            (IPPROTO_TCP, TCP_CORK) => tcp.cork.into(),
            (IPPROTO_TCP, TCP_QUICKACK) => tcp.quick_ack.unwrap_or(true).into(),
            (IPPROTO_TCP, TCP_MAXSEG) => or(tcp.max_segment.into(), DEFAULT_SEGMENT.into()),
            (IPPROTO_TCP, TCP_KEEPIDLE) => seconds(tcp.keep_idle, config.tcp_keepalive_time),
            (IPPROTO_TCP, TCP_KEEPINTVL) => seconds(tcp.keep_interval, config.tcp_keepalive_intvl),
            (IPPROTO_TCP, TCP_KEEPCNT) => {
                or(tcp.keep_count.into(), config.tcp_keepalive_probes.into())
            }
            (IPPROTO_TCP, TCP_SYNCNT) => or(tcp.syn_count.into(), config.tcp_syn_retries.into()),
            (IPPROTO_TCP, TCP_USER_TIMEOUT) => {
                u32::try_from(tcp.user_timeout.as_millis()).unwrap_or(u32::MAX)
            }
            (IPPROTO_TCP, TCP_LINGER2) => match tcp.linger2 {
                Some(Duration::ZERO) => return Ok(-1),
                own => seconds(own.unwrap_or_default(), config.tcp_fin_timeout),
            },
            (IPPROTO_TCP, TCP_DEFER_ACCEPT) => {
                let (_, whole) = timeouts_for(tcp.defer_accept, config);
                u32::try_from(whole.as_secs()).unwrap_or(u32::MAX)
            }
            (IPPROTO_TCP, TCP_WINDOW_CLAMP) => tcp.window_clamp,
            (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => tcp.notsent_low_water,
            (IPPROTO_TCP, TCP_RTO_MIN_US) => {
                let own = if tcp.rto_min.is_zero() { config.tcp_rto_min } else { tcp.rto_min };
                u32::try_from(own.as_micros()).unwrap_or(u32::MAX)
            }
            (IPPROTO_IP, IP_TTL) | (IPPROTO_IPV6, IPV6_UNICAST_HOPS) => self.path.ttl.into(),
            (IPPROTO_IP, IP_TOS) | (IPPROTO_IPV6, IPV6_TCLASS) => self.path.tos.into(),
            (IPPROTO_IPV6, IPV6_V6ONLY) => self.only_v6.into(),
            _ => return Err(errno(libc::ENOPROTOOPT)),
        };
        // `TCP_NOTSENT_LOWAT` is unsigned; it is returned with the same bits.
        Ok(value.cast_signed())
    }
}

impl TcpStream {
    /// Sets an option of [`options`](crate::options) by its Linux names.
    ///
    /// # Errors
    /// ENOPROTOOPT for one that is unknown or read only, EINVAL for a value out of range.
    pub fn setsockopt(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let waiting = &self.0.endpoint.waiting;
        if level == SOL_SOCKET
            && let Some(result) = waiting.set(name, value)
        {
            return result;
        }
        self.change(|values| values.set(level, name, value))?;
        // Each call pushes, even if the option was set already (`__tcp_sock_set_nodelay`).
        if (level, name) == (IPPROTO_TCP, TCP_NODELAY)
            && value != 0
            && let Some(flow) = self.0.connection()
        {
            let mut pass = pass();
            flow.push(&mut pass);
            pass.wake.wake_all();
        }
        Ok(())
    }

    /// Reads an option of [`options`](crate::options) by its Linux names.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown one.
    pub fn getsockopt(&self, level: i32, name: i32) -> io::Result<i32> {
        let inner = &*self.0;
        match (level, name) {
            (SOL_SOCKET, SO_INCOMING_NAPI_ID) => {
                return Ok(self.incoming_napi_id().map_or(0, |id| id.get().cast_signed()));
            }
            (SOL_SOCKET, SO_ERROR) => return Ok(inner.take_error().unwrap_or(0)),
            (SOL_SOCKET, SO_ACCEPTCONN) => return Ok(0),
            (SOL_SOCKET, SO_DOMAIN) => return Ok(domain(self.local_addr()?)),
            (IPPROTO_TCP, TCP_MAXSEG) if self.is_connected() => {
                return Ok(self.info()?.snd_mss.cast_signed());
            }
            (SOL_SOCKET, SO_SNDBUF) if let Some(flow) = inner.connection() => {
                return Ok(flow.buffers().0.cast_signed());
            }
            (SOL_SOCKET, SO_RCVBUF) if let Some(flow) = inner.connection() => {
                return Ok(flow.buffers().1.cast_signed());
            }
            (IPPROTO_TCP, TCP_QUICKACK) if let Some(flow) = inner.connection() => {
                return Ok(flow.quick_ack().into());
            }
            (SOL_SOCKET, name) if let Some(value) = inner.endpoint.waiting.get(name) => {
                return Ok(value.cast_signed());
            }
            _ => {}
        }
        let mut values = lock(&inner.values).clone();
        if let Some(flow) = inner.connection() {
            values.tcp = CompactOptions::new(&flow.options());
        }
        values.get(level, name, inner.host.tcp_config())
    }

    fn is_connected(&self) -> bool {
        self.0.connection().is_some_and(|flow| super::is_connected(&flow))
    }

    fn change(&self, change: impl FnOnce(&mut Values) -> io::Result<()>) -> io::Result<()> {
        let mut values = lock(&self.0.values);
        let flow = self.0.connection();
        if let Some(flow) = &flow {
            values.tcp = CompactOptions::new(&flow.options());
        }
        let path = values.path;
        change(&mut values)?;
        if let Some(flow) = flow {
            let mut pass = pass();
            flow.set_options(values.tcp.get(), &mut pass);
            if values.path != path {
                flow.set_path_options(values.path, &mut pass);
            }
            drop(values);
            pass.wake.wake_all();
        }
        Ok(())
    }

    fn tcp(&self) -> TcpOptions {
        match self.0.connection().map(|flow| flow.options()) {
            Some(options) => options,
            None => lock(&self.0.values).tcp.get(),
        }
    }

    /// Distributes connections to the listeners of a `SO_REUSEPORT` group by receive queue instead of by hash: each
    /// listener gets the connections whose SYN came from its queue. The first to listen gets queue 0, the second queue
    /// 1, and so on around; the setting of the first counts for all. Call it before [`listen`](TcpStream::listen).
    /// (Linux: `SO_ATTACH_REUSEPORT_CBPF`.)
    ///
    /// # Errors
    /// None today; a `Result` as from any option.
    pub fn set_reuse_port_by_queue(&self, by_queue: bool) -> io::Result<()> {
        self.change(|values| {
            values.by_queue = by_queue;
            Ok(())
        })
    }

    /// `TCP_INFO`: the state of the connection.
    ///
    /// # Errors
    /// ENOTCONN before there is one.
    pub fn info(&self) -> io::Result<TcpInfo> {
        let flow = self.0.connection().ok_or_else(|| errno(libc::ENOTCONN))?;
        Ok(flow.info(time::now()))
    }

    /// `SO_LINGER`: how long closing waits until the peer has acknowledged all that was written. Zero resets the
    /// connection instead. `None`, the default: closing does not wait, and what was written still arrives.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.change(|values| {
            values.tcp = CompactOptions::new(&TcpOptions { linger, ..values.tcp.get() });
            Ok(())
        })
    }

    /// `SO_LINGER`.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.tcp().linger)
    }

    /// `TCP_CONGESTION`: "cubic" or "reno".
    ///
    /// # Errors
    /// ENOENT for any other name.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        let algorithm = Algorithm::named(name).ok_or_else(|| errno(libc::ENOENT))?;
        self.change(|values| {
            let congestion = Some(algorithm);
            values.tcp = CompactOptions::new(&TcpOptions { congestion, ..values.tcp.get() });
            Ok(())
        })
    }

    /// `TCP_CONGESTION`.
    ///
    /// # Errors
    /// None today; a `Result` as in Linux.
    pub fn congestion(&self) -> io::Result<&'static str> {
        let host = self.0.host.tcp_config().tcp_congestion_control;
        Ok(self.tcp().congestion.unwrap_or(host).name())
    }

    /// `TCP_USER_TIMEOUT`: how long written data may stay unacknowledged before the connection is given up, to the
    /// millisecond; `None`: the host's `tcp_retries2` decides.
    ///
    /// # Errors
    /// EINVAL above 2^31 - 1 ms.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let millis = timeout.unwrap_or_default().as_millis();
        let millis = i32::try_from(millis).map_err(|_| errno(libc::EINVAL))?;
        self.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, millis)
    }

    /// `TCP_USER_TIMEOUT`.
    ///
    /// # Errors
    /// None today; a `Result` as in Linux.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(Some(self.tcp().user_timeout).filter(|timeout| !timeout.is_zero()))
    }

    /// `SO_KEEPALIVE` with its three values: the first probe is sent after `idle` of silence, then one every
    /// `interval`. After `count` unanswered probes the connection is given up. Whole seconds.
    ///
    /// # Errors
    /// EINVAL out of range: 1 to 32,767 s, 1 to 127 probes.
    pub fn set_keepalive_times(
        &self,
        idle: Duration,
        interval: Duration,
        count: u8,
    ) -> io::Result<()> {
        let seconds = |span: Duration| i32::try_from(span.as_secs()).unwrap_or(i32::MAX);
        self.change(|values| {
            values.set(IPPROTO_TCP, TCP_KEEPIDLE, seconds(idle))?;
            values.set(IPPROTO_TCP, TCP_KEEPINTVL, seconds(interval))?;
            values.set(IPPROTO_TCP, TCP_KEEPCNT, count.into())?;
            values.set(SOL_SOCKET, SO_KEEPALIVE, 1)
        })
    }
}

impl TcpListener {
    /// Sets an option of [`options`](crate::options) by its Linux names, for the listener and for connections made from
    /// now on.
    ///
    /// # Errors
    /// ENOPROTOOPT for one that is unknown or read only, EINVAL for a value out of range.
    pub fn setsockopt(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        let waiting = &self.0.endpoint.waiting;
        if level == SOL_SOCKET
            && let Some(result) = waiting.set(name, value)
        {
            return result;
        }
        let mut values = lock(&self.0.values);
        values.set(level, name, value)?;
        self.0.listening.set_options(values.tcp.get());
        self.0.listening.set_path_options(values.path);
        Ok(())
    }

    /// Reads an option of [`options`](crate::options) by its Linux names.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown one.
    pub fn getsockopt(&self, level: i32, name: i32) -> io::Result<i32> {
        let inner = &*self.0;
        match (level, name) {
            (SOL_SOCKET, SO_INCOMING_NAPI_ID) => {
                Ok(self.incoming_napi_id().map_or(0, |id| id.get().cast_signed()))
            }
            (SOL_SOCKET, SO_ERROR) => Ok(0),
            (SOL_SOCKET, SO_ACCEPTCONN) => Ok(1),
            (SOL_SOCKET, SO_DOMAIN) => Ok(domain(inner.listening.local())),
            (SOL_SOCKET, name) if let Some(value) = inner.endpoint.waiting.get(name) => {
                Ok(value.cast_signed())
            }
            _ => lock(&inner.values).get(level, name, inner.host.tcp_config()),
        }
    }
}

/// Typed methods for options that are one number each.
macro_rules! typed {
    ($($set:ident, $get:ident: $value:ty => $level:ident, $name:ident, $doc:literal;)*) => {
        impl TcpStream { $(
            #[doc = $doc]
            ///
            /// # Errors
            /// EINVAL for a value out of range.
            pub fn $set(&self, value: $value) -> io::Result<()> {
                let value = i32::try_from(value).map_err(|_| errno(libc::EINVAL))?;
                self.setsockopt($level, $name, value)
            }

            #[doc = concat!("`", stringify!($name), "`, see [`", stringify!($set), "`](TcpStream::",
                stringify!($set), ").")]
            ///
            /// # Errors
            /// None today; a `Result` as in std.
            pub fn $get(&self) -> io::Result<$value> {
                self.getsockopt($level, $name).map(|value| Value::of(value))
            }
        )* }
    };
}

/// An option's value as its method returns it.
trait Value {
    fn of(value: i32) -> Self;
}

impl Value for bool {
    fn of(value: i32) -> bool {
        value != 0
    }
}

impl Value for u32 {
    fn of(value: i32) -> u32 {
        value.cast_unsigned()
    }
}

typed! {
    set_nodelay, nodelay: bool => IPPROTO_TCP, TCP_NODELAY,
        "`TCP_NODELAY`: small segments do not wait for acknowledgements (Nagle's algorithm off).";
    set_cork, cork: bool => IPPROTO_TCP, TCP_CORK,
        "`TCP_CORK`: partial segments wait for more data, at most 200 ms; when it is cleared, they are sent at once.";
    set_quickack, quickack: bool => IPPROTO_TCP, TCP_QUICKACK,
        "`TCP_QUICKACK`: data is acknowledged at once, until the connection looks interactive again.";
    set_keepalive, keepalive: bool => SOL_SOCKET, SO_KEEPALIVE,
        "`SO_KEEPALIVE`: a silent peer is probed after `TCP_KEEPIDLE`, two hours unless set.";
    set_ttl, ttl: u32 => IPPROTO_IP, IP_TTL,
        "`IP_TTL`: the time to live of packets sent, 1 to 255.";
    set_tos, tos: u32 => IPPROTO_IP, IP_TOS,
        "`IP_TOS`: the type of service of packets sent; the two ECN bits are TCP's.";
    set_max_segment, max_segment: u32 => IPPROTO_TCP, TCP_MAXSEG,
        "`TCP_MAXSEG`: the largest segment, bytes of data, 88 to 32,767; 0: as the path allows. Fixed by the handshake.";
    set_recv_buffer_size, recv_buffer_size: u32 => SOL_SOCKET, SO_RCVBUF,
        "`SO_RCVBUF`: bytes of payload the receive buffer holds; it grows by itself unless set. Not doubled as in Linux.";
    set_send_buffer_size, send_buffer_size: u32 => SOL_SOCKET, SO_SNDBUF,
        "`SO_SNDBUF`: bytes of payload the send buffer holds; it grows by itself unless set. Not doubled as in Linux.";
    set_reuse_address, reuse_address: bool => SOL_SOCKET, SO_REUSEADDR,
        "`SO_REUSEADDR`: connections of an earlier listener on the port do not prevent `bind_to`. Set it before.";
    set_reuse_port, reuse_port: bool => SOL_SOCKET, SO_REUSEPORT,
        "`SO_REUSEPORT`: sockets that set it may listen at the same address and share its connections. Before `bind_to`.";
    set_only_v6, only_v6: bool => IPPROTO_IPV6, IPV6_V6ONLY,
        "`IPV6_V6ONLY`: a listener at `[::]` does not accept IPv4. Before `bind_to`.";
}
