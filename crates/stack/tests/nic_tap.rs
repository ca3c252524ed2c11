//! The TAP driver against the kernel, in network namespaces of its own.

use busypoll_stack::{
    nic::{Frame, Nic, Queue, TxQueue, tap::Tap},
    wire::{EtherType, MacAddr, Protocol, arp, ethernet, ipv4, udp},
};
use std::{
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    os::fd::{AsRawFd, BorrowedFd},
    process::Command,
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Runs a test in its own thread and network namespace, which end with it.
fn in_a_namespace(test: impl FnOnce() + Send) {
    busypoll_lab::Namespace::new().unwrap().enter(test).unwrap();
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Whether `fd` is readable within `millis`.
fn readable(fd: BorrowedFd<'_>, millis: i32) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, on the stack.
    unsafe { libc::poll(&mut poll, 1, millis) == 1 }
}

/// Receives until `wanted` accepts a frame, waiting for interrupts in between.
fn receive<T>(queue: &mut Queue, wanted: impl Fn(&[u8]) -> Option<T>) -> T {
    loop {
        let mut found = None;
        let mut sink = |frame: Frame<'_>| found = found.take().or_else(|| wanted(frame.bytes));
        if queue.rx.poll(8, &mut sink) == 0 && queue.interrupt.unmask() {
            assert!(readable(queue.interrupt.fd(), 5_000), "no frame came");
        }
        if let Some(found) = found {
            return found;
        }
    }
}

fn arp_request(bytes: &[u8]) -> Option<(MacAddr, Ipv4Addr)> {
    let frame = ethernet::Frame::new_checked(bytes).ok()?;
    let arp = arp::Packet::new_checked(frame.payload()).ok()?;
    (frame.ethertype() == EtherType::ARP && arp.operation() == arp::Operation::REQUEST)
        .then(|| (arp.sender_mac(), arp.target_ip()))
}

fn datagram_to(port: u16) -> impl Fn(&[u8]) -> Option<Vec<u8>> {
    move |bytes| {
        let frame = ethernet::Frame::new_checked(bytes).ok()?;
        let ip = ipv4::Packet::new_checked(frame.payload()).ok()?;
        let udp = udp::Packet::new_checked(ip.payload()).ok()?;
        let ours = ip.protocol() == Protocol::UDP && udp.dst_port() == port;
        ours.then(|| {
            assert!(udp.has_checksum(), "the kernel completes checksums");
            udp.verify_checksum(ip.address_sum()).unwrap();
            udp.payload().to_vec()
        })
    }
}

fn push(tx: &mut dyn TxQueue, bytes: &[u8]) {
    tx.push(bytes.len(), false, &mut |frame| frame.copy_from_slice(bytes)).unwrap();
}

fn arp_reply(from: MacAddr, to: MacAddr) -> Vec<u8> {
    let mut buf = vec![0; ethernet::HEADER_LEN + arp::LEN];
    let mut frame = ethernet::Frame::init(&mut buf[..], to, from, EtherType::ARP).unwrap();
    let reply = arp::Operation::REPLY;
    arp::Packet::init(frame.payload_mut(), reply, (from, OURS), (to, KERNEL)).unwrap();
    buf
}

fn datagram(from: MacAddr, to: MacAddr, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
    let mut buf = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN + data.len()];
    let mut frame = ethernet::Frame::init(&mut buf[..], to, from, EtherType::IPV4).unwrap();
    let len = udp::HEADER_LEN + data.len();
    let mut ip = ipv4::Packet::init(frame.payload_mut(), OURS, KERNEL, Protocol::UDP, len).unwrap();
    ip.fill_checksum();
    let mut udp = udp::Packet::init(ip.payload_mut(), ports.0, ports.1, data.len()).unwrap();
    udp.payload_mut().copy_from_slice(data);
    udp.fill_checksum(ipv4::address_sum(OURS, KERNEL));
    buf
}

fn kernel_socket() -> UdpSocket {
    let socket = UdpSocket::bind((KERNEL, 7)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

#[test]
fn the_kernels_arp_is_answered_and_datagrams_pass_in_both_directions() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        let mut tap = Tap::builder("tap0").kernel_address("10.0.0.1/24").open().unwrap();
        assert_eq!(tap.info().mtu, 1500);
        let ours = tap.info().mac;
        let mut queue = tap.open(0).unwrap();

        let socket = kernel_socket();
        socket.send_to(b"first", (OURS, 9)).unwrap();
        let (kernel, target) = receive(&mut queue, arp_request);
        assert_eq!(target, OURS);
        assert_ne!(kernel, ours);

        push(&mut *queue.tx, &arp_reply(ours, kernel));
        queue.tx.flush();
        assert_eq!(receive(&mut queue, datagram_to(9)), b"first");

        push(&mut *queue.tx, &datagram(ours, kernel, (9, 7), b"and"));
        push(&mut *queue.tx, &datagram(ours, kernel, (9, 7), b"back"));
        queue.tx.flush();
        let mut buf = [0; 16];
        for expected in [&b"and"[..], b"back"] {
            let (len, from) = socket.recv_from(&mut buf).unwrap();
            assert_eq!((&buf[..len], from), (expected, (OURS, 9).into()));
        }
        assert_eq!(tap.counters().tx_dropped.load(Relaxed), 0);
    });
}

