//! `busypoll attach` on real programs: its changes take effect on packets from another host.

#[path = "support/attached.rs"]
mod attached;
#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};

use attached::*;
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::EpollParams;
use echo::*;
use support::*;

const TIMES: u32 = 200;

/// While the program is attached its busy polling finds packets; before and after, it finds none.
fn takes_effect(lab: &Lab, pid: u32, client: &mut Client) -> String {
    let state = temp_dir("state");
    let (server, number) = (&lab.server, pid.to_string());
    let exchange = |client: &mut Client| busy_polled(server, || client.exchange(TIMES));
    assert_eq!(exchange(client), 0, "before");
    let report =
        succeeds(&mut busypoll(lab, &state, &["attach", &number, "--busy-poll", LONG_POLL]));
    busy_polling_finds_packets(lab, || client.exchange(TIMES));
    let detached = succeeds(&mut busypoll(lab, &state, &["detach", &number]));
    assert!(detached.contains(", 0 left alone"), "{detached}");
    // Packets sent while the program changed from polling to sleeping may still be found by polling.
    client.exchange(10);
    assert_eq!(exchange(client), 0, "after; {detached}");
    assert_eq!(epolls(pid).iter().filter(|p| **p != EpollParams::default()).count(), 0);
    report
}

#[test]
fn attach_takes_effect_on_a_python_server_that_waits_in_epoll() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let mut client = Client::connect(&lab, PORT);
    let report = takes_effect(&lab, server.pid(), &mut client);
    for wanted in [
        "1 in epoll_wait",
        "epoll",
        "off  20ms",
        "tcp listener  0.0.0.0:7000",
        lab.server.interface(),
        "is waited for in epoll",
        "has no receive queue",
        &format!("busypoll detach {}", server.pid()),
    ] {
        assert!(report.contains(wanted), "no {wanted:?} in:\n{report}");
    }
}

#[test]
fn attach_takes_effect_on_a_static_server_in_recv_and_on_later_connections() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(static_c()).arg(port()));
    let mut client = Client::connect(&lab, PORT);
    takes_effect(&lab, server.pid(), &mut client);
    assert_eq!(busy_polls(server.pid()), [0, 0]);
    // One spinner for one CPU: the listener does not count, and its connections inherit the setting.
    let state = temp_dir("state");
    let pid = server.pid().to_string();
    drop(client);
    wait_until("the connection is closed", || busy_polls(server.pid()) == [0]);
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", LONG_POLL]));
    let mut later = Client::connect(&lab, PORT);
    assert_eq!(busy_polls(server.pid()), [20_000, 20_000]);
    busy_polling_finds_packets(&lab, || later.exchange(TIMES));
    // The connection that inherited the value is not in the journal.
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(busy_polls(server.pid()), [0, 20_000]);
}

#[test]
fn attach_takes_effect_on_redis_as_debian_ships_it() {
    needs_root!();
    needs!(program "redis-server", program "redis-cli");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut redis = lab.server.command("redis-server");
    redis.args(["--port", "6379", "--save", "", "--protected-mode", "no"]);
    redis.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut redis = redis.spawn().unwrap();
    let mut output = BufReader::new(redis.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("Ready to accept connections") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0);
    }
    let state = temp_dir("state");
    let pid = redis.id().to_string();
    let ping = |times: &str| {
        let host = lab.server.ipv4().to_string();
        let mut cli = lab.client.command("redis-cli");
        cli.args(["-h", &host, "-r", times, "PING"]);
        assert_eq!(succeeds(&mut cli).matches("PONG").count().to_string(), times);
    };
    assert_eq!(busy_polled(&lab.server, || ping("200")), 0);
    succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--busy-poll", LONG_POLL]));
    busy_polling_finds_packets(&lab, || ping("200"));
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(busy_polled(&lab.server, || ping("200")), 0);
    redis.kill().unwrap();
    redis.wait().unwrap();
}

#[test]
#[ignore = "long: ten seconds in all"]
fn attach_takes_effect_on_a_go_server() {
    needs_root!();
    needs!(program "go");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(go()).arg(port()));
    let mut client = Client::connect(&lab, PORT);
    takes_effect(&lab, server.pid(), &mut client);
}

#[test]
#[ignore = "long: ten seconds in all"]
fn attach_takes_effect_on_a_java_server() {
    needs_root!();
    needs!(program "java", program "javac");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("java");
    build(Command::new("javac").arg("-d").arg(&folder).arg(source("Echo.java")));
    let server = Running::start(
        lab.server
            .command("java")
            .args(["-Xshare:auto", "-XX:+UseSerialGC", "-cp"])
            .arg(&folder)
            .args(["Echo", &port()]),
    );
    let mut client = Client::connect(&lab, PORT);
    takes_effect(&lab, server.pid(), &mut client);
}

