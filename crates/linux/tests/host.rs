//! Host-wide settings and the counters of `/proc`.

use std::net::UdpSocket;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::Lab;
use busypoll_linux::stat::{self, CpuTimes};
use busypoll_linux::sysctl::Sysctl;
use busypoll_linux::{Error, sockopt};
use rustix::thread::Uid;

/// The settings are host-wide: one test at a time.
static HOST: Mutex<()> = Mutex::new(());

#[test]
fn a_guard_restores_the_setting() {
    busypoll_lab::needs_root!();
    let _one = HOST.lock().unwrap();
    let before = Sysctl::BusyRead.get().unwrap();
    let other = before + 3;
    {
        let guard = Sysctl::BusyRead.set_for_now(other).unwrap();
        assert_eq!((guard.before(), Sysctl::BusyRead.get().unwrap()), (before, other));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(sockopt::busy_poll(&socket).unwrap(), other, "new sockets start with it");
        let nested = Sysctl::BusyRead.set_for_now(other + 1).unwrap();
        nested.restore().unwrap();
        assert_eq!(Sysctl::BusyRead.get().unwrap(), other);
    }
    assert_eq!(Sysctl::BusyRead.get().unwrap(), before);
}

#[test]
fn a_guard_restores_the_setting_from_a_namespace_that_does_not_show_it() {
    busypoll_lab::needs_root!();
    let _one = HOST.lock().unwrap();
    let before = Sysctl::BusyPoll.get().unwrap();
    let guard = Sysctl::BusyPoll.set_for_now(before + 3).unwrap();
    let elsewhere = Lab::single().unwrap();
    elsewhere.enter(move || drop(guard)).unwrap();
    assert_eq!(Sysctl::BusyPoll.get().unwrap(), before);
}

#[test]
fn every_user_may_read_the_sysctl_and_only_root_may_write_it() {
    busypoll_lab::needs_root!();
    let _one = HOST.lock().unwrap();
    let before = Sysctl::BusyRead.get().unwrap();
    thread::spawn(move || {
        rustix::thread::set_thread_uid(Uid::from_raw(65_534)).unwrap();
        assert_eq!(Sysctl::BusyRead.get().unwrap(), before);
        for error in [
            Sysctl::BusyRead.set(50).unwrap_err(),
            Sysctl::BusyRead.set_for_now(50).map(drop).unwrap_err(),
        ] {
            assert!(
                error.is_denied() && error.to_string().contains("net.core.busy_read"),
                "{error}"
            );
        }
    })
    .join()
    .unwrap();
    assert_eq!(Sysctl::BusyRead.get().unwrap(), before);
    assert!(matches!(Sysctl::BusyRead.set(u32::MAX), Err(Error::OutOfRange { .. })));
}

#[test]
fn sleeping_is_a_voluntary_context_switch_of_this_thread() {
    let before = stat::context_switches().unwrap();
    thread::sleep(Duration::from_millis(1));
    let after = stat::context_switches().unwrap();
    assert!(after.voluntary > before.voluntary);
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    assert!(stat::context_switches_of(tid).unwrap().voluntary >= after.voluntary);
    assert!(stat::context_switches_of(u32::MAX).is_err());
}

#[test]
fn interrupts_and_softirqs_are_read_from_this_machine() {
    let (before, softirqs) = (stat::interrupts().unwrap(), stat::softirqs().unwrap());
    assert!(before.total() > 0 && !before.cpus.is_empty());
    assert!(before.cpus.iter().any(|c| before.cpu_total(*c) > 0));
    let net_rx = softirqs.row("NET_RX").expect("every kernel has NET_RX").total();
    // A packet over loopback is a NET_RX softirq.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    socket.recv(&mut [0; 8]).unwrap();
    assert!(stat::softirqs().unwrap().row("NET_RX").unwrap().total() > net_rx);
    // A sleep that ends is a timer interrupt, somewhere.
    thread::sleep(Duration::from_millis(2));
    assert!(stat::interrupts().unwrap().total() > before.total());
}

#[test]
fn work_shows_as_cpu_time() {
    let (before, start) = (CpuTimes::now().unwrap(), Instant::now());
    let (mut spent, mut used) = (CpuTimes::default(), Duration::ZERO);
    // The kernel counts in ticks: earlier idle time may be accounted late, which makes it longer than what has passed.
    while (spent.total().user_ns == 0 || used.is_zero())
        && start.elapsed() < Duration::from_secs(20)
    {
        std::hint::black_box((0..1_000_000u64).sum::<u64>());
        spent = CpuTimes::now().unwrap().since(&before);
        used = spent.used(start.elapsed());
    }
    assert!(spent.total().user_ns > 0 && spent.total().busy_ns() >= spent.total().user_ns);
    assert!(!used.is_zero());
    assert_eq!(spent.cpus.len(), before.cpus.len());
}