#[test]
fn the_largest_frame_fits_and_a_larger_one_is_counted() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        let mut tap = Tap::builder("tap%d").kernel_address("10.0.0.1/24").mtu(2000).open().unwrap();
        assert_eq!((tap.info().mtu, &tap.info().name[..]), (2000, "tap0"));
        let mut queue = tap.open(0).unwrap();
        let hex: Vec<String> = tap.info().mac.0.iter().map(|byte| format!("{byte:02x}")).collect();
        ip(&format!("neigh replace 10.0.0.2 lladdr {} dev tap0", hex.join(":")));

        let socket = kernel_socket();
        let most = [7; 2000 - ipv4::HEADER_LEN - udp::HEADER_LEN];
        socket.send_to(&most, (OURS, 9)).unwrap();
        assert_eq!(receive(&mut queue, datagram_to(9)), most);

        ip("link set tap0 mtu 3000");
        socket.send_to(&[7; 2500], (OURS, 9)).unwrap();
        socket.send_to(b"next", (OURS, 9)).unwrap();
        assert_eq!(receive(&mut queue, datagram_to(9)), b"next");
        assert_eq!(tap.counters().rx_oversized.load(Relaxed), 1);
    });
}

#[test]
fn a_kernel_end_that_is_down_drops_and_counts() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        let mut tap = Tap::open("tap0").unwrap();
        let mut queue = tap.open(0).unwrap();
        let frame = arp_reply(tap.info().mac, MacAddr::BROADCAST);
        push(&mut *queue.tx, &frame);
        queue.tx.flush();
        assert_eq!(tap.counters().tx_dropped.load(Relaxed), 1);

        ip("link set tap0 up");
        push(&mut *queue.tx, &frame);
        queue.tx.flush();
        assert_eq!(tap.counters().tx_dropped.load(Relaxed), 1);
    });
}

#[test]
fn a_full_ring_is_reported_until_it_is_flushed() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        let mut tap = Tap::builder("tap0").up().open().unwrap();
        let frame = arp_reply(tap.info().mac, MacAddr::BROADCAST);
        let mut tx = tap.open(0).unwrap().tx;
        let mut fill = |to: &mut [u8]| to.copy_from_slice(&frame);
        let pushed = (0..10_000).take_while(|_| tx.push(frame.len(), false, &mut fill).is_ok());
        let pushed = pushed.count();
        assert!((1..10_000).contains(&pushed), "{pushed} frames fitted");
        tx.flush();
        assert!(tx.push(frame.len(), false, &mut fill).is_ok());
    });
}

