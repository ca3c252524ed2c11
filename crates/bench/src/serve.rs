//! `busypoll serve`: the far end of a benchmark between two machines. Serves one bench at a time, and
//! only the machine that controls it.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, mpsc};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use busypoll_linux::topology;
use busypoll_stack::Host;

use crate::arm::{Plane, Protocol};
use crate::clock::Clock;
use crate::demand;
use crate::evidence::{Snapshot, Watch};
use crate::kernel::{Tcp, Udp, Wait};
use crate::remote::{Ask, Control, Job, Reply, VERSION};
use crate::slot::{Announce, thread_id};
use crate::stack;
use crate::units::{Size, TCP_MAX, UDP_MAX};
use crate::workload::{self, Polling, Stage};

/// The longest idle control that a peer may request.
const LONGEST_IDLE: Duration = Duration::from_secs(20);

/// A listening server.
pub struct Server {
    listener: TcpListener,
    cpu: u32,
    clock: Clock,
    host: Option<Host>,
}

/// An arm being served.
struct Running<'scope> {
    worker: ScopedJoinHandle<'scope, Result<Polling, String>>,
    stage: Arc<Stage>,
    thread: u32,
    before: Option<Snapshot>,
}

impl Server {
    /// Listens at `address` to serve on `cpu`; stack arms use the interface `device`.
    ///
    /// # Errors
    /// A message of one line: the port is in use or the highest possible, or the CPU or the interface cannot be used.
    pub fn bind(address: SocketAddr, cpu: u32, device: Option<&str>) -> Result<Self, String> {
        if address.port() == u16::MAX {
            return Err(format!(
                "--listen {address}: TCP data is on the next port: give a lower one"
            ));
        }
        topology::pin(cpu).map(drop).map_err(|e| format!("--cpu: {e}"))?;
        let listener = TcpListener::bind(address).map_err(|e| {
            let remedy = match e.kind() {
                ErrorKind::AddrInUse => "is another `busypoll serve` running?",
                ErrorKind::AddrNotAvailable => "`ip address` lists this machine's",
                ErrorKind::PermissionDenied => "ports below 1024 are root's",
                _ => "give an address of this machine and a port",
            };
            format!("--listen {address}: {e}; {remedy}")
        })?;
        let host = device.map(|name| stack::on_device(name, cpu)).transpose()?;
        Ok(Self { listener, cpu, clock: Clock::default(), host })
    }

    /// The address it listens at.
    ///
    /// # Errors
    /// A message of one line.
    pub fn address(&self) -> Result<SocketAddr, String> {
        self.listener.local_addr().map_err(|e| e.to_string())
    }

    /// Serves the next bench until it disconnects. Returns its address.
    ///
    /// # Errors
    /// A message of one line: the reason, if the session did not end with the bench's disconnecting.
    pub fn serve_one(&self) -> Result<SocketAddr, String> {
        let (stream, peer) = self.listener.accept().map_err(|e| format!("accept: {e}"))?;
        self.session(stream, peer).map_err(|e| format!("{peer}: {e}"))?;
        Ok(peer)
    }

    fn session(&self, stream: TcpStream, peer: SocketAddr) -> Result<(), String> {
        let here = stream.local_addr().map_err(|e| e.to_string())?;
        let control = Control::new(stream)?;
        thread::scope(|scope| {
            let mut running: Option<Running<'_>> = None;
            let mut converse = || -> Result<(), String> {
                while let Some(ask) = control.receive::<Ask>()? {
                    let reply = match ask {
                        Ask::Hello { .. } => Ok(Reply::Hello { version: VERSION }),
                        Ask::Idle { millis } => {
                            demand::idle(Duration::from_millis(millis).min(LONGEST_IDLE))
                                .map(Reply::Idle)
                        }
                        Ask::Start(job) => {
                            end(running.take());
                            self.start(scope, job, here, peer.ip()).map(|(r, address)| {
                                running = Some(r);
                                Reply::Ready(address)
                            })
                        }
                        Ask::Begin => self.begin(running.as_mut()).map(|()| Reply::Done),
                        Ask::End => self.end(running.as_mut()).map(Reply::Window),
                        Ask::Stop => Ok(Reply::Stopped(end(running.take()))),
                    };
                    control.send(&reply.unwrap_or_else(Reply::Refused))?;
                }
                Ok(())
            };
            let result = converse();
            end(running);
            result
        })
    }

