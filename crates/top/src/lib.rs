//! `busypoll top`: how packets are found, live, on both planes: by queue, by process, by thread. Reads only.
//!
//! | module | owns |
//! |---|---|
//! | `sample` | one reading of all sources of `busypoll-observe`, and how threads wait |
//! | `figures` | what happened between two readings: rows of queues, processes, threads |
//! | `table` | the rows as columns: titles, widths, order, filter |
//! | `screen` | the terminal: raw mode, signals, and how it is left on every end |
//! | `keys` | the bytes that a terminal sends, as keys |
//! | `view` | what the user looks at: view, order, filter, pause |
//! | `draw` | the view as lines of a terminal |
//! | `batch` | the same as text and JSON, for logs |

mod batch;
pub mod cli;
mod draw;
mod figures;
mod keys;
mod sample;
mod screen;
mod table;
mod view;

use std::io;

/// Why the view cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Standard output is no terminal.
    #[error("standard output is no terminal; for a log: busypoll top --batch")]
    NoTerminal,
    /// The view has no such column.
    #[error("no column '{0}'; there are {1}")]
    NoColumn(String, String),
    /// Of the terminal or the output.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}
