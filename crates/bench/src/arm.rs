//! The table of arms: every configuration the benchmark can measure. The list, the help and the
//! filter all use [`ARMS`]; a new arm is one new row.

use std::fmt;

use busypoll_policy::text::{glob, nearest};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The word used in reports.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                match String::deserialize(d)?.as_str() {
                    $($word => Ok(Self::$variant),)+
                    other => Err(D::Error::unknown_variant(other, &[$($word),+])),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.word())
            }
        }
    };
}

words! {
    /// Which stack carries the packets.
    Plane {
        /// Linux's sockets.
        Kernel => "kernel",
        /// Our sockets in user space.
        Stack => "stack",
        /// No stack: only descriptors and buffers, the limit on that NIC.
        Bare => "bare",
    }
}
words! {
    /// The link between client and server.
    Nic {
        /// A veth pair driven by the kernel.
        Veth => "veth",
        /// AF_XDP sockets on a veth pair, or with `--dev` on that interface.
        Xdp => "xdp",
        /// Two queues joined in memory.
        Cable => "cable",
        /// A TAP whose far end is ours.
        Tap => "tap",
        /// A real interface driven by the kernel (`--host` only).
        Device => "device",
        /// The kernel's loopback, 127.0.0.1.
        Loopback => "loopback",
        /// AF_UNIX sockets.
        Unix => "unix",
        /// Memory that both ends map.
        Memory => "memory",
    }
}
words! {
    /// What the ends of an arm are.
    Between {
        /// Two hosts, each with its network: in one process, or on two machines.
        Hosts => "hosts",
        /// Two processes of this machine.
        Processes => "processes",
    }
}

/// Reports of earlier versions have hosts alone.
impl Default for Between {
    fn default() -> Self {
        Self::Hosts
    }
}

words! {
    /// The transport.
    Protocol {
        /// UDP_RR: one datagram each way.
        Udp => "udp",
        /// TCP_RR: one request and one response on an established connection.
        Tcp => "tcp",
    }
}
words! {
    /// How both ends wait for the next message.
    Mode {
        /// Asleep in the kernel.
        Blocking => "blocking",
        /// In a loop on a non-blocking socket.
        Spin => "spin",
        /// Asleep until the stack's interrupt.
        Interrupt => "interrupt",
        /// `SO_BUSY_POLL`: the receive drives the device's queue.
        BusyPoll => "busy-poll",
    }
}
words! {
    /// Where client and server run.
    Placement {
        /// Both on the first CPU.
        SameCpu => "same-cpu",
        /// One CPU each.
        SeparateCpus => "separate-cpus",
    }
}

/// One configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arm {
    /// `plane[-nic][-protocol]-mode[-same-cpu]`, or `local-nic[-protocol]-mode[-same-cpu]` between processes.
    pub name: &'static str,
    /// The ends.
    pub between: Between,
    /// The stack.
    pub plane: Plane,
    /// The link.
    pub nic: Nic,
    /// The transport; of AF_UNIX, `Udp` stands for datagrams and `Tcp` for a stream.
    pub protocol: Protocol,
    /// How the ends wait.
    pub mode: Mode,
    /// The CPUs of the ends.
    pub placement: Placement,
    /// One line of description for the list.
    pub about: &'static str,
}

impl Arm {
    /// Whether both ends use a CPU fully while they wait.
    pub const fn spins(&self) -> bool {
        matches!(self.mode, Mode::Spin | Mode::BusyPoll)
    }

    /// Whether the arm can be a baseline: the kernel's UDP or TCP, blocking.
    pub const fn is_baseline(&self) -> bool {
        matches!((self.plane, self.mode), (Plane::Kernel, Mode::Blocking))
            && !matches!(self.nic, Nic::Unix)
    }

    /// Whether the ends are two processes of this machine.
    pub const fn is_local(&self) -> bool {
        matches!(self.between, Between::Processes)
    }
}

macro_rules! arms {
    ($($name:literal $between:ident $plane:ident $nic:ident $protocol:ident $mode:ident $placement:ident $about:literal;)+) => {
        &[$(Arm {
            name: $name,
            between: Between::$between,
            plane: Plane::$plane,
            nic: Nic::$nic,
            protocol: Protocol::$protocol,
            mode: Mode::$mode,
            placement: Placement::$placement,
            about: $about,
        }),+]
    };
}

