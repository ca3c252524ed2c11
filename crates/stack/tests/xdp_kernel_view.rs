//! The view of the kernel's tables over netlink follows the changes made with `ip`.

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_stack::{inet::kernel::KernelView, wire::MacAddr};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const FAR6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 7);

fn lab() -> Lab {
    Lab::builder().build().unwrap()
}

fn view(host: &LabHost) -> Arc<KernelView> {
    host.enter(|| KernelView::open(host.ifindex())).unwrap().unwrap()
}

fn ip(host: &LabHost, arguments: &str) {
    let output = host.command("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The output of `ip` for a neighbour.
fn shown(host: &LabHost, address: IpAddr) -> String {
    let arguments = ["neigh", "show", &address.to_string(), "nud", "all"];
    let output = host.command("ip").args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Reads announcements until `done`, waiting only on the descriptor.
fn follow(view: &KernelView, what: &str, mut done: impl FnMut(&KernelView) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done(view) {
        assert!(Instant::now() < deadline, "waited for {what}");
        let mut poll = libc::pollfd { fd: view.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 1000) };
        view.process();
    }
}

/// The change must increase the generation: a path with the old answer must be looked up again.
fn followed(
    view: &KernelView,
    what: &str,
    change: impl FnOnce(),
    done: impl Fn(&KernelView) -> bool,
) {
    assert!(!done(view), "{what} before the change");
    let before = view.generation();
    change();
    follow(view, what, done);
    assert_ne!(view.generation(), before, "{what}");
}

#[test]
fn changes_of_addresses_reach_the_view() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let view = view(host);
    let name = host.interface();
    let own: Vec<_> = [Some((SERVER, 24)), host.ipv6().map(|six| (six.into(), 64))]
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(view.addresses(), own);
    let added = (IpAddr::from([10, 99, 0, 1]), 16);
    let has = |view: &KernelView| view.addresses().contains(&added);
    followed(&view, "add", || ip(host, &format!("addr add 10.99.0.1/16 brd + dev {name}")), has);
    assert_eq!(view.neighbour([10, 99, 255, 255].into()), Some(MacAddr([0xff; 6])));
    let gone = |view: &KernelView| !has(view);
    followed(&view, "del", || ip(host, &format!("addr del 10.99.0.1/16 dev {name}")), gone);
    // Addresses of other interfaces are not in the view.
    ip(host, "addr add 10.98.0.1/16 dev lo");
    view.process();
    assert_eq!(view.addresses(), own);
}

#[test]
fn routes_are_those_that_the_kernel_chooses() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let view = view(host);
    let name = host.interface();
    let far = IpAddr::from([192, 0, 2, 7]);
    let direct = view.route(CLIENT, None).unwrap();
    assert_eq!((direct.next_hop, direct.source, direct.mtu), (CLIENT, SERVER, Some(1500)));
    assert_eq!(view.route(far, None), None);
    assert_eq!(view.route(SERVER, None), None, "our own address is not on the link");
    assert_eq!(view.route(Ipv4Addr::LOCALHOST.into(), None), None);

    let gateway = |view: &KernelView| view.route(far, None).is_some_and(|h| h.next_hop == CLIENT);
    let add = || ip(host, &format!("route add 192.0.2.0/24 via {CLIENT} mtu 1280"));
    followed(&view, "a gateway", add, gateway);
    assert_eq!(view.route(far, None).unwrap().mtu, Some(1280));

    // Policy routing applies: the same destination through another table.
    ip(host, "route add default dev lo table 77");
    let elsewhere = |view: &KernelView| view.route(far, None).is_none();
    followed(&view, "a rule", || ip(host, "rule add to 192.0.2.7 table 77"), elsewhere);
    followed(&view, "no rule", || ip(host, "rule del to 192.0.2.7 table 77"), gateway);

    followed(&view, "unreachable", || ip(host, "route add unreachable 192.0.2.7"), elsewhere);
    followed(&view, "reachable", || ip(host, "route del unreachable 192.0.2.7"), gateway);

    let lower = |view: &KernelView| view.route(CLIENT, None).is_some_and(|h| h.mtu == Some(1400));
    followed(&view, "a lower MTU", || ip(host, &format!("link set {name} mtu 1400")), lower);
    // When a link goes down the kernel removes its routes without announcing each.
    let none = |view: &KernelView| view.route(far, None).is_none();
    followed(&view, "down", || ip(host, &format!("link set {name} down")), none);
}

