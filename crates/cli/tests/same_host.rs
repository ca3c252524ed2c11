//! Connections within one machine under `run --plane stack`: over memory if both ends are processes under it, by the
//! kernel otherwise, and by the kernel as soon as a child or another program has an end.

#[path = "support/echo.rs"]
mod echo;
mod support;
#[path = "support/two_programs.rs"]
mod two_programs;

use std::{
    fs::{self, File},
    os::unix::{fs::FileExt, process::ExitStatusExt},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use support::*;
use two_programs::packets;

const PORT: &str = "7000";

fn program(lab: &Lab, plane: &str, words: &[&str]) -> Command {
    two_programs::program(lab, "local.py", plane, words)
}

fn serve(lab: &Lab, plane: &str, how: &str, address: &str) -> Running {
    two_programs::serve(lab, "local.py", plane, how, address)
}

fn call(lab: &Lab, plane: &str, how: &str, address: &str, len: usize) -> u64 {
    let len = len.to_string();
    two_programs::call(lab, &mut program(lab, plane, &["call", how, address, PORT, &len]))
}

#[test]
fn both_ends_of_a_connection_under_it_use_memory() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let own = lab.server.ipv4().to_string();
    for (listens, how) in
        [("0.0.0.0", "threads"), ("127.0.0.1", "asyncio"), ("::1", "threads"), ("::", "asyncio")]
    {
        let _server = serve(&lab, "stack", how, listens);
        let at = if listens.contains(':') { "::1" } else { "127.0.0.1" };
        for how in ["blocking", "asyncio", "bound"] {
            wait_until(&format!("{listens} {how} {at}: memory"), || {
                call(&lab, "stack", how, at, 1_000_000) < 10
            });
        }
        if listens == "0.0.0.0" {
            wait_until("memory", || call(&lab, "stack", "blocking", &own, 1_000_000) < 10);
        }
    }
}

/// asyncio makes an epoll instance for each loop.
#[test]
fn event_loops_follow_each_other_in_a_process_and_its_child() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = serve(&lab, "stack", "asyncio", "127.0.0.1");
    wait_until("memory", || call(&lab, "stack", "asyncio", "127.0.0.1", 1_000_000) < 10);
    for plane in ["plain", "stack"] {
        call(&lab, plane, "loops", "127.0.0.1", 20_000);
    }
}

#[test]
fn both_ends_within_one_process_use_memory() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let call = |plane: &str, how: &str, address: &str| {
        let words = ["within", how, address, PORT, "10000"];
        two_programs::call(&lab, &mut program(&lab, plane, &words))
    };
    for (how, address) in [("blocking", "127.0.0.1"), ("blocking", "::1"), ("asyncio", "127.0.0.1")]
    {
        let plain = call("plain", how, address);
        wait_until(&format!("{how} {address}: memory"), || call("stack", how, address) < plain / 2);
    }
    // A child's connection is the kernel's.
    call("stack", "fork", "127.0.0.1");
}

#[test]
fn a_plain_end_is_reached_by_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    {
        let _server = serve(&lab, "stack", "threads", "127.0.0.1");
        for _ in 0..2 {
            assert!(call(&lab, "plain", "blocking", "127.0.0.1", 1_000_000) > 50);
        }
    }
    // The address belongs to another program now.
    for plane in ["plain", "without"] {
        let _server = serve(&lab, plane, "threads", "127.0.0.1");
        for _ in 0..2 {
            assert!(call(&lab, "stack", "asyncio", "127.0.0.1", 1_000_000) > 50);
        }
    }
}

#[test]
fn children_and_executed_programs_go_on_with_a_connection() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    {
        let _server = serve(&lab, "stack", "threads", "0.0.0.0");
        for how in ["fork", "exec", "blocking"] {
            call(&lab, "stack", how, "127.0.0.1", 100_000);
        }
    }
    let _server = serve(&lab, "stack", "fork", "0.0.0.0");
    for how in ["blocking", "fork", "exec", "asyncio"] {
        call(&lab, "stack", how, "127.0.0.1", 100_000);
    }
}

#[test]
fn a_connection_that_the_peer_has_closed_goes_to_another_process() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for way in ["pass", "fork"] {
        for (size, peer) in [("5", "stays"), ("5", "ends"), ("full", "stays"), ("full", "ends")] {
            for plane in ["plain", "stack"] {
                let words = [way, size, peer];
                let mut command = two_programs::program(&lab, "closed.py", plane, &words);
                let output = command.output().unwrap();
                assert_eq!(text(&output).trim(), "all", "{plane} {words:?}: {output:?}");
            }
        }
    }
}