/// Every arm. Spinning arms exist only on separate CPUs: two spinners on one CPU take turns in
/// time slices, which measures the scheduler.
pub const ARMS: &[Arm] = arms! {
    "kernel-udp-blocking"          Hosts Kernel Veth Udp Blocking SeparateCpus "kernel UDP asleep in recv, one CPU each";
    "kernel-udp-blocking-same-cpu" Hosts Kernel Veth Udp Blocking SameCpu "kernel UDP asleep in recv, both on one CPU";
    "kernel-udp-busy-poll"         Hosts Kernel Veth Udp BusyPoll SeparateCpus "kernel UDP with SO_BUSY_POLL";
    "kernel-udp-spin"              Hosts Kernel Veth Udp Spin SeparateCpus "kernel UDP, application spins on a non-blocking socket";
    "kernel-tcp-blocking"          Hosts Kernel Veth Tcp Blocking SeparateCpus "kernel TCP asleep in recv, one CPU each";
    "kernel-tcp-blocking-same-cpu" Hosts Kernel Veth Tcp Blocking SameCpu "kernel TCP asleep in recv, both on one CPU";
    "kernel-tcp-busy-poll"         Hosts Kernel Veth Tcp BusyPoll SeparateCpus "kernel TCP with SO_BUSY_POLL";
    "kernel-tcp-spin"              Hosts Kernel Veth Tcp Spin SeparateCpus "kernel TCP, application spins on a non-blocking socket";
    "bare-xdp-spin"                Hosts Bare Xdp Udp Spin SeparateCpus "AF_XDP rings alone, no stack: the limit on this NIC";
    "stack-xdp-udp-interrupt"            Hosts Stack Xdp Udp Interrupt SeparateCpus "our UDP over AF_XDP, interrupt-driven, one CPU each";
    "stack-xdp-udp-interrupt-same-cpu"   Hosts Stack Xdp Udp Interrupt SameCpu "our UDP over AF_XDP, interrupt-driven, both on one CPU";
    "stack-xdp-udp-busy-poll"            Hosts Stack Xdp Udp BusyPoll SeparateCpus "our UDP over AF_XDP, busy polling";
    "stack-cable-udp-interrupt"          Hosts Stack Cable Udp Interrupt SeparateCpus "our UDP over the cable, interrupt-driven, one CPU each";
    "stack-cable-udp-interrupt-same-cpu" Hosts Stack Cable Udp Interrupt SameCpu "our UDP over the cable, interrupt-driven, both on one CPU";
    "stack-cable-udp-busy-poll"          Hosts Stack Cable Udp BusyPoll SeparateCpus "our UDP over the cable, busy polling";
    "stack-xdp-tcp-interrupt"            Hosts Stack Xdp Tcp Interrupt SeparateCpus "our TCP over AF_XDP, interrupt-driven, one CPU each";
    "stack-xdp-tcp-interrupt-same-cpu"   Hosts Stack Xdp Tcp Interrupt SameCpu "our TCP over AF_XDP, interrupt-driven, both on one CPU";
    "stack-xdp-tcp-busy-poll"            Hosts Stack Xdp Tcp BusyPoll SeparateCpus "our TCP over AF_XDP, busy polling";
    "stack-cable-tcp-busy-poll"          Hosts Stack Cable Tcp BusyPoll SeparateCpus "our TCP over the cable, busy polling";
    "local-loopback-udp-blocking"          Processes Kernel Loopback Udp Blocking SeparateCpus "two processes, kernel UDP over 127.0.0.1, one CPU each";
    "local-loopback-udp-blocking-same-cpu" Processes Kernel Loopback Udp Blocking SameCpu "two processes, kernel UDP over 127.0.0.1, both on one CPU";
    "local-loopback-tcp-blocking"          Processes Kernel Loopback Tcp Blocking SeparateCpus "two processes, kernel TCP over 127.0.0.1, one CPU each";
    "local-loopback-tcp-blocking-same-cpu" Processes Kernel Loopback Tcp Blocking SameCpu "two processes, kernel TCP over 127.0.0.1, both on one CPU";
    "local-unix-datagram-blocking"         Processes Kernel Unix Udp Blocking SeparateCpus "two processes, AF_UNIX datagrams, one CPU each";
    "local-unix-datagram-blocking-same-cpu" Processes Kernel Unix Udp Blocking SameCpu "two processes, AF_UNIX datagrams, both on one CPU";
    "local-unix-stream-blocking"           Processes Kernel Unix Tcp Blocking SeparateCpus "two processes, an AF_UNIX stream, one CPU each";
    "local-unix-stream-blocking-same-cpu"  Processes Kernel Unix Tcp Blocking SameCpu "two processes, an AF_UNIX stream, both on one CPU";
    "local-cable-udp-busy-poll"            Processes Stack Cable Udp BusyPoll SeparateCpus "two processes, our UDP over a cable, busy polling";
    "local-cable-tcp-busy-poll"            Processes Stack Cable Tcp BusyPoll SeparateCpus "two processes, our TCP over a cable, busy polling";
    "local-memory-spin"                    Processes Bare Memory Udp Spin SeparateCpus "two processes, a ring of one message each way, no stack: the limit";
};