#[test]
fn a_neighbour_is_resolved_updated_and_given_up() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let view = view(host);
    let name = host.interface();
    let client_mac = MacAddr(lab.client.mac());
    let knows = |view: &KernelView| view.neighbour(CLIENT) == Some(client_mac);
    followed(&view, "resolution", || view.resolve(CLIENT).unwrap(), knows);

    let moved = MacAddr([2, 0, 0, 0, 0, 9]);
    let replace = |rest: &str| ip(host, &format!("neigh replace {CLIENT} dev {name} {rest}"));
    let follows = |view: &KernelView| view.neighbour(CLIENT) == Some(moved);
    followed(&view, "a new address", || replace("lladdr 02:00:00:00:00:09 nud stale"), follows);
    // A change from stale to another usable state changes nothing for a sender.
    let before = view.generation();
    replace("lladdr 02:00:00:00:00:09 nud reachable");
    thread::sleep(Duration::from_millis(20));
    view.process();
    assert_eq!(view.generation(), before);
    // The host would go on sending to an address that may be wrong, without the kernel verifying it.
    let stale = |view: &KernelView| view.is_stale(CLIENT);
    view.resolve(CLIENT).unwrap();
    followed(&view, "doubt", || replace("lladdr 02:00:00:00:00:09 nud stale"), stale);
    // For a host that does not send there it does not matter.
    replace("lladdr 02:00:00:00:00:09 nud reachable");
    follow(&view, "no more doubt", |view| !stale(view));
    let before = view.generation();
    replace("lladdr 02:00:00:00:00:09 nud stale");
    follow(&view, "doubt again", stale);
    assert_eq!(view.generation(), before);
    let gone = |view: &KernelView| view.neighbour(CLIENT).is_none();
    followed(&view, "removal", || ip(host, &format!("neigh del {CLIENT} dev {name}")), gone);

    // No host has this address: the kernel gives up and announces it.
    let absent = IpAddr::from([10, 77, 0, 99]);
    let ask = || view.resolve(absent).unwrap();
    followed(&view, "giving up", ask, |view| view.is_unreachable(absent));
    assert_eq!(view.neighbour(absent), None);
}

#[test]
fn progress_confirms_a_neighbour_but_not_a_permanent_one() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let name = host.interface();
    let set = |nud: &str| {
        ip(host, &format!("neigh replace {CLIENT} dev {name} lladdr 02:00:00:00:00:09 nud {nud}"));
    };
    set("stale");
    let view = view(host);
    view.confirm(CLIENT);
    assert!(shown(host, CLIENT).contains("REACHABLE"), "{}", shown(host, CLIENT));
    // Within the same second it makes no system call and changes nothing.
    set("stale");
    view.process();
    view.confirm(CLIENT);
    assert!(shown(host, CLIENT).contains("STALE"), "{}", shown(host, CLIENT));
    thread::sleep(Duration::from_millis(1100));
    view.confirm(CLIENT);
    assert!(shown(host, CLIENT).contains("REACHABLE"), "{}", shown(host, CLIENT));
    set("permanent");
    view.process();
    thread::sleep(Duration::from_millis(1100));
    view.confirm(CLIENT);
    assert!(shown(host, CLIENT).contains("PERMANENT"), "{}", shown(host, CLIENT));
    view.confirm([10, 77, 0, 50].into()); // unknown: nothing happens
}

/// Entries of other programs in the kernel's table stay as they are, whatever we tell the kernel about a neighbour.
#[test]
fn neighbour_entries_of_others_are_not_overwritten() {
    needs_root!();
    needs!(program "ip");
    // At once, on a lab each: a neighbour is confirmed once a second.
    thread::scope(|scope| {
        for six in [false, true] {
            scope.spawn(move || keeps(six, "{at} nud permanent", &["PERMANENT"]));
            scope.spawn(move || keeps(six, "{at} nud noarp", &["NOARP"]));
            // The kernel confirms and verifies it as for its own senders.
            let learnt = ["extern_learn", "REACHABLE"];
            scope.spawn(move || keeps(six, "{at} nud stale extern_learn", &learnt));
            scope.spawn(move || keeps(six, "managed", &["managed"]));
        }
    });
}

