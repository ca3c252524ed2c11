//! The guard of the stack plane: a process beside the program that holds the interface for it. However the program
//! ends, the interface is the kernel's again, and its peers are told.
//!
//! | module | owns |
//! |---|---|
//! | `serve` | who asks, who has the interface, and when that one has gone |
//! | `interface` | taking the interface, and what stands in the way |
//! | `presence` | whether the interface is still there |
//! | `reset` | telling the peers of connections whose program is gone |
//! | `kin` | whether anybody of the run is left |
//!
//! The interface is taken when a process of the run first needs it, so a program that opens no socket changes nothing.
//! That process gets what it takes to drive the queues ([`busypoll_stack::lease`]), and keeps in shared memory what it
//! takes to reset its connections ([`busypoll_stack::ledger`]). Nothing has to be journalled: all that is changed hangs
//! on descriptors, and goes with the last of them.
//!
//! A guard that is killed takes nothing with it: the process it has granted the interface to holds the steering program
//! as well, is told, and goes on. Its peers are then told by nobody should it be killed, too.

mod interface;
mod kin;
mod presence;
mod reset;
mod serve;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

use busypoll_policy::Launch;
use busypoll_stack::{firewall, lease};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};

use self::interface::Interface;
use self::serve::Guard;
use crate::apart;

/// The abstract names under which guards are found begin so.
pub const NAME: &str = "busypoll/guard/";

/// Leaves a guard behind for this process, what it becomes by exec, and all its children. With `--strict` the interface
/// is taken at once.
///
/// # Errors
/// The system's; one line of why the interface cannot be had.
pub(crate) fn begin(launch: &mut Launch, device: &str) -> io::Result<()> {
    let name = format!("{NAME}{:016x}", random()?);
    let word = format!("{:016x}", random()?);
    let address = format!("{name}/{word}");
    let listener = lease::listen(&name)?;
    let program = pidfd_open(getpid(), PidfdFlags::empty())?;
    let (result, answer) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Some(rules) = firewall::rules().filter(|_| launch.bypass_firewall) {
        rules.report(device);
    }
    let interface = Interface::new(device, launch.bypass_firewall);
    let (strict, run) = (launch.strict, address.clone());
    apart::leave_behind(move || {
        apart::only_keep(&[listener.as_fd(), program.as_fd(), answer.as_fd()]);
        apart::fall_silent();
        let mut guard = Guard { listener, word, program, interface, address: run };
        let refusal = if strict { guard.interface.take().err() } else { None };
        let refused = refusal.map_or_else(String::new, |why| why.to_string());
        // Who asked has gone: then nobody wants to know.
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

/// A number nobody guesses, from the kernel.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
