//! New sockets and epoll instances of the processes attached to, as they appear; their children too.
//!
//! By a feed of what they open (`linux::bpf::follow`) where BPF may be used, else by looking every 100 ms.
//! What the feed does not tell (a socket is added to an epoll instance) is found by looking every second.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use busypoll_linux::Error;
use busypoll_linux::bpf::follow::{Follow, What};
use busypoll_policy::{Policy, say};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::AttachError;
use super::show;
use super::target::{Room, Target};

/// Between two looks where there is no feed.
const RESCAN: Duration = Duration::from_millis(100);
/// Between two looks where there is one.
const RARELY: Duration = Duration::from_secs(1);
/// From a thing's opening to the look at it: until then it is being set up.
const SETTLE: Duration = Duration::from_millis(5);

/// The processes that are followed, and what tells of them.
pub(super) struct Following<'a> {
    targets: Vec<Target>,
    feed: Option<Follow>,
    policy: &'a Policy,
    dir: &'a Path,
    json: bool,
    /// Children looked for last.
    children: Instant,
}

impl<'a> Following<'a> {
    pub fn new(targets: Vec<Target>, policy: &'a Policy, dir: &'a Path, json: bool) -> Self {
        let pids: Vec<u32> = targets.iter().map(|target| target.process.pid()).collect();
        let feed = feed(&pids);
        if let Err(why) = &feed {
            say(format_args!("looking every 100 ms: {why}"));
        }
        Following { targets, feed: feed.ok(), policy, dir, json, children: Instant::now() }
    }

    /// Until all of them have ended.
    pub fn run(mut self, out: &mut impl Write, room: &mut Room) -> Result<(), AttachError> {
        // What was opened before the feed began is found by the first look.
        let mut next = Next::at(Instant::now());
        while !self.targets.is_empty() {
            if self.wait(next.due.saturating_duration_since(Instant::now())) {
                // At once: its pidfd would end every wait until then.
                let ended = |target: &Target| !target.process.is_alive();
                let ended = (0..self.targets.len()).filter(|&at| ended(&self.targets[at]));
                self.leave(ended.collect(), out, room)?;
            }
            let told = self.listen();
            let now = Instant::now();
            if told {
                next.told(now);
            }
            if now < next.due {
                continue;
            }
            self.find_children(now);
            self.look(out, room)?;
            let pause = if self.feed.is_some() { RARELY } else { RESCAN };
            next = Next::after(now, Instant::now(), pause);
        }
        Ok(())
    }

    /// Sleeps so long, or until the feed has something or a process has ended; whether one has.
    fn wait(&self, time: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> =
            self.targets.iter().map(|target| PollFd::new(&target.process, PollFlags::IN)).collect();
        let feed = self.feed.as_ref().map(AsFd::as_fd);
        fds.extend(feed.iter().map(|feed| PollFd::new(feed, PollFlags::IN)));
        // A time this short fits, and a signal only makes the look an early one.
        let timeout = Timespec::try_from(time).unwrap_or_default();
        let _ = poll(&mut fds, Some(&timeout));
        fds.iter().take(self.targets.len()).any(|fd| !fd.revents().is_empty())
    }

    /// Whether the feed tells of something new.
    fn listen(&mut self) -> bool {
        let mut told = false;
        let mut born = Vec::new();
        while let Some(event) = self.feed.as_mut().and_then(Follow::next_event) {
            match event.what {
                What::Forked { child } => born.push(child),
                What::Opened { .. } | What::Executed => {}
                What::Exited => continue,
            }
            told = true;
        }
        self.adopt(born);
        told
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
            // One that has ended again, or that may not be looked at, is not followed.
            if !known && let Ok(target) = Target::open(pid, self.dir) {
                self.targets.push(target);
            }
        }
    }

    fn look(&mut self, out: &mut impl Write, room: &mut Room) -> Result<(), AttachError> {
        let mut ended = Vec::new();
        for (index, target) in self.targets.iter_mut().enumerate() {
            match target.pass(self.policy, room) {
                Ok(rows) if rows.is_empty() => {}
                Ok(rows) => show::news(out, target, &rows, self.json)?,
                // An exec that changes the user, or its end.
                Err(AttachError::Linux(Error::NoProcess { .. } | Error::Denied { .. })) => {
                    ended.push(index);
                }
                Err(error) => return Err(error),
            }
        }
        self.leave(ended, out, room)
    }

    /// Parts with the targets at these places, which ascend.
    fn leave(
        &mut self,
        ended: Vec<usize>,
        out: &mut impl Write,
        room: &mut Room,
    ) -> Result<(), AttachError> {
        for index in ended.into_iter().rev() {
            let target = self.targets.remove(index);
            let pid = target.process.pid();
            target.leave(room, self.dir)?;
            if !self.json {
                writeln!(out, "{pid}  has ended")?;
            }
        }
        Ok(())
    }
}

/// When to look next.
struct Next {
    due: Instant,
    /// Looking at many sockets takes its time: never more than a twentieth of a CPU, whatever is told.
    earliest: Instant,
}

impl Next {
    fn at(now: Instant) -> Self {
        Next { due: now, earliest: now }
    }

    fn after(began: Instant, ended: Instant, pause: Duration) -> Self {
        let earliest = ended + ended.duration_since(began) * 20;
        Next { due: earliest.max(ended + pause), earliest }
    }

    /// The feed has told of something new.
    fn told(&mut self, now: Instant) {
        self.due = self.due.min(self.earliest.max(now + SETTLE));
    }
}

/// The feed speaks of processes by their numbers in the initial PID namespace.
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
    fn news_hastens_a_look_and_not_beyond_a_twentieth_of_a_cpu() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // A short look: what is told soon after it is looked at once it has settled.
        let mut next = Next::after(at(0), at(1), RARELY);
        assert_eq!(next.due, at(1001));
        next.told(at(30));
        next.told(at(32));
        assert_eq!(next.due, at(35));
        // A long one.
        let mut next = Next::after(at(0), at(40), RARELY);
        assert_eq!(next.due, at(1040));
        next.told(at(41));
        assert_eq!(next.due, at(840));
        let mut next = Next::after(at(0), at(100), RARELY);
        next.told(at(101));
        assert_eq!(next.due, at(2100));
    }
}