/// The kernel's entry of this form, where `{at}` is its link-layer address, still says these words after we have had it
/// resolved and confirmed.
fn keeps(six: bool, entry: &str, said: &[&str]) {
    let lab = lab();
    let host = &lab.server;
    let name = host.interface();
    let peer = match six {
        false => CLIENT,
        true => match lab.client.ipv6() {
            Some(peer) => peer.into(),
            None => return,
        },
    };
    if six {
        // Without a link-local address the host would make the kernel resolve by a packet, not by a netlink message.
        ip(host, &format!("-6 addr add fe80::77/64 dev {name} nodad"));
    }
    let view = view(host);
    let entry = entry.replace("{at}", &format!("lladdr {}", MacAddr(lab.client.mac())));
    ip(host, &format!("neigh replace {peer} dev {name} {entry}"));
    view.process();
    view.resolve(peer).unwrap();
    thread::sleep(Duration::from_millis(1100));
    view.confirm(peer);
    let shown = shown(host, peer);
    assert!(said.iter().all(|word| shown.contains(word)), "{entry}: {shown}");
}

#[test]
fn leaving_a_bridge_does_not_delete_the_link() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let name = host.interface();
    ip(host, "link add bridge0 type bridge");
    ip(host, &format!("link set {name} master bridge0"));
    let view = view(host);
    let before = view.addresses();
    assert!(before.contains(&(SERVER, 24)));
    ip(host, &format!("link set {name} nomaster"));
    view.process();
    assert_eq!(view.addresses(), before);
    assert_eq!(view.route(CLIENT, None).unwrap().mtu, Some(1500));
}

#[test]
fn ipv4_rules_by_source_apply() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let view = view(host);
    let name = host.interface();
    ip(host, &format!("addr add 10.2.0.2/24 dev {name}"));
    ip(host, "route add default dev lo");
    ip(host, &format!("route add default via 10.2.0.1 dev {name} table 101"));
    let source = IpAddr::from([10, 2, 0, 2]);
    let far = IpAddr::from([192, 0, 2, 7]);
    let from =
        |view: &KernelView| view.route(far, Some(source)).map(|hop| (hop.next_hop, hop.source));
    let added = |view: &KernelView| from(view) == Some(([10, 2, 0, 1].into(), source));
    followed(&view, "a rule", || ip(host, "rule add from 10.2.0.2 table 101"), added);
    for other in [None, Some(SERVER)] {
        assert_eq!(view.route(far, other), None, "{other:?}");
    }
    assert_eq!(view.route(CLIENT, Some(CLIENT)), None, "no address of the host");
    // A given source is used, whatever source the kernel prefers.
    assert_eq!(view.route(CLIENT, None).unwrap().source, SERVER);
    assert_eq!(view.route(CLIENT, Some(source)).unwrap().source, source);
}

#[test]
fn ipv6_rules_by_source_apply() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let Some(client) = lab.client.ipv6() else {
        return needs::skipped(module_path!(), "IPv6");
    };
    let view = view(host);
    let name = host.interface();
    ip(host, &format!("-6 addr add fd98::2/64 dev {name} nodad"));
    ip(host, &format!("-6 route add default via {client} dev {name} table 101"));
    let source: IpAddr = "fd98::2".parse().unwrap();
    let added = |view: &KernelView| {
        view.route(FAR6.into(), Some(source)).map(|hop| (hop.next_hop, hop.source))
            == Some((client.into(), source))
    };
    followed(&view, "a rule", || ip(host, "-6 rule add from fd98::2 table 101"), added);
    assert_eq!(view.route(FAR6.into(), None), None);
}

