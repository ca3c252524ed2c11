//! The control connection between `busypoll bench --host` and `busypoll serve`: one JSON message per line,
//! each answered by one. No messages are sent while an arm is measured.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use socket2::{SockRef, TcpKeepalive};

use crate::arm::{Arm, Mode, Plane, Protocol};
use crate::demand::Usage;
use crate::evidence::Window;
use crate::units::Size;
use crate::workload::Polling;

/// The port of `busypoll serve`: TCP for control, UDP for datagrams; TCP data on the next port.
pub const PORT: u16 = 7117;
/// The protocol version, which both sides must share.
pub const VERSION: u32 = 1;

const CONNECT: Duration = Duration::from_secs(3);
/// Longer than any answer takes, including the idle control.
const ANSWER: Duration = Duration::from_secs(30);
const LONGEST_LINE: u64 = 64 * 1024;

/// Requests of the bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// The first message.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Measure the machine's CPU use while nothing happens.
    Idle {
        /// The time.
        millis: u64,
    },
    /// Serve an arm.
    Start(Job),
    /// The measurement begins.
    Begin,
    /// The measurement has ended.
    End,
    /// Stop serving the arm.
    Stop,
}

/// The arm to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Job {
    pub plane: Plane,
    pub protocol: Protocol,
    pub mode: Mode,
    pub busy_poll_us: u64,
    pub request_bytes: usize,
    pub response_bytes: usize,
}

/// Answers of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Ask::Hello`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// To [`Ask::Idle`].
    Idle(Usage),
    /// To [`Ask::Start`]: the address that takes messages.
    Ready(SocketAddr),
    /// To [`Ask::Begin`].
    Done,
    /// To [`Ask::Stop`]: what the server's socket counted during the measurement.
    Stopped(Polling),
    /// To [`Ask::End`]: what the server's machine counted since [`Ask::Begin`].
    Window(Window),
    /// The request failed, and why.
    Refused(String),
}

/// One end of the connection.
pub struct Control(Mutex<BufReader<TcpStream>>);

impl Control {
    /// Wraps an open connection.
    ///
    /// # Errors
    /// A message of one line.
    pub fn new(stream: TcpStream) -> Result<Self, String> {
        let options = || -> std::io::Result<()> {
            stream.set_nodelay(true)?;
            // Otherwise a peer that lost power would keep a spinning server here for hours.
            let alive = TcpKeepalive::new().with_time(Duration::from_secs(5));
            let alive = alive.with_interval(Duration::from_secs(1)).with_retries(5);
            let socket = SockRef::from(&stream);
            socket.set_tcp_keepalive(&alive)?;
            // Keepalive probes are not sent while data is unacknowledged.
            socket.set_tcp_user_timeout(Some(Duration::from_secs(10)))
        };
        options().map_err(|e| format!("control connection: {e}"))?;
        Ok(Self(Mutex::new(BufReader::new(stream))))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// A message of one line.
    pub fn send(&self, message: &impl Serialize) -> Result<(), String> {
        let mut line = serde_json::to_string(message).map_err(|e| e.to_string())?;
        line.push('\n');
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        guard.get_ref().write_all(line.as_bytes()).map_err(|e| format!("control connection: {e}"))
    }

    /// Waits for a message; none if the peer has closed.
    ///
    /// # Errors
    /// A message of one line; also for an invalid message.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<T>, String> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = String::new();
        let n = guard.by_ref().take(LONGEST_LINE).read_line(&mut line);
        if n.as_ref().is_err_and(|e| e.kind() == ErrorKind::WouldBlock) {
            // A late answer would be taken for the next one's, so the connection ends.
            let _ = guard.get_ref().shutdown(Shutdown::Both);
        }
        let wrong = |e: std::io::Error| match e.kind() {
            ErrorKind::WouldBlock => "the peer accepts connections but does not answer; it may be \
                 serving another bench"
                .to_owned(),
            _ => format!("control connection: {e}"),
        };
        match n.map_err(wrong)? {
            0 => Ok(None),
            _ => serde_json::from_str(&line)
                .map(Some)
                .map_err(|e| format!("the peer does not speak as `busypoll` does: {e}")),
        }
    }
}

/// Splits `ADDRESS` or `ADDRESS:PORT`. Several colons without brackets mean an IPv6 address without a port.
fn split(host: &str) -> Result<(&str, u16), String> {
    let (name, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, rest)) => (name, Some(rest.strip_prefix(':').unwrap_or_default())),
        None => match host.split_once(':') {
            Some((name, port)) if !port.contains(':') => (name, Some(port)),
            _ => (host, None),
        },
    };
    let port = port.map_or(Ok(PORT), str::parse);
    match port {
        Ok(port @ 1..) => Ok((name, port)),
        _ => Err(format!("--host {host}: a port is 1 to 65535; write ADDRESS or ADDRESS:PORT")),
    }
}

/// The server, as used by the bench.
pub struct Remote {
    control: Control,
    /// Its address, for messages.
    pub name: String,
}

