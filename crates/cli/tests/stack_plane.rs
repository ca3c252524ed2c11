//! Which interface `run --plane stack` uses, and what a second process gets.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::link::Links;
use busypoll_linux::process::{self, Kind, Process};
use echo::*;
use serde_json::Value;
use support::*;

four_tests_at_a_time!();

const RUN: [&str; 3] = ["run", "--plane", "stack"];

/// The echo server on the server of the lab, on the stack plane.
fn server(lab: &Lab, how: &[&str], port: &str) -> Command {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(RUN).args(how).args(["--", "python3"]).arg(source("echo.py")).arg(port);
    command
}

/// Whether a process has the queues of the server's interface.
fn is_owned(lab: &Lab) -> bool {
    let link = || Links::open().unwrap().get(lab.server.interface()).unwrap();
    lab.server.enter(link).unwrap().xdp.is_some()
}

/// A server that has the queues.
fn owner(lab: &Lab, how: &[&str]) -> Running {
    let running = Running::start(&mut server(lab, how, "7000"));
    exchange_udp(lab, 7000, 3);
    wait_until("the queues are taken", || is_owned(lab));
    running
}

#[test]
fn the_only_interface_needs_no_name() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    assert!(!is_owned(&lab));
    let _running = owner(&lab, &[]);
    Client::connect(&lab, 7000).exchange(3);
}

/// A lab whose server also has `extra0`.
fn with_another_interface() -> Lab {
    let lab = Lab::builder().build().unwrap();
    let ip = |words: &str| succeeds(lab.server.command("ip").args(words.split(' ')));
    ip("link add extra0 type veth peer name extra1");
    ip("address add 192.0.2.1/24 dev extra0");
    ip("link set extra0 up");
    lab
}

#[test]
fn of_two_interfaces_none_is_chosen() {
    needs_root!();
    needs!(program "ip");
    let lab = with_another_interface();
    let run = |how: &[&str]| run_on_host(&lab.server, &[&RUN, how, &["--", "true"]].concat());
    let both = [lab.server.interface(), "extra0"];
    for how in ["--strict", "--no-same-host"] {
        fails_with(&run(&[how]), &[&["--dev: several interfaces"], &both[..]].concat());
    }
    let output = run(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && both.iter().all(|name| said.contains(name)), "{output:?}");
    fails_with(&run(&["--dev", "nosuch0"]), &["--dev: ", "nosuch0", "ip link"]);
    assert!(run(&["--dev", "extra0"]).status.success());
}

/// Rules that put the children of a program on the stack plane, but not the program itself.
fn for_children() -> PathBuf {
    let policy = temp_dir("policy").join("p.toml");
    fs::write(&policy, "[[rule]]\nprogram = 'python3*'\nplane = 'stack'\n").unwrap();
    policy
}

#[test]
fn a_script_s_children_use_the_only_interface() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--policy"]).arg(for_children());
    let script = format!("exec python3 {} 7000", source("echo.py").display());
    let _running = Running::start(command.args(["--", "sh", "-c", &script]));
    exchange_udp(&lab, 7000, 3);
    wait_until("the queues are taken", || is_owned(&lab));
}

#[test]
fn a_rule_for_children_alone_requires_no_interface() {
    needs_root!();
    needs!(program "ip");
    let lab = with_another_interface();
    let policy = for_children();
    for (how, end) in
        [("--no-same-host", "stay with the kernel"), ("--plane=kernel", "accelerated")]
    {
        let words = ["run", how, "--policy", policy.to_str().unwrap(), "--", "true"];
        let output = run_on_host(&lab.server, &words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.lines().count() == 1, "{output:?}");
        for wanted in ["several interfaces", "extra0", end] {
            assert!(said.contains(wanted), "{said}");
        }
    }
}

