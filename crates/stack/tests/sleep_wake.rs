//! No wake-up is lost under any race, with UDP: see [`wake_game`].

mod common;
mod wake_game;

use busypoll_stack::{Host, UdpSocket, napi::Waiter};
use common::{hosts, sockets};
use std::{
    net::Shutdown,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};
use wake_game::{Player, STANDSTILL, duels, hand_overs, many_threads, neighbours};

impl Player for UdpSocket {
    fn pair(one: &Host, two: &Host) -> (UdpSocket, UdpSocket) {
        sockets(one, two)
    }

    fn send(&self) {
        self.send(b"ball").unwrap();
    }

    fn receive(&self) -> bool {
        self.recv(&mut [0; 8]).unwrap() > 0
    }

    fn end(&self) {
        self.shutdown(Shutdown::Both).unwrap();
    }

    fn set_busy_poll(&self, micros: u32) {
        self.set_busy_poll(micros).unwrap();
    }

    fn drive(&self) {
        assert!(self.recv(&mut [0; 8]).is_err());
    }

    fn set_nonblocking(&self) {
        self.set_nonblocking(true).unwrap();
    }

    fn report(&self) -> String {
        format!("{:?} waiting, {:?}", self.waiting(), self.stats())
    }
}

#[test]
fn two_sleepers_lose_no_wake_up() {
    duels::<UdpSocket>(1_500);
}

#[test]
fn a_packet_on_the_way_to_sleep_loses_no_wake_up() {
    hand_overs::<UdpSocket>(5_000);
}

#[test]
fn many_sleepers_on_one_socket_lose_no_wake_up() {
    many_threads::<UdpSocket>(6);
}

#[test]
fn many_sleepers_on_one_queue_lose_no_wake_up() {
    neighbours::<UdpSocket>(3_000);
}

#[test]
fn a_late_wake_up_does_not_swallow_the_next() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let right = Arc::new(right);
    let (sender, events) = mpsc::channel();
    let receiver = |sender: mpsc::Sender<Option<Arc<Waiter>>>| {
        let right = right.clone();
        thread::spawn(move || {
            sender.send(Some(Waiter::of_this_thread().unwrap().clone())).unwrap();
            right.recv(&mut [0; 8]).unwrap();
            sender.send(None).unwrap();
            thread::park();
        })
    };
    let next = || events.recv_timeout(STANDSTILL).expect("a wake-up was lost");
    let asleep = || thread::sleep(Duration::from_millis(30));
    receiver(sender.clone());
    let waiter = next().expect("the thread's waiter");
    asleep();
    // A late wake-up of an earlier wait: from another socket, or from a poll that has just returned.
    waiter.wake();
    asleep();
    left.send(b"first").unwrap();
    assert!(next().is_none());
    receiver(sender);
    assert!(next().is_some());
    asleep();
    left.send(b"second").unwrap();
    assert!(next().is_none());
}

#[test]
#[ignore = "three million rounds take minutes; run it in release after any change to waiting"]
fn millions_of_rounds() {
    let begun = Instant::now();
    duels::<UdpSocket>(30_000);
    hand_overs::<UdpSocket>(200_000);
    many_threads::<UdpSocket>(200);
    neighbours::<UdpSocket>(50_000);
    println!("{:?}", begun.elapsed());
}
