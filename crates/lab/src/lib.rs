//! Two hosts on one machine.

pub mod needs;
