//! An interface granted by one process to another: all that it takes to drive its queues, as bytes and descriptors that
//! go over a unix socket. The one that is granted it needs no rights of its own.

use super::{bpf::sys::Hook, device::Device};
use crate::wire::MacAddr;
use std::os::fd::OwnedFd;

/// What it takes to drive the queues of an interface.
#[derive(Debug)]
pub struct Grant {
    pub(super) device: Device,
    pub(super) hook: Hook,
    pub(super) ports: OwnedFd,
    pub(super) sockets: OwnedFd,
    /// The name of the interface's owner and the steering program's place: while they are open nobody else takes it, and
    /// packets come, also without who granted it.
    pub(super) name: Option<OwnedFd>,
    pub(super) link: Option<OwnedFd>,
    /// Sockets of AF_XDP, one for each queue, made where the interface is.
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
            // Both are short: 16 and 32 bytes are what the kernel has for them.
            bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            bytes.extend(text.bytes().take(usize::from(u8::MAX)));
        }
        let mut descriptors = vec![self.ports, self.sockets];
        descriptors.extend([self.name, self.link].into_iter().flatten());
        descriptors.extend(self.unbound);
        (bytes, descriptors)
    }

    /// What another process has sent. `None` if it is not whole.
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
