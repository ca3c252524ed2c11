//! Following: new sockets and epoll instances of the attached processes and of their children, as they appear.
//!
//! A BPF feed reports what they open (`linux::bpf::follow`); without BPF they are scanned every 100 ms. What the feed
//! does not report (a socket is added to an epoll instance) is found by a scan every second.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use busypoll_linux::Error;
use busypoll_linux::bpf::follow::{EventKind, Follow};
use busypoll_policy::{Policy, say};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::AttachError;
use super::show;
use super::target::{SpinnerLimit, Target};

/// Between two scans without a feed.
const RESCAN: Duration = Duration::from_millis(100);
/// Between two scans with a feed.
const RARELY: Duration = Duration::from_secs(1);
/// From an object's opening to its scan: until then the program is setting it up.
const SETTLE: Duration = Duration::from_millis(5);

/// The processes that are followed, and the feed.
pub(super) struct Following<'a> {
    targets: Vec<Target>,
    feed: Option<Follow>,
    policy: &'a Policy,
    dir: &'a Path,
    json: bool,
    /// When children were last searched for.
    children: Instant,
}

impl<'a> Following<'a> {
    pub fn new(targets: Vec<Target>, policy: &'a Policy, dir: &'a Path, json: bool) -> Self {
        let pids: Vec<u32> = targets.iter().map(|target| target.process.pid()).collect();
        let feed = feed(&pids);
        if let Err(why) = &feed {
            say(format_args!("scanning every 100 ms: {why}"));
        }
        Following { targets, feed: feed.ok(), policy, dir, json, children: Instant::now() }
    }

    /// Runs until all of them have ended.
    pub fn run(
        mut self,
        out: &mut impl Write,
        limit: &mut SpinnerLimit,
    ) -> Result<(), AttachError> {
        // The first scan finds what was opened before the feed began.
        let mut next = NextScan::at(Instant::now());
        while !self.targets.is_empty() {
            if self.wait(next.due.saturating_duration_since(Instant::now())) {
                // Removed at once: its pidfd would end every wait until then.
                let ended = |target: &Target| !target.process.is_alive();
                let ended = (0..self.targets.len()).filter(|&at| ended(&self.targets[at]));
                self.remove(ended.collect(), out, limit)?;
            }
            let reported = self.listen();
            let now = Instant::now();
            if reported {
                next.reported(now);
            }
            if now < next.due {
                continue;
            }
            self.find_children(now);
            self.scan(out, limit)?;
            let pause = if self.feed.is_some() { RARELY } else { RESCAN };
            next = NextScan::after(now, Instant::now(), pause);
        }
        Ok(())
    }

    /// Sleeps for `time`, or until the feed has an event or a process has ended; returns whether a process may have
    /// ended.
    fn wait(&self, time: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> =
            self.targets.iter().map(|target| PollFd::new(&target.process, PollFlags::IN)).collect();
        let feed = self.feed.as_ref().map(AsFd::as_fd);
        fds.extend(feed.iter().map(|feed| PollFd::new(feed, PollFlags::IN)));
        // The conversion cannot fail for so short a time, and a signal only makes the scan early.
        let timeout = Timespec::try_from(time).unwrap_or_default();
        let _ = poll(&mut fds, Some(&timeout));
        fds.iter().take(self.targets.len()).any(|fd| !fd.revents().is_empty())
    }

    /// Whether the feed has reported something new.
    fn listen(&mut self) -> bool {
        let mut reported = false;
        let mut born = Vec::new();
        while let Some(event) = self.feed.as_mut().and_then(Follow::next_event) {
            match event.kind {
                EventKind::Forked { child } => born.push(child),
                EventKind::Opened { .. } | EventKind::Executed => {}
                EventKind::Exited => continue,
            }
            reported = true;
        }
        self.adopt(born);
        reported
    }

    fn find_children(&mut self, now: Instant) {
        if self.feed.is_some() || now.duration_since(self.children) < RARELY {
            return;
        }
        self.children = now;
        let born = self.targets.iter().flat_map(|target| target.process.children()).collect();
        self.adopt(born);
    }

    fn adopt(&mut self, born: Vec<u32>) {
        for pid in born {
            let known = self.targets.iter().any(|target| target.process.pid() == pid);
            // A process that has ended again, or that this user may not inspect, is not followed.
            if !known && let Ok(target) = Target::open(pid, self.dir) {
                self.targets.push(target);
            }
        }
    }

    fn scan(&mut self, out: &mut impl Write, limit: &mut SpinnerLimit) -> Result<(), AttachError> {
        let mut ended = Vec::new();
        for (index, target) in self.targets.iter_mut().enumerate() {
            match target.scan(self.policy, limit) {
                Ok(rows) if rows.is_empty() => {}
                Ok(rows) => show::changes(out, target, &rows, self.json)?,
                // It has executed a program of another user, or ended.
                Err(AttachError::Linux(Error::NoProcess { .. } | Error::Denied { .. })) => {
                    ended.push(index);
                }
                Err(error) => return Err(error),
            }
        }
        self.remove(ended, out, limit)
    }

    /// Removes the targets at these indices, which are ascending.
    fn remove(
        &mut self,
        ended: Vec<usize>,
        out: &mut impl Write,
        limit: &mut SpinnerLimit,
    ) -> Result<(), AttachError> {
        for index in ended.into_iter().rev() {
            let target = self.targets.remove(index);
            let pid = target.process.pid();
            target.finish(limit, self.dir)?;
            if !self.json {
                writeln!(out, "{pid}  has ended")?;
            }
        }
        Ok(())
    }
}

/// When to scan next.
struct NextScan {
    due: Instant,
    /// A scan of many sockets takes long: it uses at most a twentieth of a CPU, whatever the feed reports.
    earliest: Instant,
}

impl NextScan {
    fn at(now: Instant) -> Self {
        NextScan { due: now, earliest: now }
    }

    fn after(began: Instant, ended: Instant, pause: Duration) -> Self {
        let earliest = ended + ended.duration_since(began) * 20;
        NextScan { due: earliest.max(ended + pause), earliest }
    }

    /// The feed has reported something new.
    fn reported(&mut self, now: Instant) {
        self.due = self.due.min(self.earliest.max(now + SETTLE));
    }
}

/// The feed identifies processes by their PIDs in the initial PID namespace.
fn feed(pids: &[u32]) -> Result<Follow, String> {
    use std::os::unix::fs::MetadataExt;
    // PROC_PID_INIT_INO (include/linux/proc_ns.h).
    const INITIAL: u64 = 0xEFFF_FFFC;
    let ours = std::fs::metadata("/proc/self/ns/pid").map_err(|e| e.to_string())?.ino();
    if ours != INITIAL {
        return Err("this is a PID namespace of its own".to_owned());
    }
    Follow::start(pids, true).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_the_feed_hastens_a_scan_up_to_a_twentieth_of_a_cpu() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // After a short scan, a new object is scanned once it has settled.
        let mut next = NextScan::after(at(0), at(1), RARELY);
        assert_eq!(next.due, at(1001));
        next.reported(at(30));
        next.reported(at(32));
        assert_eq!(next.due, at(35));
        // After a long scan.
        let mut next = NextScan::after(at(0), at(40), RARELY);
        assert_eq!(next.due, at(1040));
        next.reported(at(41));
        assert_eq!(next.due, at(840));
        let mut next = NextScan::after(at(0), at(100), RARELY);
        next.reported(at(101));
        assert_eq!(next.due, at(2100));
    }
}
