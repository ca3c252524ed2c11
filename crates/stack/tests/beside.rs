//! Waits for sockets and kernel descriptors together, nested sets, and exclusive members, over the cable.

mod common;

use busypoll_stack::{
    Epoll, EpollParams, Events, Socket, Source, UdpSocket, napi::KernelFds, poll_with_kernel_fds,
};
use common::{hosts, sockets};
use std::{
    fs,
    io::{PipeWriter, Write, pipe},
    os::fd::AsRawFd,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

const SOON: Option<Duration> = Some(Duration::from_secs(10));
/// Long enough to conclude that nothing comes.
const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// The read end of a pipe as a kernel descriptor to wait for; and its write end.
fn kernel_fds() -> (KernelFds, std::io::PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    let mut kernel_fds = KernelFds::none();
    kernel_fds.push(reader.as_raw_fd(), libc::POLLIN);
    (kernel_fds, reader, writer)
}

/// A set of one socket, which busy polls for `micros`.
fn set(socket: &UdpSocket, micros: u32) -> Epoll {
    let epoll = Epoll::detached();
    epoll.set_params(EpollParams { busy_poll_usecs: micros, ..EpollParams::default() }).unwrap();
    epoll.add(socket, Events::READABLE, 7).unwrap();
    epoll
}

fn later(act: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        act();
    })
}

#[test]
fn a_sleep_ends_for_the_kernel_and_for_a_socket() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let (mut kernel_fds, _reader, mut writer) = kernel_fds();
    let epoll = set(&right, 0);
    let sender = later(move || drop(left.send(b"x")));
    assert!(epoll.wait_with_kernel_fds(SOON, &mut kernel_fds).unwrap());
    assert_eq!(kernel_fds.found()[0].revents, 0);
    let mut events = Vec::new();
    epoll.take_events(&mut events, 4);
    assert_eq!(events.len(), 1);
    sender.join().unwrap();
    right.recv(&mut [0; 16]).unwrap();
    epoll.take_events(&mut events, 4);

    let writing = later(move || writer.write_all(b"x").unwrap());
    assert!(epoll.wait_with_kernel_fds(SOON, &mut kernel_fds).unwrap());
    assert_ne!(kernel_fds.found()[0].revents & libc::POLLIN, 0);
    writing.join().unwrap();
}

#[test]
fn a_busy_poll_checks_the_kernels_descriptors() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let epoll = set(&right, 60_000_000);
    // The queue to poll is known from the first packet.
    left.send(b"x").unwrap();
    let mut events = Vec::new();
    epoll.wait(&mut events, 4, SOON).unwrap();
    right.recv(&mut [0; 16]).unwrap();
    let (mut kernel_fds, _reader, mut writer) = kernel_fds();
    let writing = later(move || writer.write_all(b"x").unwrap());
    while !kernel_fds.look() {
        assert!(
            epoll.wait_with_kernel_fds(SOON, &mut kernel_fds).unwrap(),
            "it polled for ten seconds"
        );
    }
    writing.join().unwrap();
}

#[test]
fn a_busy_poll_includes_the_queues_of_members_added_during_it() {
    let ((one, two), (three, four)) = (hosts(), hosts());
    let ((left, right), (up, down)) = (sockets(&one, &two), sockets(&three, &four));
    let epoll = Arc::new(set(&right, 60_000_000));
    for (from, to) in [(&left, &right), (&up, &down)] {
        from.send(b"x").unwrap();
        to.recv(&mut [0; 16]).unwrap();
    }
    epoll.take_events(&mut Vec::new(), 4);
    let joining = {
        let (epoll, down) = (epoll.clone(), down.try_clone().unwrap());
        later(move || {
            epoll.add(&down, Events::READABLE, 8).unwrap();
            up.send(b"x").unwrap();
        })
    };
    let mut events = Vec::new();
    epoll.wait(&mut events, 4, SOON).unwrap();
    assert_eq!(events[0].data, 8);
    joining.join().unwrap();
}

#[test]
fn poll_ends_when_a_kernel_descriptor_is_ready() {
    let (one, two) = hosts();
    let (_left, right) = sockets(&one, &two);
    let (mut kernel_fds, _reader, mut writer) = kernel_fds();
    let entry = || {
        [busypoll_stack::PollFd {
            socket: &right,
            events: Events::READABLE,
            revents: Events::default(),
        }]
    };
    assert_eq!(poll_with_kernel_fds(&mut entry(), 0, SHORT, &mut kernel_fds).unwrap(), 0);
    assert_eq!(kernel_fds.found()[0].revents, 0);
    let writing = later(move || writer.write_all(b"x").unwrap());
    assert_eq!(poll_with_kernel_fds(&mut entry(), 0, SOON, &mut kernel_fds).unwrap(), 0);
    assert_ne!(kernel_fds.found()[0].revents & libc::POLLIN, 0);
    writing.join().unwrap();
}

