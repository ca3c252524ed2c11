//! A game that shows lost wake-ups: blocking ping-pong over the cable. Each thread adds tiny random delays around the
//! time when its packet comes, so that packets come before, during and after the way to sleep. One lost wake-up and the
//! game stops for ever; then the test fails and reports which thread waits for what.
//!
//! All kinds of receivers take part: the interrupt thread, leaders, busy pollers, the watchdog; and all kinds of waits:
//! receives, polls, epolls, by one thread or by several on one socket.
#![allow(dead_code)] // each test file uses its own part

use crate::common::hosts;
use busypoll_stack::{Epoll, Events, Host, PollFd, Socket, poll};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A game without progress for this long has stopped for ever.
pub const STANDSTILL: Duration = Duration::from_secs(20);

/// The sockets of the game.
pub trait Player: Socket + Sized + Send + Sync + 'static {
    /// Both ends of a connection.
    fn pair(one: &Host, two: &Host) -> (Self, Self);
    /// Sends one message.
    fn send(&self);
    /// Receives one message, waiting for it. False at the end of the game.
    fn receive(&self) -> bool;
    /// Ends the game for the receivers of this socket.
    fn end(&self);
    fn set_busy_poll(&self, micros: u32);
    /// Receives without waiting, in vain: this drives the queue.
    fn drive(&self);
    fn set_nonblocking(&self);
    fn report(&self) -> String;
}

/// How a thread waits before it receives.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// No wait: the receive waits.
    Receive,
    Poll,
    /// Times out and comes back all the time, so that wake-ups meet a thread that has just left.
    PollBriefly,
    /// On an epoll set of its own.
    Epoll,
    /// On an epoll set shared by the threads of its side.
    SharedEpoll,
    /// The same, one-shot.
    OneShot,
}

#[derive(Clone, Copy, Debug)]
pub enum Busy {
    Never,
    Always,
    /// Switched on and off, with spans from too short to longer than a round.
    Sometimes,
}

/// xorshift64: the delays differ between rounds but not between runs.
struct Dice(u64);

