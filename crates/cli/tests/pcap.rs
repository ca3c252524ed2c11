//! `run --pcap`: a capture of what goes past the kernel, over memory and over the interface's queues, which tcpdump reads.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

const PORT: &str = "7000";
/// The length of a capture without frames.
const EMPTY: u64 = 24;

fn run(lab: &Lab, file: &Path, program: &[&str]) -> Command {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface()]);
    command.arg("--pcap").arg(file).arg("--").args(program);
    command
}

/// A server that captures to this file, and has accepted a connection of the kernel's.
fn server(lab: &Lab, file: &Path, source: &str) -> Running {
    let words = ["python3", source, "serve", "threads", "0.0.0.0", PORT];
    let server = Running::start(&mut run(lab, file, &words));
    let mut first = lab.server.command("python3");
    succeeds(first.args([source, "call", "blocking", "127.0.0.1", PORT, "10"]));
    server
}

/// What tcpdump says of these frames of a capture, a line each.
fn lines(file: &Path, filter: &str) -> Vec<String> {
    let output = Command::new("tcpdump").args(["-n", "-r"]).arg(file).arg(filter).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output).lines().map(str::to_owned).collect()
}

/// The same of the TCP connections; a process with nothing but the kernel's has no file.
fn connections(file: &Path) -> Vec<String> {
    if file.exists() { lines(file, "tcp port 7000") } else { Vec::new() }
}

/// The number of lines with these flags.
fn with(lines: &[String], flags: &str) -> usize {
    lines.iter().filter(|line| line.contains(&format!("Flags [{flags}]"))).count()
}

/// The bytes that each connection carried from this port, those that were sent twice counted once.
fn carried_by_each(lines: &[String], from: &str) -> Vec<usize> {
    let mut connections = BTreeMap::<&str, Vec<(usize, usize)>>::new();
    for line in lines.iter().filter(|line| line.contains(from)) {
        let range = |line: &str| {
            let (begin, end) = line.split_once(", seq ")?.1.split_once(',')?.0.split_once(':')?;
            Some((begin.parse().ok()?, end.parse().ok()?))
        };
        // A time is before the ends.
        let ends = line.split_once(" IP ").unwrap().1.split_once(": ").unwrap().0;
        connections.entry(ends).or_default().extend(range(line));
    }
    let sum = |mut ranges: Vec<(usize, usize)>| {
        ranges.sort_unstable();
        let mut until = 0;
        let new = ranges.into_iter().map(|(begin, end)| {
            let begin = begin.max(until);
            until = until.max(end);
            until - begin.min(until)
        });
        new.sum()
    };
    connections.into_values().map(sum).filter(|bytes| *bytes > 0).collect()
}

/// The bytes that all connections carried from this port.
fn carried(lines: &[String], from: &str) -> usize {
    carried_by_each(lines, from).iter().sum()
}

/// Whether so many connections of a client went over memory: the kernel has one that is not answered in time.
fn went_over_memory(lines: &[String], count: usize) -> bool {
    carried_by_each(lines, "> 127.0.0.1.7000").len() == count
}

