//! The process at the other end, as its parent has it: started, talked to, and ended with its value. Its standard input is
//! the control connection, one JSON message a line; its standard output is what joins the two, where that is a
//! descriptor. So it needs no name that another program could take.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::Size;
use crate::workload::{self, Polling};

/// The arguments that make this program the other end.
pub type OtherEnd = &'static [&'static str];

/// Longer than any answer takes.
const ANSWER: Duration = Duration::from_secs(10);

/// The arm to serve: the first message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) arm: String,
    pub(super) cpu: u32,
    pub(super) request_bytes: usize,
    pub(super) response_bytes: usize,
    pub(super) busy_poll_us: u64,
    pub(super) mtu: usize,
    /// The process that asks.
    pub(super) bench: u32,
}

impl Job {
    pub(super) fn size(&self) -> Size {
        Size { request: self.request_bytes, response: self.response_bytes }
    }

    pub(super) fn busy_poll(&self) -> Duration {
        Duration::from_micros(self.busy_poll_us)
    }
}

/// Later messages to the other end, each answered by [`Reply::Done`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Ask {
    /// The measurement begins.
    Measure,
    /// It has ended; one more message will come.
    Stop,
}

/// Messages of the other end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// It listens for a cable.
    Listens,
    /// It serves.
    Ready(Ready),
    /// To [`Ask`].
    Done,
    /// It has served, and this is what its endpoint counted during the measurement.
    Stopped(Polling),
    /// It cannot serve, and why.
    Failed(String),
}

/// What serves, and where.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) thread: u32,
    pub(super) address: Option<SocketAddr>,
}

/// Writes one message.
pub(super) fn write(mut to: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// The other process. It is killed with this value, and ends by itself if this process is killed.
pub(crate) struct Process {
    child: RefCell<Child>,
    control: RefCell<BufReader<UnixStream>>,
    ready: RefCell<Option<Ready>>,
}

impl Process {
    /// Starts it; `data` is what joins the two, if that is a descriptor.
    pub(super) fn start(
        other_end: OtherEnd,
        job: &Job,
        data: Option<OwnedFd>,
    ) -> Result<Self, String> {
        let failed = |e: io::Error| format!("cannot start a second process: {e}");
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(ANSWER)).map_err(failed)?;
        // The file itself, also where another one has taken its name meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(other_end)
            .stdin(OwnedFd::from(theirs))
            .stdout(data.map_or(Stdio::null(), Stdio::from))
            // Ctrl-C is this process's to answer.
            .process_group(0);
        let child = RefCell::new(command.spawn().map_err(failed)?);
        // Its descriptors have to end with it, not with the command.
        drop(command);
        let control = RefCell::new(BufReader::new(ours));
        let process = Self { child, control, ready: RefCell::default() };
        process.tell(job)?;
        Ok(process)
    }

    /// Sends one message.
    fn tell(&self, message: &impl Serialize) -> Result<(), String> {
        write(self.control.borrow().get_ref(), message).map_err(|_| self.ended())
    }

    fn receive(&self) -> Result<Reply, String> {
        let mut line = String::new();
        match self.control.borrow_mut().read_line(&mut line) {
            Ok(1..) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                return Err("the other process does not answer".to_owned());
            }
            Ok(0) | Err(_) => return Err(self.ended()),
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Failed(why)) => Err(why),
            other => other.map_err(|e| format!("the other process: {e}")),
        }
    }

    /// How it ended.
    fn ended(&self) -> String {
        match self.child.borrow_mut().wait() {
            Ok(status) => format!("the other process ended: {status}"),
            Err(e) => format!("the other process: {e}"),
        }
    }

    fn unexpected<T>(reply: &Reply) -> Result<T, String> {
        Err(format!("the other process answered out of turn: {reply:?}"))
    }

    /// Waits until it listens for a cable.
    pub(super) fn listens(&self) -> Result<(), String> {
        match self.receive()? {
            Reply::Listens => Ok(()),
            other => Self::unexpected(&other),
        }
    }

    /// Waits until it serves.
    fn ready(&self) -> Result<Ready, String> {
        if let Some(ready) = *self.ready.borrow() {
            return Ok(ready);
        }
        match self.receive()? {
            Reply::Ready(ready) => Ok(*self.ready.borrow_mut().insert(ready)),
            other => Self::unexpected(&other),
        }
    }

    /// Where it serves, once it does.
    pub(super) fn address(&self) -> Result<SocketAddr, String> {
        self.ready()?.address.ok_or_else(|| "the other process has no address".to_owned())
    }

    /// The thread that serves, once it does.
    pub(crate) fn thread(&self) -> Result<u32, String> {
        Ok(self.ready()?.thread)
    }

    fn ask(&self, ask: Ask) -> Result<(), String> {
        self.tell(&ask)?;
        match self.receive()? {
            Reply::Done => Ok(()),
            other => Self::unexpected(&other),
        }
    }

    /// The measurement begins.
    pub(crate) fn measure(&self) -> Result<(), String> {
        self.ask(Ask::Measure)
    }

    /// The measurement has ended. A server that waits needs one more message.
    pub(crate) fn stop(&self) -> Result<(), String> {
        self.ask(Ask::Stop)
    }

    /// What its endpoint counted.
    pub(crate) fn stopped(&self) -> Result<Polling, String> {
        match self.receive()? {
            Reply::Stopped(polling) => Ok(polling),
            other => Self::unexpected(&other),
        }
    }

    /// Why an exchange has failed: what the other process says, or how it has ended; else `error`.
    pub(crate) fn why(&self, error: &io::Error) -> String {
        // The other end is closed, so the process has an error or comes to its end.
        if workload::is_over(error) {
            return self.receive().err().unwrap_or_else(|| error.to_string());
        }
        match self.child.borrow_mut().try_wait() {
            Ok(Some(status)) => format!("the other process ended: {status}"),
            _ => error.to_string(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}
