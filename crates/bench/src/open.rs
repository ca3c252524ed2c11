//! Idle connections and sockets that are open besides the measured one, which is the last one opened:
//! how both ends open them, and how much memory of this process and of the kernel each takes.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::arm::{Arm, Nic, Plane, Protocol};
use crate::data::Weight;
use crate::slot::{self, Announce, Plan, Slot};
use crate::workload::{Endpoint, Polling, TRIES};

/// Runs an arm once with this many connections or sockets open at the server and at the client. `serve` and
/// `connect` are as for [`slot::run`], and open theirs by [`OpeningEnd::open`].
///
/// # Errors
/// As [`slot::run`].
pub fn run<S: Endpoint, C: Endpoint>(
    plan: &Plan<'_>,
    [servers, clients]: [usize; 2],
    serve: impl FnOnce(&Announce, OpeningEnd<'_>) -> Result<WithIdle<S>, String> + Send,
    connect: impl FnOnce(SocketAddr, OpeningEnd<'_>) -> Result<WithIdle<C>, String> + Send,
) -> Result<Slot, String> {
    let (weight, why) = (OnceLock::new(), OnceLock::new());
    let (to_client, from_server) = sync_channel(1);
    let (to_server, from_client) = sync_channel(1);
    // All but the first of each end are opened between the two readings.
    let made = [servers, clients].map(|count| (count - 1).max(1)).iter().sum();
    let scale = (servers > 1).then_some((&weight, made));
    let server = OpeningEnd { count: servers, to: to_client, from: from_client, scale: None };
    let client = OpeningEnd { count: clients, to: to_server, from: from_server, scale };
    // If one end fails, the other fails too; the reason is that of the first failure.
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

/// One end while it opens its connections or sockets.
pub struct OpeningEnd<'a> {
    count: usize,
    to: SyncSender<()>,
    from: Receiver<()>,
    /// The result of the end that measures, and the number of objects.
    scale: Option<(&'a OnceLock<Weight>, usize)>,
}

impl OpeningEnd<'_> {
    /// Opens all, one after another. The argument of `make` says whether it is the last, and `make` returns after its
    /// exchange of messages.
    ///
    /// # Errors
    /// Those of `make`; one line if the other end failed.
    pub fn open<E: Endpoint>(
        self,
        mut make: impl FnMut(bool) -> Result<E, String>,
    ) -> Result<WithIdle<E>, String> {
        let others = self.count - 1;
        let mut idle = Vec::with_capacity(others);
        // After the first one, neighbours are resolved and threads have their own memory.
        if others > 0 {
            idle.push(make(false)?);
        }
        self.wait_for_other_end()?;
        let before = self.scale.map(|_| {
            settle();
            Reading::now()
        });
        self.wait_for_other_end()?;
        while idle.len() < others {
            idle.push(make(false)?);
        }
        let end = make(true)?;
        self.wait_for_other_end()?;
        if let (Some((weight, made)), Some(before)) = (self.scale, before) {
            thread::sleep(IDLE);
            settle();
            let _ = weight.set(Reading::now().since(&before, made));
        }
        Ok(WithIdle { end, idle })
    }

    /// Waits for the other end.
    fn wait_for_other_end(&self) -> Result<(), String> {
        self.to
            .send(())
            .ok()
            .and_then(|()| self.from.recv().ok())
            .ok_or("the other end failed".to_owned())
    }
}

/// The last one opened, which is measured, and the idle others.
pub struct WithIdle<E: Endpoint> {
    end: E,
    idle: Vec<E>,
}

impl<E: Endpoint> Drop for WithIdle<E> {
    fn drop(&mut self) {
        // Only now, as the option takes memory.
        self.idle.iter_mut().for_each(E::abandon);
        self.end.abandon();
    }
}

impl<E: Endpoint> Endpoint for WithIdle<E> {
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

/// Sends a byte to a server that [answers](answer), and waits for one.
///
/// # Errors
/// A message of one line.
pub fn ask(end: &mut impl Endpoint) -> Result<(), String> {
    end.send(&[0]).map_err(text)?;
    byte(end)
}

/// Waits for a byte from a client that [asks](ask), and sends one back.
///
/// # Errors
/// A message of one line.
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

/// Descriptors for other purposes.
const OTHERS: usize = 256;

/// Raises the limit of file descriptors for `count` open connections or sockets.
///
/// # Errors
/// A message of one line that names the limit.
pub fn room(arm: &Arm, count: usize) -> Result<(), String> {
    // In user space sockets are no files, but over AF_XDP a kernel socket reserves each local port.
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
    // Root may exceed its hard limit.
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

/// The time after which a connection counts as idle: by then a host and the kernel have released what they keep only
/// for active ones.
const IDLE: Duration = Duration::from_millis(500);

/// Gives back what earlier runs have left: free memory of the process would take the new objects without
/// growth, and the kernel frees sockets some time after they are closed.
fn settle() {
    const PAUSE: Duration = Duration::from_millis(20);
    const MAX_CHANGE: u64 = 64 << 10;
    #[cfg(target_env = "gnu")]
    // SAFETY: affects only free memory.
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
        if last.is_some_and(|now| now.abs_diff(then) < MAX_CHANGE) {
            return;
        }
    }
}

/// Counted by pages: the faster figures of /proc lag by up to half a megabyte.
fn resident() -> Option<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// All small objects of the kernel: a socket consists of a protocol's object, an inode, a file, a dentry.
/// Which caches they are in differs between kernels, so all caches are summed.
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
    fn the_caches_of_a_slabinfo_are_summed() {
        let text = "slabinfo - version: 2.1\n\
            # name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables\n\
            UDP 73 144 1344 12 4 : tunables 0 0 0 : slabdata 12 12 0\n\
            filp 735 735 192 21 1 : tunables 0 0 0 : slabdata 35 35 0\n";
        assert_eq!(objects(text), Some(73 * 1344 + 735 * 192));
        assert_eq!(objects("slabinfo - version: 2.1\nUDP seven\n"), None);
    }

    #[test]
    fn touched_memory_is_measured_and_given_back() {
        const BYTES: usize = 64 << 20;
        let before = Reading::now();
        let block = vec![1u8; BYTES];
        let weight = Reading::now().since(&before, BYTES);
        // Other tests run at the same time.
        assert!(weight.process.is_some_and(|each| (0.5..1.5).contains(&each)), "{weight:?}");
        drop(block);
    }

    #[test]
    fn more_descriptors_than_allowed_are_refused_in_one_line() {
        let arm = |name: &str| *ARMS.iter().find(|a| a.name == name).expect("in the table");
        let why = room(&arm("kernel-tcp-busy-poll"), 1 << 40).expect_err("a limit");
        assert!(why.contains("ulimit -Hn") && why.lines().count() == 1, "{why}");
        assert_eq!(room(&arm("kernel-tcp-busy-poll"), 1), Ok(()));
        // Connections over the cable are no files.
        assert_eq!(room(&arm("stack-cable-tcp-busy-poll"), 1 << 40), Ok(()));
    }
}