impl Remote {
    /// Connects to `HOST` or `HOST:PORT`.
    ///
    /// # Errors
    /// A message of one line, within a few seconds.
    pub fn connect(host: &str) -> Result<Self, String> {
        let (name, port) = split(host)?;
        let addresses: Vec<SocketAddr> = (name, port)
            .to_socket_addrs()
            .map_err(|e| format!("--host {host}: {e}; write ADDRESS or ADDRESS:PORT"))?
            .collect();
        let mut last = "no address".to_owned();
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    // Only the bench has a timeout; the server waits as long as the bench lives.
                    let set_timeout =
                        |time| stream.set_read_timeout(Some(time)).map_err(|e| e.to_string());
                    set_timeout(CONNECT)?;
                    let control = stream.try_clone().map_err(|e| e.to_string())?;
                    let remote =
                        Self { control: Control::new(control)?, name: address.to_string() };
                    let remote = remote.greet()?;
                    set_timeout(ANSWER)?;
                    return Ok(remote);
                }
                Err(e) => last = format!("{address}: {e}"),
            }
        }
        Err(format!(
            "--host {host}: no answer at {last}; run `busypoll serve` there and let TCP {port} and the \
             next, UDP {port} through its firewall"
        ))
    }

    /// The path MTU to the server, in bytes, if the kernel knows it.
    pub fn mtu(&self) -> Option<usize> {
        let guard = self.control.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = guard.get_ref();
        let mtu = match stream.peer_addr().ok()?.ip().to_canonical() {
            IpAddr::V4(_) => sockopt::ip_mtu(stream),
            IpAddr::V6(_) => sockopt::ipv6_mtu(stream),
        };
        Some(mtu.ok()? as usize)
    }

    fn greet(self) -> Result<Self, String> {
        match self.ask(&Ask::Hello { version: VERSION })? {
            Reply::Hello { version: VERSION } => Ok(self),
            Reply::Hello { version } => Err(format!(
                "{} speaks version {version}, this program version {VERSION}: install the same release \
                 on both machines",
                self.name
            )),
            other => Err(self.unexpected(&other)),
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Reply, String> {
        self.named(self.control.send(ask))?;
        self.answer()
    }

    fn answer(&self) -> Result<Reply, String> {
        match self.named(self.control.receive())? {
            Some(Reply::Refused(why)) => Err(format!("{}: {why}", self.name)),
            Some(reply) => Ok(reply),
            None => self.named(Err("it closed the connection".to_owned())),
        }
    }

    /// Adds the other end and the remedy to an error of the connection.
    fn named<T>(&self, result: Result<T, String>) -> Result<T, String> {
        result.map_err(|e| format!("--host {}: {e}; is `busypoll serve` running there?", self.name))
    }

    fn unexpected(&self, reply: &Reply) -> String {
        format!("{} gave an answer out of turn: {reply:?}", self.name)
    }

    /// Starts serving an arm; returns the server's address.
    ///
    /// # Errors
    /// A message of one line.
    pub fn start(&self, arm: &Arm, size: Size, busy_poll: Duration) -> Result<SocketAddr, String> {
        let job = Job {
            plane: arm.plane,
            protocol: arm.protocol,
            mode: arm.mode,
            busy_poll_us: busy_poll.as_micros() as u64,
            request_bytes: size.request,
            response_bytes: size.response,
        };
        match self.ask(&Ask::Start(job))? {
            Reply::Ready(address) => Ok(address),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The measurement begins.
    ///
    /// # Errors
    /// A message of one line.
    pub fn begin(&self) -> Result<(), String> {
        match self.ask(&Ask::Begin)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends the measurement: returns the counters of the server's machine.
    ///
    /// # Errors
    /// A message of one line.
    pub fn end(&self) -> Result<Window, String> {
        match self.ask(&Ask::End)? {
            Reply::Window(window) => Ok(window),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Stops serving the arm.
    ///
    /// # Errors
    /// A message of one line.
    pub fn stop(&self) -> Result<Polling, String> {
        match self.ask(&Ask::Stop)? {
            Reply::Stopped(polling) => Ok(polling),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Runs an idle control there, and `here` at the same time.
    ///
    /// # Errors
    /// A message of one line.
    pub fn idle<R>(&self, time: Duration, here: impl FnOnce() -> R) -> Result<(Usage, R), String> {
        self.named(self.control.send(&Ask::Idle { millis: time.as_millis() as u64 }))?;
        let here = here();
        match self.answer()? {
            Reply::Idle(usage) => Ok((usage, here)),
            other => Err(self.unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_port_or_the_default() {
        for (host, name, port) in [
            ("10.0.0.2", "10.0.0.2", PORT),
            ("10.0.0.2:9000", "10.0.0.2", 9000),
            ("server.example:1", "server.example", 1),
            ("fd00::2", "fd00::2", PORT),
            ("[fd00::2]", "fd00::2", PORT),
            ("[fd00::2]:65535", "fd00::2", 65535),
        ] {
            assert_eq!(split(host), Ok((name, port)));
        }
        for host in ["10.0.0.2:", "10.0.0.2:0", "10.0.0.2:65536", "server:http", "[fd00::2]9000x"] {
            assert!(split(host).is_err_and(|why| why.contains("port")), "{host}");
        }
    }
}
