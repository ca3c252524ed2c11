//! The settings of one socket, with the names that the policy file and the
//! environment form share.

use std::sync::{Mutex, PoisonError};

use crate::text::nearest;
use crate::units;

/// Which stack serves the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plane {
    /// The kernel's, with its busy polling set up.
    #[default]
    Kernel,
    /// Ours, in user space.
    Stack,
    /// The kernel's, unchanged.
    Off,
}

/// How a receiver waits if nothing has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receive {
    /// It sleeps until the interrupt; no busy polling.
    Interrupt,
    /// It polls the queue for `busy_poll`, then sleeps.
    #[default]
    BusyPoll,
    /// It polls the queue for `aggressive_receive_delay` and then for `busy_poll`, before it sleeps.
    Aggressive,
}

/// The resolved settings of one socket. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which stack serves it.
    pub plane: Plane,
    /// How long a wait may poll before it sleeps, in microseconds; 0 = off.
    pub busy_poll: u32,
    /// Keep the interrupt masked between polls.
    pub prefer_busy_poll: bool,
    /// The most packets a pass may take; 0 = the kernel's 8.
    pub busy_poll_budget: u16,
    /// How a receiver waits.
    pub receive: Receive,
    /// How much longer [`Receive::Aggressive`] polls, in microseconds.
    pub aggressive_receive_delay: u32,
    /// The directory by which processes of other network namespaces of the host are found: connections with them go over
    /// memory.
    pub containers: Option<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            plane: Plane::Kernel,
            busy_poll: 50,
            prefer_busy_poll: false,
            busy_poll_budget: 0,
            receive: Receive::BusyPoll,
            aggressive_receive_delay: 1000,
            containers: None,
        }
    }
}

impl Settings {
    /// How long a wait polls, in microseconds: `busy_poll`, or 0 if it must not poll.
    #[must_use]
    pub fn polls_for(&self) -> u32 {
        match (self.plane, self.receive) {
            (Plane::Off, _) | (_, Receive::Interrupt) => 0,
            _ => self.busy_poll,
        }
    }

    /// How long a wait under `plane` polls, in microseconds; 0 if these settings are for another plane.
    ///
    /// The additional time of an aggressive receiver is part of the wait: a loop of calls before the wait would notice
    /// neither signals nor whether another thread needs the CPU.
    #[must_use]
    pub fn micros_on(&self, plane: Plane) -> u32 {
        let micros = match self.receive {
            _ if self.plane != plane => 0,
            Receive::Aggressive => self.aggressive_receive_delay.saturating_add(self.polls_for()),
            _ => self.polls_for(),
        };
        micros.min(i32::MAX.unsigned_abs())
    }

    /// Whether the interrupt stays masked between polls under `plane`: only if waits poll.
    #[must_use]
    pub fn prefers_on(&self, plane: Plane) -> bool {
        self.prefer_busy_poll && self.micros_on(plane) > 0
    }

    /// How long the kernel polls in a wait, in microseconds.
    #[must_use]
    pub fn kernel_micros(&self) -> u32 {
        self.micros_on(Plane::Kernel)
    }

    /// The settings of an epoll instance that watches sockets with these and with `other` settings, under `plane`: the
    /// longest poll, the largest budget, preferred if either is. Settings that do not poll have no influence.
    #[must_use]
    pub fn joined(self, other: Settings, plane: Plane) -> Settings {
        match (self.micros_on(plane), other.micros_on(plane)) {
            (_, 0) => self,
            (0, _) => other,
            (mine, theirs) => Settings {
                prefer_busy_poll: self.prefer_busy_poll || other.prefer_busy_poll,
                busy_poll_budget: self.busy_poll_budget.max(other.busy_poll_budget),
                ..if theirs > mine { other } else { self }
            },
        }
    }
}

/// The settings that a rule changes; `None` leaves the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// [`Settings::plane`].
    pub plane: Option<Plane>,
    /// [`Settings::busy_poll`].
    pub busy_poll: Option<u32>,
    /// [`Settings::prefer_busy_poll`].
    pub prefer_busy_poll: Option<bool>,
    /// [`Settings::busy_poll_budget`].
    pub busy_poll_budget: Option<u16>,
    /// [`Settings::receive`].
    pub receive: Option<Receive>,
    /// [`Settings::aggressive_receive_delay`].
    pub aggressive_receive_delay: Option<u32>,
    /// [`Settings::containers`].
    pub containers: Option<&'static str>,
}

pub(crate) const PLANE: &str = "plane";
pub(crate) const BUSY_POLL: &str = "busy_poll";
pub(crate) const PREFER_BUSY_POLL: &str = "prefer_busy_poll";
pub(crate) const BUSY_POLL_BUDGET: &str = "busy_poll_budget";
pub(crate) const RECEIVE: &str = "receive";
pub(crate) const AGGRESSIVE_RECEIVE_DELAY: &str = "aggressive_receive_delay";
pub(crate) const CONTAINERS: &str = "containers";

/// The keys of the settings.
pub(crate) const SETTINGS: [&str; 7] = [
    PLANE,
    BUSY_POLL,
    PREFER_BUSY_POLL,
    BUSY_POLL_BUDGET,
    RECEIVE,
    AGGRESSIVE_RECEIVE_DELAY,
    CONTAINERS,
];

