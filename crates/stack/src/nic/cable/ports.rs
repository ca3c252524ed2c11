//! The addresses at which a process receives datagrams over a cable: a table in the cable's memory, which that process
//! writes and the process at the other end reads. So a datagram costs its sender one load, and an address that is
//! withdrawn is withdrawn at once.
//!
//! A process can write anything into its table: it harms only what is sent to it.

use super::between::End;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, fence};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Entries of a table. A socket for which there is no room receives by the kernel.
pub(super) const ENTRIES: usize = 512;

/// How many entries are tried for a port.
const PROBES: usize = 8;

/// The lowest bits of an entry's word; the others count its changes.
const STATE: u32 = 3;
const EMPTY: u32 = 0;
/// The kernel delivers until the process takes datagrams over the cable.
const LATER: u32 = 1;
const READY: u32 = 2;
const CHANGED: u32 = STATE + 1;

/// One address.
#[repr(C, align(64))]
pub(super) struct Entry {
    /// Its state and its number of changes. Written last.
    word: AtomicU32,
    /// Written by the sender: not 0 once it has a datagram for this address.
    asked: AtomicU32,
    port: AtomicU32,
    /// `IPV6_V6ONLY`, and the port of the only sender; 0: any.
    only_v6: AtomicU32,
    from_port: AtomicU32,
    address: [AtomicU32; 4],
    from: [AtomicU32; 4],
}

/// An address at which a socket receives datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receives {
    pub(crate) at: SocketAddr,
    pub(crate) only_v6: bool,
    /// The only sender, if the socket is connected.
    pub(crate) from: Option<SocketAddr>,
    pub(crate) is_ready: bool,
}

/// What a process knows of an address of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The word of its entry, which stays the same for as long as datagrams to it may be sent.
    Ready(usize, u32),
    /// The kernel delivers to it for now.
    Later,
}

/// Both tables of a cable to another process.
pub(crate) struct Ports {
    end: Arc<End>,
    /// Until then, in nanoseconds, the ring is taken as full without waiting for room.
    pub(crate) full_until: AtomicU64,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ports")
    }
}

impl Ports {
    pub(super) fn new(end: Arc<End>) -> Ports {
        Ports { end, full_until: AtomicU64::new(0) }
    }

    /// Our own table, of which this process is the only writer; the caller holds the lock of all writers. `None`: there
    /// is no room.
    pub(crate) fn enter(&self, receives: &Receives) -> Option<usize> {
        let table = self.end.ours();
        let port = receives.at.port();
        let at = probes(port).find(|at| state(&table[*at]) == EMPTY)?;
        let entry = &table[at];
        entry.asked.store(0, Ordering::Relaxed);
        self.write(entry, receives);
        Some(at)
    }

    /// Changes what an entry says.
    pub(crate) fn change(&self, at: usize, receives: &Receives) {
        let entry = &self.end.ours()[at % ENTRIES];
        self.remove(at);
        self.write(entry, receives);
    }

    fn write(&self, entry: &Entry, receives: &Receives) {
        entry.port.store(receives.at.port().into(), Ordering::Relaxed);
        entry.only_v6.store(receives.only_v6.into(), Ordering::Relaxed);
        set_address(&entry.address, receives.at.ip());
        let from_port = receives.from.map_or(0, |from| from.port());
        entry.from_port.store(from_port.into(), Ordering::Relaxed);
        if let Some(from) = receives.from {
            set_address(&entry.from, from.ip());
        }
        let state = if receives.is_ready { READY } else { LATER };
        let word = entry.word.load(Ordering::Relaxed);
        entry.word.store((word & !STATE).wrapping_add(CHANGED) | state, Ordering::Release);
    }

    /// From now on no datagram is sent there.
    pub(crate) fn remove(&self, at: usize) {
        let word = &self.end.ours()[at % ENTRIES].word;
        let before = word.load(Ordering::Relaxed);
        word.store((before & !STATE).wrapping_add(CHANGED) | EMPTY, Ordering::SeqCst);
        // What is written next must not be seen under the old word.
        fence(Ordering::Release);
    }

    /// Whether the other process has a datagram for an entry of ours.
    pub(crate) fn is_asked(&self, at: usize) -> bool {
        self.end.ours()[at % ENTRIES].asked.load(Ordering::Relaxed) != 0
    }

    /// What the other process says of `to`, for a datagram from `from`. If the kernel delivers to it, asks that process to
    /// take datagrams over the cable.
    pub(crate) fn find(&self, to: SocketAddr, from: SocketAddr) -> Option<Found> {
        let table = self.end.theirs();
        probes(to.port()).find_map(|at| {
            let entry = &table[at];
            let word = entry.word.load(Ordering::Acquire);
            if word & STATE == EMPTY || !entry.receives(to, from) {
                return None;
            }
            fence(Ordering::Acquire);
            if entry.word.load(Ordering::Relaxed) != word {
                return None;
            }
            if word & STATE == READY {
                return Some(Found::Ready(at, word));
            }
            if entry.asked.load(Ordering::Relaxed) == 0 {
                entry.asked.store(1, Ordering::Relaxed);
            }
            Some(Found::Later)
        })
    }

    /// Whether what was found still holds.
    #[inline]
    pub(crate) fn is_still(&self, at: usize, word: u32) -> bool {
        self.end.theirs()[at % ENTRIES].word.load(Ordering::Acquire) == word
    }
}

