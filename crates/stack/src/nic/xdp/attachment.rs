//! An interface attached to this process: the steering program on it, the program's maps, and the owner's name. The
//! process may drive the interface itself, or grant it to other processes. In the second case it releases the interface
//! to the kernel when the last of them has ended in any way.

use super::{
    Error,
    bpf::{
        program::Key,
        sys::{self, Hook},
    },
    device::{Device, Program},
    grant::{Grant, SharedGrant},
    members::{self, Members, Membership},
    outside::Outside,
    owner::{self, OwnerName, labels, owner},
    packing::Packing,
    slots::SLOTS,
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
    /// The steering program's map from slot and queue to socket.
    sockets: OwnedFd,
    device: Device,
    sharing: Sharing,
    /// Listeners of programs without a slot.
    outside: Outside,
    name: OwnerName,
}

/// Whether several processes can have the interface.
enum Sharing {
    /// None has had it yet.
    Unknown,
    Shared(Box<Members>),
    /// One can: why.
    Alone(String),
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.device.fmt(f)
    }
}

impl Attachment {
    /// Takes the interface `name` of the calling thread's network namespace. `native`: in the driver if possible. If it
    /// has an owner, waits up to `patience` for its release. `label`, hexadecimal digits, ends the owner's name.
    ///
    /// # Errors
    /// See [`Error`]; each is one line with its remedy.
    pub fn take(
        name: &str,
        native: bool,
        patience: Duration,
        label: Option<&str>,
    ) -> Result<Attachment, Error> {
        let device = Device::find(name)?;
        // Fails here if no queue could be opened.
        let packing = Packing::of(&device)?;
        let give_up = Instant::now() + patience;
        let at = |e: io::Error| Error::os(&device.name, "make a BPF map", e);
        let ports = sys::hash_map::<Key>("busypoll_ports", steering::CAPACITY).map_err(at)?;
        let entries = device.queues * SLOTS as u32;
        let sockets = sys::socket_map("busypoll_xsks", entries).map_err(at)?;
        let program = sys::load_steering(
            ports.as_fd(),
            sockets.as_fd(),
            device.queues,
            packing.kernel_has_pieces,
        )
        .map_err(|e| Error::os(&device.name, "load the XDP program", e))?;
        let name =
            sys::program_id(&program).and_then(|id| OwnerName::take(device.ifindex, id, label));
        let name =
            name.map_err(|e| Error::os(&device.name, "listen for queries of its owner", e))?;
        let (link, hook) = attach(&device, &program, native, give_up)?;
        let (sharing, outside) = (Sharing::Unknown, Outside::default());
        Ok(Attachment { link, hook, ports, sockets, device, sharing, outside, name })
    }

    /// The labels of the owners of the interface `name`, which may share it.
    pub fn labels(name: &str) -> Vec<String> {
        let Ok(device) = Device::find(name) else { return Vec::new() };
        let present = device.program().map(|present| present.id);
        present.map_or_else(Vec::new, |id| labels(device.ifindex, id))
    }

    /// Grants the interface to a further process, if it can be shared; else to one process at a time.
    ///
    /// # Errors
    /// As [`grant`](Attachment::grant); all slots are taken.
    pub fn grant_share(&mut self) -> Result<Grant, Error> {
        self.prepare_share()?;
        let Sharing::Shared(members) = &mut self.sharing else { return self.grant() };
        let membership = members.attach(&self.sockets)?;
        let slot = membership.slot;
        let grant = self.grant_of(Some(membership));
        if grant.is_err() {
            self.end(slot as u8);
        }
        grant
    }

