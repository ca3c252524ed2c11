//! One reading of all sources: counters since some beginning, of which two readings make figures.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant, SystemTime};

use busypoll_doctor::Finding;
use busypoll_linux::bpf::deliveries::Delivery;
use busypoll_linux::bpf::files::{Files, Kind};
use busypoll_linux::bpf::napi::Passes;
use busypoll_linux::bpf::waits::{ThreadWaits, Waits, Watched};
use busypoll_linux::{process, topology};
use busypoll_observe::findings::Findings;
use busypoll_observe::machine::{self, Machine};
use busypoll_observe::napi::{self, Instance};
use busypoll_observe::passes::{By, PassCount};
use busypoll_observe::runs::{self, Guards, Run};
use busypoll_observe::spinners::{self, UserSpinners};

/// How often doctor's checks are made.
const DOCTOR: Duration = Duration::from_secs(10);

/// The most processes whose threads are watched.
const PROCESSES: usize = 4096;

/// TCP_LISTEN.
const LISTEN: u32 = 10;

/// The sources.
pub(crate) struct Collector {
    passes: PassCount,
    files: Result<Files, String>,
    waits: Result<Waits, String>,
    watched: BTreeSet<u32>,
    guards: Guards,
    findings: Findings,
}

/// A source that could not be read, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct NotSeen {
    pub(crate) what: &'static str,
    pub(crate) why: String,
}

/// One reading.
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) time: SystemTime,
    pub(crate) online: usize,
    pub(crate) machine: Machine,
    pub(crate) instances: Vec<Instance>,
    pub(crate) passes: Option<Vec<Passes>>,
    pub(crate) deliveries: Option<Vec<Delivery>>,
    pub(crate) owners: Owners,
    pub(crate) waits: Option<Vec<ThreadWaits>>,
    pub(crate) runs: Vec<Run>,
    pub(crate) spinners: Vec<UserSpinners>,
    pub(crate) findings: Vec<Finding>,
    /// CPU time by process, in nanoseconds.
    pub(crate) cpu: BTreeMap<u32, u64>,
    pub(crate) not_seen: Vec<NotSeen>,
}

/// Which process a packet's socket belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    cookies: HashMap<u64, u32>,
    listeners: HashMap<(u32, u16), u32>,
    pub(crate) names: BTreeMap<u32, String>,
    /// Processes with an AF_XDP socket; with one of TCP or UDP, which the guard of a run has not.
    xdp: BTreeSet<u32>,
    inet: BTreeSet<u32>,
}

impl Owners {
    /// The process of the socket; of one that is closed, the process that listens on its port.
    pub(crate) fn of(&self, delivery: &Delivery) -> Option<u32> {
        let listener = || self.listeners.get(&(delivery.netns, delivery.local_port));
        self.cookies.get(&delivery.cookie).or_else(listener).copied()
    }
}

impl Collector {
    /// Begins to count. With `bpf` as far as this user may.
    pub(crate) fn start(bpf: bool) -> Self {
        let off = || "--no-bpf".to_owned();
        let said = |error: busypoll_linux::Error| error.to_string();
        Collector {
            passes: if bpf { PassCount::start(By::Thread) } else { PassCount::off("--no-bpf") },
            files: if bpf { Files::load().map_err(said) } else { Err(off()) },
            waits: match bpf {
                true => Waits::start(&[], Watched::default()).map_err(said),
                false => Err(off()),
            },
            watched: BTreeSet::new(),
            guards: Guards::default(),
            findings: Findings::every(DOCTOR, true),
        }
    }

    /// Has doctor check these processes by name.
    pub(crate) fn check(&self, pids: Vec<u32>) {
        self.findings.name(pids);
    }

