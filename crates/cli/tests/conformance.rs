//! The same socket calls without busypoll and on both planes: each must return the same, errno by errno. The calls are
//! in `programs/conformance`; they talk to a peer on another host, or to another process of this one.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::thread;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

const STACK: [&str; 6] = [BUSYPOLL, "run", "--plane", "stack", "--dev", "lab-server"];
/// The port of the peer.
const PORT: &str = "7000";
/// Seconds until a program with a call that hangs is ended; a run takes a few seconds.
const LIMIT: &str = "60";

/// Which cases to run.
#[derive(Clone, Copy, PartialEq)]
enum Cases {
    Ordinary,
    /// Cases in which a resource is used up.
    Limits,
}

const MTU: u32 = 1500;
/// A port range of few ports.
const FEW_PORTS: &str = "40000 40015";

/// Where the peer is.
#[derive(Clone, Copy, PartialEq)]
enum Peer {
    /// On another host, without busypoll.
    Across,
    /// At loopback, and started as the program is.
    SameHost,
}

/// The output of the program, started by the command line `how` on the server of a lab; IPv4, then IPv6, at the same
/// time on a lab each. Also how many connections the kernel has made there.
fn transcripts(
    program: &Path,
    cases: Cases,
    mtu: u32,
    place: Peer,
    how: &[&str],
) -> (Vec<String>, u64) {
    let families =
        [false, true].map(|six| move || transcript(program, cases, mtu, place, how, six));
    let ran: Vec<_> = thread::scope(|scope| {
        let running = families.map(|run| scope.spawn(run));
        running.into_iter().filter_map(|it| it.join().unwrap()).collect()
    });
    let made = ran.iter().map(|(_, made)| made).sum();
    (ran.into_iter().map(|(text, _)| text).collect(), made)
}

/// `transcripts` for one family; none if this machine lacks it.
fn transcript(
    program: &Path,
    cases: Cases,
    mtu: u32,
    place: Peer,
    how: &[&str],
    six: bool,
) -> Option<(String, u64)> {
    let lab = Lab::builder().mtu(mtu).build().unwrap();
    if cases == Cases::Limits {
        let range = "/proc/sys/net/ipv4/ip_local_port_range";
        lab.server.enter(|| std::fs::write(range, FEW_PORTS)).unwrap().unwrap();
    }
    let (own, peer) = (&lab.server, &lab.client);
    let addresses: [IpAddr; 2] = match (place, six) {
        (Peer::Across, true) => [own.ipv6()?.into(), peer.ipv6()?.into()],
        (Peer::Across, false) => [own, peer].map(|it| it.ipv4().into()),
        (Peer::SameHost, true) => [own.ipv6().map(|_| Ipv6Addr::LOCALHOST.into())?; 2],
        (Peer::SameHost, false) => [Ipv4Addr::LOCALHOST.into(); 2],
    };
    let _peer = match (place, how) {
        (Peer::SameHost, [run, words @ ..]) => {
            Running::start(own.command(run).args(words).arg(program).args(["peer", PORT]))
        }
        (Peer::SameHost, []) => Running::start(own.command(program).args(["peer", PORT])),
        (Peer::Across, _) => Running::start(peer.command(program).args(["peer", PORT])),
    };
    let mut command = lab.server.command("timeout");
    command.arg(LIMIT).args(how).arg(program).args(addresses.map(|it| it.to_string())).arg(PORT);
    command.args((cases == Cases::Limits).then_some("limits"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?} {said}\n{text}", output.status);
    Some((text, lab.server.enter(active_opens).unwrap()))
}

/// The transcripts without busypoll, which all tests compare with.
fn plain(program: &Path, cases: Cases) -> &'static [String] {
    static PLAIN: [OnceLock<Vec<String>>; 2] = [const { OnceLock::new() }; 2];
    PLAIN[cases as usize].get_or_init(|| transcripts(program, cases, MTU, Peer::Across, &[]).0)
}

/// `ActiveOpens` of /proc/net/snmp, in the namespace of the calling thread.
fn active_opens() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let at = names.split(' ').position(|name| name == "ActiveOpens").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// The cases of a transcript: name and lines.
fn cases(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut cases: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match cases.last_mut() {
            Some((_, lines)) if line.starts_with(' ') => lines.push(line.trim()),
            _ => cases.push((line, Vec::new())),
        }
    }
    cases
}