/// The kernel does not see what a process of the stack plane waits for: there is nothing to change, and no fault to
/// find.
#[test]
fn attach_and_doctor_recognise_a_process_on_the_stack_plane() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let dev = ["--dev", lab.server.interface()];
    let running = owner(&lab, &dev);
    let pid = running.pid().to_string();
    // Also from another network namespace.
    let attach = |arguments: &[&str]| {
        let mut command = Command::new(BUSYPOLL);
        command.env("BUSYPOLL_STATE", temp_dir("state")).arg("attach").args(arguments);
        succeeds(command.stdin(Stdio::null()))
    };
    let before = epolls(running.pid());
    let told = attach(&[&pid]);
    assert!(told.contains("stack plane") && told.lines().count() == 1, "{told}");
    let told: Value = serde_json::from_str(&attach(&[&pid, "--json"])).unwrap();
    assert_eq!((&told["stack_plane"], &told["rows"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(epolls(running.pid()), before);

    let output = run_locally(&["doctor", "--pid", &pid, "--prove", "100ms", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_it = report["findings"].as_array().unwrap().iter();
    let of_it = of_it.filter(|f| f["subject"]["pid"] == running.pid());
    let codes: Vec<&str> = of_it.map(|f| f["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["BP-PROVE-STACK-PLANE", "BP-STACK-PLANE"], "{report}");
    assert_eq!(output.status.code(), Some(2), "nothing was proved: {report}");

    // Its guard has the ledger too, but none of the program's sockets.
    let holds_ledger = |pid: &u32| {
        let process = Process::open(*pid).ok().filter(|p| p.shares_our_netns() == Some(true));
        let found = process.and_then(|process| process.descriptors().ok()).unwrap_or_default();
        found.iter().any(|found| found.kind == Kind::StackPlane)
    };
    let holders = || process::all().into_iter().filter(holds_ledger).collect();
    let mut holders: Vec<u32> = lab.server.enter(holders).unwrap();
    holders.retain(|holder| *holder != running.pid());
    let &[guard] = &holders[..] else { panic!("{holders:?}") };
    let output = run_locally(&["doctor", "--pid", &guard.to_string(), "--json"]);
    assert!(!text(&output).contains("BP-STACK-PLANE"), "{output:?}");

    // A plain program has kernel sockets, which attach changes as any.
    let mut second = lab.server.command("python3");
    let second = Running::start(second.arg(source("echo.py")).arg("7002"));
    exchange_udp(&lab, 7002, 3);
    let told = attach(&[&second.pid().to_string()]);
    assert!(told.contains("10.77.0.2:7002") || told.contains("0.0.0.0:7002"), "{told}");
}

/// A process outside of `run` shares the interface with none.
#[test]
fn a_run_names_the_owner_and_uses_the_kernel_or_is_refused() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let dev = ["--dev", lab.server.interface()];
    let arguments = [&["--listen", "127.0.0.1:0"], &dev[..]].concat();
    let _owner = Serving::start(lab.server.command(BUSYPOLL), &arguments);

    let mut strict = server(&lab, &[&dev[..], &["--strict"]].concat(), "7001");
    let output = strict.stdin(Stdio::null()).output().unwrap();
    fails_with(&output, &["--dev: ", "belong to process"]);

    // Without --strict the kernel serves it.
    let _second = Running::start(server(&lab, &dev, "7002").stderr(Stdio::null()));
    exchange_udp(&lab, 7002, 3);
    Client::connect(&lab, 7002).exchange(3);
}

#[test]
fn a_second_process_of_a_strict_run_has_the_interface_too() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut shell = lab.server.command(BUSYPOLL);
    shell.args(RUN).args(["--strict", "--", "sh", "-c"]);
    shell.arg("python3 \"$0\" 7000 & one=$!; read go; python3 \"$0\" 7001 & read go; kill $one $!");
    let mut running = Running::start(shell.arg(source("echo.py")).stdin(Stdio::piped()));
    exchange_udp(&lab, 7000, 3);
    wait_until("the queues are taken", || is_owned(&lab));
    running.send_line("go");
    running.wait_for("ready");
    for port in [7000, 7001] {
        bypasses_the_kernel(&lab.server, || exchange_udp(&lab, port, 40));
    }
    running.send_line("end");
    running.child.wait().unwrap();
}

/// The output of a Python program on the server under this policy; its argument is the client's address.
fn under(text_of_policy: &str, program: &str) -> String {
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let policy = temp_dir("policy").join("p.toml");
    std::fs::write(&policy, text_of_policy).unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(RUN).args(["--policy", policy.to_str().unwrap(), "--", "python3", "-c", program]);
    succeeds(command.arg(lab.client.ipv4().to_string()).stdin(Stdio::null()))
}

#[test]
fn the_policy_decides_socket_by_socket_and_the_program_s_own_options_are_kept() {
    needs_root!();
    needs!(program "python3");
    let text_of_policy = "busy_poll = '30us'\n\
        [[rule]]\nlocal_port = 7209\nbusy_poll = '90us'\nprefer_busy_poll = true\n\
        [[rule]]\nlocal_port = 7214\nreceive = 'interrupt'\nprefer_busy_poll = true\n\
        [[rule]]\nremote_port = 7210\nreceive = 'interrupt'\n";
    let program = r#"
import socket, sys
def show(s): print(s.getsockopt(socket.SOL_SOCKET, 46), s.getsockopt(socket.SOL_SOCKET, 69))
def udp(port, own=None):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if own is not None: s.setsockopt(socket.SOL_SOCKET, 46, own)
    s.bind(("", port))
    return s
def wait(s):
    s.setblocking(False)
    try: s.recv(1)
    except BlockingIOError: show(s)
wait(udp(7209))
wait(udp(7214))
wait(udp(7211))
c = udp(7212); c.connect((sys.argv[1], 7210)); wait(c)
t = socket.socket(); t.setblocking(False); t.connect_ex((sys.argv[1], 7210)); show(t)
wait(udp(7213, own=5))
"#;
    let said = under(text_of_policy, program);
    assert_eq!(said, "90 1\n0 0\n30 0\n0 0\n0 0\n5 0\n");
}

#[test]
fn an_epoll_instance_polls_as_the_sockets_it_watches() {
    needs_root!();
    needs!(program "python3");
    let text_of_policy = "busy_poll = '30us'\n\
        [[rule]]\nlocal_port = 7209\nbusy_poll = '90us'\nbusy_poll_budget = 16\n\
        [[rule]]\nlocal_port = 7210\nbusy_poll = '200us'\nprefer_busy_poll = true\n\
        [[rule]]\nlocal_port = 7211\nreceive = 'interrupt'\nprefer_busy_poll = true\n\
        [[rule]]\nremote_port = 7212\nbusy_poll = '300us'\n";
    let program = r#"
import fcntl, select, socket, struct, sys
EPIOCGPARAMS, EPIOCSPARAMS = 0x80088a02, 0x40088a01
def has(e):
    e.poll(0)
    micros, budget, prefer, _ = struct.unpack("IHBB", fcntl.ioctl(e, EPIOCGPARAMS, bytes(8)))
    print(micros, budget, prefer)
def udp(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("", port))
    return s
def watch(e, s):
    e.register(s, select.EPOLLIN)
    has(e)
    return s
a = select.epoll(); has(a)
kept = [watch(a, udp(port)) for port in (7211, 7209, 7210, 0)]
# It was activated, and connects: another rule matches.
b = select.epoll(); late = watch(b, udp(0))
late.connect((sys.argv[1], 7212)); has(b)
# An option that the program sets itself is kept.
c = select.epoll()
fcntl.ioctl(c, EPIOCSPARAMS, struct.pack("IHBB", 7, 8, 0, 0))
kept.append(watch(c, udp(7213))); watch(c, kept[2])
"#;
    let said = under(text_of_policy, program);
    assert_eq!(said, "0 0 0\n0 0 0\n90 16 0\n200 16 1\n200 16 1\n30 0 0\n300 0 0\n7 8 0\n7 8 0\n");
}

/// The TIME_WAIT of each connection keeps a descriptor for a minute; the program must not run out of them.
#[test]
fn a_program_with_few_descriptors_makes_many_connections() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = Running::start(lab.client.command("python3").arg(source("echo.py")).arg("7000"));
    let program = r#"
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
for n in range(600):
    with socket.create_connection((sys.argv[1], 7000)) as s:
        s.sendall(b"x")
        assert s.recv(1) == b"x"
    open("/dev/null").close()
print("made")
"#;
    let mut command = lab.server.command(BUSYPOLL);
    command.args(RUN).args(["--", "python3", "-c", program]).arg(lab.client.ipv4().to_string());
    bypasses_the_kernel(&lab.server, || {
        assert_eq!(succeeds(command.stdin(Stdio::null())), "made\n");
    });
}

#[test]
fn the_rules_are_applied_again_to_an_accepted_connection() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let policy = temp_dir("policy").join("p.toml");
    let client = lab.client.ipv4();
    let rule = format!("[[rule]]\nremote_address = '{client}'\nbusy_poll = '70us'\n");
    std::fs::write(&policy, format!("busy_poll = '30us'\n{rule}")).unwrap();
    let program = r#"
import socket
first = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
first.bind(("", 0)), first.setblocking(False)
try: first.recv(1)
except BlockingIOError: pass # Now the queues are ours, and so are connections to our listener.
for own in [None, 5]:
    listener = socket.create_server(("", 7214))
    if own: listener.setsockopt(socket.SOL_SOCKET, 46, own)
    print("ready", flush=True)
    stream, _ = listener.accept()
    print("has", *(s.getsockopt(socket.SOL_SOCKET, 46) for s in (listener, stream)), flush=True)
    stream.close(), listener.close()
"#;
    let mut command = lab.server.command(BUSYPOLL);
    command.args(RUN).args(["--policy", policy.to_str().unwrap(), "--", "python3", "-c", program]);
    let mut running = Running::spawn(&mut command);
    for wanted in ["has 30 70", "has 5 5"] {
        running.wait_for("ready");
        let at = (lab.server.ipv4(), 7214);
        let _stream = lab.client.enter(|| std::net::TcpStream::connect(at)).unwrap().unwrap();
        assert_eq!(running.wait_for("has").trim(), wanted);
    }
}

/// On the server of a lab whose client echoes at port 7000.
const UNSUPPORTED_OPTIONS: &str = r#"
import ctypes, errno, fcntl, os, resource, socket, struct, sys
PEER, DEVICE, FIRST = sys.argv[1:]
ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xffffffff))
FILTER = 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(ALL))

