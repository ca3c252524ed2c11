//! Local ports on the stack plane, compared with the plain kernel (`programs/ports.c`): a connect from a port that the
//! kernel chooses, that is given, or that the kernel has in TIME_WAIT succeeds, and a listener on it is served. Neither
//! asks the kernel for a list of its connections.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::link::Links;
use echo::*;
use support::BUSYPOLL;
#[allow(unused_imports, reason = "support/echo.rs")]
use support::wait_until;

const STACK: [&str; 6] = [BUSYPOLL, "run", "--plane", "stack", "--dev", "lab-client"];
const PLAIN: [&str; 0] = [];

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = temp_dir("ports").join("ports");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(&program);
        build(compiler.arg(source("ports.c")));
        program
    })
}

/// A lab with the peer on its server.
fn lab() -> (Lab, Running) {
    let lab = Lab::builder().build().unwrap();
    let peer = Running::start(lab.server.command(program()).arg("peer"));
    (lab, peer)
}

/// The program on the client of `lab`, started by the command line `how`.
fn command(lab: &Lab, how: &[&str], words: &[&str]) -> Command {
    let (own, far) = (lab.client.ipv4().to_string(), lab.server.ipv4().to_string());
    let all: Vec<&str> = [how, if how.is_empty() { &[] } else { &["--"] }].concat();
    let program = program().to_str().unwrap();
    let all = [&all[..], &[program, words[0], &own, &far], &words[1..]].concat();
    let mut command = lab.client.command(all[0]);
    command.args(&all[1..]);
    command
}