impl Entry {
    fn receives(&self, to: SocketAddr, from: SocketAddr) -> bool {
        if self.port.load(Ordering::Relaxed) != u32::from(to.port()) {
            return false;
        }
        let address = words(&self.address);
        let is_any = |any: IpAddr| address == split(any);
        let receives_at = address == split(to.ip())
            || to.is_ipv4() && is_any(Ipv4Addr::UNSPECIFIED.into())
            || (to.is_ipv6() || self.only_v6.load(Ordering::Relaxed) == 0)
                && is_any(Ipv6Addr::UNSPECIFIED.into());
        let from_port = self.from_port.load(Ordering::Relaxed);
        receives_at
            && (from_port == 0
                || from_port == u32::from(from.port()) && words(&self.from) == split(from.ip()))
    }
}

fn state(entry: &Entry) -> u32 {
    entry.word.load(Ordering::Relaxed) & STATE
}

/// The entries that an address with this port may have.
fn probes(port: u16) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |probe| (usize::from(port) + probe) % ENTRIES)
}

/// IPv4 as mapped IPv6. `0.0.0.0` and `::` differ.
fn split(address: IpAddr) -> [u32; 4] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
    .to_bits();
    std::array::from_fn(|at| (bits >> (32 * at)) as u32)
}

fn words(words: &[AtomicU32; 4]) -> [u32; 4] {
    std::array::from_fn(|at| words[at].load(Ordering::Relaxed))
}

fn set_address(to: &[AtomicU32; 4], address: IpAddr) {
    to.iter().zip(split(address)).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::cable;

    /// The two ends of a cable.
    fn ends(name: &str) -> (Ports, Ports) {
        let name = format!("test-ports-{name}-{}", std::process::id());
        let rendezvous = cable::listen(&name).unwrap();
        let other = std::thread::spawn(move || cable::connect(&name).unwrap());
        let ours = rendezvous.accept(cable::Config::default()).unwrap();
        (ours.ports().unwrap(), other.join().unwrap().ports().unwrap())
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn ready(text: &str) -> Receives {
        Receives { at: at(text), only_v6: false, from: None, is_ready: true }
    }

    #[test]
    fn an_address_is_found_as_the_kernel_would_find_its_socket() {
        let (ours, theirs) = ends("found");
        let from = at("127.0.0.1:9");
        let finds = |to: &str, from| theirs.find(at(to), from).is_some();
        ours.enter(&ready("127.0.0.1:1")).unwrap();
        ours.enter(&ready("0.0.0.0:2")).unwrap();
        ours.enter(&ready("[::]:3")).unwrap();
        ours.enter(&Receives { only_v6: true, ..ready("[::]:4") }).unwrap();
        ours.enter(&Receives { from: Some(from), ..ready("127.0.0.1:5") }).unwrap();
        for (to, found) in [
            ("127.0.0.1:1", true),
            ("127.0.0.2:1", false),
            ("[::1]:1", false),
            ("127.0.0.1:2", true),
            ("[::1]:2", false),
            ("127.0.0.1:3", true),
            ("[::1]:3", true),
            ("127.0.0.1:4", false),
            ("[::1]:4", true),
            ("127.0.0.1:5", true),
            ("127.0.0.1:6", false),
        ] {
            assert_eq!(finds(to, from), found, "{to}");
        }
        // A connected socket has one sender.
        assert!(!finds("127.0.0.1:5", at("127.0.0.1:8")));
        assert!(!finds("127.0.0.1:5", at("127.0.0.2:9")));
        // Each end has its own table.
        assert_eq!(ours.find(at("127.0.0.1:1"), from), None);
    }

    #[test]
    fn an_address_that_is_withdrawn_or_changed_does_not_hold_any_more() {
        let (ours, theirs) = ends("withdrawn");
        let (to, from) = (at("127.0.0.1:7"), at("127.0.0.1:9"));
        let entry = ours.enter(&ready("127.0.0.1:7")).unwrap();
        let found = |to| match theirs.find(to, from) {
            Some(Found::Ready(at, word)) => (at, word),
            other => panic!("{other:?}"),
        };
        let (first, word) = found(to);
        assert!(theirs.is_still(first, word));
        ours.change(entry, &ready("127.0.0.2:7"));
        assert!(!theirs.is_still(first, word));
        assert_eq!(theirs.find(to, from), None);
        let (again, word) = found(at("127.0.0.2:7"));
        ours.remove(entry);
        assert!(!theirs.is_still(again, word));
        // Another socket gets the entry, and the old word does not come back.
        ours.enter(&ready("127.0.0.2:7")).unwrap();
        assert!(!theirs.is_still(again, word));
    }

    #[test]
    fn a_socket_that_is_not_ready_is_asked() {
        let (ours, theirs) = ends("asked");
        let (to, from) = (at("127.0.0.1:7"), at("127.0.0.1:9"));
        let later = Receives { is_ready: false, ..ready("127.0.0.1:7") };
        let entry = ours.enter(&later).unwrap();
        assert!(!ours.is_asked(entry));
        assert_eq!(theirs.find(to, from), Some(Found::Later));
        assert!(ours.is_asked(entry));
        ours.change(entry, &ready("127.0.0.1:7"));
        assert!(matches!(theirs.find(to, from), Some(Found::Ready(..))));
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let (ours, _theirs) = ends("full");
        // All of these would have the same place.
        let taken = (0..20).filter_map(|_| ours.enter(&ready("127.0.0.1:7"))).count();
        assert_eq!(taken, PROBES);
    }
}
