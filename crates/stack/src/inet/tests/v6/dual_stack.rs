//! Sockets of one family and dual-stack sockets, and which of them may share a port.

use super::*;
use std::{
    net::UdpSocket,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

fn bind(a: &Station, local: &str, only_v6: bool) -> Result<(Binding, Arc<Mailbox>), Option<i32>> {
    let mailbox = Arc::new(Mailbox::default());
    let options = BindOptions { only_v6, ..BindOptions::default() };
    let bound = a.inet.udp_bind(local.parse().unwrap(), options, mailbox.clone());
    bound.map(|binding| (binding, mailbox)).map_err(|error| error.raw_os_error())
}

fn from_v4(a: &Station) {
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"four"));
}

fn from_v6(a: &Station) {
    a.receive(&to_a6(&udp6_packet("[fd00::2]:9", "[fd00::1]:7", b"six")));
}

#[test]
fn a_dual_stack_socket_receives_both_families_and_shows_ipv4_as_mapped() {
    let a = a();
    let (binding, mailbox) = bind(&a, "[::]:7", false).unwrap();
    let receive_both = || {
        from_v4(&a);
        from_v6(&a);
        mailbox.take()
    };
    let four = data("[::ffff:10.0.0.2]:9", "[::ffff:10.0.0.1]:7", b"four");
    let six = data("[fd00::2]:9", "[fd00::1]:7", b"six");
    assert_eq!(receive_both(), [four.clone(), six.clone()]);
    // Connected to a peer of one family it receives from that peer only.
    binding.connect("[::ffff:10.0.0.2]:9".parse().unwrap()).unwrap();
    assert_eq!(binding.local(), "[::ffff:10.0.0.1]:7".parse().unwrap());
    assert_eq!(receive_both(), std::slice::from_ref(&four));
    binding.connect("[fd00::2]:9".parse().unwrap()).unwrap();
    assert_eq!(binding.local(), "[fd00::1]:7".parse().unwrap());
    assert_eq!(receive_both(), std::slice::from_ref(&six));
    binding.disconnect();
    assert_eq!(receive_both(), [four, six]);
    drop(binding);
    assert!(receive_both().is_empty());
    assert_eq!((a.count(Count::UdpNoPorts), Arc::strong_count(&mailbox)), (4, 1));
    assert_eq!((a.inet.demux.kinds(), a.inet.demux6.kinds()), ([0; 3], [0; 3]));
}

#[test]
fn a_socket_of_one_family_receives_that_family_only() {
    let a = a();
    let (six, six_box) = bind(&a, "[::]:7", true).unwrap();
    let (four, four_box) = bind(&a, "0.0.0.0:7", false).unwrap();
    from_v4(&a);
    from_v6(&a);
    assert_eq!(four_box.take(), [data("10.0.0.2:9", "10.0.0.1:7", b"four")]);
    assert_eq!(six_box.take(), [data("[fd00::2]:9", "[fd00::1]:7", b"six")]);
    let refused = six.connect("[::ffff:10.0.0.2]:9".parse().unwrap()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENETUNREACH));
    let refused = four.connect("[fd00::2]:9".parse().unwrap()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EAFNOSUPPORT));
}

#[test]
fn a_socket_bound_to_a_mapped_address_receives_ipv4_only() {
    let a = a();
    let (_binding, mailbox) = bind(&a, "[::ffff:10.0.0.1]:7", false).unwrap();
    from_v6(&a);
    from_v4(&a);
    assert_eq!(mailbox.take(), [data("[::ffff:10.0.0.2]:9", "[::ffff:10.0.0.1]:7", b"four")]);
    assert_eq!(bind(&a, "10.0.0.1:7", false).err(), Some(Some(libc::EADDRINUSE)));
    assert_eq!(bind(&a, "[::ffff:10.0.0.1]:8", true).err(), Some(Some(libc::EINVAL)));
}

/// A bound kernel socket of this machine.
fn kernel(local: SocketAddr, only_v6: bool) -> std::io::Result<OwnedFd> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a plain system call; this code alone owns the descriptor.
    let socket = unsafe {
        OwnedFd::from_raw_fd(libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))
    };
    let on = libc::c_int::from(only_v6);
    let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    // SAFETY: `on` is valid for the call. An IPv4 socket refuses the option, which does not matter.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), 4) };
    crate::sys::bind(socket.as_raw_fd(), local).map(|()| socket)
}

/// Every pair of binds, in the kernel and in inet.
#[test]
fn ports_are_refused_as_linux_refuses_them() {
    let claims = [
        ("127.0.0.1", false),
        ("0.0.0.0", false),
        ("[::1]", false),
        ("[::]", true),
        ("[::]", false),
        ("[::ffff:127.0.0.1]", false),
    ];
    let port = UdpSocket::bind("[::]:0").unwrap().local_addr().unwrap().port();
    for (first, first_only) in claims {
        for (second, second_only) in claims {
            let at = |text: &str| format!("{text}:{port}").parse::<SocketAddr>().unwrap();
            let held = kernel(at(first), first_only).unwrap();
            let expected = kernel(at(second), second_only).err().and_then(|e| e.raw_os_error());
            drop(held);
            let a = a();
            let _held = bind(&a, &at(first).to_string(), first_only).unwrap();
            let ours = bind(&a, &at(second).to_string(), second_only).err().flatten();
            assert_eq!(ours, expected, "{first} {first_only}, then {second} {second_only}");
        }
    }
}

#[test]
fn a_link_local_group_is_shown_with_its_scope_id() {
    let a = a();
    let (_one, mailbox) = bind(&a, "[::]:7", false).unwrap();
    let to = MacAddr::of_group6(ipv6::ALL_NODES);
    let all = udp6_packet("[fd00::2]:9", "[ff02::1]:7", b"all");
    a.receive(&frame_of(to, MAC_B, EtherType::IPV6, &all));
    assert_eq!(mailbox.take(), [data("[fd00::2]:9", "[ff02::1%1]:7", b"all")]);
}
