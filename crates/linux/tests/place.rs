//! Lookups: the other end of a veth pair, the devices' attributes, the route to an address.

mod common;

use std::net::IpAddr;
use std::path::Path;

use busypoll_lab::{Lab, Namespace};
use busypoll_linux::link::Links;
use busypoll_linux::route::{RouteKind, route_to};
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::{Error, netns};
use common::without_capabilities;

#[test]
fn the_other_end_of_a_veth_pair_is_found_in_its_namespace() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    let (number, there) = lab
        .client
        .enter(|| {
            let lower = Links::open().unwrap().get(lab.client.interface()).unwrap().lower.unwrap();
            assert_eq!(lower.ifindex, lab.server.ifindex());
            (lower.netns.unwrap(), netns::find(lower.netns.unwrap()).unwrap())
        })
        .unwrap();
    let peer = Namespace::open(Path::new(&there)).unwrap();
    let found = peer.enter(|| Links::open().unwrap().get(lab.server.interface())).unwrap().unwrap();
    assert_eq!(found.mac, Some(lab.server.mac()));
    // Numbers are valid in one namespace only, and -1 is none.
    assert_eq!(lab.client.enter(|| netns::find(number + 1000)).unwrap(), None);
    assert_eq!(netns::find(-1), None);
}

#[test]
fn sysfs_shows_this_namespace_whatever_is_mounted() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().queues(2).build().unwrap();
    let device = lab.server.interface();
    lab.server
        .enter(|| {
            let sysfs = Sysfs::open().unwrap();
            assert!(!sysfs.is_mounted());
            let index = sysfs.attribute(device, "ifindex");
            assert_eq!(index, Some(lab.server.ifindex().to_string()));
            assert_eq!(sysfs.rx_queues(device), [0, 1]);
            assert_eq!(sysfs.attribute(device, "nosuch"), None);
            let error = without_capabilities(Sysfs::open).unwrap_err();
            assert!(error.to_string().contains("another network namespace"), "{error}");
        })
        .unwrap();
    assert!(Sysfs::open().unwrap().is_mounted());
}

#[test]
fn routes_distinguish_other_hosts_from_local_addresses() {
    busypoll_lab::needs_root!();
    let lab = Lab::builder().build().unwrap();
    lab.client
        .enter(|| {
            let route = route_to(lab.server.ipv4().into()).unwrap();
            assert_eq!((route.kind, route.ifindex), (RouteKind::Unicast, lab.client.ifindex()));
            assert_eq!((route.gateway, route.source), (None, Some(lab.client.ipv4().into())));
            let own = route_to(lab.client.ipv4().into()).unwrap();
            assert_eq!((own.kind, own.ifindex), (RouteKind::Local, 1));
            for nowhere in ["192.0.2.1", "2001:db8::1"] {
                let nowhere: IpAddr = nowhere.parse().unwrap();
                let error = route_to(nowhere).unwrap_err();
                assert!(matches!(error, Error::NoRoute { .. }), "{error}");
            }
        })
        .unwrap();
}
