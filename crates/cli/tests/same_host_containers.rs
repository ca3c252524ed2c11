//! Connections between two network namespaces of one host, under `run --plane stack` with a policy that names a directory
//! which both have: over memory if both ends have the directory, and by the kernel otherwise, or when a child has an end.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::stat;
use echo::*;
use support::*;

const PORT: &str = "7000";

/// The containers of one test, and the directory that they share.
struct Containers {
    lab: Lab,
    folder: PathBuf,
    policy: PathBuf,
    directory: PathBuf,
}

impl Containers {
    fn new() -> Self {
        // The path of a socket is short.
        let directory = PathBuf::from(format!("/tmp/busypoll-test-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = temp_dir("containers");
        let policy = folder.join("policy.toml");
        fs::write(&policy, policy_of(&directory)).unwrap();
        Self { lab: Lab::builder().build().unwrap(), folder, policy, directory }
    }

    fn address(&self, family: u8) -> String {
        let server = &self.lab.server;
        match family {
            4 => server.ipv4().to_string(),
            _ => server.ipv6().unwrap().to_string(),
        }
    }

    /// How many packets the veth pair has carried: AF_XDP counts those of the stack, too.
    fn packets(&self) -> u64 {
        let of = |host: &LabHost| {
            host.enter(|| stat::received_packets().unwrap()[host.interface()]).unwrap()
        };
        of(&self.lab.client) + of(&self.lab.server)
    }

    fn program(&self, host: &LabHost, policy: Option<&Path>, words: &[&str]) -> Command {
        let mut command = host.command(BUSYPOLL);
        under(&mut command, host, policy, words);
        command
    }

    fn serve(&self, how: &str, address: &str) -> Running {
        let words = ["serve", how, address, PORT];
        Running::start(&mut self.program(&self.lab.server, Some(&self.policy), &words))
    }

    fn client(&self, policy: Option<&Path>, how: &str, address: &str, len: &str) -> Command {
        self.program(&self.lab.client, policy, &["call", how, address, PORT, len])
    }

    /// Runs a client to its end, and returns how many packets the network has carried meanwhile.
    fn call(&self, how: &str, address: &str, len: &str) -> u64 {
        self.count(&mut self.client(Some(&self.policy), how, address, len))
    }

    fn count(&self, client: &mut Command) -> u64 {
        let before = self.packets();
        let output = client.output().unwrap();
        assert!(output.status.success(), "{client:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("done"), "{client:?}: {output:?}");
        self.packets() - before
    }

    fn uses_memory(&self, what: &str, how: &str, address: &str) {
        wait_until(&format!("{what}: memory"), || self.call(how, address, "100000") < FEW);
    }

    fn uses_network(&self, what: &str, client: &mut Command) {
        for _ in 0..2 {
            let packets = self.count(client);
            assert!(packets > MANY, "{what}: {packets} packets");
        }
    }

    fn files(&self) -> Vec<String> {
        let all = fs::read_dir(&self.directory).unwrap();
        all.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// What a network carries beside connections, such as neighbour discovery.
const FEW: u64 = 30;
/// Less than a connection needs for a hundred round trips.
const MANY: u64 = 100;

fn policy_of(directory: &Path) -> String {
    format!("plane = 'stack'\n[[rule]]\nprotocol = 'tcp'\ncontainers = '{}'\n", directory.display())
}

fn under(command: &mut Command, host: &LabHost, policy: Option<&Path>, words: &[&str]) {
    command.args(["run", "--plane", "stack", "--dev", host.interface()]);
    policy.iter().for_each(|file| {
        command.arg("--policy").arg(file);
    });
    command.args(["--", "python3"]).arg(source("local.py")).args(words);
}

#[test]
fn both_ends_with_the_directory_use_memory() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    for (listens, how, family) in [
        ("0.0.0.0", "threads", 4),
        ("own", "asyncio", 4),
        ("::", "threads", 6),
        ("own", "threads", 6),
    ] {
        let to = two.address(family);
        let _server = two.serve(how, if listens == "own" { &to } else { listens });
        for how in ["blocking", "asyncio"] {
            two.uses_memory(&format!("{listens} {how} {to}"), how, &to);
        }
    }
    // At both ends the socket is known to go over memory.
    let to = two.address(4);
    let server = two.serve("threads", "0.0.0.0");
    two.uses_memory("listed", "blocking", &to);
    let start = || {
        let mut held = Running::spawn(&mut two.client(Some(&two.policy), "hold", &to, "1000"));
        held.wait_for("connected");
        held
    };
    let mut held = start_until("held over memory", start, |held| {
        links_of(&two.lab.client, held.pid()) == [server.pid()]
    });
    for (host, other) in [(&two.lab.client, server.pid()), (&two.lab.server, held.pid())] {
        let listed = text(&run_on_host(host, &["ss"]));
        assert!(listed.contains(&format!("local pid {other}")), "{listed}");
    }
    held.send_line("");
    held.wait_for("done");
}

#[test]
fn without_the_directory_at_both_ends_the_network_carries_them() {
    needs_root!();
    needs!(program "python3", program "setpriv");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let (to, other) = (two.address(4), two.folder.join("other"));
    fs::create_dir(&other).unwrap();
    let elsewhere = two.folder.join("elsewhere.toml");
    let short = PathBuf::from(format!("{}-other", two.directory.display()));
    fs::create_dir_all(&short).unwrap();
    fs::write(&elsewhere, policy_of(&short)).unwrap();
    {
        let _server = two.serve("threads", "0.0.0.0");
        two.uses_memory("both", "blocking", &to);
        for policy in [None, Some(&*elsewhere)] {
            two.uses_network("a client without", &mut two.client(policy, "blocking", &to, "1000"));
        }
        // A rule for other sockets.
        let text = format!("{}remote_port = 7001\n", policy_of(&two.directory));
        fs::write(&elsewhere, text).unwrap();
        let mut client = two.client(Some(&elsewhere), "blocking", &to, "1000");
        two.uses_network("another port", &mut client);
    }
    fs::remove_dir(&short).unwrap();
    let words = ["serve", "threads", "0.0.0.0", PORT];
    let _server = Running::start(&mut two.program(&two.lab.server, None, &words));
    let mut client = two.client(Some(&two.policy), "blocking", &to, "1000");
    two.uses_network("a server without", &mut client);
}

#[test]
fn another_user_is_reached_by_the_network() {
    needs_root!();
    needs!(program "python3", program "setpriv");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let to = two.address(4);
    fs::set_permissions(&two.directory, fs::Permissions::from_mode(0o1777)).unwrap();
    [&two.folder, &source("local.py"), Path::new(BUSYPOLL)].into_iter().for_each(readable);
    // Not nobody: by that number the kernel reports any user of another user namespace.
    let as_other = |host: &LabHost, words: &[&str]| {
        let mut command = host.command("setpriv");
        // With these capabilities: it has the stack plane, and the modes of files keep nothing from it.
        command.args(["--reuid", "1234", "--regid", "1234", "--clear-groups"]);
        let capabilities = "+net_raw,+net_admin,+sys_admin,+bpf,+dac_override";
        command.args(["--inh-caps", capabilities, "--ambient-caps", capabilities, BUSYPOLL]);
        under(&mut command, host, Some(&two.policy), words);
        command
    };
    {
        let _server = two.serve("threads", "0.0.0.0");
        two.uses_memory("the same user", "blocking", &to);
        let words = ["call", "blocking", &to, PORT, "1000"];
        two.uses_network("a client of another", &mut as_other(&two.lab.client, &words));
    }
    let _server =
        Running::start(&mut as_other(&two.lab.server, &["serve", "threads", "0.0.0.0", PORT]));
    let words = ["call", "blocking", &to, PORT, "1000"];
    wait_until("memory between them", || two.count(&mut as_other(&two.lab.client, &words)) < FEW);
    let mut client = two.client(Some(&two.policy), "blocking", &to, "1000");
    two.uses_network("a server of another", &mut client);
}

#[test]
fn a_directory_that_others_can_change_is_refused_in_one_line() {
    needs_root!();
    needs!(program "setpriv");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let run = || {
        let mut command = two.lab.client.command(BUSYPOLL);
        command.args(["run", "--dev", two.lab.client.interface(), "--policy"]).arg(&two.policy);
        command.args(["--", "true"]).output().unwrap()
    };
    let output = run();
    assert!(output.status.success(), "{output:?}");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("pass firewalls and network policies by"), "{line}");
    let set = |mode| {
        fs::set_permissions(&two.directory, fs::Permissions::from_mode(mode)).unwrap();
    };
    for mode in [0o777, 0o775] {
        set(mode);
        fails_with(&run(), &["other users can replace what is in it", "chmod"]);
    }
    set(0o1777);
    assert!(run().status.success());
    let owner = |user| std::os::unix::fs::chown(&two.directory, Some(user), None).unwrap();
    owner(1234);
    fails_with(&run(), &["belongs to another user"]);
    fs::remove_dir(&two.directory).unwrap();
    fails_with(&run(), &["No such file or directory"]);
    fs::write(&two.directory, "").unwrap();
    fails_with(&run(), &["not a directory"]);
    fs::remove_file(&two.directory).unwrap();
}

#[test]
fn a_server_that_is_killed_is_replaced() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let to = two.address(4);
    for _ in 0..2 {
        let mut server = two.serve("threads", "0.0.0.0");
        two.uses_memory("a new server", "blocking", &to);
        let mut held = Running::spawn(&mut two.client(Some(&two.policy), "hold", &to, "1000"));
        held.wait_for("connected");
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        held.send_line("");
        assert!(!held.child.wait().unwrap().success(), "the connection outlived its process");
        assert!(!two.files().is_empty());
    }
    // What they have left harms no client.
    let words = ["serve", "threads", "0.0.0.0", PORT];
    {
        let _server = Running::start(&mut two.program(&two.lab.server, None, &words));
        let mut client = two.client(Some(&two.policy), "blocking", &to, "1000");
        two.uses_network("the files of a killed server", &mut client);
    }
    // Of a server that ends by itself nothing remains, nor of the killed ones.
    let mut server = two.serve("threads", "0.0.0.0");
    two.uses_memory("the last server", "blocking", &to);
    let pid = rustix::process::Pid::from_raw(server.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    server.child.wait().unwrap();
    assert_eq!(two.files(), [""; 0]);
}

#[test]
fn children_and_executed_programs_go_on_with_a_connection() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    for (family, listens) in [(4, "0.0.0.0"), (6, "::")] {
        let to = two.address(family);
        {
            let _server = two.serve("threads", listens);
            two.uses_memory("before", "blocking", &to);
            for how in ["fork", "exec", "blocking"] {
                two.call(how, &to, "100000");
            }
        }
        let _server = two.serve("fork", listens);
        for how in ["blocking", "fork", "exec", "asyncio"] {
            two.call(how, &to, "100000");
        }
    }
}

/// Another program than the one whose listener has a connection may be the one to accept it, or to go on with it.
#[test]
fn a_connection_that_is_not_accepted_yet_begins_anew_in_the_network() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let to = two.address(4);
    for (how, len) in [("leaves", "100001"), ("executes", "100001"), ("late", "100001")] {
        let start = || {
            let words = ["serve", how, "0.0.0.0", PORT];
            let mut command = two.program(&two.lab.server, Some(&two.policy), &words);
            let server = Group::start(&mut command);
            let mut client = Running::spawn(&mut two.client(Some(&two.policy), "first", &to, len));
            client.wait_for("connected");
            (server, client)
        };
        let waits = format!("{how}: it waits over memory");
        // The server, too, anew: a connection by the network would be accepted first.
        let (mut server, mut client) = start_until(&waits, start, |(server, client)| {
            links_of(&two.lab.client, client.pid()) == [server.0.pid()]
        });
        server.0.send_line("");
        client.send_line("");
        client.wait_for("done");
        assert!(client.child.wait().unwrap().success(), "{how}");
    }
}

#[test]
fn idle_workers_get_the_connections() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let to = two.address(4);
    for how in ["workers", "pollers"] {
        let words = ["serve", how, "0.0.0.0", PORT];
        let mut command = two.program(&two.lab.server, Some(&two.policy), &words);
        let mut group = Group::start(&mut command);
        two.uses_memory(how, "blocking", &to);
        two.call("asyncio", &to, "100000");
        // One that is left has the address, whichever had it before.
        group.0.child.kill().unwrap();
        group.0.child.wait().unwrap();
        two.uses_memory("the worker that is left", "blocking", &to);
    }
}

