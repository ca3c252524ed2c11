//! The neighbour table: the link-layer address and the reachability state of each IP address on the link. The
//! states and times are those of RFC 4861 section 7.3 as Linux uses them for both families (net/core/neighbour.c).
//!
//! Owns no NIC: it returns which neighbours to solicit, and the caller sends the packets. A path over a neighbour
//! keeps the neighbour's [`Version`] and is valid until that changes, so that sending takes no lock here.

use super::random::Random;
use crate::{
    sync::{Arc, AtomicU32, Ordering},
    time::Instant,
    wire::MacAddr,
};
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// The most neighbours in one interface's table (Linux's `gc_thresh3`).
pub const NEIGHBOURS: usize = 1024;

/// How often a neighbour is solicited before it has failed (`mcast_solicit`, `ucast_solicit`).
const ATTEMPTS: u32 = 3;
/// The interval between solicitations (`retrans_time_ms`).
const RETRANSMIT: Duration = Duration::from_secs(1);
/// How long after its first use a stale entry is probed (`delay_first_probe_time`).
const DELAY: Duration = Duration::from_secs(5);
/// How long an entry stays reachable after a confirmation, on average (`base_reachable_time_ms`).
const REACHABLE_MS: u32 = 30_000;
/// How long after an update a different address is ignored: the first of several replies wins (`locktime`).
const LOCK_TIME: Duration = Duration::from_secs(1);

/// Incremented whenever what was known of a neighbour is no longer valid.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU32);

impl Version {
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn bump(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Solicited; no address yet.
    Incomplete { probes: u32 },
    /// Known and confirmed recently.
    Reachable,
    /// Known, not confirmed recently, and not used since.
    Stale,
    /// Known, not confirmed, and in use: an upper layer may still confirm it.
    Delay,
    /// As `Delay`, and it has been probed.
    Probe { probes: u32 },
    /// It does not answer.
    Failed,
}

#[derive(Debug)]
struct Neighbour {
    state: State,
    mac: MacAddr,
    version: Arc<Version>,
    /// When its state times out; `None` if it does not.
    until: Option<Instant>,
    /// When its address was last updated.
    updated: Instant,
    used: Instant,
}

/// The result of looking up a neighbour.
#[derive(Debug)]
pub(super) struct Lookup {
    /// The address to send to; `None`: queue the packet.
    pub(super) mac: Option<MacAddr>,
    pub(super) version: Arc<Version>,
    pub(super) seen: u32,
    /// The caller must send a multicast (ARP: broadcast) solicitation now.
    pub(super) solicit: bool,
}

/// What kind of packet an update of a neighbour came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateKind {
    /// A reply sent to us by unicast.
    Reply,
    /// An ARP request for one of our addresses.
    Request,
    /// A neighbour solicitation for one of our addresses.
    Solicitation,
    /// Any other packet: a broadcast reply, a gratuitous announcement, a request for another host.
    Other,
}

/// What [`Table::tick`] finds to do.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Neighbours to solicit, each with its MAC address for a unicast probe.
    pub(super) solicit: Vec<(IpAddr, Option<MacAddr>)>,
    /// Neighbours that did not answer.
    pub(super) failed: Vec<IpAddr>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    neighbours: BTreeMap<IpAddr, Neighbour>,
    /// No state times out before this.
    next: Option<Instant>,
}

impl Table {
    /// Looks `address` up to send to it. The second value is the neighbour evicted from a full table.
    pub(super) fn look_up(&mut self, address: IpAddr, now: Instant) -> (Lookup, Option<IpAddr>) {
        let evicted = self.evict_for(address);
        let neighbour = self.neighbours.entry(address).or_insert_with(|| Neighbour::new(now));
        neighbour.used = now;
        let mut solicit = false;
        match neighbour.state {
            // A failed neighbour is solicited again when it is used again (`__neigh_event_send`).
            State::Failed => {
                neighbour.enter(State::Incomplete { probes: 1 }, Some(now + RETRANSMIT));
                solicit = true;
            }
            State::Stale => neighbour.enter(State::Delay, Some(now + DELAY)),
            _ => {}
        }
        let lookup = Lookup {
            mac: neighbour.address(),
            version: neighbour.version.clone(),
            seen: neighbour.version.get(),
            solicit,
        };
        let until = neighbour.until;
        self.schedule(until);
        (lookup, evicted)
    }

