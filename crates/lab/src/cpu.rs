//! The hosts' CPUs, and pinning to some of them.
//!
//! A child is pinned between fork and exec, where allocation is forbidden, so not with
//! [`topology::pin`].

use std::ffi::c_ulong;
use std::io;

use busypoll_linux::{Error, topology};

use crate::LabError;

/// An affinity mask, made before the fork, as a forked child may not allocate.
pub(crate) struct Mask(Vec<c_ulong>);

impl Mask {
    pub(crate) fn of(cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut mask = Vec::new();
        for cpu in cpus {
            let (word, bit) = ((cpu / c_ulong::BITS) as usize, cpu % c_ulong::BITS);
            mask.resize(mask.len().max(word + 1), 0);
            mask[word] |= 1 << bit;
        }
        Self(mask)
    }

    /// Pins the calling thread, even if it is pinned to other CPUs. Allocates nothing.
    pub(crate) fn apply(&self) -> io::Result<()> {
        let bytes = size_of_val(self.0.as_slice());
        // SAFETY: the kernel reads as many bytes as the mask has, and takes any length
        // (sched_setaffinity(2), "C library/kernel differences").
        match unsafe { libc::sched_setaffinity(0, bytes, self.0.as_ptr().cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The CPUs of client and server: the wanted ones, else a good pair, else one CPU for both.
pub(crate) fn choose(wanted: Option<[u32; 2]>) -> Result<[u32; 2], LabError> {
    if let Some(cpus) = wanted {
        for cpu in cpus {
            // Tried now, while an error can still be reported.
            drop(topology::pin(cpu)?);
        }
        return Ok(cpus);
    }
    match (topology::default_pair(), topology::allowed()?.iter().next()) {
        (Ok(pair), _) => Ok([pair.first, pair.second]),
        (Err(Error::OneCpu { .. }), Some(only)) => Ok([only, only]),
        (Err(error), _) => Err(error.into()),
    }
}
