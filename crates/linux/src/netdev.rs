//! NAPI instances and queues over the generic netlink family `netdev`. Touches only what
//! [`Netdev::set_napi`] changes.
//!
//! Kernel source: `net/core/netdev-genl.c`, `Documentation/netlink/specs/netdev.yaml`,
//! `Documentation/networking/napi.rst`. Reading needs no permission; napi-set needs `CAP_NET_ADMIN`
//! in the initial user namespace.
//!
//! A device that is down has no NAPI instances; veth has some only while GRO is on or an XDP program
//! is attached; loopback never has any.

use netlink_bindings::netdev::{IterableDev, IterableNapi, IterableQueue, Request};
use netlink_bindings::traits::NetlinkRequest;

use crate::caps::Capability;
use crate::error::{Error, Result};
use crate::netlink::{self, Refused, Socket};
use crate::sockopt::NapiId;

/// One NAPI instance. A `None` is an attribute this kernel does not report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Napi {
    /// Its id.
    pub id: NapiId,
    /// The device it belongs to.
    pub ifindex: u32,
    /// Its interrupt number, if the driver reports it; see [`crate::stat::IrqCounts::irq`].
    pub irq: Option<u32>,
    /// Its kernel thread, while [`Napi::threaded`] is on.
    pub pid: Option<u32>,
    /// How many empty polls in a row leave the interrupt masked (Linux 6.13).
    pub defer_hard_irqs: Option<u32>,
    /// After how many **nanoseconds** a timer polls the queue if no thread has (Linux 6.13).
    pub gro_flush_timeout_ns: Option<u64>,
    /// How many **nanoseconds** interrupts stay suspended while epoll finds events and
    /// [`crate::EpollParams::prefer_busy_poll`] is set (Linux 6.13).
    pub irq_suspend_timeout_ns: Option<u64>,
    /// What runs the interrupt-driven polls (Linux 6.17).
    pub threaded: Option<Threaded>,
}

/// What runs a NAPI instance's interrupt-driven polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Threaded {
    /// Softirqs.
    Off,
    /// A kernel thread of its own.
    On,
    /// A kernel thread that busy polls (Linux 6.19).
    BusyPoll,
    /// A mode of a newer kernel.
    Other(u32),
}

impl Threaded {
    fn from_kernel(value: u32) -> Self {
        match value {
            0 => Threaded::Off,
            1 => Threaded::On,
            2 => Threaded::BusyPoll,
            other => Threaded::Other(other),
        }
    }

    fn to_kernel(self) -> u32 {
        match self {
            Threaded::Off => 0,
            Threaded::On => 1,
            Threaded::BusyPoll => 2,
            Threaded::Other(other) => other,
        }
    }
}

/// The settings of a NAPI instance to change; a `None` is left as it is.
///
/// `gro_flush_timeout_ns` with `defer_hard_irqs` delays every packet that no busy poll finds: set them
/// only while a thread polls, and reset them afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiChange {
    /// See [`Napi::defer_hard_irqs`]; at most `i32::MAX`.
    pub defer_hard_irqs: Option<u32>,
    /// See [`Napi::gro_flush_timeout_ns`]; nanoseconds.
    pub gro_flush_timeout_ns: Option<u32>,
    /// See [`Napi::irq_suspend_timeout_ns`]; nanoseconds.
    pub irq_suspend_timeout_ns: Option<u32>,
    /// See [`Napi::threaded`].
    pub threaded: Option<Threaded>,
}

/// Whether a queue receives or transmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

/// One queue of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its index; receive and transmit queues are numbered separately.
    pub id: u32,
    /// The device it belongs to.
    pub ifindex: u32,
    /// Receive or transmit.
    pub direction: Direction,
    /// The NAPI instance that serves it, if the driver reports it; veth, ixgbe, i40e and tun do not.
    pub napi: Option<NapiId>,
    /// Whether an AF_XDP socket is bound to it (Linux 6.14).
    pub xsk: bool,
}

/// What a device's driver supports of XDP (`enum netdev_xdp_act`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures(u64);

impl XdpFeatures {
    /// XDP programs run in the driver.
    pub fn native(self) -> bool {
        self.0 & 1 != 0
    }

    /// AF_XDP sockets receive without a copy.
    pub fn zero_copy(self) -> bool {
        self.0 & 8 != 0
    }
}

