//! The ledger: a host's TCP connections, listeners and UDP sockets in memory that another process can read, also after
//! this one was killed, and the host's counters. A guard resets a killed program's connections from it; `busypoll ss`
//! and `busypoll exporter` read it.
//!
//! Each socket has one line of 128 bytes, which only this process writes. Entering a socket takes a free line. From then
//! on the socket, under its own lock, stores a few words when its state changes. A reader takes no lock: it discards a
//! line whose count changed while it read.

use crate::{
    napi::{Counters, NapiId},
    published::Published,
    sync::lock,
    sys,
    wire::Protocol,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

mod counts;
mod queues;
mod trace;

pub(crate) use counts::DirectCount;
use counts::LineCounts;
pub use counts::SocketCounts;
pub(crate) use queues::QueuePlace;
pub use queues::{LedgerQueue, Way};
pub(crate) use trace::forget_thread;
pub use trace::{TraceEvent, TraceReader, TracedBy};

/// The first word of the memory, by which a reader recognises a ledger; the last byte is the version.
const MAGIC: u32 = 0x6270_6c05;

/// The default number of lines, and the most: 4 MiB, of which only used pages take memory.
pub const LINES: u32 = 1 << 15;

/// A line that is being entered.
const ENTERING: u32 = u32::MAX;

/// One line. All zero: free.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Line {
    /// The state as `ss` numbers it (include/net/tcp_states.h), and above it the protocol; 0: free.
    state: AtomicU32,
    /// Changes whenever a socket enters or leaves the line.
    count: AtomicU32,
    /// The local port in the upper half, the remote one in the lower.
    ports: AtomicU32,
    snd_nxt: AtomicU32,
    rcv_nxt: AtomicU32,
    unread: AtomicU32,
    unacknowledged: AtomicU32,
    /// The queue its last packet came from; 0: none yet.
    napi: AtomicU32,
    local: [AtomicU32; 4],
    remote: [AtomicU32; 4],
    counts: LineCounts,
}

/// Words for the counters of inet.
pub(crate) const COUNTS: usize = 256;

/// Contexts whose counters other processes can read; there cannot be more in a process.
const CONTEXTS: usize = 1024;

#[derive(Debug)]
#[repr(C, align(64))]
struct Head {
    magic: AtomicU32,
    lines: AtomicU32,
    /// Lines from here on were never used.
    used: AtomicU32,
    /// Sockets that found no free line.
    left_out: AtomicU32,
    /// Which counters `counts` holds ([`crate::inet::list_id`]); 0: none.
    list_id: AtomicU64,
    /// Contexts that have counters.
    contexts: AtomicU32,
}

/// What precedes the lines.
#[derive(Debug)]
#[repr(C)]
struct Front {
    head: Head,
    counts: [AtomicU64; COUNTS],
    contexts: [Counters; CONTEXTS],
    queues: [queues::Words; CONTEXTS],
    ring: trace::Ring,
}

/// The contents of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The state as `ss` numbers it (include/net/tcp_states.h).
    pub state: u8,
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address; unspecified if there is no peer.
    pub remote: SocketAddr,
    /// The next sequence number to send.
    pub snd_nxt: u32,
    /// The next sequence number expected.
    pub rcv_nxt: u32,
    /// Bytes received and not read; of a listener, connections not yet accepted.
    pub unread: u32,
    /// Bytes sent and not acknowledged; of a listener, the backlog.
    pub unacknowledged: u32,
    /// The NAPI id of the queue its last packet came from; 0 if none has come.
    pub napi: u32,
    /// Its counters.
    pub counts: SocketCounts,
}

impl LedgerEntry {
    /// Whether it is a connection whose peer still expects data or an answer: not after our FIN was acknowledged.
    pub fn is_live(&self) -> bool {
        // Established, the halves of a handshake, FIN-WAIT-1, CLOSE-WAIT, LAST-ACK, CLOSING.
        self.protocol == Protocol::TCP && matches!(self.state, 1..=4 | 8 | 9 | 11)
    }
}

