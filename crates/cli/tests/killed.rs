//! Runs that are killed, or stopped with Ctrl-C, in the middle: the interface works for the kernel at once, no XDP
//! program and no namespace remains, and the next run works.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use rustix::process::{Pid, Signal, kill_process_group};
use support::*;

four_tests_at_a_time!();

const ARM: &str = "stack-xdp-udp-busy-poll";
/// The default port of `serve`.
const PORT: u16 = 7117;

/// A bench in a process group of its own, as a terminal starts it.
fn start(mut command: Command, arguments: &[&str]) -> Child {
    command.arg("bench").args(arguments).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends the signal as a terminal does at Ctrl-C, or as `kill -9`; a shell reports the former as status 130.
fn end_by(signal: Signal, child: &mut Child) {
    kill_process_group(Pid::from_child(child), signal).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
}

/// Whether the stack has a socket on the server: its companion reserves the port.
fn is_serving(server: &LabHost) -> bool {
    let table = || fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    server.enter(table).unwrap().contains(&format!(":{PORT:04X} "))
}

/// A datagram from kernel to kernel, over ports that the stack had just before.
fn kernels_exchange(from: &LabHost, to: &LabHost) {
    let receiver = to.enter(|| UdpSocket::bind((to.ipv4(), PORT))).unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let sender = from.enter(|| UdpSocket::bind((from.ipv4(), PORT))).unwrap().unwrap();
    sender.send_to(b"kernel", receiver.local_addr().unwrap()).unwrap();
    // The bench at the other end may still send, and the kernel has the port now.
    let mut came = [0; 16];
    while receiver.recv(&mut came).unwrap() != 6 || came[..6] != *b"kernel" {}
}

fn are_unloaded(programs: &[u32]) {
    assert!(!programs.is_empty(), "there was no XDP program");
    wait_until("the XDP program is unloaded", || !programs.iter().any(|id| is_loaded(*id)));
}

/// The bench and the server of one lab, in the middle of an arm over AF_XDP at both ends.
fn in_the_middle(lab: &Lab, server: &Serving) -> Child {
    let device = lab.client.interface();
    let arguments = ["--host", "10.77.0.2", "--dev", device, "--arms", ARM, "--duration", "30s"];
    let bench = start(lab.client.command(BUSYPOLL), &arguments);
    wait_until("the arm runs", || {
        is_serving(&lab.server)
            && !programs_of(bench.id()).is_empty()
            && !programs_of(server.child.id()).is_empty()
    });
    bench
}

fn a_clean_run(lab: &Lab) {
    let device = lab.client.interface();
    let run = ["--arms", ARM, "--duration", "500ms", "--rounds", "2"];
    let output = run_on_host(
        &lab.client,
        &[&["bench", "--host", "10.77.0.2", "--dev", device], &run[..]].concat(),
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(ARM), "{output:?}");
    assert!(!text.contains("skipped: "), "{text}");
}

fn serve(lab: &Lab) -> Serving {
    Serving::start(lab.server.command(BUSYPOLL), &["--dev", lab.server.interface()])
}

#[test]
fn a_killed_server_leaves_the_interface_to_the_kernel_and_the_bench_ends() {
    needs_root!();
    for signal in [Signal::KILL, Signal::INT] {
        let lab = Lab::builder().build().unwrap();
        let mut server = serve(&lab);
        let bench = in_the_middle(&lab, &server);
        let programs = programs_of(server.child.id());
        rustix::process::kill_process(Pid::from_child(&server.child), signal).unwrap();
        assert_eq!(server.child.wait().unwrap().signal(), Some(signal.as_raw()));
        kernels_exchange(&lab.client, &lab.server);
        drop(lab.server.enter(|| TcpListener::bind((lab.server.ipv4(), 7))).unwrap().unwrap());
        are_unloaded(&programs);
        // The bench does not wait for ever.
        let output = bench.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{output:?}");
        assert!(complaint.contains("10.77.0.2:7117") && complaint.contains("serve"), "{complaint}");
        drop(server);
        let _server = serve(&lab);
        a_clean_run(&lab);
    }
}

#[test]
fn a_killed_bench_leaves_interface_and_server_usable() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let server = serve(&lab);
    for signal in [Signal::KILL, Signal::INT] {
        let mut bench = in_the_middle(&lab, &server);
        let programs = programs_of(bench.id());
        end_by(signal, &mut bench);
        are_unloaded(&programs);
        wait_until("the server has noticed", || !is_serving(&lab.server));
        kernels_exchange(&lab.server, &lab.client);
        a_clean_run(&lab);
    }
}

/// Neither end waits for ever, and the server serves the next bench.
#[test]
#[ignore = "long: ten seconds"]
fn a_link_that_goes_down_ends_the_bench() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let server = serve(&lab);
    let bench = in_the_middle(&lab, &server);
    let link = |state| {
        let arguments = ["link", "set", lab.client.interface(), state];
        assert!(lab.client.command("ip").args(arguments).status().unwrap().success());
    };
    link("down");
    let start = Instant::now();
    let output = bench.wait_with_output().unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{output:?}");
    assert!(complaint.contains("10.77.0.2:7117"), "{complaint}");
    link("up");
    wait_until("the server has noticed", || !is_serving(&lab.server));
    a_clean_run(&lab);
}

/// The network namespaces that a process lives in or holds, except the test's own.
fn namespaces_of(process: &Path) -> BTreeSet<PathBuf> {
    let links = |folder: &str| fs::read_dir(process.join(folder)).into_iter().flatten().flatten();
    let tasks = links("task").map(|task| task.path().join("ns/net"));
    let descriptors = links("fd").map(|descriptor| descriptor.path());
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let targets = tasks.chain(descriptors).filter_map(|link| fs::read_link(link).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("net:[") && *target != own)
        .collect()
}

fn is_any_in_use(namespaces: &BTreeSet<PathBuf>) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.into_iter().any(|process| !namespaces_of(&process.path()).is_disjoint(namespaces))
}

fn sysctls() -> [String; 2] {
    ["busy_read", "busy_poll"]
        .map(|name| fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap())
}

/// The default bench, with a lab of its own.
#[test]
fn a_killed_bench_takes_its_lab_with_it() {
    needs_root!();
    let before = sysctls();
    for signal in [Signal::KILL, Signal::INT] {
        let arms = format!("{ARM},kernel-udp-busy-poll");
        let mut bench = start(
            Command::new(BUSYPOLL),
            &["--arms", &arms, "--duration", "30s", "--rounds", "30"],
        );
        let process = PathBuf::from(format!("/proc/{}", bench.id()));
        // Two hosts of the kernel arms' lab, two of the stack arms'.
        wait_until("the lab and the stack in it", || {
            namespaces_of(&process).len() == 4 && !programs_of(bench.id()).is_empty()
        });
        let (namespaces, programs) = (namespaces_of(&process), programs_of(bench.id()));
        assert!(is_any_in_use(&namespaces));
        end_by(signal, &mut bench);
        assert!(!is_any_in_use(&namespaces));
        are_unloaded(&programs);
        let run = ["bench", "--arms", ARM, "--duration", "500ms", "--rounds", "2"];
        let output = run_locally(&run);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("skipped: "), "{output:?}");
    }
    assert_eq!(sysctls(), before);
}