/// A connection to the `netdev` family, in the network namespace it was opened in.
///
/// ```
/// use busypoll_linux::netdev::Netdev;
/// for napi in Netdev::open()?.all_napis()? {
///     println!("ifindex {} napi {} irq {:?}", napi.ifindex, napi.id, napi.irq);
/// }
/// # Ok::<(), busypoll_linux::Error>(())
/// ```
pub struct Netdev {
    socket: Socket,
    family: u16,
}

impl Netdev {
    /// Opens it in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 6.8.
    pub fn open() -> Result<Self> {
        let unsupported =
            || Error::Unsupported { what: "the netlink family netdev", since: "6.8", with: "" };
        let (socket, family) = Socket::generic(c"netdev").map_err(|e| match e.errno() {
            Some(libc::ENOENT) => unsupported(),
            _ => e.into_error("asking for the netlink family netdev"),
        })?;
        let mut netdev = Netdev { socket, family };
        // 6.3 to 6.7 have the family, but no NAPI instances in it. Newer kernels answer ENOENT for an unused id.
        let mut request = Request::new().op_napi_get_do();
        request.encode().push_id(u32::MAX);
        match netdev.ask(&request, read_napi) {
            Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => Err(unsupported()),
            _ => Ok(netdev),
        }
    }

    /// The NAPI instances of one device (napi-get).
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn napis(&mut self, ifindex: u32) -> Result<Vec<Napi>> {
        let mut request = Request::new().op_napi_get_dump();
        request.encode().push_ifindex(ifindex);
        self.ask(&request, read_napi).map_err(|e| no_device(e, "napi-get", ifindex))?
    }

    /// The NAPI instances of every device of the network namespace.
    pub fn all_napis(&mut self) -> Result<Vec<Napi>> {
        let request = Request::new().op_napi_get_dump();
        self.ask(&request, read_napi).map_err(|e| e.into_error("napi-get"))?
    }

    /// One NAPI instance.
    ///
    /// # Errors
    /// [`Error::NoNapi`] if it is gone, or belongs to a device of another network namespace.
    pub fn napi(&mut self, id: NapiId) -> Result<Napi> {
        let mut request = Request::new().op_napi_get_do();
        request.encode().push_id(id.get());
        let found = self.ask(&request, read_napi).map_err(|e| no_napi(e, "napi-get", id))??;
        found.into_iter().next().ok_or(Error::NoNapi { id: id.get() })
    }

    /// Changes a NAPI instance (napi-set), after a check that it belongs to the given device.
    ///
    /// The device is checked because the id may meanwhile be that of another device, even the machine's
    /// own. The settings live as long as the instance; some drivers keep them over a reset.
    ///
    /// # Errors
    /// [`Error::OtherDevice`], with nothing changed; [`Error::NoNapi`]; [`Error::Denied`] without
    /// `CAP_NET_ADMIN` in the initial user namespace; [`Error::Os`] `ERANGE` for a mode the kernel does
    /// not know.
    pub fn set_napi(&mut self, ifindex: u32, id: NapiId, change: NapiChange) -> Result<()> {
        let actual = self.napi(id)?.ifindex;
        if actual != ifindex {
            return Err(Error::OtherDevice { id: id.get(), expected: ifindex, actual });
        }
        let mut request = Request::new().op_napi_set_do();
        {
            let mut napi = request.encode().push_id(id.get());
            if let Some(n) = change.defer_hard_irqs {
                napi = napi.push_defer_hard_irqs(n);
            }
            if let Some(ns) = change.gro_flush_timeout_ns {
                napi = napi.push_gro_flush_timeout(ns);
            }
            if let Some(ns) = change.irq_suspend_timeout_ns {
                napi = napi.push_irq_suspend_timeout(ns);
            }
            if let Some(threaded) = change.threaded {
                napi = napi.push_threaded(threaded.to_kernel());
            }
            drop(napi);
        }
        let done = self.socket.request(&request, self.family, |_| ());
        done.map_err(|e| match e.errno() {
            Some(libc::EPERM) => {
                let doing = format!("napi-set of {id} on ifindex {ifindex}");
                Error::denied_globally(doing, Capability::NetAdmin)
            }
            Some(libc::EOPNOTSUPP) => Error::Unsupported {
                what: "napi-set of the netlink family netdev",
                since: "6.13",
                with: "",
            },
            _ => no_napi(e, "napi-set", id),
        })
    }

