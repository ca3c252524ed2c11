//! One attached process: a scan of all its descriptors, and what is known of it from earlier scans.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::RawFd;
use std::path::Path;

use busypoll_journal::Journal;
use busypoll_linux::NapiId;
use busypoll_linux::process::{Descriptor, Kind, Process};
use busypoll_linux::sysctl::Sysctl;
use busypoll_policy::{Names, Policy};

use super::change;
use super::decide::{Context, Decision, Watchers, has_queue};
use super::device::{Device, Devices};
use super::entry::{self, Entry};
use super::error::AttachError;
use super::inspect::{self, Epoll, Socket, Waits};
use super::row::{Row, State, socket_kind};
use super::undo::undo;
use crate::names;

/// How many threads may spin, in all attached processes together.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpinnerLimit {
    pub most: usize,
    pub used: usize,
}

/// An attached process.
pub(super) struct Target {
    pub process: Process,
    pub program: Names,
    /// From the last scan.
    pub waits: Waits,
    /// It drives its queues itself, and its kernel sockets are not what the program waits for.
    pub on_stack_plane: bool,
    journal: Journal<Entry>,
    devices: Devices,
    /// Sockets whose addresses will not change, by descriptor.
    settled: HashMap<RawFd, Socket>,
    /// The row last reported for each descriptor.
    reported: HashMap<RawFd, Row>,
    /// By the inode of a socket, the most threads seen at once in a receive call on it. A single look is not enough:
    /// between two calls a thread may be anywhere, and one that spins appears to be running.
    receivers: HashMap<u64, usize>,
    spinners: usize,
}

impl Target {
    /// Opens a process and the journal for it.
    pub fn open(pid: u32, dir: &Path) -> Result<Self, AttachError> {
        let process = Process::open(pid)?;
        // Checked first, so that no journal is made if it fails.
        process.descriptors()?;
        let name = entry::name(pid, process.start_time());
        let journal = Journal::open(dir, entry::kind(&name))?;
        Ok(Target {
            program: names::of(&process),
            process,
            waits: Waits::default(),
            on_stack_plane: false,
            journal,
            devices: Devices::default(),
            settled: HashMap::new(),
            reported: HashMap::new(),
            receivers: HashMap::new(),
            spinners: 0,
        })
    }

    /// Whether the journal has changes to undo.
    pub fn has_changes(&self) -> bool {
        !self.journal.entries().is_empty()
    }

    /// The process has ended: restores what others have inherited from it, and closes the journal.
    pub fn finish(self, limit: &mut SpinnerLimit, dir: &Path) -> Result<(), AttachError> {
        limit.used = limit.used.saturating_sub(self.spinners);
        let pid = self.process.pid();
        let changed = self.has_changes();
        drop(self);
        if changed {
            undo(pid, dir, |_, _| {})?;
        }
        Ok(())
    }

    /// Scans everything, makes the changes that are decided, and returns the rows that are new or differ from before.
    pub fn scan(
        &mut self,
        policy: &Policy,
        limit: &mut SpinnerLimit,
    ) -> Result<Vec<Row>, AttachError> {
        let descriptors = self.process.descriptors()?;
        self.waits = Waits::of(&self.process)?;
        self.on_stack_plane = descriptors.iter().any(|found| found.kind == Kind::StackPlane);
        if self.on_stack_plane {
            return Ok(Vec::new());
        }
        let waits = self.waits.clone();
        // A child was opened before its exec.
        let program = names::of(&self.process);
        if program != self.program {
            self.program.clone_from(&program);
            self.reported.clear();
        }
        let epolls = self.epolls(&descriptors)?;
        let watchers = Watchers::of(&epolls);
        let context = Context {
            policy,
            program: &program,
            waits: &waits,
            watchers: &watchers,
            host_busy_poll: Sysctl::BusyPoll.of_machine(),
        };
        let (sockets, others) = self.sockets(&descriptors, &context)?;
        let by_inode: HashMap<u64, Socket> =
            sockets.iter().map(|socket| (socket.inode, socket.clone())).collect();
        self.receivers = seen(&self.receivers, &sockets, &waits);
        limit.used = limit.used.saturating_sub(self.spinners);
        self.spinners = 0;
        // Sockets that poll already are counted first, so that new ones do not take their places.
        for epoll in &epolls {
            if epoll.params.as_ref().is_ok_and(|params| params.busy_poll_usecs > 0) {
                self.charge(limit, cost(epoll, &by_inode, &waits));
            }
        }
        for socket in sockets.iter().filter(|socket| socket.busy_poll > 0 && has_queue(socket)) {
            self.charge(limit, self.receivers_of(socket));
        }
        let mut rows = Vec::new();
        for socket in &sockets {
            let mut row = self.socket(&context, socket, limit)?;
            row.also = others.get(&socket.inode).cloned().unwrap_or_default();
            rows.push(row);
        }
        for epoll in &epolls {
            rows.push(self.epoll(&context, epoll, &by_inode, limit)?);
        }
        for ring in descriptors.iter().filter(|found| found.kind == Kind::Uring) {
            rows.push(uring(ring.fd));
        }
        rows.sort_by_key(|row| row.fd);
        Ok(self.unreported(rows))
    }