#[test]
fn an_ipv6_address_counts_after_duplicate_detection() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    if host.ipv6().is_none() {
        return needs::skipped(module_path!(), "IPv6");
    }
    let view = view(host);
    let name = host.interface();
    let mine = view.addresses();
    let added = (IpAddr::from(FAR6), 64);
    let has = |view: &KernelView| view.addresses().contains(&added);
    let gone = |view: &KernelView| !has(view);
    let add = |rest: &str| ip(host, &format!("-6 addr add {FAR6}/64 dev {name} {rest}"));
    followed(&view, "add", || add("nodad"), has);
    let del = || ip(host, &format!("-6 addr del {FAR6}/64 dev {name}"));
    followed(&view, "del", del, gone);
    assert_eq!(view.addresses(), mine);
    // While the kernel looks for a duplicate, the address is not usable.
    let seconds = |of_search: &str| {
        let transmits = format!("/proc/sys/net/ipv6/conf/{name}/dad_transmits");
        host.enter(|| std::fs::write(transmits, of_search)).unwrap().unwrap();
    };
    seconds("1000");
    add("");
    view.process();
    assert!(gone(&view), "still tentative");
    del();
    seconds("1");
    followed(&view, "the end of the search", || add(""), has);
    // Another host has it: it stays unusable.
    followed(&view, "del", del, gone);
    let theirs = format!("-6 addr add {FAR6}/64 dev {} nodad", lab.client.interface());
    ip(&lab.client, &theirs);
    add("");
    let output = || host.command("ip").args(["-6", "addr", "show", "dadfailed"]).output().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while output().stdout.is_empty() {
        assert!(Instant::now() < deadline, "the duplicate was not found");
        thread::sleep(Duration::from_millis(20));
    }
    view.process();
    assert!(gone(&view), "a duplicate");
}

#[test]
fn ipv6_routes_are_those_that_the_kernel_chooses() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let (Some(server), Some(client)) = (host.ipv6(), lab.client.ipv6()) else {
        return needs::skipped(module_path!(), "IPv6");
    };
    let view = view(host);
    let name = host.interface();
    let far = IpAddr::from(FAR6);
    let direct = view.route(client.into(), None).unwrap();
    assert_eq!((direct.next_hop, direct.source), (client.into(), server.into()));
    assert_eq!(view.route(server.into(), None), None, "our own address is not on the link");
    assert_eq!(view.route(Ipv6Addr::LOCALHOST.into(), None), None);
    assert_eq!(view.route(far, None), None);

    let via = |view: &KernelView, next: Ipv6Addr| {
        view.route(far, None).is_some_and(|hop| hop.next_hop == IpAddr::from(next))
    };
    let add = || ip(host, &format!("-6 route add fd99::/64 via {client} mtu 1280"));
    followed(&view, "a gateway", add, |view| via(view, client));
    let hop = view.route(far, None).unwrap();
    assert_eq!((hop.source, hop.mtu), (server.into(), Some(1280)));
    // A gateway given by its link-local address.
    let link = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
    let replace = || ip(host, &format!("-6 route replace fd99::/64 via {link} dev {name}"));
    followed(&view, "another gateway", replace, |view| via(view, link));
    assert_eq!(view.route(far, None).unwrap().mtu, Some(1500));

    let none = |view: &KernelView| view.route(far, None).is_none();
    let gateway = |view: &KernelView| via(view, link);
    followed(&view, "unreachable", || ip(host, &format!("-6 route add unreachable {FAR6}")), none);
    followed(&view, "reachable", || ip(host, &format!("-6 route del unreachable {FAR6}")), gateway);
    ip(host, "-6 route add default dev lo table 77");
    followed(&view, "a rule", || ip(host, &format!("-6 rule add to {FAR6} table 77")), none);
    followed(&view, "no rule", || ip(host, &format!("-6 rule del to {FAR6} table 77")), gateway);
    followed(&view, "down", || ip(host, &format!("link set {name} down")), none);
}