#[test]
fn a_connection_whose_peer_is_stopped_goes_to_another_process() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for way in ["pass", "fork", "exec"] {
        for plane in ["plain", "stack"] {
            let mut command = two_programs::program(&lab, "stopped.py", plane, &[way]);
            let output = command.output().unwrap();
            assert_eq!(text(&output).trim(), "echoed\n0", "{plane} {way}: {output:?}");
        }
    }
}

#[test]
fn a_thousand_connections_share_one_cable() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = serve(&lab, "stack", "asyncio", "127.0.0.1");
    let start = || {
        let words = ["call", "many", "127.0.0.1", PORT, "100"];
        let mut client = Running::spawn(&mut program(&lab, "stack", &words));
        client.wait_for("connected");
        client
    };
    let mut client = start_until("most connections over memory", start, |client| {
        links_of(&lab.server, client.pid()).len() > 500
    });
    for pid in [server.pid(), client.pid()] {
        // One that was made twice, as an answer was late, is closed when it has been idle.
        wait_at_most(Duration::from_secs(90), "one cable", || {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            maps.lines().filter(|line| line.contains("memfd:busypoll-cable")).count() == 1
        });
    }
    client.send_line("");
    client.wait_for("done");
}

/// Another program than the one whose listener has a connection may be the one to accept it, or to go on with it.
#[test]
fn a_connection_that_is_not_accepted_yet_begins_anew_in_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for (how, address, len) in [
        // The client's child goes on.
        ("late", "127.0.0.1", "100000"),
        ("late", "::1", "2000"),
        // A child or another program accepts.
        ("leaves", "127.0.0.1", "100001"),
        ("leaves", "::1", "2001"),
        ("executes", "127.0.0.1", "100001"),
        // The listener's own process accepts, and the client goes on.
        ("late", "127.0.0.1", "100001"),
    ] {
        let what = format!("{how} {address} {len}");
        let words = ["serve", how, address, PORT];
        let mut server = Group::start(&mut program(&lab, "stack", &words));
        let words = ["call", "first", address, PORT, len];
        let mut client = Running::spawn(&mut program(&lab, "stack", &words));
        client.wait_for("connected");
        if how == "late" && len.ends_with('0') {
            client.send_line("");
            // The child waits, and its connection is in the accept queue of the kernel's listener.
            wait_until(&what, || on_kernel(&lab) > 0);
            server.0.send_line("");
        } else {
            server.0.send_line("");
            client.send_line("");
        }
        client.wait_for("done");
        assert!(client.child.wait().unwrap().success(), "{what}");
    }
}

/// The number of the kernel's established connections at the port.
fn on_kernel(lab: &Lab) -> usize {
    let filter = format!("sport = :{PORT}");
    let args = ["-Htn", "state", "established", &filter];
    let output = lab.server.command("ss").args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count()
}

#[test]
fn a_process_that_is_killed_or_stopped_is_as_on_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut server = serve(&lab, "stack", "threads", "127.0.0.1");
    let mut held =
        Running::spawn(&mut program(&lab, "stack", &["call", "hold", "127.0.0.1", PORT, "1000"]));
    held.wait_for("connected");
    let pid = Pid::from_raw(server.child.id().cast_signed()).unwrap();
    // A new client connects by the kernel, whose backlog takes it.
    kill_process(pid, Signal::STOP).unwrap();
    let mut other =
        Running::spawn(&mut program(&lab, "stack", &["call", "hold", "127.0.0.1", PORT, "0"]));
    other.wait_for("connected");
    kill_process(pid, Signal::CONT).unwrap();
    other.send_line("");
    other.wait_for("done");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    held.send_line("");
    assert!(!held.child.wait().unwrap().success(), "the connection outlived its process");
}

