//! Policy files as users write them, right and wrong.

use std::io::Write;
use std::os::fd::AsRawFd;

use super::*;
use crate::matcher::Protocol;
use crate::names::Names;
use crate::settings::{Plane, Receive};

#[test]
fn every_key_is_read_and_matched() {
    let policy = Policy::parse(
        r#"
plane = "stack"
busy_poll = "1ms"
max_spinning_threads = 3

[[rule]]
program = "feed"
protocol = "udp"
local_address = ["10.0.0.1", "fd00::/8"]
local_port = 7
remote_address = "192.168.0.0/16"
remote_port = "1000-2000"
plane = "kernel"
busy_poll = 70
prefer_busy_poll = true
busy_poll_budget = 16
receive = "aggressive"
aggressive_receive_delay = 1.5e3
containers = "/run/busypoll"
"#
        .replace("1.5e3", "1500")
        .as_str(),
    )
    .unwrap();
    assert_eq!((policy.defaults.plane, policy.defaults.busy_poll), (Plane::Stack, 1000));
    assert_eq!(policy.max_spinning_threads, Some(3));
    let of = |program: &str, local: &str, remote: &str| {
        let (local, remote) = (local.parse().ok(), remote.parse().ok());
        policy.for_socket(&Names::of(program), Protocol::Udp, local, remote)
    };
    let fitting = of("/usr/bin/feed", "10.0.0.1:7", "192.168.3.4:1500");
    assert_eq!(
        fitting,
        Settings {
            plane: Plane::Kernel,
            busy_poll: 70,
            prefer_busy_poll: true,
            busy_poll_budget: 16,
            receive: Receive::Aggressive,
            aggressive_receive_delay: 1500,
            containers: Some("/run/busypoll"),
        }
    );
    // IPv4 in an IPv6 socket is IPv4.
    assert_eq!(of("feed", "[::ffff:10.0.0.1]:7", "[::ffff:192.168.3.4]:1500"), fitting);
    for (program, local, remote) in [
        ("/usr/bin/feeder", "10.0.0.1:7", "192.168.3.4:1500"),
        ("/usr/bin/feed", "10.0.0.2:7", "192.168.3.4:1500"),
        ("/usr/bin/feed", "10.0.0.1:8", "192.168.3.4:1500"),
        ("/usr/bin/feed", "10.0.0.1:7", "192.169.3.4:1500"),
        ("/usr/bin/feed", "10.0.0.1:7", "192.168.3.4:2001"),
        ("/usr/bin/feed", "10.0.0.1:7", "none"),
        ("/usr/bin/feed", "none", "192.168.3.4:1500"),
    ] {
        assert_eq!(of(program, local, remote), policy.defaults, "{program} {local} {remote}");
    }
}

#[test]
fn the_first_matching_rule_applies_and_the_rest_comes_from_the_defaults() {
    let policy = Policy::parse(
        "prefer_busy_poll = true\n[[rule]]\nlocal_port = 7\nbusy_poll = 1\n[[rule]]\nbusy_poll = 2",
    )
    .unwrap();
    let of = |local: &str| {
        let s = policy.for_socket(&Names::of("p"), Protocol::Tcp, local.parse().ok(), None);
        (s.busy_poll, s.prefer_busy_poll)
    };
    assert_eq!(of("0.0.0.0:7"), (1, true));
    assert_eq!(of("0.0.0.0:8"), (2, true));
    assert_eq!(of("unbound"), (2, true));
}

#[test]
fn a_prefix_matches_its_leading_bits() {
    for (net, inside, outside) in [
        ("10.1.2.3/0", "255.255.255.255", "::1"),
        ("10.1.2.3/9", "10.127.0.0", "10.128.0.0"),
        ("10.1.2.3/32", "10.1.2.3", "10.1.2.2"),
        ("::/0", "fd00::1", "10.0.0.1"),
        ("fd00::8/127", "fd00::9", "fd00::a"),
        ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"),
    ] {
        let policy =
            Policy::parse(&format!("[[rule]]\nlocal_address='{net}'\nplane='off'")).unwrap();
        let off = |ip: &str| {
            let local = Some((ip.parse::<std::net::IpAddr>().unwrap(), 1).into());
            policy.for_socket(&Names::of("p"), Protocol::Tcp, local, None).plane == Plane::Off
        };
        assert!(off(inside), "{net} {inside}");
        assert!(!off(outside), "{net} {outside}");
    }
}

