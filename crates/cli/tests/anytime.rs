//! Socket calls at every moment at which a program may call the C library (`programs/anytime.c`): in handlers that have
//! interrupted malloc, before main and after it, in children of vfork and threads of clone, on another stack. Each case
//! must succeed on the plain kernel, on the kernel plane and on the stack plane.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::{build, source, temp_dir};
#[allow(unused_imports, reason = "support/echo.rs")]
use support::wait_until;
use support::{BUSYPOLL, without_load_reports};

/// The program and the library that it loads, built once.
fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = temp_dir("anytime");
        for (name, library) in [("anytime", false), ("anytime.so", true)] {
            let mut compiler = Command::new("cc");
            compiler.args(["-O1", "-w", "-o"]).arg(dir.join(name));
            compiler.args(library.then_some(["-shared", "-fPIC", "-DLIBRARY"]).iter().flatten());
            build(compiler.arg(source("anytime.c")).arg("-ldl"));
        }
        dir.join("anytime")
    })
}

/// Runs an echo server at port 7, as long as the test runs.
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
            for mut stream in tcp.incoming().flatten() {
                thread::spawn(move || {
                    let mut bytes = [0; 65_536];
                    while let Ok(read @ 1..) = stream.read(&mut bytes)
                        && stream.write_all(&bytes[..read]).is_ok()
                    {}
                });
            }
        });
    })
    .unwrap();
}

/// Runs a case without busypoll and on each plane. On the stack plane `said` must be on standard error; otherwise
/// nothing.
fn succeeds_on_each_plane(case: &str, seconds: u32, said: Option<&str>) {
    let program = program();
    let planes = [&[][..], &["run"], &["run", "--plane", "stack", "--dev", "lab-server"]];
    for plane in planes {
        let lab = Lab::builder().build().unwrap();
        serve(&lab.client);
        let mut command = lab.server.command("timeout");
        command.args(["-s", "KILL", &(seconds + 60).to_string()]);
        if !plane.is_empty() {
            command.arg(BUSYPOLL).args(plane).arg("--");
        }
        command.arg(program).arg(lab.client.ipv4().to_string()).arg(case);
        match case {
            "dlclose" => command.arg(program.with_extension("so")),
            _ => command.arg(seconds.to_string()),
        };
        let output = command.env("MALLOC_PERTURB_", "165").stdin(Stdio::null()).output().unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out == "ok\n", "{case}, {plane:?}: {output:?}");
        let err = without_load_reports(&err);
        let mut lines = err.lines();
        match said.filter(|_| plane.len() > 1) {
            None => assert_eq!(lines.next(), None, "{case}, {plane:?}"),
            Some(said) => assert!(lines.any(|line| line.contains(said)), "{case}: {err}"),
        }
    }
}

macro_rules! cases {
    ($($test:ident: $case:literal, $seconds:literal $(, says $said:literal)? $(, takes $long:literal)?;)*) => {$(
        #[test]
        $(#[ignore = $long])?
        fn $test() {
            needs_root!();
            needs!(program "cc", program "timeout");
            #[allow(unused_mut, unused_assignments)]
            let mut said = None;
            $(said = Some($said);)?
            succeeds_on_each_plane($case, $seconds, said);
        }
    )*};
}

cases! {
    handlers_that_interrupt_the_allocator: "handlers", 1;
    handlers_that_interrupt_the_allocator_for_a_minute: "handlers", 60, takes "three minutes";
    handlers_on_a_stack_of_their_own: "other-stack", 1;
    constructors: "constructor", 0;
    destructors: "destructor", 0;
    functions_registered_with_atexit: "atexit", 0;
    exit_while_a_connect_is_in_progress: "connecting", 0;
    a_library_that_is_unloaded_by_dlclose: "dlclose", 0;
    threads_made_by_clone: "clone", 0;
    children_of_vfork: "vfork", 0;
    the_first_socket_in_a_handler: "first", 0, says "no thread may be started there";
}
