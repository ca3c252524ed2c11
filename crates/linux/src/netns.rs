//! Network namespaces: the calling thread's, the one behind the number by which a device refers to it
//! (`IFLA_LINK_NETNSID`) or behind a file (`/proc/PID/ns/net`); and running code inside one. Reads only.
//!
//! The kernel's numbers are valid in one namespace only and lead to no file, so every visible namespace is
//! asked for its number: named ones, those of processes, those held by a descriptor.
//!
//! Kernel source: `net/core/net_namespace.c` (`rtnl_net_getid`).

use std::collections::HashSet;
use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netlink_bindings::traits::{NetlinkRequest, Protocol};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::caps::{Capability, Caps};
use crate::error::{Error, Result};
use crate::netlink::{self, Socket};
use crate::sys;

/// A number of the calling thread's network namespace that no other gets while the machine runs; the
/// initial one's is small. Before Linux 5.14, which introduced it, the inode number of the namespace's file, which is
/// unique among the living namespaces.
///
/// # Errors
/// [`Error::Os`] where neither a socket nor `/proc` can be had.
pub fn cookie() -> Result<u64> {
    let asked = UdpSocket::bind("0.0.0.0:0").and_then(|s| sys::get_netns_cookie(s.as_fd()));
    asked.or_else(|_| {
        let path = "/proc/thread-self/ns/net";
        Ok(fs::metadata(path).map_err(|e| Error::os(format!("reading {path}"), e))?.ino())
    })
}

/// A file that opens the namespace with this number, as seen from the calling thread's
/// own: `/run/netns/NAME`, `/proc/PID/ns/net`, `/proc/PID/fd/N`. None if no file that this user
/// may read leads to it.
pub fn find(number: i32) -> Option<PathBuf> {
    // -1, "not assigned", is also the kernel's answer for a namespace without a number.
    if number < 0 {
        return None;
    }
    let mut socket = Socket::route().ok()?;
    let mut seen = HashSet::new();
    let mut is_it = |path: &Path| {
        let Ok(file) = File::open(path) else { return false };
        let new = file.metadata().is_ok_and(|m| seen.insert((m.dev(), m.ino())));
        new && number_of(&mut socket, &file) == Some(number)
    };
    let named = || entries("/run/netns");
    let processes = || entries("/proc").filter(|p| is_number(p));
    let held = || {
        processes()
            .flat_map(|p| entries(p.join("fd")))
            .filter(|p| fs::read_link(p).is_ok_and(|to| to.to_string_lossy().starts_with("net:[")))
    };
    named()
        .find(|p| is_it(p))
        .or_else(|| processes().map(|p| p.join("ns/net")).find(|p| is_it(p)))
        .or_else(|| held().find(|p| is_it(p)))
}

/// A file that opens the namespace with this inode number, that of `/proc/PID/ns/net`. None
/// if no file that this user may read leads to it.
pub fn with_inode(inode: u32) -> Option<PathBuf> {
    let is_it = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.ino() == u64::from(inode));
    let link = format!("net:[{inode}]");
    let links_to_it = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| *to == *link);
    let processes = || entries("/proc").filter(|p| is_number(p));
    let threads = |p: PathBuf| entries(p.join("task")).map(|t| t.join("ns/net"));
    let first = || entries("/run/netns").find(is_it);
    // A thread may have a namespace of its own, and a descriptor may be all that holds one.
    first()
        .or_else(|| processes().map(|p| p.join("ns/net")).find(links_to_it))
        .or_else(|| processes().flat_map(threads).find(links_to_it))
        .or_else(|| processes().flat_map(|p| entries(p.join("fd"))).find(links_to_it))
}

/// The inode number of the calling thread's network namespace, that of `/proc/PID/ns/net`.
///
/// # Errors
/// [`Error::Os`] without `/proc`.
pub fn inode() -> Result<u32> {
    let path = "/proc/thread-self/ns/net";
    let inode = fs::metadata(path).map_err(|e| Error::os(format!("reading {path}"), e))?.ino();
    u32::try_from(inode).map_err(|_| Error::Malformed {
        path: path.into(),
        why: format!("inode {inode} does not fit 32 bits"),
    })
}