    /// The rows that are new or differ from what was reported.
    fn unreported(&mut self, rows: Vec<Row>) -> Vec<Row> {
        let same = |row: &Row, reported: &Row| {
            (&row.what, &row.local, &row.peer, row.now)
                == (&reported.what, &reported.local, &reported.peer, reported.now)
        };
        let mut unreported = Vec::new();
        let mut reported = HashMap::new();
        for row in rows {
            match self.reported.remove(&row.fd) {
                Some(before) if same(&row, &before) => {
                    reported.insert(row.fd, before);
                }
                _ => {
                    reported.insert(row.fd, row.clone());
                    unreported.push(row);
                }
            }
        }
        self.reported = reported;
        unreported
    }

    fn epolls(&self, descriptors: &[Descriptor]) -> Result<Vec<Epoll>, AttachError> {
        let mut epolls = Vec::new();
        for found in descriptors.iter().filter(|found| found.kind == Kind::Epoll) {
            epolls.extend(inspect::epoll(&self.process, found.fd)?);
        }
        Ok(epolls)
    }

    /// Each socket once, and by inode the other descriptors of it.
    #[allow(clippy::type_complexity)] // a pair of what one pass finds
    fn sockets(
        &mut self,
        descriptors: &[Descriptor],
        context: &Context<'_>,
    ) -> Result<(Vec<Socket>, HashMap<u64, Vec<RawFd>>), AttachError> {
        let mut sockets = Vec::new();
        let mut others: HashMap<u64, Vec<RawFd>> = HashMap::new();
        let mut settled = HashMap::new();
        for found in descriptors {
            let Kind::Socket { inode } = found.kind else { continue };
            if let Some(others) = others.get_mut(&inode) {
                others.push(found.fd);
                continue;
            }
            others.insert(inode, Vec::new());
            let known = self.settled.remove(&found.fd).filter(|socket| socket.inode == inode);
            // The program sets options too. A socket that will be changed is read again, so that the journal does not
            // record an old value as the current one.
            let known = known.filter(|known| matches!(context.socket(known), Decision::Leave(_)));
            let socket = match known {
                Some(known) => Some(known),
                None => inspect::socket(&self.process, found.fd)?,
            };
            let Some(socket) = socket else { continue };
            if socket.info.listening || socket.info.peer.is_some() {
                settled.insert(found.fd, socket.clone());
            }
            sockets.push(socket);
        }
        self.settled = settled;
        Ok((sockets, others))
    }

    fn socket(
        &mut self,
        context: &Context<'_>,
        socket: &Socket,
        limit: &mut SpinnerLimit,
    ) -> Result<Row, AttachError> {
        let was = State::of_socket(socket);
        let receiving = context.waits.receive.get(&socket.fd).copied().unwrap_or(0);
        let mut why = Vec::new();
        let mut now = was;
        match context.socket(socket) {
            Decision::Leave(reason) => why.push(reason),
            Decision::Set(wanted) => {
                let more = socket.busy_poll == 0 && wanted.busy_poll > 0;
                let spins = if more { self.receivers_of(socket) } else { 0 };
                if (more && limit.most == 0) || !self.fits(limit, spins) {
                    why.push(limit.full());
                } else {
                    match change::socket(&self.process, &mut self.journal, socket, wanted)? {
                        Some(outcome) => {
                            now = outcome.now;
                            why.extend(outcome.why);
                            if now == was && why.is_empty() {
                                why.push("already set".to_owned());
                            }
                        }
                        None => why.push("was closed meanwhile".to_owned()),
                    }
                }
            }
        }
        let device = self.devices.of(&self.process, socket);
        if now.busy_poll > Some(0) {
            why.extend(context.warnings(socket, device == Some(Device::Gone)));
        }
        if let Some(known) = self.settled.get_mut(&socket.fd) {
            known.busy_poll = now.busy_poll.unwrap_or_default();
            known.prefer = now.prefer_busy_poll;
        }
        Ok(Row {
            fd: socket.fd,
            also: Vec::new(),
            what: socket_kind(socket),
            local: socket.info.local.map(|a| a.to_string()),
            peer: socket.info.peer.map(|a| a.to_string()),
            watches: None,
            waiting_threads: receiving + context.waits.poll.get(&socket.fd).copied().unwrap_or(0),
            napi_id: socket.napi.map(|id| id.get()),
            device: device.and_then(Device::name),
            was,
            now,
            changed: now != was,
            why: why.join("; "),
        })
    }

