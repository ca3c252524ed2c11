//! The effect of `busypoll run` on real programs. These are measurements, not tests: they print tables. Release build:
//!
//!   cargo test --release -p busypoll-cli --test speed -- --ignored --nocapture --test-threads=1 [PROGRAM]
//!
//! Both ends run plain, on the kernel plane and on the stack plane, each setup in a lab of its own. Rounds interleave
//! the setups, and ratios are paired by round with a 95% interval. There are `ROUNDS` rounds (20) for each placement:
//! each end pinned to its own CPU, both to one CPU, or neither pinned. Notes below a row: what `run` has said (for
//! instance that it stopped polling), packets that took another path than the setup's, and how often the two CPUs
//! shared one core.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;
use std::{env, fs};

use busypoll_bench::arm::Placement;
use busypoll_bench::clock::Clock;
use busypoll_bench::cpus::Cpus;
use busypoll_bench::schedule;
use busypoll_bench::siblings::{OneCore, Rounds, shared, watch};
use busypoll_bench::stats::{Ratio, median, ratio_of_rounds};
use busypoll_lab::{Lab, LabHost, Namespace, needs, needs_root};
use busypoll_linux::{stat, topology};
use echo::*;
use support::*;

const PORT: u16 = 7300;
const PLANES: [&str; 3] = ["plain", "kernel", "stack"];

/// Where the ends run: the server's CPU and the client's.
const PLACEMENTS: [(&str, Option<[&str; 2]>); 3] =
    [("a CPU each", Some(["1", "0"])), ("one CPU", Some(["1", "1"])), ("unpinned", None)];

/// One way to run both ends.
struct Setup {
    lab: Lab,
    plane: &'static str,
    cpus: Option<[&'static str; 2]>,
    /// Further options of `run`.
    options: Vec<String>,
    server: Option<Child>,
    /// Standard error of both ends.
    said: PathBuf,
}

impl Drop for Setup {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Setup {
    fn command(&self, host: &LabHost, program: &str) -> Command {
        let server = std::ptr::eq(host, &raw const self.lab.server);
        let mut words: Vec<&str> = Vec::new();
        if let Some([servers, clients]) = self.cpus {
            words.extend(["taskset", "-c", if server { servers } else { clients }]);
        }
        if self.plane != "plain" {
            words.extend([BUSYPOLL, "run", "--plane", self.plane]);
            if self.plane == "stack" {
                words.extend(["--dev", host.interface()]);
            }
            words.extend(self.options.iter().map(String::as_str));
            words.push("--");
        }
        words.push(program);
        // The host's own command would be pinned to the host's CPU.
        let mut command = Namespace::command(host, words[0]);
        let said = fs::File::options().append(true).create(true).open(&self.said).unwrap();
        command.args(&words[1..]).stdin(Stdio::null()).stderr(said);
        command
    }

    fn client(&self, program: &str) -> Command {
        self.command(&self.lab.client, program)
    }

    fn address(&self) -> String {
        self.lab.server.ipv4().to_string()
    }

    fn serve(&mut self, program: &str, arguments: &[&str], tcp: bool) {
        let mut command = self.command(&self.lab.server, program);
        self.server = Some(command.args(arguments).stdout(Stdio::null()).spawn().unwrap());
        let address = SocketAddr::from((self.lab.server.ipv4(), PORT));
        wait_until("it serves", || {
            !tcp || self.lab.client.enter(|| TcpStream::connect(address)).unwrap().is_ok()
        });
        // Until then the stack gets the queues, and sockperf its socket.
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}

/// Counters of one end: packets received, those that its kernel's stack received, those that busy polling found.
type Counts = [u64; 3];

impl Setup {
    fn counts(&self) -> [Counts; 2] {
        [&self.lab.server, &self.lab.client].map(|host| {
            let (came, seen) = packet_counts(host);
            [came, seen, host.enter(stat::busy_poll_rx_packets).unwrap().unwrap()]
        })
    }

