//! Congestion control: how large the window may be.
