//! Deferral and suspension of a device's interrupts: settings that do nothing alone, or that do harm.

use busypoll_linux::deferral::{self, Cost};
use busypoll_linux::link::Link;

use super::Sources;
use super::facts::{Device, Instance};
use super::pollers::Pollers;
use crate::rules::{
    DEFER_WITHOUT_FLUSH, GRO_FLUSH_LOSS, GRO_FLUSH_NO_POLLER, GRO_FLUSH_PRICE,
    SUSPEND_WITHOUT_FLUSH,
};
use crate::{Report, Subject};

const FLUSH: &str = "gro_flush_timeout";
const DEFER: &str = "napi_defer_hard_irqs";

pub(super) fn check(link: &Link, device: &Device, sources: &Sources, report: &mut Report) {
    // Before Linux 6.13 the device has one value for all its instances.
    let sysfs = |name| {
        let sysfs = sources.sysfs.as_ref()?;
        sysfs.attribute(&link.name, name)?.parse::<u64>().ok()
    };
    let files = [(FLUSH, sysfs(FLUSH)), (DEFER, sysfs(DEFER))];
    let of_device = [files[0].1.unwrap_or(0), files[1].1.unwrap_or(0), 0];
    let of_instances = device.napis.iter().map(|n| settings(n, of_device));
    // One finding for all instances: one command fixes them all.
    let all: Vec<[u64; 3]> = of_instances.chain([of_device]).collect();
    let any = |rule: fn(&[u64; 3]) -> bool| all.iter().find(|s| rule(s)).copied();
    let subject = || Subject::device(&link.name);
    // The sysfs file does not show the value of an instance that has its own.
    let read = |name: &str, value: u64| match files.contains(&(name, Some(value))) {
        true => format!("/sys/class/net/{}/{name}", link.name),
        false => format!("napi-get {}", name.trim_start_matches("napi_").replace('_', "-")),
    };

    if let Some([flush, ..]) = any(|[flush, ..]| *flush > 0) {
        let pollers = Pollers::of(device);
        let deferred = any(|[flush, defer, _]| *flush > 0 && *defer > 0);
        let us = flush as f64 / 1e3;
        let polled = pollers.how.longest_usecs.unwrap_or(0);
        let cost = deferred.map_or(Cost::Free, |[flush, defer, _]| {
            deferral::cost(u32::try_from(defer).ok(), Some(flush), pollers.how)
        });
        let (rule, what, curable) = match cost {
            _ if !pollers.any => {
                (&GRO_FLUSH_NO_POLLER, format!("packets may wait {us}us for a timer"), true)
            }
            Cost::Free => return without_counterpart(&all, link, sources, report, &read),
            Cost::Loss(_) => {
                let what = format!(
                    "packets may wait {us}us for a timer: the longest poll is {polled}us, and nothing prefers busy polling"
                );
                (&GRO_FLUSH_LOSS, what, true)
            }
            Cost::Price(_) => {
                let what = format!(
                    "a packet that comes after the poll has ended waits up to {us}us for a timer"
                );
                (&GRO_FLUSH_PRICE, what, false)
            }
        };
        let found = rule.finding(subject(), what);
        let found = found.evidence(read(FLUSH, flush), format!("{flush} ns"));
        let [read, said] = pollers.evidence;
        let mut found = found.evidence(read, said);
        if curable {
            // defer-hard-irqs left above zero would be the next finding.
            let mut command = sources.sysfs_command(&link.name, FLUSH, "0");
            if any(|[_, defer, _]| *defer > 0).is_some() {
                command += &format!(" && {}", sources.sysfs_command(&link.name, DEFER, "0"));
            }
            found = found.remedy(command);
        }
        report.add(found);
    }
    without_counterpart(&all, link, sources, report, &read);
}

/// Settings that have no effect without another.
fn without_counterpart(
    all: &[[u64; 3]],
    link: &Link,
    sources: &Sources,
    report: &mut Report,
    read: &dyn Fn(&str, u64) -> String,
) {
    let any = |rule: fn(&[u64; 3]) -> bool| all.iter().find(|s| rule(s)).copied();
    let subject = || Subject::device(&link.name);
    if let Some([flush, defer, _]) = any(|[flush, defer, _]| *flush == 0 && *defer > 0) {
        let what = format!("defer-hard-irqs is {defer} and gro-flush-timeout 0");
        let found =
            DEFER_WITHOUT_FLUSH.finding(subject(), what).evidence(read(DEFER, defer), defer);
        let found = found.evidence(read(FLUSH, flush), format!("{flush} ns"));
        report.add(found.remedy(sources.sysfs_command(&link.name, DEFER, "0")));
    }
    if let Some([flush, defer, suspend]) =
        any(|[flush, defer, suspend]| *suspend > 0 && (*flush == 0 || *defer == 0))
    {
        let what = format!(
            "irq-suspend-timeout is {}us, gro-flush-timeout {flush} ns, defer-hard-irqs {defer}",
            suspend as f64 / 1e3
        );
        let found = SUSPEND_WITHOUT_FLUSH.finding(subject(), what);
        let found = found.evidence("napi-get irq-suspend-timeout", format!("{suspend} ns"));
        // The values of the kernel's own test, tools/testing/selftests/net/busy_poll_test.sh.
        let command = format!(
            "{} && {}",
            sources.sysfs_command(&link.name, FLUSH, "50000"),
            sources.sysfs_command(&link.name, DEFER, "100")
        );
        report.add(found.remedy(command));
    }
}

/// gro-flush-timeout, defer-hard-irqs and irq-suspend-timeout of an instance.
fn settings(napi: &Instance, of_device: [u64; 3]) -> [u64; 3] {
    [
        napi.gro_flush_timeout_ns.unwrap_or(of_device[0]),
        napi.defer_hard_irqs.map_or(of_device[1], u64::from),
        napi.irq_suspend_timeout_ns.unwrap_or(of_device[2]),
    ]
}
