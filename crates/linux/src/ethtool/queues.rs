//! The number and the length of a device's queues, and its permanent address. Touches only what
//! [`Ethtool::set_channels`] and [`Ethtool::set_rings`] change.
//!
//! With most drivers both setters take the device down and up again: the link is down for a moment, NAPI
//! instances and interrupts are new ones, and settings made on the old ones are lost.

use crate::error::Result;
use crate::ethtool::Ethtool;

// Commands of include/uapi/linux/ethtool.h.
const GRINGPARAM: u32 = 0x10;
const SRINGPARAM: u32 = 0x11;
const GPERMADDR: u32 = 0x20;
const GCHANNELS: u32 = 0x3c;
const SCHANNELS: u32 = 0x3d;
const MAX_ADDR_LEN: usize = 32;

/// How many queues a device has, as `ethtool -l` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Receive-only queues.
    pub rx: u32,
    /// Transmit-only queues.
    pub tx: u32,
    /// Pairs of both.
    pub combined: u32,
    /// The most receive-only queues the device can have.
    pub max_rx: u32,
    /// The most transmit-only queues the device can have.
    pub max_tx: u32,
    /// The most pairs the device can have.
    pub max_combined: u32,
}

impl Channels {
    /// Queues that receive.
    pub fn receiving(&self) -> u32 {
        self.rx + self.combined
    }
}

/// What to change of the channels; a `None` is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelChange {
    /// See [`Channels::rx`].
    pub rx: Option<u32>,
    /// See [`Channels::tx`].
    pub tx: Option<u32>,
    /// See [`Channels::combined`].
    pub combined: Option<u32>,
}

/// How many frames a queue holds, as `ethtool -g` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Frames of a receive queue.
    pub rx: u32,
    /// Frames of a transmit queue.
    pub tx: u32,
    /// The most frames a receive queue can hold.
    pub max_rx: u32,
    /// The most frames a transmit queue can hold.
    pub max_tx: u32,
}

/// What to change of the rings; a `None` is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingChange {
    /// See [`Rings::rx`].
    pub rx: Option<u32>,
    /// See [`Rings::tx`].
    pub tx: Option<u32>,
}

impl Ethtool {
    /// How many queues the device has.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLacks`] if the driver does not report it.
    pub fn channels(&self) -> Result<Channels> {
        let [_, max_rx, max_tx, _, max_combined, rx, tx, _, combined] = self.raw_channels()?;
        Ok(Channels { rx, tx, combined, max_rx, max_tx, max_combined })
    }

    /// Changes the number of queues (`ethtool -L`).
    ///
    /// # Errors
    /// [`crate::Error::Denied`] without `CAP_NET_ADMIN`; [`crate::Error::DeviceLacks`] where the number
    /// is fixed; [`crate::Error::Os`] `EINVAL` for a number the device cannot have.
    pub fn set_channels(&self, change: ChannelChange) -> Result<()> {
        let mut raw = self.raw_channels()?;
        raw[0] = SCHANNELS;
        raw[5] = change.rx.unwrap_or(raw[5]);
        raw[6] = change.tx.unwrap_or(raw[6]);
        raw[8] = change.combined.unwrap_or(raw[8]);
        self.ask("setting channel counts", &mut raw)
    }

    fn raw_channels(&self) -> Result<[u32; 9]> {
        // struct ethtool_channels: cmd, max_{rx,tx,other,combined}, {rx,tx,other,combined}_count.
        let mut request = [0; 9];
        request[0] = GCHANNELS;
        self.ask("channel counts", &mut request)?;
        Ok(request)
    }

    /// How long the queues are.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLacks`] if the driver does not report it.
    pub fn rings(&self) -> Result<Rings> {
        let [_, max_rx, _, _, max_tx, rx, _, _, tx] = self.raw_rings()?;
        Ok(Rings { rx, tx, max_rx, max_tx })
    }

    /// Changes the length of the queues (`ethtool -G`); drivers round it.
    ///
    /// # Errors
    /// As [`Ethtool::set_channels`].
    pub fn set_rings(&self, change: RingChange) -> Result<()> {
        let mut raw = self.raw_rings()?;
        raw[0] = SRINGPARAM;
        raw[5] = change.rx.unwrap_or(raw[5]);
        raw[8] = change.tx.unwrap_or(raw[8]);
        self.ask("setting ring sizes", &mut raw)
    }

    fn raw_rings(&self) -> Result<[u32; 9]> {
        // struct ethtool_ringparam: cmd, {rx,rx_mini,rx_jumbo,tx}_max_pending, the same four _pending.
        let mut request = [0; 9];
        request[0] = GRINGPARAM;
        self.ask("ring sizes", &mut request)?;
        Ok(request)
    }

    /// The permanent hardware address, which does not change when another address is set; none for most
    /// software devices.
    pub fn permanent_address(&self) -> Result<Option<[u8; 6]>> {
        // struct ethtool_perm_addr: cmd, size, then the address.
        let mut request = [0; 2 + MAX_ADDR_LEN / 4];
        (request[0], request[1]) = (GPERMADDR, MAX_ADDR_LEN as u32);
        self.ask("the permanent address", &mut request)?;
        let [a, b, c, d] = request[2].to_ne_bytes();
        let [e, f, ..] = request[3].to_ne_bytes();
        let address = [a, b, c, d, e, f];
        Ok((request[1] == 6 && address != [0; 6]).then_some(address))
    }
}
