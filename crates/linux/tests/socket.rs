//! Socket options and epoll parameters on real sockets, with and without privileges.

mod common;

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;

use busypoll_linux::caps::{Capability, Caps};
use busypoll_linux::epoll::{self, EpollParams};
use busypoll_linux::{Error, sockopt};
use common::without_capabilities;
use rustix::event::epoll as rustix_epoll;
use rustix::thread::{UnshareFlags, unshare_unsafe};

fn udp() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

fn new_epoll() -> std::os::fd::OwnedFd {
    rustix_epoll::create(rustix_epoll::CreateFlags::CLOEXEC).unwrap()
}

#[test]
fn busy_poll_reads_back_as_set() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for micros in [50, 0, 7] {
        sockopt::set_busy_poll(&listener, micros).unwrap();
        assert_eq!(sockopt::busy_poll(&listener).unwrap(), micros);
    }
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().0;
    assert_eq!(sockopt::busy_poll(&accepted).unwrap(), 7, "inherited from the listener");
}

#[test]
fn values_out_of_range_are_refused_with_the_range() {
    let error = sockopt::set_busy_poll(udp(), u32::MAX).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }));
    assert_eq!(
        error.to_string(),
        "SO_BUSY_POLL: 4294967295 is out of range; allowed is 0 to 2147483647 microseconds"
    );
    let params = EpollParams { busy_poll_usecs: 1 << 31, ..Default::default() };
    assert!(matches!(epoll::set_params(new_epoll(), params), Err(Error::OutOfRange { .. })));
}

#[test]
fn loopback_packets_bring_no_napi_id() {
    let (a, b) = (udp(), udp());
    a.send_to(b"x", b.local_addr().unwrap()).unwrap();
    b.recv(&mut [0; 8]).unwrap();
    assert_eq!(sockopt::incoming_napi_id(&b).unwrap(), None);
}

#[test]
fn a_descriptor_that_is_not_a_socket_is_an_error() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = sockopt::busy_poll(file).unwrap_err().to_string();
    assert!(error.starts_with("getting SO_BUSY_POLL: "), "{error}");
}

#[test]
fn refused_prefer_and_budget_name_the_capability() {
    without_capabilities(|| {
        let socket = udp();
        for error in [
            sockopt::set_prefer_busy_poll(&socket, true).unwrap_err(),
            sockopt::set_busy_poll_budget(&socket, 4).unwrap_err(),
        ] {
            assert!(error.is_denied());
            let line = error.to_string();
            assert!(line.contains("CAP_NET_ADMIN in the initial user namespace"), "{line}");
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::PermissionDenied);
        }
        sockopt::set_prefer_busy_poll(&socket, false).unwrap();
        sockopt::set_busy_poll_budget(&socket, 0).unwrap();
        assert!(!sockopt::prefer_busy_poll(&socket).unwrap());
    });
}

#[test]
fn root_may_set_prefer_and_budget() {
    busypoll_lab::needs_root!();
    let socket = udp();
    sockopt::set_prefer_busy_poll(&socket, true).unwrap();
    assert!(sockopt::prefer_busy_poll(&socket).unwrap());
    sockopt::set_busy_poll_budget(&socket, 16).unwrap();
    // The budget cannot be read back; but lowering needs no capability and raising does.
    without_capabilities(|| {
        sockopt::set_busy_poll_budget(&socket, 15).unwrap();
        assert!(sockopt::set_busy_poll_budget(&socket, 16).is_err());
    });
}

#[test]
fn capabilities_belong_to_the_thread() {
    let before = Caps::current().unwrap();
    without_capabilities(|| {
        let caps = Caps::current().unwrap();
        assert!(!caps.has(Capability::NetAdmin));
        let line = caps.missing(&[Capability::NetAdmin, Capability::Bpf]).unwrap();
        assert_eq!(line, "missing CAP_NET_ADMIN, CAP_BPF; run as root or grant it with setcap");
    });
    assert_eq!(Caps::current().unwrap(), before);
    assert_eq!(before.missing(&[]), None);
}

#[test]
fn epoll_parameters_read_back_as_set() {
    let epoll = new_epoll();
    assert_eq!(epoll::params(&epoll).unwrap(), EpollParams::default());
    let params = EpollParams { busy_poll_usecs: 100, busy_poll_budget: 64, prefer_busy_poll: true };
    without_capabilities(|| epoll::set_params(&epoll, params)).unwrap();
    assert_eq!(epoll::params(&epoll).unwrap(), params);
}

#[test]
fn a_large_epoll_budget_needs_the_capability() {
    let epoll = new_epoll();
    let params = EpollParams { busy_poll_budget: 65, ..Default::default() };
    let error = without_capabilities(|| epoll::set_params(&epoll, params)).unwrap_err();
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    assert_eq!(epoll::params(&epoll).unwrap(), EpollParams::default(), "nothing half-applied");
}

#[test]
fn a_descriptor_that_is_not_an_epoll_instance_is_an_error() {
    assert!(matches!(epoll::params(udp()), Err(Error::NotEpoll)));
    assert!(matches!(
        epoll::set_params(std::fs::File::open("/dev/null").unwrap(), EpollParams::default()),
        Err(Error::NotEpoll)
    ));
}

#[test]
fn instances_lists_the_epoll_instances_of_this_process() {
    let epoll = new_epoll();
    let marked = EpollParams { busy_poll_usecs: 12_345, ..Default::default() };
    epoll::set_params(&epoll, marked).unwrap();
    let found = epoll::instances().unwrap();
    assert!(found.iter().any(|e| epoll::params(e).is_ok_and(|p| p == marked)));
    assert!(found.iter().all(|e| epoll::params(e).is_ok()));
}

const CHILD: &str = "BUSYPOLL_TEST_CHILD";

/// Root of another user namespace has every capability there, which is not enough: checked in this child process.
#[test]
fn child_in_a_user_namespace() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let caps = Caps::current().unwrap();
    assert!(caps.has(Capability::NetAdmin) && !caps.has_globally(Capability::NetAdmin));
    assert!(caps.missing(&[Capability::NetAdmin]).is_none());
    assert!(caps.missing_globally(&[Capability::NetAdmin]).unwrap().contains("run it outside"));
    let line = sockopt::set_prefer_busy_poll(udp(), true).unwrap_err().to_string();
    assert!(line.contains("this process is in a user namespace of its own"), "{line}");
    sockopt::set_busy_poll(udp(), 50).unwrap();
}

#[test]
fn in_a_user_namespace_the_error_says_to_run_outside() {
    let map = format!("0 {} 1", rustix::process::geteuid().as_raw());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_in_a_user_namespace"]).env(CHILD, "1");
    // SAFETY: between fork and exec the closure makes system calls with short paths, which std keeps
    // on the stack, and takes no lock.
    unsafe {
        child.pre_exec(move || {
            unshare_unsafe(UnshareFlags::NEWUSER)?;
            std::fs::write("/proc/self/uid_map", &map)
        });
    }
    match child.output() {
        Err(e) => busypoll_lab::needs::skipped(module_path!(), &format!("user namespaces ({e})")),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
    }
}
