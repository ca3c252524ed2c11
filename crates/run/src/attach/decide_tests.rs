//! Every reason to change something, and every reason not to.

use busypoll_linux::process::Watch;
use busypoll_linux::socket::SocketInfo;

use super::*;

const EPOLL: RawFd = 3;

/// A connected, blocking TCP socket between two machines.
fn socket() -> Socket {
    Socket {
        fd: 7,
        inode: 700,
        info: SocketInfo {
            cookie: 1,
            family: libc::AF_INET as u16,
            kind: libc::SOCK_STREAM as u32,
            protocol: libc::IPPROTO_TCP as u32,
            listening: false,
            nonblocking: false,
            local: "10.0.0.1:80".parse().ok(),
            peer: "10.0.0.2:9000".parse().ok(),
            ulp: None,
            netns_cookie: None,
        },
        busy_poll: 0,
        prefer: false,
        napi: None,
    }
}

fn with(change: impl FnOnce(&mut Socket)) -> Socket {
    let mut socket = socket();
    change(&mut socket);
    socket
}

fn epoll(watched: &[(RawFd, u64, bool)]) -> Epoll {
    let watch = |&(fd, inode, socket)| Watch { fd, inode, socket, events: 1 };
    Epoll {
        fd: EPOLL,
        watches: watched.iter().map(watch).collect(),
        params: Ok(EpollParams::default()),
    }
}

struct World {
    policy: Policy,
    program: Names,
    waits: Waits,
    watchers: Watchers,
    host_busy_poll: Option<u32>,
}

impl World {
    fn new(policy: &str) -> Self {
        World {
            policy: Policy::parse(policy).unwrap(),
            program: Names::of("/bin/p"),
            waits: Waits::default(),
            watchers: Watchers::default(),
            host_busy_poll: Some(0),
        }
    }

    fn context(&self) -> Context<'_> {
        Context {
            policy: &self.policy,
            program: &self.program,
            waits: &self.waits,
            watchers: &self.watchers,
            host_busy_poll: self.host_busy_poll,
        }
    }

    fn set(&self, socket: &Socket) -> SocketOptions {
        match self.context().socket(socket) {
            Decision::Set(wanted) => wanted,
            Decision::Leave(why) => panic!("left: {why}"),
        }
    }

    fn left(&self, socket: &Socket) -> String {
        match self.context().socket(socket) {
            Decision::Leave(why) => why,
            Decision::Set(wanted) => panic!("{wanted:?}"),
        }
    }
}

#[test]
fn a_blocking_socket_polls_as_the_policy_says() {
    let wanted = |policy: &str| World::new(policy).set(&socket());
    assert_eq!(wanted(""), SocketOptions { busy_poll: 50, prefer: false, budget: 0 });
    assert_eq!(
        wanted("[[rule]]\nlocal_port=80\nbusy_poll=9\nprefer_busy_poll=true\nbusy_poll_budget=4"),
        SocketOptions { busy_poll: 9, prefer: true, budget: 4 }
    );
    assert_eq!(wanted("[[rule]]\nremote_port=80\nbusy_poll=9").busy_poll, 50);
    assert_eq!(wanted("receive='interrupt'").busy_poll, 0, "polling is switched off");
    let nothing = SocketOptions { busy_poll: 0, prefer: false, budget: 0 };
    assert_eq!(wanted("busy_poll=0\nprefer_busy_poll=true\nbusy_poll_budget=4"), nothing);
    assert_eq!(wanted("receive='aggressive'").busy_poll, 50);
}

#[test]
fn a_socket_that_cannot_poll_is_left_with_the_reason() {
    let world = World::new("");
    for (socket, wanted) in [
        (with(|s| s.info.family = libc::AF_UNIX as u16), "no receive queue"),
        (with(|s| s.info.family = libc::AF_NETLINK as u16), "no receive queue"),
        (with(|s| s.info.protocol = libc::IPPROTO_MPTCP as u32), "MPTCP"),
        (with(|s| s.info.kind = libc::SOCK_RAW as u32), "learns no NAPI"),
        (with(|s| s.info.local = "127.0.0.1:80".parse().ok()), "loopback"),
        (with(|s| s.info.peer = "[::1]:80".parse().ok()), "loopback"),
        (with(|s| s.info.local = "[::ffff:127.0.0.2]:80".parse().ok()), "loopback"),
        (with(|s| s.info.peer = "10.0.0.1:9000".parse().ok()), "loopback"),
        (with(|s| s.info.peer = "[::ffff:10.0.0.1]:9000".parse().ok()), "loopback"),
        (with(|s| s.info.ulp = Some("tls".into())), "TLS"),
    ] {
        let why = world.left(&socket);
        assert!(why.contains(wanted), "no {wanted:?} in: {why}");
    }
    assert!(World::new("plane='off'").left(&socket()).contains("policy"));
    assert!(World::new("plane='stack'").left(&socket()).contains("busypoll run"));
}

#[test]
fn a_socket_that_epoll_waits_for_is_left_to_the_epoll() {
    let mut world = World::new("");
    world.watchers = Watchers::of(&[epoll(&[(7, 700, true)])]);
    let nonblocking = with(|s| s.info.nonblocking = true);
    assert!(world.left(&nonblocking).contains("epoll 3"));
    let listener = with(|s| {
        s.info.nonblocking = true;
        s.info.listening = true;
    });
    assert!(world.left(&listener).contains("it accepts"));
    // Its receive calls can block as well.
    assert_eq!(world.set(&socket()).busy_poll, 50);
    // An anonymous inode has a number of its own file system: it is not the socket.
    world.watchers = Watchers::of(&[epoll(&[(7, 700, false)])]);
    assert_eq!(world.set(&nonblocking).busy_poll, 50);
}

