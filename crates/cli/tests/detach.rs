//! `busypoll detach`: what it restores, what it leaves alone, and what it reports.

#[path = "support/attached.rs"]
mod attached;
#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;

use attached::*;
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::process::Process;
use busypoll_linux::{EpollParams, sockopt};
use echo::*;
use rustix::event::epoll;
use support::*;

#[test]
fn a_value_that_another_program_has_changed_since_is_left_alone() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(static_c()).arg(port()));
    let state = temp_dir("state");
    let pid = server.pid().to_string();
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", "40"]));
    assert_eq!(busy_polls(server.pid()), [40]);
    for (_, socket) in sockets(server.pid()) {
        sockopt::set_busy_poll(&socket, 77).unwrap();
    }
    let report = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(report.contains("left: SO_BUSY_POLL is 77, not the 40 that attach wrote"), "{report}");
    assert_eq!(busy_polls(server.pid()), [77]);
}

#[test]
fn after_two_attaches_the_first_value_is_restored() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let state = temp_dir("state");
    let pid = server.pid().to_string();
    for us in ["40", "60"] {
        succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", us]));
    }
    assert_eq!(epolls(server.pid())[0].busy_poll_usecs, 60);
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(epolls(server.pid()), [EpollParams::default()]);
}

#[test]
fn a_socket_that_only_a_child_still_has_is_restored_there() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut parent = Running::start(lab.server.command(static_c()).arg(port()).arg("fork"));
    let state = temp_dir("state");
    let pid = parent.pid().to_string();
    let mut child = 0;
    wait_until("the child", || {
        let children = Process::open(parent.pid()).unwrap().children();
        child = children.first().copied().unwrap_or(0);
        child != 0
    });
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", "40"]));
    assert_eq!(busy_polls(child), [40], "it is one socket");
    parent.send_line("");
    parent.child.wait().unwrap();
    let report = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(report.contains("1 put back"), "{report}");
    assert_eq!(busy_polls(child), [0]);
    let gone = busypoll(&lab, &state, &["detach", &pid]).output().unwrap();
    fails_with(&gone, &["no process", "no changes to one are recorded"]);
}

/// An epoll instance that watches a socket.
fn epoll_on(socket: &UdpSocket) -> OwnedFd {
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&instance, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    instance
}

#[test]
fn another_epoll_or_socket_of_the_same_number_is_left_alone() {
    needs_root!();
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let bind = || lab.server.enter(|| UdpSocket::bind((lab.server.ipv4(), 0))).unwrap().unwrap();
    let (one, two, three) = (bind(), bind(), bind());
    let (replaced, kept) = (epoll_on(&one), epoll_on(&two));
    let state = temp_dir("state");
    let pid = std::process::id().to_string();
    // This very process; no other test runs in it meanwhile.
    let policy = state.join("policy.toml");
    fs::write(&policy, "busy_poll = 40\nmax_spinning_threads = 100\n").unwrap();
    let arguments = ["attach", &pid, "--policy", policy.to_str().unwrap()];
    succeeds(&mut busypoll(&lab, &state, &arguments));
    let polls = |instance: &OwnedFd| busypoll_linux::epoll::params(instance).unwrap();
    assert_eq!((polls(&replaced).busy_poll_usecs, polls(&kept).busy_poll_usecs), (40, 40));
    assert_eq!(sockopt::busy_poll(&three).unwrap(), 40);
    // Another instance gets the number, and has the same polling time.
    let another = epoll_on(&three);
    busypoll_linux::epoll::set_params(&another, polls(&kept)).unwrap();
    let mut replaced = replaced;
    rustix::io::dup2(&another, &mut replaced).unwrap();
    drop(another);
    // A socket moves to another number, and another socket gets its number.
    let moved = three.try_clone().unwrap();
    let fourth = bind();
    sockopt::set_busy_poll(&fourth, 40).unwrap();
    let mut number: OwnedFd = three.into();
    rustix::io::dup2(&fourth, &mut number).unwrap();
    let report = succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert!(
        report.contains("left: the epoll instance watches nothing that it watched before"),
        "{report}"
    );
    assert_eq!((polls(&replaced).busy_poll_usecs, polls(&kept).busy_poll_usecs), (40, 0));
    assert_eq!(sockopt::busy_poll(&moved).unwrap(), 0, "the socket is found wherever it is");
    assert_eq!(
        sockopt::busy_poll(&number).unwrap(),
        40,
        "the value of another socket is left alone"
    );
}

#[test]
fn a_setting_that_was_changed_twice_is_reported_once() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let state = temp_dir("state");
    let program = Running::start(lab.server.command("python3").arg(source("echo.py")).arg("7000"));
    let before = epolls(program.pid());
    let pid = program.pid().to_string();
    let run = |arguments: &[&str]| succeeds(&mut busypoll(&lab, &state, arguments));
    for time in ["50us", "70us"] {
        // The PID is given twice, as from two searches: it is one process.
        let told = run(&["attach", &pid, &pid, "--busy-poll", time]);
        assert!(told.contains(time) && told.matches(&format!("process {pid},")).count() == 1);
    }
    let told = run(&["detach", &pid]);
    let mut settings: Vec<&str> = told.lines().skip(1).collect();
    assert!(
        settings.iter().all(|line| line.contains("put back") && line.contains(" 0 ")),
        "{told}"
    );
    let all = settings.len();
    settings.dedup();
    assert!(all > 0 && settings.len() == all, "{told}");
    assert!(told.contains(&format!("{all} put back, 0 left alone")), "{told}");
    assert_eq!(epolls(program.pid()), before);
}

#[test]
fn a_full_disk_does_not_undo_attach_or_detach() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let state = temp_dir("state");
    let start =
        |port| Running::start(lab.server.command("python3").arg(source("echo.py")).arg(port));
    let programs = ["7000", "7001"].map(start);
    let epolls = || programs.each_ref().map(|program| epolls(program.pid()));
    let before = epolls();
    let pids = programs.each_ref().map(|program| program.pid().to_string());
    let untold = |arguments: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let run = busypoll(&lab, &state, arguments).stdout(full).output().unwrap();
        let line = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{line}");
        assert!(line.contains("No space left") && line.lines().count() == 1, "{line}");
    };
    // One by one: one call allows only as many spinners as there are CPUs.
    pids.iter().for_each(|pid| untold(&["attach", pid]));
    let attached = epolls();
    assert!(attached.iter().zip(&before).all(|(now, before)| now != before), "{attached:?}");
    untold(&["detach", &pids[0], &pids[1]]);
    assert_eq!(epolls(), before);
}
