//! The facts about every socket and epoll instance, without a verdict.

use busypoll_linux::NapiId;
use busypoll_linux::bpf::files::{Kind, Socket};
use serde::Serialize;
use std::os::fd::RawFd;

use super::descriptors::describe;
use super::{Census, NapiState, Napis, Process};
use crate::{Report, Scope, count};

/// A process in the JSON report.
#[derive(Serialize)]
struct ProcessFacts<'a> {
    pid: u32,
    name: &'a str,
    descriptors: Vec<DescriptorFacts>,
}

#[derive(Serialize)]
struct DescriptorFacts {
    fd: RawFd,
    what: String,
    waits: String,
    /// In microseconds; for an io_uring, rounded down.
    busy_poll_usecs: u64,
    prefer_busy_poll: bool,
    busy_poll_budget: u16,
    /// For an epoll instance without an id, that of a socket it watches.
    napi_id: Option<u32>,
    /// `alive`, `dead`, `unknown`; none without an id.
    napi: Option<&'static str>,
    device: Option<String>,
    queue: Option<u32>,
}

/// The text report shows at most this many descriptors of a process.
const SHOWN: usize = 20;

pub(super) fn add(scope: &Scope, census: &Census, napis: &Napis, report: &mut Report) {
    let mut lines = Vec::new();
    let mut facts = Vec::new();
    for process in census.processes.values() {
        let descriptors: Vec<DescriptorFacts> =
            process.files.iter().filter_map(|f| of_file(process, f.fd, &f.kind, napis)).collect();
        let on = |d: &DescriptorFacts| d.busy_poll_usecs > 0 || d.prefer_busy_poll;
        // Of all the machine's processes, only those with busy polling switched on.
        if scope.pids.is_empty() && !descriptors.iter().any(on) {
            continue;
        }
        lines.push(format!("{}", process.subject()));
        lines.extend(descriptors.iter().take(SHOWN).map(|d| format!("  {}", d.line())));
        if descriptors.len() > SHOWN {
            lines.push(format!("  and {} more (--json has all)", descriptors.len() - SHOWN));
        }
        facts.push(ProcessFacts { pid: process.pid, name: &process.name, descriptors });
    }
    report.facts("processes", facts, lines);
}

fn of_file(process: &Process, fd: RawFd, kind: &Kind, napis: &Napis) -> Option<DescriptorFacts> {
    let seen = process.watches.contains_key(&fd);
    Some(match kind {
        Kind::Socket(socket) => of_socket(process, fd, socket, napis),
        Kind::Epoll { params, napi } => {
            let members = process.members(fd);
            // An instance that watches only timers and pipes does not matter here.
            if seen && members.is_empty() {
                return None;
            }
            let watched = process.watches.get(&fd).map_or(0, Vec::len);
            let what = match (seen, members.len()) {
                (false, _) => "epoll".into(),
                // The rest are listeners, timers, pipes.
                (true, able) if able < watched => {
                    format!("epoll, watches {}, {able} of them can poll", count(watched, "thing"))
                }
                (true, _) => format!("epoll, watches {}", count(watched, "thing")),
            };
            // It takes its NAPI id from a socket with events, and drops it after a poll in vain.
            let alive = |id: &NapiId| matches!(napis.state(*id), NapiState::Alive(_));
            let napi = napi.or_else(|| members.iter().filter_map(|s| s.napi).find(alive));
            let waiting = process.threads.values().any(|t| t.waits_in_epoll(fd));
            DescriptorFacts {
                waits: if waiting { "a thread waits" } else { "no thread waits" }.into(),
                busy_poll_usecs: params.busy_poll_usecs.into(),
                prefer_busy_poll: params.prefer_busy_poll,
                busy_poll_budget: params.busy_poll_budget,
                ..DescriptorFacts::of_napi(fd, what, napi, napis)
            }
        }
        Kind::Uring(ring) => DescriptorFacts {
            busy_poll_usecs: ring.busy_poll_ns / 1000,
            prefer_busy_poll: ring.prefer_busy_poll,
            ..DescriptorFacts::of_napi(fd, "io_uring".into(), None, napis)
        },
    })
}

fn of_socket(process: &Process, fd: RawFd, socket: &Socket, napis: &Napis) -> DescriptorFacts {
    DescriptorFacts {
        waits: process.waiting(fd, socket).describe(),
        busy_poll_usecs: socket.busy_poll_usecs.into(),
        prefer_busy_poll: socket.prefer_busy_poll,
        busy_poll_budget: socket.busy_poll_budget,
        ..DescriptorFacts::of_napi(fd, describe(socket), socket.napi, napis)
    }
}

impl DescriptorFacts {
    fn of_napi(fd: RawFd, what: String, id: Option<NapiId>, napis: &Napis) -> Self {
        let state = id.map(|id| napis.state(id));
        let location = match state {
            Some(NapiState::Alive(location)) => Some(location),
            _ => None,
        };
        DescriptorFacts {
            fd,
            what,
            waits: String::new(),
            busy_poll_usecs: 0,
            prefer_busy_poll: false,
            busy_poll_budget: 0,
            napi_id: id.map(|id| id.get()),
            napi: state.map(|state| match state {
                NapiState::Alive(_) => "alive",
                NapiState::Dead => "dead",
                NapiState::Unknown => "unknown",
            }),
            device: location.map(|p| p.device.clone()),
            queue: location.and_then(|p| p.queue),
        }
    }

    fn line(&self) -> String {
        let mut line = format!("fd {} {}", self.fd, self.what);
        if !self.waits.is_empty() {
            line += &format!("; {}", self.waits);
        }
        line += &format!("; busy poll {} us", self.busy_poll_usecs);
        if self.prefer_busy_poll {
            line += ", preferred";
        }
        match (self.napi_id, self.napi, &self.device, self.queue) {
            (Some(id), _, Some(device), Some(queue)) => {
                line += &format!("; napi {id} {device} queue {queue}");
            }
            (Some(id), _, Some(device), None) => line += &format!("; napi {id} {device}"),
            (Some(id), Some(state), ..) => line += &format!("; napi {id} {state}"),
            _ => line += "; no napi",
        }
        line
    }
}
