//! The settings: names, units, and facts that hold in every profile. Pure tables.

use std::fmt;
use std::str::FromStr;

use busypoll_linux::ethtool;
use serde::{Deserialize, Serialize};

/// A setting, as a profile names it: `section.name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Key {
    /// `net.core.busy_read`.
    BusyRead,
    /// `net.core.busy_poll`.
    BusyPoll,
    /// Interrupt coalescing: `rx-usecs`.
    RxUsecs,
    /// Interrupt coalescing: `rx-frames`.
    RxFrames,
    /// Interrupt coalescing: `adaptive-rx`.
    AdaptiveRx,
    /// An offload, by the kernel's name for it.
    Feature(String),
    /// Pairs of queues.
    Combined,
    /// Receive-only queues.
    RxChannels,
    /// Transmit-only queues.
    TxChannels,
    /// Frames of a receive queue.
    RxRing,
    /// Frames of a transmit queue.
    TxRing,
    /// `napi_defer_hard_irqs`.
    DeferHardIrqs,
    /// `gro_flush_timeout`.
    GroFlushTimeout,
    /// `irq_suspend_timeout`.
    IrqSuspendTimeout,
    /// Whether NAPI runs in kernel threads.
    Threaded,
    /// Receive packet steering: CPUs per receive queue.
    RpsCpus,
    /// Receive flow steering: flows per receive queue.
    RpsFlowCnt,
    /// Transmit packet steering: CPUs per transmit queue.
    XpsCpus,
    /// The CPUs of the device's interrupts.
    InterruptCpus,
    /// The interrupts that irqbalance leaves alone.
    IrqbalanceBan,
}

/// The unit of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// Nanoseconds in the kernel, a time with any unit in a profile.
    Nanos,
    /// A plain number.
    Count,
    /// On or off.
    Switch,
    /// A list of CPUs.
    Cpus,
    /// A list of interrupts.
    Interrupts,
}

/// The general facts about a setting; a profile may add its own.
#[derive(Clone, Copy, Debug)]
pub struct KeyFacts {
    /// Its unit.
    pub unit: Unit,
    /// The largest value the kernel accepts.
    pub max: u64,
    /// What it is for.
    pub reason: &'static str,
    /// What it costs other programs.
    pub cost: &'static str,
    /// The source of these facts.
    pub source: &'static str,
}

