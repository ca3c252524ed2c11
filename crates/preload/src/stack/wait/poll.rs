//! poll(2) and ppoll(2) of mixed sets. The kernel's descriptors are checked by poll(2) itself, so their results are
//! exact. The kernel plane serves sets without a descriptor of ours.

use super::Deadline;
use crate::{
    inside::{Inside, Restart},
    kernel, memory,
    stack::{
        common::lock,
        common::{answer, error},
        file::{FILES, Ref},
        local_udp::KernelWait,
        thread_end,
    },
};
use busypoll_stack::{Entry, Events, Source, napi::KernelFds, poll_with_kernel_fds};
use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};
use std::{cell::Cell, io, mem::ManuallyDrop, slice, sync::Arc, time::Duration};

/// A descriptor of ours in the set.
pub struct Ours {
    /// Its index in the caller's entries.
    at: usize,
    source: Arc<dyn Source>,
    events: Events,
    found: Events,
    /// Held, as the kernel holds the files it waits on.
    file: Ref,
}

impl Entry for Ours {
    fn source(&self) -> &dyn Source {
        &*self.source
    }

    fn events(&self) -> Events {
        self.events
    }

    fn report(&mut self, found: Events) {
        self.found = found;
    }
}

/// A mixed set. A thread reuses its memory for the next wait.
#[derive(Default)]
pub struct MixedSet {
    ours: Vec<Ours>,
    /// For each descriptor of the kernel, its index in the caller's entries.
    indices: Vec<usize>,
    kernel_fds: KernelFds,
    /// Of sockets that are the kernel's only for now.
    kernel_waits: Vec<KernelWait>,
    micros: u32,
    counts: Option<Counts>,
}

/// The events that count for a descriptor with the requested events; without this all of them count.
pub type Counts = fn(asked: i16) -> i16;

local! {
    static SPARE: Cell<ManuallyDrop<MixedSet>> = Cell::new(ManuallyDrop::new(MixedSet::nothing()));
}

/// The calling thread ends: frees the memory it keeps for its next wait.
pub fn on_thread_exit() {
    drop(take_spare());
}

#[inline]
fn take_spare() -> MixedSet {
    ManuallyDrop::into_inner(SPARE.replace(ManuallyDrop::new(MixedSet::nothing())))
}

/// The index in the caller's entries, and the events.
pub type Found = (usize, i16);

/// Whether any of `fds` is ours. Costs one atomic load for each that is not, and nothing where no descriptor ever was.
pub fn has_ours(mut fds: impl Iterator<Item = c_int>) -> bool {
    FILES.end() > 0 && fds.any(|fd| fd >= 0 && FILES.get(fd).is_some())
}

impl MixedSet {
    /// The calling thread's set of these entries; `waits`: it may wait for them. `None` if none of them is ours after
    /// all; then `kernel_waits` are to be held while the thread waits.
    pub fn of(
        entries: impl Iterator<Item = (c_int, i16)>,
        counts: Option<Counts>,
        waits: bool,
        kernel_waits: &mut Vec<KernelWait>,
    ) -> Option<MixedSet> {
        let mut mixed = take_spare();
        mixed.counts = counts;
        for (at, (fd, events)) in entries.enumerate() {
            let waiting = &mut mixed.kernel_waits;
            match FILES.get(fd).and_then(|file| source_of(file, fd, events, waits, waiting)) {
                Some((file, source)) => {
                    let events = Events(u32::from(events.cast_unsigned()));
                    mixed.micros = mixed.micros.max(busy_poll(&file));
                    mixed.ours.push(Ours { at, source, events, found: Events::default(), file });
                }
                None => {
                    mixed.indices.push(at);
                    mixed.kernel_fds.push(fd, events);
                    mixed.ours.extend(if waits { moves_of(fd) } else { None });
                }
            }
        }
        if mixed.ours.is_empty() {
            *kernel_waits = std::mem::take(&mut mixed.kernel_waits);
            mixed.recycle();
            return None;
        }
        // After the caller's entries: the descriptors for the kernel's half of sets.
        for set in mixed.ours.iter().filter_map(|ours| ours.file.set()) {
            set.add_own_kernel_fds(&mut mixed.kernel_fds);
        }
        Some(mixed)
    }

