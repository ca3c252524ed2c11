//! One finding: which rule applies, to what, the evidence, and the command that fixes it.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::Rule;

/// The verdict of a rule on busy polling. The worst come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It cannot work in this configuration.
    Impossible,
    /// It does damage, or something undoes it.
    Harmful,
    /// It is switched on and has no effect.
    /// It is switched on and changes nothing.
    #[serde(rename = "on but no effect")]
    NoEffect,
    /// It could work and is not switched on.
    Off,
    /// A limit of the machine that no setting changes.
    Limited,
    /// It could not be checked; the evidence says why.
    #[serde(rename = "not seen")]
    NotSeen,
    /// It works; the evidence has the figures.
    Working,
    /// It was checked, and nothing is wrong.
    Fine,
}

impl Verdict {
    /// Whether the user should act on it (exit code 1).
    pub fn is_fault(self) -> bool {
        self < Verdict::Limited
    }

    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Impossible => "impossible",
            Verdict::Harmful => "harmful",
            Verdict::NoEffect => "on but no effect",
            Verdict::Off => "off",
            Verdict::Limited => "limited",
            Verdict::NotSeen => "not seen",
            Verdict::Working => "working",
            Verdict::Fine => "fine",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a finding is about. The derived order is the order of the report within one verdict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Subject {
    /// This machine, or the container that this process runs in.
    Machine,
    /// A network device.
    Device {
        /// Its name.
        name: String,
    },
    /// The other end of a device here, in another network namespace.
    PeerDevice {
        /// Its name there.
        name: String,
        /// A file that opens that network namespace (setns(2)).
        netns: String,
        /// The device here.
        of: String,
    },
    /// One NAPI instance of a device.
    Napi {
        /// The device's name.
        device: String,
        /// The NAPI id.
        id: u32,
    },
    /// One receive queue of a device.
    Queue {
        /// The device's name.
        device: String,
        /// The queue's index.
        queue: u32,
    },
    /// An address to talk to.
    Peer {
        /// The address.
        address: std::net::IpAddr,
    },
    /// A process.
    Process {
        /// Its PID.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A socket or an epoll instance of a process.
    Descriptor {
        /// The PID.
        pid: u32,
        /// The process's name.
        name: String,
        /// The descriptor's number.
        fd: u32,
        /// A short description: `udp 10.0.0.1:53`, `epoll`.
        what: String,
    },
}

impl Subject {
    /// The device of that name, in this network namespace.
    pub fn device(name: impl Into<String>) -> Self {
        Subject::Device { name: name.into() }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Machine => f.write_str("machine"),
            Subject::Device { name } => f.write_str(name),
            Subject::PeerDevice { name, netns, of } => {
                write!(f, "{name} in {netns} (the other end of {of})")
            }
            Subject::Napi { device, id } => write!(f, "{device} napi {id}"),
            Subject::Queue { device, queue } => write!(f, "{device} queue {queue}"),
            Subject::Peer { address } => address.fmt(f),
            Subject::Process { pid, name } => write!(f, "{name}[{pid}]"),
            Subject::Descriptor { pid, name, fd, what } => {
                write!(f, "{name}[{pid}] fd {fd} {what}")
            }
        }
    }
}

/// One thing that was read, and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Where: a file, a command, or a call that shows the same.
    pub read: String,
    /// The value.
    pub said: String,
}

/// One rule applied to one subject. Made by [`Rule::finding`].
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule: its code, verdict, reason and source.
    pub rule: &'static Rule,
    /// What it is about.
    pub subject: Subject,
    /// The case at hand, in one line.
    pub what: String,
    /// What was read.
    pub evidence: Vec<Evidence>,
    /// A shell command that fixes it, if there is one.
    pub remedy: Option<String>,
}

impl Rule {
    /// Applies the rule.
    pub fn finding(&'static self, subject: Subject, what: impl Into<String>) -> Finding {
        Finding { rule: self, subject, what: what.into(), evidence: Vec::new(), remedy: None }
    }
}

impl Finding {
    /// Adds what was read, and its value.
    #[must_use]
    pub fn evidence(mut self, read: impl Into<String>, said: impl fmt::Display) -> Self {
        self.evidence.push(Evidence { read: read.into(), said: said.to_string() });
        self
    }

    /// Adds the command that fixes it; it must work as printed.
    #[must_use]
    pub fn remedy(mut self, command: impl Into<String>) -> Self {
        self.remedy = Some(command.into());
        self
    }

    /// The verdict of its rule.
    pub fn verdict(&self) -> Verdict {
        self.rule.verdict
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Finding", 8)?;
        s.serialize_field("code", self.rule.code)?;
        s.serialize_field("verdict", &self.rule.verdict)?;
        s.serialize_field("subject", &self.subject)?;
        s.serialize_field("what", &self.what)?;
        s.serialize_field("evidence", &self.evidence)?;
        s.serialize_field("why", self.rule.why)?;
        s.serialize_field("remedy", &self.remedy)?;
        s.serialize_field("source", self.rule.source)?;
        s.end()
    }
}
