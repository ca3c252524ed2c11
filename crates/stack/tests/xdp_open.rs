//! Opening an interface by AF_XDP: an error names its cause, and a dead owner leaves nothing behind.

mod xdp_support;

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_stack::nic::{
    Nic,
    xdp::{Error, Xdp},
};
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use xdp_support::*;

const OWN: &str = "BUSYPOLL_TEST_OWN_INTERFACE";

fn open(host: &LabHost, name: &str) -> Result<Xdp, Error> {
    host.enter(|| Xdp::open(name)).unwrap()
}

fn refusal(host: &LabHost, name: &str) -> Error {
    open(host, name).map(|nic| nic.info().mode.clone()).unwrap_err()
}

/// Not a test itself: the body of another process, which owns an interface until it is killed.
#[test]
fn owner_process() {
    let Ok(interface) = env::var(OWN) else { return };
    let mut nic = Xdp::open(&interface).unwrap();
    let _queue = nic.open(0).unwrap();
    nic.steering().unwrap().add(UDP, "10.77.0.2:9000".parse().unwrap()).unwrap();
    println!("owning");
    thread::sleep(Duration::from_secs(600));
}

fn start_owner(host: &LabHost) -> Child {
    let mut command: Command = host.command(env::current_exe().unwrap());
    command.args(["--exact", "owner_process", "--nocapture"]).env(OWN, host.interface());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("owning")));
    child
}

#[test]
fn a_second_owner_is_refused_and_kill_9_frees_the_interface() {
    needs_root!();
    let lab = lab();
    let mut owner = start_owner(&lab.server);
    match refusal(&lab.server, lab.server.interface()) {
        Error::Owned { pid, .. } => assert_eq!(pid, owner.id() as i32),
        other => panic!("{other}"),
    }
    // std kills with SIGKILL.
    owner.kill().unwrap();
    owner.wait().unwrap();
    // A new owner opens it at once, though the kernel may still be cleaning up.
    drop(open(&lab.server, lab.server.interface()).unwrap());
    // Without an owner, the interface's packets go to the kernel.
    let kernel = kernel_socket(&lab.server, PORT);
    let client = kernel_socket(&lab.client, 0);
    client.send_to(b"hello", (lab.server.ipv4(), PORT)).unwrap();
    assert_eq!(kernel.recv(&mut [0; 16]).unwrap(), 5);
}

#[test]
fn a_process_between_fork_and_exec_does_not_keep_the_interface() {
    needs_root!();
    let lab = lab();
    let nic = open(&lab.server, lab.server.interface()).unwrap();
    let (mut forked, mut ready) = std::io::pipe().unwrap();
    let (mut proceed, go_on) = std::io::pipe().unwrap();
    let mut starting = Command::new("true");
    // SAFETY: reads and writes only.
    unsafe {
        starting.pre_exec(move || {
            ready.write_all(&[1])?;
            proceed.read_exact(&mut [0])
        });
    }
    let started = thread::spawn(move || starting.status().unwrap());
    forked.read_exact(&mut [0]).unwrap();
    // The child has a copy of every descriptor now.
    drop(nic);
    let name = lab.server.interface();
    let again = thread::scope(|scope| {
        let again = scope.spawn(|| open(&lab.server, name).map(drop));
        thread::sleep(Duration::from_millis(50));
        (&go_on).write_all(&[1]).unwrap();
        again.join().unwrap()
    });
    again.unwrap();
    assert!(started.join().unwrap().success());
}

#[test]
fn each_queue_is_open_once() {
    needs_root!();
    let lab = Lab::builder().queues(2).build().unwrap();
    let name = lab.server.interface();
    let mut nic = open(&lab.server, name).unwrap();
    assert_eq!(nic.info().queues, 2);
    let first = nic.open(0).unwrap();
    let second = nic.open(1).unwrap();
    let refused = |result: std::io::Result<_>| match result {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    };
    assert!(refused(nic.open(1).map(drop)).contains("open already"));
    assert!(refused(nic.open(2).map(drop)).contains("has no queue 2"));
    drop(second);
    // The third time works in a thread that sees the interface: only the first sockets were created in that namespace.
    assert!(refused(nic.open(1).map(drop)).contains("another network namespace"));
    lab.server.enter(|| nic.open(1).map(drop)).unwrap().unwrap();
    // The interface is ours until the last queue is closed.
    drop(nic);
    assert!(matches!(refusal(&lab.server, name), Error::Owned { .. }));
    drop(first);
    open(&lab.server, name).unwrap();
}