#[test]
fn mistakes_are_reported_with_their_line_and_correction() {
    for (text, line, wanted) in [
        ("\nbusypoll = 50", 2, "'busypoll' is unknown; did you mean 'busy_poll'?"),
        ("prefer-busy-poll = true", 1, "did you mean 'prefer_busy_poll'?"),
        ("[[rules]]\nbusy_poll = 1", 1, "did you mean 'rule'?"),
        ("[rule]\nbusy_poll = 1", 1, "[[rule]]"),
        ("rule = 1", 1, "[[rule]]"),
        ("colour = 1", 1, "known here are plane, busy_poll,"),
        ("local_port = 7", 1, "'local_port' is not known here; it goes into a [[rule]]"),
        ("[[rule]]\nmax_spinning_threads = 1", 2, "top of the file"),
        ("[[rule]]\nbusy_poll = 1\nlocal_prot = 7", 3, "did you mean 'local_port'?"),
        ("[[rule]]\nlocal_port = 7", 1, "changes nothing"),
        ("a = 1\nb = 2", 1, "'a'"),
        ("z = 1\nb = 2", 1, "'z'"),
        ("plane = 'stcak'", 1, "did you mean 'stack'?"),
        ("plane = true", 1, "it is one of kernel, stack, off"),
        ("receive = 'busy_poll'", 1, "did you mean 'busy-poll'?"),
        ("prefer_busy_poll = 'perhaps'", 1, "one of true, false"),
        ("busy_poll = '5d'", 1, "busy_poll: unknown unit 'd'"),
        ("busy_poll = -5", 1, "busy_poll: '-5' is not a time"),
        ("busy_poll = '0.5us'", 1, "below 1us"),
        ("busy_poll = '50m'", 1, "above 2147483647us"),
        ("busy_poll = [1, 2]", 1, "one value is meant"),
        ("busy_poll = 0x10", 1, "decimal"),
        ("busy_poll = 2020-01-01", 1, "a date is no value"),
        ("busy_poll_budget = 65536", 1, "write 0 to 65535"),
        ("max_spinning_threads = 'many'", 1, "a number of threads"),
        ("[[rule]]\nplane='off'\nlocal_port = 0", 3, "'0' is no port"),
        ("[[rule]]\nplane='off'\nlocal_port = '9-7'", 3, "is empty"),
        ("[[rule]]\nplane='off'\nlocal_port = [7,\n 99999]", 4, "'99999' is no port"),
        ("[[rule]]\nplane='off'\nlocal_port = []", 3, "an empty list"),
        ("[[rule]]\nplane='off'\nlocal_address = '10.0.0.0/33'", 3, "at most 32 bits"),
        ("[[rule]]\nplane='off'\nremote_address = 'example.org'", 3, "is no address"),
        ("[[rule]]\nplane='off'\nprotocol = ['tcp', 'udp']", 3, "leave it out for both"),
        ("[[rule]]\nplane='off'\nprotocol = 'sctp'", 3, "one of tcp, udp"),
        ("[[rule]]\nplane='off'\nprogram = 'bin/x'", 3, "begin with '/'"),
        ("[[rule]]\nplane='off'\nprogram = ''", 3, "an empty name"),
        ("[[rule]]\nplane='off'\nprogram = {a = 1}", 3, "not a table"),
        ("containers = 'run/busypoll'", 1, "begins with '/'"),
        ("containers = ''", 1, "begins with '/'"),
        (
            "containers = '/run/busypoll'\n[[rule]]\nlocal_port = 7\ncontainers = '/run/b'",
            2,
            "all rules have one directory",
        ),
        ("busy_poll = 1\nbusy_poll = 2", 2, "duplicate"),
        ("busy_poll = = 1", 1, ""),
        ("x", 1, ""),
    ] {
        let mistake = Policy::parse(text).expect_err(text);
        assert_eq!(mistake.line, line, "{text}: {mistake}");
        assert!(mistake.what.contains(wanted), "{text}: no {wanted:?} in: {mistake}");
        assert_eq!(mistake.to_string().lines().count(), 1, "{text}: {mistake}");
    }
}

#[test]
fn a_directory_for_containers_leaves_room_for_its_sockets() {
    let parse = |len: usize| Policy::parse(&format!("containers = '/{}'", "x".repeat(len - 1)));
    assert_eq!(parse(79).unwrap().containers().map(str::len), Some(79));
    assert!(parse(80).unwrap_err().what.contains("at most 79 bytes"));
    let one = Policy::parse("[[rule]]\nlocal_port = 7\ncontainers = '/run/busypoll'").unwrap();
    assert_eq!(one.containers(), Some("/run/busypoll"));
    let at = |port: u16| {
        let local = Some(([10, 0, 0, 1], port).into());
        one.for_socket(&Names::of("p"), Protocol::Tcp, local, None).containers
    };
    assert_eq!((at(7), at(8)), (Some("/run/busypoll"), None));
}

#[test]
fn a_program_matches_by_either_of_its_names() {
    let fits = |pattern: &str, called: &str| {
        let policy = Policy::parse(&format!("[[rule]]\nprogram='{pattern}'\nplane='off'")).unwrap();
        let names = Names { called: called.into(), ..Names::of("/usr/bin/redis-check-rdb") };
        policy.for_program(&names).plane == Plane::Off
    };
    for pattern in
        ["redis-server", "redis-check-rdb", "/usr/bin/redis-s*", "/usr/bin/redis-check-rdb"]
    {
        assert!(fits(pattern, "/usr/bin/redis-server"), "{pattern}");
    }
    assert!(!fits("redis", "/usr/bin/redis-server"));
    assert!(!fits("redis-server", "/usr/bin/redis-sentinel"));
    // An unknown name matches no pattern.
    assert!(!fits("redis-server", "") && fits("redis-check-rdb", ""));
}

#[test]
fn an_unreadable_file_is_named_in_the_error() {
    let error = Policy::read("/nonexistent/policy.toml".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("policy /nonexistent/policy.toml: No such file"), "{error}");
}

/// The system reports no size for either of them.
#[test]
fn a_pipe_is_read_to_its_end_and_an_endless_device_is_refused() {
    let (reader, mut writer) = io::pipe().unwrap();
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    writer.write_all(b"busy_poll = 70").unwrap();
    drop(writer);
    assert_eq!(Policy::read(path.as_ref()).unwrap().defaults.busy_poll, 70);
    let error = Policy::read("/dev/zero".as_ref()).unwrap_err().to_string();
    assert_eq!(error, "policy /dev/zero: larger than 1 MiB: is it a policy?");
}
