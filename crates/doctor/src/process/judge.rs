//! Collects the faults of descriptors and makes findings of them: one for each, or one for many of the same
//! process with the same fault.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;

use busypoll_linux::bpf::files::{Kind, Socket};
use busypoll_linux::{EpollParams, NapiId, epoll};
use rustix::event::epoll::{CreateFlags, create};

use super::{NapiState, Napis, Process};
use crate::finding::Finding;
use crate::rules::STACK_PLANE;
use crate::{Report, Scope, Subject};

/// The findings so far, and what they are based on.
pub(crate) struct Judge<'a> {
    pub(crate) napis: &'a Napis,
    /// `net.core.busy_poll`, if it can be seen.
    pub(crate) host_busy_poll: Option<u32>,
    /// Whether this kernel's epoll polls by parameters of its own.
    pub(crate) epoll_has_params: bool,
    /// Processes were asked for by number: report also what is merely off.
    pub(crate) asked: bool,
    /// NAPI ids that are polled but were not found.
    pub(super) unknown: BTreeSet<NapiId>,
    /// By process and code.
    pub(super) found: BTreeMap<(u32, &'static str), Vec<Finding>>,
}

/// Up to this many descriptors of a process with one fault get a finding each.
const ONE_BY_ONE: usize = 3;

impl<'a> Judge<'a> {
    pub(crate) fn new(scope: &Scope, napis: &'a Napis, host_busy_poll: Option<u32>) -> Self {
        let asked = !scope.pids.is_empty();
        let instance = create(CreateFlags::CLOEXEC);
        Judge {
            napis,
            host_busy_poll,
            epoll_has_params: instance.is_ok_and(|instance| epoll::params(&instance).is_ok()),
            asked,
            unknown: BTreeSet::new(),
            found: BTreeMap::new(),
        }
    }

    /// Judges the descriptors of a process.
    pub(crate) fn process(&mut self, process: &Process) {
        if process.on_stack_plane {
            let what = "its sockets are in the stack plane; `busypoll ss` lists them";
            self.add(process.pid, STACK_PLANE.finding(process.subject(), what));
        }
        for (fd, socket) in process.sockets() {
            self.socket(process, fd, socket);
        }
        if self.asked && !process.on_stack_plane {
            self.only_within_this_host(process);
        }
        for file in &process.files {
            match &file.kind {
                Kind::Epoll { params, .. } => self.epoll(process, file.fd, *params),
                Kind::Uring(uring) => self.uring(process, file.fd, *uring),
                Kind::Socket(_) => {}
            }
        }
    }

    pub(crate) fn add(&mut self, pid: u32, finding: Finding) {
        self.found.entry((pid, finding.rule.code)).or_default().push(finding);
    }

    /// Whether an epoll instance busy polls; `None` where net.core.busy_poll decides it and cannot be seen.
    pub(crate) fn epoll_polls(&self, params: EpollParams) -> Option<bool> {
        match params.busy_poll_usecs > 0 || params.prefer_busy_poll {
            true => Some(true),
            false => self.host_busy_poll.map(|usecs| usecs > 0),
        }
    }

    /// Whether an epoll instance is known to busy poll.
    pub(crate) fn epoll_is_on(&self, params: EpollParams) -> bool {
        self.epoll_polls(params) == Some(true)
    }

    pub(crate) fn is_alive(&self, socket: &Socket) -> bool {
        socket.napi.is_some_and(|id| matches!(self.napis.state(id), NapiState::Alive(_)))
    }

    /// The evidence about `net.core.busy_poll`.
    pub(crate) fn host_evidence(&self) -> String {
        self.host_busy_poll.map_or_else(|| "cannot be seen from here".into(), |v| v.to_string())
    }

    /// Puts the findings into the report.
    pub(crate) fn report(self, report: &mut Report) {
        if !self.unknown.is_empty() {
            let ids: Vec<String> = self.unknown.iter().map(ToString::to_string).collect();
            let what = format!("whether NAPI id {} is alive", ids.join(", "));
            let why = "the id is of a device in another network namespace, or dead; root outside any container can tell";
            report.not_seen(Subject::Machine, what, "napi-get", why);
        }
        if self.host_busy_poll.is_none() {
            let what = "whether poll, select and epoll instances without parameters busy poll";
            let why = "only the initial network namespace shows it, and it is not assumed to be 0: `busypoll attach` sets busy polling for epoll, `busypoll run` for poll and select, too";
            report.not_seen(Subject::Machine, what, "net.core.busy_poll", why);
        }
        for ((_, _), mut findings) in self.found {
            if findings.len() <= ONE_BY_ONE {
                findings.into_iter().for_each(|f| report.add(f));
                continue;
            }
            let count = findings.len();
            let fds: Vec<String> = findings.iter().filter_map(descriptor).collect();
            let mut shown = fds.get(..8).unwrap_or(&fds).join(", ");
            if fds.len() > 8 {
                shown += ", …";
            }
            let mut first = findings.swap_remove(0);
            first.subject = process_of(first.subject);
            first.what = format!("{count} descriptors ({shown}): {}", first.what);
            report.add(first);
        }
    }
}

fn descriptor(finding: &Finding) -> Option<String> {
    match &finding.subject {
        Subject::Descriptor { fd, .. } => Some(fd.to_string()),
        _ => None,
    }
}

fn process_of(subject: Subject) -> Subject {
    match subject {
        Subject::Descriptor { pid, name, .. } => Subject::Process { pid, name },
        other => other,
    }
}

/// How threads wait for a socket.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) receive: bool,
    /// By non-blocking receive calls in a loop.
    pub(crate) spin: bool,
    pub(crate) poll: bool,
    /// The epoll instances that watch it.
    pub(crate) epolls: Vec<RawFd>,
    /// Possibly: an io_uring does not show which sockets it serves.
    pub(crate) uring: bool,
}

impl Process {
    /// How threads wait for one of its sockets.
    pub(crate) fn waiting(&self, fd: RawFd, socket: &Socket) -> Waiting {
        let index = self.wait_index();
        let mut waiting = Waiting {
            receive: index.received.contains(&fd),
            spin: index.spun.contains(&fd),
            poll: index.polled.contains(&fd),
            epolls: index.watchers.get(&socket.inode).cloned().unwrap_or_default(),
            uring: index.uring,
        };
        waiting.spin &= !waiting.receive && !waiting.poll && waiting.epolls.is_empty();
        waiting.uring &= !waiting.receives() && !waiting.poll && waiting.epolls.is_empty();
        waiting
    }

    /// The parameters of one of its epoll instances.
    pub(crate) fn epoll_params(&self, epoll: RawFd) -> Option<EpollParams> {
        self.wait_index().epolls.get(&epoll).copied()
    }
}

impl Waiting {
    /// Whether threads wait for it in receive calls, asleep or not.
    pub(crate) fn receives(&self) -> bool {
        self.receive || self.spin
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let mut ways: Vec<String> = Vec::new();
        if self.receive {
            ways.push("receive call".into());
        }
        if self.spin {
            ways.push("receive calls that do not wait".into());
        }
        if self.poll {
            ways.push("poll or select".into());
        }
        ways.extend(self.epolls.iter().map(|e| format!("epoll fd {e}")));
        if self.uring {
            ways.push("io_uring".into());
        }
        if ways.is_empty() { "no thread waits".into() } else { ways.join(", ") }
    }
}
