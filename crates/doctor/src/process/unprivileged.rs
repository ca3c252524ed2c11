//! The census without BPF: the processes this user may look into, by duplicates of their descriptors
//! (pidfd_getfd(2)) and `/proc`.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use busypoll_linux::bpf::files::{Kind, OpenFile, Socket};
use busypoll_linux::process::{self, Process, Wait};
use busypoll_linux::{Error as LinuxError, epoll, socket, sockopt, stat};

use super::Census;
use crate::{Error, Report, Scope, Subject};

/// The census of what is visible; reports `why` BPF could not be used if that hides something.
pub(super) fn census(
    scope: &Scope,
    report: &mut Report,
    why: &LinuxError,
) -> Result<Census, Error> {
    let mut census = Census::default();
    let mut hidden = 0;
    let all = if scope.pids.is_empty() { process::all() } else { scope.pids.clone() };
    for pid in all {
        let files = Process::open(pid).and_then(|handle| open_files(&handle, report, why));
        match files {
            Ok(files) => census.process(pid).files = files,
            Err(e) if scope.pids.contains(&pid) => {
                return Err(Error::Process { pid, why: e.to_string() });
            }
            Err(LinuxError::Denied { .. }) if !is_kernel_thread(pid) => hidden += 1,
            Err(_) => {}
        }
    }
    if hidden > 0 {
        let what = format!("the sockets of {hidden} processes of other users");
        report.not_seen(Subject::Machine, what, "BPF iterators", why);
    }
    census.sample(|census| {
        for process in census.processes.values_mut() {
            // A process that has just ended has no threads.
            let threads = process.handle().and_then(|handle| handle.threads().ok());
            for thread in threads.unwrap_or_default() {
                let seen = process.threads.entry(thread.tid).or_default();
                seen.sleeps |= thread.wait != Wait::Running;
                seen.waits.insert(thread.wait);
                seen.switches = stat::context_switches_of(thread.tid).unwrap_or_default();
            }
        }
        Ok::<(), Error>(())
    })?;
    Ok(census)
}

fn open_files(
    handle: &Process,
    report: &mut Report,
    why: &LinuxError,
) -> busypoll_linux::Result<Vec<OpenFile>> {
    let mut files = Vec::new();
    // Sockets opened before a setns(2) are in another namespace; without privileges that is not visible.
    let netns = handle.netns().and_then(|f| f.metadata().map_err(io_error)).map(|m| m.ino());
    let netns = netns.ok().and_then(|inode| u32::try_from(inode).ok()).unwrap_or(0);
    for descriptor in handle.descriptors()? {
        let fd = descriptor.fd;
        let (kind, identity) = match descriptor.kind {
            process::Kind::Socket { inode } => match handle.duplicate_fd(fd)? {
                Some(taken) => (socket_of(taken, inode, netns), inode),
                None => continue,
            },
            process::Kind::Epoll => match handle.duplicate_fd(fd)? {
                Some(taken) => {
                    let params = epoll::params(&taken).unwrap_or_default();
                    (Some(Kind::Epoll { params, napi: None }), 0)
                }
                None => continue,
            },
            process::Kind::StackPlane => continue,
            process::Kind::Uring => {
                let pid = handle.pid();
                let subject = Subject::Process { pid, name: super::name(pid) };
                report.not_seen(subject, "whether its io_uring busy polls", "BPF iterators", why);
                continue;
            }
        };
        files.extend(kind.map(|kind| OpenFile { pid: handle.pid(), fd, identity, kind }));
    }
    Ok(files)
}

fn io_error(source: io::Error) -> LinuxError {
    LinuxError::Os { doing: "looking up a network namespace".into(), source }
}

/// `None` for a socket that receives no packets.
fn socket_of(taken: impl AsFd, inode: u64, netns: u32) -> Option<Kind> {
    const TCP_ESTABLISHED: u32 = 1;
    const TCP_CLOSE: u32 = 7;
    const TCP_LISTEN: u32 = 10;
    let taken = taken.as_fd();
    let info = socket::info(taken).ok()?;
    let name = match (i32::from(info.family), info.kind as i32, info.protocol as i32) {
        (libc::AF_PACKET, ..) => "PACKET",
        (libc::AF_XDP, ..) => "XDP",
        (libc::AF_INET | libc::AF_INET6, _, libc::IPPROTO_MPTCP) => "MPTCP",
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_TCP) => "TCP",
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => "UDP",
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_RAW, _) => "RAW",
        (libc::AF_INET | libc::AF_INET6, ..) => "other",
        _ => return None,
    };
    Some(Kind::Socket(Box::new(Socket {
        inode,
        cookie: info.cookie,
        netns,
        family: info.family.into(),
        kind: info.kind,
        protocol: info.protocol,
        protocol_name: name.into(),
        state: match (info.listening, info.peer) {
            (true, _) => TCP_LISTEN,
            (false, Some(_)) => TCP_ESTABLISHED,
            (false, None) => TCP_CLOSE,
        },
        ulp: info.ulp.unwrap_or_default(),
        local: info.local,
        peer: info.peer,
        bound_ifindex: None,
        incoming_cpu: None,
        busy_poll_usecs: sockopt::busy_poll(taken).unwrap_or(0),
        prefer_busy_poll: sockopt::prefer_busy_poll(taken).unwrap_or(false),
        // No system call returns it.
        busy_poll_budget: 0,
        napi: sockopt::incoming_napi_id(taken).ok().flatten(),
    })))
}

/// Kernel threads have no command line, and every user may read it.
fn is_kernel_thread(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
}
