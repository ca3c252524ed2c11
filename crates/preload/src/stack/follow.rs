//! A connection follows its user. The parent has accepted it, and has handed it over to the kernel when this child first
//! used it. If this process alone has it now, it takes it over from the kernel: into its own Host, with all that was
//! received and not read. That is known, never guessed: the parent says whether it has a descriptor left, or any other
//! child has one ([`handover_parent`](super::handover_parent)); and this process has let no other have its sockets since
//! ([`companion_address`](super::companion_address)).
//!
//! It happens in a call that receives on it, in a process without other threads, when the peer has acknowledged all that
//! was sent: usually when its next request is there.

use super::{
    common::{self, companion},
    companion_options,
    file::{File, Live, fd_of_set},
    handover_channel::Answer,
    host, not_accelerated, rings, route,
    wait::wait_inside,
};
use crate::{
    config,
    inside::{Inside, Restart, is_single_threaded},
    memory,
    report::Once,
};
use busypoll_stack::TcpStream;
use libc::c_int;
use std::{io, net, sync::atomic::Ordering, time::Duration};

/// After how many exchanges this process makes a Host for it. That takes as long as 60 to 240 exchanges save, and the slots
/// of an interface are few.
const EXCHANGES: u32 = 256;

static STAYS: Once = Once::new();

/// How often it tries, while something that was sent is not acknowledged, before it waits for as many exchanges again.
const TRIES: u32 = 16;

/// A receive on `file`, at `fd`. `None`: it is the kernel's, at least for this call.
///
/// # Errors
/// EINTR: a signal has ended the wait for data.
#[cold]
pub fn take_over<'a>(
    inside: &Inside,
    file: &'a File,
    fd: c_int,
    flags: c_int,
) -> io::Result<Option<&'a Live>> {
    let follow = &file.follow;
    // Only a receive after a send is an exchange.
    if flags & libc::MSG_OOB != 0 || !follow.has_sent.swap(false, Ordering::Relaxed) {
        return Ok(None);
    }
    let exchanges = follow.exchanges.fetch_add(1, Ordering::Relaxed) + 1;
    let is_strict = config::get().is_some_and(|config| config.launch.strict);
    let due = match (follow.due.load(Ordering::Relaxed), host::existing()) {
        // It is the kernel's no longer than it must be.
        (0, None) if is_strict => 1,
        (0, None) => EXCHANGES,
        (due, _) => due,
    };
    if exchanges < due {
        return Ok(None);
    }
    if !is_for_this_process(file) {
        stays_with_kernel(file);
        return Ok(None);
    }
    let waits = flags & libc::MSG_DONTWAIT == 0
        && !file.is_nonblocking()
        && companion_options::timeout(fd, libc::SO_RCVTIMEO).is_none();
    // Its next data comes with the acknowledgment of what it has sent.
    let limit = if waits { None } else { Some(Duration::ZERO) };
    let events = libc::POLLIN | libc::POLLRDHUP;
    let ready = wait_inside(inside, fd, events, limit, Restart::BySignal)?;
    if ready & (libc::POLLRDHUP | libc::POLLERR) != 0 {
        // Nothing more comes, so there is nothing to gain, or to miss with `--strict`. Of the peer's end before the
        // hand-over the kernel's socket has no number.
        file.set_kernel_owned();
        return Ok(None);
    }
    let kernel = companion::<net::TcpStream>(fd);
    if !TcpStream::may_follow(&kernel) {
        // A program may look for data before it waits: then the next receive finds it acknowledged.
        follow.has_sent.store(true, Ordering::Relaxed);
        if exchanges > due + TRIES {
            put_off(file, exchanges, is_strict);
        }
        return Ok(None);
    }
    let ends = common::local(fd).ok().zip(common::remote(fd));
    let may_come = ends.is_some_and(|(local, remote)| {
        file.is_for_stack(Some(local), Some(remote))
            // A Host knows by itself.
            && (host::with_interface().is_some() || route::leads_to(remote, local.ip()))
    });
    if !may_come {
        stays_with_kernel(file);
        return Ok(None);
    }
    let moved = move_here(file, fd, &kernel);
    if moved.is_none() && file.follows() && (!is_strict || exchanges > due + TRIES) {
        put_off(file, exchanges, is_strict);
    }
    Ok(moved)
}

/// It cannot be taken over now. With `--strict` it must be.
fn put_off(file: &File, exchanges: u32, is_strict: bool) {
    match is_strict {
        true => stays_with_kernel(file),
        false => file.follow.due.store(exchanges.saturating_mul(2), Ordering::Relaxed),
    }
}

/// It is the kernel's for good, of which the parent has said that it may be. With `--strict` the program ends.
fn stays_with_kernel(file: &File) {
    file.set_kernel_owned();
    if config::get().is_some_and(|config| config.launch.strict) {
        let why = format_args!(
            "{}: a connection of the parent's cannot be taken over from the kernel",
            not_accelerated::device()
        );
        not_accelerated::report(&STAYS, why, "it stays there");
    }
}

/// Whether nothing is against it on this side.
fn is_for_this_process(file: &File) -> bool {
    let id = file.memberships.id();
    file.followed().is_some()
        && file.unsupported().is_none()
        && file.memberships.sets().iter().all(|set| set.has_alone(id))
        && !rings::keep_sockets()
}

fn move_here<'a>(file: &'a File, fd: c_int, kernel: &net::TcpStream) -> Option<&'a Live> {
    let _activation = common::lock(&file.activation);
    if memory::is_short() || !is_single_threaded() {
        return None;
    }
    if !file.follow.is_alone.load(Ordering::Relaxed) {
        match file.followed()?.is_alone() {
            Answer::Alone => file.follow.is_alone.store(true, Ordering::Relaxed),
            Answer::Later => return None,
            _ => {
                stays_with_kernel(file);
                return None;
            }
        }
    }
    let host = host::get_if_possible()?;
    let stream = TcpStream::follow(&host, kernel.try_clone().ok()?).ok()?;
    let ends = (stream.local_addr().ok(), stream.peer_addr().ok());
    let live = Live::Stream(stream);
    live.set_nonblocking(file.is_nonblocking());
    companion_options::copy_from_companion(fd, &live);
    file.set_has_complex_options();
    file.copy_options(fd, &live);
    companion_options::copy_owner(fd, &live);
    file.apply_settings(&live, ends);
    let live = file.live.get_or_init(|| live);
    file.set_followed();
    file.memberships.activated(&live.socket().events(), fd_of_set);
    Some(live)
}