/// Two containers of an engine: neither sees the other's processes or mounts.
#[test]
fn processes_that_do_not_see_each_other_use_memory() {
    needs_root!();
    needs!(program "python3", program "unshare");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let to = two.address(4);
    let contained = |host: &LabHost, words: &[&str]| {
        let mut command = host.command("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", BUSYPOLL]);
        under(&mut command, host, Some(&two.policy), words);
        command
    };
    let call = |how: &str, len: &str| {
        two.count(&mut contained(&two.lab.client, &["call", how, &to, PORT, len]))
    };
    for how in ["threads", "fork", "workers"] {
        let words = ["serve", how, "0.0.0.0", PORT];
        let mut server = Group::start(&mut contained(&two.lab.server, &words));
        if how != "fork" {
            wait_until(&format!("{how}: memory"), || call("blocking", "100000") < FEW);
        }
        for how in ["blocking", "fork", "exec", "asyncio"] {
            call(how, "100000");
        }
        let start = || {
            let words = ["call", "hold", &to, PORT, "1000"];
            let mut held = Running::spawn(&mut contained(&two.lab.client, &words));
            held.wait_for("connected");
            held
        };
        let listed = |host: &LabHost| text(&run_on_host(host, &["ss"]));
        let mut held = start_until(&format!("{how}: held over memory"), start, |_| {
            how != "threads" || listed(&two.lab.client).contains("local")
        });
        if how == "threads" {
            for listed in [&two.lab.client, &two.lab.server].map(listed) {
                assert!(listed.contains("local") && !listed.contains("local pid"), "{listed}");
            }
        }
        held.send_line("");
        held.wait_for("done");
        server.0.child.kill().unwrap();
    }
}

