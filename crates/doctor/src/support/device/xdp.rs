//! XDP programs and AF_XDP sockets on a device.

use std::fs;

use busypoll_linux::link::{Link, XdpMode};

use super::facts::Device;
use crate::rules::{XDP_ATTACHED, XSK_NO_NAPI};
use crate::{Report, Subject};

pub(super) fn check(link: &Link, device: &Device, report: &mut Report) {
    for queue in device.queues.iter().filter(|q| q.xsk && q.napi.is_none()) {
        let subject = Subject::Queue { device: link.name.clone(), queue: queue.index };
        let what = "its AF_XDP socket has no NAPI id: only its program can poll, not the kernel";
        let found = XSK_NO_NAPI.finding(subject, what);
        report.add(found.evidence("netdev netlink queue-get", "xsk, no napi-id"));
    }
    let Some(xdp) = link.xdp else { return };
    let mode = match xdp.mode {
        XdpMode::Driver => "in the driver",
        XdpMode::Generic => "generic",
        XdpMode::Hardware => "in the hardware",
        XdpMode::Several => "several",
    };
    let program = xdp.program.map_or("several".into(), |id| id.to_string());
    let holders = xdp.program.map(holders).unwrap_or_default();
    let whose = match holders.as_slice() {
        [] => "held by the device or by a process that may not be inspected".into(),
        some => format!("held by {}", some.join(", ")),
    };
    let what = format!("XDP program {program} ({mode}), {whose}");
    let found = XDP_ATTACHED.finding(Subject::device(&link.name), what);
    report.add(found.evidence(format!("ip link show {}", link.name), format!("xdp id {program}")));
}

/// The processes that hold the program or its link by a descriptor: `name[PID]`.
fn holders(program: u32) -> Vec<String> {
    let wanted = format!("prog_id:\t{program}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let holds = |pid: u32| {
        let folder = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        folder.into_iter().any(|entry| {
            let is_bpf = fs::read_link(entry.path())
                .is_ok_and(|to| to.to_string_lossy().starts_with("anon_inode:bpf"));
            let info = || {
                let path = format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy());
                fs::read_to_string(path).unwrap_or_default()
            };
            is_bpf && info().lines().any(|line| line == wanted)
        })
    };
    let pids = processes.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let name = |pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{}[{pid}]", name.trim())
    };
    pids.filter(|pid| holds(*pid)).map(name).collect()
}
