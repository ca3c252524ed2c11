//! AF_UNIX streams under `run --plane stack`: over memory if both ends are processes under it, and at all times what
//! the kernel's are. The same program, plain, says what that is.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    time::Duration,
};

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::*;

fn under(lab: &Lab, plane: &str, words: &[&str]) -> Command {
    let Some((program, rest)) = words.split_first() else { unreachable!("a program") };
    if plane == "plain" {
        let mut command = lab.server.command(program);
        command.args(rest);
        return command;
    }
    // A host of the lab has one CPU, where a stream stays the kernel's.
    let mut command = lab.server.command("taskset");
    command
        .args(["-c", "0,1", BUSYPOLL, "run", "--plane", "stack"])
        .args(["--dev", lab.server.interface(), "--"])
        .args(words);
    command
}

fn program(lab: &Lab, plane: &str, words: &[&str]) -> Command {
    let source = source("local_unix.py");
    under(lab, plane, &[&["python3", source.to_str().unwrap()], words].concat())
}

fn socket_in(folder: &Path) -> String {
    folder.join("socket").to_str().unwrap().to_owned()
}

/// What both ends of these rules have seen; without any, of all.
fn seen(lab: &Lab, (server, client): (&str, &str), path: &str, rules: &[&str]) -> String {
    let _server = Running::start(&mut program(lab, server, &["serve", path]));
    let words = [&["call", path], rules].concat();
    let output = program(lab, client, &words).output().unwrap();
    assert!(output.status.success(), "{server} {client}: {output:?}");
    let seen = String::from_utf8(output.stdout).unwrap();
    assert!(seen.ends_with("done\n"), "{seen}");
    seen
}

#[test]
fn a_stream_does_what_the_kernels_does_whatever_has_its_ends() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let path = socket_in(&temp_dir("rules"));
    let plain = seen(&lab, ("plain", "plain"), &path, &[]);
    for planes in [("stack", "stack"), ("stack", "plain"), ("plain", "stack")] {
        let seen = seen(&lab, planes, &path, &[]);
        // A rule's part ends with an empty line.
        for (part, wanted) in seen.split("\n\n").zip(plain.split("\n\n")) {
            assert_eq!(part, wanted, "{planes:?}");
        }
        assert_eq!(seen.len(), plain.len(), "{planes:?}:\n{seen}");
    }
}

#[test]
fn an_epoll_set_sees_a_stream_that_becomes_the_kernels_while_it_is_added() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let path = socket_in(&temp_dir("raced"));
    let seen = seen(&lab, ("stack", "stack"), &path, &["raced"; 100]);
    assert_eq!(seen.matches("raced: True").count(), 100, "{seen}");
}

#[test]
fn what_is_unread_is_counted_while_a_stream_becomes_the_kernels() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let path = socket_in(&temp_dir("counted"));
    let seen = seen(&lab, ("stack", "stack"), &path, &["counted"; 100]);
    assert_eq!(seen.matches("counted: {500} 500").count(), 100, "{seen}");
}

/// A server, and a client that holds a connection over memory; and the process id of each.
fn held(lab: &Lab, path: &str) -> ((Running, u32), (Running, u32)) {
    let mut server = Running::spawn(&mut program(lab, "stack", &["serve", path]));
    let serving = server.pid_of_ready();
    // All that a client has may be the kernel's, if one answer is late.
    let client = start_until(
        "a stream over memory",
        || hold(lab, path),
        |(_, calling)| {
            links_of(&lab.server, *calling) == [serving]
                && links_of(&lab.server, serving).contains(calling)
        },
    );
    ((server, serving), client)
}

fn hold(lab: &Lab, path: &str) -> (Running, u32) {
    let mut client = Running::spawn(&mut program(lab, "stack", &["call", path, "hold"]));
    let line = client.wait_for("held ");
    let pid = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    (client, pid)
}

fn streams(lab: &Lab) -> Vec<Value> {
    let output = run_on_host(&lab.server, &["ss", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output);
    let rows = shown.lines().map(|line| serde_json::from_str(line).unwrap());
    let rows: Vec<Value> = rows.collect();
    rows.iter().for_each(|row| json_schema::is_as_documented("ss", row));
    rows.into_iter().filter(|row| row["netid"] == "u_str" && row["state"] == "ESTAB").collect()
}

/// The streams over memory when there are so many: the end of a client that is gone may be left for a moment.
fn streams_when(lab: &Lab, count: usize) -> Vec<Value> {
    let mut rows = Vec::new();
    wait_until(&format!("{count} ends of streams over memory"), || {
        rows = streams(lab);
        rows.len() == count
    });
    rows
}

#[test]
fn ss_shows_the_path_and_the_other_process_of_a_stream_over_memory() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("shown");
    for path in [socket_in(&folder), "@busypoll test name".to_owned()] {
        let ((_server, serving), (_client, calling)) = held(&lab, &path);
        let rows = streams_when(&lab, 2);
        let of = |pid: u32| rows.iter().find(|row| row["pid"] == pid).expect("a row");
        assert_eq!(of(serving)["link_pid"], calling, "{rows:#?}");
        assert_eq!(of(calling)["link_pid"], serving, "{rows:#?}");
        let is =
            |field: &Value, name: &str| field.as_str().unwrap().rsplit_once(' ').unwrap().0 == name;
        assert!(is(&of(serving)["local"], &path) && is(&of(serving)["peer"], "*"), "{rows:#?}");
        assert!(is(&of(calling)["local"], "*") && is(&of(calling)["peer"], &path), "{rows:#?}");
    }
}

