//! The environment form: values survive the conversion, and no text makes the reader panic.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::settings::{Plane, Receive};

fn change() -> impl Strategy<Value = Change> {
    let plane = prop_oneof![Just(Plane::Kernel), Just(Plane::Stack), Just(Plane::Off)];
    let receive =
        prop_oneof![Just(Receive::Interrupt), Just(Receive::BusyPoll), Just(Receive::Aggressive)];
    let time = || option::of(0..=i32::MAX as u32 / 1000);
    (
        option::of(plane),
        time(),
        option::of(any::<bool>()),
        option::of(any::<u16>()),
        option::of(receive),
        time(),
        option::of(prop_oneof![Just("/run/busypoll"), Just("/a; b=%20/c")]),
    )
        .prop_map(
            |(plane, busy_poll, prefer_busy_poll, busy_poll_budget, receive, delay, dir)| Change {
                plane,
                busy_poll,
                prefer_busy_poll,
                busy_poll_budget,
                receive,
                aggressive_receive_delay: delay,
                containers: dir,
            },
        )
}

/// A rule whose lists are parsed from text that a user could have typed.
fn rule() -> impl Strategy<Value = Rule> {
    let typed = (
        vec("[^/\0]{1,9}|/[^\0]{0,9}", 0..3),
        option::of(prop_oneof![Just("tcp"), Just("udp")]),
        vec((any::<std::net::IpAddr>(), 0..=32_u8), 0..3),
        vec((1..=9999_u16, 10_000..=u16::MAX), 0..3),
    );
    (typed, change()).prop_map(|((programs, protocol, addresses, ports), change)| {
        let mut rule = Rule { change, ..Rule::default() };
        let mut set = |key: &str, value: &str| rule.sockets.set(key, value).unwrap().unwrap();
        programs.iter().for_each(|program| set("program", program));
        protocol.iter().for_each(|protocol| set("protocol", protocol));
        for (ip, prefix) in addresses {
            set("local_address", &format!("{}/{prefix}", ip.to_canonical()));
            set("remote_address", &ip.to_string());
        }
        for (first, last) in ports {
            set("local_port", &format!("{first}-{last}"));
            set("remote_port", &first.to_string());
        }
        rule
    })
}

fn launch() -> impl Strategy<Value = Launch> {
    let policy = (change(), vec(rule(), 0..4), option::of(any::<u32>())).prop_map(
        |(defaults, rules, max_spinning_threads)| Policy {
            defaults: defaults.apply(crate::Settings::default()),
            rules,
            max_spinning_threads,
        },
    );
    let name = || option::of("[^\0]{1,12}");
    let names = (name(), name(), name(), option::of(any::<u32>()));
    (policy, (name(), option::of((any::<u32>(), "[^\0]{1,12}"))), any::<[bool; 5]>(), names)
        .prop_map(
            |(
                policy,
                (dev, pcap),
                [latency, strict, bypass_firewall, same_host, unix_streams],
                (guard, shared, command, first),
            )| Launch {
                policy,
                dev,
                profile: if latency { Profile::Latency } else { Profile::Safe },
                strict,
                bypass_firewall,
                same_host,
                unix_streams,
                pcap,
                guard,
                shared,
                command,
                first,
            },
        )
}

proptest! {
    #[test]
    fn settings_survive_the_environment_form(launch in launch()) {
        let text = launch.to_env();
        prop_assert!(text.bytes().all(|b| (0x21..0x7f).contains(&b)), "{}", text);
        prop_assert_eq!(Launch::from_env(&text), Ok(launch.clone()));
        let mut cleared = text.into_bytes();
        Launch::clear_first(&mut cleared);
        let first = launch.first.map(|_| 0);
        prop_assert_eq!(
            Launch::from_env(&String::from_utf8(cleared).unwrap()),
            Ok(Launch { first, ..launch })
        );
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,80}") {
        let _ = Launch::from_env(&text);
        let _ = Launch::from_env(&format!("1;{text}"));
    }

    #[test]
    fn damaged_text_does_not_panic(launch in launch(), at in any::<usize>(), with in any::<char>()) {
        let mut text: Vec<char> = launch.to_env().chars().collect();
        let at = at % text.len();
        text[at] = with;
        let _ = Launch::from_env(&text.iter().collect::<String>());
    }
}

#[test]
fn the_form_is_short_and_readable() {
    let policy = Policy::parse("[[rule]]\nprogram='my app'\nlocal_port='7-9'\nplane='stack'");
    let launch = Launch { policy: policy.unwrap(), strict: true, ..Launch::default() };
    assert_eq!(
        launch.to_env(),
        "1;plane=kernel;busy_poll=50;prefer_busy_poll=false;busy_poll_budget=0;receive=busy-poll;\
         aggressive_receive_delay=1000;profile=safe;strict;rule;program=my%20app;local_port=7-9;\
         plane=stack"
    );
}

#[test]
fn another_version_and_unknown_names_are_refused() {
    for (text, wanted) in [
        ("", "another version"),
        ("2;plane=kernel", "another version"),
        ("1;colour=red", "'colour' is unknown"),
        ("1;plane=blue", "plane: 'blue'"),
        ("1;dev=%zz", "dev: bad escape"),
        ("1;dev=%e", "dev: bad escape"),
        ("1;rule;dev=eth0", "'dev' is unknown"),
        ("1;spinning=many", "spinning"),
    ] {
        let error = Launch::from_env(text).expect_err(text);
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

#[test]
fn the_latency_profiles_trades_are_listed_and_can_be_overridden() {
    let (safe, latency) = (Profile::Safe, Profile::Latency);
    assert_eq!(safe.trades(&safe.defaults()), Vec::<String>::new());
    assert_eq!(latency.trades(&latency.defaults()).len(), 2);
    let policy = Policy::parse_over("prefer_busy_poll = false", latency.defaults()).unwrap();
    assert_eq!((policy.defaults.busy_poll, policy.defaults.prefer_busy_poll), (1000, false));
    assert_eq!(latency.trades(&policy.defaults).len(), 1);
    let policy = Policy::parse_over("busy_poll = 0", latency.defaults()).unwrap();
    assert_eq!(latency.trades(&policy.defaults), Vec::<String>::new());
}
