//! Devices, NAPI instances and busy polling itself, on a veth pair in namespaces of our own.

mod common;

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use busypoll_lab::Lab;
use busypoll_linux::ethtool::{ChannelChange, Coalesce, CoalesceChange, Ethtool, GRO, TSO};
use busypoll_linux::link::Links;
use busypoll_linux::netdev::{Direction, NapiChange, Netdev, Threaded};
use busypoll_linux::sysctl::Sysctl;
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::{Error, NapiId, irq, netns, sockopt, stat};
use common::without_capabilities;

#[test]
fn a_link_reports_the_attributes_it_was_made_with() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().queues(2).mtu(1400).build().unwrap();
    let host = &lab.server;
    host.enter(|| {
        let mut links = Links::open().unwrap();
        let link = links.get(host.interface()).unwrap();
        assert_eq!((link.ifindex, link.mtu, link.rx_queues), (host.ifindex(), 1400, 2));
        assert_eq!((link.mac, link.kind.as_deref()), (Some(host.mac()), Some("veth")));
        assert!(link.up && link.running && !link.loopback);
        let addresses = links.addresses(link.ifindex).unwrap();
        assert!(addresses.iter().any(|a| a.ip == host.ipv4()), "{addresses:?}");
        let all = links.all().unwrap();
        assert_eq!(all.len(), 2, "lo and ours: {all:?}");
        assert!(all.contains(&link) && all.iter().any(|l| l.loopback));
        assert!(matches!(links.get("nosuch0"), Err(Error::NoDevice { .. })));
        assert!(matches!(links.get("a-name-much-too-long"), Err(Error::NoDevice { .. })));
    })
    .unwrap();
}

#[test]
fn veth_has_napi_instances_only_while_gro_is_on() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().queues(2).gro(false).build().unwrap();
    let host = &lab.server;
    host.enter(|| {
        let mut netdev = Netdev::open().unwrap();
        let veth = Ethtool::open(host.interface()).unwrap();
        assert_eq!(netdev.napis(host.ifindex()).unwrap(), []);

        veth.set_features(GRO, true).unwrap();
        assert!(veth.all_on(GRO).unwrap());
        let napis = netdev.napis(host.ifindex()).unwrap();
        assert_eq!(napis.len(), 2);
        assert!(napis.iter().all(|n| n.ifindex == host.ifindex()));
        assert_eq!(netdev.all_napis().unwrap(), napis, "nothing else is in this namespace");
        assert_eq!(netdev.napi(napis[0].id).unwrap(), napis[0]);

        let queues = netdev.queues(host.ifindex()).unwrap();
        let of = |d| queues.iter().filter(|q| q.direction == d).count();
        assert_eq!((of(Direction::Rx), of(Direction::Tx)), (2, 2));

        veth.set_features(GRO, false).unwrap();
        assert!(matches!(netdev.napi(napis[0].id), Err(Error::NoNapi { .. })));
        assert!(matches!(netdev.napis(4711), Err(Error::NoDevice { .. })));
        assert!(matches!(netdev.queues(4711), Err(Error::NoDevice { .. })));
    })
    .unwrap();
}

