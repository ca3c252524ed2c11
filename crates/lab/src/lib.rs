//! Two hosts on one machine.
