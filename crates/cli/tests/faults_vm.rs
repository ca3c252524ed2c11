//! Faults of configuration on real drivers, two NUMA nodes and an older kernel, in the virtual machine: each is found
//! by its code and cured by the command that the doctor prints. Faults without a cure are reported without a command.

mod support;

use busypoll_lab::{needs, needs_vm};
use support::faults::{FAULT, Fault, TestMachine, faults_found, find_and_cure_all, has_no_cure};
use support::vm_machine::{Vm, builder};

waiter_test!();

/// One of `machines` machines that run at the same time, each emulated on about one CPU, and the faults that are its
/// turn.
fn machine_of_faults(machine: usize, machines: usize, also: fn(&Vm)) {
    needs!(program "ip", program "ethtool", program "setpriv", program "strace");
    let vm = Vm::of(builder().command_line("isolcpus=3"));
    // CPU 3 is isolated, and vmxnet3 has LRO on by default. These faults are made later, so the machine starts without
    // them.
    vm.output_of(&format!("{TO_CPU_2} ip link set vmxnet30 up; ethtool -K vmxnet30 lro off"));
    also(&vm);
    find_and_cure_all(&vm, FAULTS.iter().skip(machine).step_by(machines));
}

#[test]
#[ignore = "long: virtual machines, three minutes"]
fn faults_of_drivers_cpus_and_programs_are_found_and_cured() {
    needs_vm!();
    machine_of_faults(0, 2, |_| {});
}

#[test]
#[ignore = "long: virtual machines, three minutes"]
fn the_other_faults_and_those_of_an_old_kernel_are_found_and_cured() {
    needs_vm!();
    machine_of_faults(1, 2, old_kernel);
}

/// In a machine of its own: through an emulated IOMMU all other tests would be slow.
#[test]
#[ignore = "many minutes of emulation: cargo test -p busypoll-cli --test faults_vm -- --ignored"]
fn a_strict_iommu_is_found_and_made_lazy() {
    needs_vm!();
    needs!(program "ip", program "ethtool", program "setpriv", program "strace");
    let vm = Vm::of(builder().strict_iommu());
    let name = "an IOMMU that invalidates each mapping at once";
    find_and_cure_all(&vm, &[Fault { name, code: "BP-IOMMU-STRICT", ..FAULT }]);
}

/// CPU 2 is on the NIC's node, and not isolated.
const TO_CPU_2: &str = "for i in $irqs; do echo 2 > /proc/irq/$i/smp_affinity_list; done;";

