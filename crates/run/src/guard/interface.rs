//! Taking the interface, and what prevents it. While the guard holds it, packets for our ports bypass the kernel; when
//! it is released, the kernel gets them again.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use busypoll_linux::link::Links;
use busypoll_stack::firewall;
use busypoll_stack::nic::xdp::{Attachment, Error};

use super::link_watch::LinkWatch;

/// How long to wait for another owner to release the interface: the guard of a run that has just ended releases it a
/// moment later, and the next run must not fail for that.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// The interface of a run.
pub(super) struct Interface {
    pub(super) device: String,
    /// Ends the owner's name, by which guards of other runs find this one.
    label: String,
    bypass_firewall: bool,
    /// Its index, once it has been held; 0: unknown.
    index: u32,
    held: Option<Attachment>,
    link_watch: Option<LinkWatch>,
    /// The process that asked for it, by its pidfd, until a process is granted it.
    prepared_for: Option<OwnedFd>,
}

/// Why it is not available.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An error of the system.
    System(Error),
    /// Another reason, in words.
    Other(String),
}

impl Interface {
    pub(super) fn new(device: &str, label: String, bypass_firewall: bool) -> Self {
        Self {
            device: device.to_owned(),
            label,
            bypass_firewall,
            index: 0,
            held: None,
            link_watch: None,
            prepared_for: None,
        }
    }

    /// Takes the interface for a process, unless it is held already. If it has another owner, waits for its release if
    /// `patient`.
    pub(super) fn take(&mut self, patient: bool) -> Result<&mut Attachment, Refusal> {
        self.prepared_for = None;
        self.take_within(if patient { RELEASE_TIMEOUT } else { Duration::ZERO })
    }

    /// Takes the interface if it is free, as this process, by its pidfd, will need it, and makes what can be made before
    /// the claim. If that fails, the process's claim gets the reason.
    pub(super) fn prepare_for(&mut self, process: OwnedFd) {
        let was_held = self.held.is_some();
        if let Ok(held) = self.take_within(Duration::ZERO) {
            let _ = held.prepare_share();
            if !was_held {
                self.prepared_for = Some(process);
            }
        }
    }

    /// The pidfd of the process that the interface was taken for, if none has been granted it.
    pub(super) fn prepared_for(&self) -> Option<BorrowedFd<'_>> {
        self.prepared_for.as_ref().map(AsFd::as_fd)
    }

    /// `timeout`: how long to wait for another owner to release it.
    fn take_within(&mut self, timeout: Duration) -> Result<&mut Attachment, Refusal> {
        let held = match self.held.take() {
            Some(held) => held,
            None => {
                self.check_firewall()?;
                let held = Attachment::take(&self.device, true, timeout, Some(&self.label));
                let held = held.map_err(Refusal::System)?;
                let link = Links::open().and_then(|mut links| links.get(&self.device));
                self.index = link.map_or(0, |link| link.ifindex);
                self.link_watch = LinkWatch::watch(self.index).ok();
                held
            }
        };
        Ok(self.held.insert(held))
    }

    /// The interface, while it is held.
    pub(super) fn held(&self) -> Option<&Attachment> {
        self.held.as_ref()
    }

    /// As [`held`](Self::held).
    pub(super) fn held_mut(&mut self) -> Option<&mut Attachment> {
        self.held.as_mut()
    }

    /// Its index, which tells its link-local addresses from those of other interfaces.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Its link watch, while it is held and exists.
    pub(super) fn link_watch(&self) -> Option<&LinkWatch> {
        self.link_watch.as_ref()
    }

    /// Whether the interface has gone since the last call.
    pub(super) fn is_gone(&mut self) -> bool {
        self.link_watch.take_if(|link_watch| link_watch.is_gone()).is_some()
    }

    /// Returns the interface to the kernel.
    pub(super) fn release(&mut self) {
        self.held = None;
        self.link_watch = None;
        self.prepared_for = None;
    }

    /// Whether packets may skip the firewall's rules, if there are any.
    pub(super) fn check_firewall(&self) -> Result<(), Refusal> {
        match firewall::rules() {
            Some(rules) if !self.bypass_firewall => Err(Refusal::Other(format!(
                "{}: packets would skip the firewall's rules ({rules}); allow it with --bypass-firewall",
                self.device
            ))),
            _ => Ok(()),
        }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Refusal::Other(error.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::System(error) => error.fmt(f),
            Refusal::Other(why) => f.write_str(why),
        }
    }
}
