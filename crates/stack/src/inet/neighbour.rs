//! The neighbour table: which link-layer address an IP address on the link has, and how sure we are of
//! it. The states and times of RFC 4861 section 7.3 as Linux uses them for both families (net/core/neighbour.c).
//!
//! Owns no NIC: it says what is to be asked, the caller asks. A path over a neighbour keeps the
//! neighbour's [`Version`] and is good while that stands still, so that sending takes no lock here.

use super::random::Random;
use crate::{
    sync::{Arc, AtomicU32, Ordering},
    time::Instant,
    wire::MacAddr,
};
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// The most neighbours one interface knows (Linux's `gc_thresh3`).
pub const NEIGHBOURS: usize = 1024;

/// How often a neighbour is asked before it counts as gone (`mcast_solicit`, `ucast_solicit`).
const ATTEMPTS: u32 = 3;
/// The pause between two questions (`retrans_time_ms`).
const RETRANSMIT: Duration = Duration::from_secs(1);
/// How long after its use a stale address is asked for again (`delay_first_probe_time`).
const DELAY: Duration = Duration::from_secs(5);
/// How long an answer is believed, on average (`base_reachable_time_ms`).
const REACHABLE_MS: u32 = 30_000;
/// How long a changed answer is held off after the last: of several replies the first counts (`locktime`).
const LOCK_TIME: Duration = Duration::from_secs(1);

/// Moves whenever what was known of a neighbour stops being so.
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
    /// Asked; nothing known.
    Incomplete { probes: u32 },
    /// Known, and confirmed of late.
    Reachable,
    /// Known, not confirmed of late, not used since.
    Stale,
    /// Known, not confirmed, and in use: confirmation may still come by itself.
    Delay,
    /// As `Delay`, and it has been asked.
    Probe { probes: u32 },
    /// It does not answer.
    Failed,
}

#[derive(Debug)]
struct Neighbour {
    state: State,
    mac: MacAddr,
    version: Arc<Version>,
    /// When its state ends by itself, if it does.
    until: Option<Instant>,
    /// When its address was last told.
    updated: Instant,
    used: Instant,
}

/// What became of asking for a neighbour.
#[derive(Debug)]
pub(super) struct Lookup {
    /// Where to send; `None`: park the packet.
    pub(super) mac: Option<MacAddr>,
    pub(super) version: Arc<Version>,
    pub(super) seen: u32,
    /// Ask everybody for it now.
    pub(super) solicit: bool,
}

/// How kind of a neighbour came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateKind {
    /// A reply to us alone.
    Reply,
    /// It asked for one of our addresses.
    Request,
    /// It asked for one of our addresses, over IPv6.
    Solicitation,
    /// Any other mention: a reply to all, a gratuitous announcement, a request to others.
    Other,
}

/// What the clock has brought about.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Questions to ask: of whom, and its address if only it is to hear.
    pub(super) solicit: Vec<(IpAddr, Option<MacAddr>)>,
    /// Neighbours that did not answer.
    pub(super) failed: Vec<IpAddr>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    neighbours: BTreeMap<IpAddr, Neighbour>,
    /// No state ends before this.
    next: Option<Instant>,
}

impl Table {
    /// Looks `address` up to send to it. The second value is whom it evicted from a full table.
    pub(super) fn look_up(&mut self, address: IpAddr, now: Instant) -> (Lookup, Option<IpAddr>) {
        let evicted = self.evict_for(address);
        let neighbour = self.neighbours.entry(address).or_insert_with(|| Neighbour::new(now));
        neighbour.used = now;
        let mut solicit = false;
        match neighbour.state {
            // A failed neighbour that is wanted again is asked again (`__neigh_event_send`).
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

    /// Takes in what an ARP packet or a solicitation says. True if packets queued for `address` can go now.
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
            // RFC 826, Packet Reception: a new entry only "if I am the target protocol address", and
            // an answer is about something we asked, so it has an entry.
            if !matches!(kind, UpdateKind::Request | UpdateKind::Solicitation) {
                return (false, None);
            }
            evicted = self.evict_for(address);
        }
        let neighbour = self.neighbours.entry(address).or_insert_with(|| Neighbour::new(now));
        let was_unknown = neighbour.address().is_none();
        if !was_unknown && neighbour.mac != mac {
            // RFC 4861 section 7.2.3 has a solicitation change an entry at once.
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
        // Only the answer to a question proves that the neighbour hears us, too (RFC 4861 7.2.5).
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

    /// Takes in an advertisement that `address` has the MAC address, if there is one in it; whether it answers a
    /// question, and overrides what was known (RFC 4861 section 7.2.5). True if packets queued for `address` can
    /// go now.
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

    /// The neighbour's address; `Err` if it is not known: whether it is being asked for.
    pub(super) fn known(&self, address: IpAddr) -> Result<MacAddr, bool> {
        let Some(neighbour) = self.neighbours.get(&address) else { return Err(false) };
        neighbour.address().ok_or(neighbour.state != State::Failed)
    }

    /// A floor above has proof that `address` hears us: an answer came (RFC 4861 section 7.3.1).
    pub(super) fn confirm(&mut self, address: IpAddr, now: Instant) {
        let Some(neighbour) = self.neighbours.get_mut(&address) else { return };
        if neighbour.address().is_some() {
            let until = now + Duration::from_millis(REACHABLE_MS.into());
            neighbour.enter(State::Reachable, Some(until));
            self.schedule(Some(until));
        }
    }

    /// Brings every state up to `now`.
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

    /// When [`tick`](Table::tick) has something to do.
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

    /// Lets a neighbour go if `address` is new and the table full: best one that has failed, else the one
    /// unused for longest.
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
                // The next sender looks again, and so tells that the neighbour is in use.
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

/// How long this answer is believed (RFC 4861 section 6.3.2: evenly between 0.5 and 1.5 times the base).
fn reachable_time(random: &Random) -> Duration {
    Duration::from_millis((REACHABLE_MS / 2 + random.below(REACHABLE_MS)).into())
}

/// The earlier of two instants that may never come.
pub(super) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
