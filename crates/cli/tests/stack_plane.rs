//! Which interface `run --plane stack` has, and what becomes of who comes second.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::process::{Command, Stdio};

use busypoll_lab::{Lab, needs, needs_root};
use busypoll_linux::link::Links;
use echo::*;
use support::*;

const RUN: [&str; 3] = ["run", "--plane", "stack"];

/// The echo server on the server of the lab, on the stack plane.
fn server(lab: &Lab, how: &[&str], port: &str) -> Command {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(RUN).args(how).args(["--", "python3"]).arg(source("echo.py")).arg(port);
    command
}

/// Whether somebody has the queues of the server's interface.
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
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    assert!(!is_owned(&lab));
    let _running = owner(&lab, &[]);
    Client::connect(&lab, 7000).exchange(3);
}

#[test]
fn which_of_two_interfaces_is_asked_for() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let ip = |words: &str| succeeds(lab.server.command("ip").args(words.split(' ')));
    ip("link add extra0 type veth peer name extra1");
    ip("address add 192.0.2.1/24 dev extra0");
    ip("link set extra0 up");
    let run = |how: &[&str]| on(&lab.server, &[&RUN, how, &["--", "true"]].concat());
    complains(&run(&[]), &["--dev: which interface", lab.server.interface(), "extra0"]);
    complains(&run(&["--dev", "nosuch0"]), &["--dev: ", "nosuch0", "ip link"]);
    assert!(run(&["--dev", "extra0"]).status.success());
}

#[test]
fn who_comes_second_is_told_the_owner() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let dev = ["--dev", lab.server.interface()];
    let _running = owner(&lab, &dev);

    let mut strict = server(&lab, &[&dev[..], &["--strict"]].concat(), "7001");
    let output = strict.stdin(Stdio::null()).output().unwrap();
    complains(&output, &["--dev: ", "belong to process"]);

    // Without it the kernel serves.
    let _second = Running::start(server(&lab, &dev, "7002").stderr(Stdio::null()));
    exchange_udp(&lab, 7002, 3);
    Client::connect(&lab, 7002).exchange(3);
    // Nothing of this concerns the first.
    Client::connect(&lab, 7000).exchange(3);
}

#[test]
fn a_second_process_of_a_strict_run_ends() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let mut shell = lab.server.command(BUSYPOLL);
    shell.args(RUN).args(["--strict", "--", "sh", "-c"]);
    shell.arg("python3 \"$0\" 7000 & read go; python3 \"$0\" 7001; echo over $?; read go; kill $!");
    let mut running = Running::start(shell.arg(source("echo.py")).stdin(Stdio::piped()));
    exchange_udp(&lab, 7000, 3);
    wait_until("the queues are taken", || is_owned(&lab));
    running.say("go");
    assert_eq!(running.wait_for("over").trim(), "over 2");
    // The first goes on.
    exchange_udp(&lab, 7000, 3);
    running.say("end");
    running.child.wait().unwrap();
}

#[test]
fn the_policy_decides_socket_by_socket_and_the_program_s_own_wish_stands() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
    let lab = Lab::builder().build().unwrap();
    let policy = place("policy").join("p.toml");
    let text_of_policy = "busy_poll = '30us'\n\
        [[rule]]\nlocal_port = 7209\nbusy_poll = '90us'\nprefer_busy_poll = true\n\
        [[rule]]\nremote_port = 7210\nreceive = 'interrupt'\n";
    std::fs::write(&policy, text_of_policy).unwrap();
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
wait(udp(7211))
c = udp(7212); c.connect((sys.argv[1], 7210)); wait(c)
t = socket.socket(); t.setblocking(False); t.connect_ex((sys.argv[1], 7210)); show(t)
wait(udp(7213, own=5))
"#;
    let mut command = lab.server.command(BUSYPOLL);
    command.args(RUN).args(["--policy", policy.to_str().unwrap(), "--", "python3", "-c", program]);
    let said = succeeds(command.arg(lab.client.ipv4().to_string()).stdin(Stdio::null()));
    assert_eq!(said, "90 1\n30 0\n0 0\n0 0\n5 0\n");
}

/// The TIME_WAIT of each keeps a descriptor for a minute, which the program must not run out of.
#[test]
fn a_program_of_few_descriptors_makes_many_connections() {
    needs_root!();
    needs!(program "python3");
    let _one = alone();
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
    passes_by_the_kernel(&lab.server, || {
        assert_eq!(succeeds(command.stdin(Stdio::null())), "made\n");
    });
}
