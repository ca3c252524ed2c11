//! The verdict on every kind of device that can be made here, compared with the NAPI ids that sockets really
//! learn; and the remedies, run as printed.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use busypoll_doctor::{Scope, Style, Verdict, diagnose};
use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::netdev::{NapiChange, Netdev};
use busypoll_linux::sockopt;
use common::{about_devices, ask, codes, cure};

/// Whether packets to the server carry a NAPI id there, and the answers at the client.
fn ids(lab: &Lab) -> [bool; 2] {
    let socket = |host: &LabHost| {
        let socket = host.enter(|| UdpSocket::bind((host.ipv4(), 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let (client, server) = (socket(&lab.client), socket(&lab.server));
    let mut buffer = [0; 1];
    client.send_to(&[1], server.local_addr().unwrap()).unwrap();
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(&[2], from).unwrap();
    client.recv_from(&mut buffer).unwrap();
    [&server, &client].map(|s| sockopt::incoming_napi_id(s).unwrap().is_some())
}

#[test]
fn veth_is_judged_right_in_every_state_and_fixed_at_both_ends() {
    needs_root!();
    needs!(program "ethtool", program "nsenter");
    for (gro, tso) in [(false, false), (false, true), (true, false), (true, true)] {
        let lab = Lab::builder().gro(gro).tso(tso).build().unwrap();
        let report = ask(&lab.client, lab.client.interface());
        let mut expected = Vec::new();
        // One finding for each end.
        expected.extend([["BP-VETH-GRO-OFF"; 2]].into_iter().flatten().filter(|_| !gro));
        expected.extend([["BP-VETH-TSO-ON"; 2]].into_iter().flatten().filter(|_| tso));
        assert_eq!(codes(&report), expected, "gro {gro} tso {tso}");
        let mut text = Vec::new();
        report.write_text(&mut text, Style { colour: false }).unwrap();
        let text = String::from_utf8(text).unwrap();
        // veth's queues name no instance, but a program can poll its AF_XDP sockets.
        assert!(text.contains("one receive queue; AF_XDP: copy"), "{text}");
        assert!(text.contains("only its program can poll") && !text.contains(",:"), "{text}");
        let good = expected.is_empty();
        assert_eq!(ids(&lab), [good; 2], "gro {gro} tso {tso}");

        cure(&lab.client, &report);
        assert_eq!(codes(&ask(&lab.client, lab.client.interface())), [""; 0]);
        assert_eq!(ids(&lab), [true; 2], "after the cure, gro {gro} tso {tso}");
    }
}

#[test]
fn both_ends_in_one_namespace_are_reported_once() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let ip = |words: &str| {
        let done = lab.client.command("ip").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "ip {words}");
    };
    ip("link add va type veth peer name vb");
    ip("link set va up");
    ip("link set vb up");
    let scope = Scope { devices: vec!["va".into(), "vb".into()], ..Scope::default() };
    let report = lab.client.enter(|| diagnose(&scope)).unwrap().unwrap();
    let expected = ["BP-VETH-GRO-OFF", "BP-VETH-GRO-OFF", "BP-VETH-TSO-ON", "BP-VETH-TSO-ON"];
    assert_eq!(codes(&report), expected);
}

#[test]
fn the_remedy_brings_a_down_device_up() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let device = lab.client.interface();
    assert!(
        lab.client.command("ip").args(["link", "set", device, "down"]).status().unwrap().success()
    );
    let report = ask(&lab.client, device);
    assert_eq!(codes(&report), ["BP-DEVICE-DOWN"]);
    cure(&lab.client, &report);
    assert_eq!(codes(&ask(&lab.client, device)), [""; 0]);
}

#[test]
fn rps_is_found_and_its_remedy_writes_the_right_sysfs() {
    needs_root!();
    let lab = Lab::builder().queues(2).build().unwrap();
    let device = lab.server.interface();
    let set = format!(
        "mount -t sysfs sysfs /sys && echo 3 > /sys/class/net/{device}/queues/rx-1/rps_cpus"
    );
    let done = lab.server.command("unshare").args(["-m", "sh", "-c", &set]).status().unwrap();
    assert!(done.success());
    let report = ask(&lab.server, device);
    assert_eq!(codes(&report), ["BP-RPS"]);
    let finding = about_devices(&report)[0];
    assert!(finding.what.contains("packets of one queue to"), "{}", finding.what);
    assert!(finding.evidence.iter().any(|e| e.read.contains("rx-1/rps_cpus")), "{finding:?}");
    cure(&lab.server, &report);
    assert_eq!(codes(&ask(&lab.server, device)), [""; 0]);
}

#[test]
fn deferral_settings_are_found_and_reset_by_the_remedy() {
    needs_root!();
    let change = |flush, defer, suspend| NapiChange {
        gro_flush_timeout_ns: Some(flush),
        defer_hard_irqs: Some(defer),
        irq_suspend_timeout_ns: Some(suspend),
        threaded: None,
    };
    for (change, code, read) in [
        (change(2_000_000, 10, 0), "BP-GRO-FLUSH-NO-POLLER", "napi-get gro-flush-timeout"),
        (change(0, 10, 0), "BP-DEFER-WITHOUT-FLUSH", "napi-get defer-hard-irqs"),
    ] {
        let lab = Lab::builder().build().unwrap();
        let host = &lab.server;
        host.enter(|| {
            let mut netdev = Netdev::open().unwrap();
            let id = netdev.napis(host.ifindex()).unwrap()[0].id;
            netdev.set_napi(host.ifindex(), id, change).unwrap();
        })
        .unwrap();
        let report = ask(host, host.interface());
        assert_eq!(codes(&report), [code]);
        // The device's files still say 0.
        assert_eq!(about_devices(&report)[0].evidence[0].read, read);
        cure(host, &report);
        assert_eq!(codes(&ask(host, host.interface())), [""; 0], "after the cure of {code}");
    }
}

#[test]
fn a_deferral_timer_is_a_fault_unless_a_poller_polls_longer_or_prefers_busy_polling() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let host = &lab.server;
    let socket = host.enter(|| UdpSocket::bind((host.ipv4(), 0))).unwrap().unwrap();
    let client = lab.client.enter(|| UdpSocket::bind((lab.client.ipv4(), 0))).unwrap().unwrap();
    client.send_to(&[1], socket.local_addr().unwrap()).unwrap();
    socket.recv_from(&mut [0]).unwrap();
    let change = NapiChange {
        gro_flush_timeout_ns: Some(200_000),
        defer_hard_irqs: Some(10),
        ..NapiChange::default()
    };
    host.enter(|| {
        let mut netdev = Netdev::open().unwrap();
        let id = netdev.napis(host.ifindex()).unwrap()[0].id;
        netdev.set_napi(host.ifindex(), id, change).unwrap();
    })
    .unwrap();
    assert_eq!(codes(&ask(host, host.interface())), ["BP-GRO-FLUSH-NO-POLLER"]);
    sockopt::set_busy_poll(&socket, 100).unwrap();
    assert_eq!(codes(&ask(host, host.interface())), ["BP-GRO-FLUSH-LOSS"]);
    sockopt::set_busy_poll(&socket, 200).unwrap();
    assert_eq!(codes(&ask(host, host.interface())), [""; 0]);
    sockopt::set_busy_poll(&socket, 100).unwrap();
    sockopt::set_prefer_busy_poll(&socket, true).unwrap();
    assert_eq!(codes(&ask(host, host.interface())), [""; 0]);
}

