//! `busypoll ss`: the sockets of a program on the stack plane, listed as `ss` lists the kernel's, and to which user.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Stdio;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use support::*;

/// A listener that accepts no connection, a UDP socket that receives nothing, and a connected one.
const PROGRAM: &str = "
import socket, sys
def look(call):
    try: call()
    except BlockingIOError: pass
listener = socket.create_server(('', 7310), backlog=5)
listener.setblocking(False)
look(listener.accept)
quiet, asking = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for udp in quiet, asking: udp.setblocking(False)
quiet.bind(('10.77.0.2', 7311))
look(lambda: quiet.recv(1))
asking.bind(('10.77.0.2', 7312))
asking.connect(('10.77.0.1', 7313))
asking.send(b'?')
print('ready', flush=True)
sys.stdin.read()
";

fn start(lab: &Lab) -> Running {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--strict", "--"]);
    Running::start(command.args(["python3", "-c", PROGRAM]))
}

fn rows(lab: &Lab) -> Vec<Value> {
    let listed = text(&run_on_host(&lab.server, &["ss", "--json"]));
    let rows: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.iter().for_each(|row| json_schema::is_as_documented("ss", row));
    rows
}

fn at(rows: &[Value], local: &str) -> Value {
    let found = rows.iter().find(|row| row["local"] == local && row["state"] != "ESTAB");
    found.or_else(|| rows.iter().find(|row| row["local"] == local)).cloned().unwrap_or_default()
}

