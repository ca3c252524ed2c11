//! Multicast on the stack plane: an unmodified program joins groups with the kernel's socket options, and receives
//! their packets over our queues.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::collections::BTreeSet;
use std::io::BufRead;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

const PORT: u16 = 7400;

/// The program on the server of the lab.
fn program(lab: &Lab, run: &[&str]) -> Running {
    let server = &lab.server;
    let mut command: Command = match run {
        [] => server.command("python3"),
        _ => {
            let mut command = server.command(BUSYPOLL);
            command.args(run).args(["--dev", server.interface(), "--", "python3"]);
            command
        }
    };
    let (address, index) = (server.ipv4().to_string(), server.ifindex().to_string());
    command.arg(source("groups.py")).args([&address, &index, &PORT.to_string()]);
    Running::start(command.arg(lab.client.ipv4().to_string()))
}

/// Multicast packets that the server's kernel has received.
fn received_by_kernel(lab: &Lab) -> u64 {
    let table = succeeds(lab.server.command("cat").arg("/proc/net/netstat"));
    let mut rows = table.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let at = names.split(' ').position(|name| name == "InMcastPkts").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

struct Publisher<'a>(&'a Lab, UdpSocket, UdpSocket);

impl Publisher<'_> {
    fn new(lab: &Lab) -> Publisher<'_> {
        let bind = |at: &str| lab.client.enter(|| UdpSocket::bind(at)).unwrap().unwrap();
        Publisher(lab, bind(&format!("{}:0", lab.client.ipv4())), bind("[::]:0"))
    }

    fn publish(&self, group: &str, what: &str) {
        let (socket, to): (_, SocketAddr) = match group.parse().unwrap() {
            std::net::IpAddr::V4(group) => (&self.1, (group, PORT).into()),
            std::net::IpAddr::V6(group) => {
                (&self.2, SocketAddrV6::new(group, PORT, 0, self.0.client.ifindex()).into())
            }
        };
        socket.send_to(what.as_bytes(), to).unwrap();
    }

    /// Publishes, and expects exactly these members of `running` to print that they have received it.
    fn reaches(&self, running: &mut Running, group: &str, what: &str, members: &[&str]) {
        self.publish(group, what);
        let mut told = BTreeSet::new();
        for _ in members {
            let mut line = String::new();
            running.output.read_line(&mut line).unwrap();
            let (member, data) = line.trim_end().split_once(' ').unwrap();
            assert_eq!(data, what);
            told.insert(member.to_owned());
        }
        assert_eq!(told, members.iter().map(|&member| member.to_owned()).collect());
    }
}

/// The program receives the same on the kernel and on the stack plane; the packets that the kernel received.
fn receives_its_groups(run: &[&str]) -> u64 {
    let lab = Lab::builder().build().unwrap();
    let mut running = program(&lab, run);
    let publisher = Publisher::new(&lab);
    let before = received_by_kernel(&lab);
    for i in 0..20 {
        let what = |name: &str| format!("{name}{i}");
        publisher.reaches(&mut running, "239.7.0.1", &what("a"), &["by_address", "by_request"]);
        publisher.reaches(&mut running, "239.7.0.2", &what("b"), &["at_the_group"]);
        publisher.reaches(&mut running, "239.7.0.3", &what("c"), &["one_source"]);
        publisher.reaches(&mut running, "ff12::7", &what("d"), &["six"]);
    }
    running.send_line("leave");
    running.wait_for("done leave");
    publisher.reaches(&mut running, "239.7.0.1", "left", &["by_address"]);
    let taken = received_by_kernel(&lab) - before;
    running.end();
    taken
}

#[test]
fn an_unmodified_program_receives_its_groups_over_our_queues() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let by_kernel = receives_its_groups(&[]);
    assert!(by_kernel >= 61, "the counter counts: {by_kernel}");
    let with_us = receives_its_groups(&["run", "--plane", "stack"]);
    assert!(with_us <= 6, "{with_us} of 61 went through the kernel");
}

/// If another program joins the same group, both receive.
#[test]
fn a_group_that_another_program_joins_reaches_both() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut ours = program(&lab, &["run", "--plane", "stack"]);
    let publisher = Publisher::new(&lab);
    publisher.reaches(&mut ours, "239.7.0.2", "alone", &["at_the_group"]);
    let mut other = program(&lab, &[]);
    // The check for such programs runs once a second.
    wait_until("the group is the kernel's", || {
        let before = received_by_kernel(&lab);
        publisher.publish("239.7.0.2", "again");
        ours.wait_for("at_the_group again");
        received_by_kernel(&lab) > before
    });
    other.wait_for("at_the_group again");
    publisher.publish("239.7.0.2", "both");
    ours.wait_for("at_the_group both");
    other.wait_for("at_the_group both");
    other.end();
    wait_until("the group is ours", || {
        let before = received_by_kernel(&lab);
        publisher.publish("239.7.0.2", "again");
        ours.wait_for("at_the_group again");
        received_by_kernel(&lab) == before
    });
    ours.end();
}
