//! `busypoll tune` on real drivers, in the virtual machine: planned, applied, checked by ethtool, sysfs and /proc,
//! killed in the middle, rolled back, compared bit for bit; and what it refuses.
//!
//! One machine serves all steps: each must leave the machine as it found it, and a step that fails is named. `VM_STEP=`
//! runs only the steps whose names contain its value.

mod support;

use std::time::{Duration, Instant};

use busypoll_lab::vm::CommandOutput;
use busypoll_lab::{needs, needs_vm};
use support::faults::TestMachine;
use support::vm_machine::{Vm, builder};

waiter_test!();

/// All settings that tune can change, as other tools show them.
const SNAPSHOT: &str = "
for device in intel0 virtio0; do
    for question in -c -k -l -g; do ethtool $question $device 2>/dev/null; done
done
cd /sys/class/net
for file in gro_flush_timeout napi_defer_hard_irqs threaded queues/*/*_cpus queues/*/rps_flow_cnt; do
    grep -s '' intel0/$file virtio0/$file
done
cd /proc
grep '' irq/*/smp_affinity irq/default_smp_affinity sys/net/core/busy_* sys/net/core/rps_sock_flow_entries
";

#[test]
#[ignore = "long: virtual machines, two minutes"]
fn tune_changes_what_it_says_and_rolls_everything_back() {
    needs_vm!();
    needs!(program "ip", program "ethtool", program "setpriv", program "strace");
    let Some(tools) = needs::unpacked("tools") else {
        return needs::skipped(module_path!(), "irqbalance: run .ci/tools");
    };
    let vm = Vm::of(builder().program("irqbalance", tools.join("usr/sbin/irqbalance")));
    let wanted = std::env::var("VM_STEP").unwrap_or_default();
    for (name, step) in STEPS.iter().filter(|(name, _)| name.contains(&wanted)) {
        let before = vm.output_of(SNAPSHOT);
        let start = Instant::now();
        step(&vm);
        println!("{name}: {:.1?}", start.elapsed());
        let after = vm.output_of(SNAPSHOT);
        assert_eq!(before, after, "{name}: the machine is not as it was");
        let status = vm.output_of("busypoll tune status");
        assert_eq!(status, "Nothing is applied here.\n", "{name}");
    }
}

/// An emulated machine on a full one is slow: irqbalance may look at its interrupts many times before it moves one.
const PATIENCE: Duration = Duration::from_secs(120);

type Step = (&'static str, fn(&Vm));

const STEPS: &[Step] = &[
    ("a plan changes nothing and states the costs", plan),
    ("an apply is seen by ethtool and in /proc", apply_and_roll_back),
    ("two applies are rolled back as one", second_apply),
    ("settings of queues survive changes of channels and rings", queues_and_rings),
    ("irqbalance leaves moved interrupts alone", irqbalance),
    ("kill -9 at any time", killed),
    ("kill -9 of a rollback", rollback_killed),
    ("settings that the driver lacks are reported", not_available),
    ("gro_flush_timeout lives as long as the poller", poller_ends),
    ("an unconfirmed apply is rolled back", unconfirmed),
    ("a device that comes back with another index", comes_back),
    ("a device that is gone", gone),
    ("refusals", refusals),
    ("without privileges", unprivileged),
    ("read-only /proc and /sys", read_only),
    ("two commands at once", two_at_once),
    ("a journal from a newer version", newer_journal),
];

/// One line of error. The end of the step checks that nothing has changed.
fn refused(vm: &Vm, command: &str, wanted: &[&str]) {
    let ran = vm.sh(command);
    assert_eq!(ran.status, 2, "{command}: {ran:?}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let [line] = lines[..] else { panic!("{command}: not one line: {ran:?}") };
    assert!(line.starts_with("busypoll: "), "{command}: {ran:?}");
    for wanted in wanted {
        assert!(line.contains(wanted), "{command}: no {wanted:?} in: {line}");
    }
}

fn contains(ran: &CommandOutput, wanted: &[&str]) {
    for wanted in wanted {
        assert!(ran.stdout.contains(wanted), "no {wanted:?} in: {ran:?}");
    }
}

fn roll_back(vm: &Vm) {
    let ran = vm.sh("busypoll tune rollback");
    assert_eq!(ran.status, 0, "{ran:?}");
}

fn plan(vm: &Vm) {
    let before = vm.output_of(SNAPSHOT);
    let ran = vm.sh("busypoll tune plan lowest-latency --dev intel0 --app-cpus 2");
    assert_eq!(ran.status, 0, "{ran:?}");
    contains(&ran, &["rx-usecs", "3us -> 0us", "busy_read", "0us -> 50us", "cost", "source"]);
    assert_eq!(before, vm.output_of(SNAPSHOT));
    assert_eq!(vm.output_of("ls /run/busypoll 2>/dev/null | grep -v lock; true"), "");
}

fn apply_and_roll_back(vm: &Vm) {
    let ran = vm.sh("busypoll tune apply lowest-latency --dev intel0 --app-cpus 2");
    assert!(ran.status < 2, "{ran:?}");
    let output_contains = |script: &str, wanted: &str| {
        let said = vm.output_of(script);
        assert!(said.lines().any(|line| line.trim() == wanted), "{script}: {wanted:?}: {said}");
    };
    output_contains("ethtool -c intel0", "rx-usecs: 0");
    output_contains("ethtool -k intel0", "generic-receive-offload: off");
    output_contains("cat /proc/sys/net/core/busy_read", "50");
    output_contains("cat /proc/sys/net/core/busy_poll", "50");
    // On the NIC's NUMA node, not on the application's CPU.
    output_contains("cat /proc/irq/$irq/smp_affinity_list", "3");
    let status = vm.sh("busypoll tune status");
    contains(&status, &["apply 1: lowest-latency", "rx-usecs was 3us, set to 0us"]);
    roll_back(vm);
}

fn second_apply(vm: &Vm) {
    vm.sh("busypoll tune apply lowest-latency --dev intel0");
    vm.sh("busypoll tune apply busy-poll --sockets 300 --dev intel0");
    let read = vm.output_of("ethtool -c intel0; cat /proc/sys/net/core/busy_poll");
    assert!(read.contains("rx-usecs: 100") && read.ends_with("\n100\n"), "{read}");
    roll_back(vm);
}

/// Drivers take their queues down for these changes: settings of the queues are restored too.
fn queues_and_rings(vm: &Vm) {
    let profile = "[channels]\ncombined = 1\n[rings]\nrx = 128\n";
    vm.output_of(&format!("printf '{profile}' > /tmp/queues.toml"));
    vm.output_of("echo 3 > /sys/class/net/virtio0/queues/rx-1/rps_cpus");
    let before = vm.output_of(SNAPSHOT);
    vm.sh("busypoll tune apply /tmp/queues.toml --dev virtio0 --dev intel0");
    let now = |question: &str| vm.output_of(&format!("ethtool {question} | sed -n '/Current/,$p'"));
    assert!(now("-l virtio0").contains("Combined:\t1\n"), "{}", now("-l virtio0"));
    assert!(now("-g intel0").contains("RX:\t\t128\n"), "{}", now("-g intel0"));
    roll_back(vm);
    assert_eq!(before, vm.output_of(SNAPSHOT));
    vm.output_of("echo 0 > /sys/class/net/virtio0/queues/rx-1/rps_cpus");
}

/// irqbalance distributes all interrupts each time it gets SIGHUP.
fn irqbalance(vm: &Vm) {
    vm.output_of(
        "for f in /proc/irq/*/smp_affinity; do echo \"echo $(cat $f) > $f\"; done > /tmp/affinities;
         mkdir -p /run/irqbalance; irqbalance --foreground --interval=1 >/dev/null 2>&1 &
         until [ -e /run/irqbalance/irqbalance*.sock ]; do usleep 50000; done",
    );
    let cpus = || vm.output_of("cat /proc/irq/$irq/smp_affinity_list");
    let look_again = || vm.output_of("kill -HUP $(pidof irqbalance); sleep 1");
    let moves = |what: &str| {
        vm.output_of("echo 0 > /proc/irq/$irq/smp_affinity_list");
        support::wait_at_most(PATIENCE, what, || {
            look_again();
            cpus() != "0\n"
        });
    };
    moves("it moves an interrupt");
    let ran = vm.sh("busypoll tune apply lowest-latency --dev intel0 --app-cpus 2");
    contains(&ran, &["left alone by irqbalance none -> interrupts"]);
    for _ in 0..3 {
        look_again();
    }
    assert_eq!(cpus(), "3\n", "irqbalance moves a moved interrupt");
    roll_back(vm);
    moves("it moves it again after the rollback");
    vm.sh("kill $(pidof irqbalance); while pidof irqbalance; do usleep 10000; done; \
         sh /tmp/affinities 2>/dev/null");
}

