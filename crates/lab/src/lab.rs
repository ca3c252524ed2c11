//! The two hosts and their construction.
//!
//! The order: namespaces, the veth pair, its two ends. Touches nothing
//! outside the two namespaces it has just created.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::cpu::{self, Mask};
use crate::rtnetlink::{self, VethEnd};
use crate::{LabError, Namespace, Side, interface};

/// Two hosts joined by a veth pair. Dropping either end removes the pair.
#[derive(Debug)]
pub struct Lab {
    /// The host at 10.77.0.1 and fd77::1.
    pub client: LabHost,
    /// The host at 10.77.0.2 and fd77::2.
    pub server: LabHost,
}

/// One host: a [`Namespace`] (which can run code) with one interface that is up, and a CPU.
#[derive(Debug)]
pub struct LabHost {
    namespace: Namespace,
    side: Side,
    ifindex: u32,
    has_ipv6: bool,
    cpu: u32,
}

/// The settings of a [`Lab`]. Start from [`Lab::builder`].
#[derive(Debug, Clone)]
pub struct LabBuilder {
    queues: u32,
    mtu: u32,
    gro: bool,
    tso: bool,
    cpus: Option<[u32; 2]>,
}

impl Lab {
    /// One queue, an MTU of 1500 bytes, GRO on and TSO off at both ends, two CPUs that share no
    /// core if possible.
    #[must_use]
    pub fn builder() -> LabBuilder {
        LabBuilder { queues: 1, mtu: 1500, gro: true, tso: false, cpus: None }
    }

    /// A single namespace with `lo` up, for tests that need one of their own, such as for a TAP device.
    ///
    /// # Errors
    /// As [`Namespace::new`].
    pub fn single() -> Result<Namespace, LabError> {
        Namespace::new()
    }

    /// The host on one side.
    #[must_use]
    pub fn host(&self, side: Side) -> &LabHost {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }
}

impl LabHost {
    /// Looks up the properties of an existing host that differ from lab to lab.
    pub(crate) fn find(namespace: Namespace, side: Side, cpu: u32) -> Result<Self, LabError> {
        let find = || Ok::<_, LabError>((interface::index(side)?, interface::has_ipv6(side)));
        let (ifindex, has_ipv6) = namespace.enter(find)??;
        Ok(Self { namespace, side, ifindex, has_ipv6, cpu })
    }

    /// Which of the two this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// The interface's name.
    #[must_use]
    pub fn interface(&self) -> &'static str {
        self.side.interface()
    }

    /// The interface's index inside the namespace. It is meaningless outside.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The interface's MAC address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.side.mac()
    }

    /// The IPv4 address.
    #[must_use]
    pub fn ipv4(&self) -> Ipv4Addr {
        self.side.ipv4()
    }

    /// The IPv6 address; none on a machine whose kernel has IPv6 switched off.
    #[must_use]
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.has_ipv6.then(|| self.side.ipv6())
    }

    /// The CPU of this host.
    #[must_use]
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// A command that will run inside the host, on the host's CPU.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.command_on(program, [self.cpu])
    }

    /// The same, on these CPUs.
    #[must_use]
    pub fn command_on(
        &self,
        program: impl AsRef<OsStr>,
        cpus: impl IntoIterator<Item = u32>,
    ) -> Command {
        let mask = Mask::of(cpus);
        let mut command = self.namespace.command(program);
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(move || mask.apply()) };
        command
    }
}

impl Deref for LabHost {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

impl LabBuilder {
    /// Receive and transmit queues of each end, 1 to 4096.
    #[must_use]
    pub fn queues(self, queues: u32) -> Self {
        Self { queues, ..self }
    }

    /// MTU of both ends in bytes, 1280 (the least IPv6 allows, RFC 8200 section 5) to 65535.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu, ..self }
    }

    /// Generic receive offload at both ends. veth has a NAPI context only while it is on.
    #[must_use]
    pub fn gro(self, on: bool) -> Self {
        Self { gro: on, ..self }
    }

    /// TCP segmentation offload at both ends. A veth that sends with TSO on bypasses its peer's NAPI
    /// (`veth_skb_is_eligible_for_gro`, `drivers/net/veth.c`).
    #[must_use]
    pub fn tso(self, on: bool) -> Self {
        Self { tso: on, ..self }
    }

    /// The hosts' CPUs.
    #[must_use]
    pub fn cpus(self, client: u32, server: u32) -> Self {
        Self { cpus: Some([client, server]), ..self }
    }

    /// Makes the lab. Neighbour entries are not preset: the hosts resolve each other by real ARP and ND.
    /// Transmit checksum offload stays at veth's default: on, so packets carry partial checksums.
    ///
    /// # Errors
    /// [`LabError::Unprivileged`] if the process may not make network namespaces,
    /// [`LabError::Setting`] for a setting out of range.
    pub fn build(self) -> Result<Lab, LabError> {
        self.check()?;
        let [client_cpu, server_cpu] = cpu::choose(self.cpus)?;
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        client.enter(|| {
            rtnetlink::Socket::open()
                .and_then(|s| {
                    s.add_veth(&self.end(Side::Client), &self.end(Side::Server), server.as_fd())
                })
                .map_err(LabError::system("make a veth pair"))
        })??;
        let sides = [(&client, Side::Client), (&server, Side::Server)];
        // In three steps, because each step needs both ends to have done the one before.
        for (namespace, side) in sides {
            namespace.enter(|| interface::bring_up(side, self.gro, self.tso))??;
        }
        for (namespace, side) in sides {
            namespace.enter(|| interface::add_addresses(side))??;
        }
        for (namespace, side) in sides {
            namespace.enter(|| interface::wait_until_ready(side))??;
        }
        Ok(Lab {
            client: LabHost::find(client, Side::Client, client_cpu)?,
            server: LabHost::find(server, Side::Server, server_cpu)?,
        })
    }

    fn check(&self) -> Result<(), LabError> {
        let setting = |what, value: u32, remedy: &str| {
            Err(LabError::Setting { what, value: value.to_string(), remedy: remedy.into() })
        };
        if !(1..=4096).contains(&self.queues) {
            return setting("queues", self.queues, "a veth has 1 to 4096");
        }
        if !(1280..=65535).contains(&self.mtu) {
            return setting("MTU", self.mtu, "choose 1280 to 65535 bytes");
        }
        Ok(())
    }

    fn end(&self, side: Side) -> VethEnd {
        VethEnd { name: side.interface(), mac: side.mac(), mtu: self.mtu, queues: self.queues }
    }
}
