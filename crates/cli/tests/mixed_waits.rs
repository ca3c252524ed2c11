//! poll, select and epoll of one program, run on the plain kernel and on the stack plane: the output must be the same,
//! word for word (`programs/mixed.c`). So must the effect of signals on waiting calls; of waits that begin before their
//! socket is activated; of removing the socket from the set, or closing its number, meanwhile (`programs/late.c`); and
//! of calls on sockets below the C library's socket functions (`programs/below.c`).

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::{build, source, temp_dir};
#[allow(unused_imports, reason = "support/echo.rs")]
use support::wait_until;
use support::{BUSYPOLL, without_load_reports};

/// `mixed.c`, `late.c` or `below.c`, built once.
fn program(name: &str) -> &'static Path {
    static BUILT: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
    let at = ["mixed", "late", "below"].iter().position(|known| *known == name).unwrap();
    BUILT[at].get_or_init(|| {
        let program = temp_dir(name).join(name);
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(&program);
        build(compiler.arg(source(&format!("{name}.c"))));
        program
    })
}

/// Runs the peer that the program needs, as long as the test runs.
fn serve(host: &LabHost) {
    let here = host.ipv4();
    host.enter(move || {
        let udp = UdpSocket::bind((here, 7)).unwrap();
        let tcp = TcpListener::bind((here, 7)).unwrap();
        thread::spawn(move || {
            let mut datagram = [0; 2048];
            while let Ok((len, from)) = udp.recv_from(&mut datagram) {
                let _ = udp.send_to(&datagram[..len], from);
            }
        });
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                thread::spawn(move || serve_connection(stream));
            }
        });
    })
    .unwrap();
}

fn serve_connection(mut stream: TcpStream) -> Option<()> {
    let mut first = [0];
    loop {
        stream.read_exact(&mut first).ok()?;
        match first[0] {
            b'q' => return None,
            b'r' => {
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(Duration::ZERO)).ok()?;
                return None;
            }
            b'h' => {
                stream.shutdown(std::net::Shutdown::Write).ok()?;
                // Until the other side closes.
                while stream.read(&mut first).ok()? > 0 {}
                return None;
            }
            b'c' => {
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).ok()?;
                let port = line.trim().parse().ok()?;
                let to = SocketAddr::new(stream.peer_addr().ok()?.ip(), port);
                let mut other = TcpStream::connect(to).ok()?;
                other.write_all(b"hello").ok()?;
                // Until the other side closes.
                while other.read(&mut first).ok()? > 0 {}
            }
            _ => stream.write_all(&first).ok()?,
        }
    }
}

/// The cases in which a socket stays with the kernel, and the reason in the line.
const REPORTED: [(&str, &str); 4] = [
    ("blocking_in_a_child", "inherited over exec"),
    ("passed_over_exec", "inherited over exec"),
    ("reported_to_all", "inherited over exec"),
    ("streams", "by fdopen(3)"),
];

/// The output of the program in one case, on the plain kernel or on the stack plane.
fn transcript(lab: &Lab, name: &str, case: &str, stack: bool) -> String {
    let reason = REPORTED.iter().find(|(of, _)| *of == case).map(|(_, reason)| *reason);
    let mut command = if stack {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack", "--dev", lab.server.interface()]);
        command.args(reason.is_none().then_some("--strict"));
        command.args(["--busy-poll", "20us", "--"]).arg(program(name));
        command
    } else {
        lab.server.command(program(name))
    };
    command.arg(lab.client.ipv4().to_string()).arg(case);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // A socket left to the kernel would be reported.
    let stderr = without_load_reports(&String::from_utf8_lossy(&output.stderr));
    let accepted = |line: &str| reason.is_some_and(|reason| line.contains(reason));
    let silent = stderr.lines().all(accepted);
    assert!(silent && output.status.success(), "{case}, stack {stack}: {output:?}\n{said}");
    said
}

/// Runs one case of a program on both and compares.
fn is_as_plain(name: &str, case: &str) {
    let lab = Lab::builder().build().unwrap();
    serve(&lab.client);
    let (plain, stack) = (transcript(&lab, name, case, false), transcript(&lab, name, case, true));
    let differ = plain.lines().zip(stack.lines()).find(|(plain, stack)| plain != stack);
    assert!(plain == stack, "{differ:?}\nplain:\n{plain}\nstack:\n{stack}");
}

/// The cases of a program; those after `long` take seconds each.
macro_rules! cases {
    ($name:ident: $($case:ident)* , long: $($long:ident)*) => {
        $(
            #[test]
            fn $case() {
                needs_root!();
                needs!(program "cc");
                is_as_plain(stringify!($name), stringify!($case));
            }
        )*
        $(
            #[test]
            #[ignore = "long: the cases of some seconds, a quarter of a minute in all"]
            fn $long() {
                needs_root!();
                needs!(program "cc");
                is_as_plain(stringify!($name), stringify!($long));
            }
        )*
    };
}

cases! { mixed:
    level edge one_shot errors exclusive fresh endings listening mixed nested polls selects signals,
    long: connecting duplicates storm
}

cases! { late:
    woken_when_activated recv_before_bind poll_before_bind removed_while_activated inherited passed_over_exec
    inherited_after_wait shared_by_three connected_in_a_child reported_to_all another_kind_added,
    long: reserved_number blocking_in_a_child cancelled_in_epoll reported_once listener_shut_down
}

cases! { below: streams numbers jumped, long: cancelled }
