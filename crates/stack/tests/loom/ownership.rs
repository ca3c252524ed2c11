//! A connection changes its owner while its peer sends, and the process may end between any two steps, or a step fail.
//! The new owner, or the old one, has each byte once and in order, and never do both speak to the peer; or the peer
//! learns that the connection is over.
//!
//! The kernel, the network and the guard are a model: a call of the kernel's is one step; a packet finds its way by the
//! steering map, and comes there later; packets on their way when the map changes have come when the kernel's socket is
//! closed at the end of a take-over (20 ms in the product).

use crate::{
    check,
    ownership::{Failed, FromKernel, ToKernel, hand_over, take_over},
    sync::{ends_after, step},
};
use loom::{
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

/// How many bytes the peer sends, one a packet.
const BYTES: u8 = 3;

/// One owner's end of the connection.
#[derive(Clone, Default)]
struct End {
    received: Vec<u8>,
    /// Tells the peer nothing but what it has received.
    is_frozen: bool,
}

impl End {
    /// Takes a packet; returns the acknowledgment.
    fn receive(&mut self, byte: u8) -> u8 {
        if usize::from(byte) == self.received.len() + 1 {
            self.received.push(byte);
        }
        self.received.len() as u8
    }
}

#[derive(Default)]
struct Peer {
    acknowledged: u8,
    /// Learnt that the connection is over.
    is_told: bool,
}

#[derive(Default)]
struct World {
    /// The connection of the kernel's socket.
    kernel: Mutex<Option<End>>,
    /// Ours. Nothing comes to it while it is handed over: the other threads wait for its lock, longer than a packet
    /// lasts.
    ours: Mutex<Option<End>>,
    /// The map has the packets come to us.
    is_steered: Mutex<bool>,
    /// How many lines of the ledger the connection has.
    lines: Mutex<u32>,
    peer: Mutex<Peer>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl World {
    /// The peer sends the first byte that is not acknowledged.
    fn send(&self) {
        let byte = lock(&self.peer).acknowledged + 1;
        if byte > BYTES {
            return;
        }
        let to_us = *lock(&self.is_steered);
        thread::yield_now();
        let to = if to_us { &self.ours } else { &self.kernel };
        let answer = {
            let mut to = lock(to);
            match &mut *to {
                // Ours while it is handed over.
                Some(end) if to_us && end.is_frozen => None,
                Some(end) => Some(end.receive(byte)),
                None => None,
            }
        };
        let is_nowhere = answer.is_none() && !to_us;
        let mut peer = lock(&self.peer);
        // Where there is no socket, the kernel resets. We do not while connections change their owners.
        peer.is_told |= is_nowhere;
        peer.acknowledged = peer.acknowledged.max(answer.unwrap_or(0));
    }

    /// At no time both may send.
    fn one_speaks(&self) {
        let (kernel, ours) = (lock(&self.kernel), lock(&self.ours));
        let speaks = |end: &Option<End>| end.as_ref().is_some_and(|end| !end.is_frozen);
        assert!(!(speaks(&kernel) && speaks(&ours)), "two owners");
    }

    /// The process has ended: the kernel closes its socket, and the guard has the packets go to the kernel and resets
    /// what the ledger has.
    fn end_process(&self) {
        *lock(&self.ours) = None;
        let closed = lock(&self.kernel).take();
        let is_silent = closed.is_none_or(|end| end.is_frozen);
        *lock(&self.is_steered) = false;
        let is_listed = *lock(&self.lines) > 0;
        let mut peer = lock(&self.peer);
        peer.is_told |= !is_silent || is_listed;
        assert!(peer.is_told, "silence");
    }

    /// The peer has sent all, and this is what has come to the only owner.
    fn has_all(&self, owner: &Mutex<Option<End>>) {
        for _ in 0..BYTES {
            self.send();
        }
        let owner = lock(owner);
        let end = owner.as_ref().unwrap();
        assert_eq!((&*end.received, end.is_frozen), (&[1, 2, 3][..], false));
        assert!(!lock(&self.peer).is_told);
    }

    /// The peer learns that the connection is over, at the latest from its next packet.
    fn is_over(&self) {
        self.send();
        assert!(lock(&self.peer).is_told, "silence");
    }
}

/// Which steps fail.
#[derive(Clone, Copy, Default)]
struct Failures {
    copy: bool,
    steer: bool,
    thaw: bool,
}

const FAILURES: [Failures; 5] = {
    let none = Failures { copy: false, steer: false, thaw: false };
    [
        none,
        Failures { copy: true, ..none },
        Failures { steer: true, ..none },
        Failures { steer: true, thaw: true, ..none },
        Failures { thaw: true, ..none },
    ]
};

fn unless(fails: bool) -> Result<(), ()> {
    if fails { Err(()) } else { Ok(()) }
}

struct Take<'a> {
    world: &'a World,
    fails: Failures,
}

impl FromKernel for Take<'_> {
    type Ours = ();
    type Why = ();

    fn note(&mut self) {
        step();
        *lock(&self.world.lines) += 1;
    }

    fn freeze(&mut self) -> Result<(), ()> {
        step();
        lock(&self.world.kernel).as_mut().unwrap().is_frozen = true;
        Ok(())
    }

    fn copy(&mut self) -> Result<(), ()> {
        step();
        unless(self.fails.copy)?;
        let received = lock(&self.world.kernel).as_ref().unwrap().received.clone();
        step();
        *lock(&self.world.lines) += 1;
        *lock(&self.world.ours) = Some(End { received, is_frozen: false });
        self.world.one_speaks();
        Ok(())
    }

    fn steer(&mut self) -> Result<(), ()> {
        step();
        unless(self.fails.steer)?;
        *lock(&self.world.is_steered) = true;
        Ok(())
    }

    fn forget(&mut self) {
        step();
        if lock(&self.world.ours).take().is_some() {
            *lock(&self.world.lines) -= 1;
        }
    }

    fn thaw(&mut self) -> bool {
        step();
        if !self.fails.thaw {
            lock(&self.world.kernel).as_mut().unwrap().is_frozen = false;
        }
        self.world.one_speaks();
        !self.fails.thaw
    }

    fn end(&mut self) {
        step();
        *lock(&self.world.kernel) = None;
    }
}

