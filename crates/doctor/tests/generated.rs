//! Random device settings, programs and busy-poll settings: the doctor's verdict against packets counted meanwhile by
//! independent counters (`BusyPollRxPackets`, the sender's own count). The rules: never "works" below a half, never
//! "nothing stands in the way" below a half, no fault where most packets are polled, and a timer that delays packets
//! is named.
//!
//! Five hundred cases, from a seed (`FROM` and `TO` run a part of them):
//! `SEED=7 cargo test -p busypoll-doctor --test generated -- --ignored --nocapture five_hundred`

mod programs;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use busypoll_doctor::{Report, Scope, Subject, diagnose};
use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::stat;
use busypoll_linux::sysfs::Sysfs;
use programs::Program;

/// SplitMix64: the same cases from the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.next() % all.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    Nothing,
    Bridge,
    Macvlan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Receive,
    Nonblocking,
    Poll,
    Select,
    Epoll,
    EpollSpin,
    Nested,
    Uring,
}

#[derive(Clone, Debug)]
struct Case {
    gro: bool,
    tso_at_peer: bool,
    rps: bool,
    xdp: bool,
    threaded: bool,
    /// gro-flush-timeout in nanoseconds; 0: interrupts are not deferred.
    flush: u64,
    above: Above,
    shape: Shape,
    usecs: u32,
    prefer: bool,
    /// Microseconds between packets.
    gap: u64,
    napper: bool,
    idle: u32,
}

impl Case {
    fn random(random: &mut Random) -> Self {
        use Shape::{Epoll, EpollSpin, Nested, Nonblocking, Poll, Receive, Select, Uring};
        let xdp = random.one_in(8);
        Case {
            gro: !random.one_in(5),
            // An XDP program keeps the peer's TSO off.
            tso_at_peer: random.one_in(5) && !xdp,
            rps: random.one_in(5),
            xdp,
            threaded: random.one_in(6),
            flush: if random.one_in(5) { random.of(&[100_000, 1_000_000, 4_000_000]) } else { 0 },
            above: random.of(&[Above::Nothing, Above::Nothing, Above::Bridge, Above::Macvlan]),
            shape: random.of(&[
                Receive,
                Receive,
                Nonblocking,
                Poll,
                Select,
                Epoll,
                Epoll,
                EpollSpin,
                Nested,
                Uring,
            ]),
            usecs: random.of(&[0, 10, 50, 2000, 20_000]),
            prefer: random.one_in(4),
            gap: random.of(&[200, 1000, 5000]),
            napper: random.one_in(3),
            idle: if random.one_in(3) { 20 } else { 0 },
        }
    }

    fn script(&self) -> String {
        let (usecs, prefer) = (self.usecs, u32::from(self.prefer));
        let wait = match self.shape {
            Shape::Receive => "while True: d, a = s.recvfrom(99); s.sendto(d, a)".to_owned(),
            Shape::Nonblocking => "s.setblocking(0)\nwhile True:\n\
                 \x20   try: d, a = s.recvfrom(99); s.sendto(d, a)\n\
                 \x20   except BlockingIOError: pass"
                .to_owned(),
            Shape::Poll => "p = select.poll(); p.register(s, 1)\n\
                 while True: p.poll(); d, a = s.recvfrom(99); s.sendto(d, a)"
                .to_owned(),
            Shape::Select => {
                "while True: select.select([s], [], []); d, a = s.recvfrom(99); s.sendto(d, a)"
                    .to_owned()
            }
            Shape::Epoll => format!(
                "s.setblocking(0); e = epoll([s], {usecs}, 8, {prefer})\n\
                 while True: e.poll(); d, a = s.recvfrom(99); s.sendto(d, a)"
            ),
            Shape::EpollSpin => format!(
                "s.setblocking(0); e = epoll([s], {usecs}, 8, {prefer})\nwhile True:\n\
                 \x20   if e.poll(0): d, a = s.recvfrom(99); s.sendto(d, a)"
            ),
            Shape::Nested => format!(
                "s.setblocking(0); i = epoll([s], {usecs}, 8, {prefer}); o = epoll([i], {usecs})\nwhile True:\n\
                 \x20   if o.poll() and i.poll(0): d, a = s.recvfrom(99); s.sendto(d, a)"
            ),
            // It connects, as a receive in a ring does not tell the sender's address.
            Shape::Uring => format!(
                "r = Ring({usecs}, {prefer}); d, a = s.recvfrom(99); s.connect(a)\n\
                 while True: s.send(r.recv(s))"
            ),
        };
        let of_socket = match self.shape {
            Shape::Epoll | Shape::EpollSpin | Shape::Nested | Shape::Uring => 0,
            _ => usecs,
        };
        let napper = match self.napper {
            true => {
                "def nap():\n\x20   while True: time.sleep(.0005)\nthreading.Thread(target=nap, daemon=True).start()\n"
            }
            false => "",
        };
        format!(
            "idle = [udp(900 + i, 50) for i in range({})]\ns = udp(700, {of_socket})\n\
             s.setsockopt(1, PREFER, {})\n{napper}say()\n{wait}",
            self.idle,
            u32::from(self.prefer && of_socket > 0)
        )
    }

