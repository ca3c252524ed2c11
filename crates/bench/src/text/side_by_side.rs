//! Several runs as one table.

use busypoll_policy::fit::Width;

use super::table::plain;
use crate::side_by_side::{SideBySide, change};

/// The table, with a column for each run.
pub fn text(both: &SideBySide, width: Width) -> String {
    let mut header = vec!["arm"];
    header.extend(both.runs.iter().map(String::as_str));
    header.push("last / first");
    let mut table = plain(&header);
    for (name, figures) in &both.rows {
        let mut row = vec![name.clone()];
        row.extend(figures.iter().map(|figure| match figure {
            Some((figure, Some([low, high]))) => {
                format!("{} [{}-{}]", (both.show)(*figure), (both.show)(*low), (both.show)(*high))
            }
            Some((figure, None)) => (both.show)(*figure),
            None => "-".to_owned(),
        }));
        row.push(change(figures));
        table.add_row(row);
    }
    format!(
        "== {}, side by side\n{}\n\nIn brackets 95% intervals over rounds; where they overlap, the runs are not told apart.\n",
        both.title,
        width.fit(table, &[])
    )
}
