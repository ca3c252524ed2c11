//! Path MTUs reported by ICMP (RFC 1191, RFC 8201). Bounded. An entry expires after ten minutes, so that a larger MTU
//! is discovered.

use super::neighbour::earlier;
use crate::{
    sync::{AtomicU64, Mutex, Ordering, lock},
    time::Instant,
    wire::ipv6,
};
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// Linux's `min_pmtu`: a smaller reported MTU is not used, or one forged packet would make us send very many
/// fragments.
const MIN_PMTU: u32 = 552;
/// RFC 1191 section 5: the MTU assumed if the router reports none.
const UNREPORTED: u32 = 576;
/// Linux's `mtu_expires`.
const LIFETIME: Duration = Duration::from_secs(600);
/// The most destinations with an entry.
const PATHS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathMtu {
    /// The largest packet, bytes.
    pub(super) mtu: u32,
    /// The path needs a smaller MTU: routers may fragment.
    pub(super) locked: bool,
    expires: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Pmtu {
    paths: Mutex<BTreeMap<IpAddr, PathMtu>>,
    /// The number of entries: usually 0, and then the lock is not taken.
    count: AtomicU64,
}

impl Pmtu {
    pub(super) fn get(&self, destination: IpAddr) -> Option<PathMtu> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.paths).get(&destination).copied()
    }

    /// Records a reported path MTU. Returns the new entry if it lowers the MTU or locks it.
    pub(super) fn update(
        &self,
        destination: IpAddr,
        mtu: Option<u32>,
        now: Instant,
    ) -> Option<PathMtu> {
        let reported = mtu.unwrap_or(UNREPORTED);
        let expires = now + LIFETIME;
        let path_mtu = match destination {
            IpAddr::V4(_) => {
                PathMtu { mtu: reported.max(MIN_PMTU), locked: reported < MIN_PMTU, expires }
            }
            // RFC 8201 section 4: "If a node receives a Packet Too Big message reporting a next-hop MTU that is
            // less than the IPv6 minimum link MTU, it must discard it."
            IpAddr::V6(_) if reported < ipv6::MIN_MTU as u32 => return None,
            IpAddr::V6(_) => PathMtu { mtu: reported, locked: false, expires },
        };
        let mut paths = lock(&self.paths);
        if paths
            .get(&destination)
            .is_some_and(|old| old.mtu <= path_mtu.mtu && old.locked >= path_mtu.locked)
        {
            return None;
        }
        if paths.len() >= PATHS
            && !paths.contains_key(&destination)
            && let Some(oldest) =
                paths.iter().min_by_key(|(_, path_mtu)| path_mtu.expires).map(|(a, _)| *a)
        {
            paths.remove(&oldest);
        }
        paths.insert(destination, path_mtu);
        self.count.store(paths.len() as u64, Ordering::Release);
        Some(path_mtu)
    }

    /// Removes the expired entries. Returns whether there were any, and when the next expires.
    pub(super) fn tick(&self, now: Instant) -> (bool, Option<Instant>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return (false, None);
        }
        let mut paths = lock(&self.paths);
        let before = paths.len();
        paths.retain(|_, path_mtu| path_mtu.expires > now);
        self.count.store(paths.len() as u64, Ordering::Release);
        (
            paths.len() < before,
            paths.values().fold(None, |next, path_mtu| earlier(next, Some(path_mtu.expires))),
        )
    }
}

impl PathMtu {
    pub(super) fn expires(&self) -> Instant {
        self.expires
    }
}