    /// Configures the device.
    fn make(&self, lab: &Lab, xdp_object: Option<&str>) {
        let device = lab.server.interface();
        let mut script = String::from("set -e\n");
        if let (true, Some(object)) = (self.xdp, xdp_object) {
            script += &format!("ip link set {device} xdp obj {object} sec xdp\n");
        }
        let upper = match self.above {
            Above::Nothing => device,
            Above::Bridge => {
                script += &format!(
                    "ip link add up0 type bridge; ip link set {device} master up0\n\
                     ip link set up0 address $(ip -br link show {device} | tr -s ' ' | cut -d' ' -f3)\n"
                );
                "up0"
            }
            Above::Macvlan => {
                script += &format!("ip link add up0 link {device} type macvlan mode passthru\n");
                "up0"
            }
        };
        if upper != device {
            script += &format!(
                "ip addr flush dev {device}; ip addr add 10.77.0.2/24 dev up0; ip link set up0 up\n"
            );
        }
        let done = lab.server.command("sh").args(["-c", &script]).status().unwrap();
        assert!(done.success(), "{self:?}: {script}");
        let (rps, threaded, flush) = (self.rps, self.threaded, self.flush);
        let set = move || {
            let sysfs = Sysfs::open().unwrap();
            if rps {
                sysfs.set_attribute(upper, "queues/rx-0/rps_cpus", "3").unwrap();
            }
            // Without a NAPI instance the write fails.
            if threaded {
                let _ = sysfs.set_attribute(device, "threaded", "1");
            }
            if flush > 0 {
                sysfs.set_attribute(device, "gro_flush_timeout", &flush.to_string()).unwrap();
                sysfs.set_attribute(device, "napi_defer_hard_irqs", "100").unwrap();
            }
        };
        lab.server.enter(set).unwrap();
    }
}

