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

/// daemon(3), of which the C library ends the parent past `_exit`: what the child goes on with would end there.
///
/// # Safety
/// That of daemon(3).
pub unsafe fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    // SAFETY: plain calls, here and below, which come by the hooks: the numbers may be sockets of ours.
    match unsafe { libc::fork() } {
        0 => {}
        child if child < 0 => return child,
        // SAFETY: as above.
        _ => unsafe {
            libc::_exit(0);
        },
    }
    // SAFETY: as above; strings of C.
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
