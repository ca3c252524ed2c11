//! Granting the interface to processes: by this guard, if it holds the interface or can take it; by the guard of another
//! run of the same user, if that one does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use busypoll_stack::IcmpSockets;
use busypoll_stack::lease;
use busypoll_stack::ledger::{self, Ledger};
use busypoll_stack::nic::xdp::{Attachment, Error, Grant};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::NAME;
use super::interface::Refusal;
use super::serve::{self, Claimant, Guard, Has, Owner};

/// `TCP_REPAIR_ON` (include/uapi/linux/tcp.h).
const REPAIR_ON: i32 = 1;

impl Guard {
    /// Takes the interface, and checks that it could be granted to a process. If another run has it, checks that its
    /// guard would grant it.
    pub(super) fn check(&mut self) -> Result<(), Refusal> {
        let mut refused = None;
        for patient in [false, true] {
            match self.interface.take(patient) {
                Ok(held) => return held.grant().map_err(Refusal::System).map(drop),
                Err(refusal @ Refusal::System(Error::Owned { .. })) => {
                    let process = pidfd_open(getpid(), PidfdFlags::empty()).ok();
                    let joined =
                        process.and_then(|own| self.join(getpid().as_raw_pid(), &own, None));
                    if joined.is_some_and(|joined| lease::is_joined(&joined)) {
                        return Ok(());
                    }
                    refused = Some(refusal);
                }
                Err(refusal) => return Err(refusal),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Answers the claim of a process of this run. Returns the process if this guard has granted it the interface.
    pub(super) fn claim(
        &mut self,
        connection: OwnedFd,
        claimant: Claimant,
        owners: &mut [Owner],
    ) -> Option<Owner> {
        let pid = claimant.pid;
        for patient in [false, true] {
            match self.interface.take(patient) {
                Err(Refusal::System(Error::Owned { pid: owner, .. })) => {
                    let ledger = claimant.ledger.as_ref().map(AsFd::as_fd);
                    let process = claimant.process.as_ref();
                    if let Some(joined) = process.and_then(|of| self.join(pid, of, ledger)) {
                        let _ = lease::answer_joined(&connection, &joined);
                        // The other guard lists it, unless it refuses.
                        return None;
                    }
                    if patient {
                        let _ = lease::answer_owned(&connection, owner);
                        return None;
                    }
                }
                Ok(_) | Err(_) => break,
            }
        }
        self.grant(connection, claimant, owners)
    }

    /// Lists a process that has links, and may claim the interface. Returns it, or refuses.
    pub(super) fn watch(
        &self,
        connection: OwnedFd,
        pid: i32,
        process: Option<OwnedFd>,
    ) -> Option<Owner> {
        let allowed = check_hand_over().and_then(|()| self.interface.check_firewall());
        let watched = allowed.and_then(|()| {
            let ledger = Ledger::create(ledger::LINES)?;
            lease::answer_watched(&connection, &ledger, &IcmpSockets::open()?)?;
            Ok(ledger)
        });
        match watched {
            Ok(ledger) => {
                Some(Owner { pid, process, connection, ledger, slot: None, has: Has::Links })
            }
            Err(refusal) => {
                let _ = lease::answer_refused(&connection, &refusal.to_string());
                None
            }
        }
    }

    /// Asks the guard of the run that has the interface to grant it to a process. The answer comes over the returned
    /// connection.
    fn join(&self, pid: i32, process: &OwnedFd, ledger: Option<BorrowedFd<'_>>) -> Option<OwnedFd> {
        let labels = Attachment::labels(&self.interface.device);
        let mut names = labels.into_iter().map(|label| format!("{NAME}{label}"));
        names.find_map(|name| lease::join(&name, pid, process.as_fd(), ledger).ok())
    }

    /// A program without the interface has this listener: shares its port, here or where the interface is held.
    pub(super) fn share_listener(&mut self, socket: &OwnedFd) -> bool {
        if let Some(held) = self.interface.held_mut() {
            return held.share_listener(socket).is_ok();
        }
        // The other guard asks for no word of a process of this user.
        let mut is_held = false;
        for label in Attachment::labels(&self.interface.device) {
            match lease::share(&format!("{NAME}{label}/-"), socket.as_raw_fd()) {
                Ok(()) => return true,
                // It has ended.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => is_held = true,
            }
        }
        // Where no guard has the interface no port is steered.
        !is_held
    }

    /// Grants the interface to a process, of this or of another run, and returns it; or refuses.
    pub(super) fn grant(
        &mut self,
        connection: OwnedFd,
        claimant: Claimant,
        owners: &mut [Owner],
    ) -> Option<Owner> {
        let Claimant { pid, process, ledger } = claimant;
        match self.try_grant(&connection, ledger, owners) {
            Ok((slot, ledger)) => {
                serve::has_more(owners, pid);
                Some(Owner { pid, process, connection, ledger, slot, has: Has::Interface })
            }
            Err(refusal) => {
                let _ = lease::answer_refused(&connection, &refusal.to_string());
                None
            }
        }
    }

    fn try_grant(
        &mut self,
        connection: &OwnedFd,
        ledger: Option<OwnedFd>,
        owners: &[Owner],
    ) -> Result<(Option<u8>, Ledger), Refusal> {
        let mut holders = owners.iter().filter(|owner| owner.has_interface());
        let first = holders.next();
        let device = self.interface.device.clone();
        let held = self.interface.take(true)?;
        if let (Some(owner), Some(why)) = (first, held.why_alone()) {
            let (pid, why) = (owner.pid, why.to_owned());
            return Err(Refusal::System(Error::NotShared { device, pid, why }));
        }
        let granted = held.grant_share().map_err(Refusal::System).and_then(|grant| {
            let slot = grant.slot();
            let ledger = answer(connection, grant, ledger).map_err(|error| {
                slot.into_iter().for_each(|slot| held.end(slot));
                Refusal::Other(error.to_string())
            });
            ledger.map(|ledger| (slot, ledger))
        });
        if granted.is_err() && first.is_none() {
            self.interface.release();
        }
        granted
    }
}

/// Whether this guard can help a process to hand its connections over to the kernel. Without the capability for it the
/// firewall's rules cannot be read either.
fn check_hand_over() -> Result<(), Refusal> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).map_err(io::Error::from)?;
    busypoll_stack::repair(socket.as_raw_fd(), REPAIR_ON).map_err(|error| {
        Refusal::Other(format!(
            "TCP_REPAIR: {error}: without CAP_NET_ADMIN the kernel would not take connections over from memory"
        ))
    })
}

fn answer(connection: &OwnedFd, grant: Grant, ledger: Option<OwnedFd>) -> io::Result<Ledger> {
    let ledger = match ledger {
        Some(memory) => Ledger::open(memory)?,
        None => Ledger::create(ledger::LINES)?,
    };
    lease::answer_granted(connection, grant, &ledger, &IcmpSockets::open()?)?;
    Ok(ledger)
}