#[test]
fn an_xdp_program_gives_veth_napi_instances_and_is_reported() {
    needs_root!();
    needs!(program "ip", program "clang");
    let lab = Lab::builder().gro(false).build().unwrap();
    let device = lab.server.interface();
    let object = std::env::temp_dir().join(format!("busypoll-doctor-{}.o", std::process::id()));
    let path = object.display();
    let script = format!(
        "printf '__attribute__((section(\"xdp\"))) int pass(void *c) {{ return 2; }}' |
         clang -O2 -target bpf -c -x c - -o {path} && ip link set {device} xdp obj {path} sec xdp"
    );
    let done = lab.server.command("sh").args(["-c", &script]).output().unwrap();
    std::fs::remove_file(&object).unwrap();
    assert!(done.status.success(), "{done:?}");
    let report = ask(&lab.server, device);
    assert!(report.findings().iter().any(|f| f.rule.code == "BP-XDP-ATTACHED"));
    // Only the client's end has no XDP program.
    let told: Vec<_> =
        about_devices(&report).into_iter().filter(|f| f.verdict().is_fault()).collect();
    let [finding] = told[..] else { panic!("{told:?}") };
    assert_eq!(finding.rule.code, "BP-VETH-GRO-OFF");
    assert!(finding.what.contains(lab.client.interface()), "{}", finding.what);
    assert_eq!(ids(&lab), [true, false]);
}