    /// Whether the calling thread's set has room for `count` entries.
    fn has_room(count: usize) -> bool {
        let mut mixed = take_spare();
        let room = mixed.indices.try_reserve(count).is_ok()
            && mixed.ours.try_reserve(count).is_ok()
            && mixed.kernel_fds.try_reserve(count).is_ok();
        mixed.recycle();
        room
    }

    const fn nothing() -> MixedSet {
        MixedSet {
            ours: Vec::new(),
            indices: Vec::new(),
            kernel_fds: KernelFds::none(),
            kernel_waits: Vec::new(),
            micros: 0,
            counts: None,
        }
    }

    /// Waits until an event is there, or the deadline; handles signals as ppoll(2).
    ///
    /// # Errors
    /// EINTR; no descriptor left.
    pub fn wait(
        &mut self,
        inside: &Inside,
        deadline: Deadline,
        mask: Option<&sigset_t>,
    ) -> io::Result<()> {
        if self.check_now() {
            return Ok(());
        }
        let micros = self.micros;
        inside.wait_masked(
            mask,
            Restart::Never,
            || Ok(None),
            || {
                loop {
                    poll_with_kernel_fds(
                        &mut self.ours,
                        micros,
                        deadline.left(),
                        &mut self.kernel_fds,
                    )?;
                    // `poll_with_kernel_fds` has checked everything.
                    if self.found().next().is_some() || deadline.is_over() {
                        return Ok(());
                    }
                    self.skip_uncounted();
                }
            },
        )
    }

    /// Checks everything without waiting; returns whether an event is there.
    pub fn check_now(&mut self) -> bool {
        self.kernel_fds.look();
        for ours in &mut self.ours {
            ours.found = ours.source.readiness().reported(ours.events);
        }
        self.found().next().is_some()
    }

    /// Whether an AF_UNIX stream has moved, here or back to the kernel: the wait begins anew.
    pub fn has_moved(&self) -> bool {
        self.ours.iter().any(|ours| {
            let is_kernels = ours.file.domain == libc::AF_UNIX && ours.file.is_kernel_owned();
            is_kernels || ours.at == NOT_AN_ENTRY && ours.found != Events::default()
        })
    }

    /// The events of the last check.
    pub fn found(&self) -> impl Iterator<Item = Found> {
        let kernels = self.indices.iter().zip(self.kernel_fds.found());
        let kernels = kernels.map(|(at, fd)| (*at, fd.revents & self.counting(fd.events)));
        let ours = self
            .ours
            .iter()
            .map(|ours| (ours.at, ours.found.0 as i16 & self.counting(ours.events.0 as i16)));
        kernels.chain(ours).filter(|(_, events)| *events != 0)
    }

    fn counting(&self, asked: i16) -> i16 {
        self.counts.map_or(!0, |counts| counts(asked))
    }

    /// Events that do not count would end every sleep at once, so their descriptors are skipped.
    fn skip_uncounted(&mut self) {
        let Some(counts) = self.counts else { return };
        for at in 0..self.indices.len() {
            let fd = self.kernel_fds.found().get(at);
            if fd.is_some_and(|fd| fd.revents != 0 && fd.revents & counts(fd.events) == 0) {
                self.kernel_fds.ignore(at);
            }
        }
    }

    /// Releases everything, and keeps the memory for the thread's next wait.
    pub fn recycle(mut self) {
        self.ours.clear();
        self.indices.clear();
        self.kernel_fds.clear();
        self.kernel_waits.clear();
        self.micros = 0;
        thread_end::watch_thread_end();
        // A signal handler may have stored one meanwhile.
        drop(take_spare());
        SPARE.set(ManuallyDrop::new(self));
    }
}

