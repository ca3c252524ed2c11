//! Requests that the command refuses, and machines that do not allow what it needs: one line with cause and remedy,
//! exit code 2, nothing left behind.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::{Running, epolls, exchange_udp, source, temp_dir};
use support::*;

four_tests_at_a_time!();

/// On loopback, at a port of the system's choice.
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn serve_with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["serve"], &LISTEN[..], more].concat()
}

fn ip(host: &LabHost, arguments: &str) {
    assert!(host.command("ip").args(arguments.split(' ')).status().unwrap().success());
}

#[test]
fn impossible_values_are_named_with_the_permitted_ones() {
    for (arguments, wanted) in [
        (&["--size", "0,1"][..], &["--size", "0,1", "at least 1 byte"][..]),
        (&["--size", "65508,1"], &["--size", "65508 bytes", "at most 65507"]),
        (&["--size", "99999999999999999999,1"], &["--size", "for example 1,1"]),
        (&["--size", "1,2,3"], &["--size", "more than two sizes"]),
        (&["--duration", "0"], &["--duration", "too short"]),
        (&["--duration", "1us"], &["--duration", "too short"]),
        (&["--duration=-1s"], &["--duration", "'-1s'", "is not a time", "50us"]),
        (&["--duration", "400000h"], &["--duration", "longer than a day"]),
        (&["--duration", "99999999s"], &["--duration", "longer than a day"]),
        (&["--rounds", "0"], &["--rounds", "1..=1000"]),
        (&["--rounds", "-3"], &["'-3'", "--rounds", "1..=1000"]),
        (&["--duration", "-5s"], &["'-5s'", "--duration", "is not a time"]),
        (&["--loss", "-1"], &["'-1'", "--loss", "write 0 to 100"]),
        (&["--cpus", "-1,0"], &["'-1,0'", "--cpus", "write CLIENT,SERVER"]),
        (&["--rounds", "100000"], &["--rounds", "1..=1000"]),
        (
            &["--rounds", "1000", "--duration", "1s"],
            &["--duration 1s is too short", "1000 rounds", "give at least"],
        ),
        (&["--gap", "1d"], &["--gap", "unknown unit 'd'"]),
        (&["--gap", "20s"], &["--gap 20s", "longer --duration"]),
        (&["--gap", "soon"], &["--gap", "'soon'"]),
        (&["--busy-poll", "2000m"], &["--busy-poll", "longer than a day"]),
        (&["--busy-poll", "500ns"], &["--busy-poll", "'500ns'", "below 1us"]),
        (&["--busy-poll", "1.5us"], &["--busy-poll", "'1.5us'", "give 1us or 2us"]),
        (
            &["--sweep", "rate", "--arms", "*-udp-busy-poll", "--duration", "2s", "--rounds", "50"],
            &["--duration 2s is too short", "50 rounds x 7 points", "give at least"],
        ),
        (&["--sweep", "colour"], &["--sweep", "'colour'"]),
        (&["--arms", "stack-xdp-udp-busypoll"], &["did you mean 'stack-xdp-udp-busy-poll'?"]),
        (&["--arms", "kernel-tcp-crr"], &["--arms", "'kernel-tcp-crr'", "--workload crr"]),
        (&["--arms", "kernel-udp-spin,*-loss"], &["--arms", "'*-loss'", "--workload loss"]),
        (
            &["--workload", "crr", "--arms", "kernel-udp-spin"],
            &["--arms", "'kernel-udp-spin'", "--workload rr"],
        ),
        (&["--arms", "*-sctp-*"], &["--arms", "'*-sctp-*'", "--list"]),
        (&["--arms", ","], &["--arms", "--list"]),
        (&["--host", ""], &["--host"]),
        (&["--host", "10.0.0.2:99999"], &["--host", "a port is 1 to 65535"]),
        (&["--dev", "lo"], &["--host"]),
        (&["--loss", "2%"], &["--loss", "add it", "--workload loss"]),
        (&["--rtt", "5ms"], &["--rtt", "--workload loss"]),
        (&["--workload", "stream", "--loss", "2%"], &["--loss", "--workload loss"]),
    ] {
        fails_with(&run_locally(&[&["bench"], arguments].concat()), wanted);
    }
    for (arguments, wanted) in [
        (&["--duration", "1ms"][..], &["--duration 1ms", "less than 1 s"][..]),
        (&["--clients", "0"], &["--clients", "1..=4096"]),
        (&["--clients", "99999999"], &["--clients", "1..=4096"]),
        (&["--seed", "x"], &["--seed", "'x' is not a whole number"]),
    ] {
        fails_with(&run_locally(&[&["soak"], arguments].concat()), wanted);
    }
    for (arguments, wanted) in [
        (&["attach", "-1"][..], &["'-1'", "PID", "pgrep"][..]),
        (&["doctor", "--pid", "-1"], &["'-1'", "--pid", "pgrep"]),
        (&["tune", "plan", "busy-poll", "--sockets", "-1"], &["'-1'", "--sockets"]),
        (&["run", "--busy-poll", "-1", "--", "true"], &["'-1'", "--busy-poll", "not a time"]),
        // For commands that take no value.
        (&["tune", "rollback", "-1"], &["unexpected argument '-1'"]),
        (&["doctor", "--pid", "nginx"], &["--pid", "'nginx'", "pgrep"]),
        (&["tune", "apply", "busy-poll", "--poller", "nginx"], &["--poller", "pgrep"]),
        (&["tune", "plan", "busy-poll", "--sockets", "many"], &["--sockets"]),
        (&["serve", "--cpu", "first"], &["--cpu", "'first' is not a whole number"]),
    ] {
        fails_with(&run_locally(arguments), wanted);
    }
}