#[test]
fn loopback_and_tap_are_impossible_and_have_no_remedy() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().build().unwrap();
    let made = lab.client.command("ip").args(["tuntap", "add", "tap7", "mode", "tap"]).status();
    assert!(made.unwrap().success());
    let up = lab.client.command("ip").args(["link", "set", "tap7", "up"]).status();
    assert!(up.unwrap().success());
    for (device, code) in [("lo", "BP-LOOPBACK"), ("tap7", "BP-TUN")] {
        let report = ask(&lab.client, device);
        assert_eq!(codes(&report), [code]);
        let finding = about_devices(&report)[0];
        assert_eq!((finding.verdict(), &finding.remedy), (Verdict::Impossible, &None));
    }
}

#[test]
fn stacked_devices_are_judged_by_the_device_below() {
    needs_root!();
    needs!(program "ip");
    let lab = Lab::builder().tso(true).build().unwrap();
    let device = lab.client.interface();
    for words in [
        &format!("link add vx7 type vxlan id 7 remote 10.77.0.2 dstport 4789 dev {device}"),
        "link add br7 type bridge",
        "link set vx7 up",
        "link set br7 up",
    ] {
        assert!(lab.client.command("ip").args(words.split(' ')).status().unwrap().success());
    }
    // The far end has findings of its own, which are not reported here.
    assert_eq!(codes(&ask(&lab.client, "vx7")), ["BP-VETH-TSO-ON"; 2]);
    let report = ask(&lab.client, "br7");
    let told: Vec<_> = about_devices(&report).iter().map(|f| f.rule.code).collect();
    assert_eq!(told, ["BP-STACKED-UNKNOWN"], "a bridge without ports");
}

#[test]
fn a_peer_is_judged_by_the_device_of_its_route() {
    needs_root!();
    let lab = Lab::builder().gro(false).build().unwrap();
    let to = |address: &str| {
        let scope = Scope { peer: Some(address.parse().unwrap()), ..Scope::default() };
        lab.client.enter(|| diagnose(&scope)).unwrap()
    };
    let report = to("10.77.0.2").unwrap();
    assert_eq!(codes(&report), ["BP-VETH-GRO-OFF"; 2]);
    assert!(about_devices(&report).iter().any(|f| f.rule.code == "BP-PEER-ROUTE"));
    assert_eq!(codes(&to("10.77.0.1").unwrap()), ["BP-PEER-LOCAL"]);
    assert_eq!(codes(&to("127.0.0.1").unwrap()), ["BP-PEER-LOCAL"]);
    let error = to("192.0.2.1").unwrap_err().to_string();
    assert!(error.contains("no route to 192.0.2.1") && !error.contains('\n'), "{error}");
}