#[test]
fn an_ipv6_neighbour_is_resolved_updated_confirmed_and_given_up() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let Some(client) = lab.client.ipv6() else {
        return needs::skipped(module_path!(), "IPv6");
    };
    let view = view(host);
    let name = host.interface();
    let (peer, mac) = (IpAddr::from(client), MacAddr(lab.client.mac()));
    let knows = |view: &KernelView| view.neighbour(peer) == Some(mac);
    followed(&view, "resolution", || view.resolve(peer).unwrap(), knows);

    let replace = |nud: &str| {
        ip(host, &format!("neigh replace {client} dev {name} lladdr 02:00:00:00:00:09 nud {nud}"));
    };
    let moved = |view: &KernelView| view.neighbour(peer) == Some(MacAddr([2, 0, 0, 0, 0, 9]));
    followed(&view, "a new address", || replace("stale"), moved);
    view.confirm(peer);
    assert!(shown(host, peer).contains("REACHABLE"), "{}", shown(host, peer));
    let gone = |view: &KernelView| view.neighbour(peer).is_none();
    followed(&view, "removal", || ip(host, &format!("neigh del {client} dev {name}")), gone);

    let [rest @ .., _] = client.segments();
    let [a, b, c, d, e, f, g] = rest;
    let absent = IpAddr::from(Ipv6Addr::new(a, b, c, d, e, f, g, 0x99));
    let ask = || view.resolve(absent).unwrap();
    followed(&view, "giving up", ask, |view| view.is_unreachable(absent));
    assert_eq!(view.neighbour(absent), None);
    // Groups need no resolution (RFC 2464 section 7).
    let group = IpAddr::from(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb));
    assert_eq!(view.neighbour(group), Some(MacAddr([0x33, 0x33, 0, 0, 0, 0xfb])));
}

#[test]
fn groups_need_no_neighbour() {
    needs_root!();
    let lab = lab();
    let view = view(&lab.server);
    assert_eq!(view.neighbour([224, 0, 0, 251].into()), Some(MacAddr([1, 0, 0x5e, 0, 0, 251])));
    assert_eq!(view.neighbour(Ipv4Addr::BROADCAST.into()), Some(MacAddr([0xff; 6])));
}

/// More announcements than the socket can hold: some are lost, but the view is correct.
#[test]
fn lost_announcements_are_read_again() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    let name = host.interface();
    let view = view(host);
    let script: String = (0..20_000)
        .map(|i| format!("route add 172.16.{}.{}/32 via {CLIENT}\n", i / 250, i % 250))
        .chain([format!("addr add 10.99.0.1/16 dev {name}\n")])
        .collect();
    let path = std::env::temp_dir().join(format!("busypoll-routes-{}", std::process::id()));
    std::fs::write(&path, script).unwrap();
    ip(host, &format!("-batch {}", path.display()));
    std::fs::remove_file(&path).unwrap();
    let (before, addresses) = (view.generation(), view.addresses().len());
    view.process();
    assert_ne!(view.generation(), before);
    assert_eq!(view.addresses().len(), addresses + 1);
    let hop = view.route([172, 16, 3, 3].into(), None).unwrap();
    assert_eq!(hop.next_hop, CLIENT);
}

#[test]
fn an_unknown_interface_is_an_error_and_a_vanished_one_is_empty() {
    needs_root!();
    needs!(program "ip");
    let lab = lab();
    let host = &lab.server;
    assert!(host.enter(|| KernelView::open(0x7fff_ffff).is_err()).unwrap());
    let view = view(host);
    let has_nothing = |view: &KernelView| view.addresses().is_empty();
    let delete = || ip(host, &format!("link del {}", host.interface()));
    followed(&view, "deletion", delete, has_nothing);
    assert_eq!(view.route(CLIENT, None), None);
    assert!(view.resolve(CLIENT).is_err());
}

/// Reading needs no privilege; only changes do.
#[test]
fn an_unprivileged_reader_sees_the_whole_view() {
    needs_root!();
    let lab = lab();
    let host = &lab.server;
    host.enter(|| {
        let header: [u32; 2] = [0x2008_0522, 0];
        let none = [0u32; 6];
        // SAFETY: the layouts of capset(2), version 3; it changes only this thread, which ends here.
        let dropped = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
        assert_eq!(dropped, 0);
        let view = KernelView::open(host.ifindex()).unwrap();
        assert!(view.route(CLIENT, None).is_some());
        let refused = view.resolve(CLIENT).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(UdpSocket::bind(("0.0.0.0", 0)).is_ok());
    })
    .unwrap();
}
