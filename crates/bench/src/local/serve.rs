//! The other process itself. One thread serves, pinned; another reads the control connection, and ends the process with
//! it: so it never outlives its parent, also where it spins and the parent was killed.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use busypoll_linux::topology;
use busypoll_stack::nic::cable;

use super::memory::Memory;
use super::process::{Ask, Job, Ready, Reply, write};
use super::unix::Unix;
use super::{ENDS, cable_name};
use crate::arm::{ARMS, Arm, Nic, Protocol};
use crate::clock::Clock;
use crate::error::Error;
use crate::kernel::{self, Wait};
use crate::slot::{Announce, thread_id};
use crate::stack;
use crate::units::Size;
use crate::workload::{self, Endpoint, Polling, Stage};

const PORT: u16 = 7000;
const LONGEST_LINE: u64 = 4096;

/// The control connection, for messages to the parent.
#[derive(Clone)]
struct Control(Arc<Mutex<UnixStream>>);

impl Control {
    /// Calls `change`, then says so: no other message comes in between. A parent that is gone is the reader's to notice.
    fn say(&self, change: impl FnOnce(), reply: &Reply) {
        let control = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change();
        let _ = write(&control, reply);
    }

    fn ready(&self, address: Option<SocketAddr>) {
        self.say(|| (), &Reply::Ready(Ready { thread: thread_id(), address }));
    }
}

/// Serves one arm for the process that has started this one, and ends with it.
///
/// # Errors
/// If no bench has started it.
pub fn serve() -> Result<(), Error> {
    let by_hand = |e: io::Error| format!("--other-end: only a bench starts it so: {e}");
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(by_hand)?;
    let data = io::stdout().as_fd().try_clone_to_owned().map_err(by_hand)?;
    let control = UnixStream::from(control);
    let mut asks = BufReader::new(control.try_clone().map_err(by_hand)?);
    let mut line = String::new();
    asks.by_ref().take(LONGEST_LINE).read_line(&mut line).map_err(by_hand)?;
    let job: Job = serde_json::from_str(&line).map_err(|e| by_hand(e.into()))?;
    let control = Control(Arc::new(Mutex::new(control)));
    let stage = Arc::new(Stage::default());
    let reader = {
        let (control, stage) = (control.clone(), stage.clone());
        let read = move || answer(asks, &control, &stage);
        thread::Builder::new().name("control".into()).spawn(read).map_err(by_hand)?
    };
    let served = serve_arm(&job, data, &control, &stage);
    control.say(|| (), &served.map_or_else(Reply::Failed, Reply::Stopped));
    // Ends the process.
    let _ = reader.join();
    Ok(())
}

/// Answers the parent until it is gone.
fn answer(asks: BufReader<UnixStream>, control: &Control, stage: &Stage) {
    for line in asks.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Ask::Measure) => control.say(|| stage.measure(), &Reply::Done),
            Ok(Ask::Stop) => control.say(|| stage.stop(), &Reply::Done),
            Err(e) => control.say(|| (), &Reply::Failed(e.to_string())),
        }
    }
    std::process::exit(0);
}

fn run(endpoint: &mut impl Endpoint, (size, stage): (Size, &Stage)) -> Result<Polling, String> {
    workload::serve(endpoint, size, stage).map_err(|e| e.to_string())
}

fn serve_arm(
    job: &Job,
    data: OwnedFd,
    control: &Control,
    stage: &Stage,
) -> Result<Polling, String> {
    let arm: &Arm = ARMS
        .iter()
        .find(|arm| arm.name == job.arm && arm.is_local())
        .ok_or_else(|| format!("no arm between processes is called '{}'", job.arm))?;
    let _pinned = topology::pin(job.cpu).map_err(|e| e.to_string())?;
    let (size, clock) = (job.size(), Clock::default());
    let wait = Wait::of(arm.mode, job.busy_poll());
    let stage = (size, stage);
    let announce = || {
        let control = control.clone();
        Announce::by(move |address| control.ready(Some(address)))
    };
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    match (arm.nic, arm.protocol) {
        (Nic::Unix, protocol) => {
            let mut unix = Unix::new(data, protocol, wait, &clock)?;
            control.ready(None);
            run(&mut unix, stage)
        }
        (Nic::Memory, _) => {
            let mut memory = Memory::server(&data, size, &clock)?;
            control.ready(None);
            run(&mut memory, stage)
        }
        (Nic::Cable, protocol) => {
            let mtu = stack::cable_mtu(size, job.mtu);
            let rendezvous = cable::listen(&cable_name(job.bench)).map_err(stack::one_line)?;
            control.say(|| (), &Reply::Listens);
            let nic = rendezvous
                .accept(cable::Config { mtu, ..cable::Config::default() })
                .map_err(stack::one_line)?;
            let host = stack::host(nic, Some(ENDS[1]), job.cpu)?;
            let (at, wait) = ((ENDS[1], PORT).into(), stack::Wait::of(arm.mode, job.busy_poll()));
            match protocol {
                Protocol::Udp => {
                    let mut udp = stack::Udp::server(&host, at, wait, &clock)?;
                    control.ready(Some(at));
                    run(&mut udp, stage)
                }
                Protocol::Tcp => {
                    let mut tcp = stack::Tcp::server(&host, at, wait, &clock, &announce(), None)?;
                    run(&mut tcp, stage)
                }
            }
        }
        (_, Protocol::Udp) => {
            let socket = UdpSocket::bind(here).map_err(kernel::one_line("bind"))?;
            let at = socket.local_addr().map_err(kernel::one_line("getsockname"))?;
            let mut udp = kernel::Udp::server(socket, wait, &clock)?;
            control.ready(Some(at));
            run(&mut udp, stage)
        }
        (_, Protocol::Tcp) => {
            let mut tcp = kernel::Tcp::server(here, wait, &clock, &announce(), None)?;
            run(&mut tcp, stage)
        }
    }
}
