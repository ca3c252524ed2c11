//! Firewall rules that a host's packets skip are counted and reported before the first packet skips them.

use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_stack::{Host, nic::xdp::Xdp};
use std::{
    env,
    fs::{self, File},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
};

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
    said_by(on.command(env::current_exe().unwrap()), on)
}

fn said_by(mut command: Command, on: &LabHost) -> Vec<String> {
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

fn bpf(command: libc::c_int, attributes: &mut [u64]) -> io::Result<i32> {
    let (at, len) = (attributes.as_mut_ptr(), size_of_val(attributes));
    // SAFETY: attributes of that length; pointers in them are the caller's, and valid.
    match unsafe { libc::syscall(libc::SYS_bpf, command, at, len) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as i32),
    }
}

/// A program "test_egress" that lets all packets pass, attached to `group` until it is removed.
fn attach_program(group: &File) -> io::Result<()> {
    const PROG_LOAD: libc::c_int = 5;
    const PROG_ATTACH: libc::c_int = 8;
    const CGROUP_SKB: u64 = 8;
    const EGRESS: u64 = 1;
    // r0 = 1; exit.
    let code: [u64; 2] = [1 << 32 | 0xb7, 0x95];
    let mut name = [0; 16];
    name[..11].copy_from_slice(b"test_egress");
    let name = name.as_chunks::<8>().0.iter().map(|part| u64::from_ne_bytes(*part));
    let mut load =
        vec![CGROUP_SKB | 2 << 32, code.as_ptr() as u64, c"GPL".as_ptr() as u64, 0, 0, 0];
    load.extend(name);
    // SAFETY: a descriptor that was just made.
    let program = unsafe { OwnedFd::from_raw_fd(bpf(PROG_LOAD, &mut load)?) };
    let (group, program) = (group.as_raw_fd() as u64, program.as_raw_fd() as u64);
    bpf(PROG_ATTACH, &mut [group | program << 32, EGRESS]).map(drop)
}

/// A control group of this test's own, removed at its end.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let group =
            Path::new(mount.split(' ').nth(4)?).join(format!("test-{}", std::process::id()));
        fs::create_dir(&group).ok().map(|()| Group(group))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn programs_of_the_control_group_are_counted_too() {
    needs_root!();
    let Some(group) = Group::new() else {
        return needs::skipped(module_path!(), "control groups of version 2");
    };
    if let Err(error) = attach_program(&File::open(&group.0).unwrap()) {
        return needs::skipped(
            module_path!(),
            &format!("BPF programs of control groups ({error})"),
        );
    }
    let Lab { client: _client, server } = Lab::builder().build().unwrap();
    // The machine may have programs of its own.
    assert!(!said(&server).concat().contains("test_egress"));
    let mut command = server.command("sh");
    let enters = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.0.display());
    command.args(["-c", &enters]).arg(env::current_exe().unwrap());
    let said = said_by(command, &server);
    let [line] = &*said else { panic!("{said:?}") };
    assert!(line.contains("BPF programs of the control group:"), "{line}");
    assert!(line.contains("test_egress"), "{line}");
}
