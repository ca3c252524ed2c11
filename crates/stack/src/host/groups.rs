//! Multicast groups of UDP sockets. The kernel joins them. Datagrams to a group at a socket's port come to our queues
//! only while no other program's socket could receive them, because the kernel does not see steered packets. While one
//! could, they come over the [ring](super::group_ring) of a packet socket: the kernel copies them to each process that
//! wants them, and the companion drops its own. Where there can be no ring, the companion delivers them.

use super::companion::{Companion, CompanionService, Entry, Shared, State};
use crate::{nic::packet::drop_copies, sync::lock, sys::set_option};
use std::{
    collections::HashMap,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    sync::atomic::Ordering,
    time::Duration,
};

/// How often the sockets of other programs are checked.
pub(super) const RECHECK: Duration = Duration::from_secs(1);

impl Companion {
    /// Joins or leaves a group on the interface with the index `interface`.
    pub(crate) fn change_group(&self, group: IpAddr, interface: u32, join: bool) -> io::Result<()> {
        match group {
            IpAddr::V4(group) => {
                let name = if join { libc::IP_ADD_MEMBERSHIP } else { libc::IP_DROP_MEMBERSHIP };
                let group = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: interface.cast_signed(),
                };
                set_option(&*self.socket, libc::IPPROTO_IP, name, group)
            }
            IpAddr::V6(group) => {
                let name =
                    if join { libc::IPV6_ADD_MEMBERSHIP } else { libc::IPV6_DROP_MEMBERSHIP };
                let group = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: interface,
                };
                set_option(&*self.socket, libc::IPPROTO_IPV6, name, group)
            }
        }
    }

    /// Sets the groups it is in now, each with the index of its interface.
    pub(crate) fn set_groups(&self, groups: Vec<(u32, IpAddr)>) {
        let state = &self.state;
        let on = |(number, group): (u32, IpAddr)| {
            let at = |shared: &Shared| shared.interface.info().ifindex;
            Some((state.shared().iter().position(|shared| at(shared) == Some(number))?, group))
        };
        let groups: Vec<_> = groups.into_iter().filter_map(on).collect();
        match lock(&state.companions).get_mut(&self.id) {
            Some(entry) if entry.groups != groups => entry.groups = groups,
            _ => return,
        }
        state.has_groups.store(true, Ordering::Release);
        state.update_group_steering();
        // Without groups the thread sleeps without a timeout.
        state.wake();
    }
}

impl State {
    /// Updates what the groups come over, by their members, here and in other programs of the machine.
    pub(super) fn update_group_steering(&self) {
        if !self.has_groups.load(Ordering::Acquire) {
            return;
        }
        let mut companions = lock(&self.companions);
        if !companions.values().any(Entry::has_groups) {
            return self.has_groups.store(false, Ordering::Release);
        }
        let own: Vec<u64> = companions.values().filter_map(|entry| inode(&*entry.socket)).collect();
        let others = others(&own);
        let alone = |group: IpAddr, port| match &others {
            Some(others) => !others.iter().any(|other| other.could_receive(group, port)),
            None => false,
        };
        let inherited: Vec<u16> = companions
            .values()
            .filter(|entry| entry.is_inherited)
            .map(|entry| entry.port)
            .collect();
        let mut wanted = HashMap::new();
        for (id, entry) in companions.iter() {
            let covers = |group| entry.steered.as_ref().is_some_and(|it| it.covers(group));
            let covered = entry.groups.iter().copied().filter(|(_, group)| covers(*group));
            let (steered, mut on_ring): (Vec<_>, Vec<_>) =
                covered.partition(|(_, group)| alone(*group, entry.port));
            on_ring.retain(|(at, _)| {
                let Shared { group_ring, interface, .. } = &self.shared()[*at];
                !inherited.contains(&entry.port) && group_ring.is_ready(&self.inet, interface)
            });
            wanted.insert(*id, Wanted { port: entry.port, steered, on_ring });
        }
        // For a moment a group comes both ways, while no datagram takes the way that begins or ends.
        for entry in companions.values_mut() {
            let both = union(entry.dropped.as_deref().unwrap_or_default(), &drops(entry, &wanted));
            if entry.drop_copies(&both, self.shared()).is_err() {
                let at_port = wanted.values_mut().filter(|it| it.port == entry.port);
                at_port.for_each(|it| it.on_ring.clear());
            }
        }
        for at in 0..self.shared().len() {
            let all = companions.iter().flat_map(|(id, entry)| {
                let both = union(&entry.on_ring, &wanted[id].on_ring);
                both.into_iter().map(|of| (of, entry.port))
            });
            if self.select(at, all).is_err() {
                for (id, entry) in companions.iter() {
                    let is_known = |of: &Place| of.0 != at || entry.on_ring.contains(of);
                    wanted.get_mut(id).into_iter().for_each(|it| it.on_ring.retain(is_known));
                }
            }
        }
        for (id, entry) in companions.iter_mut() {
            let Some(Wanted { steered, .. }) = wanted.get_mut(id) else { continue };
            if let Some(now) = &mut entry.steered
                && now.groups != *steered
            {
                now.groups = std::mem::take(steered);
                // If the steering map is full, the group stays with the kernel, and the companion delivers.
                let _ = self.steer(now);
            }
        }
        for (id, entry) in companions.iter_mut() {
            // It only drops less.
            let _ = entry.drop_copies(&drops(entry, &wanted), self.shared());
            entry.on_ring.clone_from(&wanted[id].on_ring);
        }
        for at in 0..self.shared().len() {
            let on_ring = |entry: &Entry| {
                entry.on_ring.iter().map(|of| (*of, entry.port)).collect::<Vec<_>>()
            };
            // It only selects less.
            let _ = self.select(at, companions.values().flat_map(on_ring));
        }
    }

