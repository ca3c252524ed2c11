//! The normal end of a process: exit(3), the end of main, _exit(2); or a signal that it does not handle
//! ([`crate::signals::fatal`]). The kernel would close its connections and still deliver their queued data; ours end
//! with the process. So they are closed before, and the process waits a little until their data and FIN are
//! acknowledged; what a peer has no room for by then the kernel delivers. Datagrams leave, too. The same before an
//! exec, of connections that are closed. A process that is killed has no time for that: the guard resets its peers.

use super::{
    file::{FILES, Live, Ref},
    handover_parent,
    host::{self, Made},
    local_stream_end,
};
use crate::{
    inside::{Inside, all_but_faults},
    panics, real,
};
use busypoll_stack::ledger::{Ledger, LedgerEntry};
use libc::c_int;
use std::{
    ptr, thread,
    time::{Duration, Instant},
};

/// How long a process that ends waits for peers that do not acknowledge, if their connections cannot be handed over to
/// the kernel.
pub const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// How long it waits before they are handed over: a peer that reads has acknowledged all by then.
const DELIVERY_TIME: Duration = Duration::from_millis(20);

/// How long it waits for the neighbours of its last packets to be resolved, and for its NIC to send them.
const NEIGHBOUR_TIME: Duration = Duration::from_millis(200);

/// How often it checks.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

/// # Safety
/// That of _exit(2).
pub unsafe fn exit(status: c_int) -> c_int {
    panics::run(close_all);
    // SAFETY: the caller's contract.
    unsafe { real::_exit(status) }
}

/// daemon(3). The C library ends the parent past our `_exit` hook, which would end connections that the child
/// continues.
///
/// # Safety
/// That of daemon(3).
pub unsafe fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    // SAFETY: plain calls, here and below, through the hooks: the numbers may be sockets of ours.
    match unsafe { libc::fork() } {
        0 => {}
        child if child < 0 => return child,
        // SAFETY: as above.
        _ => unsafe {
            libc::_exit(0);
        },
    }
    // SAFETY: as above; C strings.
    unsafe {
        if libc::setsid() < 0 {
            return -1;
        }
        if nochdir == 0 {
            libc::chdir(c"/".as_ptr());
        }
        if noclose == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null < 0 {
                return -1;
            }
            for fd in 0..3 {
                libc::dup2(null, fd);
            }
            if null > 2 {
                libc::close(null);
            }
        }
    }
    0
}

/// Closes all connections of this process, and waits until their queued data is acknowledged.
pub fn close_all() {
    let Some(_inside) = Inside::enter() else { return };
    let Some(Made { ledger, .. }) = host::made_by_this_process() else { return };
    // A timer of the program, whose handler may be gone by now, would end it in another way meanwhile.
    let all = all_but_faults();
    // SAFETY: a set of our own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, ptr::null_mut()) };
    let until = Instant::now() + WAIT_LIMIT;
    host::leave_directory();
    handover_parent::hand_over_all(until);
    local_stream_end::end_all(until);
    for (_, file) in FILES.all() {
        if let Some(Live::Stream(stream)) = file.as_ref().and_then(|file| file.live()) {
            stream.close_at_exit();
        }
    }
    deliver(&ledger, until, || {
        let rest = |(fd, file): (c_int, Option<Ref>)| {
            let file = file?;
            let is_rest = match file.live() {
                Some(Live::Stream(stream)) => stream.is_unacknowledged(),
                _ => false,
            };
            is_rest.then_some((file, fd))
        };
        handover_parent::hand_over_each(FILES.all().filter_map(rest).collect(), until);
    });
    host::flush_capture();
}

/// This process executes a program: what the connections that it has closed have still to send is delivered, by then.
pub fn deliver_closed(until: Instant) {
    let Some(Made { ledger, .. }) = host::made_by_this_process() else { return };
    deliver(&ledger, until, || ());
}

/// Waits until the peers of closed connections have acknowledged all, but not past `until`, and until datagrams have
/// left. After a while the kernel gets those connections by `hand_over_open`, and those that the program has closed.
fn deliver(ledger: &Ledger, until: Instant, hand_over_open: impl FnOnce()) {
    let Some(host) = host::existing() else { return };
    let now = Instant::now();
    let is_delivered = || !ledger.has(is_unacknowledged);
    if !holds_by(until.min(now + DELIVERY_TIME), is_delivered) {
        host.hand_over_orphans(until, false);
        hand_over_open();
        host.hand_over_orphans(until, true);
        holds_by(until, is_delivered);
    }
    holds_by(now + NEIGHBOUR_TIME, || host.has_sent_all());
}

/// Waits until then.
fn holds_by(until: Instant, condition: impl Fn() -> bool) -> bool {
    while !condition() {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(CHECK_INTERVAL);
    }
    true
}

fn is_unacknowledged(line: &LedgerEntry) -> bool {
    // FIN-WAIT-1, LAST-ACK, CLOSING.
    matches!(line.state, 4 | 9 | 11)
}