    fn start<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        job: Job,
        here: SocketAddr,
        peer: IpAddr,
    ) -> Result<(Running<'scope>, SocketAddr), String> {
        let size = check(&job, self.host.is_some())?;
        let (sender, address) = mpsc::sync_channel(1);
        let (thread_sender, thread) = mpsc::sync_channel(1);
        let stage = Arc::new(Stage::default());
        let signal = stage.clone();
        let worker = scope.spawn(move || {
            let _pinned = topology::pin(self.cpu).map_err(|e| e.to_string())?;
            // The session reads the thread's id first.
            let _ = thread_sender.send(thread_id());
            let announce = Announce::new(sender);
            let busy_poll = Duration::from_micros(job.busy_poll_us);
            let wait = Wait::of(job.mode, busy_poll);
            let served = match job.protocol {
                Protocol::Udp if job.plane == Plane::Stack => {
                    let host = self.host.as_ref().ok_or(stack::NO_DEVICE)?;
                    let wait = stack::Wait::of(job.mode, busy_poll);
                    let udp = stack::Udp::server(host, here, wait, &self.clock)?;
                    announce.ready(here);
                    workload::serve(&mut udp.only_from(peer), size, &signal)
                }
                Protocol::Udp => {
                    let socket = UdpSocket::bind(here).map_err(|e| format!("bind {here}: {e}"))?;
                    announce.ready(here);
                    let mut udp = Udp::server(socket, wait, &self.clock)?.only_from(peer);
                    workload::serve(&mut udp, size, &signal)
                }
                Protocol::Tcp if job.plane == Plane::Stack => {
                    let host = self.host.as_ref().ok_or(stack::NO_DEVICE)?;
                    let wait = stack::Wait::of(job.mode, busy_poll);
                    let at = SocketAddr::new(here.ip(), here.port().wrapping_add(1));
                    let mut tcp =
                        stack::Tcp::server(host, at, wait, &self.clock, &announce, Some(peer))?;
                    workload::serve(&mut tcp, size, &signal)
                }
                Protocol::Tcp => {
                    let at = SocketAddr::new(here.ip(), here.port().wrapping_add(1));
                    let mut tcp = Tcp::server(at, wait, &self.clock, &announce, Some(peer))?;
                    workload::serve(&mut tcp, size, &signal)
                }
            };
            served.map_err(|e| e.to_string())
        });
        match (thread.recv(), address.recv()) {
            (Ok(thread), Ok(address)) => {
                Ok((Running { worker, stage, thread, before: None }, address))
            }
            // The worker ended before it was ready; its result has the reason.
            _ => match worker.join() {
                Ok(Err(why)) => Err(why),
                _ => Err("the server's thread ended early".to_owned()),
            },
        }
    }

    fn watch<'a>(&self, threads: &'a [u32]) -> Watch<'a> {
        Watch { lab: None, cpus: [self.cpu, self.cpu], threads }
    }

    fn begin(&self, running: Option<&mut Running<'_>>) -> Result<(), String> {
        let running = running.ok_or("nothing was started")?;
        running.stage.measure();
        running.before = Some(self.watch(&[running.thread]).before()?);
        Ok(())
    }

    fn end(&self, running: Option<&mut Running<'_>>) -> Result<crate::evidence::Window, String> {
        let running = running.ok_or("nothing was started")?;
        let before = running.before.take().ok_or("no measurement has begun")?;
        Ok(self.watch(&[running.thread]).after()?.since(&before, self.cpu))
    }
}

/// Checks the request of a peer.
fn check(job: &Job, has_device: bool) -> Result<Size, String> {
    let most = if job.protocol == Protocol::Udp { UDP_MAX } else { TCP_MAX };
    let fits = |n: usize| (1..=most).contains(&n);
    if !fits(job.request_bytes) || !fits(job.response_bytes) {
        return Err(format!("messages must have 1 to {most} bytes"));
    }
    match job.plane {
        Plane::Stack if !has_device => return Err(stack::NO_DEVICE.to_owned()),
        Plane::Bare => return Err("a bare arm has no server".to_owned()),
        Plane::Stack | Plane::Kernel => {}
    }
    Ok(Size { request: job.request_bytes, response: job.response_bytes })
}

/// Stops a worker, at its next message or after one [`RECEIVE_TIMEOUT`], and returns its counts.
fn end(running: Option<Running<'_>>) -> Polling {
    let Some(running) = running else { return Polling::default() };
    running.stage.stop();
    // If the worker failed earlier, the bench has noticed that no answers came.
    running.worker.join().ok().and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::Mode;

    fn job(protocol: Protocol, request_bytes: usize) -> Job {
        Job {
            plane: Plane::Kernel,
            protocol,
            mode: Mode::Blocking,
            busy_poll_us: 50,
            request_bytes,
            response_bytes: 1,
        }
    }

    #[test]
    fn an_address_that_cannot_be_listened_at_is_refused_with_the_reason() {
        let cpu = topology::allowed().expect("affinity").iter().next().expect("a CPU");
        let refused = |address| Server::bind(address, cpu, None).err().expect("refused");
        let taken = TcpListener::bind("127.0.0.1:0").and_then(|l| Ok((l.local_addr()?, l)));
        let (address, _listener) = taken.expect("a port");
        let why = refused(address);
        assert!(why.contains("another `busypoll serve`"), "{why}");
        // TEST-NET-3 (RFC 5737) is not an address of this machine.
        let why = refused(SocketAddr::from(([203, 0, 113, 7], 9000)));
        assert!(why.contains("`ip address`") && !why.contains("another"), "{why}");
    }

    #[test]
    fn invalid_jobs_are_refused() {
        assert!(check(&job(Protocol::Udp, 1), false).is_ok());
        assert!(check(&job(Protocol::Tcp, UDP_MAX + 1), false).is_ok());
        for (protocol, bytes) in
            [(Protocol::Udp, 0), (Protocol::Udp, UDP_MAX + 1), (Protocol::Tcp, TCP_MAX + 1)]
        {
            assert!(check(&job(protocol, bytes), true).is_err());
        }
        let stack = Job { plane: Plane::Stack, ..job(Protocol::Udp, 1) };
        assert!(check(&stack, true).is_ok());
        assert!(check(&stack, false).is_err_and(|why| why.contains("--dev")));
        assert!(check(&Job { protocol: Protocol::Tcp, ..stack }, true).is_ok());
        assert!(check(&Job { plane: Plane::Bare, ..stack }, true).is_err());
    }
}