/// Its output.
fn output_of(lab: &Lab, how: &[&str], words: &[&str]) -> String {
    let output = command(lab, how, words).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?} {said}", output.status);
    // No socket was left to the kernel.
    assert!(!said.contains("stays with the kernel"), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn all_of_port_zero(rounds: u32) {
    let (lab, _peer) = lab();
    let rounds = rounds.to_string();
    let told = output_of(&lab, &STACK, &["zero", &rounds]);
    let wanted = format!("{rounds} served, {rounds} called, {rounds} connected of {rounds}\n");
    assert_eq!(told, wanted);
}

/// Of 28,000 ports some are chosen again while an earlier connection from them is in TIME_WAIT here.
#[test]
fn listeners_on_port_0_are_served_and_connects_succeed() {
    needs_root!();
    needs!(program "cc");
    all_of_port_zero(1500);
}

#[test]
#[ignore = "minutes"]
fn listeners_on_port_0_are_served_and_connects_succeed_100_000_times() {
    needs_root!();
    for _ in 0..10 {
        all_of_port_zero(10_000);
    }
}

/// With few ports they are chosen again at once.
#[test]
fn port_0_among_few_ports_gives_the_same_as_plain() {
    needs_root!();
    needs!(program "cc");
    let told = [&PLAIN[..], &STACK].map(|how| {
        let (lab, _peer) = lab();
        let range = "/proc/sys/net/ipv4/ip_local_port_range";
        lab.client.enter(|| std::fs::write(range, "40000 40999")).unwrap().unwrap();
        output_of(&lab, how, &["zero", "400"])
    });
    assert_eq!(told[0], told[1]);
}

/// The kernel must not take the SYN-ACK for a segment of its own TIME_WAIT connection, and reset it.
#[test]
fn a_connect_from_a_port_in_the_kernel_s_time_wait_succeeds() {
    needs_root!();
    needs!(program "cc");
    let (lab, _peer) = lab();
    assert_eq!(output_of(&lab, &PLAIN, &["from", "23001"]), "answered\n");
    for how in [&STACK[..], &STACK, &PLAIN] {
        assert_eq!(output_of(&lab, how, &["from", "23001"]), "answered\n");
    }
}

/// Two processes use one port; the kernel knows the connection of one of them.
#[test]
fn a_connect_that_the_kernel_has_already_is_refused() {
    needs_root!();
    needs!(program "cc");
    let told = [&PLAIN[..], &STACK].map(|how| {
        let (lab, _peer) = lab();
        let mut holder = command(&lab, &PLAIN, &["from", "23002"]);
        holder.env("HOLD", "1");
        let mut holder = Running::spawn(&mut holder);
        holder.wait_for("answered");
        output_of(&lab, how, &["twice", "23002"])
    });
    assert_eq!(told[0], told[1]);
    assert!(told[0].starts_with("connect: EADDRNOTAVAIL"), "{}", told[0]);
}

fn has_steering_program(lab: &Lab) -> bool {
    lab.client.enter(|| Links::open().unwrap().get("lab-client").unwrap().xdp.is_some()).unwrap()
}

/// Otherwise the first wait would last as long as it takes to attach the program.
#[test]
fn the_guard_takes_the_interface_when_a_port_is_bound_and_keeps_it_no_longer_than_the_process() {
    needs_root!();
    needs!(program "cc");
    let (lab, _peer) = lab();
    // The run goes on when the program of its shell has ended.
    let (program, own) = (program().to_str().unwrap(), lab.client.ipv4());
    let line = |port: u16, local: u8| format!("{program} bound {own} - {port} {local}");
    let mut shell = Running::spawn(
        lab.client.command(STACK[0]).args(&STACK[1..]).args(["--", "sh", "-c"]).arg(format!(
            "{}; {}; echo left; read line",
            line(23008, 1),
            line(23009, 0)
        )),
    );
    shell.wait_for("ready");
    assert!(!has_steering_program(&lab), "a port of another interface");
    shell.send_line("");
    shell.wait_for("ready");
    wait_until("the interface is taken", || has_steering_program(&lab));
    shell.send_line("");
    shell.wait_for("left");
    wait_until("the interface is released", || !has_steering_program(&lab));
}

#[test]
fn a_backlog_is_unsigned() {
    needs_root!();
    needs!(program "cc");
    let (lab, _peer) = lab();
    for how in [&PLAIN[..], &STACK] {
        assert_eq!(
            output_of(&lab, how, &["backlog", "-1"]),
            "0\n50 answered\n50 have the answer\n"
        );
    }
}

/// The port stays reserved for later connections, but the program may bind it.
#[test]
fn the_port_of_an_ended_connection_can_be_bound() {
    needs_root!();
    needs!(program "cc");
    let (lab, _peer) = lab();
    for how in [&PLAIN[..], &STACK] {
        assert_eq!(output_of(&lab, how, &["again"]), "free\n");
    }
}

/// A service is restarted: one process closes its listener and keeps its connections, another listens on the port.
#[test]
fn after_a_listener_closes_another_process_gets_the_port_and_connections_continue() {
    needs_root!();
    needs!(program "cc");
    for how in [&PLAIN[..], &STACK] {
        let (lab, _peer) = lab();
        let mut first = Running::spawn(&mut command(&lab, how, &["leaves", "7100"]));
        first.wait_for("closed");
        let _other = Running::start(&mut command(&lab, &PLAIN, &["serve", "7100"]));
        first.send_line("");
        assert_eq!(first.wait_for("kept"), "1 kept\n");
        assert_eq!(first.wait_for("served"), "1 served by the other\n");
    }
}

/// The system calls named `calls` that the program's threads make, as strace prints them: thread, name and arguments.
fn traced(lab: &Lab, calls: &str, words: &[&str], rounds: u32) -> String {
    let file = temp_dir("calls").join("calls");
    let (rounds, calls) = (rounds.to_string(), format!("trace={calls}"));
    let words = [words, &[&rounds]].concat();
    let traced = ["strace", "-f", "-o", file.to_str().unwrap(), "-e", &calls];
    let how = [&traced[..], &STACK].concat();
    assert_eq!(output_of(lab, &how, &words), format!("{rounds} of {rounds}\n"));
    std::fs::read_to_string(file).unwrap()
}

/// How often the kernel is asked for all its connections while the program runs.
fn dumps(lab: &Lab, words: &[&str], rounds: u32) -> usize {
    let text = traced(lab, "sendto", words, rounds);
    assert!(text.contains("NLM_F_REQUEST"), "{text}");
    let dumps = |line: &&str| line.contains("NLM_F_DUMP") || line.contains("NLM_F_ROOT");
    text.lines().filter(dumps).count()
}

#[test]
fn neither_a_bound_connect_nor_a_listener_dumps_the_kernel_s_connections() {
    needs_root!();
    needs!(program "cc", program "strace");
    let (lab, _peer) = lab();
    for words in [&["connects", "24000"][..], &["listens", "0"], &["listens", "1"]] {
        let [few, many] = [1, 20].map(|rounds| dumps(&lab, words, rounds));
        assert_eq!(few, many, "{words:?}");
    }
}

/// The first listener may have connections in the kernel. The host's thread asks for them.
#[test]
fn the_thread_that_waits_for_the_first_listener_does_not_dump_the_kernel_s_connections() {
    needs_root!();
    needs!(program "cc", program "strace");
    let (lab, _peer) = lab();
    let text = traced(&lab, "sendto", &["first", "7300"], 1);
    let dumps = |line: &&str| line.contains("TCPDIAG_GETSOCK");
    let threads: Vec<&str> =
        text.lines().filter(dumps).filter_map(|line| line.split_whitespace().next()).collect();
    let main = text.split_whitespace().next().unwrap();
    assert!(!threads.is_empty() && !threads.contains(&main), "{main} {text}");
}

/// Of the calls `calls`, how many the main thread makes for one connection.
fn per_connection(lab: &Lab, calls: &str, first: &str) -> Vec<(String, f64)> {
    const MORE: u32 = 100;
    let count = |rounds| {
        let text = traced(lab, calls, &["connects", first], rounds);
        let main = text.split_whitespace().next().unwrap().to_owned();
        let mine = text.lines().filter_map(move |line| line.trim().strip_prefix(&main));
        let names: Vec<String> = mine
            .filter_map(|line| line.trim().split_once('(').map(|(name, _)| name.to_owned()))
            .collect();
        move |name: &str| names.iter().filter(|it| *it == name).count() as f64
    };
    let (few, many) = (count(10), count(10 + MORE));
    let each = |name: &str| (many(name) - few(name)) / f64::from(MORE);
    calls.split(',').map(|name| (name.to_owned(), each(name))).collect()
}

/// What a connection costs in the kernel beside its packets.
#[test]
fn a_connection_makes_few_system_calls() {
    needs_root!();
    needs!(program "cc", program "strace");
    let (lab, _peer) = lab();
    let calls = "getsockopt,getpeername,getsockname,recvfrom,socket,bind,fcntl,bpf";
    for (first, most) in [("0", [0, 0, 1, 0, 2, 1, 1, 1]), ("26000", [0, 0, 1, 0, 1, 1, 1, 1])] {
        let made = per_connection(&lab, calls, first);
        for ((name, each), most) in made.iter().zip(most) {
            assert!(*each < f64::from(most) + 0.1, "from {first}: {each} {name}, not {most}");
        }
    }
}

/// For measurements.
#[test]
#[ignore = "a measurement"]
fn cost_of_ports() {
    needs_root!();
    let (lab, _peer) = lab();
    for words in
        [&["connects", "0"][..], &["connects", "25000"], &["listens", "0"], &["listens", "1"]]
    {
        for how in [&PLAIN[..], &STACK, &PLAIN, &STACK] {
            let words = [words, &["1000"]].concat();
            let output = command(&lab, how, &words).stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            println!("{} {words:?}: {said}", if how.is_empty() { "plain" } else { "stack" });
        }
    }
}