    /// Updates the table from an ARP packet or a solicitation. True if packets queued for `address` can be sent
    /// now. The second value is the neighbour evicted from a full table.
    pub(super) fn update(
        &mut self,
        address: IpAddr,
        mac: MacAddr,
        kind: UpdateKind,
        now: Instant,
        random: &Random,
    ) -> (bool, Option<IpAddr>) {
        let mut evicted = None;
        if !self.neighbours.contains_key(&address) {
            // RFC 826, Packet Reception: a new entry only "if I am the target protocol address". A reply to
            // our own request finds an entry.
            if !matches!(kind, UpdateKind::Request | UpdateKind::Solicitation) {
                return (false, None);
            }
            evicted = self.evict_for(address);
        }
        let neighbour = self.neighbours.entry(address).or_insert_with(|| Neighbour::new(now));
        let was_unknown = neighbour.address().is_none();
        if !was_unknown && neighbour.mac != mac {
            // RFC 4861 section 7.2.3: a solicitation changes an entry at once.
            if kind != UpdateKind::Solicitation && now.since(neighbour.updated) < LOCK_TIME {
                return (false, evicted);
            }
            neighbour.version.bump();
            neighbour.enter(State::Stale, None);
        }
        let probed = matches!(
            neighbour.state,
            State::Incomplete { .. } | State::Probe { .. } | State::Delay
        );
        neighbour.mac = mac;
        neighbour.updated = now;
        // Only a reply to our request proves that the neighbour receives our packets (RFC 4861 7.2.5).
        if kind == UpdateKind::Reply && (probed || neighbour.state == State::Stale) {
            let until = now + reachable_time(random);
            neighbour.enter(State::Reachable, Some(until));
        } else if was_unknown {
            neighbour.enter(State::Stale, None);
        }
        if was_unknown {
            neighbour.version.bump();
        }
        let until = neighbour.until;
        self.schedule(until);
        (was_unknown, evicted)
    }

    /// Updates the table from a neighbour advertisement for `address`: the MAC address in it, if any, and its
    /// Solicited and Override flags (RFC 4861 section 7.2.5). True if packets queued for `address` can be sent
    /// now.
    pub(super) fn advertisement(
        &mut self,
        address: IpAddr,
        (mac, solicited, overrides): (Option<MacAddr>, bool, bool),
        now: Instant,
        random: &Random,
    ) -> bool {
        // "If no entry exists, the advertisement SHOULD be silently discarded."
        let Some(neighbour) = self.neighbours.get_mut(&address) else { return false };
        let known = neighbour.address();
        let Some(mac) = mac.or(known) else { return false };
        let changed = known != Some(mac);
        if changed && known.is_some() && !overrides {
            // "If the state of the entry is REACHABLE, set it to STALE, but do not update the entry in any other
            // way."
            if neighbour.state == State::Reachable {
                neighbour.enter(State::Stale, None);
                neighbour.version.bump();
            }
            return false;
        }
        if changed {
            neighbour.mac = mac;
            neighbour.updated = now;
            neighbour.version.bump();
        }
        if solicited {
            let until = now + reachable_time(random);
            neighbour.enter(State::Reachable, Some(until));
            self.schedule(Some(until));
        } else if changed {
            neighbour.enter(State::Stale, None);
        }
        known.is_none()
    }

    /// The neighbour's address. If it is not known, `Err` says whether it is being resolved.
    pub(super) fn known(&self, address: IpAddr) -> Result<MacAddr, bool> {
        let Some(neighbour) = self.neighbours.get(&address) else { return Err(false) };
        neighbour.address().ok_or(neighbour.state != State::Failed)
    }

