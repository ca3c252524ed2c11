//! The runs of the stack plane: what their ledgers say.

use busypoll_observe::runs::{Guards, Run};
use busypoll_stack::inet::{Count, DROPS};
use busypoll_stack::ledger::{LedgerQueue, Way};

use crate::metrics::{
    RUN_CROWDED, RUN_DROPS, RUN_EMPTY, RUN_INTERRUPTS, RUN_LINKS, RUN_OPENS, RUN_PACKETS,
    RUN_RECEIVED, RUN_REFUSED, RUN_RETRANSMITS, RUN_SOCKETS, RUN_UNLISTED,
};
use crate::page::Page;

/// The values of the label `way`.
const LINK: &str = "link";
const INTERFACE: &str = "interface";

/// Adds the runs that this user may see. Returns how many guards did not answer, or not to this user.
pub(crate) fn collect(guards: &mut Guards, page: &mut Page) -> u64 {
    let seen = guards.read();
    seen.rows.iter().for_each(|run| add(page, run));
    seen.unseen
}

fn add(page: &mut Page, run: &Run) {
    let (user, pid) = (run.user.to_string(), run.pid.to_string());
    let labels = [user.as_str(), pid.as_str(), run.program.as_str()];
    let with =
        |last: &[&'static str]| -> Vec<&str> { labels.iter().chain(last).copied().collect() };
    for ((protocol, state), count) in &run.sockets {
        page.count(&RUN_SOCKETS, &with(&[protocol, state]), *count);
    }
    page.count(&RUN_UNLISTED, &labels, run.unlisted);

    let links = run.queues.iter().filter(|queue| is_link(queue) && queue.napi != 0);
    page.count(&RUN_LINKS, &labels, links.count() as u64);
    for queue in &run.queues {
        let way = if is_link(queue) { LINK } else { INTERFACE };
        let queue = &queue.stats;
        page.count(&RUN_RECEIVED, &with(&[way]), queue.packets);
        let interrupt = queue.packets.saturating_sub(queue.bp_cleaned);
        page.count(&RUN_PACKETS, &with(&["busy_poll"]), queue.bp_cleaned);
        page.count(&RUN_PACKETS, &with(&["interrupt"]), interrupt);
        page.count(&RUN_EMPTY, &labels, queue.bp_misses);
        page.count(&RUN_REFUSED, &labels, queue.bp_yields);
        page.count(&RUN_CROWDED, &labels, queue.bp_crowded);
        page.count(&RUN_INTERRUPTS, &labels, queue.interrupts);
    }
    let Some(counts) = &run.counts else { return };
    let of = |count: Count| counts.get(count as usize).copied().unwrap_or(0);
    for cause in DROPS.iter().filter(|cause| of(**cause) > 0) {
        page.count(&RUN_DROPS, &with(&[cause.name()]), of(*cause));
    }
    page.count(&RUN_RETRANSMITS, &labels, of(Count::TcpRetransSegs));
    let all = of(Count::TcpActiveOpens) + of(Count::TcpPassiveOpens);
    let over_links = of(Count::TcpLinkActiveOpens) + of(Count::TcpLinkPassiveOpens);
    page.count(&RUN_OPENS, &with(&[LINK]), over_links);
    page.count(&RUN_OPENS, &with(&[INTERFACE]), all.saturating_sub(over_links));
}

fn is_link(queue: &LedgerQueue) -> bool {
    matches!(queue.way, Way::Link(_))
}