    /// The ring of an interface receives those of these groups and ports that are on it.
    fn select(&self, at: usize, all: impl Iterator<Item = (Place, u16)>) -> io::Result<()> {
        let here = all.filter(|((on, _), _)| *on == at).map(|((_, group), port)| (group, port));
        let mut groups: Vec<_> = here.collect();
        groups.sort_unstable();
        groups.dedup();
        self.shared()[at].group_ring.select(&groups)
    }

    /// Child processes may have the sockets of now, and the kernel must know what these receive: no group of theirs
    /// comes over a ring any more.
    fn leave_rings(&self) {
        let mut companions = lock(&self.companions);
        companions.values_mut().for_each(|entry| entry.is_inherited = true);
        drop(companions);
        self.update_group_steering();
    }
}

/// A group on a shared interface, by its number.
type Place = (usize, IpAddr);

/// What the groups of a socket are to come over, if not over the kernel socket.
struct Wanted {
    port: u16,
    steered: Vec<Place>,
    on_ring: Vec<Place>,
}

/// What a kernel socket is to drop: our socket beside it has it from the ring, also if only another one at its port is in
/// the group (`IP_MULTICAST_ALL`).
fn drops(entry: &Entry, wanted: &HashMap<u64, Wanted>) -> Vec<Place> {
    let at_port = wanted.values().filter(|it| it.port == entry.port && entry.steered.is_some());
    let mut all: Vec<_> = at_port.flat_map(|it| &it.on_ring).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn union(one: &[Place], other: &[Place]) -> Vec<Place> {
    let mut both = one.to_vec();
    both.extend(other.iter().filter(|of| !one.contains(of)));
    both
}

impl Entry {
    fn has_groups(&self) -> bool {
        let is_steered = self.steered.as_ref().is_some_and(|it| !it.groups.is_empty());
        is_steered || !self.groups.is_empty() || !self.on_ring.is_empty()
    }

    /// The kernel socket drops the datagrams of these groups that come over a ring.
    fn drop_copies(&mut self, groups: &[Place], shared: &[Shared]) -> io::Result<()> {
        // A socket that never was in a group never dropped any.
        let is_fresh = self.dropped.is_none() && self.groups.is_empty() && groups.is_empty();
        if is_fresh || self.dropped.as_deref() == Some(groups) {
            return Ok(());
        }
        let index = |at: usize| shared[at].interface.info().ifindex.unwrap_or(0);
        let on: Vec<_> = groups.iter().map(|(at, group)| (index(*at), *group)).collect();
        drop_copies(&*self.socket, &on)?;
        self.dropped = Some(groups.to_vec());
        Ok(())
    }

    /// The kernel socket drops nothing: other descriptors may keep it open.
    pub(super) fn drop_nothing(&mut self) {
        if self.dropped.take().is_some_and(|groups| !groups.is_empty()) {
            // It cannot fail.
            let _ = drop_copies(&*self.socket, &[]);
        }
    }
}

impl CompanionService {
    /// Before child processes get the sockets, and before another program takes this one's place.
    pub(super) fn leave_group_rings(&self) {
        self.state().leave_rings();
    }

    /// Ends the receiving of groups over rings for good.
    pub(super) fn close_group_rings(&self) {
        self.state().shared().iter().for_each(|shared| shared.group_ring.close());
    }
}

/// A UDP socket of the kernel, by its local address.
#[derive(Debug, PartialEq, Eq)]
struct Other {
    address: IpAddr,
    port: u16,
}

impl Other {
    /// Whether it could receive datagrams to a group: it is bound to the group or to the wildcard address. Membership
    /// is not checked, because by default (`IP_MULTICAST_ALL`) a socket need not be a member.
    fn could_receive(&self, group: IpAddr, port: u16) -> bool {
        self.port == port
            && match (self.address, group) {
                (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(_)) => true,
                (IpAddr::V6(Ipv6Addr::UNSPECIFIED), _) => true,
                (address, group) => address.to_canonical() == group,
            }
    }
}

/// The UDP sockets of this network namespace except those with these inodes. `None`: they cannot be read. Does not use
/// sock_diag(7), as [`kernel_sockets`](super::kernel_sockets) does for TCP, because UDP's part of it is a
/// module that many kernels lack.
fn others(own: &[u64]) -> Option<Vec<Other>> {
    let mut found = Vec::new();
    for family in ["udp", "udp6"] {
        match fs::read_to_string(format!("/proc/thread-self/net/{family}")) {
            Ok(table) => {
                for line in table.lines().skip(1) {
                    let (other, inode) = parse(line)?;
                    if !own.contains(&inode) {
                        found.push(other);
                    }
                }
            }
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && family == "udp6" => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

/// Parses a line of /proc/net/udp or udp6 (`udp4_format_sock`, `__ip6_dgram_sock_seq_show`): the second field is the
/// local address, in words of the machine's byte order, the tenth is the inode.
fn parse(line: &str) -> Option<(Other, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let address = match address.len() {
        8 => IpAddr::from(word(0)?.to_ne_bytes()),
        32 => {
            let mut bytes = [0; 16];
            for (at, word) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24].map(word)) {
                at.copy_from_slice(&word?.to_ne_bytes());
            }
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some((Other { address, port }, fields.nth(7)?.parse().ok()?))
}

fn inode(socket: &impl AsRawFd) -> Option<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a valid place for the answer.
    let result = unsafe { libc::fstat(socket.as_raw_fd(), stat.as_mut_ptr()) };
    // SAFETY: all zeros is a valid stat.
    (result == 0).then(|| unsafe { stat.assume_init() }.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn sockets_of_other_programs_are_found_and_own_inodes_left_out() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(address) else { continue };
            let local = socket.local_addr().unwrap();
            let at = Other { address: local.ip(), port: local.port() };
            assert!(others(&[]).unwrap().contains(&at), "{at:?}");
            assert!(!others(&[inode(&socket).unwrap()]).unwrap().contains(&at), "{at:?}");
        }
    }

    #[test]
    fn a_socket_bound_to_the_group_or_the_wildcard_could_receive_it() {
        let at = |address: &str| Other { address: address.parse().unwrap(), port: 7 };
        let receives = |address, group: &str| at(address).could_receive(group.parse().unwrap(), 7);
        assert!(
            receives("0.0.0.0", "239.1.1.1")
                && receives("::", "239.1.1.1")
                && receives("::", "ff15::1")
        );
        assert!(receives("239.1.1.1", "239.1.1.1") && receives("::ffff:239.1.1.1", "239.1.1.1"));
        assert!(!receives("0.0.0.0", "ff15::1") && !receives("10.0.0.1", "239.1.1.1"));
        assert!(!receives("239.1.1.2", "239.1.1.1"));
        assert!(!at("0.0.0.0").could_receive("239.1.1.1".parse().unwrap(), 8), "another port");
    }
}
