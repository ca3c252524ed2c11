//! The table of metrics. Names and labels are stable; new ones may be added.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until what it counts starts again.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($name:ident $kind:ident $text:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $name: Metric =
                Metric { name: $text, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*
        /// Every metric.
        pub static ALL: &[&Metric] = &[$(&$name),*];
    };
}

metrics! {
    BUILD_INFO Gauge "busypoll_build_info" ["version", "build"] "The exporter's version and build; always 1.";
    SOURCE_UP Gauge "busypoll_exporter_source_up" ["source"] "Whether the source could be read: 1 or 0.";
    SOURCE_SECONDS Gauge "busypoll_exporter_source_duration_seconds" ["source"] "How long reading the source took.";
    UNSEEN Gauge "busypoll_exporter_unseen" ["source"] "What the source has and this exporter may not read, or left out.";
    LEFT_OUT Counter "busypoll_exporter_left_out_samples_total" [] "Samples left out because a page had as many as --max-series allows.";

    KERNEL_PACKETS Counter "busypoll_kernel_busy_poll_packets_total" [] "Packets that the kernel's busy polling found, all devices of this network namespace.";
    DEVICE_PACKETS Counter "busypoll_device_receive_packets_total" ["device"] "Packets that the device received.";
    NET_RX Counter "busypoll_net_rx_softirqs_total" [] "NET_RX softirqs of the machine.";
    SOFTIRQ_SECONDS Counter "busypoll_softirq_cpu_seconds_total" [] "CPU time in softirqs, all CPUs.";
    CPU_SECONDS Counter "busypoll_cpu_busy_seconds_total" [] "CPU time not idle, all CPUs.";

    NAPI_INTERRUPTS Counter "busypoll_napi_interrupts_total" ["device", "napi_id"] "Interrupts of the NAPI instance; absent where the driver does not name its interrupt.";
    NAPI_DEFER Gauge "busypoll_napi_defer_hard_irqs" ["device", "napi_id"] "Empty polls in a row that leave the interrupt masked.";
    NAPI_FLUSH Gauge "busypoll_napi_gro_flush_timeout_seconds" ["device", "napi_id"] "Time after which a timer polls a queue that no thread has polled.";
    NAPI_SUSPEND Gauge "busypoll_napi_irq_suspend_timeout_seconds" ["device", "napi_id"] "Time for which epoll keeps interrupts suspended.";
    NAPI_THREADED Gauge "busypoll_napi_threaded" ["device", "napi_id"] "0: softirqs poll the queue; 1: a kernel thread does; 2: a kernel thread busy polls.";

    NAPI_BUSY_POLLS Counter "busypoll_napi_busy_polls_total" ["netns", "device", "napi_id", "result"] "Busy-poll passes of the queue, by whether they found packets (hit) or not (empty).";
    NAPI_PASSES Counter "busypoll_napi_passes_total" ["netns", "device", "napi_id", "by"] "Other passes of the queue: the last of a busy poll, which arms the interrupt, by softirqs and by the kernel thread.";
    NAPI_PACKETS Counter "busypoll_napi_packets_total" ["netns", "device", "napi_id", "found"] "Packets of the queue by what found them: a busy poll, a softirq, the kernel thread.";

    RUN_SOCKETS Gauge "busypoll_run_sockets" ["uid", "pid", "program", "protocol", "state"] "Sockets of the stack plane.";
    RUN_UNLISTED Gauge "busypoll_run_sockets_not_listed" ["uid", "pid", "program"] "Sockets that the run's list had no room for.";
    RUN_PACKETS Counter "busypoll_run_packets_total" ["uid", "pid", "program", "found"] "Packets of the run by what found them: a busy poll, or the interrupt's side.";
    RUN_RECEIVED Counter "busypoll_run_received_packets_total" ["uid", "pid", "program", "way"] "Packets that the run received, by the way they came: over links to other processes of the machine, or by an interface.";
    RUN_OPENS Counter "busypoll_run_tcp_connections_total" ["uid", "pid", "program", "way"] "TCP connections that the run opened or accepted, by the way they go.";
    RUN_LINKS Gauge "busypoll_run_links" ["uid", "pid", "program"] "Processes of the machine that the run has a link to.";
    RUN_EMPTY Counter "busypoll_run_busy_polls_empty_total" ["uid", "pid", "program"] "Busy polls of the run that found nothing.";
    RUN_REFUSED Counter "busypoll_run_busy_polls_refused_total" ["uid", "pid", "program"] "Busy polls refused because another thread owned the queue.";
    RUN_CROWDED Counter "busypoll_run_busy_polls_crowded_total" ["uid", "pid", "program"] "Busy polls ended because another thread polled on the same CPU.";
    RUN_INTERRUPTS Counter "busypoll_run_interrupts_total" ["uid", "pid", "program"] "Interrupts that the run's queues took.";
    RUN_DROPS Counter "busypoll_run_drops_total" ["uid", "pid", "program", "cause"] "Packets that the run's stack dropped, by cause, under nstat's name where it has one; causes without a drop are absent.";
    RUN_RETRANSMITS Counter "busypoll_run_tcp_retransmitted_segments_total" ["uid", "pid", "program"] "TCP segments that the run retransmitted.";

    SPINNERS Gauge "busypoll_spinners" ["uid"] "CPUs on which a thread of this user's runs polls now.";
    SPINNERS_REFUSED Counter "busypoll_spinners_refused_total" ["uid"] "Waits that slept because another thread polled on their CPU.";
    HARM Counter "busypoll_spinning_harm_total" ["uid"] "Times a run found that polling made it slower, and stopped it for a while.";

    FINDINGS Gauge "busypoll_doctor_findings" ["code", "verdict"] "Findings of busypoll doctor by code; 0: there is none.";
    DOCTOR_TIME Gauge "busypoll_doctor_last_run_timestamp_seconds" [] "When the findings were made, in seconds since 1970.";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// <https://prometheus.io/docs/practices/naming/>, as far as a program can check it.
    #[test]
    fn names_follow_the_conventions() {
        let mut seen = HashSet::new();
        for metric in ALL {
            let name = metric.name;
            assert!(seen.insert(name), "{name} twice");
            assert!(name.starts_with("busypoll_"), "{name}");
            let plain = |text: &str| text.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
            assert!(plain(name) && metric.labels.iter().all(|label| plain(label)), "{name}");
            let total = name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{name}: _total is for counters");
            for unit in ["_ms", "_us", "_ns", "_usecs", "_milliseconds", "_percent", "_count"] {
                assert!(!name.contains(unit), "{name}: base units only");
            }
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
        }
    }
}
