//! The machine of a run, and how it was measured.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::data::{FIX, Machine, Report};
use crate::text::figures::us_text;
use crate::units::show;

/// What is known of the machine.
pub fn machine(report: &Report) -> Vec<(&'static str, String)> {
    let host = report.host();
    let kind = if host.virtual_machine { "virtual machine" } else { "no hypervisor seen" };
    let mut all = vec![
        ("Processor", host.cpu_model),
        ("CPUs online", host.cpus_online.to_string()),
        ("Kind", kind.to_owned()),
        ("Kernel", format!("Linux {}", host.kernel)),
    ];
    all.extend(report.machine().map(settings).into_iter().flatten());
    all
}

fn settings(m: &Machine) -> Vec<(&'static str, String)> {
    let placement = match (&m.server, m.server_cpu) {
        (Some(server), _) => format!("client on CPU {}, server at {server}", m.client_cpu),
        (None, Some(server)) if m.share_core => {
            format!("client on CPU {}, server on CPU {server} of the same core", m.client_cpu)
        }
        (None, Some(server)) => format!("client on CPU {}, server on CPU {server}", m.client_cpu),
        (None, None) => format!("CPU {} alone", m.client_cpu),
    };
    let one_core = match m.one_core.measured {
        0 => String::new(),
        measured => {
            format!(
                "both CPUs were on one core in {} of {measured} measurements",
                m.one_core.shared
            )
        }
    };
    vec![
        ("Placement", placement),
        ("Host's placement", one_core),
        (
            "Idle before it",
            m.idle_cpu_share
                .map_or(String::new(), |idle| format!("{:.1}% of all CPU time", idle * 100.0)),
        ),
        ("A clock reading", format!("{:.0} ns", m.clock_overhead_ns)),
    ]
}

/// How the figures came about.
pub fn method(report: &Report) -> Vec<String> {
    let Some(m) = report.machine() else {
        return vec![
            "BPF programs at the kernel's tracepoints noted when each packet passed them; the stack plane's own threads noted \
             theirs."
                .to_owned(),
        ];
    };
    let mut all = vec![format!(
        "{} rounds; in each, every arm ran once, every second round in reverse order, so that a drift of the machine meets \
         all arms alike. {} s for all arms together, a warm-up before each measurement.",
        m.rounds, m.duration_s
    )];
    match report {
        Report::Stages(_) => {
            all.clear();
            all.push(
                "Each arm ran once. Time stamps were taken at the NIC's doorbell, the pass over the ring, the frame handed \
                 up, the delivery to the socket, and the return of recv."
                    .to_owned(),
            );
            return all;
        }
        Report::Throughput(report) if report.workload == "tcp-loss" => {
            all.clear();
            all.push(format!(
                "{} rounds of a seed each: in a round all arms ran at the same time, each over its own path, and lost the \
                 same packets.",
                m.rounds
            ));
        }
        Report::Sweep(report) if report.sweep == crate::data::Sweep::Rate => all.push(
            "Open loop: latency counts from the time at which a request should have been sent, so that a stall does not \
             hide itself. A loss is a result."
                .to_owned(),
        ),
        _ => {}
    }
    if let Report::RoundTrips(_) | Report::Sweep(_) = report {
        all.push(format!(
            "Requests {}; busy-poll arms with SO_BUSY_POLL of {} \u{b5}s.",
            match m.gap_us {
                gap if gap > 0.0 => format!("{} \u{b5}s apart", us_text(gap)),
                _ => "one after another, without a pause".to_owned(),
            },
            m.busy_poll_us
        ));
    }
    all.push(
        "Threads were pinned. Percentiles and rates are medians over rounds; ratios are paired by round, with a 95% interval \
         from a bootstrap over rounds, widened for few rounds."
            .to_owned(),
    );
    all.push(
        "An arm that did not do what its name says, by the machine's own counters, is invalid and compared with nothing."
            .to_owned(),
    );
    all
}

/// A command that measures the same, as far as the report says; none if the report is not as bench writes it.
pub fn command(report: &Report) -> Option<String> {
    let m = report.machine()?;
    let mut words = vec!["busypoll bench".to_owned()];
    let mut size = None;
    match report {
        Report::RoundTrips(report) => match report.workload.as_deref() {
            Some(FIX) => words.push(format!("--workload {FIX}")),
            _ => size = report.arms.first().map(|a| (a.request_bytes, a.response_bytes)),
        },
        Report::Sweep(report) => words.push(format!("--sweep {}", report.sweep.word())),
        Report::Throughput(report) => {
            words.push(format!("--workload {}", report.workload.trim_start_matches("tcp-")));
            if let Some(path) = report.path {
                words.push(format!("--loss {} --rtt {}ms", path.loss_percent, path.rtt_ms));
            }
        }
        Report::Stages(_) => words.push("--stages".to_owned()),
        Report::Trace(_) => return None,
    }
    if let Some((request, response)) = size.filter(|size| *size != (1, 1)) {
        words.push(format!("--size {request},{response}"));
    }
    if let Some(mtu) = m.mtu {
        words.push(format!("--mtu {mtu}"));
    }
    if m.gap_us > 0.0 {
        words.push(format!("--gap {}us", m.gap_us));
    }
    match (&m.server, m.server_cpu) {
        (Some(server), _) => words.push(format!("--host {server}")),
        (None, Some(server)) => words.push(format!("--cpus {},{server}", m.client_cpu)),
        (None, None) => {}
    }
    let names: BTreeSet<&str> = match report {
        Report::RoundTrips(report) => report.arms.iter().map(|a| a.name.as_str()).collect(),
        Report::Sweep(report) => {
            report.points.iter().flat_map(|p| &p.arms).map(|a| a.arm.name.as_str()).collect()
        }
        Report::Throughput(report) => report.arms.iter().map(|a| a.name.as_str()).collect(),
        Report::Stages(report) => report.arms.iter().map(|a| a.arm.as_str()).collect(),
        Report::Trace(_) => return None,
    };
    words.push(format!("--arms {}", names.into_iter().collect::<Vec<_>>().join(",")));
    let duration = Duration::try_from_secs_f64(m.duration_s).ok()?;
    words.push(format!("--duration {}", show(duration)));
    if !matches!(report, Report::Stages(_)) {
        words.push(format!("--rounds {}", m.rounds));
    }
    let command = words.join(" ");
    // The command is made to be copied into a shell: no character of it may mean something to the shell.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " -,.:[]".contains(c);
    command.chars().all(is_plain).then_some(command)
}