/// The number of spins from sending until the answer comes.
#[derive(Default)]
struct Aim(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// A delay from none to a few microseconds; rarely longer than the watchdog's time.
    fn random_delay(&mut self) {
        match self.below(256) {
            0 => thread::sleep(Duration::from_micros(250)),
            1..=15 => thread::yield_now(),
            16..=63 => (0..self.below(500)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
}

impl Aim {
    /// Waits until about the time when a packet comes to `socket`.
    fn wait_for_packet_time(&mut self, socket: &dyn Socket, dice: &mut Dice) {
        (0..self.0).for_each(|_| std::hint::spin_loop());
        let step = dice.below(8);
        let late = socket.readiness().has(Events::READABLE);
        self.0 = if late { self.0.saturating_sub(step) } else { (self.0 + step).min(1_000) };
    }
}

/// One side of the game: a socket, and how each of its threads waits.
struct Side<P> {
    host: Host,
    socket: P,
    shared: Epoll,
    one_shot: Epoll,
    busy: Busy,
}

const ONCE: Events = Events(Events::READABLE.0 | Events::ONE_SHOT.0);

impl<P: Player> Side<P> {
    fn new(host: &Host, socket: P, busy: Busy) -> Arc<Side<P>> {
        let (shared, one_shot) = (Epoll::new(host), Epoll::new(host));
        shared.add(&socket, Events::READABLE, 0).unwrap();
        one_shot.add(&socket, ONCE, 0).unwrap();
        let side = Side { host: host.clone(), socket, shared, one_shot, busy };
        side.set_busy(if matches!(busy, Busy::Never) { 0 } else { 50 });
        Arc::new(side)
    }

    fn set_busy(&self, micros: u32) {
        self.socket.set_busy_poll(micros);
        self.host.set_busy_poll(micros);
    }

    /// Receives one datagram. False at the end of the game.
    fn receive(&self, wait: Wait, own: &Epoll, dice: &mut Dice, aim: &mut Aim) -> bool {
        if matches!(self.busy, Busy::Sometimes) && dice.below(32) == 0 {
            self.set_busy([0, 1, 5, 50, 300][dice.below(5) as usize]);
        }
        let mut events = Vec::new();
        let poll_once = |timeout| {
            let socket = &self.socket;
            let mut fds = [PollFd { socket, events: Events::READABLE, revents: Events::default() }];
            poll(&mut fds, timeout).unwrap()
        };
        aim.wait_for_packet_time(&self.socket, dice);
        match wait {
            Wait::Receive => {}
            Wait::Poll => assert_eq!(poll_once(None), 1),
            Wait::PollBriefly => {
                while poll_once(Some(Duration::from_micros(dice.below(60)))) == 0 {}
            }
            Wait::Epoll => assert_eq!(own.wait(&mut events, 4, None).unwrap(), 1),
            Wait::SharedEpoll => assert_eq!(self.shared.wait(&mut events, 4, None).unwrap(), 1),
            Wait::OneShot => assert_eq!(self.one_shot.wait(&mut events, 4, None).unwrap(), 1),
        }
        let going_on = self.socket.receive();
        if matches!(wait, Wait::OneShot) {
            self.one_shot.modify(&self.socket, ONCE).unwrap();
        }
        going_on
    }

    /// The epoll set of one thread.
    fn epoll(&self, wait: Wait) -> Epoll {
        let epoll = Epoll::new(&self.host);
        if matches!(wait, Wait::Epoll) {
            epoll.add(&self.socket, Events::READABLE, 0).unwrap();
        }
        epoll
    }
}

/// A game between two hosts: every thread of one side sends a ping and waits for any pong.
pub struct Game<P> {
    one: Host,
    two: Host,
    rounds: Arc<AtomicU64>,
    goal: u64,
    pairs: Vec<[Arc<Side<P>>; 2]>,
    servers: Vec<JoinHandle<()>>,
    clients: Vec<JoinHandle<()>>,
}

impl<P: Player> Game<P> {
    pub fn new() -> Game<P> {
        let (one, two) = hosts();
        let (rounds, pairs, servers, clients) = Default::default();
        Game { one, two, rounds, goal: 0, pairs, servers, clients }
    }

    /// A pair of sockets, with a thread for each of `clients` and `servers`; each client plays `rounds`.
    pub fn pair(&mut self, clients: &[Wait], servers: &[Wait], busy: Busy, rounds: u64) {
        let (left, right) = P::pair(&self.one, &self.two);
        let left = Side::new(&self.one, left, busy);
        let right = Side::new(&self.two, right, busy);
        for &wait in servers {
            let side = right.clone();
            let mut dice = Dice(0x9e37_79b9 + self.servers.len() as u64);
            self.servers.push(thread::spawn(move || {
                let own = side.epoll(wait);
                let mut aim = Aim::default();
                while side.receive(wait, &own, &mut dice, &mut aim) {
                    dice.random_delay();
                    side.socket.send();
                }
            }));
        }
        for &wait in clients {
            let side = left.clone();
            let played = self.rounds.clone();
            let mut dice = Dice(0x7f4a_7c15 + self.clients.len() as u64);
            self.goal += rounds;
            self.clients.push(thread::spawn(move || {
                let own = side.epoll(wait);
                let mut aim = Aim::default();
                for _ in 0..rounds {
                    side.socket.send();
                    assert!(side.receive(wait, &own, &mut dice, &mut aim));
                    played.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        self.pairs.push([left, right]);
    }

    /// A sender that delivers its datagrams itself: it drives the receivers' queue right after sending. So two threads
    /// are enough to meet exactly when one goes to sleep.
    pub fn hand_over(&mut self, receivers: &[Wait], rounds: u64) {
        let (left, right) = P::pair(&self.one, &self.two);
        let (other, idle) = P::pair(&self.one, &self.two);
        idle.set_nonblocking();
        idle.set_busy_poll(1);
        let left = Side::new(&self.one, left, Busy::Never);
        let right = Side::new(&self.two, right, Busy::Never);
        for &wait in receivers {
            let (side, played) = (right.clone(), self.rounds.clone());
            let mut dice = Dice(0x9e37_79b9 + self.servers.len() as u64);
            self.servers.push(thread::spawn(move || {
                let (own, mut aim) = (side.epoll(wait), Aim::default());
                while side.receive(wait, &own, &mut dice, &mut aim) {
                    played.fetch_add(1, Ordering::Release);
                }
            }));
        }
        let (side, played) = (left.clone(), self.rounds.clone());
        self.goal += rounds;
        self.clients.push(thread::spawn(move || {
            let _stays_open = other;
            let mut dice = Dice(0x7f4a_7c15);
            for round in 1..=rounds {
                (0..dice.below(64)).for_each(|_| std::hint::spin_loop());
                side.socket.send();
                idle.drive();
                while played.load(Ordering::Acquire) < round {
                    (0..64).for_each(|_| std::hint::spin_loop());
                    thread::yield_now();
                }
            }
        }));
        self.pairs.push([left, right]);
    }

    /// Waits for the end of the game in all threads.
    pub fn play(self) -> [Host; 2] {
        let mut last = (0, Instant::now());
        let mut moves = |what: &str, over: &dyn Fn() -> bool| {
            while !over() {
                thread::sleep(Duration::from_millis(5));
                let rounds = self.rounds.load(Ordering::Relaxed);
                if rounds != last.0 {
                    last = (rounds, Instant::now());
                }
                assert!(last.1.elapsed() < STANDSTILL, "{what}: {}", self.report());
            }
        };
        let over = |threads: &[JoinHandle<()>]| threads.iter().all(JoinHandle::is_finished);
        moves("a wake-up was lost", &|| over(&self.clients));
        for [_, right] in &self.pairs {
            right.socket.end();
        }
        moves("a shutdown did not wake all threads", &|| over(&self.servers));
        for thread in self.clients.into_iter().chain(self.servers) {
            thread.join().unwrap();
        }
        assert_eq!(self.rounds.load(Ordering::Relaxed), self.goal);
        [self.one, self.two]
    }

    fn report(&self) -> String {
        let mut report = format!("{} of {} rounds", self.rounds.load(Ordering::Relaxed), self.goal);
        for (side, name) in self.pairs.iter().flat_map(|pair| pair.iter().zip(["client", "server"]))
        {
            let socket = &side.socket;
            let (busy, more) = (socket.busy_poll(), socket.report());
            report += &format!("\n{name}: SO_BUSY_POLL {busy}, {more}");
        }
        for host in [&self.one, &self.two] {
            host.contexts().for_each(|context| report += &format!("\n{:?}", context.stats()));
        }
        report
    }
}

pub const EACH: [Wait; 6] =
    [Wait::Receive, Wait::Poll, Wait::PollBriefly, Wait::Epoll, Wait::SharedEpoll, Wait::OneShot];

/// One thread on each side, every kind of wait against every other.
pub fn duels<P: Player>(rounds: u64) {
    for client in EACH {
        for (server, busy) in
            EACH.into_iter().zip([Busy::Never, Busy::Sometimes, Busy::Always].into_iter().cycle())
        {
            let mut game = Game::<P>::new();
            game.pair(&[client], &[server], busy, rounds);
            game.play();
        }
    }
}

/// Datagrams delivered exactly when their receivers go to sleep.
pub fn hand_overs<P: Player>(rounds: u64) {
    for receivers in
        EACH.each_ref().map(std::slice::from_ref).into_iter().chain([&EACH[..3], &EACH])
    {
        let mut game = Game::<P>::new();
        game.hand_over(receivers, rounds);
        game.play();
    }
}

/// Many threads on one socket that leave one after the other, in short games: a thread that leaves must not keep a
/// wake-up that another waits for.
pub fn many_threads<P: Player>(games: u64) {
    for _ in 0..games {
        for busy in [Busy::Never, Busy::Sometimes, Busy::Always] {
            for threads in [&EACH[..1], &EACH[..3], &EACH[..]] {
                let mut game = Game::<P>::new();
                let several = [threads, threads].concat();
                game.pair(&several, threads, busy, 100);
                game.play();
            }
        }
    }
}

/// Many sockets on one queue: leaders follow each other, and a busy poller delivers packets of other sockets.
pub fn neighbours<P: Player>(rounds: u64) {
    let mut game = Game::<P>::new();
    for (wait, busy) in
        EACH.into_iter().zip([Busy::Never, Busy::Sometimes, Busy::Never].into_iter().cycle())
    {
        game.pair(&[wait], &[wait], busy, rounds);
        game.pair(&[wait], &[Wait::Receive, Wait::Receive], busy, rounds);
    }
    for host in game.play() {
        let stats = host.contexts().next().unwrap().stats();
        assert!(stats.interrupts > 0 && stats.bp_cleaned > 0 && stats.polls > 0, "{stats:?}");
    }
}
