//! How long a device's interrupt may wait for more packets.

use super::nic::Nic;
use crate::rules::{COALESCE_ADAPTIVE, COALESCE_FRAMES_ONLY, COALESCE_LONG, COALESCE_UNPOLLED};
use crate::{Finding, Report, Subject};

/// Rx-usecs above which a sleeping receiver waits too long.
const LONG_USECS: u32 = 100;

/// Reports coalescing that costs latency: as faults if `wanted` says that the device is polled or was asked
/// for by name. A device used for throughput is right as it is.
pub(crate) fn check(name: &str, nic: &Nic, wanted: impl FnOnce() -> bool, report: &mut Report) {
    let faults = faults(name, nic);
    if faults.is_empty() {
        return;
    }
    if wanted() {
        return faults.into_iter().for_each(|fault| report.add(fault));
    }
    let each: Vec<&str> = faults.iter().map(|fault| fault.what.as_str()).collect();
    let what = format!(
        "{}, which suits a device that is not busy polled; `busypoll tune plan busy-poll --dev {name}` shows settings for busy polling",
        each.join(", ")
    );
    let mut found = COALESCE_UNPOLLED.finding(Subject::device(name), what);
    found.evidence = faults.into_iter().flat_map(|fault| fault.evidence).collect();
    report.add(found);
}

fn faults(name: &str, nic: &Nic) -> Vec<Finding> {
    let mut faults = Vec::new();
    // Software devices have no coalescing.
    let (Some(usecs), Some(frames)) = (nic.rx_usecs, nic.rx_frames) else { return faults };
    let subject = || Subject::device(name);
    let read = format!("ethtool -c {name}");
    if nic.adaptive_rx == Some(true) {
        let found = COALESCE_ADAPTIVE.finding(subject(), "adaptive-rx is on");
        let found = found.evidence(&read, "Adaptive RX: on");
        faults.push(found.remedy(format!("ethtool -C {name} adaptive-rx off")));
    }
    if usecs > LONG_USECS {
        let found = COALESCE_LONG.finding(subject(), format!("an interrupt may wait {usecs} us"));
        let found = found.evidence(&read, format!("rx-usecs: {usecs}"));
        faults.push(found.remedy(format!("ethtool -C {name} rx-usecs {LONG_USECS}")));
    }
    if usecs == 0 && frames > 1 {
        let what = format!("an interrupt waits for {frames} packets");
        let found = COALESCE_FRAMES_ONLY.finding(subject(), what);
        let found = found.evidence(&read, format!("rx-usecs: 0, rx-frames: {frames}"));
        faults.push(found.remedy(format!("ethtool -C {name} rx-frames 1")));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    fn report(usecs: u32, frames: u32, adaptive: bool, wanted: bool) -> Report {
        let nic = Nic {
            rx_usecs: Some(usecs),
            rx_frames: Some(frames),
            adaptive_rx: Some(adaptive),
            ..Nic::default()
        };
        let mut report = Report::default();
        check("eth7", &nic, || wanted, &mut report);
        report
    }

    /// No driver of the test machine has adaptive coalescing or counts frames, so the values are given here.
    #[test]
    fn coalescing_that_delays_a_poller_is_a_fault_with_a_remedy() {
        for (usecs, frames, adaptive, code, cure) in [
            (8, 0, true, "BP-COALESCE-ADAPTIVE", "adaptive-rx off"),
            (101, 0, false, "BP-COALESCE-LONG", "rx-usecs 100"),
            (0, 2, false, "BP-COALESCE-FRAMES-ONLY", "rx-frames 1"),
        ] {
            let report = report(usecs, frames, adaptive, true);
            let [found] = report.findings()[..] else { panic!("{code}: {:?}", report.findings()) };
            assert_eq!((found.rule.code, found.verdict()), (code, Verdict::Harmful));
            assert_eq!(found.remedy, Some(format!("ethtool -C eth7 {cure}")));
        }
        assert_eq!(report(200, 0, true, true).faults(), 2);
        for (usecs, frames) in [(0, 0), (0, 1), (1, 64), (100, 0)] {
            assert!(report(usecs, frames, false, true).findings().is_empty(), "{usecs} {frames}");
        }
    }

    #[test]
    fn coalescing_on_a_device_that_is_not_polled_is_no_fault() {
        let report = report(200, 0, true, false);
        let [found] = report.findings()[..] else { panic!("{:?}", report.findings()) };
        assert_eq!((found.rule.code, found.verdict()), ("BP-COALESCE-UNPOLLED", Verdict::Fine));
        assert!(found.what.contains("adaptive-rx is on, an interrupt may wait 200 us"));
    }
}
