//! The virtual machine as a machine for faults.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

use busypoll_lab::vm::{CommandOutput, Machine, MachineBuilder};

use super::faults::TestMachine;
use super::{BUSYPOLL, wait_until, waiter};

/// A machine with the command, ethtool and the waiter; `intel0` (10.78.0.2) and `virtio0` (10.78.1.2) are up.
pub struct Vm {
    pub machine: Machine,
}

/// `$irqs`: the interrupts of the Intel NIC; `$irq`: that of its receive queue.
const IRQS: &str = "irqs=$(sed -n '/intel0/s/: .*//p' /proc/interrupts); \
    irq=$(sed -n '/intel0-rx-0/s/: .*//p' /proc/interrupts); irq=${irq##* };";

pub const PORT: u16 = 7300;

/// With the programs that every test in the machine needs.
pub fn builder() -> MachineBuilder {
    let waiter = std::env::current_exe().unwrap();
    Machine::builder()
        .program("busypoll", BUSYPOLL)
        .program("ethtool", in_path("ethtool"))
        .program("setpriv", in_path("setpriv"))
        .program("strace", in_path("strace"))
        .program("waiter", waiter)
}

fn in_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|p| p.exists()).unwrap()
}

impl Vm {
    pub fn boot() -> Self {
        Self::of(builder())
    }

    pub fn of(builder: MachineBuilder) -> Self {
        let vm = Vm { machine: builder.boot().unwrap() };
        vm.output_of(
            "ip address add 10.78.0.2/24 dev intel0; ip link set intel0 up; \
             ip address add 10.78.1.2/24 dev virtio0; ip link set virtio0 up; \
             until [ $(cat /sys/class/net/intel0/carrier) = 1 ]; do sleep 0.1; done",
        );
        vm
    }

    /// The output of a script, which must succeed.
    pub fn output_of(&self, script: &str) -> String {
        let ran = self.sh(script);
        assert_eq!(ran.status, 0, "{script}: {ran:?}");
        ran.stdout
    }
}

impl TestMachine for Vm {
    fn sh(&self, script: &str) -> CommandOutput {
        self.machine.run(&format!("{IRQS} {script}")).unwrap()
    }

    /// The whole machine belongs to the test.
    fn may_run(&self, _: &str) -> bool {
        true
    }

    fn start(&self, words: &str) -> u32 {
        let pid = self.output_of(&format!(
            "WAITER='{words} port={PORT}' waiter {} >/tmp/waiter 2>&1 & \
             echo $!; until grep -q ready /tmp/waiter; do sleep 0.1; done",
            waiter::ARGUMENTS
        ));
        pid.trim().parse().unwrap()
    }

    fn exchange_with_waiter(&self) {
        let outside = self.machine.outside();
        let socket = outside.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        exchange(&socket, "10.78.0.2");
    }

    fn raise_interrupt(&self) {
        self.sh("ping -c 1 -W 1 10.78.0.1");
    }

    fn stop(&self, pid: u32) {
        self.sh(&format!("kill -9 {pid}; while [ -d /proc/{pid} ]; do sleep 0.05; done"));
    }

    fn device(&self) -> &str {
        "intel0"
    }
}

/// Exchanges a few datagrams; a lost datagram is sent again.
pub fn exchange(socket: &UdpSocket, address: &str) {
    exchange_at(socket, (address, PORT));
}

/// As [`exchange`], at another port.
pub fn exchange_at(socket: &UdpSocket, to: (&str, u16)) {
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    for _ in 0..5 {
        wait_until("the waiter answers", || {
            socket.send_to(b"hello", to).unwrap();
            socket.recv(&mut [0; 64]).is_ok()
        });
    }
}
