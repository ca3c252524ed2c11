//! The commands that the documents show are run, on a host of a lab, and end with the exit code stated here. What is not
//! run has its reason here.

mod support;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Instant;
use std::{env, fs};

use busypoll_lab::{Lab, needs, needs_root};
use support::faults::TestMachine;
use support::lab_machine::LabMachine;
use support::shown::{blocks, commands, documents, project};
use support::{BUSYPOLL, Serving};

waiter_test!();

/// Commands that begin so are not run.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo ", "builds or tests the workspace, as what runs this test does"),
    ("sudo -E cargo", "likewise"),
    (".ci/", "runs all tests, this one among them"),
    ("sudo -E .ci/", "likewise"),
    ("rustup ", "changes the toolchain"),
    ("pgo/build", "ten minutes of optimized builds"),
    ("target/pgo/busypoll", "what pgo/build makes"),
    ("packaging/", "a release build; tests/packages runs it"),
    ("sudo apt ", "installs a package; tests/packages unpacks it"),
    ("sudo dnf ", "likewise"),
    ("sudo tar ", "likewise, into /usr/local"),
    ("sudo systemctl ", "changes the machine's services"),
    ("ansible-playbook ", "installs files below /etc; tests of tune run it"),
];

/// The exit codes other than 0, by how a command begins, and why.
const CODES: &[(&str, &[i32], &str)] = &[
    ("busypoll serve", &[130], "Ctrl-C ends it"),
    ("busypoll exporter --listen", &[130], "Ctrl-C ends it"),
    ("busypoll exporter --textfile /tmp/busypoll.prom --interval", &[130], "Ctrl-C ends it"),
    ("busypoll ss -i --watch", &[0, 130], "Ctrl-C ends it; 130: it ends the shell, too"),
    ("busypoll top --batch", &[0], "it prints and ends"),
    ("busypoll top", &[2], "there is no terminal"),
    ("busypoll doctor", &[0, 1], "1: it has a finding, as may be"),
    ("busypoll trace", &[0, 1], "1: no packet came meanwhile"),
    (
        "busypoll tune confirm",
        &[2],
        "in a lab the profile finds nothing to change, so nothing waits for it",
    ),
];

/// Commands that run until Ctrl-C.
const ENDLESS: &[&str] = &[
    "busypoll serve",
    "busypoll exporter --listen",
    "busypoll exporter --textfile /tmp/busypoll.prom --interval",
    "busypoll ss -i --watch",
];

/// What stands in for what the documents name, in this order: the lab's devices and addresses for those of an example,
/// a process of the test for the reader's, and less time.
const STANDINS: &[(&str, &str)] = &[
    ("sudo ", ""),
    ("eth1", "lab-server"),
    ("192.0.2.9", "10.77.0.1"),
    ("192.0.2.7", "10.77.0.1"),
    ("$(pgrep feed-handler)", "$FEED"),
    ("--pid 1234", "--pid $FEED"),
    ("advise --time 2s 1234", "advise --time 2s $FEED"),
    ("./", ""),
    ("/tmp/", ""),
    ("taskset -c 2", "taskset -c 0"),
    ("--cpus 2,4", "--cpus 0,1"),
    ("--duration 2m --rounds 20", ""),
    ("--duration 10s", ""),
    ("busypoll bench", "busypoll bench --duration 2s --rounds 2"),
    ("busypoll trace $FEED", "busypoll trace $FEED --for 1s"),
    ("--duration 2s --rounds 2 --list", "--list"),
    ("--rounds 2 --stages", "--stages"),
    ("--duration 2s --rounds 2 --gap", "--duration 4s --rounds 2 --gap"),
    ("busypoll soak", "busypoll soak --duration 1s"),
    ("-n 100000", "-n 1000"),
];

/// Programs that a document takes from its reader. Each sends one datagram.
const PROGRAMS: &[&str] = &["your-program", "feed-handler", "server"];

/// Runs of other tools that a document takes from its reader.
const RUNS: &[(&str, &str)] = &[
    ("netperf-off.txt", "netperf-udp.txt"),
    ("netperf-on.txt", "netperf-omni.csv"),
    ("sockperf.txt", "sockperf-pp.txt"),
];