#[test]
fn a_process_in_another_network_namespace_is_attached_to_from_outside() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let mut client = Client::connect(&lab, PORT);
    let state = temp_dir("state");
    let pid = server.pid().to_string();
    let outside = |arguments: &[&str]| {
        let mut command = Command::new(BUSYPOLL);
        succeeds(command.env("BUSYPOLL_STATE", &state).args(arguments))
    };
    let report = outside(&["attach", &pid, "--busy-poll", LONG_POLL]);
    assert!(report.contains(lab.server.interface()), "the device's name: {report}");
    busy_polling_finds_packets(&lab, || client.exchange(TIMES));
    outside(&["detach", &pid]);
    assert_eq!(epolls(server.pid()), [EpollParams::default()]);
}

#[test]
fn the_policy_decides_which_sockets_attach_changes() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let program = static_c();
    let one = Running::start(lab.server.command(&program).arg("7001"));
    let two = Running::start(lab.server.command(&program).arg("7002"));
    let state = temp_dir("state");
    let policy = state.join("policy.toml");
    fs::write(
        &policy,
        "plane = 'off'\n[[rule]]\nprogram='echo'\nlocal_port=7002\nplane='kernel'\nbusy_poll=33\n",
    )
    .unwrap();
    // As a package update leaves it: the file of the running program is gone.
    fs::remove_file(&program).unwrap();
    let pids = [one.pid().to_string(), two.pid().to_string()];
    let arguments = ["attach", &pids[0], &pids[1], "--policy", policy.to_str().unwrap()];
    let report = succeeds(&mut busypoll(&lab, &state, &arguments));
    assert!(report.contains("the policy leaves it alone"), "{report}");
    assert_eq!((busy_polls(one.pid()), busy_polls(two.pid())), (vec![0], vec![33]));
    fs::write(&policy, "[[rule]]\nlocal_prot=7002\nbusy_poll=33\n").unwrap();
    let refused = busypoll(&lab, &state, &arguments).output().unwrap();
    fails_with(&refused, &["policy.toml:2", "did you mean 'local_port'?"]);
}

/// Runs the command as user `nobody`, on the server.
fn as_nobody(lab: &Lab, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = lab.server.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program.as_ref());
    command
}

/// A folder with copies of files, owned by `nobody` and accessible to it.
fn within_reach(name: &str, files: &[&Path]) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("busypoll-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    for file in files {
        fs::copy(file, folder.join(file.file_name().unwrap())).unwrap();
    }
    chown(&folder, Some(65_534), Some(65_534)).unwrap();
    folder
}

