//! An interface attached to this process: the steering program on it, the program's maps, and the owner's name. The
//! process may drive the interface itself, or grant it to another process. In the second case it releases the interface
//! to the kernel when that process has ended in any way.

use super::{
    Error,
    bpf::{
        program::Key,
        sys::{self, Hook},
    },
    device::{Device, Program},
    frame_size,
    grant::Grant,
    owner::{OwnerName, owner},
    socket, steering,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

/// An interface that this process holds. The fields are dropped in order: first the program stops redirecting packets,
/// then the name is free for the next owner.
pub struct Attachment {
    link: OwnedFd,
    hook: Hook,
    ports: OwnedFd,
    /// The steering program's map from queue to socket.
    sockets: OwnedFd,
    device: Device,
    name: OwnerName,
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.device.fmt(f)
    }
}

impl Attachment {
    /// Takes the interface `name` of the calling thread's network namespace. `native`: in the driver if possible. If it
    /// has an owner, waits up to `patience` for its release.
    ///
    /// # Errors
    /// See [`Error`]; each is one line with its remedy.
    pub fn take(name: &str, native: bool, patience: Duration) -> Result<Attachment, Error> {
        let device = Device::find(name)?;
        // Fails here if no queue could be opened.
        frame_size(&device)?;
        let give_up = Instant::now() + patience;
        let at = |e: io::Error| Error::os(&device.name, "make a BPF map", e);
        let ports = sys::hash_map::<Key>("busypoll_ports", steering::CAPACITY).map_err(at)?;
        let sockets = sys::socket_map("busypoll_xsks", device.queues).map_err(at)?;
        let program = sys::load_steering(ports.as_fd(), sockets.as_fd())
            .map_err(|e| Error::os(&device.name, "load the XDP program", e))?;
        let name = sys::program_id(&program).and_then(|id| OwnerName::take(device.ifindex, id));
        let name =
            name.map_err(|e| Error::os(&device.name, "listen for queries of its owner", e))?;
        let (link, hook) = attach(&device, &program, native, give_up)?;
        Ok(Attachment { link, hook, ports, sockets, device, name })
    }

    /// Everything that another process needs to drive all its queues, made with this process's capabilities.
    ///
    /// # Errors
    /// No descriptor left, missing CAP_NET_RAW.
    pub fn grant(&self) -> Result<Grant, Error> {
        let copy = |fd: BorrowedFd<'_>| {
            let copy = fd.try_clone_to_owned();
            copy.map_err(|e| Error::os(&self.device.name, "copy a descriptor", e))
        };
        let sockets = || socket::make(&self.device.name);
        Ok(Grant {
            device: self.device.clone(),
            hook: self.hook,
            ports: copy(self.ports.as_fd())?,
            sockets: copy(self.sockets.as_fd())?,
            name: Some(copy(self.name.as_fd())?),
            link: Some(copy(self.link.as_fd())?),
            unbound: (0..self.device.queues).map(|_| sockets()).collect::<Result<_, _>>()?,
        })
    }

    /// Closes waiting queries for the owner. They fill the name's backlog, and no other thread accepts them.
    pub fn close_queries(&self) {
        self.name.close_queries();
    }
}

/// Readable when a process has queried the owner.
impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.name.as_fd()
    }
}

impl Drop for Attachment {
    /// Detaches the program, even if other processes still have the link.
    fn drop(&mut self) {
        sys::detach(&self.link);
    }
}

/// Attaches natively, else generically. If the interface is taken, the owner is not queried before `give_up`, because
/// each query stays in the owner's backlog.
fn attach(
    device: &Device,
    program: &OwnedFd,
    native: bool,
    give_up: Instant,
) -> Result<(OwnedFd, Hook), Error> {
    // Tries again if the owner ends between the two steps, or has closed its name but not yet its link.
    let deadline = give_up + socket::CLEANUP;
    let hooks: &[Hook] = if native { &[Hook::Native, Hook::Generic] } else { &[Hook::Generic] };
    loop {
        let mut error = io::Error::from(io::ErrorKind::Unsupported);
        let mut taken = false;
        for hook in hooks {
            match sys::attach(program, device.ifindex, *hook) {
                Ok(link) => return Ok((link, *hook)),
                Err(e) => error = e,
            }
            taken = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
            if taken || error.raw_os_error() == Some(libc::EPERM) {
                break;
            }
        }
        let late = Instant::now() >= deadline;
        match device.program() {
            Some(present) => {
                let program = sys::program_name(present.id);
                let ours = program == sys::PROGRAM_NAME;
                if ours
                    && Instant::now() >= give_up
                    && let Some(pid) = owner(device.ifindex, present.id)
                {
                    return Err(Error::Owned { device: device.name.clone(), pid });
                }
                if !ours || late {
                    let Program { id, off } = present;
                    return Err(Error::ProgramPresent {
                        device: device.name.clone(),
                        program,
                        id,
                        off,
                    });
                }
            }
            // The other program was detached meanwhile.
            None if taken && !late => {}
            None => return Err(Error::os(&device.name, "attach the XDP program", error)),
        }
        thread::sleep(Duration::from_millis(5));
    }
}