def udp(*options):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in options: s.setsockopt(socket.SOL_SOCKET, *option)
    return s

def is_ours(s):
    if s.type == socket.SOCK_DGRAM:
        s.setblocking(False)
        try: s.bind(("", 0)), s.recv(1)
        except OSError: pass
    # getsockopt has no SO_BUSY_POLL_BUDGET.
    try: return s.getsockopt(socket.SOL_SOCKET, 70) >= 0
    except OSError: return False

def fails(call, *arguments):
    try: call(*arguments)
    except OSError as error: return error.errno
    return 0

def asynchronous(s):
    fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)
    return s

if FIRST == "device":
    assert is_ours(udp((25, DEVICE.encode())))
    assert not is_ours(udp((25, b"lo")))
assert is_ours(udp())
if FIRST == "full":
    late = udp()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    while fails(os.dup, 0) == 0: pass
    assert not is_ours(late)
assert not is_ours(udp(FILTER))
assert not is_ours(udp((socket.SO_MARK, 1)))
assert not is_ours(asynchronous(udp()))
assert not is_ours(udp((62, 1)))
late = udp()
assert is_ours(late)
late.setsockopt(socket.SOL_SOCKET, *FILTER)
assert not is_ours(late)
late.sendto(b"by the kernel", (PEER, 7000))
late.settimeout(20)
assert late.recv(20) == b"by the kernel"