#[test]
fn without_root_attach_reaches_the_user_s_own_processes_only() {
    needs_root!();
    needs!(program "cc", program "setpriv");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = within_reach("own", &[&static_c(), Path::new(BUSYPOLL)]);
    let state = folder.join("state");
    let mut own = as_nobody(&lab, folder.join("echo"));
    let own = Running::start(own.arg(port()));
    let attach = |pid: u32, more: &[&str]| {
        let mut command = as_nobody(&lab, folder.join("busypoll"));
        command.env("BUSYPOLL_STATE", &state).args(["attach", &pid.to_string()]).args(more);
        command.output().unwrap()
    };
    let mut client = Client::connect(&lab, PORT);
    let output = attach(own.pid(), &["--busy-poll", LONG_POLL]);
    assert!(output.status.success(), "{output:?}");
    busy_polling_finds_packets(&lab, || client.exchange(TIMES));
    let policy = folder.join("policy.toml");
    fs::write(&policy, "prefer_busy_poll = true\n").unwrap();
    let output = attach(own.pid(), &["--policy", policy.to_str().unwrap()]);
    assert!(text(&output).contains("SO_PREFER_BUSY_POLL needs CAP_NET_ADMIN"), "{output:?}");
    let mut detach = as_nobody(&lab, folder.join("busypoll"));
    detach.env("BUSYPOLL_STATE", &state).args(["detach", &own.pid().to_string()]);
    succeeds(&mut detach);
    assert_eq!(busy_polls(own.pid()), [0, 0]);
    drop(client);
    let other = Running::start(lab.server.command(folder.join("echo")).arg("7001"));
    fails_with(&attach(other.pid(), &[]), &["another user", "CAP_SYS_PTRACE"]);
    let mut undumpable = as_nobody(&lab, folder.join("echo"));
    let undumpable = Running::start(undumpable.args(["7002", "nodump"]));
    fails_with(&attach(undumpable.pid(), &[]), &["not dumpable", "CAP_SYS_PTRACE"]);
    assert_eq!((busy_polls(other.pid()), busy_polls(undumpable.pid())), (vec![0], vec![0]));
    // Root may attach to it.
    let pid = undumpable.pid().to_string();
    succeeds(&mut busypoll(&lab, &temp_dir("state"), &["attach", &pid, "--busy-poll", "40"]));
    assert_eq!(busy_polls(undumpable.pid()), [40]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn processes_that_have_ended_or_end_meanwhile_get_one_line() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let state = temp_dir("state");
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let pid = child.id().to_string();
    fails_with(&busypoll(&lab, &state, &["attach", &pid]).output().unwrap(), &["no process", &pid]);
    fails_with(
        &busypoll(&lab, &state, &["attach", "0x1"]).output().unwrap(),
        &["'0x1' is no process number"],
    );
    let program = static_c();
    let mut seen = [0, 0];
    for _ in 0..20 {
        let brief = Running::start(lab.server.command(&program).args(["1", "more", "200"]));
        let pid = brief.pid().to_string();
        let output = busypoll(&lab, &state, &["attach", &pid]).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => seen[0] += 1,
            Some(2) => {
                assert!(complaint.contains("no process"), "{complaint}");
                assert_eq!(complaint.lines().count(), 1, "{complaint}");
                seen[1] += 1;
            }
            _ => panic!("{output:?}"),
        }
        drop(brief);
        let _ = busypoll(&lab, &state, &["detach", &pid]).output().unwrap();
    }
    println!("attached to {}, too late for {}", seen[0], seen[1]);
    let left: Vec<_> = fs::read_dir(&state).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn without_a_journal_nothing_is_changed() {
    needs_root!();
    needs!(program "cc");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = Running::start(lab.server.command(static_c()).arg(port()));
    let file = temp_dir("state").join("file");
    fs::write(&file, "").unwrap();
    let output = busypoll(&lab, &file, &["attach", &server.pid().to_string()]).output().unwrap();
    fails_with(&output, &["BUSYPOLL_STATE"]);
    assert_eq!(busy_polls(server.pid()), [0]);
}

#[test]
fn the_json_report_has_what_the_table_has() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = python(&lab.server);
    let _client = Client::connect(&lab, PORT);
    let state = temp_dir("state");
    let pid = server.pid().to_string();
    let text = succeeds(&mut busypoll(&lab, &state, &["attach", &pid, "--json"]));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    json_schema::is_as_documented("attach", &report);
    assert_eq!(report["pid"], server.pid());
    let rows = report["rows"].as_array().unwrap();
    let row = |what: &str| rows.iter().find(|row| row["what"] == what).unwrap();
    assert_eq!(row("epoll")["was"]["busy_poll_usecs"], 0);
    assert_eq!(row("epoll")["now"]["busy_poll_usecs"], 50);
    assert_eq!(row("epoll")["changed"], true);
    assert_eq!(row("tcp")["device"], lab.server.interface());
    assert!(row("tcp")["napi_id"].as_u64().unwrap() > 0);
    assert!(row("unix")["why"].as_str().unwrap().contains("no receive queue"));
}

#[test]
fn at_most_as_many_threads_spin_as_there_are_cpus() {
    needs_root!();
    needs!(program "memcached");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut memcached = lab.server.command("memcached");
    memcached.args(["-u", "root", "-t", "4", "-p", "11211", "-U", "0"]).stdin(Stdio::null());
    let mut memcached = memcached.spawn().unwrap();
    let pid = memcached.id().to_string();
    let address = (lab.server.ipv4(), 11211);
    // memcached distributes connections over its threads in turn.
    let connect = || lab.client.enter(|| TcpStream::connect(address)).unwrap();
    let mut connections = Vec::new();
    wait_until("a connection for each thread", || {
        connections.extend(connect().ok());
        connections.len() == 4
    });
    let polling =
        || epolls(memcached.id()).iter().filter(|params| params.busy_poll_usecs > 0).count();
    let state = temp_dir("state");
    wait_until("each thread has its connection", || {
        let report = succeeds(&mut busypoll(&lab, &state, &["attach", &pid]));
        // No thread spins in the listener's instance; of the others one has the CPU of the host.
        report.matches("one spinner too many: 1 of 1").count() == 3
    });
    assert_eq!(polling(), 2);
    let policy = state.join("policy.toml");
    fs::write(&policy, "max_spinning_threads = 4\n").unwrap();
    let arguments = ["attach", &pid, "--policy", policy.to_str().unwrap()];
    succeeds(&mut busypoll(&lab, &state, &arguments));
    assert_eq!(polling(), 5);
    succeeds(&mut busypoll(&lab, &state, &["detach", &pid]));
    assert_eq!(polling(), 0);
    fs::write(&policy, "max_spinning_threads = 0\n").unwrap();
    succeeds(&mut busypoll(&lab, &state, &arguments));
    assert_eq!(polling(), 0);
    memcached.kill().unwrap();
    memcached.wait().unwrap();
}
