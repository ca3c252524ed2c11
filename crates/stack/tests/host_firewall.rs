//! Firewall rules that a host's packets skip are counted and reported before the first packet skips them.

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_stack::{Host, nic::xdp::Xdp};
use std::env;

const BUILD_ON: &str = "BUSYPOLL_TEST_BUILD_ON";

fn build(interface: &str) -> Host {
    Host::builder().shared_interface(Xdp::open(interface).unwrap()).build().unwrap()
}

/// The number of skipped rules that a host built now finds.
fn skipped(on: &LabHost) -> usize {
    on.enter(|| build(on.interface()).skipped_firewall_rules()).unwrap()
}

fn nft(on: &LabHost, commands: &str) {
    let output = on.command("nft").arg(commands).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Adds a table with one chain.
fn table(on: &LabHost, name: &str, chain: &str) {
    nft(on, &format!("table {name} {{\nchain only {{\n{chain}\n}}\n}}\n"));
}

#[test]
fn rules_that_our_packets_skip_are_counted() {
    needs_root!();
    needs!(program "nft");
    let Lab { client: _client, server } = Lab::builder().build().unwrap();
    assert_eq!(skipped(&server), 0);
    let rule = "udp dport 9 drop";
    let input = "type filter hook input priority 0";
    // Our packets would not have met these.
    table(&server, "ip loose", rule);
    table(&server, "ip on", &format!("type filter hook forward priority 0; policy drop; {rule}"));
    table(&server, "arp other", "type filter hook input priority 0; accept");
    assert_eq!(skipped(&server), 0);
    table(&server, "ip guard", &format!("{input}; {rule}; {rule}"));
    assert_eq!(skipped(&server), 2);
    table(&server, "inet shut", &format!("{input}; policy drop;"));
    assert_eq!(skipped(&server), 3);
    // Rules that translate addresses on the way in count, too.
    table(
        &server,
        "ip6 six",
        "type nat hook prerouting priority -100; udp dport 9 redirect to :10",
    );
    assert_eq!(skipped(&server), 4);
    nft(&server, "delete table ip6 six");
    // More rules than fit into one netlink datagram.
    table(&server, "inet large", &format!("{input}{}", format!("; {rule}").repeat(2000)));
    assert_eq!(skipped(&server), 2003);
    nft(&server, "flush ruleset");
    assert_eq!(skipped(&server), 0);
}

/// Not a test itself: the body of another process, whose stderr is read.
#[test]
fn builder_process() {
    let Ok(interface) = env::var(BUILD_ON) else { return };
    drop(build(&interface));
    drop(build(&interface));
}

/// Our lines on stderr of a process that builds a host twice.
fn said(on: &LabHost) -> Vec<String> {
    let mut command = on.command(env::current_exe().unwrap());
    command.args(["--exact", "builder_process", "--nocapture"]).env(BUILD_ON, on.interface());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    stderr.lines().filter(|line| line.starts_with("busypoll: ")).map(str::to_owned).collect()
}

#[test]
fn skipped_rules_are_reported_once() {
    needs_root!();
    needs!(program "nft");
    let Lab { client: _client, server } = Lab::builder().build().unwrap();
    assert!(said(&server).is_empty());
    table(&server, "ip guard", "type filter hook input priority 0; accept; accept");
    let line = format!(
        "busypoll: {}: firewall rules are in force here (nftables: 2 rules); packets for accelerated \
         sockets skip them",
        server.interface()
    );
    assert_eq!(said(&server), [line]);
}

/// Makes the kernel load the table `filter` of legacy iptables in this namespace, as `iptables -L` does. False if it
/// cannot.
fn load_legacy_filter() -> bool {
    const IPT_SO_GET_INFO: i32 = 64;
    // struct ipt_getinfo: the name in 32 bytes, then the answer.
    let mut info = [0u8; 84];
    info[..6].copy_from_slice(b"filter");
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: no pointers; then a live buffer and its length; then a descriptor of our own.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW);
        let to = info.as_mut_ptr().cast();
        let result = libc::getsockopt(fd, libc::IPPROTO_IP, IPT_SO_GET_INFO, to, &mut len);
        libc::close(fd);
        result == 0
    }
}

#[test]
fn legacy_iptables_rules_are_counted_too() {
    needs_root!();
    let Lab { client: _client, server } = Lab::builder().build().unwrap();
    assert_eq!(skipped(&server), 0);
    if !server.enter(load_legacy_filter).unwrap() {
        return needs::skipped(module_path!(), "a kernel with legacy iptables");
    }
    assert_eq!(skipped(&server), 1);
    let said = said(&server);
    assert!(said.len() == 1 && said[0].contains("(legacy iptables: ip:filter)"), "{said:?}");
}