/// A firewall that lets nothing through: connections go over memory all the same, and one that a child is to have, or
/// that is not accepted yet, ends within the time that the kernel gives it.
#[test]
fn a_firewall_in_between_is_passed_by_until_a_connection_is_given_back() {
    needs_root!();
    needs!(program "python3", program "nft");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let to = two.address(4);
    let server = two.serve("threads", "0.0.0.0");
    two.uses_memory("before", "blocking", &to);
    let nft = |words: &str| {
        let done = two.lab.client.command("nft").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "{words}");
    };
    let drop_all = || {
        nft("add table ip f");
        nft("add chain ip f c { type filter hook input priority 0 ; policy drop ; }");
    };
    drop_all();
    let client = |how: &str, len: &str| {
        let mut command = two.lab.client.command(BUSYPOLL);
        command.args(["run", "--bypass-firewall", "--dev", two.lab.client.interface()]);
        command.arg("--policy").arg(&two.policy).args(["--", "python3"]).arg(source("local.py"));
        command.args(["call", how, &to, PORT, len]);
        command
    };
    wait_until("a firewall: memory", || two.count(&mut client("blocking", "100000")) < FEW);
    let mut plain = two.lab.client.command("python3");
    let script = "import socket, sys; socket.create_connection((sys.argv[1], 7000), timeout=1)";
    let output = plain.args(["-c", script, &to]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("timed out"), "{output:?}");
    // The kernel's time: how often it repeats what is not acknowledged.
    two.lab.client.enter(|| fs::write("/proc/sys/net/ipv4/tcp_retries2", "3").unwrap()).unwrap();
    let output = client("fork", "1000").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("TimeoutError"), "{output:?}");
    drop(server);
    nft("delete table ip f");
    let words = ["serve", "leaves", "0.0.0.0", PORT];
    let mut command = two.program(&two.lab.server, Some(&two.policy), &words);
    let mut server = Group::start(&mut command);
    let mut client = Running::spawn(&mut client("first", "1001"));
    client.wait_for("connected");
    drop_all();
    server.0.send_line("");
    client.send_line("");
    assert!(!client.child.wait().unwrap().success(), "it has connected");
}

/// Two namespaces that have the same address: a client reaches what the network leads to.
#[test]
fn an_address_that_two_namespaces_have_is_the_networks() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let two = Containers::new();
    let other = Lab::builder().build().unwrap();
    let to = two.address(4);
    let server = two.serve("threads", "0.0.0.0");
    two.uses_memory("one", "blocking", &to);
    let words = ["serve", "threads", "0.0.0.0", PORT];
    let twin = Running::start(&mut two.program(&other.server, Some(&two.policy), &words));
    wait_until("both have the address", || {
        two.files().iter().filter(|file| file.starts_with(&format!("tcp-{to}:"))).count() == 2
    });
    two.uses_network("two", &mut two.client(Some(&two.policy), "blocking", &to, "1000"));
    drop(server);
    // The one that is left is not where the network leads: it is this namespace's only if the client has a way there.
    let mut client =
        two.program(&other.client, Some(&two.policy), &["call", "blocking", &to, PORT, "1"]);
    wait_until("one again", || {
        let output = client.output().unwrap();
        output.status.success()
    });
    drop(twin);
}
