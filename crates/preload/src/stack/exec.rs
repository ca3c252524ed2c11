//! Before an exec: what becomes of connections and listeners that the new program gets.

use super::{
    activation, companion_address, exit,
    file::{FILES, Live, Ref, hand_over_now},
    foreign, handover_parent, host, libc_io, links, local_stream, local_stream_end, udp_links,
};
use crate::{inside::Inside, real};
use libc::c_int;
use std::{sync::atomic::Ordering, time::Instant};

/// Before an exec, after which no code of ours can ask the parent: hands over to the kernel the connections of this
/// process that stay open, and of its parent's those at standard input, output and error, and those that a child has
/// prepared for the new program. The port of a listener that it gets is shared with it.
pub fn before_exec() {
    if FILES.end() == 0 {
        return;
    }
    let Some(_inside) = Inside::enter() else { return };
    host::share_companions();
    if passes_listener() {
        links::give_back(true);
    }
    if host::made_by_this_process().is_some() {
        activation::share_udp(&udp_links::own_sockets(|_| true));
    }
    let until = Instant::now() + exit::WAIT_LIMIT;
    let mut closing = Vec::new();
    for (fd, file) in FILES.all() {
        let Some(file) = file else { continue };
        let is_standard = (0..=2).contains(&fd);
        match (file.inherited(), file.live()) {
            (Some(_), _)
                if !file.is_kernel_owned()
                    && (is_standard || file.for_exec.load(Ordering::Relaxed) && stays_open(fd)) =>
            {
                hand_over_now(&file);
            }
            // It would end with the memory of this process.
            (None, Some(Live::Stream(_))) if stays_open(fd) => libc_io::check_executed(fd, &file),
            // It is closed by then: the kernel delivers what its peer has not read.
            (None, Some(Live::Stream(_))) if host::made_by_this_process().is_some() => {
                match file.domain {
                    libc::AF_UNIX => local_stream_end::before_close(&file, fd),
                    _ => closing.push((file, fd)),
                }
            }
            (_, Some(Live::Listener(_))) if stays_open(fd) => foreign::share_listener(fd),
            _ if file.is_parents_listener()
                && (is_standard || file.for_exec.load(Ordering::Relaxed))
                && stays_open(fd) =>
            {
                foreign::share_listener(fd);
            }
            _ => {}
        }
    }
    handover_parent::hand_over_each(closing, until);
    handover_parent::hand_over_kept(until);
    exit::deliver_closed(until);
    local_stream_end::wait_until_left(until);
    host::flush_capture();
}

/// Before a program is started by a child of which the hooks of fork know nothing. Other processes may get this one's
/// sockets; a connection that this process has taken over from the kernel is handed back if the program gets it.
pub fn before_spawn() {
    companion_address::may_be_shared();
    if FILES.end() == 0 {
        return;
    }
    let Some(_inside) = Inside::enter() else { return };
    handover_parent::before_spawn();
    local_stream::share(stays_open);
    if passes_listener() {
        links::give_back(false);
    }
    activation::share_udp(&udp_links::own_sockets(stays_open));
    for (fd, file) in FILES.all() {
        if let Some(file) = file.filter(|file| file.has_followed())
            && stays_open(fd)
        {
            libc_io::check_executed(fd, &file);
        }
    }
}

/// Whether the program gets a listener.
fn passes_listener() -> bool {
    let is_listener =
        |file: Option<Ref>| file.is_some_and(|file| matches!(file.live(), Some(Live::Listener(_))));
    FILES.all().any(|(fd, file)| is_listener(file) && stays_open(fd))
}

fn stays_open(fd: c_int) -> bool {
    // SAFETY: a plain system call.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}
