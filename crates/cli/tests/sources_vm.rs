//! Two of the sources' tables on an emulated NIC: ping before and after, and round trips by rx-usecs. Measurements, which
//! print tables; QEMU emulates the NIC in software, so only the order of the figures is checked:
//!
//!   cargo test -p busypoll-cli --test sources_vm -- --ignored --nocapture

mod support;

use std::path::PathBuf;

use busypoll_lab::{needs, needs_vm};
use support::faults::TestMachine;
use support::vm_machine::{Vm, builder};
use support::{BUSYPOLL, Serving};

waiter_test!();

/// What is applied before each row.
const SETTINGS: [(&str, &str); 4] = [
    ("as it comes", "true"),
    (
        "rx-usecs 500",
        "printf '[coalesce]\\nrx-usecs = 500\\n' > /late.toml; busypoll tune apply /late.toml --dev intel0",
    ),
    (
        "rx-usecs 0",
        "printf '[coalesce]\\nrx-usecs = 0\\n' > /soon.toml; busypoll tune apply /soon.toml --dev intel0",
    ),
    ("rx-usecs 0, busy polling", "busypoll tune apply lowest-latency --dev intel0"),
];

const POLLED: &str = "awk '/^TcpExt/ { if (!n) { for (i = 2; i <= NF; i++) name[i] = $i; n = 1 } \
    else for (i = 2; i <= NF; i++) if (name[i] == \"BusyPollRxPackets\") print $i }' /proc/net/netstat";

fn in_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|p| p.exists()).unwrap()
}

#[test]
#[ignore = "a measurement: two minutes in a virtual machine"]
fn ping_and_round_trips_by_coalescing() {
    needs_vm!();
    needs!(program "ip", program "ethtool", program "setpriv", program "strace", program "ping");
    let vm = Vm::of(builder().program("ping", in_path("ping")));
    let _serving = Serving::start(vm.machine.outside().command(BUSYPOLL), &[]);
    let mut rows = Vec::new();
    println!(
        "| setting | ping min, avg, max us | busy polled | UDP p50 us, asleep; spinning |\n|---|---|---|---|"
    );
    for (name, apply) in SETTINGS {
        let ran = vm.sh(apply);
        assert!(ran.status < 2, "{name}: {ran:?}");
        let polled = || vm.output_of(POLLED).trim().parse::<u64>().unwrap();
        let before = polled();
        let said = vm.output_of("/programs/ping -q -c 300 -i 0.01 10.78.0.1");
        let found = polled() - before;
        let figures = said.rsplit_once("= ").unwrap().1.split(' ').next().unwrap();
        let us: Vec<f64> =
            figures.split('/').take(3).map(|ms| ms.parse::<f64>().unwrap() * 1e3).collect();
        let bench = "busypoll bench --host 10.78.0.1 --arms kernel-udp-blocking,kernel-udp-spin \
                     --duration 15s --rounds 3 --json /run.json >/dev/null 2>&1; cat /run.json";
        let run: serde_json::Value = serde_json::from_str(&vm.output_of(bench)).unwrap();
        let p50 = |arm: &str| {
            let all = run["arms"].as_array().unwrap();
            let it = all.iter().find(|it| it["name"] == arm);
            it.unwrap_or_else(|| panic!("no {arm}: {run:#}"))["rtt_us"]["p50"].as_f64().unwrap()
        };
        let (asleep, spinning) = (p50("kernel-udp-blocking"), p50("kernel-udp-spin"));
        println!(
            "| {name} | {:.0}, {:.0}, {:.0} | {found} | {asleep:.0}; {spinning:.0} |",
            us[0], us[1], us[2]
        );
        rows.push((asleep, found));
        vm.sh("busypoll tune rollback");
    }
    // The timer delays an interrupt that follows another one too soon: not the first after a pause, as of each ping.
    let asleep = |nth: usize| rows[nth].0;
    assert!(asleep(1) > asleep(2) + 150.0, "500 us of coalescing are not seen: {rows:?}");
    // Sockets of ICMP have no NAPI id.
    assert!(rows.iter().all(|(_, found)| *found == 0), "{rows:?}");
}