    /// Reasons why the figure does not belong to the setup's name.
    fn notes(&self, before: &[Counts; 2]) -> Vec<String> {
        let mut notes = Vec::new();
        for ((end, before), after) in ["server", "client"].iter().zip(before).zip(self.counts()) {
            let [came, seen, polled] = [0, 1, 2].map(|n| after[n] - before[n]);
            match self.plane {
                _ if came < 20 => {}
                "stack" if seen * 10 > came => notes.push(format!(
                    "NOT ON THE STACK: the {end}'s kernel has seen {seen} of {came} packets"
                )),
                "kernel" if polled * 2 < came => notes
                    .push(format!("busy polling has found {polled} of the {end}'s {came} packets")),
                _ => {}
            }
        }
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        for line in said.lines().filter_map(|line| line.strip_prefix("busypoll: ")) {
            if !notes.iter().any(|note| note == line) {
                notes.push(line.to_owned());
            }
        }
        notes
    }
}

/// One figure of a round, from the output of a client.
type Figure = fn(&Setup) -> f64;

fn measure(what: &str, serve: impl Fn(&mut Setup), figure: Figure) {
    measure_with(what, &[], serve, figure);
}

fn measure_with(what: &str, options: &[&str], serve: impl Fn(&mut Setup), figure: Figure) {
    let rounds = env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let mut table = format!("\n{what}, {rounds} rounds\n");
    let clock = Clock::default();
    let pair = Cpus::choose(Some((0, 1))).unwrap();
    let are_all = topology::online().is_ok_and(|cpus| cpus.len() == 2);
    for (placement, cpus) in PLACEMENTS {
        // Without pinning, the CPUs of the ends are known only if there are two in all.
        let are_two = cpus.map_or(are_all, |[server, client]| server != client);
        let on = if are_two { Placement::SeparateCpus } else { Placement::SameCpu };
        let mut setups = PLANES.map(|plane| {
            let lab = Lab::builder().build().unwrap();
            let options = options.iter().map(|&option| option.to_owned()).collect();
            Setup { lab, plane, cpus, options, server: None, said: temp_dir("speed").join("said") }
        });
        setups.iter_mut().for_each(&serve);
        let before = setups.each_ref().map(Setup::counts);
        let mut figures = [const { Rounds::new() }; PLANES.len()];
        for order in schedule::rounds(setups.len(), rounds) {
            for setup in order {
                figures[setup]
                    .push(Some(watch(&clock, pair, on, || Ok(figure(&setups[setup]))).unwrap()));
            }
        }
        let one_core = OneCore::judge(&figures.each_ref().map(shared));
        let figures = figures.map(|rounds| one_core.keep(rounds));
        let [plain, kernel, stack] = &figures;
        let _ = write!(table, " {placement:<10}");
        for (plane, figures) in PLANES.iter().zip(&figures) {
            let figures: Vec<f64> = figures.iter().flatten().copied().collect();
            let _ = write!(table, "  {plane} {:>9.1}", median(&figures));
        }
        for (name, ratio) in [
            ("kernel/plain", ratio_of_rounds(kernel, plain)),
            ("stack/plain", ratio_of_rounds(stack, plain)),
            ("stack/kernel", ratio_of_rounds(stack, kernel)),
        ] {
            let _ = write!(table, "  {name} {}", shown(ratio));
        }
        table.push('\n');
        if let Some(note) = one_core.note() {
            let _ = writeln!(table, "   {note}");
        }
        for (setup, before) in setups.iter().zip(&before) {
            for note in setup.notes(before) {
                let _ = writeln!(table, "   {}: {note}", setup.plane);
            }
        }
    }
    println!("{table}");
}

fn shown(ratio: Option<Ratio>) -> String {
    match ratio {
        Some(Ratio { ratio, ci95: Some([low, high]) }) => {
            format!("{ratio:.2} [{low:.2}-{high:.2}]")
        }
        Some(Ratio { ratio, ci95: None }) => format!("{ratio:.2}"),
        None => "-".to_owned(),
    }
}

/// The number that follows `name` in the output of a client.
fn number(command: &mut Command, name: &str) -> f64 {
    let said = succeeds(command);
    let (_, after) = said.rsplit_once(name).unwrap_or_else(|| panic!("no {name} in {said}"));
    let after = after.trim_start_matches([' ', '=', ':']);
    let digits = after.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(after.len());
    let scale = if after[digits..].starts_with("ms") { 1000.0 } else { 1.0 };
    after[..digits].parse::<f64>().unwrap() * scale
}

fn sockperf(kind: &'static [&'static str]) -> impl Fn(&mut Setup) {
    move |setup| {
        let address = setup.address();
        setup.serve("sockperf", &[&["sr", "-i", &address, "-p", "7300"], kind].concat(), false);
    }
}

fn ping_pong(setup: &Setup, kind: &[&str]) -> f64 {
    let mut client = setup.client("sockperf");
    client.args(["pp", "-t", "1", "-i", &setup.address(), "-p", "7300"]).args(kind);
    number(&mut client, "percentile 50.000")
}

#[test]
#[ignore = "a measurement"]
fn sockperf_udp() {
    needs_root!();
    needs!(program "sockperf");
    measure("sockperf UDP ping-pong, p50 one way in us", sockperf(&[]), |setup| {
        ping_pong(setup, &[])
    });
}

/// Here "plain" sets `SO_BUSY_POLL` itself, to the default of `run`.
#[test]
#[ignore = "a measurement"]
fn sockperf_udp_by_itself() {
    needs_root!();
    needs!(program "sockperf");
    fn own(setup: &Setup) -> &'static [&'static str] {
        if setup.plane == "plain" { &["--lls", "50"] } else { &[] }
    }
    let serve = |setup: &mut Setup| sockperf(own(setup))(setup);
    let what = "sockperf UDP ping-pong, plain with --lls 50, p50 one way in us";
    measure(what, serve, |setup| ping_pong(setup, own(setup)));
}

#[test]
#[ignore = "a measurement"]
fn sockperf_tcp() {
    needs_root!();
    needs!(program "sockperf");
    measure("sockperf TCP ping-pong, p50 one way in us", sockperf(&["--tcp"]), |setup| {
        ping_pong(setup, &["--tcp"])
    });
}

fn redis(setup: &mut Setup) {
    setup.serve("redis-server", &["--port", "7300", "--protected-mode", "no", "--save", ""], true);
}

fn gets(setup: &Setup, load: &[&str]) -> f64 {
    let mut client = setup.client("redis-benchmark");
    client.args(["-h", &setup.address(), "-p", "7300", "-t", "get", "--csv"]).args(load);
    number(&mut client, "\"GET\",\"")
}

#[test]
#[ignore = "a measurement"]
fn redis_one() {
    needs_root!();
    needs!(program "redis-server", program "redis-benchmark");
    measure("redis-benchmark -c 1 GET a second", redis, |setup| {
        gets(setup, &["-c", "1", "-n", "10000"])
    });
}

#[test]
#[ignore = "a measurement"]
fn redis_many() {
    needs_root!();
    needs!(program "redis-server", program "redis-benchmark");
    measure("redis-benchmark -c 50 -P 16 GET a second", redis, |setup| {
        gets(setup, &["-c", "50", "-P", "16", "-n", "200000"])
    });
}

#[test]
#[ignore = "a measurement"]
fn nginx() {
    needs_root!();
    needs!(program "nginx", program "wrk");
    let serve = |setup: &mut Setup| {
        let folder = temp_dir("nginx");
        let here = folder.display();
        fs::write(folder.join("small"), "small\n").unwrap();
        let configuration = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;\n\
             events {{ worker_connections 768; }}\n\
             http {{ access_log off; keepalive_requests 1000000;\n\
             server {{ listen {}:{PORT}; root {here}; }} }}\n",
            setup.address()
        );
        fs::write(folder.join("nginx.conf"), configuration).unwrap();
        setup.serve("nginx", &["-c", folder.join("nginx.conf").to_str().unwrap()], true);
    };
    measure("wrk, 32 connections to nginx, p50 in us", serve, |setup| {
        let mut wrk = setup.client("wrk");
        wrk.args(["-t1", "-c32", "-d1s", "--latency"]);
        number(wrk.arg(format!("http://{}:{PORT}/small", setup.address())), "50%")
    });
}

