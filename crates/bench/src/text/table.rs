//! Tables without frames, and notes below them.

use comfy_table::{CellAlignment, Table, presets};

/// The note on a service demand that is not shown.
pub const HIDDEN: &str = "?: cannot be told apart from what other programs used.";

/// The note on a percentile that is not shown.
pub const TOO_FEW: &str = "p99, p99.9 -: a round has fewer than 100, 1,000 requests.";

/// A table without frames: first and last columns left-aligned, figures right-aligned.
pub fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    let last = header.len() - 1;
    for (i, column) in table.column_iter_mut().enumerate() {
        if i > 0 && i < last {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