#[test]
fn napi_settings_read_back_as_set() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    let host = &lab.server;
    host.enter(|| {
        let mut netdev = Netdev::open().unwrap();
        let before = netdev.napis(host.ifindex()).unwrap().remove(0);
        let change = NapiChange {
            defer_hard_irqs: Some(100),
            gro_flush_timeout_ns: Some(50_000),
            irq_suspend_timeout_ns: Some(20_000_000),
            threaded: Some(Threaded::On),
        };
        match netdev.set_napi(host.ifindex(), before.id, change) {
            Err(Error::Unsupported { since: "6.13", .. }) => {
                return busypoll_lab::needs::skipped(module_path!(), "Linux 6.13");
            }
            other => other.unwrap(),
        }
        let now = netdev.napi(before.id).unwrap();
        assert_eq!(now.defer_hard_irqs, Some(100));
        assert_eq!(now.gro_flush_timeout_ns, Some(50_000));
        assert_eq!(now.irq_suspend_timeout_ns, Some(20_000_000));
        if before.threaded.is_some() {
            assert_eq!(now.threaded, Some(Threaded::On));
            assert!(now.pid.is_some() && before.pid.is_none());
        }

        // Settings that are not named stay.
        let change = NapiChange { defer_hard_irqs: Some(7), ..Default::default() };
        netdev.set_napi(host.ifindex(), before.id, change).unwrap();
        let now = netdev.napi(before.id).unwrap();
        assert_eq!((now.defer_hard_irqs, now.gro_flush_timeout_ns), (Some(7), Some(50_000)));

        let wrong = netdev.set_napi(1, before.id, NapiChange::default()).unwrap_err();
        assert!(matches!(wrong, Error::OtherDevice { expected: 1, .. }), "{wrong}");
        let denied = without_capabilities(|| {
            Netdev::open().unwrap().set_napi(host.ifindex(), before.id, change).unwrap_err()
        });
        assert!(denied.to_string().contains("CAP_NET_ADMIN"), "{denied}");
        let none = NapiId::new(u32::MAX).unwrap();
        let gone = netdev.set_napi(host.ifindex(), none, change);
        assert!(matches!(gone, Err(Error::NoNapi { id: u32::MAX })));
    })
    .unwrap();
}

#[test]
fn ethtool_reads_and_changes_features_and_channels() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().queues(2).build().unwrap();
    let host = &lab.client;
    host.enter(|| {
        let veth = Ethtool::open(host.interface()).unwrap();
        assert_eq!(veth.driver().unwrap().name, "veth");
        let channels = veth.channels().unwrap();
        assert_eq!((channels.receiving(), channels.max_rx), (2, 2));

        assert!(veth.all_off(TSO).unwrap());
        veth.set_features(TSO, true).unwrap();
        assert!(veth.all_on(TSO).unwrap());
        veth.set_features(TSO, false).unwrap();
        assert!(veth.all_off(TSO).unwrap() && veth.all_on(GRO).unwrap());

        // A feature can be wanted but off: TSO needs scatter-gather.
        let scatter_gather = ["tx-scatter-gather", "tx-scatter-gather-fraglist"];
        veth.set_features(&scatter_gather, false).unwrap();
        let held = veth.set_features(TSO, true).unwrap_err();
        assert!(held.to_string().contains("while another feature forbids it"), "{held}");
        veth.set_features(&scatter_gather, true).unwrap();
        assert!(veth.all_off(TSO).unwrap(), "a refused request does not take effect later");
        veth.set_features(TSO, true).unwrap();
        veth.set_features(&scatter_gather, false).unwrap();
        assert!(veth.all_off(TSO).unwrap());
        veth.set_features(TSO, false).unwrap();
        veth.set_features(&scatter_gather, true).unwrap();
        assert!(veth.all_off(TSO).unwrap(), "no longer wanted, not only prevented");

        let denied = without_capabilities(|| veth.set_features(TSO, true)).unwrap_err();
        assert!(denied.to_string().contains("CAP_NET_ADMIN"), "{denied}");
        assert!(veth.all_off(TSO).unwrap());

        let features = veth.features().unwrap();
        let fixed = features.iter().find(|f| !f.changeable && !f.on).unwrap();
        let error = veth.set_features(&[&fixed.name], true).unwrap_err();
        assert!(matches!(error, Error::DeviceLacks { .. }), "{error}");
        assert!(matches!(veth.all_on(&["rx-nosuch"]), Err(Error::DeviceLacks { .. })));

        // veth has no interrupts to coalesce.
        assert!(matches!(veth.coalesce(), Err(Error::DeviceLacks { .. })));
        let change = CoalesceChange { rx_usecs: Some(0), ..Default::default() };
        assert!(matches!(veth.set_coalesce(change), Err(Error::DeviceLacks { .. })));
        let lacks = Ethtool::open("lo").err().unwrap().to_string();
        assert_eq!(lacks, "lo does not support this: reading its driver");
        for name in ["nosuch0", "", "a-name-much-too-long", concat!("lo", "\0", "x")] {
            assert!(matches!(Ethtool::open(name), Err(Error::NoDevice { .. })), "{name:?}");
        }
    })
    .unwrap();
}