/// Requests, one at a time, until dropped.
struct Requests {
    sent: Arc<AtomicU64>,
    /// Answers that took most of the timer's time, or longer.
    late: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Requests {
    fn start(lab: &Lab, gap: Duration, timer: Duration) -> Self {
        let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let late = Arc::new(AtomicU64::new(0));
        let (count, delayed, stopped) = (Arc::clone(&sent), Arc::clone(&late), Arc::clone(&stop));
        let work = move || {
            let socket = std::net::UdpSocket::bind("10.77.0.1:0").unwrap();
            socket.connect("10.77.0.2:700").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            while !stopped.load(Relaxed) {
                let start = Instant::now();
                if socket.send(b"x").is_ok() && socket.recv(&mut [0; 9]).is_ok() {
                    count.fetch_add(1, Relaxed);
                    delayed.fetch_add((start.elapsed() * 4 > timer * 3).into(), Relaxed);
                }
                std::thread::sleep(gap);
            }
        };
        let thread = Some(lab.client.spawn_thread(lab.client.cpu(), work).unwrap());
        Requests { sent, late, stop, thread }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// With fewer packets the share is too uncertain to compare a verdict with.
const ENOUGH: u64 = 60;
/// The counters run a little longer than the doctor counts, and count other programs: near a half any verdict is right.
const MARGIN: u64 = 15;

/// What the counters say of the time in which the doctor counted.
struct Truth {
    polled: u64,
    sent: u64,
    late: u64,
}

/// What is wrong with the verdict, if anything.
fn judge(case: &Case, report: &Report, truth: &Truth) -> Option<String> {
    let sent = truth.sent;
    // A packet that RPS moves to another CPU is not found by polling. A macvlan does not steer.
    let moved = case.rps && case.above != Above::Macvlan;
    let share = if moved { 0 } else { (100 * truth.polled / sent).min(100) };
    let summary = report.summary();
    let of_process: Vec<&str> = report
        .findings()
        .iter()
        .filter(|f| f.verdict().is_fault() && f.subject != Subject::Machine)
        .map(|f| f.rule.code)
        .collect();
    let proof = report.findings().into_iter().find(|f| f.rule.code.starts_with("BP-PROVE"));
    let works = summary.starts_with("Busy polling works");
    if works && share + MARGIN < 50 {
        return Some(format!("works, at {share}% of {sent}: {summary}"));
    }
    if summary.starts_with("Nothing stands") && share + MARGIN < 50 {
        return Some(format!("nothing in the way, at {share}% of {sent}: {summary}"));
    }
    if !of_process.is_empty() && share > 50 + MARGIN {
        return Some(format!("{of_process:?}, at {share}% of {sent}: {summary}"));
    }
    let text: String = report.findings().iter().map(|f| f.what.clone()).collect();
    let quiet = proof.is_none_or(|f| f.rule.code == "BP-PROVE-QUIET");
    let has_instance = (case.gro || case.xdp) && !case.threaded;
    let delayed = case.flush >= 1_000_000 && truth.late * 2 > sent && share + MARGIN < 50;
    if delayed && has_instance && !quiet && !text.contains("timer") {
        let late = truth.late;
        return Some(format!("{late} of {sent} waited for a timer of {} ns: {text}", case.flush));
    }
    None
}

/// The outcome of a case.
enum Outcome {
    Right,
    Wrong(String),
    /// Too few packets were answered.
    Unknown,
}

fn outcome(case: &Case, xdp_object: Option<&str>) -> Outcome {
    let lab = Lab::builder().gro(case.gro).tso(false).build().unwrap();
    case.make(&lab, xdp_object);
    let mut program = Program::start(lab.server.command("python3"), &case.script());
    program.read_line();
    let timer = Duration::from_nanos(case.flush);
    let requests = Requests::start(&lab, Duration::from_micros(case.gap), timer);
    std::thread::sleep(Duration::from_millis(100));
    if case.tso_at_peer {
        // After the socket has learnt the id: the harder case.
        let set = format!("ethtool -K {} tso on", lab.client.interface());
        assert!(lab.client.command("sh").args(["-c", &set]).status().unwrap().success());
    }
    let look = |time: Duration| {
        let scope = Scope { pids: vec![program.pid()], prove: Some(time), ..Scope::default() };
        let read = || {
            let count = |counter: &AtomicU64| counter.load(Relaxed);
            let polled = stat::busy_poll_rx_packets().unwrap();
            Truth { polled, sent: count(&requests.sent), late: count(&requests.late) }
        };
        let before = read();
        let report = diagnose(&scope).unwrap();
        let after = read();
        let truth = Truth {
            polled: after.polled - before.polled,
            sent: after.sent - before.sent,
            late: after.late - before.late,
        };
        (report, truth)
    };
    // On a busy machine the doctor and the counters may see different packets: only a repeated error counts.
    let (mut time, mut last) = (Duration::from_millis(400), Outcome::Unknown);
    for _ in 0..3 {
        let (report, truth) = lab.server.enter(|| look(time)).unwrap();
        if truth.sent < ENOUGH {
            time *= 2;
            continue;
        }
        match judge(case, &report, &truth) {
            None => return Outcome::Right,
            Some(what) => last = Outcome::Wrong(what),
        }
    }
    last
}

/// An XDP program that passes every packet, if there is a compiler.
fn xdp_object() -> Option<String> {
    let path =
        format!("{}/busypoll-generated-{}.o", std::env::temp_dir().display(), std::process::id());
    let source = "__attribute__((section(\"xdp\"))) int pass(void *c) { return 2; }";
    let make = format!("printf '{source}' | clang -O2 -target bpf -c -x c - -o {path}");
    let made = Command::new("sh").args(["-c", &make]).status().is_ok_and(|status| status.success());
    made.then_some(path)
}

fn run_cases(cases: std::ops::Range<u64>, seed: u64) {
    let object = xdp_object();
    let (mut right, mut unknown) = (0, 0);
    let mut failures = Vec::new();
    for i in cases {
        let case = Case::random(&mut Random(seed.wrapping_mul(1_000_003).wrapping_add(i)));
        match outcome(&case, object.as_deref()) {
            Outcome::Right => right += 1,
            Outcome::Unknown => unknown += 1,
            Outcome::Wrong(what) => {
                println!("seed {seed} case {i}: {case:?}\n  {what}");
                failures.push(format!("seed {seed} case {i}: {what}\n  {case:?}"));
            }
        }
        if i % 50 == 49 {
            let wrong = failures.len();
            println!("case {i}: {right} right, {wrong} wrong, {unknown} with too few packets");
        }
    }
    let _ = object.map(std::fs::remove_file);
    assert!(failures.is_empty(), "{} wrong:\n{}", failures.len(), failures.join("\n"));
    assert!(right > unknown, "{right} right, {unknown} with too few packets");
}

#[test]
#[ignore = "long: half a minute"]
fn the_verdict_agrees_with_the_counters_in_twenty_random_cases() {
    needs_root!();
    needs!(program "python3", program "ip", program "ethtool");
    run_cases(0..20, 1);
}

#[test]
#[ignore = "some twenty minutes"]
fn endurance_the_verdict_agrees_with_the_counters_in_five_hundred_random_cases() {
    needs_root!();
    needs!(program "python3", program "ip", program "ethtool");
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    run_cases(
        number("FROM").unwrap_or(0)..number("TO").unwrap_or(500),
        number("SEED").unwrap_or(1),
    );
}
