//! The rule of veth, which depends on both ends: the receiver's NAPI needs GRO or an XDP program, and the
//! sender must have no TSO. A round trip needs this in both directions.

use std::path::{Path, PathBuf};

use busypoll_lab::Namespace;
use busypoll_linux::ethtool::{Ethtool, GRO, TSO};
use busypoll_linux::link::{Link, Links, Lower};
use busypoll_linux::netns;

use super::Sources;
use super::facts::Device;
use crate::rules::{VETH_GRO_OFF, VETH_PEER_UNSEEN, VETH_TSO_ON};
use crate::{Report, Subject};

/// One end, with its subject and how to reach it.
struct End {
    subject: Subject,
    name: String,
    gro: bool,
    tso: bool,
    xdp: bool,
    /// The prefix of a command that reaches it.
    prefix: String,
}

pub(super) fn check(link: &Link, _: &Device, sources: &Sources, report: &mut Report) {
    let here = match End::here(link) {
        Ok(end) => end,
        Err(e) => return report.not_seen(Subject::device(&link.name), "GRO and TSO", "ethtool", e),
    };
    let there = link.lower.and_then(|lower| other_end(link, lower, sources));
    receives(&here, report);
    if !sources.receive_only {
        sends(&here, report);
    }
    match there {
        Some(there) => {
            if !sources.receive_only {
                receives(&there, report);
            }
            sends(&there, report);
        }
        None => {
            let what = "the other end's namespace cannot be entered";
            let found = VETH_PEER_UNSEEN.finding(Subject::device(&link.name), what);
            let number = link.lower.and_then(|l| l.netns);
            let said = number.map_or("none".into(), |n| format!("link-netnsid {n}"));
            report.add(found.evidence(format!("ip link show {}", link.name), said));
        }
    }
}

fn receives(end: &End, report: &mut Report) {
    if end.gro || end.xdp {
        return;
    }
    let what = format!("GRO is off on {}, so packets reach it without a NAPI id", end.name);
    let found = VETH_GRO_OFF.finding(end.subject.clone(), what);
    let found = found.evidence(format!("ethtool -k {}", end.name), "rx-gro off");
    let found = found.evidence(format!("ip link show {}", end.name), "no XDP program");
    report.add(found.remedy(format!("{}ethtool -K {} gro on", end.prefix, end.name)));
}

fn sends(end: &End, report: &mut Report) {
    if !end.tso {
        return;
    }
    let what = format!("TSO is on at {}, so what it sends carries no NAPI id", end.name);
    let found = VETH_TSO_ON.finding(end.subject.clone(), what);
    let found = found.evidence(format!("ethtool -k {}", end.name), "tcp-segmentation-offload on");
    report.add(found.remedy(format!("{}ethtool -K {} tso off", end.prefix, end.name)));
}

impl End {
    fn here(link: &Link) -> busypoll_linux::Result<Self> {
        let ethtool = Ethtool::open(&link.name)?;
        Ok(End {
            subject: Subject::device(&link.name),
            name: link.name.clone(),
            gro: ethtool.all_on(GRO)?,
            tso: !ethtool.all_off(TSO)?,
            xdp: link.xdp.is_some(),
            prefix: String::new(),
        })
    }
}

/// The other end, in this namespace or in one this user may enter.
fn other_end(link: &Link, lower: Lower, sources: &Sources) -> Option<End> {
    let Some(number) = lower.netns else {
        return End::here(sources.by_index(lower.ifindex)?).ok();
    };
    let path: PathBuf = netns::find(number)?;
    let namespace = Namespace::open(Path::new(&path)).ok()?;
    let end = namespace.enter(|| -> busypoll_linux::Result<Option<End>> {
        let links = Links::open()?.all()?;
        // Both the namespace and the index in it are exact, so this is the peer.
        links.iter().find(|l| l.ifindex == lower.ifindex).map(End::here).transpose()
    });
    let mut end = end.ok()?.ok()??;
    let netns = path.display().to_string();
    end.prefix = format!("nsenter --net={netns} ");
    end.subject = Subject::PeerDevice { name: end.name.clone(), netns, of: link.name.clone() };
    Some(end)
}