/// The inode number of every network namespace that has a name or a process in it, as far as this
/// user may read them.
pub fn in_use() -> HashSet<u32> {
    let named =
        entries("/run/netns").filter_map(|p| u32::try_from(fs::metadata(p).ok()?.ino()).ok());
    let number = |path: PathBuf| {
        let link = fs::read_link(path.join("ns/net")).ok()?;
        link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
    };
    named.chain(entries("/proc").filter(|p| is_number(p)).filter_map(number)).collect()
}

/// The [`cookie`] of every network namespace that has a name, or a thread in it, or a descriptor that holds it. None
/// if not all are visible: without root, and in a PID namespace other than the machine's.
pub fn cookies() -> Option<HashSet<u64>> {
    // PROC_PID_INIT_INO, include/linux/proc_ns.h.
    const PID_NS_INIT_INO: u64 = 0xEFFF_FFFC;
    fs::metadata("/proc/self/ns/pid").ok().filter(|ns| ns.ino() == PID_NS_INIT_INO)?;
    Caps::current().ok().filter(|caps| caps.has_globally(Capability::SysAdmin))?;
    let processes = || entries("/proc").filter(|p| is_number(p));
    let threads = || processes().flat_map(|p| entries(p.join("task")).map(|t| t.join("ns/net")));
    let held = || processes().flat_map(|p| entries(p.join("fd")));
    let mut seen = HashSet::new();
    let mut is_new = |path: &PathBuf| {
        let link = fs::read_link(path).unwrap_or_default();
        link.as_os_str().as_encoded_bytes().starts_with(b"net:[") && seen.insert(link)
    };
    let shown = threads().chain(held()).filter(|path| is_new(path)).chain(entries("/run/netns"));
    // A namespace that cannot be entered has ended meanwhile.
    Some(shown.filter_map(|path| enter(&path, cookie).ok()?.ok()).collect())
}

/// Runs `work` inside the namespace of `path`, on a thread of its own; the calling thread
/// stays in its namespace. No permission is needed if both are the same.
///
/// # Errors
/// [`Error::Denied`] without `CAP_SYS_ADMIN` over the namespace; [`Error::Os`] where `path` cannot be
/// opened.
pub fn enter<R: Send>(path: &Path, work: impl FnOnce() -> R + Send) -> Result<R> {
    let doing = || format!("entering the network namespace {}", path.display());
    let file = File::open(path).map_err(|e| Error::os(doing(), e))?;
    let inode = |m: std::io::Result<fs::Metadata>| m.map(|m| m.ino()).ok();
    if inode(file.metadata()) == inode(fs::metadata("/proc/thread-self/ns/net")) {
        return Ok(work());
    }
    let inside = || {
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(file.as_fd(), network).map_err(|e| match e {
            rustix::io::Errno::PERM => Error::denied_globally(doing(), Capability::SysAdmin),
            e => Error::os(doing(), e.into()),
        })?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .spawn_scoped(scope, inside)
            .map_err(|e| Error::os("starting a thread", e))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn entries(folder: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path())
}

fn is_number(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.as_encoded_bytes().iter().all(u8::is_ascii_digit))
}

fn number_of(socket: &mut Socket, namespace: &File) -> Option<i32> {
    // struct rtgenmsg, padded; then the descriptor.
    let mut payload = vec![libc::AF_UNSPEC as u8, 0, 0, 0];
    payload.extend(8u16.to_ne_bytes());
    payload.extend(NETNSA_FD.to_ne_bytes());
    payload.extend(namespace.as_raw_fd().to_ne_bytes());
    let mut number = None;
    let done = socket.request(&GetNumber(payload), 0, |n| number = n);
    done.ok().and(number)
}

// NETNSA_* of include/uapi/linux/net_namespace.h.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// `RTM_GETNSID`, which the generated bindings lack.
struct GetNumber(Vec<u8>);

impl NetlinkRequest for GetNumber {
    type ReplyType<'a> = Option<i32>;

    fn protocol(&self) -> Protocol {
        Protocol::Raw { protonum: libc::NETLINK_ROUTE as u16, request_type: libc::RTM_GETNSID }
    }

    fn flags(&self) -> u16 {
        0
    }

    fn payload(&self) -> &[u8] {
        &self.0
    }

    fn decode_reply(reply: &[u8]) -> Option<i32> {
        let number = netlink::attribute(reply.get(4..)?, NETNSA_NSID)?;
        Some(i32::from_ne_bytes(number.try_into().ok()?))
    }
}
