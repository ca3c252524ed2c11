//! The end of a process by its own will: exit(3), the end of main, _exit(2); or by a signal that it does not handle
//! ([`crate::ending`]). The kernel would close its connections and see to what they have yet to say; ours end with the
//! process. So they are closed before it ends, which waits a little until their last words have been acknowledged. One
//! that is killed has no such time: its peers are reset by the guard.

use super::{
    bequest,
    file::Live,
    host::{self, Made},
};
use crate::{fds, guard, inside::Inside, real};
use busypoll_stack::ledger::Listed;
use libc::c_int;
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a process that ends waits for peers that do not acknowledge.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often it looks.
const LOOK: Duration = Duration::from_micros(200);

/// # Safety
/// That of _exit(2).
pub unsafe fn exit(status: c_int) -> c_int {
    guard::run(close_all);
    // SAFETY: the caller's contract.
    unsafe { real::_exit(status) }
}

/// Closes all connections of this process, and waits for their last words to arrive.
pub fn close_all() {
    let Some(_inside) = Inside::enter() else { return };
    let Some(Made { ledger, .. }) = host::made_here() else { return };
    bequest::at_end();
    for (_, file) in fds::all() {
        if let Some(Live::Stream(stream)) = file.as_ref().and_then(|file| file.live()) {
            stream.leave();
        }
    }
    let until = Instant::now() + PATIENCE;
    while ledger.has(has_more_to_say) && Instant::now() < until {
        thread::sleep(LOOK);
    }
}

fn has_more_to_say(line: &Listed) -> bool {
    // FIN-WAIT-1, LAST-ACK, CLOSING.
    matches!(line.state, 4 | 9 | 11)
}
