//! Faults of configuration on a veth pair under the machine's own kernel: each is found by its code and cured by the
//! command that the doctor prints. Faults without a cure are reported without a command.

mod support;

use busypoll_lab::{Lab, needs, needs_root};
use support::faults::{FAULT, Fault, find_and_cure_all, has_no_cure};
use support::lab_machine::LabMachine;

four_tests_at_a_time!();

waiter_test!();

/// Settings of the device, at either end.
const DEVICE: &[Fault] = &[
    Fault {
        name: "GRO off at the receiving end of a veth",
        code: "BP-VETH-GRO-OFF",
        make: "ethtool -K $DEV gro off",
        ..FAULT
    },
    Fault {
        name: "GRO off at the other end of a veth, in another namespace",
        code: "BP-VETH-GRO-OFF",
        make: "nsenter --net=$PEER ethtool -K $PEER_DEV gro off",
        ..FAULT
    },
    Fault {
        name: "TSO left on where a veth sends",
        code: "BP-VETH-TSO-ON",
        make: "ethtool -K $DEV tso on",
        ..FAULT
    },
    Fault {
        name: "TSO left on at the other end of a veth, in another namespace",
        code: "BP-VETH-TSO-ON",
        make: "nsenter --net=$PEER ethtool -K $PEER_DEV tso on",
        ..FAULT
    },
    Fault {
        name: "TSO left on for IPv6 alone",
        code: "BP-VETH-TSO-ON",
        make: "ethtool -K $DEV tx-tcp6-segmentation on",
        ..FAULT
    },
    Fault {
        name: "RPS on one queue of two",
        code: "BP-RPS",
        make: "echo 2 > /sys/class/net/$DEV/queues/rx-1/rps_cpus",
        contains_all: &["rx-1"],
        ..FAULT
    },
    Fault {
        name: "RPS on every queue",
        code: "BP-RPS",
        make: "for queue in /sys/class/net/$DEV/queues/rx-*; do echo 3 > $queue/rps_cpus; done",
        contains_all: &["rx-0", "rx-1"],
        ..FAULT
    },
    Fault {
        name: "gro_flush_timeout for the device, and no process polls",
        code: "BP-GRO-FLUSH-NO-POLLER",
        make: "echo 2000000 > /sys/class/net/$DEV/gro_flush_timeout",
        ..FAULT
    },
    Fault {
        name: "gro-flush-timeout for its NAPI instances, and no process polls",
        code: "BP-GRO-FLUSH-NO-POLLER",
        make: "WAITER=\"napi device=$DEV flush=200000\" $WAITER_PROGRAM --exact waiter",
        ..FAULT
    },
    Fault {
        name: "napi_defer_hard_irqs without a timer",
        code: "BP-DEFER-WITHOUT-FLUSH",
        make: "echo 100 > /sys/class/net/$DEV/napi_defer_hard_irqs",
        ..FAULT
    },
    Fault {
        name: "irq-suspend-timeout without its companions",
        code: "BP-SUSPEND-WITHOUT-FLUSH",
        make: "WAITER=\"napi device=$DEV suspend=20000000 defer=0 flush=0\" $WAITER_PROGRAM --exact waiter",
        ..FAULT
    },
    Fault {
        name: "the device is down",
        code: "BP-DEVICE-DOWN",
        make: "ip link set $DEV down",
        ..FAULT
    },
];

/// How programs wait.
const PROGRAMS: &[Fault] = &[
    Fault {
        name: "a program that waits in recv without SO_BUSY_POLL",
        code: "BP-SOCK-OFF",
        waiter: "recv",
        arguments: "--pid $PID",
        ..FAULT
    },
    Fault {
        name: "a connected socket that waits in recv without SO_BUSY_POLL",
        code: "BP-SOCK-OFF",
        waiter: "recv connect=10.77.0.1:7301",
        arguments: "--pid $PID",
        ..FAULT
    },
    Fault {
        name: "SO_BUSY_POLL on a program that waits in epoll",
        code: "BP-SOCK-IN-EPOLL",
        waiter: "epoll so=50",
        arguments: "--pid $PID",
        ..FAULT
    },
    Fault {
        name: "a program that waits in epoll without parameters",
        code: "BP-EPOLL-OFF",
        waiter: "epoll",
        arguments: "--pid $PID",
        ..FAULT
    },
    Fault {
        name: "SO_PREFER_BUSY_POLL where interrupts are not deferred",
        code: "BP-PREFER-NO-DEFER",
        waiter: "recv so=50 prefer",
        arguments: "--pid $PID",
        tidy: "busypoll tune rollback >/dev/null",
        ..FAULT
    },
    Fault {
        name: "an epoll that prefers busy polling where interrupts are not deferred",
        code: "BP-PREFER-NO-DEFER",
        waiter: "epoll ep=50 ep-prefer",
        arguments: "--pid $PID",
        tidy: "busypoll tune rollback >/dev/null",
        ..FAULT
    },
];

#[test]
fn faults_of_programs_are_found_and_cured() {
    needs_root!();
    needs!(program "taskset", program "unshare", program "nsenter");
    let machine = LabMachine::new(Lab::builder().build().unwrap());
    find_and_cure_all(&machine, PROGRAMS);
}

#[test]
fn faults_of_a_veth_are_found_and_cured() {
    needs_root!();
    needs!(program "ethtool", program "ip", program "unshare", program "nsenter");
    // Two labs at once: most of the time is the doctor's waiting for packets.
    std::thread::scope(|scope| {
        for half in DEVICE.chunks(DEVICE.len().div_ceil(2)) {
            scope.spawn(move || {
                let machine = LabMachine::new(Lab::builder().queues(2).build().unwrap());
                find_and_cure_all(&machine, half);
            });
        }
    });
}

/// A fault that no setting changes is reported without a remedy.
#[test]
fn a_fault_without_cure_has_no_remedy() {
    needs_root!();
    needs!(program "ip", program "unshare");
    let machine = LabMachine::new(Lab::builder().build().unwrap());
    for (code, make, arguments) in [
        ("BP-LOOPBACK", "", "lo"),
        ("BP-PEER-LOCAL", "", "--peer 127.0.0.1"),
        ("BP-PEER-LOCAL", "", "--peer 10.77.0.2"),
        ("BP-TUN", "ip tuntap add dev tap0 mode tap; ip link set tap0 up", "tap0"),
        ("BP-TUN", "ip tuntap add dev tun0 mode tun; ip link set tun0 up", "tun0"),
    ] {
        has_no_cure(&machine, code, make, arguments);
    }
}
