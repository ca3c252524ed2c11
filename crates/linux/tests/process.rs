//! Processes: this one, and children that wait in each possible way.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::thread::JoinHandleExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_linux::process::{self, Kind, Process, Wait};
use busypoll_linux::{Error, socket, sockopt};
use rustix::event::{PollFd, PollFlags, epoll, poll};

fn myself() -> Process {
    Process::open(std::process::id()).unwrap()
}

/// A child that executes its program. A vfork(2) ends a moment before the new memory is in place (`exec_mmap`): until
/// then the child is this program.
fn started(child: &Child) -> Process {
    let process = Process::open(child.id()).unwrap();
    while process.program() == myself().program() {
        thread::yield_now();
    }
    process
}

/// Waits until a thread of this process is in such a wait.
fn some_thread(is_it: impl Fn(&Wait) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let threads = myself().threads().unwrap();
        if threads.iter().any(|thread| is_it(&thread.wait)) {
            return;
        }
        assert!(Instant::now() < deadline, "{threads:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_duplicated_descriptor_is_the_same_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let me = myself();
    let found = me.descriptors().unwrap();
    let of = |fd: i32| found.iter().find(|d| d.fd == fd).unwrap().kind;
    assert!(matches!(of(listener.as_raw_fd()), Kind::Socket { .. }));
    let taken = me.duplicate_fd(stream.as_raw_fd()).unwrap().unwrap();
    assert_eq!(process::kind_of_own(&taken), Some(of(stream.as_raw_fd())));
    let (one, other) = (socket::info(&stream).unwrap(), socket::info(&taken).unwrap());
    assert_eq!(one, other);
    assert_eq!((one.family, one.kind), (libc::AF_INET as u16, libc::SOCK_STREAM as u32));
    assert_eq!(one.protocol, libc::IPPROTO_TCP as u32);
    assert_eq!(one.local, stream.local_addr().ok());
    assert_eq!(one.peer, listener.local_addr().ok());
    assert!(one.nonblocking && !one.listening && one.ulp.is_none());
    let heard = socket::info(&listener).unwrap();
    assert!(heard.listening && !heard.nonblocking && heard.peer.is_none());
    assert_ne!(heard.cookie, one.cookie);
    sockopt::set_busy_poll(&taken, 77).unwrap();
    drop(taken);
    assert_eq!(
        sockopt::busy_poll(&stream).unwrap(),
        77,
        "the setting stays when the duplicate is closed"
    );
}

#[test]
fn an_unbound_socket_has_no_address_and_a_closed_descriptor_no_file() {
    let unbound =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
            .unwrap();
    let info = socket::info(&unbound).unwrap();
    assert_eq!((info.local, info.peer), (None, None));
    // Far above any number this process gets.
    assert!(myself().duplicate_fd(1_000_000).unwrap().is_none());
    assert_eq!(myself().kind(1_000_000), None);
    assert_eq!(myself().watches(1_000_000), None);
}

#[test]
fn an_epolls_watches_are_listed() {
    let (one, two) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let me = myself();
    assert_eq!(me.kind(instance.as_raw_fd()), Some(Kind::Epoll));
    assert_eq!(me.watches(instance.as_raw_fd()), Some(vec![]));
    for socket in [&one, &two] {
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&instance, socket, epoll::EventData::new_u64(9), events).unwrap();
    }
    let watches = me.watches(instance.as_raw_fd()).unwrap();
    // In the kernel's order, which is that of the files' addresses.
    for socket in [&one, &two] {
        let watch = watches.iter().find(|watch| watch.fd == socket.as_raw_fd()).unwrap();
        assert_eq!(me.kind(watch.fd), Some(Kind::Socket { inode: watch.inode }));
        assert!(watch.socket && watch.events & libc::EPOLLIN as u32 != 0);
    }
    assert_eq!(watches.len(), 2);
    let taken = me.duplicate_fd(instance.as_raw_fd()).unwrap().unwrap();
    assert_eq!(process::watches_of_own(&taken), Some(watches));
}