/// A program of a document's reader.
const PROGRAM: &str = "#!/usr/bin/python3
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('10.77.0.1', 9))
";

/// redis, which runs until it is stopped: after three seconds.
const SERVER: &str = "#!/bin/sh
exec timeout --preserve-status -s TERM 3 /usr/bin/redis-server --save '' \"$@\"
";

/// The host on which a reader types.
struct Reader {
    machine: LabMachine,
    folder: PathBuf,
    feed: u32,
}

impl Reader {
    fn new() -> Reader {
        let folder = env::temp_dir().join(format!("busypoll-shown-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        for name in PROGRAMS {
            executable(&folder.join(name), PROGRAM);
        }
        executable(&folder.join("redis-server"), SERVER);
        for (name, sample) in RUNS {
            let samples = project().join("crates/bench/src/foreign/samples");
            fs::copy(samples.join(sample), folder.join(name)).unwrap();
        }
        let machine = LabMachine::new(Lab::builder().queues(2).build().unwrap());
        let feed = machine.start("recv");
        Reader { machine, folder, feed }
    }

    /// Runs what is shown, and says how if the exit code is not the one stated.
    fn run(&self, shown: &str) -> Option<String> {
        let mut script = shown.to_owned();
        for (example, here) in STANDINS {
            script = script.replace(example, here);
        }
        // Commands after the one that starts a lab's shell are typed there.
        if let Some(typed) = script.strip_prefix("busypoll lab\n") {
            let typed = typed.replace(" &\n", " &\nsleep 1\n");
            script = format!("busypoll lab <<'TYPED'\nset -e\n{typed}\nTYPED");
        }
        let file = self.folder.join("script");
        fs::write(&file, &script).unwrap();
        let (file, folder) = (file.display(), self.folder.display());
        let ends = !ENDLESS.iter().any(|start| shown.starts_with(start));
        let limit = if ends { "-k 5 60" } else { "--preserve-status -s INT 2" };
        let output = self.machine.sh(&format!(
            "cd {folder} && export PATH={folder}:$PATH FEED={} && timeout {limit} sh {file}",
            self.feed
        ));
        let stated = CODES.iter().find(|(start, ..)| shown.starts_with(start));
        let codes = stated.map_or(&[0][..], |(_, codes, _)| codes);
        let (code, out, err) = (output.status, output.stdout, output.stderr);
        // Beside other work no arm may be a valid one, and bench says so.
        let wrong = !codes.contains(&code) && !err.contains("no arm has a figure");
        wrong
            .then(|| format!("{shown}\nas: {script}\nended with {code}, not {codes:?}\n{out}{err}"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.machine.stop(self.feed);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn executable(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The commands of a block, with those typed into a lab's shell as one.
fn as_typed(block: &str) -> Vec<String> {
    let mut commands = commands(block);
    if commands[0] == "busypoll lab" {
        commands = vec![commands.join("\n")];
    }
    commands
}

#[test]
#[ignore = "long: runs every command that the documents show"]
fn commands_shown_end_as_stated() {
    needs_root!();
    needs!(program "timeout", program "python3", program "taskset", program "redis-server");
    let reader = Reader::new();
    let _serving = Serving::start(reader.machine.lab.client.command(BUSYPOLL), &[]);
    let mut not_run: Vec<&str> = NOT_RUN.iter().map(|(start, _)| *start).collect();
    let (mut ran, mut wrong) = (HashSet::new(), Vec::new());
    for (path, text) in documents() {
        for shown in blocks(&text).flat_map(as_typed) {
            if let Some((start, _)) = NOT_RUN.iter().find(|(start, _)| shown.starts_with(start)) {
                not_run.retain(|left| left != start);
                continue;
            }
            // What is shown twice is run once, except that `tune` depends on what was before.
            if !ran.insert(shown.clone()) && !shown.starts_with("busypoll tune") {
                continue;
            }
            let begun = Instant::now();
            wrong.extend(reader.run(&shown).map(|what| format!("{}: {what}", path.display())));
            println!("{:.1} s: {shown}", begun.elapsed().as_secs_f64());
        }
    }
    assert!(ran.len() > 40, "{}", ran.len());
    assert!(not_run.is_empty(), "no longer shown: {not_run:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
