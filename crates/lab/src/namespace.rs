//! One network namespace, held by a file descriptor and by nothing else.
//!
//! Creates namespaces and runs code and children inside them. Never moves the calling thread, because a
//! thread in another namespace would surprise its next user: code runs on threads of its
//! own.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use busypoll_linux::topology;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{LabError, rtnetlink, user_namespace};

const LOOPBACK_IFINDEX: u32 = 1;

/// A network namespace. It lives as long as this value, its clones, and any process or thread inside.
#[derive(Debug, Clone)]
pub struct Namespace {
    fd: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes a namespace that has only `lo`, which is up.
    ///
    /// # Errors
    /// [`LabError::Unprivileged`] without CAP_SYS_ADMIN and CAP_NET_ADMIN in the process's user
    /// namespace.
    pub fn new() -> Result<Self, LabError> {
        on_a_thread(|| {
            // SAFETY: this changes the calling thread alone, which ends with this closure.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(user_namespace::refusal)?;
            let namespace = Self::open(Path::new("/proc/thread-self/ns/net"))?;
            rtnetlink::Socket::open()
                .and_then(|socket| socket.set_up(LOOPBACK_IFINDEX))
                .map_err(LabError::system("bring lo up in a new network namespace"))?;
            Ok(namespace)
        })?
    }

    /// Opens an existing namespace, such as `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// If `path` cannot be opened. Whether it is a network namespace shows only when it is entered.
    pub fn open(path: &Path) -> Result<Self, LabError> {
        let file =
            File::open(path).map_err(LabError::system(format!("open {}", path.display())))?;
        Ok(Self { fd: Arc::new(file.into()) })
    }

    /// A path by which the user's other processes can open the namespace while this value lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// Runs `work` inside the namespace, on a new thread, and waits. A panic is passed on.
    ///
    /// Sockets opened there stay in the namespace.
    ///
    /// # Errors
    /// If the thread cannot be started or may not enter the namespace.
    pub fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R, LabError> {
        on_a_thread(|| {
            set_namespace(self.as_fd()).map_err(LabError::system("enter a network namespace"))?;
            Ok(work())
        })?
    }

    /// Starts a thread inside the namespace, pinned to `cpu`, and does not wait for it.
    ///
    /// # Errors
    /// If the process may not run on `cpu`, the thread cannot be started or may not enter the
    /// namespace.
    pub fn spawn_thread<R: Send + 'static>(
        &self,
        cpu: u32,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<JoinHandle<R>, LabError> {
        // A thread inherits the namespace and CPU of its creator, so everything that can fail has been done before
        // it starts.
        self.enter(|| {
            let _pinned = topology::pin(cpu)?;
            thread::Builder::new().spawn(work).map_err(LabError::system("start a thread"))
        })?
    }

    /// A command that will run inside the namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let namespace = self.clone();
        let mut command = Command::new(program);
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(move || set_namespace(namespace.as_fd())) };
        command
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Moves the calling thread into a network namespace. Allocates nothing.
fn set_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Runs `work` on a thread of its own.
fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, LabError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .spawn_scoped(scope, work)
            .map_err(LabError::system("start a thread"))?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