/// The event source of `file`, if it is ours; the caller requests `events` and may wait for them.
fn source_of(
    file: Ref,
    fd: c_int,
    events: i16,
    waits: bool,
    kernel_waits: &mut Vec<KernelWait>,
) -> Option<(Ref, Arc<dyn Source>)> {
    let source = match file.set() {
        Some(set) => {
            set.hold_kernel_fd(fd);
            set.activate_members();
            if waits {
                // The kernel's poll would not notice a member that is activated meanwhile.
                set.set_waited_for();
            }
            (waits || set.is_mixed()).then(|| set.source())?
        }
        None => {
            // A UDP socket can always send, so a caller that requests POLLOUT does not wait.
            if waits && events & libc::POLLOUT == 0 {
                file.bind_to_wait(fd);
            }
            let live = match file.activate(fd) {
                // A thread that waits for it waits for its move, too.
                None if file.domain == libc::AF_UNIX => return None,
                None if waits && file.is_ours() => match file.local_udp.begin_kernel_wait() {
                    Ok(wait) => {
                        kernel_waits.extend(wait);
                        return None;
                    }
                    Err(_) => {
                        drop(lock(&file.activation));
                        file.live()?
                    }
                },
                live => live?,
            };
            live.socket().events()
        }
    };
    Some((file, source))
}

/// The index of an entry beside the caller's.
const NOT_AN_ENTRY: usize = usize::MAX;

/// What ends a wait for an AF_UNIX stream that is the kernel's so far.
fn moves_of(fd: c_int) -> Option<Ours> {
    let file = FILES.get(fd)?;
    let source = file.kernel_stream()?.wake_source();
    let (at, events, found) = (NOT_AN_ENTRY, Events::READABLE, Events::default());
    Some(Ours { at, source, events, found, file })
}

/// The events of a kernel's descriptor. Waits for them up to `limit`; after a signal the wait goes on as `restart`
/// says, while poll(2) itself would never go on. 0 after the timeout.
///
/// # Errors
/// EINTR; no descriptor left.
pub fn wait_for_kernel_fd(
    fd: c_int,
    events: i16,
    limit: Option<Duration>,
    restart: Restart,
) -> io::Result<i16> {
    if let Some(inside) = Inside::enter() {
        return wait_inside(&inside, fd, events, limit, restart);
    }
    let mut kernel_fds = KernelFds::none();
    kernel_fds.push(fd, events);
    kernel_fds.look();
    Ok(found(&kernel_fds))
}

/// What its only descriptor has reported.
fn found(kernel_fds: &KernelFds) -> i16 {
    kernel_fds.found().first().map_or(0, |found| found.revents)
}

/// As [`wait_for_kernel_fd`], for a thread that is inside.
///
/// # Errors
/// As there.
pub fn wait_inside(
    inside: &Inside,
    fd: c_int,
    events: i16,
    limit: Option<Duration>,
    restart: Restart,
) -> io::Result<i16> {
    let deadline = Deadline::after(limit);
    let mut kernel_fds = KernelFds::none();
    kernel_fds.push(fd, events);
    if !kernel_fds.look() && !deadline.is_over() {
        let nothing: &mut [Ours] = &mut [];
        inside
            .wait(restart, || poll_with_kernel_fds(nothing, 0, deadline.left(), &mut kernel_fds))?;
    }
    Ok(found(&kernel_fds))
}

/// Waits for events of the kernel's descriptor `fd`, or of `source`, up to `limit`. False: the time is over.
///
/// # Errors
/// As [`wait_for_kernel_fd`].
pub fn wait_with_source(
    inside: &Inside,
    fd: c_int,
    events: i16,
    limit: Option<Duration>,
    restart: Restart,
    source: Arc<dyn Source>,
) -> io::Result<bool> {
    let deadline = Deadline::after(limit);
    let mut kernel_fds = KernelFds::none();
    kernel_fds.push(fd, events);
    if kernel_fds.look() {
        return Ok(true);
    }
    let mut entries = [Wakes { source, found: false }];
    inside.wait(restart, || {
        poll_with_kernel_fds(&mut entries, 0, deadline.left(), &mut kernel_fds)
    })?;
    Ok(entries[0].found || found(&kernel_fds) != 0)
}

/// A source that ends a wait.
struct Wakes {
    source: Arc<dyn Source>,
    found: bool,
}

impl Entry for Wakes {
    fn source(&self) -> &dyn Source {
        &*self.source
    }

    fn events(&self) -> Events {
        Events::READABLE
    }

    fn report(&mut self, found: Events) {
        self.found = found != Events::default();
    }
}

/// `SO_BUSY_POLL` of a socket.
fn busy_poll(file: &Ref) -> u32 {
    file.live().map_or(0, |live| live.socket().busy_poll())
}

