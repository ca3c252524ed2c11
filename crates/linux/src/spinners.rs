//! A table in shared memory of the CPUs that have a spinner, so that no two threads spin
//! for packets on one CPU: each would keep the other from the work it waits for.
//!
//! A file of [`CPUS`] entries, one cache line each: until when the CPU is taken, how many threads were refused, until
//! when no thread of the CPU spins, and until when a trial of spinning is under way. All times expire, so that nothing
//! must be cleaned up after a killed process. After the entries come the [`Pace`] of the clock that all processes use,
//! and how often spinning was found harmful.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, ptr};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::ticks::{Pace, is_ahead};

/// The CPUs in the table. Threads on CPUs beyond it spin without an entry.
pub const CPUS: usize = 1024;

/// The longest an entry may hold, in nanoseconds. A longer one is ignored: it was made with another clock.
const MOST: u64 = 1_000_000_000;

const BYTES: usize = size_of::<Table>();

#[repr(C, align(64))]
struct Slot {
    taken_until: AtomicU64,
    refused: AtomicU64,
    quiet_until: AtomicU64,
    trial_until: AtomicU64,
}

#[repr(C)]
struct Table {
    cpus: [Slot; CPUS],
    /// As [`Pace::to_bits`]; 0 until a process has measured it.
    pace: AtomicU64,
    /// Trials that found spinning harmful.
    harm: AtomicU64,
}

/// The table, mapped until the process ends.
#[derive(Clone, Copy)]
pub struct Spinners {
    cpus: &'static [Slot],
    harm: &'static AtomicU64,
    pace: Pace,
}

/// What a table shows to a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpinnerCounts {
    /// CPUs that have a spinner now.
    pub spinning: usize,
    /// Threads that found their CPU taken and slept.
    pub refused: u64,
    /// Trials that found spinning harmful: the thread slept for a while instead.
    pub harm: u64,
}

/// A CPU taken by a spinner: given back with [`Spinners::leave`], or lost when its time is over.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct CpuClaim {
    cpu: usize,
    until: u64,
    /// The number of refused threads at that time.
    refused: u64,
}