stream = socket.create_connection((PEER, 7000))
assert is_ours(stream)
assert fails(stream.setsockopt, socket.SOL_SOCKET, *FILTER) == errno.ENOPROTOOPT
assert fails(asynchronous, stream) == errno.EINVAL
# SO_TIMESTAMPING with a TX bit, SO_TXTIME with CLOCK_MONOTONIC.
for option in (37, 1 << 1), (61, struct.pack("iI", 1, 0)):
    assert not is_ours(udp(option))
    assert fails(stream.setsockopt, socket.SOL_SOCKET, *option) == errno.ENOPROTOOPT
assert not is_ours(udp((42, 0)))
late = udp()
assert is_ours(late)
late.setsockopt(socket.IPPROTO_IP, 11, 1) # IP_RECVERR
assert not is_ours(late)
assert fails(stream.setsockopt, socket.IPPROTO_IP, 11, 1) == errno.ENOPROTOOPT
# Receive time stamps, and SO_PEEK_OFF switched off.
assert is_ours(udp((37, 1 << 3 | 1 << 4), (42, -1)))
# Without zero copy no completion reports when the memory is free.
for s in stream, udp(), socket.socket():
    assert fails(s.setsockopt, socket.SOL_SOCKET, 60, 1) == errno.EOPNOTSUPP

# The companion is passed on; the connection has been handed to it.
to, other = socket.socketpair()
socket.send_fds(to, [b"x"], [0, stream.fileno()])
passed = socket.socket(fileno=socket.recv_fds(other, 1, 2)[1][1])
passed.sendall(b"passed")
assert stream.recv(6) == b"passed"
assert not is_ours(stream)
listener = socket.create_server(("", 0))
socket.send_fds(to, [b"x"], [listener.fileno()])
assert len(socket.recv_fds(other, 1, 1)[1]) == 1
stream.sendall(b"x")
assert stream.recv(1) == b"x"
print("over")
"#;