#[test]
fn a_relative_state_directory_is_refused() {
    for arguments in [["tune", "rollback"], ["detach", "1"]] {
        let mut command = Command::new(BUSYPOLL);
        let refused = command.args(arguments).env("BUSYPOLL_STATE", "state").output().unwrap();
        fails_with(&refused, &["BUSYPOLL_STATE=state", "begin with /"]);
        assert!(!std::path::Path::new("state").exists());
    }
}

/// An option that would have no effect is refused, not ignored.
#[test]
fn options_that_exclude_each_other_are_named() {
    for (arguments, wanted) in [
        (&["--stages", "--rounds", "3"][..], &["--stages", "--rounds"][..]),
        (&["--stages", "--sweep", "size"], &["--stages", "--sweep"]),
        (&["--sweep", "rate", "--gap", "10ms"], &["--gap", "--sweep rate", "leave it out"]),
        (&["--sweep", "rate", "--size", "1,1"], &["--size", "--sweep rate", "at least 16,16"]),
        (&["--sweep", "size", "--size", "1,1"], &["--size", "--sweep size", "leave it out"]),
        (&["--host", "192.0.2.1", "--sweep", "coalesce"], &["--sweep coalesce", "another machine"]),
        (&["--messages", "5"], &["--messages", "--workload fix"]),
        (&["--sizes", "1,2"], &["--sizes", "--sweep size"]),
        (
            &["--host", "192.0.2.1", "--cpus", "0,1"],
            &["--cpus", "--host", "serve --cpu N", "taskset"],
        ),
        (&["--workload", "crr", "--gap", "1ms"], &["--workload", "--gap"]),
        (&["--workload", "loss", "--busy-poll", "50us"], &["--busy-poll", "none of these arms"]),
        (&["--arms", "*-interrupt", "--busy-poll", "50us"], &["--busy-poll", "none of these arms"]),
    ] {
        fails_with(&run_locally(&[&["bench"], arguments].concat()), wanted);
    }
}

#[test]
fn malformed_absent_or_forbidden_cpus_are_named() {
    for (cpus, wanted) in [
        ("", &["write CLIENT,SERVER"][..]),
        ("0", &["'0'", "write CLIENT,SERVER"]),
        ("0,1,2", &["'0,1,2'", "write CLIENT,SERVER"]),
        ("0;1", &["'0;1'"]),
        ("0,-1", &["'0,-1'"]),
        ("0,0", &["CPU 0 twice"]),
        ("0,4294967295", &["CPU 4294967295"]),
        ("0,99999999999", &["'0,99999999999'"]),
        ("0,8191", &["CPU 8191"]),
    ] {
        let line = error_line(&run_locally(&["bench", "--cpus", cpus]));
        assert!(line.contains("--cpus"), "{line}");
        assert!(wanted.iter().all(|wanted| line.contains(wanted)), "{line}");
    }
    fails_with(&run_locally(&serve_with(&["--cpu", "8191"])), &["--cpu", "CPU 8191"]);
}