impl Spinners {
    /// Creates the file of a table, unless it exists.
    ///
    /// # Errors
    /// The system call's; `PermissionDenied` if the file is not this user's alone.
    pub fn create(path: &Path) -> io::Result<()> {
        let options = options();
        let file = match options.clone().create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path)?,
            made => made?,
        };
        check(&file)?;
        // Allocating an existing file to its own size changes nothing. If memory were missing only at the first
        // access, that access would end the program (SIGBUS).
        match fallocate(&file, FallocateFlags::empty(), 0, BYTES as u64) {
            Err(Errno::OPNOTSUPP) => file.set_len(BYTES as u64),
            allocated => Ok(allocated?),
        }
    }

    /// Maps a table that [`Spinners::create`] has made.
    ///
    /// # Errors
    /// The system call's; `PermissionDenied` if the file is not this user's alone; `InvalidData` if
    /// it is too short.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = options().open(path)?;
        check(&file)?;
        if file.metadata()?.len() < BYTES as u64 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        // SAFETY: a new mapping, of no memory in use, never unmapped.
        let memory = unsafe {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), BYTES, both, MapFlags::SHARED, file.as_fd(), 0)?
        };
        Ok(Self::at(memory))
    }

    /// A table for this process and its forked children.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn private() -> io::Result<Self> {
        // SAFETY: as in `open`.
        let memory = unsafe {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), BYTES, both, MapFlags::SHARED)?
        };
        Ok(Self::at(memory))
    }

    fn at(memory: *mut std::ffi::c_void) -> Self {
        // SAFETY: a mapping of `BYTES` bytes that stays, page-aligned; any bytes are a valid `Table`,
        // which other processes change as atomically as this one.
        let table: &'static Table = unsafe { &*memory.cast() };
        let pace = Pace::from_bits(table.pace.load(Ordering::Relaxed)).unwrap_or_else(|| {
            let ours = Pace::measure();
            let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let first = table.pace.compare_exchange(0, ours.to_bits(), done, failed).err();
            // All processes use the first one's.
            first.and_then(Pace::from_bits).unwrap_or(ours)
        });
        Self { cpus: &table.cpus, harm: &table.harm, pace }
    }

    /// The current time of the table's clock, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.pace.now()
    }

    /// Takes `cpu` from `now` to `until`, for a second at most; `None` if another thread has it, or it is quiet.
    #[inline]
    pub fn enter(&self, cpu: usize, now: u64, until: u64) -> Option<CpuClaim> {
        let until = until.min(now.saturating_add(MOST));
        let Some(slot) = self.cpus.get(cpu) else {
            return Some(CpuClaim { cpu, until, refused: 0 });
        };
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        if is_ahead(slot.quiet_until.load(Ordering::Relaxed), now, MOST) {
            return None;
        }
        let taken = slot.taken_until.load(Ordering::Relaxed);
        if is_ahead(taken, now, MOST)
            || slot.taken_until.compare_exchange(taken, until, done, failed).is_err()
        {
            slot.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(CpuClaim { cpu, until, refused: slot.refused.load(Ordering::Relaxed) })
    }

    /// Gives the CPU back early. Returns whether another thread wanted it: it was refused, or took the CPU after the
    /// time was over.
    #[inline]
    pub fn leave(&self, claim: CpuClaim) -> bool {
        let Some(slot) = self.cpus.get(claim.cpu) else { return false };
        let lost = slot.taken_until.load(Ordering::Relaxed) != claim.until;
        if !lost {
            slot.taken_until.store(0, Ordering::Relaxed);
        }
        lost || slot.refused.load(Ordering::Relaxed) != claim.refused
    }

    /// Whether no thread of `cpu` may spin at `now`.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self, cpu: usize, now: u64) -> bool {
        let quiet = |slot: &Slot| is_ahead(slot.quiet_until.load(Ordering::Relaxed), now, MOST);
        self.cpus.get(cpu).is_some_and(quiet)
    }

    /// Keeps the threads of `cpu` from spinning until `until`, for a second at most.
    pub fn quieten(&self, cpu: usize, until: u64) {
        if let Some(slot) = self.cpus.get(cpu) {
            slot.quiet_until.store(until, Ordering::Relaxed);
        }
    }

    /// The same, unless `cpu` is quiet for half of that time already: so most calls do not write to the table.
    pub fn keep_quiet(&self, cpu: usize, now: u64, until: u64) {
        let half = until.saturating_sub(now) / 2;
        if !self.is_quiet(cpu, now + half) {
            self.quieten(cpu, until);
        }
    }

    /// Ends what [`Spinners::quieten`] began with the same `until`, unless another thread has prolonged it.
    pub fn end_quiet(&self, cpu: usize, until: u64) {
        if let Some(slot) = self.cpus.get(cpu) {
            let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = slot.quiet_until.compare_exchange(until, 0, done, failed);
        }
    }

    /// Begins a trial of spinning on `cpu`, until `until` at first; false while another one is under way there.
    pub fn begin_trial(&self, cpu: usize, now: u64, until: u64) -> bool {
        let Some(slot) = self.cpus.get(cpu) else { return true };
        let taken = slot.trial_until.load(Ordering::Relaxed);
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        !is_ahead(taken, now, MOST)
            && slot.trial_until.compare_exchange(taken, until, done, failed).is_ok()
    }

    /// No other trial begins on `cpu` before `until`, for a second at most.
    pub fn hold_trial(&self, cpu: usize, until: u64) {
        if let Some(slot) = self.cpus.get(cpu) {
            slot.trial_until.store(until, Ordering::Relaxed);
        }
    }

    /// Counts a trial that found spinning harmful.
    #[cold]
    pub fn count_harm(&self) {
        self.harm.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads the table in this file, of any user, once. Changes nothing.
    ///
    /// # Errors
    /// The system call's; `InvalidData` if it is no table.
    pub fn read_counts(path: &Path) -> io::Result<SpinnerCounts> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() < BYTES as u64 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mut bytes = vec![0; BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let (slots, rest) = words.split_at(size_of::<Slot>() / 8 * CPUS);
        let now = Pace::from_bits(rest[0]).map(|pace| pace.now());
        let slots = slots.as_chunks::<{ size_of::<Slot>() / 8 }>().0;
        let spins = |slot: &&[u64; _]| now.is_some_and(|now| is_ahead(slot[0], now, MOST));
        Ok(SpinnerCounts {
            spinning: slots.iter().filter(spins).count(),
            refused: slots.iter().fold(0, |sum, slot| sum.wrapping_add(slot[1])),
            harm: rest[1],
        })
    }

    /// The number of CPUs taken at `now`, of the first `cpus`.
    #[must_use]
    pub fn count(&self, cpus: usize, now: u64) -> usize {
        let taken = |slot: &&Slot| is_ahead(slot.taken_until.load(Ordering::Relaxed), now, MOST);
        self.cpus.iter().take(cpus).filter(taken).count()
    }
}

fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Refuses a file that other users can write to.
fn check(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !own || !metadata.is_file() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("busypoll-spinners-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_cpu_has_one_spinner_over_all_processes() {
        let path = path("shared");
        Spinners::create(&path).unwrap();
        // Mapped twice, as two processes would.
        let (a, b) = (Spinners::open(&path).unwrap(), Spinners::open(&path).unwrap());
        Spinners::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(a.pace, b.pace, "measured once");
        let claim = a.enter(1, 100, 150).unwrap();
        assert!(b.enter(1, 120, 170).is_none());
        let other = b.enter(0, 120, 170).unwrap();
        assert_eq!((b.count(2, 120), b.count(1, 120), b.count(2, 160)), (2, 1, 1));
        assert!(a.leave(claim), "b was refused");
        let again = b.enter(1, 130, 180).unwrap();
        // A late `leave` does not end another thread's claim.
        assert!(a.leave(claim), "b has it");
        assert!(a.enter(1, 140, 190).is_none());
        // A CPU that is never given back becomes free in time.
        assert!(a.enter(1, 180, 230).is_some());
        assert!(b.leave(again), "a was refused");
        assert!(!b.leave(other), "no thread was refused");
        assert!(a.enter(CPUS + 1, 0, 1).is_some(), "a CPU beyond the table has no entry");
    }

    #[test]
    fn a_reader_counts_spinners_refusals_and_harm() {
        let path = path("counts");
        Spinners::create(&path).unwrap();
        let table = Spinners::open(&path).unwrap();
        assert_eq!(Spinners::read_counts(&path).unwrap(), SpinnerCounts::default());
        let now = table.now();
        let _claim = table.enter(3, now, now + MOST).unwrap();
        assert!(table.enter(3, now, now + MOST).is_none());
        table.count_harm();
        let counts = Spinners::read_counts(&path).unwrap();
        fs::remove_file(&path).unwrap();
        // The second may be over by now.
        assert!(counts.spinning <= 1, "{counts:?}");
        assert_eq!((counts.refused, counts.harm), (1, 1));
        assert!(Spinners::read_counts(&path).is_err());
        assert!(Spinners::read_counts(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn a_quiet_cpu_is_quiet_to_all_until_its_time_is_over() {
        let table = Spinners::private().unwrap();
        table.quieten(2, 150);
        assert!(table.is_quiet(2, 149) && !table.is_quiet(2, 150) && !table.is_quiet(1, 149));
        assert!(table.enter(2, 149, 170).is_none() && table.enter(1, 149, 170).is_some());
        assert_eq!(table.cpus[2].refused.load(Ordering::Relaxed), 0, "no thread had it");
        // Another thread has prolonged it.
        table.quieten(2, 180);
        table.end_quiet(2, 150);
        assert!(table.is_quiet(2, 149));
        table.end_quiet(2, 180);
        assert!(!table.is_quiet(2, 149));
        table.keep_quiet(2, 100, 200);
        table.keep_quiet(2, 149, 210);
        assert!(!table.is_quiet(2, 200), "more than half was left");
        table.keep_quiet(2, 180, 220);
        assert!(table.is_quiet(2, 219));
        table.quieten(2, 10 * MOST);
        assert!(!table.is_quiet(2, 149), "made with another clock");
        table.quieten(CPUS, 150);
        assert!(!table.is_quiet(CPUS, 149), "a CPU beyond the table has no entry");
    }

    #[test]
    fn a_cpu_has_one_trial_at_a_time() {
        let table = Spinners::private().unwrap();
        assert!(table.begin_trial(1, 100, 150));
        assert!(!table.begin_trial(1, 149, 200) && table.begin_trial(0, 149, 200));
        table.hold_trial(1, 180);
        assert!(!table.begin_trial(1, 179, 230) && table.begin_trial(1, 180, 230));
        table.hold_trial(1, 10 * MOST);
        assert!(table.begin_trial(1, 180, 230), "made with another clock");
        assert!(table.begin_trial(CPUS, 0, 1) && table.begin_trial(CPUS, 0, 1));
    }

    #[test]
    fn a_cpu_is_taken_for_at_most_a_second() {
        let table = Spinners::private().unwrap();
        let (now, second) = (100, 1_000_000_000);
        let claim = table.enter(0, now, u64::MAX).unwrap();
        assert_eq!((table.count(1, now + second - 1), table.count(1, now + second)), (1, 0));
        // As left by a process whose clock was far ahead.
        table.cpus[0].taken_until.store(now + 10 * second, Ordering::Relaxed);
        assert_eq!(table.count(1, now), 0);
        assert!(table.enter(0, now, now + 50).is_some());
        assert!(table.leave(claim), "another thread has it");
        // The reverse: taken until just before the end.
        assert_eq!((table.count(1, now + 49), table.count(1, now + 50)), (1, 0));
    }

    #[test]
    fn a_file_that_is_a_link_or_writable_by_others_or_too_short_is_refused() {
        let (file, link) = (path("open"), path("link"));
        Spinners::create(&file).unwrap();
        symlink(&file, &link).unwrap();
        assert!(Spinners::open(&link).is_err());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(Spinners::open(&file).is_err());
        assert!(Spinners::create(&file).is_err());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_len(10).unwrap();
        assert!(Spinners::open(&file).is_err());
        fs::remove_file(file).unwrap();
        fs::remove_file(link).unwrap();
    }
}