/// `TCP_ESTABLISHED`; of UDP: connected.
pub const ESTABLISHED: u8 = 1;

/// `TCP_CLOSE`; of UDP: not connected.
pub const CLOSE: u8 = 7;

/// `TCP_LISTEN`.
pub const LISTEN: u8 = 10;

/// A socket's state as its line records it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SocketState {
    pub(crate) state: u8,
    pub(crate) snd_nxt: u32,
    pub(crate) rcv_nxt: u32,
    pub(crate) unread: usize,
    pub(crate) unacknowledged: usize,
    pub(crate) napi: Option<NapiId>,
    pub(crate) counts: SocketCounts,
}

/// A ledger, mapped.
#[derive(Debug)]
pub struct Ledger {
    front: NonNull<Front>,
    lines: NonNull<Line>,
    count: u32,
    /// Lines that were used and are free again.
    free: Mutex<Vec<u32>>,
    /// Places of queues that links have left.
    free_queues: Mutex<Vec<u32>>,
    memory: OwnedFd,
}

// SAFETY: everything shared is atomic, and mapped for as long as the ledger lives.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// A new ledger with `lines` lines.
    ///
    /// # Errors
    /// No memory or descriptor left.
    pub fn create(lines: u32) -> io::Result<Ledger> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // Other processes recognise the stack plane by this name (`linux::process::Kind`).
        // SAFETY: a C string.
        let memory = sys::owned(unsafe { libc::memfd_create(c"busypoll-ledger".as_ptr(), flags) })?;
        let bytes = size_of::<Front>() + lines as usize * size_of::<Line>();
        // SAFETY: plain system calls.
        let made = unsafe {
            libc::ftruncate(memory.as_raw_fd(), bytes as libc::off_t) == 0
                && libc::fcntl(
                    memory.as_raw_fd(),
                    libc::F_ADD_SEALS,
                    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL,
                ) == 0
        };
        if !made {
            return Err(io::Error::last_os_error());
        }
        let ledger = Ledger::map(memory, lines)?;
        ledger.head().lines.store(lines, Ordering::Relaxed);
        ledger.head().magic.store(MAGIC, Ordering::Release);
        Ok(ledger)
    }

    /// Maps another process's ledger.
    ///
    /// # Errors
    /// `InvalidData` if it is no ledger, or is not sealed against shrinking; no memory left.
    pub fn open(memory: OwnedFd) -> io::Result<Ledger> {
        let not_a_ledger =
            || io::Error::new(io::ErrorKind::InvalidData, "this is not a ledger of busypoll");
        // SAFETY: all zeros is a valid stat; plain system calls.
        let (sealed, stat) = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            let seals = libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS);
            let is_file = libc::fstat(memory.as_raw_fd(), &raw mut stat) == 0;
            (is_file && seals & libc::F_SEAL_SHRINK != 0, stat)
        };
        let bytes = usize::try_from(stat.st_size).unwrap_or(0).saturating_sub(size_of::<Front>());
        let lines = u32::try_from(bytes / size_of::<Line>()).unwrap_or(0);
        // Another process made it: no reader is to be kept busy by its size.
        if !sealed || lines == 0 || lines > LINES {
            return Err(not_a_ledger());
        }
        let ledger = Ledger::map(memory, lines)?;
        let head = ledger.head();
        if head.magic.load(Ordering::Acquire) != MAGIC
            || head.lines.load(Ordering::Relaxed) != lines
        {
            return Err(not_a_ledger());
        }
        Ok(ledger)
    }

    fn map(memory: OwnedFd, lines: u32) -> io::Result<Ledger> {
        let bytes = size_of::<Front>() + lines as usize * size_of::<Line>();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file of that size, which cannot shrink.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        let front = NonNull::new(start.cast::<Front>()).filter(|_| start != libc::MAP_FAILED);
        let front = front.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: within the mapping: the lines follow the front.
        let lines_start = unsafe { front.add(1) }.cast();
        let (free, free_queues) = Default::default();
        Ok(Ledger { front, lines: lines_start, count: lines, free, free_queues, memory })
    }

    /// The descriptor of its memory, for another process to [`open`](Ledger::open).
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn front(&self) -> &Front {
        // SAFETY: mapped for as long as `self`; any bytes are valid atomics.
        unsafe { self.front.as_ref() }
    }

    fn head(&self) -> &Head {
        &self.front().head
    }

    /// The place of inet's counters, which are those of this list.
    pub(crate) fn counts(self: &Arc<Ledger>, list_id: u64) -> Published<[AtomicU64; COUNTS]> {
        self.head().list_id.store(list_id, Ordering::Relaxed);
        let at = NonNull::from(&self.front().counts);
        // SAFETY: within the mapping, which lives as long as the ledger.
        unsafe { Published::within(at, self.clone()) }
    }

    /// Inet's counters in the order of [`crate::inet::Count`], if they are those of `list_id`.
    pub fn inet_counts(&self, list_id: u64) -> Option<Vec<u64>> {
        let front = self.front();
        let same = front.head.list_id.load(Ordering::Relaxed) == list_id;
        same.then(|| front.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }

    fn line(&self, at: u32) -> Option<&Line> {
        // SAFETY: within the mapping, which lives as long as `self`.
        (at < self.count).then(|| unsafe { self.lines.add(at as usize).as_ref() })
    }

    /// Enters a socket with its peer's address, if it has a peer. `None`: no line is free, which is counted.
    pub(crate) fn enter(
        self: &Arc<Ledger>,
        protocol: Protocol,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> Option<LedgerSlot> {
        let unspecified = match local.ip().to_canonical() {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let remote = remote.unwrap_or(unspecified);
        let head = self.head();
        let again = lock(&self.free).pop();
        let at = again.or_else(|| {
            let step = |used| (used < self.count).then_some(used + 1);
            head.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step).ok()
        });
        let Some(line) = at.and_then(|at| self.line(at)) else {
            head.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        line.state.store(ENTERING, Ordering::Relaxed);
        line.count.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let ports = u32::from(local.port()) << 16 | u32::from(remote.port());
        line.ports.store(ports, Ordering::Relaxed);
        put(&line.local, local.ip());
        put(&line.remote, remote.ip());
        line.counts.direct.store(0, Ordering::Relaxed);
        line.counts.set(&SocketCounts::default());
        self.trace_new(line);
        Some(LedgerSlot { ledger: self.clone(), at: at?, protocol })
    }

    /// All its entries.
    pub fn list(&self) -> Vec<LedgerEntry> {
        let used = self.head().used.load(Ordering::Acquire).min(self.count);
        (0..used).filter_map(|at| self.line(at)?.read()).collect()
    }

    /// Whether it has an entry for which `is` holds. Allocates nothing.
    pub fn has(&self, is: impl Fn(&LedgerEntry) -> bool) -> bool {
        let used = self.head().used.load(Ordering::Acquire).min(self.count);
        (0..used).filter_map(|at| self.line(at)?.read()).any(|line| is(&line))
    }

    /// How many sockets found no free line.
    pub fn left_out(&self) -> u32 {
        self.head().left_out.load(Ordering::Relaxed)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let bytes = size_of::<Front>() + self.count as usize * size_of::<Line>();
        // SAFETY: our own mapping; no borrow of it is left.
        unsafe { libc::munmap(self.front.as_ptr().cast(), bytes) };
    }
}

impl Line {
    fn read(&self) -> Option<LedgerEntry> {
        let count = self.count.load(Ordering::Acquire);
        let [state, protocol, 0, 0] = self.state.load(Ordering::Acquire).to_le_bytes() else {
            return None;
        };
        if state == 0 {
            return None;
        }
        let ports = self.ports.load(Ordering::Relaxed);
        let (local, remote) = (get(&self.local), get(&self.remote));
        let listed = LedgerEntry {
            protocol: Protocol(protocol),
            state,
            local: SocketAddr::new(local, (ports >> 16) as u16),
            remote: SocketAddr::new(remote, ports as u16),
            snd_nxt: self.snd_nxt.load(Ordering::Relaxed),
            rcv_nxt: self.rcv_nxt.load(Ordering::Relaxed),
            unread: self.unread.load(Ordering::Relaxed),
            unacknowledged: self.unacknowledged.load(Ordering::Relaxed),
            napi: self.napi.load(Ordering::Relaxed),
            counts: self.counts.get(),
        };
        fence(Ordering::Acquire);
        (self.count.load(Ordering::Relaxed) == count).then_some(listed)
    }
}

fn put(words: &[AtomicU32; 4], address: IpAddr) {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    for (word, bytes) in words.iter().zip(octets.as_chunks::<4>().0) {
        word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}

fn get(words: &[AtomicU32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (bytes, word) in octets.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    Ipv6Addr::from(octets).to_canonical()
}

/// A socket's line in the ledger. Dropping it frees the line.
#[derive(Debug)]
pub(crate) struct LedgerSlot {
    ledger: Arc<Ledger>,
    at: u32,
    protocol: Protocol,
}

impl LedgerSlot {
    /// Records the socket's state: plain stores to two cache lines.
    #[inline]
    pub(crate) fn note(&self, now: &SocketState) {
        let Some(line) = self.ledger.line(self.at) else { return };
        line.snd_nxt.store(now.snd_nxt, Ordering::Relaxed);
        line.rcv_nxt.store(now.rcv_nxt, Ordering::Relaxed);
        line.unread.store(now.unread as u32, Ordering::Relaxed);
        line.unacknowledged.store(now.unacknowledged as u32, Ordering::Relaxed);
        line.napi.store(now.napi.map_or(0, NapiId::get), Ordering::Relaxed);
        line.counts.set(&now.counts);
        // Last: readers skip the line until it has a state.
        let state = u32::from_le_bytes([now.state, self.protocol.0, 0, 0]);
        line.state.store(state, Ordering::Release);
    }
}

impl Drop for LedgerSlot {
    fn drop(&mut self) {
        if let Some(line) = self.ledger.line(self.at) {
            line.count.fetch_add(1, Ordering::Relaxed);
            line.state.store(0, Ordering::Release);
        }
        lock(&self.ledger.free).push(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{inet::Pass, napi::PolledBy, time::Instant};

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const STANDING: SocketState = SocketState {
        state: ESTABLISHED,
        snd_nxt: 7,
        rcv_nxt: 9,
        unread: 11,
        unacknowledged: 13,
        napi: None,
        counts: SocketCounts {
            own_polls: 1,
            other_polls: 2,
            interrupts: 3,
            kernel: 4,
            drops: 5,
            retransmits: 6,
        },
    };

    #[test]
    fn a_second_mapping_reads_what_the_first_recorded() {
        let ours = Arc::new(Ledger::create(4).unwrap());
        let theirs = Ledger::open(ours.memory().try_clone_to_owned().unwrap()).unwrap();
        let (local, remote) = (address("10.0.0.1:80"), address("10.0.0.2:40000"));
        let place = ours.enter(Protocol::TCP, local, Some(remote)).unwrap();
        assert_eq!(theirs.list(), [], "entered, but no state recorded yet");
        place.note(&STANDING);
        let mut expected = LedgerEntry {
            protocol: Protocol::TCP,
            state: 1,
            local,
            remote,
            snd_nxt: 7,
            rcv_nxt: 9,
            unread: 11,
            unacknowledged: 13,
            napi: 0,
            counts: STANDING.counts,
        };
        assert_eq!(theirs.list(), [expected]);
        assert!(expected.is_live());
        let (local, remote) = (address("[fd00::1]:80"), address("[fd00::2]:1"));
        let second = ours.enter(Protocol::UDP, local, Some(remote)).unwrap();
        second.note(&STANDING);
        drop(place);
        (expected.protocol, expected.local, expected.remote) = (Protocol::UDP, local, remote);
        assert_eq!(theirs.list(), [expected]);
        assert!(!expected.is_live());
    }

    #[test]
    fn a_full_ledger_counts_sockets_it_has_no_line_for_and_reuses_freed_lines() {
        let ledger = Arc::new(Ledger::create(2).unwrap());
        let any = address("10.0.0.1:1");
        let places: Vec<_> =
            (0..2).map(|_| ledger.enter(Protocol::UDP, any, None).unwrap()).collect();
        assert!(ledger.enter(Protocol::UDP, any, None).is_none());
        assert_eq!(ledger.left_out(), 1);
        drop(places);
        assert!(ledger.enter(Protocol::UDP, any, None).is_some());
    }

    #[test]
    fn direct_deliveries_are_counted_in_the_line_that_the_socket_has() {
        let ledger = Arc::new(Ledger::create(2).unwrap());
        let direct = DirectCount::default();
        let pass = Pass::new(None, Instant::ZERO, PolledBy::BusyPoll(1));
        direct.count(&pass);
        let first = ledger.enter(Protocol::UDP, address("10.0.0.1:1"), None).unwrap();
        first.note(&STANDING);
        direct.publish(Some(&first));
        direct.count(&pass);
        assert_eq!(ledger.list()[0].counts.own_polls, 1 + 2);
        let second = ledger.enter(Protocol::UDP, address("10.0.0.1:2"), None).unwrap();
        direct.publish(Some(&second));
        drop(first);
        second.note(&STANDING);
        direct.count(&pass);
        assert_eq!(ledger.list()[0].counts.own_polls, 1 + 3);
        direct.publish(None);
        drop(second);
        direct.count(&pass);
        let next = ledger.enter(Protocol::UDP, address("10.0.0.1:3"), None).unwrap();
        next.note(&SocketState { counts: SocketCounts::default(), ..STANDING });
        assert_eq!(ledger.list()[0].counts.own_polls, 0, "not the one of before");
    }

    #[test]
    fn counters_are_read_by_another_process_if_it_knows_the_list() {
        let ours = Arc::new(Ledger::create(1).unwrap());
        let theirs = Ledger::open(ours.memory().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(theirs.inet_counts(7), None);
        ours.counts(7)[3].fetch_add(9, Ordering::Relaxed);
        assert_eq!(theirs.inet_counts(7).unwrap()[3], 9);
        assert_eq!(theirs.inet_counts(8), None);
    }

    #[test]
    fn memory_without_seal_or_magic_is_refused() {
        let memory = |lines: i64| {
            // SAFETY: a C string.
            let fd = unsafe { libc::memfd_create(c"other".as_ptr(), libc::MFD_ALLOW_SEALING) };
            let fd = sys::owned(fd).unwrap();
            let bytes = size_of::<Front>() as i64 + 128 * lines;
            // SAFETY: a plain call on our own descriptor.
            assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes) }, 0);
            fd
        };
        assert!(Ledger::open(memory(4)).is_err(), "not sealed: it could shrink under us");
        let sealed = memory(4);
        // SAFETY: as above.
        unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert!(Ledger::open(sealed).is_err(), "no magic number");
        let huge = memory(i64::from(LINES) + 1);
        let magic = [MAGIC.to_ne_bytes(), (LINES + 1).to_ne_bytes()].concat();
        // SAFETY: bytes of that length; plain calls on our own descriptor.
        unsafe {
            libc::pwrite(huge.as_raw_fd(), magic.as_ptr().cast(), magic.len(), 0);
            libc::fcntl(huge.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        }
        assert!(Ledger::open(huge).is_err(), "larger than any");
    }
}