/// Any user may listen on such a name, and the output goes to a terminal.
#[test]
fn a_socket_name_that_only_begins_like_a_guard_s_is_skipped() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let listen = || {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket.bind(&SockAddr::unix("\0busypoll/guard/\x1b[31m").unwrap()).unwrap();
        socket.listen(1).unwrap();
        socket
    };
    let _listener = lab.server.enter(listen).unwrap();
    let output = run_on_host(&lab.server, &["ss"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// A guard forged by another user, with a ledger of one connection of process 1.
const FORGED: &str = r#"
import array, fcntl, os, socket, struct
fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
FRONT = 64 + 256 * 8 + 1024 * 128 + 1024 * 8 + 64 + 16384 * 64
os.ftruncate(fd, FRONT + 128 * 2)
address = lambda text: bytes(10) + b"\xff\xff" + socket.inet_aton(text)
os.pwrite(fd, struct.pack("<IIII", VERSION, 2, 1, 0), 0)
line = struct.pack("<8I", 1 | 6 << 8, 1, 22 << 16 | 6666, 0, 0, 999, 888, 8193)
os.pwrite(fd, line + address("10.0.0.1") + address("198.51.100.66"), FRONT)
fcntl.fcntl(fd, 1033, 7)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\0busypoll/guard/00000000deadbeef")
listener.listen(5)
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    peer.recv(100)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    try: peer.sendmsg([b"L" + struct.pack("<i", 1)], rights)
    except OSError: pass
    peer.close()
"#;

#[test]
fn a_guard_of_another_user_is_not_trusted() {
    needs_root!();
    needs!(program "python3", program "setpriv");
    let lab = Lab::builder().build().unwrap();
    let forged = FORGED.replace("VERSION", "0x62706c05");
    let start = |user: &str| {
        let mut command = lab.server.command("setpriv");
        command.args([&format!("--reuid={user}"), "--clear-groups", "/usr/bin/env", "python3"]);
        Running::start(command.args(["-c", &forged]))
    };
    {
        let _of_root = start("0");
        // The forgery is complete: if root owned it, it would be trusted.
        assert_eq!(rows(&lab).len(), 1);
    }
    let _of_another = start("65534");
    let output = run_on_host(&lab.server, &["ss", "--json"]);
    assert_eq!(text(&output), "");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.lines().count() == 1 && said.contains("guards of other users are left out (1)"),
        "{said}"
    );
}

#[test]
fn it_lists_each_socket_with_its_queues_addresses_and_process() {
    needs_root!();
    needs!(program "python3", program "setpriv");
    let lab = Lab::builder().build().unwrap();
    assert_eq!(rows(&lab), [] as [Value; 0]);
    let program = start(&lab);
    let client = lab.client.enter(|| UdpSocket::bind("10.77.0.1:7313")).unwrap().unwrap();
    let to = |port| SocketAddr::new(lab.server.ipv4().into(), port);
    for _ in 0..3 {
        client.send_to(b"hello", to(7311)).unwrap();
    }
    let _connections =
        [(); 2].map(|()| lab.client.enter(|| TcpStream::connect(to(7310))).unwrap().unwrap());
    wait_until("it has come", || {
        let rows = rows(&lab);
        at(&rows, "10.77.0.2:7311")["recv_q"] == 15 && at(&rows, "0.0.0.0:7310")["recv_q"] == 2
    });
    let rows = rows(&lab);
    for row in &rows {
        assert_eq!((&row["pid"], &row["process"]), (&program.pid().into(), &"python3".into()));
    }
    let told =
        |local, what: &[&str]| what.iter().map(|what| at(&rows, local)[what].clone()).collect();
    let of = |values: &str| -> Vec<Value> { serde_json::from_str(values).unwrap() };
    let listener: Vec<Value> = told("0.0.0.0:7310", &["netid", "state", "send_q", "peer"]);
    assert_eq!(listener, of(r#"["tcp", "LISTEN", 5, null]"#));
    let quiet: Vec<Value> = told("10.77.0.2:7311", &["netid", "state", "send_q", "peer"]);
    assert_eq!(quiet, of(r#"["udp", "UNCONN", 0, null]"#));
    assert!(at(&rows, "10.77.0.2:7311")["napi_id"].as_u64() > Some(0), "{rows:?}");
    let asking: Vec<Value> = told("10.77.0.2:7312", &["netid", "state", "recv_q", "peer"]);
    assert_eq!(asking, of(r#"["udp", "ESTAB", 0, "10.77.0.1:7313"]"#));
    let connections = rows.iter().filter(|row| row["netid"] == "tcp" && row["state"] == "ESTAB");
    assert_eq!(connections.count(), 2, "{rows:?}");
    // The table has a line for each, and a header.
    assert_eq!(text(&run_on_host(&lab.server, &["ss"])).lines().count(), rows.len() + 1);
    // Other users get nothing. They may not enter the folder of the command, so root opens the command for them.
    let script = "exec 9<$0; exec setpriv --reuid=65534 --clear-groups /proc/self/fd/9 ss --json";
    let mut other = lab.server.command("sh");
    assert_eq!(succeeds(other.args(["-c", script, BUSYPOLL]).stdin(Stdio::null())), "");
    drop(program);
    wait_until("nothing is listed any more", || self::rows(&lab).is_empty());
}

/// A container has a PID namespace of its own: there the program may have the PID of any process here.
#[test]
fn a_process_of_another_pid_namespace_has_its_pid_of_here() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", BUSYPOLL, "run"]);
    command.args(["--plane", "stack", "--dev", lab.server.interface(), "--"]);
    let _program = Running::start(command.args(["python3", "-c", PROGRAM]));
    let rows = rows(&lab);
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in &rows {
        let command = std::fs::read(format!("/proc/{}/cmdline", row["pid"])).unwrap();
        let command = String::from_utf8_lossy(&command);
        assert!(command.contains("python3\0-c\0\nimport socket, sys"), "{command}: {rows:?}");
        assert_eq!(row["process"], "python3");
    }
}

/// Datagrams to a socket that waits and to one whose buffer is full; the figures of each in both forms.
#[test]
fn with_info_it_says_how_packets_were_found_and_which_were_dropped() {
    needs_root!();
    needs!(program "python3");
    const RECEIVER: &str = "
import socket
udp, full = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
udp.bind(('10.77.0.2', 7321))
full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
full.bind(('10.77.0.2', 7322))
full.setblocking(False)
try: full.recv(1)
except BlockingIOError: pass
print('ready', flush=True)
while True: udp.sendto(*udp.recvfrom(100))
";
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--strict", "--"]);
    let _program = Running::start(command.args(["python3", "-c", RECEIVER]));
    let client = lab.client.enter(|| UdpSocket::bind("10.77.0.1:0")).unwrap().unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    for _ in 0..50 {
        client.send_to(b"x", "10.77.0.2:7321").unwrap();
        client.recv(&mut [0; 8]).unwrap();
    }
    for _ in 0..50 {
        client.send_to(&[0; 1000], "10.77.0.2:7322").unwrap();
    }
    client.send_to(b"last", "10.77.0.2:7321").unwrap();
    client.recv(&mut [0; 8]).unwrap();
    let info = |local: &str| {
        let listed = text(&run_on_host(&lab.server, &["ss", "--json", "-i"]));
        let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut rows = rows.inspect(|row| json_schema::is_as_documented("ss", row));
        rows.find(|row| row["local"] == local).unwrap_or_default()["info"].clone()
    };
    let count = |info: &Value, names: &[&str]| -> u64 {
        names.iter().map(|name| info[*name].as_u64().unwrap_or(0)).sum()
    };
    let found = ["own_polls", "other_polls", "interrupts", "kernel"];
    // The first packets may have come before the socket was on the stack plane.
    wait_until("all are counted", || {
        let full = info("10.77.0.2:7322");
        count(&full, &found) + count(&full, &["drops"]) >= 50
    });
    let echo = info("10.77.0.2:7321");
    assert_eq!(count(&echo, &found), 51, "{echo}");
    assert!(count(&info("10.77.0.2:7322"), &["drops"]) > 10);
    assert!(rows(&lab).iter().all(|row| row.get("info").is_none()), "only where it is asked for");
    let listed = text(&run_on_host(&lab.server, &["ss", "-i"]));
    assert_eq!(listed.matches("own_polls:").count(), 2, "{listed}");
    assert_eq!(listed.lines().count(), 1 + 2 * 2, "{listed}");
}

/// Blocks with an empty line between them, until it is interrupted; and until nothing reads them any more.
#[test]
fn a_watch_ends_cleanly() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let _program = start(&lab);
    let watch = |arguments: &[&str]| {
        let mut command = lab.server.command(BUSYPOLL);
        Running::spawn(command.arg("ss").args(arguments))
    };
    let mut watching = watch(&["--watch", "100ms"]);
    for _ in 0..2 {
        watching.wait_for("Netid");
    }
    let pid = watching.pid().to_string();
    succeeds(std::process::Command::new("kill").args(["-INT", &pid]));
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut watching.output, &mut rest).unwrap();
    assert_eq!(watching.child.wait().unwrap().code(), Some(0));
    assert!(rest.contains("7311") && !rest.contains('\x1b') && rest.ends_with('\n'), "{rest}");

    let mut command = lab.server.command(BUSYPOLL);
    command.args(["ss", "--watch=100ms", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut unread = command.spawn().unwrap();
    drop(unread.stdout.take());
    assert_eq!(unread.wait().unwrap().code(), Some(0));
    fails_with(&run_locally(&["ss", "--watch", "1ms"]), &["'1ms'", "100ms"]);
}
