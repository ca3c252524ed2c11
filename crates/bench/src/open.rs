//! Connections and sockets that are open and idle beside the one that is measured, which is the last one opened:
//! how both ends make them, and what each takes of this process's memory and of the kernel's.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::arm::{Arm, Nic, Plane, Protocol};
use crate::slot::{self, Announce, Plan, Slot};
use crate::workload::{Endpoint, Polling, TRIES};

/// Bytes of one idle end: of a connection, which has both of its ends in this process, or a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Weight {
    /// Growth of this process's resident memory; null where the kernel does not say.
    pub process: Option<f64>,
    /// Growth of the kernel's objects, those of other programs meanwhile among them; null without root, to whom
    /// alone the kernel tells.
    pub kernel: Option<f64>,
}

/// Runs an arm once with so many connections or sockets open at the server and at the client. `serve` and
/// `connect` are as [`slot::run`]'s, and open theirs by [`Party::open`].
///
/// # Errors
/// As [`slot::run`].
pub fn run<S: Endpoint, C: Endpoint>(
    plan: &Plan<'_>,
    [servers, clients]: [usize; 2],
    serve: impl FnOnce(&Announce, Party<'_>) -> Result<Beside<S>, String> + Send,
    connect: impl FnOnce(SocketAddr, Party<'_>) -> Result<Beside<C>, String> + Send,
) -> Result<Slot, String> {
    let (weight, why) = (OnceLock::new(), OnceLock::new());
    let (to_client, from_server) = sync_channel(1);
    let (to_server, from_client) = sync_channel(1);
    // All but the first of each end are made between the two weighings.
    let made = [servers, clients].map(|count| (count - 1).max(1)).iter().sum();
    let scale = (servers > 1).then_some((&weight, made));
    let server = Party { count: servers, to: to_client, from: from_client, scale: None };
    let client = Party { count: clients, to: to_server, from: from_server, scale };
    // The end that fails takes the other with it; the reason is the first one's.
    let noted = |failure: &String| {
        let _ = why.set(failure.clone());
    };
    let slot = slot::run(
        plan,
        |announce| serve(announce, server).inspect_err(noted),
        |to| connect(to, client).inspect_err(noted),
    );
    match slot {
        Ok(slot) => Ok(Slot { weight: weight.into_inner(), ..slot }),
        Err(other) => Err(why.into_inner().unwrap_or(other)),
    }
}

/// One end while it opens what is to be open.
pub struct Party<'a> {
    count: usize,
    to: SyncSender<()>,
    from: Receiver<()>,
    /// Where the end that weighs writes it down, and for how many.
    scale: Option<(&'a OnceLock<Weight>, usize)>,
}

impl Party<'_> {
    /// Opens all, one after another. `make` is told whether it makes the last, and returns when that has
    /// exchanged what it is to exchange.
    ///
    /// # Errors
    /// Those of `make`; one line where the other end failed.
    pub fn open<E: Endpoint>(
        self,
        mut make: impl FnMut(bool) -> Result<E, String>,
    ) -> Result<Beside<E>, String> {
        let others = self.count - 1;
        let mut idle = Vec::with_capacity(others);
        // With the first, neighbours are known and threads have their own.
        if others > 0 {
            idle.push(make(false)?);
        }
        self.meet()?;
        let before = self.scale.map(|_| {
            settle();
            Reading::now()
        });
        self.meet()?;
        while idle.len() < others {
            idle.push(make(false)?);
        }
        let end = make(true)?;
        self.meet()?;
        if let (Some((weight, made)), Some(before)) = (self.scale, before) {
            thread::sleep(IDLE);
            settle();
            let _ = weight.set(Reading::now().since(&before, made));
        }
        Ok(Beside { end, idle })
    }

    /// Waits for the other end.
    fn meet(&self) -> Result<(), String> {
        self.to
            .send(())
            .ok()
            .and_then(|()| self.from.recv().ok())
            .ok_or("the other end failed".to_owned())
    }
}

/// The last one opened, and the others.
pub struct Beside<E: Endpoint> {
    end: E,
    idle: Vec<E>,
}

impl<E: Endpoint> Drop for Beside<E> {
    fn drop(&mut self) {
        // Not sooner: an option is memory.
        self.idle.iter_mut().for_each(E::abandon);
        self.end.abandon();
    }
}

impl<E: Endpoint> Endpoint for Beside<E> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.end.send(message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.end.recv(buffer)
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.end.try_recv(buffer)
    }

    fn polling(&self) -> Polling {
        self.end.polling()
    }
}

/// A byte to a server that [answers](answer).
///
/// # Errors
/// One line.
pub fn ask(end: &mut impl Endpoint) -> Result<(), String> {
    end.send(&[0]).map_err(text)?;
    byte(end)
}

/// A byte from a client that [asks](ask), and one back.
///
/// # Errors
/// One line.
pub fn answer(end: &mut impl Endpoint) -> Result<(), String> {
    byte(end)?;
    end.send(&[0]).map_err(text)
}