/// TAP is the only software device with coalescing, by frames only: it hands up packets in batches.
#[test]
fn coalescing_changes_only_what_was_named() {
    busypoll_lab::needs_root!();
    let namespace = Lab::single().unwrap();
    namespace
        .enter(|| {
            let tap = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
            // SAFETY: `ifreq` is plain data, for which all zeroes is a valid value; its name stays
            // zero-terminated, and TUNSETIFF only reads it and writes the name back.
            let created = unsafe {
                let mut ifr: libc::ifreq = std::mem::zeroed();
                for (to, from) in ifr.ifr_name.iter_mut().zip(b"tap0") {
                    *to = *from as libc::c_char;
                }
                ifr.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
                libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut ifr)
            };
            assert_eq!(created, 0, "{}", std::io::Error::last_os_error());
            let device = Ethtool::open("tap0").unwrap();
            assert_eq!(device.driver().unwrap().name, "tun");
            let before = device.coalesce().unwrap();
            let frames = CoalesceChange { rx_frames: Some(8), ..Default::default() };
            device.set_coalesce(frames).unwrap();
            assert_eq!(device.coalesce().unwrap(), Coalesce { rx_frames: 8, ..before });
            let denied = without_capabilities(|| device.set_coalesce(frames)).unwrap_err();
            assert!(denied.is_denied(), "{denied}");
            let usecs = CoalesceChange { rx_usecs: Some(10), ..Default::default() };
            assert!(matches!(device.set_coalesce(usecs), Err(Error::DeviceLacks { .. })));
            assert_eq!(device.coalesce().unwrap().rx_frames, 8);
        })
        .unwrap();
}

#[test]
fn a_handle_keeps_the_namespace_it_was_opened_in() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    let host = &lab.server;
    let (mut netdev, mut links, veth) = host
        .enter(|| {
            let veth = Ethtool::open(host.interface()).unwrap();
            (Netdev::open().unwrap(), Links::open().unwrap(), veth)
        })
        .unwrap();
    assert_eq!(netdev.napis(host.ifindex()).unwrap().len(), 1);
    assert_eq!(links.all().unwrap().len(), 2);
    assert_eq!(veth.driver().unwrap().name, "veth");
}

#[test]
fn host_wide_settings_are_not_visible_in_another_namespace() {
    busypoll_lab::needs_root!();
    let namespace = Lab::single().unwrap();
    namespace
        .enter(|| {
            for sysctl in [Sysctl::BusyRead, Sysctl::BusyPoll] {
                let error = sysctl.get().unwrap_err();
                assert!(matches!(error, Error::NotInitialNetns { .. }), "{error}");
                assert!(matches!(sysctl.set(50), Err(Error::NotInitialNetns { .. })));
            }
            assert_eq!(
                stat::busy_poll_rx_packets().unwrap(),
                0,
                "a new namespace counts from zero"
            );
        })
        .unwrap();
}

