//! What this kernel offers and this user may use, tried on objects of our own: sockets, epolls, and,
//! for root, the NAPI instance of a veth pair in a temporary namespace.

use std::net::UdpSocket;

use busypoll_lab::Lab;
use busypoll_linux::caps::{Capability, Caps};
use busypoll_linux::netdev::{NapiChange, Netdev, Threaded};
use busypoll_linux::sysctl::Sysctl;
use busypoll_linux::{EpollParams, Error as LinuxError, epoll, sockopt};
use rustix::event::epoll::{CreateFlags, create};
use serde::Serialize;

use crate::rules;
use crate::{Error, Report, Scope, Subject};

/// One facility, whether it is usable, and the kernel's refusal if not.
#[derive(Debug, Serialize)]
struct Facility {
    name: &'static str,
    usable: bool,
    refusal: Option<String>,
}

/// The result of trying a facility.
enum Answer {
    Yes,
    Denied(String),
    Missing(String),
    /// Not tried, or failed for a reason that says nothing about the kernel.
    Unknown(String),
}

pub(crate) fn check(_: &Scope, report: &mut Report) -> Result<(), Error> {
    let caps = Caps::current()?;
    let probes = probes(caps);
    let facilities: Vec<Facility> = probes.iter().map(|(name, a)| Facility::new(name, a)).collect();
    let names = |usable: bool| {
        let names: Vec<&str> =
            facilities.iter().filter(|f| f.usable == usable).map(|f| f.name).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    };
    let before = report.faults();
    for (name, answer) in &probes {
        judge(name, answer, report);
    }
    if !caps.in_initial_user_namespace() {
        let what = "preferred busy polling and per-NAPI settings are out of reach in here";
        let found = rules::USER_NAMESPACE.finding(Subject::Machine, what);
        report.add(found.evidence("/proc/self/ns/user", "not the initial user namespace"));
    }
    if report.faults() == before {
        let what = "this kernel and this user can busy poll";
        let mut found = rules::KERNEL_OK.finding(Subject::Machine, what);
        for facility in facilities.iter().filter(|f| !f.usable) {
            found = found.evidence(facility.name, facility.refusal.as_deref().unwrap_or("?"));
        }
        report.add(found);
    }
    let mut lines = vec![format!("kernel {}", kernel_release())];
    lines.push(format!("    usable by this user: {}", names(true)));
    if facilities.iter().any(|f| !f.usable) {
        lines.push(format!("    not usable: {}", names(false)));
    }
    report.facts(
        "kernel",
        serde_json::json!({
            "release": kernel_release(), "facilities": facilities,
            "initial_user_namespace": caps.in_initial_user_namespace(),
            "cap_net_admin": caps.has(Capability::NetAdmin),
        }),
        lines,
    );
    sysctls(report);
    Ok(())
}

fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

const SO_BUSY_POLL: &str = "SO_BUSY_POLL";
const EPIOCSPARAMS: &str = "EPIOCSPARAMS";
const NAPI_GET: &str = "napi-get";
const NAPI_SET: &str = "napi-set";

fn probes(caps: Caps) -> Vec<(&'static str, Answer)> {
    // Each probe gets a socket of its own: a socket that already polls may be allowed more.
    let socket = || UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"));
    let with_socket = |probe: fn(&UdpSocket) -> busypoll_linux::Result<()>| match socket() {
        Ok(socket) => answer(probe(&socket)),
        Err(e) => Answer::Unknown(e.to_string()),
    };
    let with_epoll = |params: EpollParams| match create(CreateFlags::CLOEXEC) {
        Ok(epoll) => answer(epoll::set_params(&epoll, params)),
        Err(e) => Answer::Unknown(e.to_string()),
    };
    let polls = EpollParams { busy_poll_usecs: 1, ..EpollParams::default() };
    let mut found = vec![
        // More than net.core.busy_read: old kernels want a capability to raise it.
        (
            SO_BUSY_POLL,
            with_socket(|s| {
                sockopt::set_busy_poll(
                    s,
                    sockopt::busy_poll(s)?.saturating_add(1).min(i32::MAX as u32),
                )
            }),
        ),
        ("SO_PREFER_BUSY_POLL", with_socket(|s| sockopt::set_prefer_busy_poll(s, true))),
        ("SO_BUSY_POLL_BUDGET", with_socket(|s| sockopt::set_busy_poll_budget(s, 16))),
        (EPIOCSPARAMS, with_epoll(EpollParams { prefer_busy_poll: true, ..polls })),
        ("EPIOCSPARAMS budget>64", with_epoll(EpollParams { busy_poll_budget: 65, ..polls })),
        (NAPI_GET, answer(Netdev::open().and_then(|mut n| n.all_napis()).map(drop))),
    ];
    found.extend(napi_settings(caps));
    found
}