#[test]
fn a_device_that_cannot_serve_is_named() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let server = &lab.server;
    let serve = |device| run_on_host(server, &serve_with(&["--dev", device]));
    fails_with(&serve("nosuch0"), &["--dev", "`nosuch0`", "`ip link`"]);
    fails_with(&serve("lo"), &["--dev", "lo is not an Ethernet device"]);
    ip(server, &format!("link set {} down", server.interface()));
    let remedy = format!("`ip link set {} up`", server.interface());
    fails_with(&serve(server.interface()), &["--dev", "is down", &remedy]);
    // It was refused without a change: once the link is up the device serves.
    ip(server, &format!("link set {} up", server.interface()));
    Serving::start(server.command(BUSYPOLL), &serve_with(&["--dev", server.interface()])[1..]);
}

#[test]
fn a_device_owned_by_another_process_is_named_with_its_pid() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let device = lab.server.interface();
    let arguments = serve_with(&["--dev", device]);
    let owner = Serving::start(lab.server.command(BUSYPOLL), &arguments[1..]);
    let pid = format!("process {}", owner.child.id());
    fails_with(
        &run_on_host(&lab.server, &arguments),
        &["--dev", device, &pid, "stop that process"],
    );
    drop(owner);
    Serving::start(lab.server.command(BUSYPOLL), &arguments[1..]);
}

#[test]
fn a_missing_capability_is_named() {
    needs_root!();
    needs!(program "setpriv");
    let lab = Lab::builder().build().unwrap();
    let device = lab.server.interface();
    let without = |set: &str| {
        lab.server
            .command("setpriv")
            .args([&format!("--bounding-set={set}"), "--inh-caps=-all", BUSYPOLL])
            .args(serve_with(&["--dev", device]))
            .output()
            .unwrap()
    };
    let all = "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON";
    fails_with(&without("-all"), &[device, all, "run as root", BUSYPOLL]);
    fails_with(&without("-net_raw"), &[device, "needs CAP_NET_RAW;"]);
    let output = lab.server.command("ip").args(["link", "show", device]).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("xdp"), "{output:?}");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let serve = run_locally(&["serve", "--listen", &address]);
    fails_with(&serve, &["--listen", &address, "another `busypoll serve`"]);
    for listen in ["nowhere", "127.0.0.1", "127.0.0.1:65536"] {
        fails_with(&run_locally(&["serve", "--listen", listen]), &["--listen", listen]);
    }
    fails_with(&run_locally(&["serve", "--listen", "192.0.2.1:0"]), &["--listen", "192.0.2.1:0"]);
}

/// Another program has the UDP port that the bench needs on the server: the arms say so, and the server serves the next
/// bench.
#[test]
fn a_data_port_in_use_is_reported_to_the_bench() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = udp.local_addr().unwrap().to_string();
    let _server = Serving::start(Command::new(BUSYPOLL), &["--listen", &address]);
    let bench = || {
        let run = ["--arms", "kernel-udp-spin", "--duration", "200ms", "--rounds", "1"];
        run_locally(&[&["bench", "--host", &address], &run[..]].concat())
    };
    let refused = bench();
    assert!(
        String::from_utf8_lossy(&refused.stdout).contains(&format!("bind {address}")),
        "{refused:?}"
    );
    drop(udp);
    assert!(bench().status.success());
}

#[test]
fn a_peer_that_never_answers_is_named_within_seconds() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let start = Instant::now();
    // No listener at the port, no host at the address, no route to it, no such name.
    let hosts = [
        ("10.77.0.2", "`busypoll serve`"),
        ("10.77.0.99", "10.77.0.99"),
        ("192.0.2.1", "192.0.2.1"),
        ("no-such-host.invalid", "no-such-host.invalid"),
        ("10.77.0.2:99999", "10.77.0.2:99999"),
    ];
    thread::scope(|scope| {
        for (host, wanted) in hosts {
            let bench = || run_on_host(&lab.client, &["bench", "--host", host]);
            scope.spawn(move || fails_with(&bench(), &["--host", wanted]));
        }
    });
    let silent = lab.server.enter(|| TcpListener::bind("10.77.0.2:7117")).unwrap().unwrap();
    fails_with(
        &run_on_host(&lab.client, &["bench", "--host", "10.77.0.2"]),
        &["10.77.0.2:7117", "does not answer", "another bench"],
    );
    drop(silent);
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// As on a kernel built without CONFIG_XDP_SOCKETS: socket(AF_XDP, ...) fails with EAFNOSUPPORT.
fn without_af_xdp(command: &mut Command) -> &mut Command {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let unless = |k, skip| libc::sock_filter { code: 0x15, jt: 0, jf: skip, k }; // BPF_JMP | BPF_JEQ | BPF_K
    let filter = move || {
        let program = [
            statement(0x20, 0), // BPF_LD | BPF_W | BPF_ABS: the number of the call
            unless(libc::SYS_socket as u32, 3),
            statement(0x20, 16), // the low half of the first argument: the family
            unless(libc::AF_XDP as u32, 1),
            statement(0x06, refuse), // BPF_RET | BPF_K
            statement(0x06, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: 6, filter: program.as_ptr().cast_mut() };
        // SAFETY: the filter is valid for the call, which copies it. (With CAP_SYS_ADMIN no PR_SET_NO_NEW_PRIVS is
        // needed.)
        match unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
        } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(filter) }
}