#[test]
fn a_nested_set_is_readable_while_a_wait_would_find_an_event() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let inner = set(&right, 0);
    let outer = Epoll::detached();
    outer.add_source(&inner.as_source(), 0, Events::READABLE, 9).unwrap();
    let mut events = Vec::new();
    assert_eq!(outer.wait(&mut events, 4, SHORT).unwrap(), 0);
    let sender = later(move || drop(left.send(b"x")));
    for _ in 0..2 {
        assert_eq!(outer.wait(&mut events, 4, SOON).unwrap(), 1);
        assert_eq!((events[0].data, events[0].events), (9, Events::READABLE));
    }
    sender.join().unwrap();
    assert_eq!(inner.wait(&mut events, 4, SOON).unwrap(), 1);
    right.recv(&mut [0; 16]).unwrap();
    assert_eq!(outer.wait(&mut events, 4, SHORT).unwrap(), 0, "the datagram is gone");
    drop(inner);
    assert_eq!(outer.wait(&mut events, 4, SHORT).unwrap(), 0);
}

#[test]
fn a_source_is_a_member_once_per_tag() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let source = right.events();
    let epoll = Epoll::detached();
    epoll.add_source(&source, 5, Events::READABLE, 50).unwrap();
    epoll.add_source(&source, 6, Events::READABLE, 60).unwrap();
    let again = epoll.add_source(&source, 5, Events::READABLE, 51);
    assert_eq!(again.err().unwrap().raw_os_error(), Some(libc::EEXIST));
    epoll.modify_source(&source, 6, Events::READABLE, Some(61)).unwrap();
    left.send(b"x").unwrap();
    let mut events = Vec::new();
    while events.len() < 2 {
        epoll.wait(&mut events, 4, SOON).unwrap();
    }
    let mut data: Vec<_> = events.iter().map(|event| event.data).collect();
    data.sort_unstable();
    assert_eq!(data, [50, 61]);
    epoll.remove_source(&source, 5).unwrap();
    let gone = epoll.remove_source(&source, 5);
    assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ENOENT));
}

/// Waits until these threads of the process have slept for a while.
fn until_asleep(threads: &[i32]) {
    let until = Instant::now() + Duration::from_secs(60);
    let mut looks = 0;
    while looks < 10 {
        assert!(Instant::now() < until, "they do not sleep");
        thread::sleep(Duration::from_millis(5));
        let sleeps = |thread: &i32| {
            let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('S')
        };
        looks = if threads.iter().all(sleeps) { looks + 1 } else { 0 };
    }
}

#[test]
fn an_exclusive_event_wakes_one_set_of_many() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let right = Arc::new(right);
    let ((began, begins), (said, says)) = (mpsc::channel(), mpsc::channel());
    let waits = [0, 1, 2, 3].map(|at| {
        let (right, began, said) = (right.clone(), began.clone(), said.clone());
        thread::spawn(move || {
            let epoll = Epoll::detached();
            let events = Events::READABLE | Events::EXCLUSIVE;
            epoll.add(&*right, events, at).unwrap();
            let wrong = epoll.modify(&*right, Events::READABLE).unwrap_err();
            assert_eq!(wrong.raw_os_error(), Some(libc::EINVAL));
            // SAFETY: a plain call.
            began.send(unsafe { libc::gettid() }).unwrap();
            let mut found = Vec::new();
            said.send(epoll.wait(&mut found, 4, None).unwrap()).unwrap();
        })
    });
    // An event does not stop at a set in which no thread waits.
    until_asleep(&begins.iter().take(waits.len()).collect::<Vec<_>>());
    for _ in &waits {
        left.send(b"x").unwrap();
        assert_eq!(says.recv_timeout(SOON.unwrap()), Ok(1));
        thread::sleep(SHORT.unwrap());
        assert!(says.try_recv().is_err(), "another set was woken");
        right.recv(&mut [0; 16]).unwrap();
    }
    waits.into_iter().for_each(|wait| wait.join().unwrap());
    let _: &dyn Source = &*right.events();
}