impl World {
    /// Passes on what the kernel has received in addition.
    fn pass_on(&self) {
        let more = lock(&self.kernel).as_ref().unwrap().received.clone();
        let mut ours = lock(&self.ours);
        let acknowledged = more.into_iter().map(|byte| ours.as_mut().unwrap().receive(byte)).max();
        drop(ours);
        let mut peer = lock(&self.peer);
        peer.acknowledged = peer.acknowledged.max(acknowledged.unwrap_or(0));
    }
}

/// Runs `change` of the owner while the peer sends; it ends before its step number `steps`, or not.
fn while_the_peer_sends(
    world: &Arc<World>,
    steps: u32,
    change: impl FnOnce(&World) + Send + 'static,
) {
    let sender = {
        let world = world.clone();
        thread::spawn(move || {
            world.send();
            world.one_speaks();
            world.send();
        })
    };
    ends_after(steps, || change(world));
    sender.join().unwrap();
}

#[test]
fn a_taken_over_connection_has_one_owner_and_each_byte_or_its_peer_knows() {
    for fails in FAILURES {
        for steps in 0..10 {
            check(Some(3), move || {
                let world = Arc::new(World::default());
                *lock(&world.kernel) = Some(End::default());
                let result = Arc::new(Mutex::new(None));
                while_the_peer_sends(&world, steps, {
                    let result = result.clone();
                    move |world| {
                        let taken = take_over(&mut Take { world, fails });
                        if taken.is_ok() {
                            step();
                            world.pass_on();
                        }
                        step();
                        *lock(&world.lines) -= 1;
                        *lock(&result) = Some(taken);
                    }
                });
                let result = lock(&result).take();
                match result {
                    None => world.end_process(),
                    Some(Ok(())) => {
                        // Nothing is on its way to the kernel's socket any more.
                        world.pass_on();
                        *lock(&world.kernel) = None;
                        assert_eq!(*lock(&world.lines), 1);
                        world.has_all(&world.ours);
                    }
                    Some(Err(())) if fails.thaw => world.is_over(),
                    Some(Err(())) => {
                        assert!(!*lock(&world.is_steered) && *lock(&world.lines) == 0);
                        world.has_all(&world.kernel);
                    }
                }
            });
        }
    }
}

struct Give<'a> {
    world: &'a World,
    fails: Failures,
}

impl ToKernel for Give<'_> {
    type Error = ();

    fn freeze(&mut self) -> Result<(), ()> {
        step();
        Ok(())
    }

    fn copy(&mut self) -> Result<(), ()> {
        step();
        unless(self.fails.copy)?;
        let received = lock(&self.world.ours).as_ref().unwrap().received.clone();
        *lock(&self.world.kernel) = Some(End { received, is_frozen: true });
        Ok(())
    }

    fn steer(&mut self) -> Result<(), ()> {
        step();
        unless(self.fails.steer)?;
        *lock(&self.world.is_steered) = false;
        Ok(())
    }

    fn thaw(&mut self) -> Result<(), ()> {
        step();
        unless(self.fails.thaw)?;
        lock(&self.world.kernel).as_mut().unwrap().is_frozen = false;
        self.world.one_speaks();
        Ok(())
    }

    fn forget(&mut self) {
        step();
        *lock(&self.world.kernel) = None;
    }
}

/// What the flow does around it, under its lock.
fn give(world: &World, fails: Failures) -> Result<(), Failed<()>> {
    let hold = |is_frozen| {
        if let Some(end) = &mut *lock(&world.ours) {
            end.is_frozen = is_frozen;
        }
    };
    hold(true);
    let given = hand_over(&mut Give { world, fails });
    match given {
        Err(Failed::Stays(())) => hold(false),
        Ok(()) | Err(Failed::Lost(())) => {
            if given.is_err() {
                step();
                lock(&world.peer).is_told = true;
            }
            step();
            *lock(&world.ours) = None;
            *lock(&world.lines) -= 1;
        }
    }
    given
}

#[test]
fn a_handed_over_connection_has_one_owner_and_each_byte_or_its_peer_knows() {
    for fails in FAILURES {
        for steps in 0..9 {
            check(Some(3), move || {
                let world = Arc::new(World::default());
                *lock(&world.ours) = Some(End::default());
                *lock(&world.is_steered) = true;
                *lock(&world.lines) = 1;
                let result = Arc::new(Mutex::new(None));
                while_the_peer_sends(&world, steps, {
                    let result = result.clone();
                    move |world| {
                        let given = give(world, fails);
                        *lock(&result) = Some(given);
                    }
                });
                let result = lock(&result).take();
                match result {
                    None => world.end_process(),
                    Some(Ok(())) => world.has_all(&world.kernel),
                    Some(Err(Failed::Stays(()))) => world.has_all(&world.ours),
                    Some(Err(Failed::Lost(()))) => world.is_over(),
                }
            });
        }
    }
}
