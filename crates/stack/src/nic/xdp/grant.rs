//! An interface granted by one process to another: everything needed to drive its queues, as bytes and descriptors that
//! are sent over a unix socket. The receiving process needs no capabilities.

use super::{bpf::sys::Hook, device::Device};
use crate::wire::MacAddr;
use std::{io, os::fd::OwnedFd};

/// In place of a slot: the interface is not shared.
const ALONE: u8 = u8::MAX;

/// Everything needed to drive the queues of an interface.
#[derive(Debug)]
pub struct Grant {
    pub(super) device: Device,
    pub(super) hook: Hook,
    pub(super) ports: OwnedFd,
    pub(super) sockets: OwnedFd,
    /// The socket with the owner's name and the link of the steering program. While they are open, no other process can
    /// take the interface and packets come, also after the granting process has ended.
    pub(super) name: Option<OwnedFd>,
    pub(super) link: Option<OwnedFd>,
    /// AF_XDP sockets, one for each queue, made in the interface's network namespace.
    pub(super) xsks: Vec<OwnedFd>,
    /// Set if other processes share the interface. Then the sockets are bound.
    pub(super) shared: Option<SharedGrant>,
}

/// How an interface is shared.
#[derive(Debug)]
pub(super) struct SharedGrant {
    /// The slot of the process that has the grant.
    pub(super) slot: u8,
    pub(super) zero_copy: bool,
    /// The frames of all queues.
    pub(super) memory: OwnedFd,
}

impl Grant {
    /// The slot of the process that gets it, if the interface is shared.
    pub fn slot(&self) -> Option<u8> {
        self.shared.as_ref().map(|shared| shared.slot)
    }

    /// The socket with the owner's name, once more.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn owner_name(&self) -> io::Result<Option<OwnedFd>> {
        self.name.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// As bytes and descriptors.
    pub fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        let device = &self.device;
        let hook = u8::from(self.hook == Hook::Native);
        let shared = self.shared.as_ref();
        let mut bytes = vec![
            hook,
            shared.map_or(ALONE, |shared| shared.slot),
            u8::from(shared.is_some_and(|shared| shared.zero_copy)),
        ];
        bytes.extend_from_slice(&device.mac.0);
        for number in [device.ifindex, device.mtu as u32, device.queues] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        for text in [&device.name, &device.driver] {
            // Both are short: at most 16 and 32 bytes in the kernel.
            bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            bytes.extend(text.bytes().take(usize::from(u8::MAX)));
        }
        let mut descriptors = vec![self.ports, self.sockets];
        descriptors.extend([self.name, self.link].into_iter().flatten());
        descriptors.extend(self.shared.map(|shared| shared.memory));
        descriptors.extend(self.xsks);
        (bytes, descriptors)
    }

    /// Parses a grant that another process has sent. `None` if it is incomplete.
    pub fn from_parts(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Grant> {
        let mut bytes = Bytes(bytes);
        let [hook, slot, zero_copy] = bytes.take()?;
        let mac = MacAddr(bytes.take()?);
        let mut number = || bytes.take().map(u32::from_ne_bytes);
        let (ifindex, mtu, queues) = (number()?, number()?, number()?);
        let (name, driver) = (bytes.text()?, bytes.text()?);
        let mut descriptors = descriptors.into_iter();
        let device = Device { name, ifindex, mac, mtu: mtu as usize, queues, driver };
        Some(Grant {
            device,
            hook: if hook == 1 { Hook::Native } else { Hook::Generic },
            ports: descriptors.next()?,
            sockets: descriptors.next()?,
            name: Some(descriptors.next()?),
            link: Some(descriptors.next()?),
            shared: match slot {
                ALONE => None,
                slot => {
                    let memory = descriptors.next()?;
                    Some(SharedGrant { slot, zero_copy: zero_copy == 1, memory })
                }
            },
            xsks: Some(descriptors.collect::<Vec<_>>())
                .filter(|xsks| xsks.len() == queues as usize)?,
        })
    }
}

/// Bytes being read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn text(&mut self) -> Option<String> {
        let [len] = self.take()?;
        let (text, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}
