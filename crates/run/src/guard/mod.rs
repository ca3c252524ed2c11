//! The guard of the stack plane: a process beside the program that holds the interface for it. However the program
//! ends, the guard returns the interface to the kernel and resets the connections.
//!
//! | module | owns |
//! |---|---|
//! | `serve` | requests, the processes that have the interface, and what happens when one has gone |
//! | `share` | granting the interface, and joining that of another run |
//! | `interface` | taking the interface, and what prevents it |
//! | `link_watch` | whether the interface is still there |
//! | `reset` | resetting the connections of a program that is gone |
//! | `liveness` | whether any process of the run is left |
//!
//! The interface is taken when a process of the run first binds a port of it or needs it, so a program that opens no
//! socket changes nothing. Each process that needs it gets what drives the queues ([`busypoll_stack::lease`]), and keeps
//! in shared memory what the guard needs to reset its connections ([`busypoll_stack::ledger`]). No journal is needed:
//! every change is bound to descriptors, and ends with the last of them.
//!
//! If a guard is killed, nothing is lost: the process that it has granted the interface to holds the steering program
//! as well, notices, and goes on. If that process is then killed too, its peers get no reset.

mod interface;
mod link_watch;
mod liveness;
mod reset;
mod serve;
mod share;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use busypoll_policy::Launch;
use busypoll_stack::{firewall, lease, nic::xdp};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};

use self::interface::Interface;
use self::serve::Guard;
use crate::daemonize;

/// The prefix of the abstract socket names of guards.
pub const NAME: &str = "busypoll/guard/";

/// Starts a guard for this process, for the program it executes, and for all its children. With `--strict` the
/// interface is taken at once.
///
/// # Errors
/// Those of the system; one line that says why the interface is not available.
pub(crate) fn begin(launch: &mut Launch, device: &str) -> io::Result<()> {
    let label = format!("{:016x}", random()?);
    let name = format!("{NAME}{label}");
    let secret = format!("{:016x}", random()?);
    let address = format!("{name}/{secret}");
    let listener = lease::listen(&name)?;
    let program = pidfd_open(getpid(), PidfdFlags::empty())?;
    let (result, answer) = pipe_with(PipeFlags::CLOEXEC)?;
    if launch.bypass_firewall
        && let Some(rules) = firewall::rules()
    {
        rules.report(device);
    }
    xdp::report_zero_copy_limit(device);
    let interface = Interface::new(device, label, launch.bypass_firewall);
    let (strict, run) = (launch.strict, address.clone());
    daemonize::spawn(move || {
        daemonize::close_all_but(&[listener.as_fd(), program.as_fd(), answer.as_fd()]);
        daemonize::close_stderr();
        let mut guard = Guard { listener, secret, program, interface, address: run };
        let refusal = if strict { guard.check().err() } else { None };
        let refused = refusal.map_or_else(String::new, |why| why.to_string());
        // If the launcher is gone, nothing reads the answer.
        let _ = File::from(answer).write_all(refused.as_bytes());
        if refused.is_empty() {
            guard.serve();
        }
    })?;
    let mut refused = String::new();
    File::from(result).read_to_string(&mut refused)?;
    if !refused.is_empty() {
        return Err(io::Error::other(refused));
    }
    launch.guard = Some(address);
    Ok(())
}

/// An unpredictable number, from the kernel.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
