//! Taking the interface, and what stands in the way. Whoever holds it, packets for our ports come past the kernel; who
//! lets go of it gives them back.

use std::fmt;
use std::time::Duration;

use busypoll_linux::link::Links;
use busypoll_stack::firewall;
use busypoll_stack::nic::xdp::{Error, Holding};

use super::presence::Presence;

/// For so long one waits for an owner to let go: the guard of a run that has just ended sees that a moment later, and
/// the next run must not go without for it.
const LETTING_GO: Duration = Duration::from_millis(500);

/// The interface of a run.
pub(super) struct Interface {
    device: String,
    bypass_firewall: bool,
    /// Its index, once it has been held; 0: not known.
    index: u32,
    held: Option<Holding>,
    presence: Option<Presence>,
}

/// Why it cannot be had.
#[derive(Debug)]
pub(super) enum Refusal {
    /// As the system says.
    System(Error),
    /// In words.
    Other(String),
}

impl Interface {
    pub(super) fn new(device: &str, bypass_firewall: bool) -> Self {
        Self { device: device.to_owned(), bypass_firewall, index: 0, held: None, presence: None }
    }

    /// Takes it, unless it is held already.
    pub(super) fn take(&mut self) -> Result<&Holding, Refusal> {
        let held = match self.held.take() {
            Some(held) => held,
            None => {
                self.check_firewall()?;
                let held = Holding::take(&self.device, true, LETTING_GO);
                let held = held.map_err(Refusal::System)?;
                let link = Links::open().and_then(|mut links| links.get(&self.device));
                self.index = link.map_or(0, |link| link.ifindex);
                self.presence = Presence::watch(self.index).ok();
                held
            }
        };
        Ok(self.held.insert(held))
    }

    /// It, while it is held.
    pub(super) fn held(&self) -> Option<&Holding> {
        self.held.as_ref()
    }

    /// Its index, by which its link-local addresses are told from those of others.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// By which it is watched, while it is held and there.
    pub(super) fn presence(&self) -> Option<&Presence> {
        self.presence.as_ref()
    }

    /// Whether it has ended since this was last asked.
    pub(super) fn has_ended(&mut self) -> bool {
        self.presence.take_if(|presence| presence.has_ended()).is_some()
    }

    /// It is the kernel's again.
    pub(super) fn release(&mut self) {
        self.held = None;
        self.presence = None;
    }

    fn check_firewall(&self) -> Result<(), Refusal> {
        match firewall::rules() {
            Some(rules) if !self.bypass_firewall => Err(Refusal::Other(format!(
                "{}: packets would skip the firewall's rules ({rules}); allow it with --bypass-firewall",
                self.device
            ))),
            _ => Ok(()),
        }
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