/// The arms that make sense between two machines, which share neither CPUs nor a veth pair.
pub fn between_machines() -> Vec<Arm> {
    let apart = ARMS.iter().filter(|a| a.placement == Placement::SeparateCpus && !a.is_local());
    apart
        .filter(|a| matches!((a.plane, a.nic), (Plane::Kernel, _) | (Plane::Stack, Nic::Xdp)))
        .map(|a| Arm { nic: if a.nic == Nic::Veth { Nic::Device } else { a.nic }, ..*a })
        .collect()
}

/// Selects arms by a comma-separated list of names and globs (`*`, `?`), in table order, each once.
///
/// # Errors
/// A message of one line with the nearest known name when a pattern matches nothing.
pub fn select(patterns: &str, from: &[Arm]) -> Result<Vec<Arm>, String> {
    let mut wanted = vec![false; from.len()];
    for pattern in patterns.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let mut hit = false;
        for (arm, wanted) in from.iter().zip(&mut wanted) {
            if glob(pattern.as_bytes(), arm.name.as_bytes()) {
                (*wanted, hit) = (true, true);
            }
        }
        if !hit {
            let near = nearest(pattern, from.iter().map(|arm| arm.name));
            let hint = near.map_or(String::new(), |name| format!("; did you mean '{name}'?"));
            return Err(format!("no arm is called '{pattern}'{hint} (--list shows all)"));
        }
    }
    let picked: Vec<Arm> = from.iter().zip(wanted).filter(|(_, w)| *w).map(|(a, _)| *a).collect();
    if picked.is_empty() {
        return Err("no arm is named (--list shows all)".to_owned());
    }
    Ok(picked)
}

/// The arms as text, one per line, for `--list` and the help.
pub fn list() -> String {
    let width = ARMS.iter().map(|a| a.name.len()).max().unwrap_or(0);
    ARMS.iter().map(|a| format!("  {:width$}  {}\n", a.name, a.about)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name that a row must have according to its fields.
    fn spelled(arm: &Arm) -> String {
        let mut parts = vec![if arm.is_local() { "local" } else { arm.plane.word() }];
        if arm.is_local() || arm.plane != Plane::Kernel {
            parts.push(arm.nic.word());
        }
        match (arm.plane, arm.nic, arm.protocol) {
            (Plane::Bare, ..) => {}
            (_, Nic::Unix, Protocol::Udp) => parts.push("datagram"),
            (_, Nic::Unix, Protocol::Tcp) => parts.push("stream"),
            (_, _, protocol) => parts.push(protocol.word()),
        }
        parts.push(arm.mode.word());
        if arm.placement == Placement::SameCpu {
            parts.push("same-cpu");
        }
        parts.join("-")
    }

    #[test]
    fn names_match_the_fields_and_are_unique() {
        for (i, arm) in ARMS.iter().enumerate() {
            assert_eq!(arm.name, spelled(arm));
            assert!(ARMS[..i].iter().all(|other| other.name != arm.name));
        }
    }

    #[test]
    fn two_spinners_never_share_a_cpu() {
        assert!(ARMS.iter().all(|a| !(a.spins() && a.placement == Placement::SameCpu)));
    }

    #[test]
    fn arms_are_selected_by_name_list_and_glob() {
        let names = |p| -> Vec<&str> {
            select(p, ARMS).unwrap_or_default().iter().map(|a| a.name).collect()
        };
        assert_eq!(names("kernel-udp-spin"), ["kernel-udp-spin"]);
        assert_eq!(names("kernel-udp-spin,kernel-*-spin"), ["kernel-udp-spin", "kernel-tcp-spin"]);
        assert_eq!(names("*").len(), ARMS.len());
        assert_eq!(names("kernel-???-busy-poll").len(), 2);
    }

    #[test]
    fn for_an_unknown_name_the_nearest_is_suggested() {
        let error = select("kernel-udp-bussy-poll", ARMS).expect_err("no such arm");
        assert!(error.contains("did you mean 'kernel-udp-busy-poll'?"), "{error}");
        let error = select("telepathy", ARMS).expect_err("no such arm");
        assert!(!error.contains("did you mean"), "no known name is near: {error}");
        assert!(select("", ARMS).is_err());
        assert!(select(" , ", ARMS).is_err());
    }
}
