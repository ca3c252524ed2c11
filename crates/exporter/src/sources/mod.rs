//! Where the figures come from. Each source adds what it can read to the page, and fails as a whole only if it can
//! read nothing.

pub(crate) mod findings;
pub(crate) mod kernel;
pub(crate) mod napi;
pub(crate) mod passes;
pub(crate) mod runs;
pub(crate) mod spinners;