impl Change {
    /// Sets the value of `key`; `None` if there is no such key.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        fn into<T>(field: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
            *field = Some(value?);
            Ok(())
        }
        Some(match key {
            PLANE => into(&mut self.plane, word(value, &Plane::WORDS)),
            BUSY_POLL => into(&mut self.busy_poll, units::micros(value)),
            PREFER_BUSY_POLL => into(&mut self.prefer_busy_poll, word(value, &YES_NO)),
            BUSY_POLL_BUDGET => into(&mut self.busy_poll_budget, budget(value)),
            RECEIVE => into(&mut self.receive, word(value, &Receive::WORDS)),
            AGGRESSIVE_RECEIVE_DELAY => {
                into(&mut self.aggressive_receive_delay, units::micros(value))
            }
            CONTAINERS => into(&mut self.containers, directory(value)),
            _ => return None,
        })
    }

    /// The settings with this change made.
    #[must_use]
    pub fn apply(&self, to: Settings) -> Settings {
        Settings {
            plane: self.plane.unwrap_or(to.plane),
            busy_poll: self.busy_poll.unwrap_or(to.busy_poll),
            prefer_busy_poll: self.prefer_busy_poll.unwrap_or(to.prefer_busy_poll),
            busy_poll_budget: self.busy_poll_budget.unwrap_or(to.busy_poll_budget),
            receive: self.receive.unwrap_or(to.receive),
            aggressive_receive_delay: self
                .aggressive_receive_delay
                .unwrap_or(to.aggressive_receive_delay),
            containers: self.containers.or(to.containers),
        }
    }

    /// Calls `each` with the key and the value of every setting that is set, in the form that [`Change::set`] reads.
    pub(crate) fn each(&self, mut each: impl FnMut(&str, &str)) {
        if let Some(plane) = self.plane {
            each(PLANE, plane.word());
        }
        if let Some(us) = self.busy_poll {
            each(BUSY_POLL, &us.to_string());
        }
        if let Some(on) = self.prefer_busy_poll {
            each(PREFER_BUSY_POLL, if on { "true" } else { "false" });
        }
        if let Some(packets) = self.busy_poll_budget {
            each(BUSY_POLL_BUDGET, &packets.to_string());
        }
        if let Some(receive) = self.receive {
            each(RECEIVE, receive.word());
        }
        if let Some(us) = self.aggressive_receive_delay {
            each(AGGRESSIVE_RECEIVE_DELAY, &us.to_string());
        }
        if let Some(directory) = self.containers {
            each(CONTAINERS, directory);
        }
    }
}

impl From<Settings> for Change {
    fn from(s: Settings) -> Self {
        Change {
            plane: Some(s.plane),
            busy_poll: Some(s.busy_poll),
            prefer_busy_poll: Some(s.prefer_busy_poll),
            busy_poll_budget: Some(s.busy_poll_budget),
            receive: Some(s.receive),
            aggressive_receive_delay: Some(s.aggressive_receive_delay),
            containers: s.containers,
        }
    }
}

impl Plane {
    const WORDS: [(&'static str, Self); 3] =
        [("kernel", Plane::Kernel), ("stack", Plane::Stack), ("off", Plane::Off)];

    /// Its name in the policy file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Plane::Kernel => "kernel",
            Plane::Stack => "stack",
            Plane::Off => "off",
        }
    }
}

impl Receive {
    const WORDS: [(&'static str, Self); 3] = [
        ("interrupt", Receive::Interrupt),
        ("busy-poll", Receive::BusyPoll),
        ("aggressive", Receive::Aggressive),
    ];

    /// Its name in the policy file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Receive::Interrupt => "interrupt",
            Receive::BusyPoll => "busy-poll",
            Receive::Aggressive => "aggressive",
        }
    }
}

const YES_NO: [(&str, bool); 2] = [("true", true), ("false", false)];

/// Parses one of a few words.
pub(crate) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    Err(match nearest(text, names.iter().copied()) {
        Some(near) => format!("'{text}' is unknown; did you mean '{near}'?"),
        None => format!("'{text}' is unknown; it is one of {}", names.join(", ")),
    })
}

fn budget(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("'{text}' is no number of packets; write 0 to 65535"))
}

/// The longest path of a directory: with the name of a socket in it, it must fit into an address of AF_UNIX (108 bytes).
const LONGEST_DIRECTORY: usize = 79;

fn directory(text: &str) -> Result<&'static str, String> {
    if !text.starts_with('/') || text.contains('\0') {
        return Err(format!(
            "'{text}' is no directory; write its whole path, which begins with '/'"
        ));
    }
    if text.len() > LONGEST_DIRECTORY {
        return Err(format!(
            "'{text}' is too long for the sockets in it; at most {LONGEST_DIRECTORY} bytes"
        ));
    }
    Ok(interned(text))
}

/// Settings are copied freely, and there are few directories: each is kept for good, once.
fn interned(text: &str) -> &'static str {
    static ALL: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.iter().find(|known| **known == text) {
        return known;
    }
    let new: &'static str = Box::leak(text.into());
    all.push(new);
    new
}