/// The calls by which tune writes to the system and to its journal. ioctls are missing; they come between.
const CALLS: &str = "write,pwrite64,fsync,fdatasync,renameat,unlink,unlinkat";

/// The calls that the command makes, in order.
fn calls(vm: &Vm, command: &str) -> Vec<String> {
    vm.sh(&format!("strace -f --seccomp-bpf -o /tmp/calls -e trace={CALLS} {command}"));
    let name = |line: &str| Some(line.split_whitespace().nth(1)?.split_once('(')?.0.to_owned());
    vm.output_of("cat /tmp/calls").lines().filter_map(name).collect()
}

/// Kills the command as it enters the `at`th of these calls, where strace(1) stops it. (strace counts each kind of call
/// separately.)
fn kill_at(vm: &Vm, calls: &[String], at: usize, command: &str) {
    let call = &calls[at];
    let when = calls[..=at].iter().filter(|other| *other == call).count();
    vm.output_of(&format!(
        "strace -f --seccomp-bpf -o /dev/null -e trace={call} \
             -e inject={call}:delay_enter=100s:when={when} {command} >/dev/null 2>&1 &
         strace=$!
         held() {{
             for i in 1 2 3 4; do
                 grep -q '^State:.t' /proc/$(pidof busypoll)/status || return 1
                 usleep 20000
             done 2>/dev/null
         }}
         until held; do [ -e /proc/$strace/exe ] || exit 1; usleep 20000; done
         kill -9 $(pidof busypoll)
         kill -9 $strace
         while pidof busypoll; do usleep 10000; done"
    ));
}