#[test]
fn a_process_that_is_killed_or_stopped_is_as_on_the_kernel() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let path = socket_in(&temp_dir("killed"));
    let pid_of = |pid: u32| Pid::from_raw(pid.cast_signed()).unwrap();
    let ((mut server, serving), (mut client, _)) = held(&lab, &path);
    streams_when(&lab, 2);
    kill_process(pid_of(serving), Signal::STOP).unwrap();
    client.send_line("");
    // The kernel has new connections to it.
    let mut plain = UnixStream::connect(&path).unwrap();
    plain.write_all(b"echo            x").unwrap();
    kill_process(pid_of(serving), Signal::CONT).unwrap();
    client.wait_for("1 b'x'");
    let mut byte = [0];
    plain.read_exact(&mut byte).unwrap();
    // A client that ends leaves the server with its others.
    let (mut other, calling) = hold(&lab, &path);
    kill_process(pid_of(calling), Signal::KILL).unwrap();
    other.child.wait().unwrap();
    client.send_line("");
    client.wait_for("1 b'x'");
    kill_process(pid_of(serving), Signal::KILL).unwrap();
    server.child.wait().unwrap();
    // The end, or a reset, as in Linux.
    wait_until("the end of the stream", || {
        client.send_line("");
        client.wait_for("").starts_with("EPIPE")
    });
}

/// The name leads to another socket; what is connected stays so.
#[test]
fn a_socket_file_that_is_replaced_leads_to_the_new_listener() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let path = socket_in(&temp_dir("replaced"));
    let ((_first, serving), (mut client, calling)) = held(&lab, &path);
    let ((_second, anew), (_other, _)) = held(&lab, &path);
    assert_ne!(serving, anew);
    let rows = streams_when(&lab, 4);
    let link = |pid: u32| rows.iter().find(|row| row["pid"] == pid).map(|row| &row["link_pid"]);
    assert_eq!(link(serving), Some(&calling.into()), "{rows:#?}");
    client.send_line("");
    client.wait_for("1 b'x'");
    fs::remove_file(&path).unwrap();
    assert!(UnixStream::connect(&path).is_err());
    client.send_line("");
    client.wait_for("1 b'x'");
}

#[test]
fn a_thousand_streams_share_one_cable() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let path = socket_in(&temp_dir("many"));
    let server = Running::start(&mut program(&lab, "stack", &["serve", &path]));
    let mut client = Running::spawn(&mut program(&lab, "stack", &["call", &path, "many"]));
    client.wait_for("connected");
    for pid in [server.pid(), client.pid()] {
        // One that was made twice, as an answer was late, is closed when it has been idle.
        wait_at_most(Duration::from_secs(90), "one cable", || {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            maps.lines().filter(|line| line.contains("memfd:busypoll-cable")).count() == 1
        });
    }
    let moved = streams(&lab).len();
    assert!(moved > 1000, "{moved} ends are over memory");
    client.send_line("");
    client.wait_for("done");
}

/// It forks for a snapshot while it serves.
#[test]
fn redis_saves_a_snapshot_while_it_serves_over_memory() {
    needs_root!();
    needs!(program "redis-server", program "redis-benchmark", program "redis-cli");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("redis");
    let (path, dir) = (socket_in(&folder), folder.to_str().unwrap());
    let words = ["redis-server", "--port", "0", "--unixsocket", &path, "--dir", dir];
    let mut server = under(&lab, "stack", &words).spawn().unwrap();
    wait_until("redis listens", || UnixStream::connect(&path).is_ok());
    let words = ["redis-benchmark", "-s", &path, "-t", "set,get", "-n", "400000", "-c", "20"];
    let mut benchmark = under(&lab, "stack", &[&words[..], &["-q"]].concat()).spawn().unwrap();
    wait_until("streams over memory", || streams(&lab).len() > 30);
    for plane in ["plain", "stack"] {
        let save = under(&lab, plane, &["redis-cli", "-s", &path, "bgsave"]).output().unwrap();
        assert!(save.status.success(), "{save:?}");
        wait_until("it is saved", || {
            let info = ["redis-cli", "-s", &path, "info", "persistence"];
            let info = under(&lab, plane, &info).output().unwrap();
            text(&info).contains("rdb_bgsave_in_progress:0")
                && text(&info).contains("rdb_last_bgsave_status:ok")
        });
    }
    assert!(benchmark.wait().unwrap().success());
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Random streams between ten processes, of which some are stopped for a while: each byte, and each end, is that of the
/// kernel's.
fn campaign(lab: &Lab, seeds: std::ops::Range<u32>) {
    let source = source("unix_campaign.py");
    for seed in seeds {
        let seen = |plane: &str| {
            let folder = temp_dir(&format!("campaign {seed} {plane}"));
            let (folder, seed) = (folder.to_str().unwrap(), seed.to_string());
            let words = ["python3", source.to_str().unwrap(), folder, &seed];
            let output = under(lab, plane, &words).output().unwrap();
            assert!(output.status.success(), "seed {seed}: {output:?}");
            text(&output)
        };
        let (plain, stack) = (seen("plain"), seen("stack"));
        assert!(plain.lines().count() > 40 && !plain.contains("wrong"), "seed {seed}: {plain}");
        assert_eq!(stack, plain, "seed {seed}");
    }
}

#[test]
#[ignore = "long: two minutes"]
fn random_streams_between_ten_processes_are_the_kernels_byte_for_byte() {
    needs_root!();
    needs!(program "python3", program "taskset");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    campaign(&lab, 0..20);
}