#[test]
fn refusals_name_the_cause() {
    needs_root!();
    let lab = lab();
    let name = lab.server.interface();
    for nonsense in ["nosuch0", "", "a name far too long for a device", "a\0b"] {
        assert!(matches!(refusal(&lab.server, nonsense), Error::UnknownDevice { .. }));
    }
    assert!(matches!(refusal(&lab.server, "lo"), Error::NotEthernet { .. }));
    for frames in [0, 63, 100, 1 << 20] {
        let error = lab.server.enter(|| Xdp::builder(name).rx_frames(frames).open().err());
        assert!(matches!(error.unwrap(), Some(Error::RingSize { .. })));
    }
    assert!(
        lab.server.command("ip").args(["link", "set", name, "down"]).status().unwrap().success()
    );
    let error = refusal(&lab.server, name);
    assert!(matches!(error, Error::Down { .. }));
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NetworkDown);
}

/// With fewer transmit than receive queues, packets would come to a queue that cannot send answers.
#[test]
fn more_queues_to_receive_than_to_send_are_refused() {
    needs_root!();
    needs!(program "ip");
    let host = Lab::single().unwrap();
    let run = |arguments: &str| {
        let status = host.command("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    };
    let v1 = "peer name v1 numrxqueues 1 numtxqueues 4";
    run(&format!("link add v0 numrxqueues 4 numtxqueues 1 type veth {v1}"));
    run("link set v0 up");
    let error = host.enter(|| Xdp::open("v0").err()).unwrap().unwrap();
    assert!(matches!(error, Error::Unpaired { rx: 4, tx: 1, .. }), "{error}");
    assert!(error.to_string().contains("`ethtool -L v0`"), "{error}");
    // With more transmit queues each receive queue has its own.
    run(
        "link add v2 numrxqueues 2 numtxqueues 4 type veth peer name v3 numrxqueues 4 numtxqueues 2",
    );
    run("link set v2 up");
    let nic = host.enter(|| Xdp::open("v2")).unwrap().unwrap();
    assert_eq!(nic.info().queues, 2);
}

/// Keeps only these capabilities in the calling thread.
fn keep_capabilities(kept: &[u32]) {
    let header: [u32; 2] = [0x2008_0522, 0];
    let mut sets = [0u32; 6];
    for capability in kept {
        // Effective and permitted, low word and high word.
        let at = (capability / 32 * 3) as usize;
        sets[at] |= 1 << (capability % 32);
        sets[at + 1] |= 1 << (capability % 32);
    }
    // SAFETY: the layouts of capset(2), version 3.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }, 0);
}

#[test]
fn the_documented_capabilities_are_enough() {
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    needs_root!();
    let lab = lab();
    let name = lab.server.interface();
    let opened = lab.server.enter(|| {
        keep_capabilities(&[NET_ADMIN, NET_RAW, PERFMON, BPF]);
        Xdp::open(name).map(drop).map_err(|error| error.to_string())
    });
    assert_eq!(opened.unwrap(), Ok(()));
}

#[test]
fn missing_capabilities_are_named_and_nothing_is_left_attached() {
    needs_root!();
    let lab = lab();
    let name = lab.server.interface();
    let error = lab.server.enter(|| {
        keep_capabilities(&[]);
        Xdp::open(name).err()
    });
    match error.unwrap() {
        Some(Error::Capability { missing, .. }) => {
            assert_eq!(missing, "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON");
        }
        other => panic!("{other:?}"),
    }
    open(&lab.server, name).unwrap();
}