const APPLY: &str = "busypoll tune apply lowest-latency --dev intel0 --dev virtio0 --app-cpus 2";

/// Wherever the command was killed, a rollback restores everything.
fn killed(vm: &Vm) {
    let before = vm.output_of(SNAPSHOT);
    // The first apply also makes directories.
    vm.sh(APPLY);
    roll_back(vm);
    let calls = calls(vm, APPLY);
    let whole = vm.output_of(SNAPSHOT);
    roll_back(vm);
    let mut middle = 0;
    for at in spread(calls.len(), 6) {
        kill_at(vm, &calls, at, APPLY);
        let now = vm.output_of(SNAPSHOT);
        middle += u32::from(now != before && now != whole);
        roll_back(vm);
        assert_eq!(before, vm.output_of(SNAPSHOT), "killed at call {at} of {calls:?}");
    }
    assert!(middle > 2, "{middle} kills came between two writes");
}

fn rollback_killed(vm: &Vm) {
    let before = vm.output_of(SNAPSHOT);
    vm.sh(APPLY);
    let calls = calls(vm, "busypoll tune rollback");
    for at in spread(calls.len(), 3) {
        vm.sh(APPLY);
        kill_at(vm, &calls, at, "busypoll tune rollback");
        roll_back(vm);
        assert_eq!(before, vm.output_of(SNAPSHOT), "killed at call {at} of {calls:?}");
    }
}

/// `count` of the first `length` numbers, including both ends.
fn spread(length: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * (length - 1) / (count - 1))
}

/// virtio_net of Linux 6.1 on this QEMU has no interrupt coalescing settings.
fn not_available(vm: &Vm) {
    let ran = vm.sh("busypoll tune plan busy-poll --dev virtio0");
    assert_eq!(ran.status, 0, "{ran:?}");
    // The driver would accept the value and the device refuse it: the plan promises nothing.
    contains(&ran, &["VIRTIO_NET_F_NOTF_COAL"]);
    assert!(!ran.stdout.contains("-> 100us"), "{ran:?}");
    let ran = vm.sh("busypoll tune apply busy-poll --dev virtio0");
    assert!(ran.status < 2 && !ran.stdout.contains("refused"), "{ran:?}");
    assert!(vm.output_of("ethtool -c virtio0").contains("rx-usecs: 0"));
    roll_back(vm);
    // Without irq-suspend-timeout (Linux 6.13) the profile is useless.
    refused(
        vm,
        "busypoll tune apply irq-suspend --dev intel0 --poller 1",
        &["irq-suspend", "cannot be applied"],
    );
}

fn poller_ends(vm: &Vm) {
    refused(
        vm,
        "busypoll tune apply prefer-busy-poll --dev intel0",
        &["gro-flush-timeout", "--poller"],
    );
    refused(
        vm,
        "busypoll tune apply prefer-busy-poll --dev intel0 --poller 99999",
        &["99999", "no such process"],
    );
    let before = vm.output_of(SNAPSHOT);
    let pid = vm.start("recv so=50");
    let ran = vm.sh(&format!("busypoll tune apply prefer-busy-poll --dev intel0 --poller {pid}"));
    assert!(ran.status < 2, "{ran:?}");
    assert_eq!(vm.output_of("cat /sys/class/net/intel0/gro_flush_timeout"), "200000\n");
    vm.stop(pid);
    as_before(vm, &before);
}

