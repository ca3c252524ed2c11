//! The napi id: the name of a NAPI context in packets and sockets.

use std::{fmt, num::NonZeroU32};

/// The smallest napi id. Linux's ids start above its CPU numbers (`MIN_NAPI_ID` in include/net/busy_poll.h). Starting
/// where its largest builds do keeps the ids of both planes apart from small integers.
pub const MIN_NAPI_ID: u32 = 8193;

/// The id of a NAPI context, unique while the process lives. `SO_INCOMING_NAPI_ID` returns it, or 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NapiId(NonZeroU32);

impl NapiId {
    /// The id with this number, if it can be one.
    pub fn new(id: u32) -> Option<NapiId> {
        if id < MIN_NAPI_ID { None } else { NonZeroU32::new(id).map(NapiId) }
    }

    /// The id as a number.
    #[inline]
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for NapiId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