/// Every key except the features: section, name and facts.
const KEYS: &[(Key, &str, &str, KeyFacts)] = {
    const I32: u64 = i32::MAX as u64;
    const U32: u64 = u32::MAX as u64;
    const fn about(
        unit: Unit,
        max: u64,
        reason: &'static str,
        cost: &'static str,
        source: &'static str,
    ) -> KeyFacts {
        KeyFacts { unit, max, reason, cost, source }
    }
    const SYSCTL: &str = "Documentation/admin-guide/sysctl/net.rst";
    const ETHTOOL: &str = "ethtool(8)";
    const NAPI: &str = "Documentation/networking/napi.rst";
    const SCALING: &str = "Documentation/networking/scaling.rst";
    &[
        (
            Key::BusyRead,
            "sysctl",
            "busy_read",
            about(
                Unit::Micros,
                I32,
                "how long a receive polls its queue before it sleeps",
                "every program's blocking receives spin: more CPU time and power, and less CPU time for others",
                SYSCTL,
            ),
        ),
        (
            Key::BusyPoll,
            "sysctl",
            "busy_poll",
            about(
                Unit::Micros,
                I32,
                "how long poll, select and epoll poll the queues of their sockets",
                "every program's poll, select and epoll spin: more CPU time and power, and less CPU time for others",
                SYSCTL,
            ),
        ),
        (
            Key::AdaptiveRx,
            "coalesce",
            "adaptive-rx",
            about(
                Unit::Switch,
                1,
                "whether the driver chooses rx-usecs by load",
                "without it bulk transfers cost more interrupts, or quiet times more latency",
                ETHTOOL,
            ),
        ),
        (
            Key::RxUsecs,
            "coalesce",
            "rx-usecs",
            about(
                Unit::Micros,
                U32,
                "how long after a packet the interrupt may wait",
                "lower: more interrupts; higher: more latency for programs that do not busy poll",
                ETHTOOL,
            ),
        ),
        (
            Key::RxFrames,
            "coalesce",
            "rx-frames",
            about(
                Unit::Count,
                U32,
                "after how many packets the interrupt comes at the latest",
                "lower: more interrupts; higher: more latency for programs that do not busy poll",
                ETHTOOL,
            ),
        ),
        (
            Key::Combined,
            "channels",
            "combined",
            about(
                Unit::Count,
                U32,
                "how many pairs of queues the device has",
                "the link flaps while it changes",
                ETHTOOL,
            ),
        ),
        (
            Key::RxChannels,
            "channels",
            "rx",
            about(
                Unit::Count,
                U32,
                "how many receive queues the device has",
                "the link flaps while it changes",
                ETHTOOL,
            ),
        ),
        (
            Key::TxChannels,
            "channels",
            "tx",
            about(
                Unit::Count,
                U32,
                "how many transmit queues the device has",
                "the link flaps while it changes",
                ETHTOOL,
            ),
        ),
        (
            Key::RxRing,
            "rings",
            "rx",
            about(
                Unit::Count,
                U32,
                "how many frames a receive queue holds",
                "smaller: bursts are lost; larger: the queue leaves the CPU's cache",
                ETHTOOL,
            ),
        ),
        (
            Key::TxRing,
            "rings",
            "tx",
            about(
                Unit::Count,
                U32,
                "how many frames a transmit queue holds",
                "smaller: senders wait; larger: frames wait behind others",
                ETHTOOL,
            ),
        ),
        (
            Key::RpsCpus,
            "queues",
            "rps-cpus",
            about(
                Unit::Cpus,
                0,
                "packets that a poller finds go to the backlogs of these CPUs, which are not polled; with none they stay with the poller",
                "none: flows are not spread over CPUs by software, one CPU per queue does the work",
                SCALING,
            ),
        ),
        (
            Key::RpsFlowCnt,
            "queues",
            "rps-flow-cnt",
            about(
                Unit::Count,
                U32,
                "flow steering moves packets that a poller finds to another CPU's backlog; with 0 they stay with the poller",
                "0: flows do not follow their programs from CPU to CPU",
                SCALING,
            ),
        ),
        (
            Key::XpsCpus,
            "queues",
            "xps-cpus",
            about(
                Unit::Cpus,
                0,
                "which CPUs send through a queue",
                "other CPUs send through other queues, or share one",
                SCALING,
            ),
        ),
        (
            Key::InterruptCpus,
            "interrupts",
            "cpus",
            about(
                Unit::Cpus,
                0,
                "interrupts go to CPUs near the application, on its NUMA node: on its own CPUs they stop it, on \
                 another node they cross the interconnect",
                "the CPUs that handle them have less time for other work",
                "Documentation/core-api/irq/irq-affinity.rst",
            ),
        ),
        (
            Key::IrqbalanceBan,
            "interrupts",
            "irqbalance-ban",
            about(
                Unit::Interrupts,
                0,
                "irqbalance would move these interrupts back within ten seconds",
                "it no longer spreads them; a restart of irqbalance loses this setting",
                "irqbalance(1), --banirq",
            ),
        ),
        (
            Key::Threaded,
            "napi",
            "threaded",
            about(
                Unit::Switch,
                1,
                "whether the interrupt-driven polls run in kernel threads, which can be given CPUs and priorities",
                "a context switch before every interrupt-driven poll",
                NAPI,
            ),
        ),
        (
            Key::IrqSuspendTimeout,
            "napi",
            "irq-suspend-timeout",
            about(
                Unit::Nanos,
                U32,
                "how long interrupts stay off while epoll finds events and prefers busy polling",
                "a program that hangs between two waits delays every program on its queue by that much",
                NAPI,
            ),
        ),
        (
            Key::DeferHardIrqs,
            "napi",
            "defer-hard-irqs",
            about(
                Unit::Count,
                I32,
                "how many empty polls in a row leave the interrupt masked",
                "together with gro-flush-timeout: packets that no busy poll finds wait for the timer",
                NAPI,
            ),
        ),
        (
            Key::GroFlushTimeout,
            "napi",
            "gro-flush-timeout",
            about(
                Unit::Nanos,
                U32,
                "how long packets of a queue wait for the timer if no thread polls it",
                "with no poller every packet waits up to that long",
                NAPI,
            ),
        ),
    ]
};

const FEATURES: &str = "features";

/// The names of features in `ethtool -K`, with the kernel's names.
const SHORT: &[(&str, &[&str])] = &[
    ("gro", ethtool::GRO),
    ("lro", &["rx-lro"]),
    ("tso", ethtool::TSO),
    ("gso", &["tx-generic-segmentation"]),
    ("sg", &["tx-scatter-gather"]),
    ("rx", &["rx-checksum"]),
    ("ntuple", &["rx-ntuple-filter"]),
    ("rxhash", &["rx-hashing"]),
];