/// Twenty processes connect to each other at random, while one after the other is killed and started again.
fn connect_at_random(connections: usize, pause: Duration) {
    const PROCESSES: usize = 20;
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("mesh");
    let (mesh, shared) = (folder.join("mesh"), folder.join("kills"));
    build(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&mesh).arg(source("mesh.c")));
    fs::write(&shared, [0; 4096]).unwrap();
    let kills = File::options().read(true).write(true).open(&shared).unwrap();
    let start = |n: usize| {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--"]);
        command.arg(&mesh).args([PROCESSES, n, 7100, connections].map(|word| word.to_string()));
        Running::start(command.arg(&shared))
    };
    let mut all: Vec<_> = (0..PROCESSES).map(start).collect();
    let before = packets(&lab);
    all.iter_mut().for_each(|process| process.send_line(""));
    // The last one is not killed: when it has made its connections the test is over.
    let mut last = all.pop().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut killed = 0_u32;
            while !done.load(Ordering::Relaxed) {
                let n = killed as usize * 7 % all.len();
                let mut count = [0; 4];
                kills.read_exact_at(&mut count, 4 * n as u64).unwrap();
                let count = u32::from_ne_bytes(count);
                kills.write_all_at(&(count + 1).to_ne_bytes(), 4 * n as u64).unwrap();
                all[n].child.kill().unwrap();
                let status = all[n].child.wait().unwrap();
                assert_eq!(status.signal(), Some(9), "process {n} ended by itself");
                all[n] = start(n);
                kills.write_all_at(&(count + 2).to_ne_bytes(), 4 * n as u64).unwrap();
                all[n].send_line("");
                killed += 1;
                thread::sleep(pause);
            }
            println!("{killed} were killed");
        });
        let line = last.wait_for("done");
        done.store(true, Ordering::Relaxed);
        println!("{line}");
        let whole: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(whole > connections / 2, "{line}");
    });
    for (n, process) in all.iter_mut().enumerate() {
        assert!(process.child.try_wait().unwrap().is_none(), "process {n} has ended");
    }
    println!("{} packets on loopback", packets(&lab) - before);
    // From now on connections may fail: the processes are killed one after the other.
    kills.write_all_at(&[0xff; 4 * PROCESSES], 0).unwrap();
}

#[test]
fn random_connections_between_processes_that_are_killed() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    connect_at_random(500, Duration::from_millis(200));
}

#[test]
#[ignore = "a million connections take minutes"]
fn a_million_random_connections_between_processes_that_are_killed() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    connect_at_random(50_000, Duration::from_secs(1));
}

/// The processes that have the interface.
fn with_interface(pids: impl Iterator<Item = u32>) -> usize {
    let has = |pid: &u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        maps.contains("memfd:busypoll-frames")
    };
    pids.filter(has).count()
}

/// Programs that listen and connect at loopback addresses have no interface, so any number of them has memory.
#[test]
fn programs_at_loopback_addresses_take_no_slot() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let own = lab.server.ipv4().to_string();
    let servers = Vec::from_iter((0..10).map(|n| {
        let words = ["serve", "threads", "127.0.0.1", &(7100 + n).to_string()];
        Running::start(&mut program(&lab, "stack", &words))
    }));
    let clients = Vec::from_iter((7100..).zip(&servers).map(|(port, server)| {
        let start = || {
            let words = ["call", "hold", "127.0.0.1", &port.to_string(), "1000"];
            let mut client = Running::spawn(&mut program(&lab, "stack", &words));
            client.wait_for("connected");
            client
        };
        start_until("memory", start, |client| links_of(&lab.server, client.pid()) == [server.pid()])
    }));
    let all = || servers.iter().chain(&clients).map(Running::pid);
    assert_eq!(with_interface(all()), 0);
    let listed = text(&run_on_host(&lab.server, &["ss"]));
    for pid in servers.iter().map(Running::pid) {
        assert!(listed.contains(&format!("local pid {pid}")), "{listed}");
    }
    // A socket that may receive from the interface needs it.
    let server = serve(&lab, "stack", "threads", "0.0.0.0");
    wait_until("memory", || call(&lab, "stack", "blocking", &own, 1_000_000) < 10);
    assert_eq!(with_interface([server.pid()].into_iter()), 1);
}

/// On a host with no interface, programs that wait at any address, too.
#[test]
fn a_host_with_nothing_but_loopback_has_memory() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let set = |up| {
        let words = ["link", "set", lab.server.interface(), up];
        assert!(lab.server.command("ip").args(words).status().unwrap().success());
    };
    set("down");
    let source = source("local.py");
    let run = |words: &[&str]| {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--", "python3"]).arg(&source).args(words);
        command
    };
    for (listens, to) in [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1")] {
        let _server = Running::start(&mut run(&["serve", "threads", listens, PORT]));
        wait_until(&format!("{listens}: memory"), || {
            two_programs::call(&lab, &mut run(&["call", "blocking", to, PORT, "1000000"])) < 10
        });
    }
    set("up");
}