    /// Reads all.
    pub(crate) fn sample(&mut self) -> Sample {
        let mut not_seen = Vec::new();
        let mut miss = |what, why: String| not_seen.push(NotSeen { what, why });
        let machine = machine::read().unwrap_or_else(|why| {
            miss("the kernel's counters", why.to_string());
            Machine::default()
        });
        let instances = match napi::read() {
            Ok(seen) => seen.rows,
            Err(why) => {
                miss("NAPI instances and interrupts", why.to_string());
                Vec::new()
            }
        };
        let (mut passes, mut deliveries) = (None, None);
        match self.passes.read() {
            Ok(counted) => {
                passes = Some(counted.passes);
                match counted.deliveries {
                    Ok(all) => deliveries = Some(all.rows),
                    Err(why) => miss("packets by process", why),
                }
            }
            Err(why) => miss("how the kernel finds packets", why),
        }
        // After the packets: counting a socket's first packet gives the socket the cookie that names it.
        let owners = self.owners().unwrap_or_else(|why| {
            miss("which process packets are for", why);
            Owners::default()
        });
        let waits = self.waits();
        let waits = waits.map_err(|why| miss("how threads wait", why)).ok();
        let mut runs = self.guards.read();
        // Runs whose guards are in other network namespaces.
        for pid in owners.xdp.intersection(&owners.inet) {
            if runs.rows.iter().all(|run| run.pid as u32 != *pid) {
                runs.rows.extend(runs::of_process(*pid));
            }
        }
        if runs.unseen > 0 {
            miss("runs of the stack plane", format!("{} of other users", runs.unseen));
        }
        let spinners = match spinners::read() {
            Ok(seen) => {
                if seen.unseen > 0 {
                    miss("spinners", format!("those of {} other users", seen.unseen));
                }
                seen.rows
            }
            Err(why) => {
                miss("spinners", why.to_string());
                Vec::new()
            }
        };
        let cpu = self.watched.iter().copied().chain(runs.rows.iter().map(|run| run.pid as u32));
        let cpu = cpu.filter_map(|pid| Some((pid, process::cpu_ns(pid)?))).collect();
        let findings = self.findings.last().map(|last| last.findings);
        let findings = findings.map_err(|why| miss("what doctor finds", why)).unwrap_or_default();
        Sample {
            at: Instant::now(),
            time: SystemTime::now(),
            online: topology::online().map_or(1, |cpus| cpus.len()),
            machine,
            instances,
            passes,
            deliveries,
            owners,
            waits,
            runs: runs.rows,
            spinners,
            findings,
            cpu,
            not_seen,
        }
    }

    /// Which process has which socket; their threads are watched from now on.
    fn owners(&mut self) -> Result<Owners, String> {
        let files = self.files.as_mut().map_err(|why| why.clone())?;
        let mut owners = Owners::default();
        for file in files.of(None).map_err(|error| error.to_string())? {
            let Kind::Socket(socket) = file.kind else { continue };
            match socket.family as i32 {
                libc::AF_XDP => _ = owners.xdp.insert(file.pid),
                libc::AF_INET | libc::AF_INET6 if socket.kind != libc::SOCK_RAW as u32 => {
                    owners.inet.insert(file.pid);
                }
                _ => {}
            }
            if socket.cookie != 0 {
                owners.cookies.entry(socket.cookie).or_insert(file.pid);
            }
            let Some(local) = socket.local else { continue };
            let udp = socket.protocol == libc::IPPROTO_UDP as u32 && local.port() != 0;
            if socket.state == LISTEN || udp {
                owners.listeners.entry((socket.netns, local.port())).or_insert(file.pid);
            }
            owners.names.entry(file.pid).or_insert_with(|| name(file.pid));
        }
        let now: BTreeSet<u32> = owners.names.keys().copied().take(PROCESSES).collect();
        if let Ok(waits) = &mut self.waits {
            for pid in now.difference(&self.watched) {
                let _ = waits.add(*pid);
            }
            for pid in self.watched.difference(&now) {
                let _ = waits.remove(*pid);
            }
        }
        self.watched = now;
        Ok(owners)
    }

    fn waits(&mut self) -> Result<Vec<ThreadWaits>, String> {
        let waits = self.waits.as_mut().map_err(|why| why.clone())?;
        waits.totals().map_err(|error| error.to_string())
    }
}

/// The name of a process or thread, fit for a terminal.
pub(crate) fn name(tid: u32) -> String {
    let name = process::name(tid).unwrap_or_default();
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
