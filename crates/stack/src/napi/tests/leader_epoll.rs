//! What stays registered from one sleep to the next.

use super::super::{
    leader_epoll::{KeptFd, LeaderEpoll},
    *,
};
use crate::time;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A sleep that ends at once, after one that wanted the same.
fn sleep(
    leader_epoll: &LeaderEpoll,
    waiter: &Arc<Waiter>,
    interrupt: &OwnedFd,
    kept: Option<&Arc<KeptFd>>,
) -> Wake {
    let register = || leader_epoll.register(waiter, interrupt.as_fd(), kept);
    let place = register().or_else(|_| register()).unwrap();
    waiter.start();
    waiter.sleep_on_leader_epoll(leader_epoll, place, Some(time::now()))
}

fn waiter() -> Arc<Waiter> {
    Arc::new(Waiter::new().unwrap())
}

/// An epoll instance with one member, and the member.
fn instance() -> (OwnedFd, OwnedFd) {
    let (epoll, member) = (sys::epoll().unwrap(), sys::eventfd().unwrap());
    let events = libc::EPOLLIN as u32;
    let (number, add) = (epoll.as_raw_fd(), libc::EPOLL_CTL_ADD);
    sys::epoll_control(number, add, member.as_raw_fd(), events, 0).unwrap();
    (epoll, member)
}

#[test]
fn a_kept_descriptor_ends_every_sleep_while_it_is_ready_and_no_other_sleep() {
    let (leader_epoll, interrupt) = (LeaderEpoll::new().unwrap(), sys::eventfd().unwrap());
    let (a, b) = (waiter(), waiter());
    let (epoll, member) = instance();
    let kept = KeptFd::new(epoll);
    assert_eq!(sleep(&leader_epoll, &a, &interrupt, Some(&kept)), Wake::Timeout);
    sys::signal(member.as_raw_fd());
    for _ in 0..2 {
        assert_eq!(sleep(&leader_epoll, &a, &interrupt, Some(&kept)), Wake::KernelFds);
    }
    // A thread that waits for a set without one, or for another set.
    assert_eq!(sleep(&leader_epoll, &b, &interrupt, None), Wake::Timeout);
    let another = KeptFd::new(instance().0);
    assert_eq!(sleep(&leader_epoll, &b, &interrupt, Some(&another)), Wake::Timeout);
    assert_eq!(sleep(&leader_epoll, &a, &interrupt, Some(&kept)), Wake::KernelFds);
    sys::drain(member.as_raw_fd());
    assert_eq!(sleep(&leader_epoll, &a, &interrupt, Some(&kept)), Wake::Timeout);
}

/// A child of fork(2), or a duplicate, keeps the program's epoll instance open.
#[test]
fn a_kept_descriptor_that_is_dropped_wakes_no_leader_though_its_instance_stays_open() {
    let (leader_epoll, interrupt) = (LeaderEpoll::new().unwrap(), sys::eventfd().unwrap());
    let waiter = waiter();
    let (epoll, member) = instance();
    let _duplicate = epoll.try_clone().unwrap();
    let kept = KeptFd::new(epoll);
    let number = kept.raw_fd();
    assert_eq!(sleep(&leader_epoll, &waiter, &interrupt, Some(&kept)), Wake::Timeout);
    drop(kept);
    sys::signal(member.as_raw_fd());
    assert_eq!(sleep(&leader_epoll, &waiter, &interrupt, None), Wake::Timeout);
    // Its number is free, or another's: a new one of that number is registered all the same.
    let (epoll, member) = instance();
    // SAFETY: another test may have it by now, but then the call fails: `number` is at least not used here.
    let epoll = match unsafe { libc::fcntl(epoll.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number) } {
        copy if copy == number => sys::owned(copy).unwrap(),
        copy => {
            drop(sys::owned(copy));
            epoll
        }
    };
    let kept = KeptFd::new(epoll);
    assert_eq!(sleep(&leader_epoll, &waiter, &interrupt, Some(&kept)), Wake::Timeout);
    sys::signal(member.as_raw_fd());
    assert_eq!(sleep(&leader_epoll, &waiter, &interrupt, Some(&kept)), Wake::KernelFds);
}

#[test]
fn threads_that_take_turns_wake_only_themselves() {
    let (leader_epoll, interrupt) = (LeaderEpoll::new().unwrap(), sys::eventfd().unwrap());
    // More than stay registered.
    let waiters: Vec<_> = (0..6).map(|_| waiter()).collect();
    for _ in 0..2 {
        for (at, waiter) in waiters.iter().enumerate() {
            let own = waiter.event_fd().unwrap().as_raw_fd();
            sys::drain(own);
            assert_eq!(sleep(&leader_epoll, waiter, &interrupt, None), Wake::Timeout);
            // A late wake-up of the thread that was here before: its eventfd stays readable.
            let before = &waiters[(at + 5) % 6];
            sys::signal(before.event_fd().unwrap().as_raw_fd());
            assert_eq!(sleep(&leader_epoll, waiter, &interrupt, None), Wake::Timeout);
            sys::signal(own);
            assert_eq!(sleep(&leader_epoll, waiter, &interrupt, None), Wake::Woken);
        }
    }
}

#[test]
fn each_event_of_the_interrupt_ends_one_sleep() {
    let (leader_epoll, interrupt) = (LeaderEpoll::new().unwrap(), sys::eventfd().unwrap());
    let waiter = waiter();
    for _ in 0..3 {
        assert_eq!(sleep(&leader_epoll, &waiter, &interrupt, None), Wake::Timeout);
        // It is not drained.
        sys::signal(interrupt.as_raw_fd());
        assert_eq!(sleep(&leader_epoll, &waiter, &interrupt, None), Wake::Interrupt);
    }
}

/// The kernel looks through all members of an instance that is registered in another one.
#[test]
fn threads_with_different_instances_do_not_register_them_in_turn() {
    let (leader_epoll, interrupt) = (LeaderEpoll::new().unwrap(), sys::eventfd().unwrap());
    let waiter = waiter();
    let [a, b] = [instance(), instance()].map(|(epoll, _)| KeptFd::new(epoll));
    let register = |kept: Option<&Arc<KeptFd>>| {
        leader_epoll.register(&waiter, interrupt.as_fd(), kept).map_err(|error| error.kind())
    };
    for _ in 0..3 {
        for kept in [&a, &b] {
            assert_eq!(register(Some(kept)).unwrap_err(), io::ErrorKind::WouldBlock);
        }
        assert!(register(None).is_ok());
    }
    assert!(
        register(Some(&a)).is_err() && register(Some(&a)).is_ok() && register(Some(&a)).is_ok()
    );
}
