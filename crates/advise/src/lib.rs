//! `busypoll advise`: what busy polling would buy a program. It watches the waits that the program makes, measures on
//! this machine what sleeping and polling cost, and predicts each setting from both.
//!
//! | module | owns |
//! |---|---|
//! | `watch` | the waits of a program, by BPF, for some seconds |
//! | `recording` | those waits as rounds: a wait and the work before it |
//! | `answering` | the server that is measured: it waits and works as the program does |
//! | `calibrate` | round trips with that server in a lab, asleep and polling |
//! | `turns` | the turns of that measurement, and which of them nothing disturbed |
//! | `model` | rounds and costs to percentiles and CPU time, for one setting |
//! | `doubt` | why a prediction may not hold |
//! | `advice` | all settings, the best for a budget, its policy file |
//! | `show` | the advice as text and JSON |
//!
//! The model has no clock and no I/O: the same rounds and costs give the same advice.

mod advice;
pub mod answering;
mod calibrate;
pub mod cli;
mod doubt;
mod model;
mod recording;
mod show;
mod turns;
mod watch;

use std::io;

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the kernel's interfaces.
    #[error("{0}")]
    Linux(#[from] busypoll_linux::Error),
    /// The lab cannot be built.
    #[error("measuring on this machine: {0}")]
    Lab(#[from] busypoll_lab::LabError),
    /// Of a process or socket of the measurement.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
    /// What the user asked for.
    #[error("{0}")]
    Usage(String),
}
