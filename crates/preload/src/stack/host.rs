//! The process's Host: made when a socket first needs it, in the process that needs it. At first it has links to other
//! processes only; the interface, and with it a slot, comes with the first socket that needs it.

use super::{
    capture,
    common::{self, lock},
    internal_fds, namespace, not_accelerated, thread_end,
};
use crate::{
    config::{self, Config},
    handler_frames, inside,
    report::Once,
    signals, spin_policy,
};
use busypoll_policy::{Plane, Settings};
use busypoll_stack::{
    Containers, HandOver, Host,
    lease::{self, Answer, End, Lease},
    ledger::Ledger,
    nic::xdp,
    signal, spin, thread,
};
use rustix::process::{Pid, getpid};
use std::{
    io, mem,
    net::IpAddr,
    os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// The run has no other interface.
pub const LOOPBACK: &str = "lo";

/// The Host, and what was refused.
#[derive(Default)]
pub struct Slot {
    made: Option<Made>,
    /// It has the interface.
    has_interface: bool,
    refused: Refused,
}

/// What a process cannot have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Refused {
    #[default]
    Nothing,
    /// The interface.
    Interface,
    /// Any Host.
    Host,
}

/// The Host with its ledger in shared memory, and the process that made it.
#[derive(Clone)]
pub struct Made {
    host: Host,
    pub ledger: Arc<Ledger>,
    process: Pid,
}

static HOST: Mutex<Slot> =
    Mutex::new(Slot { made: None, has_interface: false, refused: Refused::Nothing });

/// Hands a connection over to the kernel, at the request of the process at its other end.
pub static HAND_OVER: OnceLock<HandOver> = OnceLock::new();

/// The addresses of this network namespace.
pub static ADDRESSES: OnceLock<fn() -> Vec<IpAddr>> = OnceLock::new();

/// Closes the connections of a process that ends.
pub static AT_END: OnceLock<fn()> = OnceLock::new();

static REFUSED: Once = Once::new();

static IN_HANDLER: Once = Once::new();

static UNGUARDED: Once = Once::new();

static GONE: Once = Once::new();

/// The Host with the interface, made if need be. `None` if there can be none: the sockets of this process that need it
/// are the kernel's.
pub fn get() -> Option<Host> {
    get_reported(Slot::with_interface)
}

/// The Host, made if need be, for a socket that needs no interface: what it exchanges goes over links.
pub fn for_links() -> Option<Host> {
    get_reported(Slot::any)
}

fn get_reported(get: fn(&mut Slot) -> io::Result<Option<Host>>) -> Option<Host> {
    let mut slot = lock(&HOST);
    // The guard is not found from another network namespace.
    if slot.made.is_none() && !namespace::is_first(false) {
        return None;
    }
    if handler_frames::is_running() && slot.made.is_none() && slot.refused != Refused::Host {
        let why = format_args!(
            "{}: a signal handler uses the first socket of this process, and no thread may be started there",
            not_accelerated::device()
        );
        not_accelerated::report(&IN_HANDLER, why, "that socket stays with the kernel");
        return None;
    }
    get(&mut slot).unwrap_or_else(|error| {
        slot.refused = if slot.made.is_some() { Refused::Interface } else { Refused::Host };
        not_accelerated::report(
            &REFUSED,
            format_args!("{error}"),
            "the sockets of this process stay with the kernel",
        );
        None
    })
}

/// As [`get`], for what goes on without it: a refusal is not reported, and holds for this call alone.
pub fn get_if_possible() -> Option<Host> {
    lock(&HOST).with_interface().ok().flatten()
}

/// Has the guard take the interface, once, as a socket for it was bound: taking it lasts some 10 ms, and the first wait
/// would have to wait for it. The Host is made by the process that waits.
pub fn prepare() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let guard = config::get().and_then(|config| config.launch.guard.as_ref());
    if let Some(guard) = guard
        && not_accelerated::device() != LOOPBACK
        && !lock(&HOST).has_interface
        && !ASKED.swap(true, Ordering::Relaxed)
    {
        // If this fails, the claim fails as well and is reported.
        let _ = lease::prepare(guard);
    }
}

/// The Host, if there is one.
pub fn existing() -> Option<Host> {
    lock(&HOST).made.as_ref().map(|made| made.host.clone())
}

/// The Host, if it has the interface.
pub fn with_interface() -> Option<Host> {
    let slot = lock(&HOST);
    slot.made.as_ref().filter(|_| slot.has_interface).map(|made| made.host.clone())
}