fn byte(end: &mut impl Endpoint) -> Result<(), String> {
    for _ in 0..TRIES {
        if end.recv(&mut [0]).map_err(text)?.is_some() {
            return Ok(());
        }
    }
    Err("a new connection carries nothing".to_owned())
}

fn text(e: io::Error) -> String {
    e.to_string()
}

/// Descriptors for all else.
const OTHERS: usize = 256;

/// Sees to it that this process may have the descriptors for `count` open ones.
///
/// # Errors
/// One line that names the limit.
pub fn room(arm: &Arm, count: usize) -> Result<(), String> {
    // In user space the sockets are no files, but over AF_XDP each local port is held in the kernel.
    let files = match (arm.plane, arm.nic, arm.protocol) {
        (_, Nic::Cable, _) => return Ok(()),
        (Plane::Kernel, _, Protocol::Tcp) => 2 * count,
        _ => count,
    };
    let need = (files + OTHERS) as u64;
    let has = getrlimit(Resource::Nofile);
    if has.current.is_none_or(|current| current >= need) {
        return Ok(());
    }
    // Root may have more than its limit.
    let maximum = has.maximum.map(|maximum| maximum.max(need));
    setrlimit(Resource::Nofile, Rlimit { current: Some(need), maximum }).map_err(|_| {
        let has = has.maximum.unwrap_or_default();
        format!(
            "they need {need} file descriptors and this process may have {has}: raise the limit (ulimit -Hn {need})"
        )
    })
}

/// Memory in use, in bytes.
struct Reading {
    process: Option<u64>,
    kernel: Option<u64>,
}

impl Reading {
    fn now() -> Self {
        Self { process: resident(), kernel: kernel_objects() }
    }

    fn since(&self, earlier: &Self, ends: usize) -> Weight {
        let each =
            |now: Option<u64>, then: Option<u64>| Some((now? as f64 - then? as f64) / ends as f64);
        Weight {
            process: each(self.process, earlier.process),
            kernel: each(self.kernel, earlier.kernel),
        }
    }
}

/// Since when nothing has come or gone over a connection that is idle: what a host and the kernel keep for one that
/// is not, they have let go by then.
const IDLE: Duration = Duration::from_millis(500);

/// What earlier runs have left is given back: room that the process has and does not use would take the new ones
/// in without growing, and the kernel frees sockets some time after they are closed.
fn settle() {
    const PAUSE: Duration = Duration::from_millis(20);
    const CALM: u64 = 64 << 10;
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
    let give_up = Instant::now() + 10 * PAUSE;
    let mut last = kernel_objects();
    while let Some(then) = last
        && Instant::now() < give_up
    {
        thread::sleep(PAUSE);
        last = kernel_objects();
        if last.is_some_and(|now| now.abs_diff(then) < CALM) {
            return;
        }
    }
}

/// Counted page by page: the quicker figures of /proc are up to half a megabyte behind.
fn resident() -> Option<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Everything small that the kernel keeps: a socket is one object of its protocol's, an inode, a file, a name.
/// Which caches hold it all differs from kernel to kernel, so all are summed up.
fn kernel_objects() -> Option<u64> {
    objects(&fs::read_to_string("/proc/slabinfo").ok()?)
}

/// `name active_objs num_objs objsize …`, below two lines of heading.
fn objects(slabinfo: &str) -> Option<u64> {
    let lines = slabinfo.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines
        .map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let active: u64 = fields.next()?.parse().ok()?;
            Some(active * fields.nth(1)?.parse::<u64>().ok()?)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::ARMS;

    #[test]
    fn a_slabinfo_is_summed_up() {
        let text = "slabinfo - version: 2.1\n\
            # name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables\n\
            UDP 73 144 1344 12 4 : tunables 0 0 0 : slabdata 12 12 0\n\
            filp 735 735 192 21 1 : tunables 0 0 0 : slabdata 35 35 0\n";
        assert_eq!(objects(text), Some(73 * 1344 + 735 * 192));
        assert_eq!(objects("slabinfo - version: 2.1\nUDP seven\n"), None);
    }

    #[test]
    fn memory_that_is_touched_is_seen_and_given_back() {
        const BYTES: usize = 64 << 20;
        let before = Reading::now();
        let block = vec![1u8; BYTES];
        let weight = Reading::now().since(&before, BYTES);
        // Other tests run beside.
        assert!(weight.process.is_some_and(|each| (0.5..1.5).contains(&each)), "{weight:?}");
        drop(block);
    }

    #[test]
    fn more_than_a_process_may_have_is_refused_in_one_line() {
        let arm = |name: &str| *ARMS.iter().find(|a| a.name == name).expect("in the table");
        let why = room(&arm("kernel-tcp-busy-poll"), 1 << 40).expect_err("a limit");
        assert!(why.contains("ulimit -Hn") && why.lines().count() == 1, "{why}");
        assert_eq!(room(&arm("kernel-tcp-busy-poll"), 1), Ok(()));
        // Its connections are no files.
        assert_eq!(room(&arm("stack-cable-tcp-busy-poll"), 1 << 40), Ok(()));
    }
}