impl Key {
    /// The general facts about this setting.
    pub fn about(&self) -> KeyFacts {
        if let Key::Feature(name) = self {
            return feature(name);
        }
        match KEYS.iter().find(|(key, ..)| key == self) {
            Some((.., about)) => *about,
            // Every other variant is in the table; a test checks this.
            None => feature(""),
        }
    }

    /// Its section and name in a profile.
    pub fn names(&self) -> (&'static str, &str) {
        match self {
            Key::Feature(name) => (FEATURES, name),
            _ => KEYS
                .iter()
                .find(|(key, ..)| key == self)
                .map_or((FEATURES, ""), |(_, section, name, _)| (section, name)),
        }
    }

    /// Whether it makes the device take its queues down and up: settings of the queues may be lost.
    pub fn resets_queues(&self) -> bool {
        matches!(
            self,
            Key::Feature(_)
                | Key::Combined
                | Key::RxChannels
                | Key::TxChannels
                | Key::RxRing
                | Key::TxRing
        )
    }

    /// Whether it belongs to NAPI instances.
    pub fn is_napi(&self) -> bool {
        self.names().0 == "napi"
    }

    /// Whether it belongs to the machine, not to a device.
    pub fn is_system_wide(&self) -> bool {
        matches!(self, Key::BusyRead | Key::BusyPoll | Key::IrqbalanceBan)
    }

    /// The keys for a section and a name in a profile: several for `features.tso`. None for an
    /// unknown name.
    pub fn lookup(section: &str, name: &str) -> Option<Vec<Key>> {
        if section == FEATURES {
            let short = SHORT.iter().find(|(short, _)| *short == name);
            let long = short.map_or(vec![name], |(_, long)| long.to_vec());
            return Some(long.into_iter().map(|n| Key::Feature(n.into())).collect());
        }
        let known = KEYS.iter().find(|(_, s, n, _)| (*s, *n) == (section, name));
        known.map(|(key, ..)| vec![key.clone()])
    }

    /// All sections.
    pub fn sections() -> impl Iterator<Item = &'static str> {
        let mut all: Vec<_> = KEYS.iter().map(|(_, section, ..)| *section).collect();
        all.push(FEATURES);
        all.dedup();
        all.into_iter()
    }

    /// The known names of a section; for features, the short ones.
    pub fn known(section: &str) -> impl Iterator<Item = &'static str> {
        let keys = KEYS.iter().filter(move |(_, s, ..)| *s == section).map(|(_, _, name, _)| *name);
        keys.chain(SHORT.iter().filter(move |_| section == FEATURES).map(|(short, _)| *short))
    }
}

fn feature(name: &str) -> KeyFacts {
    let (reason, cost) = match name {
        "rx-gro" => (
            "on, a packet is held back to be merged with the next; off, it is handed up at once",
            "off: bulk transfers cost more CPU time",
        ),
        "rx-lro" => (
            "on, a packet is held back in the device to be merged with the next; off, it is handed up at once",
            "off: bulk transfers cost more CPU time",
        ),
        _ => ("an offload of the device", "off: the CPU does the work instead"),
    };
    KeyFacts { unit: Unit::Switch, max: 1, reason, cost, source: "ethtool(8)" }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (section, name) = self.names();
        write!(f, "{section}.{name}")
    }
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown setting '{text}'");
        let (section, name) = text.split_once('.').ok_or_else(unknown)?;
        let keys = Key::lookup(section, name).ok_or_else(unknown)?;
        // Journals contain the kernel's names, each of which is one key.
        keys.into_iter().next().ok_or_else(unknown)
    }
}

impl TryFrom<String> for Key {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_the_table_and_reads_back() {
        for (key, section, name, about) in KEYS {
            assert_eq!(key.to_string(), format!("{section}.{name}"));
            assert_eq!(key.to_string().parse::<Key>().as_ref(), Ok(key));
            assert!(!about.reason.is_empty() && !about.cost.is_empty() && !about.source.is_empty());
        }
        // Every variant but Feature: a new one without a row changes this number.
        assert_eq!(KEYS.len(), 19);
        let gro = Key::Feature("rx-gro".into());
        assert_eq!(Key::lookup("features", "gro"), Some(vec![gro.clone()]));
        assert_eq!("features.rx-gro".parse::<Key>(), Ok(gro));
        assert_eq!(Key::lookup("features", "tso").unwrap().len(), 4);
        assert_eq!(Key::lookup("coalesce", "rx-usec"), None);
    }
}
