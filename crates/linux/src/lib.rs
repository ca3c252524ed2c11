//! The Linux host, typed in and out: one file per kernel interface.
