//! TCP (RFC 9293). Three floors, each to be read and tested alone:
//!
//! - the *connection*, which is given segments and the time and says which segments to send: no lock, no
//!   clock, no I/O;
//! - the *flow*: a connection behind a lock, its path, its place in the tables and on the timer wheel;
//! - the sockets above, in `socket`, which know how to wait.
#![allow(dead_code)] // while the folder is being filled

pub mod segment;
pub mod seq;
