//! The figures of each source of `busypoll-observe` as samples. Each fails as a whole only if it can read nothing.

pub(crate) mod findings;
pub(crate) mod kernel;
pub(crate) mod napi;
pub(crate) mod passes;
pub(crate) mod runs;
pub(crate) mod spinners;
