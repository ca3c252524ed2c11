//! Whether busy polling is supported: the kernel, the privileges, the devices, the route to a peer.

pub(crate) mod device;
pub(crate) mod kernel;
