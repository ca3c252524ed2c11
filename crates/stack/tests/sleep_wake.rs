//! Waking a sleeper is right under every race, with UDP: see [`wake_game`].

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
use wake_game::{Player, STANDSTILL, crowd, duels, hand_overs, neighbours};

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
fn two_sleepers() {
    duels::<UdpSocket>(1_500);
}

#[test]
fn sleepers_met_on_their_way_to_sleep() {
    hand_overs::<UdpSocket>(5_000);
}

#[test]
fn many_sleepers_on_one_socket() {
    crowd::<UdpSocket>(6);
}

#[test]
fn many_sleepers_on_one_queue() {
    neighbours::<UdpSocket>(3_000);
}

#[test]
fn a_late_wake_up_leaves_nothing_behind_that_swallows_the_next() {
    let (one, two) = hosts();
    let (left, right) = sockets(&one, &two);
    let right = Arc::new(right);
    let (tell, told) = mpsc::channel();
    let receiver = |tell: mpsc::Sender<Option<Arc<Waiter>>>| {
        let right = right.clone();
        thread::spawn(move || {
            tell.send(Some(Waiter::of_this_thread().unwrap().clone())).unwrap();
            right.recv(&mut [0; 8]).unwrap();
            tell.send(None).unwrap();
            thread::park();
        })
    };
    let next = || told.recv_timeout(STANDSTILL).expect("a wake-up was lost");
    let asleep = || thread::sleep(Duration::from_millis(30));
    receiver(tell.clone());
    let waiter = next().expect("the first thing it tells");
    asleep();
    // The echo of an earlier wait: from another socket, or from a poll that has just returned.
    waiter.wake();
    asleep();
    left.send(b"first").unwrap();
    assert!(next().is_none());
    receiver(tell);
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
    crowd::<UdpSocket>(200);
    neighbours::<UdpSocket>(50_000);
    println!("{:?}", begun.elapsed());
}