#[test]
fn unsupported_options_leave_the_socket_to_the_kernel_or_are_refused() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = Running::start(lab.client.command("python3").arg(source("echo.py")).arg("7000"));
    let run = |how: &[&str], first: &str| {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(RUN).args(how).args(["--", "python3", "-c", UNSUPPORTED_OPTIONS]);
        command.args([&lab.client.ipv4().to_string(), lab.server.interface(), first]);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let output = run(&[], "device");
    assert_eq!(text(&output), "over\n", "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("SO_BINDTODEVICE"), "{said}");
    assert!(said.contains("passed to another process"), "{said}");
    // Each reason once.
    let reasons: std::collections::HashSet<&&str> = lines.iter().collect();
    assert!(lines.len() > 2 && reasons.len() == lines.len(), "{said}");

    // With --strict such a socket ends the program.
    fails_with(&run(&["--strict"], "filter"), &["SO_ATTACH_FILTER", "--strict"]);
    fails_with(&run(&["--strict"], "full"), &["a udp socket", "open files", "--strict"]);
}

#[test]
fn a_program_s_children_write_each_line_once() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let program = "import os, socket\n\
        for child in range(3):\n    \
            if os.fork() == 0:\n        \
                udp = socket.socket(2, 2)\n        \
                udp.setsockopt(0, 11, 1) # IP_RECVERR\n        \
                udp.bind(('0.0.0.0', 0)); udp.settimeout(0.01)\n        \
                try: udp.recv(1)\n        \
                except TimeoutError: pass\n        \
                os._exit(0)\n    \
            os.wait()";
    let mut command = lab.server.command(BUSYPOLL);
    command.args(RUN).args(["--", "python3", "-c", program]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("IP_RECVERR").count(), 1, "{said}");
}

/// A thread enters another network namespace, and comes back.
const NAMESPACES: &str = r#"
import ctypes, os, socket, sys
libc, peer = ctypes.CDLL(None), (sys.argv[1], 7000)
NEWNET = 0x40000000

def is_ours(s):
    # getsockopt has no SO_BUSY_POLL_BUDGET.
    try: return s.getsockopt(socket.SOL_SOCKET, 70) >= 0
    except OSError: return False

def connect():
    try: return "ours" if is_ours(socket.create_connection(peer)) else "the kernel's"
    except OSError as error: return error.strerror

home, before = os.open("/proc/self/ns/net", os.O_RDONLY), socket.socket()
print(connect())
if sys.argv[2] == "unshare":
    assert libc.unshare(NEWNET) == 0
else:
    other = os.open("/proc/%d/ns/net" % int(sys.argv[3]), os.O_RDONLY)
    assert libc.setns(other, 0) == 0
print(connect())
before.connect(peer)
print("ours" if is_ours(before) else "the kernel's")
assert libc.setns(home, NEWNET) == 0
print(connect())
"#;

#[test]
fn a_socket_made_in_another_network_namespace_is_the_kernels() {
    needs_root!();
    needs!(program "python3", program "unshare");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = Running::start(lab.client.command("python3").arg(source("echo.py")).arg("7000"));
    let mut other = Running::start(
        Command::new("unshare")
            .args(["-n", "python3", "-c"])
            .arg("print('ready', flush=True); input()"),
    );
    for way in ["unshare", "setns"] {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(RUN).args(["--", "python3", "-c", NAMESPACES]);
        command.args([&lab.client.ipv4().to_string(), way, &other.pid().to_string()]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let expected = "ours\nNetwork is unreachable\nours\nours\n";
        assert_eq!(text(&output), expected, "{way}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("another network namespace").count(), 1, "{said}");
    }
    other.send_line("");
    other.child.wait().unwrap();
}

/// Each socket has received three datagrams before it is first used.
const QUEUED: &str = "
import socket, sys
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('0.0.0.0', 0)); s.setblocking(False)
    return s
sockets = [udp() for _ in range(40)]
print('ready', *[s.getsockname()[1] for s in sockets], flush=True)
sys.stdin.readline()
# It opens the queues.
try: udp().recv(1)
except BlockingIOError: pass
for s in sockets:
    assert [s.recv(9) for _ in range(3)] == [b'0', b'1', b'2']
print('over', flush=True)
";

#[test]
fn datagrams_that_came_before_the_first_use_of_a_socket_are_there_at_once() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--strict", "--", "python3", "-c", QUEUED]);
    let mut server = Running::spawn(&mut command);
    let line = server.wait_for("ready");
    let sender = lab.client.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let before = packet_counts(&lab.server).1;
    for port in line.split_ascii_whitespace().skip(1) {
        for number in ["0", "1", "2"] {
            let to = (lab.server.ipv4(), port.parse().unwrap());
            sender.send_to(number.as_bytes(), to).unwrap();
        }
    }
    wait_until("the kernel has them", || packet_counts(&lab.server).1 >= before + 120);
    server.send_line("");
    server.wait_for("over");
}
