//! `busypoll trace` on the kernel plane: more delays that are planted in one stage, and the kernel's own receive time stamps
//! beside its times.

mod support;
#[path = "support/traced.rs"]
mod traced;

use std::fmt::Write;
use std::fs;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use serde_json::Value;
use support::*;
use traced::*;

macro_rules! needs_all {
    () => {
        needs_root!();
        needs!(program "python3", program "ethtool", program "nft");
    };
}

/// Rules of netfilter in this hook that match no packet and are all evaluated for each: half a millisecond.
fn burn(host: &LabHost, hook: &str) {
    let mut rules =
        format!("table inet burn {{\nchain c {{\ntype filter hook {hook} priority 0;\n");
    for n in 0..20_000 {
        let _ = writeln!(rules, "ip saddr 203.0.{}.{} drop", n / 250, n % 250);
    }
    rules += "}\n}\n";
    let file = std::env::temp_dir().join(format!("busypoll-burn-{}.nft", std::process::id()));
    fs::write(&file, rules).unwrap();
    sh(host, &format!("nft -f {}", file.display()));
    let _ = fs::remove_file(file);
}

#[test]
#[ignore = "long: two traces, and a long table of rules"]
fn rules_that_take_long_are_seen_in_protocol_and_before_the_device_in_call() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let echo = Program::start(&lab.server, ECHO);
    let _stream = Stream::start(&lab, 5 * MS, 9);
    let before = trace(&lab, &[&echo.pid()]);
    burn(&lab.server, "input");
    let received = trace(&lab, &[&echo.pid()]);
    let protocol = |report| mean(report, "receives", "protocol");
    assert!(protocol(&received) > 5.0 * protocol(&before), "{before:#} {received:#}");
    sh(&lab.server, "nft flush ruleset");
    burn(&lab.server, "output");
    let sent = trace(&lab, &[&echo.pid()]);
    assert_eq!(longest(&sent, "sends"), "call", "{sent:#}");
    let call = |report| mean(report, "sends", "call");
    assert!(call(&sent) > 5.0 * call(&before), "{before:#} {sent:#}");
    assert!(protocol(&sent) < protocol(&received), "{received:#} {sent:#}");
}

/// Of the packets that one pass finds, the later ones wait for the earlier ones to be handed up.
#[test]
#[ignore = "long: two traces, and a long table of rules"]
fn packets_that_a_long_pass_finds_first_delay_the_others_in_napi() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let echo = Program::start(&lab.server, ECHO);
    defer(&lab.server);
    let _stream = Stream::start(&lab, MS, 9);
    let before = trace(&lab, &[&echo.pid()]);
    burn(&lab.server, "input");
    let after = trace(&lab, &[&echo.pid()]);
    let napi = |report| mean(report, "receives", "napi");
    assert!(napi(&after) > 5.0 * napi(&before), "{before:#} {after:#}");
}

/// recvmmsg takes the first datagrams and waits for more.
#[test]
fn a_call_that_goes_on_after_it_has_taken_a_packet_returns_late() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let reader = r"
import ctypes
class iovec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
class msghdr(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('namelen', ctypes.c_uint32), ('iov', ctypes.c_void_p),
        ('iovlen', ctypes.c_size_t), ('control', ctypes.c_void_p), ('controllen', ctypes.c_size_t), ('flags', ctypes.c_int)]
class mmsghdr(ctypes.Structure): _fields_ = [('header', msghdr), ('len', ctypes.c_uint)]
libc = ctypes.CDLL(None)
room = ctypes.create_string_buffer(99)
piece = iovec(ctypes.addressof(room), 99)
all = (mmsghdr * 8)()
for one in all: one.header.iov, one.header.iovlen = ctypes.addressof(piece), 1
ready()
while True: libc.recvmmsg(s.fileno(), all, 8, 0, None)
";
    let reader = Program::start(&lab.server, reader);
    let _stream = Stream::start(&lab, 10 * MS, 9);
    let report = trace(&lab, &[&reader.pid()]);
    assert_eq!(longest(&report, "receives"), "return", "{report:#}");
    assert!(
        story(&report, "return")
            .is_none_or(|story| story.contains("from taking it to the end of the call")),
        "{report:#}"
    );
}

/// A server that notes the kernel's software receive stamp of each datagram (SO_TIMESTAMPING), when its client sent it,
/// and when it had it, all by the same clock; then it prints the sums in us.
const STAMPED: &str = r"
import json, socket, struct, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 37, 1 << 3 | 1 << 4)
# The kernel begins to stamp packets a little later.
time.sleep(0.3)
s.bind(('10.77.0.2', 700))
before = after = 0
for _ in range(200):
    data, said, _, peer = s.recvmsg(99, 256)
    had = time.time_ns()
    sent, = struct.unpack('q', data)
    seconds, ns = struct.unpack('qq', said[0][2][:16])
    stamp = seconds * 10**9 + ns
    before += stamp - sent
    after += had - stamp
    s.sendto(data, peer)
print(json.dumps({'before': before / 2e5, 'after': after / 2e5}), flush=True)
";

const ASKING: &str = "
import socket, struct, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('10.77.0.2', 700))
s.settimeout(0.2)
while True:
    try:
        s.send(struct.pack('q', time.time_ns()))
        s.recv(99)
    # Not bound yet.
    except OSError: pass
    time.sleep(0.002)
";

#[test]
fn the_kernels_receive_stamps_lie_between_our_times() {
    needs_all!();
    let _alone = one_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let file = std::env::temp_dir().join(format!("busypoll-stamps-{}.json", std::process::id()));
    let mut asking = lab.client.command("python3").args(["-c", ASKING]).spawn().unwrap();
    let path = file.display().to_string();
    let output =
        run_on_host(&lab.server, &["trace", "--json", &path, "--", "python3", "-c", STAMPED]);
    let _ = asking.kill();
    let _ = asking.wait();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let sums = said
        .lines()
        .find(|line| line.starts_with("{\"before\""))
        .unwrap_or_else(|| panic!("{output:?}"));
    let sums: Value = serde_json::from_str(sums).unwrap();
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let _ = fs::remove_file(&file);
    assert_eq!(report["receives"][0]["packets"], 200, "{report:#}");
    let stages = |names: &[&str]| -> f64 {
        names.iter().map(|stage| mean(&report, "receives", stage)).sum()
    };
    // The kernel stamps a packet after the driver has handed it up and before it reaches its socket; the client's time is
    // before the hand-over, the server's after the return.
    let (before, after) = (sums["before"].as_f64().unwrap(), sums["after"].as_f64().unwrap());
    let (ours_before, ours_after) =
        (stages(&["ring", "napi"]), stages(&["queue", "wake-up", "scheduled", "return"]));
    assert!(ours_before > 0.0 && ours_before <= before, "{ours_before} {before} {report:#}");
    assert!(ours_after > 0.0 && ours_after <= after, "{ours_after} {after} {report:#}");
    let whole = ours_before + stages(&["protocol"]) + ours_after;
    assert!(whole <= before + after, "{whole} {before} {after}");
}