    fn epoll(
        &mut self,
        context: &Context<'_>,
        epoll: &Epoll,
        sockets: &HashMap<u64, Socket>,
        limit: &mut SpinnerLimit,
    ) -> Result<Row, AttachError> {
        let was = epoll.params.as_ref().map_or(State::default(), |params| (*params).into());
        let mut now = was;
        let mut why = Vec::new();
        match (&epoll.params, context.epoll(epoll, sockets)) {
            (Err(error), _) => why.push(error.clone()),
            (_, Decision::Leave(reason)) => why.push(reason),
            (Ok(params), Decision::Set(wanted)) if *params == wanted => {
                why.push("already set".to_owned());
            }
            (Ok(params), Decision::Set(wanted)) => {
                let more = params.busy_poll_usecs == 0 && wanted.busy_poll_usecs > 0;
                let spins = if more { cost(epoll, sockets, context.waits) } else { 0 };
                if (more && limit.most == 0) || !self.fits(limit, spins) {
                    why.push(limit.full());
                } else {
                    match change::epoll(&self.process, &mut self.journal, epoll, *params, wanted)? {
                        Some(outcome) => {
                            now = outcome.now;
                            why.extend(outcome.why);
                        }
                        None => why.push("was closed or replaced meanwhile".to_owned()),
                    }
                }
            }
        }
        let queues = self.queues(epoll, sockets);
        if now.busy_poll > Some(0) && queues.len() > 1 {
            why.push(format!(
                "its packets come from {} queues, and it polls one at a time",
                queues.len()
            ));
        }
        let queue = queues.into_iter().next();
        if now.busy_poll > Some(0) && queue.is_none() {
            why.push(
                "no socket it watches has a NAPI id yet; until one has, it polls nothing"
                    .to_owned(),
            );
        }
        Ok(Row {
            fd: epoll.fd,
            also: Vec::new(),
            what: "epoll".to_owned(),
            local: None,
            peer: None,
            watches: Some(epoll.watches.iter().map(|watch| watch.fd).collect()),
            waiting_threads: context.waits.epoll.get(&epoll.fd).copied().unwrap_or(0),
            napi_id: queue.as_ref().map(|(id, _)| id.get()),
            device: queue.and_then(|(_, device)| device.name()),
            was,
            now,
            changed: now != was,
            why: why.join("; "),
        })
    }

    /// The queues from which the members of an epoll instance receive packets.
    fn queues(
        &mut self,
        epoll: &Epoll,
        sockets: &HashMap<u64, Socket>,
    ) -> BTreeMap<NapiId, Device> {
        let members = epoll.watches.iter().filter(|watch| watch.socket);
        members
            .filter_map(|watch| sockets.get(&watch.inode))
            .filter_map(|member| Some((member.napi?, self.devices.of(&self.process, member)?)))
            .filter(|(_, device)| *device != Device::Gone)
            .collect()
    }

    /// How many threads would spin on a socket.
    fn receivers_of(&self, socket: &Socket) -> usize {
        self.receivers.get(&socket.inode).copied().unwrap_or(0)
    }

    /// Whether `spinners` more threads may spin; counts them if so.
    fn fits(&mut self, limit: &mut SpinnerLimit, spinners: usize) -> bool {
        let more = self.more(spinners);
        let fits = more == 0 || limit.used + more <= limit.most;
        if fits {
            self.charge(limit, more);
        }
        fits
    }

    fn charge(&mut self, limit: &mut SpinnerLimit, spinners: usize) {
        let more = self.more(spinners);
        limit.used += more;
        self.spinners += more;
    }

    /// How many of `spinners` are new: a thread that receives on several sockets spins on one at a time.
    fn more(&self, spinners: usize) -> usize {
        spinners.min(self.waits.threads.saturating_sub(self.spinners))
    }
}

impl SpinnerLimit {
    /// The limit of the policy, or else the number of CPUs of the process.
    pub fn for_process(policy: &Policy, process: &Process) -> Self {
        let cpus = || process.allowed_cpus().map_or(1, |cpus| cpus.len());
        let most = policy.max_spinning_threads.map_or_else(cpus, |most| most as usize);
        SpinnerLimit { most, used: 0 }
    }

    fn full(&self) -> String {
        format!(
            "one spinner too many: {} of {} already; see max_spinning_threads of the policy",
            self.used, self.most
        )
    }
}

/// [`Target::receivers`] after one more look.
fn seen(before: &HashMap<u64, usize>, sockets: &[Socket], waits: &Waits) -> HashMap<u64, usize> {
    let most = |socket: &Socket| {
        let now = waits.receive.get(&socket.fd).copied();
        Some((socket.inode, now.max(before.get(&socket.inode).copied())?))
    };
    sockets.iter().filter_map(most).collect()
}

/// How many threads spin on an epoll instance that polls: those that wait on it, once it has a member with a queue.
fn cost(epoll: &Epoll, sockets: &HashMap<u64, Socket>, waits: &Waits) -> usize {
    let mut members = epoll
        .watches
        .iter()
        .filter(|watch| watch.socket)
        .filter_map(|watch| sockets.get(&watch.inode));
    if !members.any(has_queue) {
        return 0;
    }
    waits.epoll.get(&epoll.fd).copied().unwrap_or(1)
}

fn uring(fd: RawFd) -> Row {
    Row {
        fd,
        also: Vec::new(),
        what: "io_uring".to_owned(),
        local: None,
        peer: None,
        watches: None,
        waiting_threads: 0,
        napi_id: None,
        device: None,
        was: State::default(),
        now: State::default(),
        changed: false,
        why: "only the program itself can register busy polling (IORING_REGISTER_NAPI)".to_owned(),
    }
}
