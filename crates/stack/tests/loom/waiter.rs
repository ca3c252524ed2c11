//! Sleep and wake: a wake-up before, during and after going to sleep.

use crate::{
    check,
    napi::{KernelFds, LeaderEpoll, Waiter, Wake},
    sync::{Arc, AtomicU32, Ordering},
};
use loom::{sync::Mutex, thread};
use std::{os::fd::AsFd, time::Duration};

/// A socket's queue, and its waiter.
#[derive(Default)]
struct Socket {
    packets: u32,
    waiter: Option<Arc<Waiter>>,
}

fn receive(socket: &Mutex<Socket>, waiter: &Arc<Waiter>, mut sleep: impl FnMut()) {
    loop {
        waiter.start();
        {
            let mut socket = socket.lock().unwrap();
            if socket.packets > 0 {
                socket.packets -= 1;
                socket.waiter = None;
                return;
            }
            socket.waiter = Some(waiter.clone());
        }
        sleep();
    }
}

fn deliver(socket: &Mutex<Socket>) {
    let waiter = {
        let mut socket = socket.lock().unwrap();
        socket.packets += 1;
        socket.waiter.take()
    };
    if let Some(waiter) = waiter {
        waiter.wake();
    }
}

#[test]
fn no_wake_up_is_lost() {
    check(Some(3), || {
        let socket = Arc::new(Mutex::new(Socket::default()));
        let senders = [(); 2].map(|()| {
            let socket = socket.clone();
            thread::spawn(move || deliver(&socket))
        });
        let waiter = Arc::new(Waiter::new().unwrap());
        // Twice: a late wake-up of the first wait must not spoil the second.
        for _ in 0..2 {
            receive(&socket, &waiter, || {
                waiter.sleep(None, &mut KernelFds::none());
            });
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_wake_up_and_a_descriptor_at_once_end_the_sleep() {
    check(Some(3), || {
        let event = std::sync::Arc::new(crate::sys::eventfd().unwrap());
        let leader_epoll = LeaderEpoll::new().unwrap();
        let waiter = Arc::new(Waiter::new().unwrap());
        leader_epoll.register(&waiter, event.as_fd()).unwrap();
        waiter.start();
        let waker = {
            let waiter = waiter.clone();
            thread::spawn(move || waiter.wake())
        };
        let device = {
            let event = event.clone();
            thread::spawn(move || crate::sys::signal(std::os::fd::AsRawFd::as_raw_fd(&*event)))
        };
        let woken = matches!(waiter.sleep_on_leader_epoll(&leader_epoll, None), Wake::Woken);
        waker.join().unwrap();
        device.join().unwrap();
        assert!(woken || waiter.is_woken(), "the wake-up is lost");
    });
}

#[test]
fn a_wake_up_and_a_ready_kernel_descriptor_at_once_are_both_seen() {
    check(Some(3), || {
        let event = std::sync::Arc::new(crate::sys::eventfd().unwrap());
        let fd = std::os::fd::AsRawFd::as_raw_fd(&*event);
        let waiter = Arc::new(Waiter::new().unwrap());
        let mut kernel_fds = KernelFds::none();
        kernel_fds.push(fd, libc::POLLIN);
        waiter.start();
        let waker = {
            let waiter = waiter.clone();
            thread::spawn(move || waiter.wake())
        };
        crate::sys::signal(fd);
        let wake = waiter.sleep(None, &mut kernel_fds);
        waker.join().unwrap();
        assert!(matches!(wake, Wake::Woken | Wake::KernelFds));
        assert!(waiter.is_woken() && kernel_fds.look(), "one of the two is lost");
    });
}

#[test]
fn a_timeout_and_a_wake_up_at_once_lose_no_wake_up() {
    check(None, || {
        let waiter = Arc::new(Waiter::new().unwrap());
        let said = Arc::new(AtomicU32::new(0));
        waiter.start();
        let waker = {
            let (waiter, said) = (waiter.clone(), said.clone());
            thread::spawn(move || {
                said.store(1, Ordering::Relaxed);
                waiter.wake();
            })
        };
        match waiter.sleep(Some(Duration::from_micros(1)), &mut KernelFds::none()) {
            Wake::Woken => assert_eq!(said.load(Ordering::Relaxed), 1, "woken before the store"),
            Wake::Timeout => {}
            other => panic!("{other:?}"),
        }
        waker.join().unwrap();
        assert!(waiter.is_woken());
    });
}