/// The Host, if there is one and this process made it: not in a child that shares its parent's memory.
pub fn made_by_this_process() -> Option<Made> {
    lock(&HOST).made.clone().filter(|made| made.process == getpid())
}

/// Before a fork and an exec: another program may use the companions.
pub fn share_companions() {
    if let Some(made) = made_by_this_process() {
        made.host.share_kernel_sockets();
    }
}

/// Before this process ends: those of other network namespaces do not find it any more.
pub fn leave_directory() {
    if let Some(made) = made_by_this_process() {
        made.host.leave_directory();
    }
}

/// Before this process ends or becomes another program: its capture is complete.
pub fn flush_capture() {
    if let Some(made) = made_by_this_process() {
        made.host.flush_capture(capture::FLUSH_LIMIT);
    }
}

/// Locked across a fork.
pub fn slot() -> MutexGuard<'static, Slot> {
    lock(&HOST)
}

impl Slot {
    /// The Host, made if need be; `None` if it was refused before, or in a handler.
    fn any(&mut self) -> io::Result<Option<Host>> {
        if self.made.is_none() {
            if self.refused == Refused::Host || handler_frames::is_running() {
                return Ok(None);
            }
            let config = config::get().filter(|config| config.launch.same_host);
            match config {
                Some(config) => self.made = Some(make_with_links(config)?),
                None => {
                    self.made = Some(make()?);
                    self.has_interface = true;
                }
            }
        }
        Ok(self.made.as_ref().map(|made| made.host.clone()))
    }

    /// The same, with the interface.
    fn with_interface(&mut self) -> io::Result<Option<Host>> {
        let Some(host) = self.any()? else { return Ok(None) };
        if self.has_interface {
            return Ok(Some(host));
        }
        if not_accelerated::device() == LOOPBACK {
            return Ok(None);
        }
        // A handler may start no thread.
        let ledger = self.made.as_ref().map(|made| made.ledger.clone());
        if self.refused == Refused::Interface || handler_frames::is_running() {
            return Ok(None);
        }
        add_interface(&host, ledger.as_deref())?;
        self.has_interface = true;
        Ok(Some(host))
    }

    /// In the child of a fork: not dropped, as its threads do not exist there and its rings are the parent's.
    pub fn forget(&mut self) {
        mem::forget(mem::take(self));
    }
}

/// `TCP_REPAIR`, done by the guard where this process lacks the capability.
pub fn repair(socket: RawFd, how: i32) -> io::Result<()> {
    let guard = config::get().and_then(|config| config.launch.guard.as_deref());
    match (busypoll_stack::repair(socket, how), guard) {
        (Err(refused), Some(guard)) if refused.raw_os_error() == Some(libc::EPERM) => {
            lease::repair(guard, socket, how)
        }
        (done, _) => done,
    }
}

/// `SO_PRIORITY`, set by the guard where this process lacks the capability.
fn set_priority(socket: RawFd, priority: u32) -> io::Result<()> {
    let guard = config::get().and_then(|config| config.launch.guard.as_deref());
    match (busypoll_stack::set_priority(socket, priority), guard) {
        (Err(refused), Some(guard)) if refused.raw_os_error() == Some(libc::EPERM) => {
            lease::priority(guard, socket, priority)
        }
        (done, _) => done,
    }
}

/// A program without a Host has `listener`, or will have it: the kernel makes the connections of its port from now on,
/// also if a process of the runs has it. Returns whether that is so.
pub fn share_listener(listener: RawFd) -> bool {
    let Some(config) = config::get() else { return false };
    if config.launch.same_host
        && let Ok(local) = common::local(listener)
    {
        busypoll_stack::share_address(local);
        made_by_this_process().into_iter().for_each(|made| made.host.share_own_address(local));
    }
    let guard = config.launch.guard.as_deref();
    guard.is_some_and(|guard| lease::share(guard, listener).is_ok())
}

/// The Host with links only.
fn make_with_links(config: &Config) -> io::Result<Made> {
    let guard = guard_of(config)?;
    prepare_stack();
    let watched =
        lease::watch(guard, as_internal).map_err(unanswered)?.map_err(io::Error::other)?;
    let (ledger, polls_for) = (watched.ledger, settings(config).micros_on(Plane::Stack));
    let builder = Host::builder().ledger(ledger.clone()).shares_later(watched.icmp);
    let builder = builder.busy_read(polls_for).busy_poll(polls_for);
    let builder = match capture::start(config) {
        Some(capture) => builder.capture(capture),
        None => builder,
    };
    let host = builder.build()?;
    let hand_over = HAND_OVER.get();
    let directory = config.launch.policy.containers();
    let containers = directory.zip(ADDRESSES.get()).map(|(directory, addresses)| Containers {
        directory: directory.to_owned(),
        addresses: *addresses,
    });
    let _ = hand_over.map(|hand_over| host.reach_processes(*hand_over, containers));
    lease::on_end(watched.connection, |end| {
        if let End::Guard = end {
            unguarded();
        }
    })?;
    AT_END.get().into_iter().for_each(|close_all| signals::fatal::arm(*close_all));
    Ok(Made { host, ledger, process: getpid() })
}