#[test]
fn a_whole_connection_over_memory_is_in_the_capture_of_each_end() {
    needs_root!();
    needs!(program "python3", program "tcpdump");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("pcap");
    let source = source("local.py");
    let source = source.to_str().unwrap();
    let [of_server, of_client] = ["server.pcap", "client.pcap"].map(|name| folder.join(name));
    let start = || {
        let server = server(&lab, &of_server, source);
        let words = ["python3", source, "call", "blocking", "127.0.0.1", PORT, "100000"];
        succeeds(&mut run(&lab, &of_client, &words));
        (server, connections(&of_client))
    };
    // At its normal end the client's capture is complete, the last FIN included.
    let (server, seen) = start_until("memory", start, |(_, seen)| went_over_memory(seen, 1));
    assert_eq!((with(&seen, "S"), with(&seen, "S.")), (1, 1), "{seen:#?}");
    let fins = |from: &str| {
        seen.iter().filter(|line| line.contains(from) && line.contains("Flags [F")).count()
    };
    assert!(fins("127.0.0.1.7000 >") >= 1 && fins("> 127.0.0.1.7000") >= 1, "{seen:#?}");
    for from in ["127.0.0.1.7000 >", "> 127.0.0.1.7000"] {
        assert_eq!(carried(&seen, from), 100_100, "{from}: {seen:#?}");
    }
    // A connection by the interface, whose frames only its server's queues see.
    Client::connect(&lab, 7000).exchange(10);
    wait_until("the server's capture has both", || {
        let memory = lines(&of_server, "host 127.0.0.1 and tcp port 7000");
        let interface = lines(&of_server, "host 10.77.0.1 and tcp port 7000");
        carried(&memory, "127.0.0.1.7000 >") == 100_100
            && with(&interface, "S") == 1
            && carried(&interface, "10.77.0.2.7000 >") > 0
    });
    server.end();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn each_other_process_of_the_run_has_a_file_with_its_number() {
    needs_root!();
    needs!(program "python3", program "tcpdump");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let source = source("local.py");
    let source = source.to_str().unwrap();
    let start = || {
        let folder = temp_dir("pcap-children");
        let _server = server(&lab, &folder.join("server.pcap"), source);
        // What was there is replaced, and a name is of the directory of the command.
        fs::write(folder.join("run.pcap"), "something else").unwrap();
        let call = format!("python3 {source} call blocking 127.0.0.1 {PORT} 1000");
        let script = format!("cd /; {call} & one=$!; wait $one; {call} & echo pids $one $!; wait");
        let mut command = run(&lab, Path::new("run.pcap"), &["sh", "-c", &script]);
        let said = succeeds(command.current_dir(&folder));
        let pids = said.lines().find_map(|line| line.strip_prefix("pids ")).unwrap();
        let captures = pids.split(' ').map(|pid| folder.join(format!("run.pcap.{pid}")));
        let all = Vec::from_iter(captures.map(|file| connections(&file)));
        (folder, all)
    };
    let (folder, all) =
        start_until("memory", start, |(_, all)| all.iter().all(|seen| went_over_memory(seen, 1)));
    for seen in &all {
        assert_eq!(with(seen, "S"), 1, "{seen:#?}");
        assert_eq!(carried(seen, "127.0.0.1.7000 >"), 1_100, "{seen:#?}");
    }
    let file = folder.join("run.pcap");
    assert_eq!(fs::metadata(&file).unwrap().len(), EMPTY, "the shell has no socket");
    let files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_child_of_fork_has_a_file_of_its_own_and_leaves_its_parents_alone() {
    needs_root!();
    needs!(program "python3", program "tcpdump");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("pcap-fork");
    let source = source("local.py");
    let file = folder.join("run.pcap");
    let script = format!(
        "import os, socket
def call(data):
    s = socket.create_connection(('127.0.0.1', {PORT})); s.sendall(data); assert s.recv(99); s.close()
call(b'12345')
child = os.fork()
call(b'1234567' if child == 0 else b'12')
if child: assert os.wait()[1] == 0; print('child', child)
"
    );
    let start = || {
        let _server = server(&lab, &folder.join("server.pcap"), source.to_str().unwrap());
        let said = succeeds(&mut run(&lab, &file, &["python3", "-c", &script]));
        let child = said.lines().find_map(|line| line.strip_prefix("child ")).unwrap();
        let of_child = folder.join(format!("run.pcap.{child}"));
        [&file, &of_child].map(|file| connections(file))
    };
    let [of_parent, of_child] = start_until("memory", start, |[of_parent, of_child]| {
        went_over_memory(of_parent, 2) && went_over_memory(of_child, 1)
    });
    for (seen, count, bytes) in [(of_parent, 2, 7), (of_child, 1, 7)] {
        assert_eq!(with(&seen, "S"), count, "{seen:#?}");
        assert_eq!(carried(&seen, "> 127.0.0.1.7000"), bytes, "{seen:#?}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// What a program executes in its place adds to the capture of its process.
#[test]
fn an_executed_program_goes_on_with_the_file_of_its_process() {
    needs_root!();
    needs!(program "python3", program "tcpdump");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("pcap-exec");
    let source = source("local.py");
    let source = source.to_str().unwrap();
    let file = folder.join("run.pcap");
    let call = format!("'python3', '{source}', 'call', 'blocking', '127.0.0.1', '{PORT}'");
    // It connects, and then executes a program that does, too.
    let script = format!(
        "import os, socket; s = socket.create_connection(('127.0.0.1', {PORT})); s.sendall(b'12345'); \
         assert s.recv(9); s.close(); os.execvp('python3', [{call}, '1000'])"
    );
    let start = || {
        let _server = server(&lab, &folder.join("server.pcap"), source);
        succeeds(&mut run(&lab, &file, &["python3", "-c", &script]));
        connections(&file)
    };
    let seen = start_until("memory", start, |seen| went_over_memory(seen, 2));
    assert_eq!((with(&seen, "S"), carried(&seen, "> 127.0.0.1.7000")), (2, 1_105), "{seen:#?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "one of the server, one of the run");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_cannot_be_written_is_refused_in_one_line() {
    let run = |plane: &str, file: &str| {
        run_locally(&["run", "--plane", plane, "--pcap", file, "--", "true"])
    };
    for (file, why) in [
        ("/nowhere/at.pcap", "No such file or directory"),
        ("/dev/full", "not a file"),
        ("/tmp", "not a file"),
    ] {
        fails_with(&run("stack", file), &["--pcap", file, why]);
    }
    fails_with(&run("kernel", "/nowhere/at.pcap"), &["--pcap", "--plane stack"]);
}