/// Which settings of a NAPI instance can be changed, tried on a veth pair of our own.
fn napi_settings(caps: Caps) -> Vec<(&'static str, Answer)> {
    let changes = [
        (
            NAPI_SET,
            NapiChange {
                defer_hard_irqs: Some(1),
                gro_flush_timeout_ns: Some(1000),
                ..NapiChange::default()
            },
        ),
        (
            "irq-suspend-timeout",
            NapiChange { irq_suspend_timeout_ns: Some(1000), ..NapiChange::default() },
        ),
        ("threaded", NapiChange { threaded: Some(Threaded::On), ..NapiChange::default() }),
        (
            "threaded busy-poll",
            NapiChange { threaded: Some(Threaded::BusyPoll), ..NapiChange::default() },
        ),
    ];
    if let Some(missing) = caps.missing_globally(&[Capability::NetAdmin, Capability::SysAdmin]) {
        return changes.map(|(name, _)| (name, Answer::Denied(missing.clone()))).into();
    }
    let tried = Lab::builder().build().and_then(|lab| {
        lab.client.enter(|| {
            let mut netdev = Netdev::open()?;
            let napi = netdev.napis(lab.client.ifindex())?.first().map(|n| n.id);
            Ok(changes.map(|(name, change)| {
                let set = napi.map(|id| netdev.set_napi(lab.client.ifindex(), id, change));
                let unknown = || Answer::Unknown("a veth pair without NAPI instances".into());
                (name, set.map_or_else(unknown, answer))
            }))
        })?
    });
    match tried {
        Ok(answers) => answers.into(),
        Err(e) => {
            let why = e.to_string();
            changes.map(|(name, _)| (name, Answer::Unknown(why.clone()))).into()
        }
    }
}

fn answer(result: busypoll_linux::Result<()>) -> Answer {
    match result {
        Ok(()) => Answer::Yes,
        Err(e) if e.is_denied() => Answer::Denied(e.to_string()),
        Err(e @ LinuxError::Unsupported { .. }) => Answer::Missing(e.to_string()),
        // A mode this kernel does not know.
        Err(e @ LinuxError::Os { .. }) if e.to_string().contains("out of range") => {
            Answer::Missing("this kernel does not know that mode".into())
        }
        Err(e) => Answer::Unknown(e.to_string()),
    }
}

/// Findings for missing facilities. Only those that most programs need count.
fn judge(name: &'static str, answer: &Answer, report: &mut Report) {
    let machine = Subject::Machine;
    let finding = match (name, answer) {
        (SO_BUSY_POLL, Answer::Missing(why)) => {
            let found = rules::KERNEL_NO_BUSY_POLL.finding(machine, "this kernel cannot busy poll");
            found.evidence("setsockopt(SO_BUSY_POLL)", why)
        }
        (SO_BUSY_POLL, Answer::Denied(why)) => {
            let found = rules::OLD_PRIVILEGE.finding(machine, "SO_BUSY_POLL may not be raised");
            found.evidence("setsockopt(SO_BUSY_POLL)", why)
        }
        (EPIOCSPARAMS, Answer::Missing(why)) => {
            let what = "epoll cannot busy poll by itself on this kernel";
            let found = rules::KERNEL_NO_EPOLL_PARAMS.finding(machine, what);
            found.evidence("ioctl(EPIOCSPARAMS)", why)
        }
        (NAPI_GET | NAPI_SET, Answer::Missing(why)) => {
            let what = "NAPI instances cannot be listed or set one by one on this kernel";
            rules::KERNEL_NO_NAPI_SETTINGS.finding(machine, what).evidence("netdev netlink", why)
        }
        (_, Answer::Unknown(why)) => return report.not_seen(machine, name, name, why),
        _ => return,
    };
    report.add(finding);
}

/// The two settings of the whole machine.
fn sysctls(report: &mut Report) {
    let [read, poll] = [Sysctl::BusyRead, Sysctl::BusyPoll].map(Sysctl::of_machine);
    if let (Some(0), Some(1..)) = (read, poll) {
        let what = "net.core.busy_poll without busy_read: poll and select of most programs sleep";
        let found = rules::SYSCTL_POLL_WITHOUT_READ.finding(Subject::Machine, what);
        let found = found.evidence("sysctl net.core.busy_poll", poll.unwrap_or(0));
        let found = found.evidence("sysctl net.core.busy_read", 0);
        report.add(found.remedy("sysctl -w net.core.busy_read=50"));
    }
    for (sysctl, value) in [(Sysctl::BusyRead, read), (Sysctl::BusyPoll, poll)] {
        let Some(value) = value.filter(|v| *v > 1000) else { continue };
        let what = format!("{} is {value}us", sysctl.name());
        let found = rules::SYSCTL_LONG.finding(Subject::Machine, what);
        let found = found.evidence(format!("sysctl {}", sysctl.name()), value);
        report.add(found.remedy(format!("sysctl -w {}=50", sysctl.name())));
    }
    let text = |value: Option<u32>| value.map_or("not visible here".into(), |v| format!("{v}us"));
    let line = format!("    net.core.busy_read {}, busy_poll {}", text(read), text(poll));
    let value = serde_json::json!({ "busy_read_us": read, "busy_poll_us": poll });
    report.facts("sysctl", value, vec![line]);
}

impl Facility {
    fn new(name: &'static str, answer: &Answer) -> Self {
        let refusal = match answer {
            Answer::Yes => None,
            Answer::Denied(why) | Answer::Missing(why) | Answer::Unknown(why) => Some(why.clone()),
        };
        Facility { name, usable: refusal.is_none(), refusal }
    }
}
