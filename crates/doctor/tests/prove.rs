//! `--prove`: the verdict after counting, compared with the latency that the programs themselves measured.

mod programs;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use busypoll_doctor::{Finding, Report, Scope, Verdict, diagnose};
use busypoll_lab::{Lab, needs, needs_root};
use programs::{Program, cure};

/// One ping-pong at a time: each uses both CPUs.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A ping-pong between the hosts of a lab; it runs until its result is read.
struct PingPong {
    lab: Lab,
    server: Program,
    client: Program,
}

impl PingPong {
    /// Both ends busy poll for `usecs`; the client pauses for `pause` seconds between two pings.
    fn start(lab: Lab, usecs: u32, pause: f64) -> Self {
        let server = format!(
            "s = udp(700, {usecs}); s.connect(('10.77.0.1', 700)); say()\n\
             while True: s.send(s.recv(64))"
        );
        let mut server = Program::start(lab.server.command("python3"), &server);
        server.read_line();
        let client = format!(
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             s.setsockopt(socket.SOL_SOCKET, BUSY_POLL, {usecs}); s.bind(('10.77.0.1', 700))\n\
             s.connect(('10.77.0.2', 700))\n\
             took, asked = [], []\n\
             threading.Thread(target=lambda: asked.append(heard()), daemon=True).start()\n\
             s.send(b'x'); s.recv(9); say()\n\
             while not asked:\n\
             \x20   start = time.perf_counter_ns(); s.send(b'x'); s.recv(9)\n\
             \x20   took.append(time.perf_counter_ns() - start); time.sleep({pause}) if {pause} else None\n\
             took = took[len(took) // 2:]; say(sorted(took)[len(took) // 2])"
        );
        let mut client = Program::start(lab.client.command("python3"), &client);
        client.read_line();
        PingPong { lab, server, client }
    }

    /// The report on the server's process or on its device, with `prove`.
    fn prove(&self, device: bool) -> Report {
        let mut scope = Scope { prove: Some(Duration::from_secs(1)), ..Scope::default() };
        if device {
            scope.devices.push(self.lab.server.interface().into());
        } else {
            scope.pids.push(self.server.pid());
        }
        self.lab.server.enter(|| diagnose(&scope)).unwrap().unwrap()
    }

    /// The median round trip of the second half of the run, in nanoseconds.
    fn end(mut self) -> u64 {
        self.client.write_line("enough");
        self.client.read_line().parse().unwrap()
    }
}

/// The finding by counted packets.
fn proof(report: &Report) -> &Finding {
    let found: Vec<&Finding> =
        report.findings().into_iter().filter(|f| f.rule.code.starts_with("BP-PROVE")).collect();
    let [one] = found[..] else { panic!("{found:#?}") };
    one
}

/// The evidence about passes of softirqs.
fn softirqs(finding: &Finding) -> Option<&str> {
    let found = finding.evidence.iter().find(|e| e.read == "napi:napi_poll, softirqs");
    found.map(|e| e.said.as_str())
}

fn on_two_cpus() -> Lab {
    Lab::builder().build().unwrap()
}

fn on_one_cpu() -> Lab {
    let cpu = on_two_cpus().server.cpu();
    Lab::builder().cpus(cpu, cpu).build().unwrap()
}

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3", program "taskset");
        let lab = on_two_cpus();
        if lab.server.cpu() == lab.client.cpu() {
            busypoll_lab::needs::skipped(module_path!(), "two CPUs");
            return;
        }
    };
}

#[test]
#[ignore = "long: twenty seconds"]
fn the_verdict_agrees_with_the_latency() {
    needs_all!();
    let _guard = one_at_a_time();
    let off = PingPong::start(on_two_cpus(), 0, 0.0);
    for device in [false, true] {
        let report = off.prove(device);
        let proof = proof(&report);
        assert_eq!(proof.rule.code, "BP-PROVE-OFF", "{proof:#?}");
        // Softirqs deliver its packets.
        let softirqs = softirqs(proof).unwrap();
        assert!(!softirqs.starts_with("0 "), "{proof:#?}");
    }
    let off = off.end();

    let on = PingPong::start(on_two_cpus(), 200, 0.0);
    for device in [false, true] {
        let report = on.prove(device);
        let proof = proof(&report);
        assert_eq!(proof.rule.code, "BP-PROVE-WORKING", "{proof:#?}");
        assert_eq!(proof.verdict(), Verdict::Working);
    }
    let on = on.end();
    assert!(on < off, "busy polling {on} ns, without {off} ns");

    let together = PingPong::start(on_one_cpu(), 0, 0.0);
    std::thread::sleep(Duration::from_secs(1));
    let together_off = together.end();
    let crowded = PingPong::start(on_one_cpu(), 200, 0.0);
    let report = crowded.prove(true);
    assert_eq!(proof(&report).rule.code, "BP-PROVE-HARMFUL", "{:#?}", proof(&report));
    let report = crowded.prove(false);
    let harm = proof(&report);
    assert_eq!(harm.rule.code, "BP-PROVE-HARMFUL", "{harm:#?}");
    // The remedy is to move one of the two, after which it works.
    cure(harm);
    let report = crowded.prove(false);
    assert_eq!(proof(&report).rule.code, "BP-PROVE-WORKING", "{:#?}", proof(&report));
    let cured = crowded.end();
    let crowded = PingPong::start(on_one_cpu(), 200, 0.0);
    std::thread::sleep(Duration::from_secs(1));
    let crowded = crowded.end();
    assert!(crowded > 2 * together_off, "{crowded} ns with, {together_off} ns without");
    assert!(cured < crowded, "{cured} ns cured, {crowded} ns before");
}

#[test]
fn polls_that_end_before_the_packet_comes_have_no_effect() {
    needs_all!();
    let _guard = one_at_a_time();
    let sparse = PingPong::start(on_two_cpus(), 20, 0.004);
    for device in [false, true] {
        let report = sparse.prove(device);
        let proof = proof(&report);
        assert_eq!(proof.rule.code, "BP-PROVE-NO-EFFECT", "{proof:#?}");
        assert!(proof.what.contains("had ended"), "{}", proof.what);
    }
}

#[test]
fn the_option_without_napi_ids_has_no_effect() {
    needs_all!();
    let _guard = one_at_a_time();
    // Without GRO the packets have no NAPI id.
    let lab = Lab::builder().gro(false).tso(true).build().unwrap();
    let backlog = PingPong::start(lab, 200, 0.0);
    let report = backlog.prove(false);
    let found = proof(&report);
    assert_eq!(found.rule.code, "BP-PROVE-NO-EFFECT", "{found:#?}");
    assert_eq!(softirqs(found), None, "its queue is not known");
}

#[test]
fn without_packets_nothing_is_proved() {
    needs_all!();
    let _guard = one_at_a_time();
    let lab = on_two_cpus();
    let mut idle =
        Program::start(lab.server.command("python3"), "s = udp(700, 50); say(); s.recv(9)");
    idle.read_line();
    let scope = Scope {
        pids: vec![idle.pid()],
        prove: Some(Duration::from_millis(300)),
        ..Scope::default()
    };
    let report = diagnose(&scope).unwrap();
    assert_eq!(proof(&report).rule.code, "BP-PROVE-QUIET", "{:#?}", proof(&report));
}