    /// Finds out whether the interface can be shared, and makes what processes share: the frames' memory above all,
    /// which lasts as long as attaching the program.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn prepare_share(&mut self) -> Result<(), Error> {
        if let Sharing::Unknown = self.sharing
            && !members::are_possible()
        {
            self.sharing = Sharing::Alone(TOO_OLD.to_owned());
        }
        if let Sharing::Unknown = self.sharing {
            let may_zero_copy = self.hook == Hook::Native;
            let members = Members::take(&self.device, Packing::of(&self.device)?, may_zero_copy);
            self.sharing = match members {
                Ok(members) => Sharing::Shared(Box::new(members)),
                Err(error @ (Error::Os { .. } | Error::LockedMemory { .. })) => {
                    Sharing::Alone(why_alone(&error))
                }
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// Why only one process can have the interface; `None`: several can.
    pub fn why_alone(&self) -> Option<&str> {
        match &self.sharing {
            Sharing::Alone(why) => Some(why),
            _ => None,
        }
    }

    /// The process of a slot has ended: its packets are the kernel's.
    pub fn end(&mut self, slot: u8) {
        if let Sharing::Shared(members) = &mut self.sharing {
            let of = usize::from(slot);
            if members.detach(of, &self.sockets) {
                steering::clear(&self.ports, slot);
                members.collect(of);
            }
        }
    }

    /// A program that has no slot has `socket`, a listener: the kernel makes the connections of its port from now on.
    ///
    /// # Errors
    /// It is no TCP listener; a full steering map; one process alone can have the interface.
    pub fn share_listener(&mut self, socket: &OwnedFd) -> io::Result<()> {
        let Sharing::Shared(members) = &mut self.sharing else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // Before the mark, which processes look for only then.
        members.set_has_outside(true);
        self.outside.share(&self.ports, self.device.ifindex, socket)
    }

    /// Looks whether the listeners of programs without a slot are still open, and which addresses they have now. Returns
    /// whether there are any.
    pub fn update_shared_listeners(&mut self) -> bool {
        let Sharing::Shared(members) = &mut self.sharing else { return false };
        if !self.outside.is_empty() {
            self.outside.update(&self.ports, self.device.ifindex);
            members.set_has_outside(!self.outside.is_empty());
        }
        !self.outside.is_empty()
    }

    /// Frees the slots of ended processes. Returns whether this must be called again, in some milliseconds.
    pub fn settle(&mut self) -> bool {
        match &mut self.sharing {
            Sharing::Shared(members) => members.settle(),
            _ => false,
        }
    }

    /// This process is the owner again, by name, in place of one that has ended.
    pub fn name_this_process(&self) {
        // If it fails, a refused process names an ended one.
        let _ = owner::name_this_process(self.name.as_fd());
    }

    /// Everything that another process needs to drive all its queues, made with this process's capabilities.
    ///
    /// # Errors
    /// No descriptor left, missing CAP_NET_RAW.
    pub fn grant(&self) -> Result<Grant, Error> {
        self.grant_of(None)
    }

    fn grant_of(&self, membership: Option<Membership>) -> Result<Grant, Error> {
        let copy = |fd: BorrowedFd<'_>| {
            let copy = fd.try_clone_to_owned();
            copy.map_err(|e| Error::os(&self.device.name, "copy a descriptor", e))
        };
        let socket = |_| socket::make(&self.device.name);
        let (xsks, shared) = match membership {
            None => ((0..self.device.queues).map(socket).collect::<Result<_, _>>()?, None),
            Some(Membership { slot, zero_copy, memory, sockets }) => {
                (sockets, Some(SharedGrant { slot: slot as u8, zero_copy, memory }))
            }
        };
        Ok(Grant {
            device: self.device.clone(),
            hook: self.hook,
            ports: copy(self.ports.as_fd())?,
            sockets: copy(self.sockets.as_fd())?,
            name: Some(copy(self.name.as_fd())?),
            link: Some(copy(self.link.as_fd())?),
            xsks,
            shared,
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

const TOO_OLD: &str = "several processes on one interface need Linux 6.4 or newer";

/// Why an interface cannot be shared that one process can have.
fn why_alone(error: &Error) -> String {
    match error {
        Error::Os { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
            TOO_OLD.to_owned()
        }
        other => other.to_string(),
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
