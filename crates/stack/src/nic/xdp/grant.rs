//! An interface granted by one process to another: everything needed to drive its queues, as bytes and descriptors that
//! are sent over a unix socket. The receiving process needs no capabilities.

use super::{bpf::sys::Hook, device::Device};
use crate::wire::MacAddr;
use std::os::fd::OwnedFd;

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
    pub(super) unbound: Vec<OwnedFd>,
}

impl Grant {
    /// As bytes and descriptors.
    pub fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        let device = &self.device;
        let hook = u8::from(self.hook == Hook::Native);
        let mut bytes = vec![hook];
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
        descriptors.extend(self.unbound);
        (bytes, descriptors)
    }

    /// Parses a grant that another process has sent. `None` if it is incomplete.
    pub fn from_parts(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Grant> {
        let mut bytes = Bytes(bytes);
        let [hook] = bytes.take()?;
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
            unbound: Some(descriptors.collect::<Vec<_>>())
                .filter(|unbound| unbound.len() == queues as usize)?,
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
