//! The runs of the stack plane: their ledgers, from the guards of this network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use busypoll_run::{guard, ss};
use busypoll_stack::inet::{Count, DROPS, list_id};
use busypoll_stack::ledger::Ledger;
use busypoll_stack::wire::Protocol;
use busypoll_stack::{lease, unix};

use crate::metrics::{
    RUN_CROWDED, RUN_DROPS, RUN_EMPTY, RUN_INTERRUPTS, RUN_PACKETS, RUN_REFUSED, RUN_RETRANSMITS,
    RUN_SOCKETS, RUN_UNLISTED,
};
use crate::page::Page;

/// The most guards asked in one scrape, how long one may take, and all together. Any user may listen at a guard's name.
const GUARDS: usize = 128;
const EACH: Duration = Duration::from_millis(200);
const ALL: Duration = Duration::from_secs(2);

/// Guards, with those that were slow to answer.
#[derive(Default)]
pub(crate) struct Guards {
    slow: BTreeSet<String>,
}

impl Guards {
    /// Adds the runs that this user may see. Returns how many guards did not answer, or not to this user.
    pub(crate) fn collect(&mut self, page: &mut Page) -> io::Result<u64> {
        let mut names = unix::names(guard::NAME);
        self.slow.retain(|name| names.contains(name));
        // A silent listener must not keep the others from being asked.
        names.sort_by_key(|name| self.slow.contains(name));
        let end = Instant::now() + ALL;
        let mut unseen = names.len().saturating_sub(GUARDS) as u64;
        for name in names.into_iter().take(GUARDS) {
            if Instant::now() >= end {
                unseen += 1;
                continue;
            }
            match lease::list_of_any_user(&name, EACH) {
                Ok(Some((user, pid, ledger))) if owns(user, pid) => run(page, user, pid, &ledger),
                // Its program has no socket yet, or this user may not see it: both look the same.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.slow.insert(name);
                    unseen += 1;
                }
                _ => unseen += 1,
            }
        }
        Ok(unseen)
    }
}

/// Whether a guard of `user` may speak for this process.
fn owns(user: u32, pid: i32) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    owner.is_ok_and(|owner| user == 0 || owner == user)
}

fn run(page: &mut Page, user: u32, pid: i32, ledger: &Ledger) {
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let (user, pid) = (user.to_string(), pid.to_string());
    let run = [user.as_str(), pid.as_str(), program.trim_end()];
    let with = |last: &[&'static str]| -> Vec<&str> { run.iter().chain(last).copied().collect() };

    let mut sockets: BTreeMap<_, u64> = BTreeMap::new();
    for entry in ledger.list() {
        let protocol = if entry.protocol == Protocol::UDP { "udp" } else { "tcp" };
        *sockets.entry((protocol, ss::state(entry.state))).or_default() += 1;
    }
    for ((protocol, state), count) in sockets {
        page.count(&RUN_SOCKETS, &with(&[protocol, state]), count);
    }
    page.count(&RUN_UNLISTED, &run, ledger.left_out().into());

    for context in ledger.contexts() {
        let interrupt = context.packets.saturating_sub(context.bp_cleaned);
        page.count(&RUN_PACKETS, &with(&["busy_poll"]), context.bp_cleaned);
        page.count(&RUN_PACKETS, &with(&["interrupt"]), interrupt);
        page.count(&RUN_EMPTY, &run, context.bp_misses);
        page.count(&RUN_REFUSED, &run, context.bp_yields);
        page.count(&RUN_CROWDED, &run, context.bp_crowded);
        page.count(&RUN_INTERRUPTS, &run, context.interrupts);
    }
    // A program of another version may count something else.
    let Some(counts) = ledger.inet_counts(list_id()) else { return };
    let of = |count: Count| counts.get(count as usize).copied().unwrap_or(0);
    for cause in DROPS.iter().filter(|cause| of(**cause) > 0) {
        page.count(&RUN_DROPS, &with(&[cause.name()]), of(*cause));
    }
    page.count(&RUN_RETRANSMITS, &run, of(Count::TcpRetransSegs));
}
