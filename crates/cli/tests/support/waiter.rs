//! Programs that wait in a wrong way, for the doctor to find. The program is the test binary itself, started once more
//! with `WAITER` in its environment. A test file includes it with [`waiter_test!`].
#![allow(dead_code)] // each test file uses its own part

use std::env;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use busypoll_linux::link::Links;
use busypoll_linux::netdev::{NapiChange, Netdev};
use busypoll_linux::{EpollParams, epoll, sockopt};

/// The arguments that make the test binary the waiter, on its main thread.
pub const ARGUMENTS: &str = "--exact waiter --test-threads=1 --nocapture";

/// Not a test: without `WAITER` it does nothing.
#[macro_export]
macro_rules! waiter_test {
    () => {
        #[test]
        fn waiter() {
            support::waiter::run();
        }
    };
}

/// The words of `WAITER`: `recv|epoll|poll|select`, then any of `port=N`, `so=USECS` (`SO_BUSY_POLL`),
/// `prefer` (`SO_PREFER_BUSY_POLL`), `ep=USECS` (`EPIOCSPARAMS`), `ep-prefer`, `connect=ADDRESS`.
pub fn run() {
    let Ok(words) = env::var("WAITER") else { return };
    let option =
        |name: &str| words.split(' ').find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| option(name).map(|text| text.parse::<u32>().unwrap());
    let has = |word: &str| words.split(' ').any(|w| w == word);
    if has("napi") {
        return set_every_napi(option("device").unwrap(), number);
    }
    serve(&words, number("port").unwrap() as u16);
}

fn serve(words: &str, port: u16) {
    let option =
        |name: &str| words.split(' ').find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| option(name).map(|text| text.parse::<u32>().unwrap());
    let has = |word: &str| words.split(' ').any(|w| w == word);
    let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
    if let Some(peer) = option("connect") {
        socket.connect(peer).unwrap();
    }
    if let Some(usecs) = number("so") {
        sockopt::set_busy_poll(&socket, usecs).unwrap();
    }
    if has("prefer") {
        sockopt::set_prefer_busy_poll(&socket, true).unwrap();
    }
    let wait = Wait::new(words.split(' ').next().unwrap(), &socket);
    if let (Some(busy_poll_usecs), Wait::Epoll(instance)) = (number("ep"), &wait) {
        let prefer_busy_poll = has("ep-prefer");
        let params = EpollParams { busy_poll_usecs, busy_poll_budget: 8, prefer_busy_poll };
        epoll::set_params(instance, params).unwrap();
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    let mut bytes = [0; 64];
    loop {
        wait.until_readable(&socket);
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        // The sender may have ended.
        let _ = match option("connect") {
            Some(_) => socket.send(&bytes[..length]),
            None => socket.send_to(&bytes[..length], from),
        };
    }
}

/// `napi device=NAME`, then any of `defer=N`, `flush=NS`, `suspend=NS`: set by netlink, as no common program can.
fn set_every_napi(device: &str, number: impl Fn(&str) -> Option<u32>) {
    let ifindex = Links::open().unwrap().get(device).unwrap().ifindex;
    let mut netdev = Netdev::open().unwrap();
    for napi in netdev.napis(ifindex).unwrap() {
        let change = NapiChange {
            defer_hard_irqs: number("defer"),
            gro_flush_timeout_ns: number("flush"),
            irq_suspend_timeout_ns: number("suspend"),
            ..NapiChange::default()
        };
        netdev.set_napi(ifindex, napi.id, change).unwrap();
    }
}

enum Wait {
    Recv,
    Poll,
    Select,
    Epoll(OwnedFd),
}

impl Wait {
    fn new(name: &str, socket: &UdpSocket) -> Self {
        match name {
            "recv" => Wait::Recv,
            "poll" => Wait::Poll,
            "select" => Wait::Select,
            "epoll" => {
                use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
                let instance = create(CreateFlags::CLOEXEC).unwrap();
                add(&instance, socket, EventData::new_u64(0), EventFlags::IN).unwrap();
                Wait::Epoll(instance)
            }
            other => panic!("unknown wait: {other}"),
        }
    }

    fn until_readable(&self, socket: &UdpSocket) {
        use rustix::event::{PollFd, PollFlags, epoll, poll};
        match self {
            Wait::Recv => {}
            Wait::Poll => drop(poll(&mut [PollFd::new(socket, PollFlags::IN)], None)),
            Wait::Select => {
                let fd = socket.as_fd().as_raw_fd();
                let mut set = std::mem::MaybeUninit::<libc::fd_set>::zeroed();
                // SAFETY: all zeros is an empty set; the descriptor is below FD_SETSIZE in so small a program; the call
                // reads and writes only the set.
                unsafe {
                    let set = set.assume_init_mut();
                    libc::FD_SET(fd, set);
                    let none = std::ptr::null_mut();
                    libc::select(fd + 1, set, none, none, none.cast());
                }
            }
            Wait::Epoll(instance) => {
                let mut events = Vec::with_capacity(1);
                let _ = epoll::wait(instance, rustix::buffer::spare_capacity(&mut events), None);
            }
        }
    }
}