#[cfg(target_endian = "little")]
#[test]
fn a_kernel_without_af_xdp_is_reported_as_such() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let mut serve = lab.server.command(BUSYPOLL);
    serve.args(serve_with(&["--dev", lab.server.interface()]));
    fails_with(
        &without_af_xdp(&mut serve).output().unwrap(),
        &["CONFIG_XDP_SOCKETS", "use the `tap` driver or the kernel plane"],
    );
    // A benchmark of many arms skips the AF_XDP arms with the reason, and runs the rest.
    let mut bench = Command::new(BUSYPOLL);
    bench.args([
        "bench",
        "--arms",
        "*xdp*,kernel-udp-blocking",
        "--duration",
        "1s",
        "--rounds",
        "1",
    ]);
    let output = without_af_xdp(&mut bench).stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("kernel-udp-blocking"), "{output:?}");
    let skipped =
        |arm| text.lines().find(|line| line.starts_with("skipped: ") && line.contains(arm));
    for arm in ["stack-xdp-udp-busy-poll", "bare-xdp-spin"] {
        assert!(skipped(arm).is_some_and(|line| line.contains("CONFIG_XDP_SOCKETS")), "{text}");
    }
}

#[test]
fn an_unwritable_file_is_named_before_anything_is_measured() {
    let start = Instant::now();
    let folder = std::env::temp_dir();
    for (option, file) in [("--json", "/nowhere/at/all.json"), ("--svg", folder.to_str().unwrap())]
    {
        fails_with(
            &run_locally(&["bench", option, file]),
            &["cannot write", file, "where you may write"],
        );
    }
    // The chart of a sweep has its own path.
    let mut sweep = Command::new(BUSYPOLL);
    let output = sweep.args(["bench", "--sweep", "size"]).current_dir("/proc").output().unwrap();
    fails_with(&output, &["cannot write busypoll-size.svg"]);
    assert!(start.elapsed() < Duration::from_secs(20));
    // The check whether a file can be written leaves no file.
    let file = folder.join(format!("busypoll-refused-{}.json", std::process::id()));
    let arguments = ["bench", "--json", file.to_str().unwrap(), "--host", "no-such-host.invalid"];
    fails_with(&run_locally(&arguments), &["no-such-host.invalid"]);
    assert!(!file.exists());
}

#[test]
fn an_unknown_device_is_named_before_the_peer_is_contacted() {
    let arguments = ["bench", "--host", "192.0.2.1", "--dev", "nosuch0"];
    fails_with(&run_locally(&arguments), &["--dev", "nosuch0"]);
}

#[test]
fn attach_changes_nothing_if_its_journal_cannot_be_written() {
    needs_root!();
    needs!(program "python3", program "unshare", program "mount");
    const PORT: u16 = 7400;
    let lab = Lab::builder().build().unwrap();
    let program =
        Running::start(lab.server.command("python3").arg(source("echo.py")).arg(PORT.to_string()));
    exchange_udp(&lab, PORT, 10);
    let before = epolls(program.pid());
    let attach = |script: &str| {
        let mut command = lab.server.command("unshare");
        command.args(["-m", "sh", "-c", script, BUSYPOLL, &program.pid().to_string()]);
        command.env("BUSYPOLL_STATE", temp_dir("state")).output().unwrap()
    };
    let full = "mount -t tmpfs -o size=8k none $BUSYPOLL_STATE && \
        head -c 8192 /dev/zero > $BUSYPOLL_STATE/full && exec $0 attach $1";
    fails_with(&attach(full), &["no space left", "nothing was changed"]);
    assert_eq!(epolls(program.pid()), before);
    assert!(attach("exec $0 attach $1").status.success());
    assert_ne!(epolls(program.pid()), before, "attach had nothing to change");
}