/// QuickFIX at both ends. A round trip takes longer than the default 50 us of polling, and the pause of 10 ms far
/// longer; so the policy makes it spin.
fn fix(gap: &'static str, orders: Figure) {
    needs_root!();
    needs!(program "g++");
    if !std::path::Path::new("/usr/include/quickfix/Application.h").exists() {
        return busypoll_lab::needs::skipped(module_path!(), "the package libquickfix-dev");
    }
    let serve = |setup: &mut Setup| setup.serve(fix_program(), &["acceptor", "7300"], true);
    let policy = temp_dir("fix-policy").join("policy.toml");
    fs::write(&policy, "receive = \"aggressive\"\naggressive_receive_delay = \"20ms\"\n").unwrap();
    let options = ["--policy", policy.to_str().unwrap()];
    let what = format!("QuickFIX, {gap} us between orders, receive = \"aggressive\", p50 in us");
    measure_with(&what, &options, serve, orders);
}

fn fix_program() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = temp_dir("fix").join("fix");
        let mut compiler = Command::new("g++");
        compiler.args(["-std=c++14", "-O1", "-w", "-o"]).arg(&program).arg(source("fix.cpp"));
        build(compiler.args(["-lquickfix", "-pthread"]));
        program.to_str().unwrap().to_owned()
    })
}

fn orders(setup: &Setup, count: &str, gap: &str) -> f64 {
    let mut client = setup.client(fix_program());
    number(client.args(["initiator", "7300", &setup.address(), count, gap]), "p50")
}

#[test]
#[ignore = "a measurement"]
fn quickfix_quiet() {
    // Three seconds: the spin trial takes the first half of a second.
    fix("10000", |setup| orders(setup, "300", "10000"));
}

#[test]
#[ignore = "a measurement"]
fn quickfix_flat_out() {
    fix("0", |setup| orders(setup, "1000", "0"));
}

#[test]
#[ignore = "a measurement"]
fn start_up() {
    needs_root!();
    measure(
        "start-up of a program without sockets, ms",
        |_: &mut Setup| {},
        |setup| {
            let begun = Instant::now();
            assert!(setup.client("true").status().unwrap().success());
            begun.elapsed().as_secs_f64() * 1e3
        },
    );
}