/// Adds the interface to a Host with links only.
fn add_interface(host: &Host, ledger: Option<&Ledger>) -> io::Result<()> {
    let Some(config) = config::get() else { return Err(io::ErrorKind::NotFound.into()) };
    let (lease, connection) = claim(guard_of(config)?, ledger)?;
    let name = lease.grant.owner_name()?.map(as_internal);
    host.add_leased(lease.grant)?;
    lease::on_end(connection, move |end| ended(end, name.as_ref()))
}

fn guard_of(config: &Config) -> io::Result<&str> {
    let guard = config.launch.guard.as_deref();
    guard.ok_or_else(|| io::Error::other("the stack plane needs an interface; give --dev"))
}

fn prepare_stack() {
    thread::on_start(inside::stay_inside);
    signal::on_first_sleep(thread_end::first_sleep);
    spin::set_rule(spin_policy::RULE);
    busypoll_stack::set_repair(repair);
    busypoll_stack::set_priority_by(set_priority);
}

fn unanswered(error: io::Error) -> io::Error {
    let device = not_accelerated::device();
    io::Error::other(format!("{device}: its guard does not answer ({error})"))
}

fn claim(guard: &str, ledger: Option<&Ledger>) -> io::Result<(Box<Lease>, OwnedFd)> {
    match lease::claim(guard, ledger, as_internal) {
        Ok(Answer::Granted(lease, connection)) => Ok((lease, connection)),
        Ok(Answer::OwnedBy(pid)) => {
            let device = not_accelerated::device().to_owned();
            Err(xdp::Error::Owned { device, pid }.into())
        }
        Ok(Answer::Refused(why)) => Err(io::Error::other(why)),
        Err(error) => Err(unanswered(error)),
    }
}

/// The lease has ended.
fn ended(end: End, name: Option<&OwnedFd>) {
    match end {
        End::Interface => GONE.report(format_args!(
            "{}: the interface is gone: its connections cannot send or receive any more. New sockets, also on another \
             interface of that name, stay with the kernel until the program is restarted",
            not_accelerated::device()
        )),
        End::Guard => {
            // The guard may have been the owner, by name. If this fails, a refused process names one that has ended.
            let _ = name.map(|name| xdp::name_this_process(name.as_fd()));
            unguarded();
        }
    }
}

fn unguarded() {
    UNGUARDED.report(format_args!(
        "{}: the guard of this run is gone: the program goes on, but if this process is killed, its peers get no reset",
        not_accelerated::device()
    ));
}

/// The Host with the interface, where there are no links.
fn make() -> io::Result<Made> {
    let Some(config) = config::get() else { return Err(io::ErrorKind::NotFound.into()) };
    let guard = guard_of(config)?;
    prepare_stack();
    let (lease, connection) = claim(guard, None)?;
    let name = lease.grant.owner_name()?.map(as_internal);
    let (polls_for, ledger) = (settings(config).micros_on(Plane::Stack), lease.ledger.clone());
    let builder = Host::builder().leased(*lease)?.busy_read(polls_for).busy_poll(polls_for);
    let builder = match capture::start(config) {
        Some(capture) => builder.capture(capture),
        None => builder,
    };
    let host = builder.build()?;
    lease::on_end(connection, move |end| ended(end, name.as_ref()))?;
    AT_END.get().into_iter().for_each(|close_all| signals::fatal::arm(*close_all));
    Ok(Made { host, ledger, process: getpid() })
}

/// A descriptor that the guard has sent, as one of the library's own.
fn as_internal(fd: OwnedFd) -> OwnedFd {
    // SAFETY: `keep` returns the same descriptor under its new number.
    unsafe { OwnedFd::from_raw_fd(internal_fds::make_internal(fd.into_raw_fd())) }
}

/// The policy's settings for this program as a whole.
pub fn settings(config: &Config) -> Settings {
    let settings = config.launch.policy.for_program(&config.program);
    match settings.plane {
        Plane::Stack => settings,
        _ => config.launch.policy.defaults,
    }
}