/// # Safety
/// That of poll(2).
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let held = &mut Vec::new();
    // SAFETY: the caller's contract.
    unsafe { wait(fds, count, || Ok(Deadline::from_millis(timeout)), std::ptr::null(), held) }
        // SAFETY: the caller's contract.
        .unwrap_or_else(|| unsafe { kernel::poll(fds, count, timeout) })
}

/// # Safety
/// That of ppoll(2).
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let held = &mut Vec::new();
    // SAFETY: the caller's contract.
    unsafe { wait(fds, count, || Deadline::from_timespec(timeout), mask, held) }
        // SAFETY: the caller's contract.
        .unwrap_or_else(|| unsafe { kernel::ppoll(fds, count, timeout, mask) })
}

/// # Safety
/// That of poll(2), for an array of `room` bytes.
pub unsafe fn poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    let fits = room / size_of::<pollfd>() >= count as usize;
    let held = &mut Vec::new();
    // SAFETY: the caller's contract.
    match fits.then(|| unsafe {
        wait(fds, count, || Ok(Deadline::from_millis(timeout)), std::ptr::null(), held)
    }) {
        Some(Some(result)) => result,
        // SAFETY: the caller's contract; it aborts a program whose array is too small.
        _ => unsafe { kernel::__poll_chk(fds, count, timeout, room) },
    }
}

/// # Safety
/// That of ppoll(2), for an array of `room` bytes.
pub unsafe fn ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    let fits = room / size_of::<pollfd>() >= count as usize;
    let held = &mut Vec::new();
    // SAFETY: the caller's contract.
    match fits.then(|| unsafe { wait(fds, count, || Deadline::from_timespec(timeout), mask, held) })
    {
        Some(Some(result)) => result,
        // SAFETY: the caller's contract; it aborts a program whose array is too small.
        _ => unsafe { kernel::__ppoll_chk(fds, count, timeout, mask, room) },
    }
}

/// A number of descriptors that every process may have, unless it has lowered its limit.
pub const SURELY_ALLOWED: usize = 1024;

/// `RLIMIT_NOFILE`.
fn most_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| limit as usize)
}

/// Sets up to this size are served even if memory is short.
const FEW: usize = 256;

/// `None`: no descriptor in it is ours.
///
/// # Safety
/// `fds` points to `count` entries; `mask` is null or valid.
unsafe fn wait(
    fds: *mut pollfd,
    count: nfds_t,
    deadline: impl FnOnce() -> io::Result<Deadline>,
    mask: *const sigset_t,
    kernel_waits: &mut Vec<KernelWait>,
) -> Option<c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0 && !fds.is_null())?;
    // More entries than descriptors: the kernel refuses without reading them, so they may not exist.
    if count > SURELY_ALLOWED && count > most_descriptors() {
        return None;
    }
    // SAFETY: the caller's contract.
    let entries = unsafe { slice::from_raw_parts_mut(fds, count) };
    if !has_ours(entries.iter().map(|entry| entry.fd)) {
        return None;
    }
    let inside = Inside::enter()?;
    if count > FEW && (memory::is_short() || !MixedSet::has_room(count)) {
        return Some(answer(Err(error(libc::ENOMEM))));
    }
    let deadline = deadline();
    let waits = deadline.as_ref().is_ok_and(Deadline::waits);
    let set_of = |entries: &[pollfd], kernel_waits: &mut Vec<KernelWait>| {
        let asked = entries.iter().map(|entry| (entry.fd, entry.events));
        MixedSet::of(asked, None, waits, kernel_waits)
    };
    let mut mixed = set_of(entries, kernel_waits)?;
    // SAFETY: the caller's contract.
    let mask = unsafe { mask.as_ref() };
    let result = match deadline {
        Ok(deadline) => loop {
            let result = mixed.wait(&inside, deadline, mask);
            if result.is_err() || !mixed.has_moved() {
                break result;
            }
            mixed.recycle();
            mixed = set_of(entries, kernel_waits)?;
        },
        Err(error) => Err(error),
    };
    let result = result.map(|()| {
        entries.iter_mut().for_each(|entry| entry.revents = 0);
        let mut ready = 0;
        for (at, events) in mixed.found() {
            if let Some(entry) = entries.get_mut(at) {
                entry.revents = events;
                ready += 1;
            }
        }
        ready
    });
    mixed.recycle();
    Some(answer(result))
}