    /// An upper layer got an answer, which proves that `address` is reachable (RFC 4861 section 7.3.1).
    pub(super) fn confirm(&mut self, address: IpAddr, now: Instant) {
        let Some(neighbour) = self.neighbours.get_mut(&address) else { return };
        if neighbour.address().is_some() {
            let until = now + Duration::from_millis(REACHABLE_MS.into());
            neighbour.enter(State::Reachable, Some(until));
            self.schedule(Some(until));
        }
    }

    /// Times out every state that is due at `now`.
    pub(super) fn tick(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        if self.next.is_none_or(|next| now < next) {
            return due;
        }
        self.next = None;
        let mut next = None;
        for (&address, neighbour) in &mut self.neighbours {
            if neighbour.until.is_some_and(|until| until <= now) {
                neighbour.time_out(address, now, &mut due);
            }
            next = earlier(next, neighbour.until);
        }
        self.next = next;
        due
    }

    /// When [`tick`](Table::tick) must run next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.neighbours.len()
    }

    fn schedule(&mut self, until: Option<Instant>) {
        self.next = earlier(self.next, until);
    }

    /// Evicts a neighbour if `address` is new and the table full: a failed one if there is one, else the least
    /// recently used.
    fn evict_for(&mut self, address: IpAddr) -> Option<IpAddr> {
        if self.neighbours.len() < NEIGHBOURS || self.neighbours.contains_key(&address) {
            return None;
        }
        let least = |(_, neighbour): &(&IpAddr, &Neighbour)| {
            (neighbour.state != State::Failed, neighbour.used)
        };
        let victim = self.neighbours.iter().min_by_key(least).map(|(address, _)| *address)?;
        if let Some(neighbour) = self.neighbours.remove(&victim) {
            neighbour.version.bump();
        }
        Some(victim)
    }
}

impl Neighbour {
    fn new(now: Instant) -> Neighbour {
        Neighbour {
            state: State::Failed,
            mac: MacAddr::UNSPECIFIED,
            version: Arc::default(),
            until: None,
            updated: now,
            used: now,
        }
    }

    fn enter(&mut self, state: State, until: Option<Instant>) {
        self.state = state;
        self.until = until;
    }

    fn address(&self) -> Option<MacAddr> {
        match self.state {
            State::Incomplete { .. } | State::Failed => None,
            _ => Some(self.mac),
        }
    }

    fn time_out(&mut self, address: IpAddr, now: Instant, due: &mut Due) {
        let again = Some(now + RETRANSMIT);
        match self.state {
            State::Incomplete { probes } if probes < ATTEMPTS => {
                self.enter(State::Incomplete { probes: probes + 1 }, again);
                due.solicit.push((address, None));
            }
            State::Incomplete { .. } => {
                self.enter(State::Failed, None);
                due.failed.push(address);
            }
            State::Reachable => {
                // The next sender must look it up again, which moves it on to `Delay`.
                self.enter(State::Stale, None);
                self.version.bump();
            }
            State::Delay => {
                self.enter(State::Probe { probes: 1 }, again);
                due.solicit.push((address, Some(self.mac)));
            }
            State::Probe { probes } if probes < ATTEMPTS => {
                self.enter(State::Probe { probes: probes + 1 }, again);
                due.solicit.push((address, Some(self.mac)));
            }
            State::Probe { .. } => {
                self.enter(State::Failed, None);
                self.version.bump();
                due.failed.push(address);
            }
            State::Stale | State::Failed => self.until = None,
        }
    }
}

/// How long the entry stays reachable (RFC 4861 section 6.3.2: uniformly between 0.5 and 1.5 times the base).
fn reachable_time(random: &Random) -> Duration {
    Duration::from_millis((REACHABLE_MS / 2 + random.below(REACHABLE_MS)).into())
}

/// The earlier of two instants; `None` means never.
pub(super) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
