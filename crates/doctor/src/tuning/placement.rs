//! Placement of a pinned process against its devices' interrupts and NUMA node.

use std::fs;
use std::os::unix::fs::MetadataExt;

use busypoll_linux::link::Links;
use busypoll_linux::sysfs::Sysfs;
use busypoll_linux::topology::{self, CpuList};
use busypoll_linux::{irq, netns, numa};

use crate::rules::{APP_FAR_NODE, IRQ_APP_CPU};
use crate::{Error, Report, Scope, Subject};

/// A device with interrupts of its own.
struct Nic {
    name: String,
    /// CPUs of its node.
    near: Option<CpuList>,
    /// Receive interrupts and the CPUs they go to.
    interrupts: Vec<(u32, CpuList)>,
}

pub(crate) fn check(scope: &Scope, report: &mut Report) -> Result<(), Error> {
    // Only for a process that was asked for: nothing shows which devices other processes depend on.
    if scope.pids.is_empty() {
        return Ok(());
    }
    // Other checks report a missing /sys.
    let (Ok(sysfs), Ok(online)) = (Sysfs::open(), topology::online()) else { return Ok(()) };
    let named = |name: &String| scope.devices.is_empty() || scope.devices.contains(name);
    let links = Links::open()?.all()?;
    let up = links.into_iter().filter(|l| l.up && !l.loopback && named(&l.name));
    let nics: Vec<Nic> = up.map(|l| Nic::read(l.name, &sysfs)).collect();
    // A process in another network namespace has other devices.
    let ours = netns::inode().ok().map(u64::from);
    let has_them =
        |pid: &&u32| fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|m| m.ino()) == ours;
    for pid in scope.pids.iter().filter(has_them) {
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            line.map(|l| l.trim().to_owned())
        };
        let cpus = field("Cpus_allowed_list").and_then(|list| list.parse::<CpuList>().ok());
        let Some(cpus) = cpus.map(|c| c.iter().filter(|c| online.contains(*c)).collect()) else {
            continue;
        };
        let name = field("Name").unwrap_or_default();
        let subject = Subject::Process { pid: *pid, name };
        for nic in &nics {
            nic.judge(&subject, *pid, &cpus, &online, report);
        }
    }
    Ok(())
}

/// The CPUs and their SMT siblings.
fn cores(cpus: &CpuList) -> CpuList {
    cpus.iter().flat_map(|cpu| topology::cpu(cpu).siblings.iter().collect::<Vec<_>>()).collect()
}

impl Nic {
    fn read(name: String, sysfs: &Sysfs) -> Self {
        let node = numa::of_device(sysfs, &name);
        let nodes = numa::nodes().unwrap_or_default();
        let receives = |irq: &u32| {
            // Interrupts that drivers use for something else than receiving.
            let other = ["output", "config", "tx-", "ctrl", "async", "mbx", "event"];
            !irq::names(*irq).iter().any(|name| other.iter().any(|o| name.contains(o)))
        };
        let interrupts = irq::of_device(sysfs, &name).into_iter().filter(receives);
        Nic {
            near: nodes.into_iter().find(|n| Some(n.id) == node).map(|n| n.cpus),
            interrupts: interrupts
                .filter_map(|irq| {
                    let wished = irq::affinity(irq).ok();
                    // x86 moves an interrupt when it next fires: until then the effective affinity is stale.
                    let stands = |cpus: &CpuList| match &wished {
                        Some(wished) => cpus.iter().all(|cpu| wished.contains(cpu)),
                        None => true,
                    };
                    let effective = irq::effective_affinity(irq).ok();
                    let effective = effective.filter(|cpus| !cpus.is_empty() && stands(cpus));
                    Some((irq, effective.or(wished)?))
                })
                .collect(),
            name,
        }
    }

    fn judge(
        &self,
        subject: &Subject,
        pid: u32,
        cpus: &CpuList,
        online: &CpuList,
        report: &mut Report,
    ) {
        let status = format!("/proc/{pid}/status, Cpus_allowed_list");
        let is_pinned = cpus.len() < online.len();
        let taken = cores(cpus);
        for (irq, to) in self.interrupts.iter().filter(|_| is_pinned) {
            let same = !to.is_empty() && cpus.iter().all(|cpu| cores(to).contains(cpu));
            if !same {
                continue;
            }
            let what = format!("interrupt {irq} of {} goes to CPU {to} as well", self.name);
            let found = IRQ_APP_CPU.finding(subject.clone(), what).evidence(&status, cpus);
            let found = found.evidence(format!("/proc/irq/{irq}/effective_affinity_list"), to);
            let free = |among: &CpuList| -> CpuList {
                among.iter().filter(|cpu| !taken.contains(*cpu)).collect()
            };
            let near = self.near.as_ref().map(free).filter(|cpus| !cpus.is_empty());
            let other = near.unwrap_or_else(|| free(online));
            report.add(match other.iter().next() {
                Some(cpu) => {
                    found.remedy(format!("echo {cpu} > /proc/irq/{irq}/smp_affinity_list"))
                }
                None => found,
            });
        }
        if let Some(near) = &self.near
            && !near.is_empty()
            && !self.interrupts.is_empty()
            && !cpus.iter().any(|cpu| near.contains(cpu))
        {
            let what = format!("it runs on CPU {cpus}, {} is beside CPU {near}", self.name);
            let found = APP_FAR_NODE.finding(subject.clone(), what).evidence(&status, cpus);
            let found =
                found.evidence(format!("/sys/class/net/{}/device/numa_node", self.name), near);
            report.add(found.remedy(format!("taskset -a -c -p {near} {pid}")));
        }
    }
}