#[test]
fn a_deleted_device_ends_the_wait_and_stops_waking() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        ip("tuntap add dev tap0 mode tap");
        let mut tap = Tap::builder("tap0").up().open().unwrap();
        let mut queue = tap.open(0).unwrap();
        ip("link del tap0");
        assert!(readable(queue.interrupt.fd(), 5_000), "the end of the device wakes the poller");
        queue.rx.poll(64, &mut |_| ());
        assert!(!readable(queue.interrupt.fd(), 0), "and then no more");

        let frame = arp_reply(tap.info().mac, MacAddr::BROADCAST);
        push(&mut *queue.tx, &frame);
        queue.tx.flush();
        assert_eq!(tap.counters().tx_dropped.load(Relaxed), 1);
        drop(queue);
        let line = tap.open(0).err().unwrap().to_string();
        assert!(line.contains("`tap0` was deleted"), "{line}");
    });
}

#[test]
fn only_open_queues_get_frames() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        let mut tap = Tap::builder("tap0").queues(3).kernel_address("10.0.0.1/24").open().unwrap();
        assert_eq!(tap.info().queues, 3);
        // Flows are spread over the open queues; with one open queue, all frames come there.
        for index in [2, 0, 1] {
            let mut queue = tap.open(index).unwrap();
            let socket = kernel_socket();
            for port in 100..110 {
                // A new neighbour each time, so that each makes an ARP request.
                let neighbour = Ipv4Addr::new(10, 0, 0, port + index as u8 * 10);
                socket.send_to(b"x", (neighbour, 9)).unwrap();
                let asks = |bytes: &[u8]| arp_request(bytes).filter(|(_, ip)| *ip == neighbour);
                receive(&mut queue, asks);
            }
            assert_eq!(tap.open(index).err().unwrap().kind(), ErrorKind::ResourceBusy);
        }
        assert_eq!(tap.open(3).err().unwrap().kind(), ErrorKind::NotFound);
        drop(tap);
    });
}

fn refusal(result: std::io::Result<Tap>) -> String {
    let line = result.expect_err("it is refused").to_string();
    assert!(!line.contains('\n'));
    line
}

#[test]
fn refusals_name_the_cause_and_the_remedy() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        let _tap = Tap::open("tap0").unwrap();
        let line = refusal(Tap::open("tap0"));
        let busy = format!("`tap0` is in use by process {}: ", std::process::id());
        assert!(line.contains(&busy) && line.contains("another name"), "{line}");

        let line = refusal(Tap::open("lo"));
        assert!(line.contains("`lo` exists and is no TAP device"), "{line}");
        let line = refusal(Tap::open("sixteen-letters!"));
        assert!(line.contains("1 to 15 characters"), "{line}");
        let line = refusal(Tap::open("a/b"));
        assert!(line.contains("no name for an interface"), "{line}");
        let line = refusal(Tap::builder("tap1").mtu(9).open());
        assert!(line.contains("68 to 65521"), "{line}");
        let line = refusal(Tap::builder("tap1").kernel_address("10.0.0.1").open());
        assert!(line.contains("10.0.0.1/24"), "{line}");
        let line = refusal(Tap::builder("tap1").queues(257).open());
        assert!(line.contains("1 to 256"), "{line}");
        let line = refusal(Tap::builder("tap1").mac(MacAddr::BROADCAST).open());
        assert!(line.contains("unicast"), "{line}");
    });
}

#[test]
fn without_the_capability_the_error_names_it_and_a_device_made_for_the_user_opens() {
    busypoll_lab::needs_root!();
    in_a_namespace(|| {
        ip("tuntap add dev mine mode tap user 65534");
        // SAFETY: a raw setresuid changes only the calling thread, unlike libc's.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        match Tap::open("tap0") {
            Err(error) if error.to_string().contains("/dev/net/tun") => {
                let needs = "a /dev/net/tun that others than root may open";
                return busypoll_lab::needs::skipped(module_path!(), needs);
            }
            refused => {
                let line = refusal(refused);
                assert!(line.contains("CAP_NET_ADMIN") && line.contains("tuntap add"), "{line}");
            }
        }
        Tap::open("mine").unwrap();
        let line = refusal(Tap::builder("mine").up().open());
        assert!(line.contains("CAP_NET_ADMIN"), "{line}");
    });
}