fn unconfirmed(vm: &Vm) {
    let before = vm.output_of(SNAPSHOT);
    let ran = vm.sh("busypoll tune apply busy-poll --dev intel0 --confirm 2s");
    contains(&ran, &["confirm"]);
    as_before(vm, &before);
    // The emulated machine may be too slow to confirm in time: then the test tries a longer time.
    let in_time = |seconds: &u32| {
        vm.sh(&format!("busypoll tune apply busy-poll --dev intel0 --confirm {seconds}s"));
        let confirmed = vm.sh("busypoll tune confirm").status == 0;
        if !confirmed {
            as_before(vm, &before);
        }
        confirmed
    };
    let seconds = [2, 10, 50].into_iter().find(in_time).expect("confirmed in time");
    vm.output_of(&format!("sleep {}", seconds + 2));
    assert!(
        vm.output_of("ethtool -c intel0").contains("rx-usecs: 100"),
        "rolled back though confirmed"
    );
    roll_back(vm);
}

/// It happens by itself, within seconds.
fn as_before(vm: &Vm, before: &str) {
    support::wait_at_most(PATIENCE, "rolled back by itself", || {
        vm.output_of(SNAPSHOT) == before
            && vm.output_of("busypoll tune status").starts_with("Nothing")
    });
}

/// The driver is unbound from the device and bound again: the interface has another index, and the driver's defaults.
fn comes_back(vm: &Vm) {
    let index = || vm.output_of("cat /sys/class/net/intel0/ifindex");
    vm.sh("busypoll tune apply busy-poll --dev intel0");
    let first = index();
    vm.output_of(REBIND);
    assert_ne!(first, index());
    vm.output_of("ethtool -C intel0 rx-usecs 50");
    roll_back(vm);
    assert!(vm.output_of("ethtool -c intel0").contains("rx-usecs: 3\n"));
}

/// Unbinds and binds the Intel NIC, whose new interface gets its old name and address.
const REBIND: &str = "
pci=$(basename $(readlink /sys/class/net/intel0/device))
driver=/sys/bus/pci/drivers/e1000e
echo $pci > $driver/unbind
echo $pci > $driver/bind
ip link set eth0 name intel0
ip address add 10.78.0.2/24 dev intel0
ip link set intel0 up
until [ $(cat /sys/class/net/intel0/carrier) = 1 ]; do sleep 0.1; done
";

fn gone(vm: &Vm) {
    vm.sh("busypoll tune apply busy-poll --dev intel0");
    let pci = vm.output_of("basename $(readlink /sys/class/net/intel0/device)");
    let driver = "/sys/bus/pci/drivers/e1000e";
    vm.output_of(&format!("echo {} > {driver}/unbind", pci.trim()));
    let ran = vm.sh("busypoll tune rollback");
    assert_eq!(ran.status, 1, "{ran:?}");
    contains(&ran, &["rx-usecs", "not put back", "--forget"]);
    assert_eq!(vm.output_of("cat /proc/sys/net/core/busy_read"), "0\n", "the rest is rolled back");
    let back = REBIND.replace("echo $pci > $driver/unbind", "").replace(
        "pci=$(basename $(readlink /sys/class/net/intel0/device))",
        &format!("pci={}", pci.trim()),
    );
    vm.output_of(&back);
    roll_back(vm);
}

fn refusals(vm: &Vm) {
    for (command, wanted) in [
        ("apply busy-pol --dev intel0", &["busy-pol", "busy-poll"][..]),
        ("plan latency --dev intel0", &["latency", "lowest-latency"]),
        ("apply busy-poll --dev intel1", &["intel1"]),
        ("apply busy-poll --dev lo", &["lo", "loopback"]),
        ("apply busy-poll --dev intel0 --dev intel0", &["intel0", "twice"]),
        ("apply busy-poll --dev intel0 --confirm 0", &["--confirm"]),
        ("apply busy-poll --dev intel0 --app-cpus 99", &["99"]),
        ("apply /tmp/none.toml --dev intel0", &["/tmp/none.toml"]),
        ("confirm", &["nothing to confirm"]),
    ] {
        refused(vm, &format!("busypoll tune {command}"), wanted);
    }
    for (text, wanted) in [
        ("[coalesce.rx-usec]\nvalue = 1", &["rx-usec", "rx-usecs"][..]),
        ("[coalesces.rx-usecs]\nvalue = 1", &["coalesces", "coalesce"]),
        ("[coalesce.rx-usecs]\nvalue = -1", &["rx-usecs", "-1"]),
        ("[coalesce.rx-usecs]\nvalue = \"soon\"", &["rx-usecs", "soon"]),
        ("[coalesce.rx-usecs]\nvalue = ", &["mine.toml"]),
        ("[features.rx-gor]\nvalue = false", &["rx-gor", "rx-gro"]),
    ] {
        vm.output_of(&format!("printf '%s\\n' '{text}' > /tmp/mine.toml"));
        refused(vm, "busypoll tune apply /tmp/mine.toml --dev intel0", wanted);
    }
}