#[test]
fn each_kind_of_wait_is_recognised() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let (fd, lfd, efd) = (socket.as_raw_fd(), listener.as_raw_fd(), instance.as_raw_fd());
    thread::scope(|scope| {
        let wake = || socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        let receiver = scope.spawn(|| socket.recv(&mut [0; 8]).unwrap());
        some_thread(|wait| *wait == Wait::Receive { fd, nonblock: false });
        wake();
        receiver.join().unwrap();
        let poller = scope.spawn(|| {
            let mut fds =
                [PollFd::new(&socket, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
            poll(&mut fds, None).unwrap()
        });
        some_thread(|wait| *wait == Wait::Poll { fds: vec![fd, lfd] });
        wake();
        poller.join().unwrap();
        let selecting = scope.spawn(|| {
            // SAFETY: the set is plain memory of the right size, and outlives the call.
            unsafe {
                let mut set: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(lfd, &raw mut set);
                let null = std::ptr::null_mut();
                libc::select(lfd + 1, &raw mut set, null, null, null.cast())
            }
        });
        some_thread(|wait| *wait == Wait::Poll { fds: vec![lfd] });
        let accepting = scope.spawn(|| listener.accept().map(drop).unwrap());
        some_thread(|wait| *wait == Wait::Accept { fd: lfd });
        let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        accepting.join().unwrap();
        let second = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(selecting.join().unwrap(), 1);
        drop((first, second));
        epoll::add(
            &instance,
            listener.as_fd(),
            epoll::EventData::new_u64(0),
            epoll::EventFlags::ET,
        )
        .unwrap();
        let waiting = scope.spawn(|| {
            let mut events = Vec::with_capacity(4);
            epoll::wait(&instance, rustix::buffer::spare_capacity(&mut events), None).unwrap();
            events.len()
        });
        some_thread(|wait| *wait == Wait::Epoll { fd: efd, nonblock: false });
        epoll::modify(
            &instance,
            listener.as_fd(),
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )
        .unwrap();
        let _third = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(waiting.join().unwrap(), 1);
    });
}

#[test]
fn called_returns_the_path_a_program_was_started_by() {
    let link = std::env::temp_dir().join(format!("busypoll-link-{}", std::process::id()));
    std::os::unix::fs::symlink("/bin/sleep", &link).unwrap();
    // Most are seen during their exec, some before the auxiliary vector is written.
    for _ in 0..100 {
        let mut child = Command::new(&link).arg("600").stdin(Stdio::null()).spawn().unwrap();
        let held = started(&child);
        let (called, program, name) = (held.exec_path(), held.program(), held.program_name());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(called.as_deref(), Some(link.as_path()));
        assert_ne!(program, link);
        assert_eq!(link.file_name(), Some(std::ffi::OsStr::new(&name)));
    }
    std::fs::remove_file(&link).unwrap();
}

#[test]
fn a_script_has_the_name_of_its_interpreter() {
    let script = std::env::temp_dir().join(format!("busypoll-script-{}", std::process::id()));
    // Written by another process: this one's forks would hold it open for writing.
    let write = format!("printf '#!/bin/sh\\nread line\\n' >{0}; chmod +x {0}", script.display());
    assert!(Command::new("sh").args(["-c", &write]).status().unwrap().success());
    let mut child = Command::new(&script).stdin(Stdio::piped()).spawn().unwrap();
    let name = started(&child).program_name();
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&script).unwrap();
    let shell = std::fs::canonicalize("/bin/sh").unwrap();
    assert_eq!(shell.file_name(), Some(std::ffi::OsStr::new(&name)));
}

#[test]
fn an_ended_process_is_not_found_even_if_its_pid_is_reused() {
    let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let held = started(&child);
    assert!(held.is_alive() && held.start_time() >= myself().start_time());
    assert!(held.program().ends_with("sleep") || held.program().ends_with("coreutils"));
    assert_eq!(held.shares_our_netns(), Some(true));
    child.kill().unwrap();
    // Dead, and not yet reaped.
    let deadline = Instant::now() + Duration::from_secs(20);
    while held.is_alive() {
        assert!(Instant::now() < deadline);
    }
    assert!(matches!(Process::open(child.id()), Err(Error::NoProcess { .. })));
    assert!(matches!(held.descriptors(), Err(Error::NoProcess { .. })));
    assert!(matches!(held.duplicate_fd(0), Err(Error::NoProcess { .. })));
    child.wait().unwrap();
    assert!(matches!(held.descriptors(), Err(Error::NoProcess { .. })));
    assert!(matches!(held.threads(), Err(Error::NoProcess { .. })));
    for pid in [0, u32::MAX, child.id()] {
        assert!(matches!(Process::open(pid), Err(Error::NoProcess { .. })), "{pid}");
    }
}

#[test]
fn the_number_of_a_thread_is_not_a_process() {
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        let _ = ended.recv();
    });
    let tid = told.recv().unwrap();
    assert!(thread.as_pthread_t() != 0);
    assert!(matches!(Process::open(tid), Err(Error::NoProcess { .. })));
    drop(end);
    thread.join().unwrap();
}

#[test]
fn a_refused_access_names_the_capability() {
    busypoll_lab::needs_root!();
    let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let refused = thread::spawn(move || {
        rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(65_534)).unwrap();
        let process = Process::open(pid).unwrap();
        [process.descriptors().unwrap_err(), process.duplicate_fd(0).unwrap_err()]
    });
    for error in refused.join().unwrap() {
        let text = error.to_string();
        assert!(error.is_denied() && text.contains("CAP_SYS_PTRACE"), "{text}");
        assert!(text.contains("another user"), "{text}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_name_cut_in_the_middle_of_a_character_hides_no_process() {
    // The kernel keeps 15 bytes of it.
    let program = std::env::temp_dir().join(format!("обработчик-{}", std::process::id()));
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
    std::fs::remove_file(&program).unwrap();
    // The parent may run before the child has its name.
    let comm = || std::fs::read(format!("/proc/{}/comm", child.id())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while String::from_utf8(comm()).is_ok() && Instant::now() < deadline {
        thread::yield_now();
    }
    let comm = String::from_utf8(comm());
    let found = Process::open(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(comm.is_err());
    assert_eq!(found.unwrap().pid(), child.id());
}
