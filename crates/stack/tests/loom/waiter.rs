//! Sleep and wake: a wake-up before, during and after going to sleep.

use crate::{
    check,
    napi::{KernelFds, LeaderEpoll, Waiter, Wake},
    sync::{Arc, AtomicU32, Ordering},
};
use loom::{sync::Mutex, thread};
use std::{
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

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
        let place = leader_epoll.register(&waiter, event.as_fd(), None).unwrap();
        waiter.start();
        let waker = {
            let waiter = waiter.clone();
            thread::spawn(move || waiter.wake())
        };
        let device = {
            let event = event.clone();
            thread::spawn(move || crate::sys::signal(std::os::fd::AsRawFd::as_raw_fd(&*event)))
        };
        let woken = matches!(waiter.sleep_on_leader_epoll(&leader_epoll, place, None), Wake::Woken);
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

/// A program that waits for a descriptor. Each packet makes the descriptor ready. The program reads until no packet is
/// left, and then clears the descriptor, as `ReadyFd::clear` does.
fn read_until_empty(packets: &Mutex<u32>, waiter: &Waiter) -> u32 {
    let taken = std::mem::take(&mut *packets.lock().unwrap());
    waiter.arm_event();
    if *packets.lock().unwrap() > 0 {
        waiter.wake();
    }
    taken
}

fn no_event_of_a_descriptor_is_lost(events: libc::c_int) {
    check(Some(3), move || {
        let packets = Arc::new(Mutex::new(0));
        let waiter = Arc::new(Waiter::new().unwrap());
        let epoll = crate::sys::epoll().unwrap();
        let (epoll, event) = (epoll.as_raw_fd(), waiter.event_fd().unwrap().as_raw_fd());
        crate::sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, event, events as u32, 0).unwrap();
        let senders = [(); 2].map(|()| {
            let (packets, waiter) = (packets.clone(), waiter.clone());
            thread::spawn(move || {
                *packets.lock().unwrap() += 1;
                waiter.wake();
            })
        });
        let mut read = read_until_empty(&packets, &waiter);
        while read < 2 {
            let mut found = [libc::epoll_event { events: 0, u64: 0 }];
            // Blocks for ever if the event is lost.
            crate::sys::epoll_wait(epoll, &mut found, None);
            read += read_until_empty(&packets, &waiter);
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn an_edge_triggered_wait_on_a_descriptor_loses_no_event() {
    no_event_of_a_descriptor_is_lost(libc::EPOLLIN | libc::EPOLLET);
}

#[test]
fn a_level_triggered_wait_on_a_descriptor_loses_no_event() {
    no_event_of_a_descriptor_is_lost(libc::EPOLLIN);
}

/// A runtime's thread, asleep until its task's waker is used.
struct Executor {
    woken: Mutex<bool>,
    bell: loom::sync::Condvar,
}

impl std::task::Wake for Executor {
    fn wake(self: std::sync::Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.bell.notify_one();
    }
}

#[test]
fn no_wake_up_of_a_task_is_lost() {
    check(Some(3), || {
        let executor = std::sync::Arc::new(Executor {
            woken: Mutex::new(false),
            bell: loom::sync::Condvar::new(),
        });
        let waker = std::task::Waker::from(executor.clone());
        let socket = Arc::new(Mutex::new(Socket::default()));
        let senders = [(); 2].map(|()| {
            let socket = socket.clone();
            thread::spawn(move || deliver(&socket))
        });
        let waiter = Arc::new(Waiter::of_task());
        for _ in 0..2 {
            // As `TaskWait::poll`.
            loop {
                waiter.arm_task(&waker);
                {
                    let mut socket = socket.lock().unwrap();
                    if socket.packets > 0 {
                        socket.packets -= 1;
                        socket.waiter = None;
                        break;
                    }
                    socket.waiter = Some(waiter.clone());
                }
                let mut woken = executor.woken.lock().unwrap();
                while !std::mem::take(&mut *woken) {
                    woken = executor.bell.wait(woken).unwrap();
                }
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

/// The poller task and a task that begins to wait, as in `PollerTask::poll` and `PollerSlot::begin_wait`.
#[test]
fn a_poller_task_polls_on_if_a_task_begins_to_wait_while_it_stops() {
    check(Some(3), || {
        let executor = std::sync::Arc::new(Executor {
            woken: Mutex::new(false),
            bell: loom::sync::Condvar::new(),
        });
        let waker = std::task::Waker::from(executor.clone());
        let waiter = Arc::new(Waiter::of_task());
        let task = {
            let waiter = waiter.clone();
            thread::spawn(move || {
                if !waiter.is_woken() {
                    waiter.wake();
                }
            })
        };
        let mut turns = 0;
        while turns == 0 {
            if waiter.is_woken() {
                waiter.start();
                turns += 1;
            } else if waiter.arm_task(&waker) {
                let mut woken = executor.woken.lock().unwrap();
                while !std::mem::take(&mut *woken) {
                    woken = executor.bell.wait(woken).unwrap();
                }
            } else {
                waiter.wake();
            }
        }
        task.join().unwrap();
    });
}