/// A process of another user has no capability and no state directory.
fn unprivileged(vm: &Vm) {
    let user = "/programs/setpriv --reuid=65534 --regid=65534 --clear-groups";
    refused(vm, &format!("{user} busypoll tune apply busy-poll --dev intel0"), &[]);
    let bare = "/programs/setpriv --bounding-set=-net_admin --inh-caps=-net_admin";
    refused(vm, &format!("{bare} busypoll tune apply busy-poll --dev intel0"), &["CAP_NET_ADMIN"]);
}

fn read_only(vm: &Vm) {
    for (folder, profile) in [
        ("/proc/sys", "busy-poll"),
        ("/sys", "prefer-busy-poll --poller 1"),
        ("/proc/irq", "busy-poll"),
    ] {
        let command = format!(
            "unshare -m sh -c 'mount -o bind {folder} {folder} && mount -o remount,ro,bind {folder} && \
             exec busypoll tune apply {profile} --dev intel0 --app-cpus 2'"
        );
        refused(vm, &command, &["Read-only file system", "as it was before"]);
    }
}

/// strace(1) stops the first command as it writes its journal.
fn two_at_once(vm: &Vm) {
    vm.output_of(
        "strace -f --seccomp-bpf -o /dev/null -e trace=fsync,fdatasync \
             -e inject=fsync,fdatasync:delay_enter=60s:when=1 \
             busypoll tune apply busy-poll --dev intel0 >/dev/null 2>&1 & \
         until pidof busypoll >/dev/null && ! flock -n $(echo /run/busypoll/tune*.lock) true; do \
             usleep 50000; \
         done",
    );
    let pid = vm.output_of("pidof busypoll");
    refused(vm, "busypoll tune apply lowest-latency --dev intel0", &[pid.trim()]);
    refused(vm, "busypoll tune rollback", &[pid.trim()]);
    vm.sh("kill -9 $(pidof strace busypoll); while pidof busypoll; do usleep 10000; done");
    roll_back(vm);
}

fn newer_journal(vm: &Vm) {
    vm.sh("busypoll tune apply busy-poll --dev intel0");
    let journal = vm.output_of("ls /run/busypoll/*tune* | grep -v lock");
    let journal = journal.trim();
    vm.output_of(&format!(
        "cp {journal} /tmp/kept; sed -i '1s/^busypoll-journal 1 /busypoll-journal 2 /' {journal}"
    ));
    for command in ["apply lowest-latency --dev intel0", "rollback", "status"] {
        refused(vm, &format!("busypoll tune {command}"), &[journal, "newer"]);
    }
    vm.output_of(&format!("cat /tmp/kept > {journal}"));
    roll_back(vm);
}

/// The applied settings ended with the power; the journal is recognised as one of an earlier boot.
#[test]
#[ignore = "long: virtual machines, two minutes"]
fn a_power_cut_ends_what_was_applied() {
    needs_vm!();
    needs!(program "ip", program "ethtool", program "setpriv", program "strace");
    let state = "export BUSYPOLL_STATE=/var/lib/busypoll;";
    let vm = Vm::boot();
    vm.sh(&format!("{state} busypoll tune apply busy-poll --dev intel0; sync"));
    assert!(vm.output_of("ethtool -c intel0").contains("rx-usecs: 100"));
    let kept = vm.machine.power_cut();
    let vm = Vm::of(builder().state(kept));
    assert_ne!(vm.output_of("ls /var/lib/busypoll"), "");
    vm.output_of("ethtool -C intel0 rx-usecs 50");
    assert_eq!(vm.sh(&format!("{state} busypoll tune rollback")).status, 0);
    // It was set after the boot, so the rollback leaves it alone.
    assert!(vm.output_of("ethtool -c intel0").contains("rx-usecs: 50\n"));
    let ran = vm.sh(&format!("{state} busypoll tune apply busy-poll --dev intel0"));
    assert!(ran.status < 2, "{ran:?}");
}