/// Linux 6.1 lacks features of 6.8, 6.9 and 6.13, and no command adds them.
fn old_kernel(vm: &Vm) {
    has_no_cure(vm, "BP-KERNEL-NO-EPOLL-PARAMS", "", "intel0");
    has_no_cure(vm, "BP-KERNEL-NO-NAPI-SETTINGS", "", "intel0");
    // On 6.1 an ordinary user cannot raise SO_BUSY_POLL.
    let user = "/programs/setpriv --reuid=65534 --regid=65534 --clear-groups";
    let ran = vm.sh(&format!("{user} busypoll doctor --json intel0"));
    let found = faults_found(&ran).unwrap();
    let old = found.iter().find(|(code, _)| code == "BP-OLD-PRIVILEGE");
    assert!(old.is_some_and(|(_, finding)| finding["remedy"].is_null()), "{found:?}");
    // Idle states belong to the hypervisor's host: the doctor reports only that.
    let ran = vm.sh("busypoll doctor --json intel0");
    assert!(ran.stdout.contains("BP-VIRTUAL") && !ran.stdout.contains("BP-DEEP-IDLE"), "{ran:?}");
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "an interrupt that may wait a millisecond",
        code: "BP-COALESCE-LONG",
        make: "ethtool -C $DEV rx-usecs 1000",
        tidy: "ethtool -C $DEV rx-usecs 3",
        ..FAULT
    },
    Fault {
        name: "large receive offload",
        code: "BP-LRO-ON",
        make: "ethtool -K vmxnet30 lro on",
        arguments: "vmxnet30",
        ..FAULT
    },
    Fault {
        name: "the receive interrupt on another NUMA node",
        code: "BP-IRQ-FAR-NODE",
        make: "echo 0 > /proc/irq/$irq/smp_affinity_list",
        contains_all: &["node 1"],
        ..FAULT
    },
    Fault {
        name: "the receive interrupt on an isolated CPU",
        code: "BP-IRQ-ISOLATED",
        make: "echo 3 > /proc/irq/$irq/smp_affinity_list",
        ..FAULT
    },
    Fault {
        name: "the interrupt on the program's only CPU",
        code: "BP-IRQ-APP-CPU",
        waiter: "recv so=50",
        make: "taskset -p 4 $PID >/dev/null",
        arguments: "--pid $PID $DEV",
        tidy: "echo 2 > /proc/irq/$irq/smp_affinity_list",
        ..FAULT
    },
    Fault {
        name: "the program on another NUMA node than its NIC",
        code: "BP-APP-FAR-NODE",
        waiter: "recv so=50",
        make: "taskset -p 1 $PID >/dev/null",
        arguments: "--pid $PID $DEV",
        ..FAULT
    },
    Fault {
        name: "a process called irqbalance",
        code: "BP-IRQBALANCE",
        make: "sh -c 'printf irqbalance > /proc/$$/comm; while :; do sleep 1; done' >/dev/null 2>&1 & \
            until pidof irqbalance || grep -q irqbalance /proc/$!/comm; do usleep 10000; done",
        ..FAULT
    },
    Fault {
        name: "every CPU under the powersave governor",
        code: "BP-GOVERNOR",
        make: "for g in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo powersave > $g; done",
        ..FAULT
    },
    Fault {
        name: "one CPU under schedutil",
        code: "BP-GOVERNOR",
        make: "echo schedutil > /sys/devices/system/cpu/cpu2/cpufreq/scaling_governor",
        contains_all: &["CPU 2", "schedutil"],
        ..FAULT
    },
    Fault {
        name: "the HPET for a clock",
        code: "BP-CLOCKSOURCE",
        make: "echo hpet > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ..FAULT
    },
    Fault {
        name: "the ACPI timer for a clock",
        code: "BP-CLOCKSOURCE",
        make: "echo acpi_pm > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ..FAULT
    },
    Fault {
        name: "RPS on a NIC",
        code: "BP-RPS",
        make: "echo f > /sys/class/net/$DEV/queues/rx-0/rps_cpus",
        ..FAULT
    },
    Fault {
        name: "RFS on a NIC",
        code: "BP-RFS",
        make: "echo 4096 > /proc/sys/net/core/rps_sock_flow_entries; \
            echo 4096 > /sys/class/net/$DEV/queues/rx-0/rps_flow_cnt",
        tidy: "echo 0 > /proc/sys/net/core/rps_sock_flow_entries",
        ..FAULT
    },
    Fault {
        name: "busy_poll without busy_read",
        code: "BP-SYSCTL-POLL-WITHOUT-READ",
        make: "echo 50 > /proc/sys/net/core/busy_poll",
        tidy: "echo 0 > /proc/sys/net/core/busy_poll; echo 0 > /proc/sys/net/core/busy_read",
        ..FAULT
    },
    Fault {
        name: "busy_read of a hundred milliseconds",
        code: "BP-SYSCTL-LONG",
        make: "echo 100000 > /proc/sys/net/core/busy_read",
        tidy: "echo 0 > /proc/sys/net/core/busy_poll; echo 0 > /proc/sys/net/core/busy_read",
        ..FAULT
    },
    Fault {
        name: "gro_flush_timeout on a NIC, and no process polls",
        code: "BP-GRO-FLUSH-NO-POLLER",
        make: "echo 1000000 > /sys/class/net/$DEV/gro_flush_timeout",
        ..FAULT
    },
    Fault {
        name: "napi_defer_hard_irqs on a NIC without a timer",
        code: "BP-DEFER-WITHOUT-FLUSH",
        make: "echo 2 > /sys/class/net/$DEV/napi_defer_hard_irqs",
        ..FAULT
    },
    Fault {
        name: "a NIC that is down",
        code: "BP-DEVICE-DOWN",
        make: "ip link set virtio0 down",
        arguments: "virtio0",
        ..FAULT
    },
    Fault {
        name: "SO_BUSY_POLL on a program that waits in poll, without net.core.busy_poll",
        code: "BP-SOCK-IN-POLL",
        waiter: "poll so=50",
        arguments: "--pid $PID",
        tidy: "echo 0 > /proc/sys/net/core/busy_poll",
        ..FAULT
    },
    Fault {
        name: "SO_BUSY_POLL on a program that waits in select, without net.core.busy_poll",
        code: "BP-SOCK-IN-POLL",
        waiter: "select so=50",
        arguments: "--pid $PID",
        tidy: "echo 0 > /proc/sys/net/core/busy_poll",
        ..FAULT
    },
    Fault {
        name: "a program that waits in poll without SO_BUSY_POLL, on Linux 6.1",
        code: "BP-SOCK-POLL-OFF",
        waiter: "poll",
        arguments: "--pid $PID",
        tidy: "echo 0 > /proc/sys/net/core/busy_poll",
        ..FAULT
    },
    Fault {
        name: "a program that waits in recv without SO_BUSY_POLL, on Linux 6.1",
        code: "BP-SOCK-OFF",
        waiter: "recv",
        arguments: "--pid $PID",
        ..FAULT
    },
    Fault {
        name: "a CPU quota on a poller's control group, version 2",
        code: "BP-CPU-QUOTA",
        waiter: "recv so=50",
        make: "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; echo +cpu > cgroup.subtree_control; \
            mkdir quota; echo '20000 100000' > quota/cpu.max; echo $PID > quota/cgroup.procs",
        arguments: "--pid $PID",
        contains_all: &["0.20 CPUs", "control group /quota"],
        tidy: "rmdir /sys/fs/cgroup/quota; umount /sys/fs/cgroup",
    },
    Fault {
        name: "a CPU quota on the parent of a poller's control group, version 2",
        code: "BP-CPU-QUOTA",
        waiter: "recv so=50",
        make: "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; echo +cpu > cgroup.subtree_control; \
            mkdir -p quota/below; echo '20000 100000' > quota/cpu.max; echo $PID > quota/below/cgroup.procs",
        arguments: "--pid $PID",
        contains_all: &["0.20 CPUs", "control group /quota"],
        tidy: "rmdir /sys/fs/cgroup/quota/below /sys/fs/cgroup/quota; umount /sys/fs/cgroup",
    },
];