/// The lines that differ, each with its case.
fn differences(plain: &str, other: &str) -> Vec<String> {
    let (plain, other) = (cases(plain), cases(other));
    let mut found = Vec::new();
    for (n, (case, lines)) in plain.iter().enumerate() {
        let Some((_, others)) = other.get(n).filter(|(name, _)| name == case) else {
            found.push(format!("{case}: not reached"));
            break;
        };
        for n in 0..lines.len().max(others.len()) {
            let (plain, here) = (lines.get(n), others.get(n));
            if plain != here {
                let text = |line: Option<&&str>| line.map_or("(nothing)", |line| line).to_owned();
                found.push(format!("{case}:\n  plain {}\n  here  {}", text(plain), text(here)));
            }
        }
    }
    found.extend(other.iter().skip(plain.len()).map(|(case, _)| format!("{case}: is too much")));
    found
}

/// Compares the program's output with and without `how`; `kernel_connections` says whether the kernel makes them.
fn is_as_plain(cases: Cases, how: &[&str], kernel_connections: bool) {
    let _one = one_test_at_a_time();
    let program = conformance("conformance");
    let (here, made) = transcripts(&program, cases, MTU, Peer::Across, how);
    compare(plain(&program, cases), &here, cases);
    assert_eq!(made > 20, kernel_connections, "{made} connections made by the kernel");
}

fn compare(plain: &[String], here: &[String], cases: Cases) {
    let least = if cases == Cases::Ordinary { 700 } else { 25 };
    assert!(plain[0].lines().count() > least && plain.iter().all(|text| text.ends_with("end\n")));
    assert_eq!(plain.len(), here.len());
    for (plain, here) in plain.iter().zip(here) {
        let found = differences(plain, here);
        assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
    }
}

#[test]
#[ignore = "long: ten seconds"]
fn two_runs_on_the_plain_kernel_give_the_same() {
    needs_root!();
    needs!(program "cc", program "timeout");
    is_as_plain(Cases::Ordinary, &[], true);
}

#[test]
#[ignore = "long: ten seconds"]
fn the_kernel_plane_answers_as_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    for cases in [Cases::Ordinary, Cases::Limits] {
        is_as_plain(cases, &[BUSYPOLL, "run"], true);
    }
}

#[test]
#[ignore = "long: ten seconds"]
fn the_stack_plane_answers_as_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    is_as_plain(Cases::Ordinary, &STACK, false);
}

#[test]
fn the_stack_plane_answers_as_the_kernel_when_resources_are_used_up() {
    needs_root!();
    needs!(program "cc", program "timeout");
    is_as_plain(Cases::Limits, &STACK, false);
}

/// The MTU of a large cloud: packets of several frames.
#[test]
#[ignore = "long: ten seconds"]
fn the_stack_plane_answers_as_the_kernel_with_jumbo_frames() {
    needs_root!();
    needs!(program "cc", program "timeout");
    let _one = one_test_at_a_time();
    let program = conformance("conformance");
    let of = |how: &[&str]| transcripts(&program, Cases::Ordinary, 9001, Peer::Across, how);
    let ((plain, _), (here, made)) = (of(&[]), of(&STACK));
    compare(&plain, &here, Cases::Ordinary);
    assert!(made < 20, "{made} connections made by the kernel");
}

/// Both processes are under it: their connections and datagrams go over memory.
#[test]
#[ignore = "long: ten seconds"]
fn two_processes_of_one_host_get_the_answers_of_the_kernel() {
    needs_root!();
    needs!(program "cc", program "timeout");
    let _one = one_test_at_a_time();
    let program = conformance("conformance");
    let of = |how: &[&str]| transcripts(&program, Cases::Ordinary, MTU, Peer::SameHost, how);
    let (plain, all) = of(&[]);
    let (here, made) = of(&STACK);
    compare(&plain, &here, Cases::Ordinary);
    // Of the connections that a child has, and of those to a port of the program's own, the kernel makes another.
    assert!(made < all / 2, "the kernel has made {made} connections, and without busypoll {all}");
}

#[test]
fn the_comparison_sees_each_difference() {
    let plain = "one\n    a = 1\n    b = 2\nend\n";
    assert!(differences(plain, plain).is_empty());
    for other in [
        "one\n    a = 1\n    b = 3\nend\n",
        "one\n    a = 1\n",
        "one\n    a = 1\n    b = 2\nend\nmore\n",
    ] {
        assert!(!differences(plain, other).is_empty(), "{other}");
    }
    assert!(differences(plain, "one\n    a = 2\n    b = 2\nend\n")[0].starts_with("one:"));
}