    /// The queues of one device (queue-get); a device that is down has none.
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn queues(&mut self, ifindex: u32) -> Result<Vec<Queue>> {
        let mut request = Request::new().op_queue_get_dump();
        request.encode().push_ifindex(ifindex);
        let read = |queue: IterableQueue<'_>| {
            let malformed = |e| Error::Malformed {
                path: "netlink netdev queue-get".into(),
                why: format!("{e}"),
            };
            Ok(Queue {
                id: queue.get_id().map_err(malformed)?,
                ifindex: queue.get_ifindex().map_err(malformed)?,
                direction: match queue.get_type().map_err(malformed)? {
                    0 => Direction::Rx,
                    _ => Direction::Tx,
                },
                napi: queue.get_napi_id().ok().and_then(NapiId::new),
                xsk: queue.get_xsk().is_ok(),
            })
        };
        self.ask(&request, read).map_err(|e| no_device(e, "queue-get", ifindex))?
    }

    /// What the driver supports of XDP (dev-get).
    ///
    /// # Errors
    /// [`Error::NoDevice`].
    pub fn xdp_features(&mut self, ifindex: u32) -> Result<XdpFeatures> {
        let mut request = Request::new().op_dev_get_do();
        request.encode().push_ifindex(ifindex);
        let read = |device: IterableDev<'_>| Ok(device.get_xdp_features().unwrap_or(0));
        let found: Vec<u64> =
            self.ask(&request, read).map_err(|e| no_device(e, "dev-get", ifindex))??;
        Ok(XdpFeatures(found.into_iter().next().unwrap_or(0)))
    }

    /// Sends a request and reads all replies.
    fn ask<R: NetlinkRequest, T>(
        &mut self,
        request: &R,
        read: impl for<'a> Fn(R::ReplyType<'a>) -> Result<T>,
    ) -> Result<Result<Vec<T>>, Refused> {
        let mut found = Vec::new();
        self.socket.request(request, self.family, |reply| found.push(read(reply)))?;
        Ok(found.into_iter().collect())
    }
}

fn no_device(e: Refused, doing: &str, ifindex: u32) -> Error {
    match e.errno() {
        Some(libc::ENODEV) => Error::NoDevice { name: format!("ifindex {ifindex}") },
        _ => e.into_error(format!("{doing} of ifindex {ifindex}")),
    }
}

fn no_napi(e: Refused, doing: &str, id: NapiId) -> Error {
    match e.errno() {
        Some(libc::ENOENT) => Error::NoNapi { id: id.get() },
        _ => e.into_error(format!("{doing} of NAPI instance {id}")),
    }
}

fn read_napi(napi: IterableNapi<'_>) -> Result<Napi> {
    let malformed = |why: String| Error::Malformed { path: "netlink netdev napi-get".into(), why };
    let id = napi.get_id().map_err(|e| malformed(e.to_string()))?;
    // `uint` attributes: the bindings read the 4-byte form only, the kernel sends 8 bytes when it must.
    let uint = |kind| netlink::attribute(napi.get_buf(), kind).and_then(uint);
    Ok(Napi {
        id: NapiId::new(id).ok_or_else(|| malformed("a NAPI instance with id 0".into()))?,
        ifindex: napi.get_ifindex().map_err(|e| malformed(e.to_string()))?,
        irq: napi.get_irq().ok(),
        pid: napi.get_pid().ok(),
        defer_hard_irqs: napi.get_defer_hard_irqs().ok(),
        gro_flush_timeout_ns: uint(GRO_FLUSH_TIMEOUT),
        irq_suspend_timeout_ns: uint(IRQ_SUSPEND_TIMEOUT),
        threaded: napi.get_threaded().ok().map(Threaded::from_kernel),
    })
}

// NETDEV_A_NAPI_* of include/uapi/linux/netdev.h.
const GRO_FLUSH_TIMEOUT: u16 = 6;
const IRQ_SUSPEND_TIMEOUT: u16 = 7;

/// An unsigned attribute of 4 or 8 bytes (`NLA_UINT`).
fn uint(value: &[u8]) -> Option<u64> {
    match *value {
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => Some(u64::from_ne_bytes(value.try_into().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::uint;

    #[test]
    fn uint_attributes_are_read_in_both_sizes() {
        assert_eq!(uint(&7u32.to_ne_bytes()), Some(7));
        assert_eq!(uint(&5_000_000_000u64.to_ne_bytes()), Some(5_000_000_000));
        assert_eq!(uint(&[1, 2, 3]), None);
    }
}