#[test]
fn a_listener_is_set_for_the_connections_it_accepts() {
    let listener = with(|s| {
        s.info.listening = true;
        s.info.peer = None;
    });
    let mut world = World::new("");
    assert_eq!(world.set(&listener).busy_poll, 50);
    // The listener itself waits in poll; accepted connections may wait otherwise.
    world.waits.poll.insert(7, 1);
    assert_eq!(world.set(&listener).busy_poll, 50);
}

#[test]
fn poll_and_select_go_by_the_sysctl() {
    let mut world = World::new("");
    world.waits.poll.insert(7, 1);
    assert!(world.left(&socket()).contains("net.core.busy_poll"));
    world.host_busy_poll = Some(50);
    assert_eq!(world.set(&socket()).busy_poll, 50);
    // An unknown value does not count as 0.
    world.host_busy_poll = None;
    assert_eq!(world.set(&socket()).busy_poll, 50);
    let warnings = world.context().warnings(&socket(), false).join("; ");
    assert!(warnings.contains("cannot be seen"), "{warnings}");
}

#[test]
fn the_programs_own_settings_stay() {
    let world = World::new("");
    let prefers = with(|s| s.prefer = true);
    assert!(world.set(&prefers).prefer);
    assert!(
        !World::new("receive='interrupt'").set(&prefers).prefer,
        "without polling there is nothing to prefer"
    );
    let own = EpollParams { busy_poll_usecs: 9, busy_poll_budget: 32, prefer_busy_poll: true };
    let instance = Epoll { params: Ok(own), ..epoll(&[(7, 700, true)]) };
    let sockets = HashMap::from([(700, socket())]);
    let wanted = EpollParams { busy_poll_usecs: 50, ..own };
    assert_eq!(world.context().epoll(&instance, &sockets), Decision::Set(wanted));
}

#[test]
fn a_socket_without_a_queue_to_poll_gets_a_warning() {
    let world = World::new("");
    let warnings = |socket: &Socket, gone| world.context().warnings(socket, gone).join("; ");
    assert!(
        warnings(&with(|s| s.napi = None), false).contains("no packet has brought it a NAPI id")
    );
    let unconnected = with(|s| {
        s.napi = busypoll_linux::NapiId::new(9000);
        s.info.kind = libc::SOCK_DGRAM as u32;
        s.info.protocol = libc::IPPROTO_UDP as u32;
        s.info.peer = None;
    });
    assert!(warnings(&unconnected, true).contains("learns no other"));
    assert_eq!(warnings(&unconnected, false), "");
}

#[test]
fn an_epoll_gets_the_combined_settings_of_its_members() {
    let world = World::new(
        "[[rule]]\nlocal_port=80\nbusy_poll=9\nprefer_busy_poll=true\n\
         [[rule]]\nlocal_port=81\nbusy_poll=70\nbusy_poll_budget=4\n\
         [[rule]]\nlocal_port=82\nplane='off'\n\
         [[rule]]\nlocal_port=84\nreceive='interrupt'\nprefer_busy_poll=true\nbusy_poll_budget=8",
    );
    let member = |inode: u64, port: u16| {
        let local = Some(([10, 0, 0, 1], port).into());
        let socket = with(|s| {
            s.inode = inode;
            s.info.local = local;
        });
        (inode, socket)
    };
    let sockets = HashMap::from([
        member(80, 80),
        member(81, 81),
        member(82, 82),
        (83, with(|s| s.info.family = libc::AF_UNIX as u16)),
        member(84, 84),
    ]);
    let decide = |watched: &[(RawFd, u64, bool)]| world.context().epoll(&epoll(watched), &sockets);
    let params = |busy_poll_usecs, busy_poll_budget, prefer_busy_poll| {
        Decision::Set(EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll })
    };
    assert_eq!(decide(&[(5, 80, true)]), params(9, 0, true));
    assert_eq!(decide(&[(5, 80, true), (6, 81, true), (7, 82, true)]), params(70, 4, true));
    // A socket that does not poll needs nothing; an instance with only that one is switched off.
    assert_eq!(decide(&[(6, 81, true), (9, 84, true)]), params(70, 4, false));
    assert_eq!(decide(&[(9, 84, true)]), params(0, 0, false));
    for (watched, wanted) in [
        (&[][..], "watches no socket"),
        (&[(5, 80, false)], "watches no socket"),
        (&[(5, 4711, true)], "watches no socket"),
        (&[(7, 82, true)], "the policy leaves it alone"),
        (&[(8, 83, true)], "no receive queue"),
    ] {
        let Decision::Leave(why) = decide(watched) else { panic!("{watched:?}") };
        assert!(why.contains(wanted), "{why}");
    }
}

#[test]
fn a_nested_epoll_is_left() {
    let mut world = World::new("");
    let inner = epoll(&[(7, 700, true)]);
    let outer = Epoll { fd: 9, ..epoll(&[(EPOLL, 1057, false)]) };
    world.watchers = Watchers::of(&[inner.clone(), outer.clone()]);
    let sockets = HashMap::from([(700, socket())]);
    let Decision::Leave(why) = world.context().epoll(&inner, &sockets) else { panic!() };
    assert!(why.contains("epoll 9"), "{why}");
    assert!(matches!(world.context().epoll(&outer, &sockets), Decision::Leave(_)));
    // A socket of the inner instance does not poll by the inner's parameters.
    let why = world.left(&with(|s| s.info.nonblocking = true));
    assert!(why.contains("through epoll 3"), "{why}");
    // A thread that sleeps in the inner instance polls there.
    world.waits.asleep.insert(inner.fd);
    assert!(matches!(world.context().epoll(&inner, &sockets), Decision::Set(_)));
}