/// The whole kernel plane: GRO gives NAPI ids, the socket learns one, `SO_BUSY_POLL` polls it, and
/// the counter of the receiver's namespace proves it.
#[test]
fn busy_polling_shows_in_the_receivers_counter() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    let open = |host: &busypoll_lab::LabHost| {
        let socket = host.enter(|| UdpSocket::bind((host.ipv4(), 7777))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    };
    let (client, server) = (open(&lab.client), open(&lab.server));
    client.connect((lab.server.ipv4(), 7777)).unwrap();
    server.connect((lab.client.ipv4(), 7777)).unwrap();
    sockopt::set_busy_poll(&server, 1000).unwrap();

    assert_eq!(sockopt::incoming_napi_id(&server).unwrap(), None, "no packet yet");
    client.send(b"x").unwrap();
    server.recv(&mut [0; 8]).unwrap();
    let id = sockopt::incoming_napi_id(&server).unwrap().expect("GRO on, TSO off: an id");
    let napi = lab.server.enter(|| Netdev::open().unwrap().napi(id).unwrap()).unwrap();
    assert_eq!(napi.ifindex, lab.server.ifindex());

    let count = || lab.server.enter(|| stat::busy_poll_rx_packets().unwrap()).unwrap();
    let before = count();
    let receiver = lab
        .server
        .spawn_thread(lab.server.cpu(), move || {
            // Ends when polling has found a packet, or gives up after many rounds.
            for _ in 0..200_000 {
                server.recv(&mut [0; 8]).unwrap();
                if stat::busy_poll_rx_packets().unwrap() > before {
                    return;
                }
                server.send(b"y").unwrap();
            }
        })
        .unwrap();
    // The sender has a CPU of its own: if it had to stop for the receiver to run, there would be nothing to poll for.
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let sender = lab
        .client
        .spawn_thread(lab.client.cpu(), move || {
            while !seen.load(Relaxed) {
                client.send(b"x").unwrap();
                let _ = client.recv(&mut [0; 8]);
            }
        })
        .unwrap();
    receiver.join().unwrap();
    over.store(true, Relaxed);
    sender.join().unwrap();
    assert!(count() > before, "busy polling found no packet");
}

#[test]
fn written_attributes_and_wanted_features_read_back() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().queues(2).build().unwrap();
    let host = &lab.server;
    let outside = netns::cookie().unwrap();
    host.enter(|| {
        assert_ne!(netns::cookie().unwrap(), outside);
        let (device, sysfs) = (host.interface(), Sysfs::open().unwrap());
        for (name, value) in [("gro_flush_timeout", "20000"), ("queues/rx-1/rps_flow_cnt", "64")] {
            let before = sysfs.attribute(device, name).unwrap();
            assert_ne!(before, value);
            sysfs.set_attribute(device, name, value).unwrap();
            assert_eq!(sysfs.attribute(device, name).unwrap(), value);
        }
        assert_eq!((sysfs.tx_queues(device), irq::of_device(&sysfs, device)), (vec![0, 1], vec![]));
        let error = sysfs.set_attribute(device, "nosuch", "1").unwrap_err();
        assert!(matches!(error, Error::DeviceLacks { .. }), "{error}");
        let error = without_capabilities(|| sysfs.set_attribute(device, "threaded", "1"));
        assert!(error.unwrap_err().to_string().contains("CAP_NET_ADMIN"));

        let veth = Ethtool::open(device).unwrap();
        // TSO needs scatter-gather: the request is kept and takes effect with it.
        let gather = "tx-scatter-gather";
        assert!(!veth.set_wanted(gather, false).unwrap().on);
        let tso = veth.set_wanted(TSO[0], true).unwrap();
        assert!(tso.wanted && !tso.on);
        assert!(veth.set_wanted(gather, true).unwrap().on);
        assert!(veth.all_on(&TSO[..1]).unwrap());
        let error = veth.set_wanted("netns-local", true).unwrap_err().to_string();
        assert!(error.contains("netns-local"), "{error}");
        assert_eq!(veth.permanent_address().unwrap(), None);

        let one = ChannelChange { rx: Some(1), ..Default::default() };
        veth.set_channels(one).unwrap();
        assert_eq!(veth.channels().unwrap().rx, 1);
        assert!(veth.rings().is_err());
    })
    .unwrap();
}

#[test]
fn an_interrupt_has_names_and_cpus() {
    // The machine's interrupts: read only.
    for irq in stat::interrupts().unwrap().rows.iter().filter_map(|r| r.name.parse().ok()) {
        let cpus = irq::affinity(irq).unwrap();
        assert!(cpus.iter().count() > 0, "interrupt {irq}");
        irq::effective_affinity(irq).unwrap();
    }
    let error = irq::affinity(4_000_000).unwrap_err().to_string();
    assert!(error.contains("/proc/irq/4000000"), "{error}");
}
