//! A report that fits the terminal: columns that can be missed go first, then lines wrap.

use comfy_table::{ColumnConstraint, Table};

use crate::terminal;

/// How wide a report may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width(pub Option<usize>);

impl Width {
    /// All of it, however wide.
    pub const ALL: Width = Width(None);

    /// As wide as the terminal that standard output is; all of it in a file, or where the user wants it.
    pub fn of_stdout(all: bool) -> Self {
        Width(terminal::columns().filter(|_| !all))
    }

    /// The table's text, without those of `first_to_go` (in this order) that do not fit, and a line that names them.
    pub fn fit(self, mut table: Table, first_to_go: &[&str]) -> String {
        let Some(columns) = self.0 else { return table.trim_fmt() };
        let titles: Vec<String> = table
            .header()
            .into_iter()
            .flat_map(|row| row.cell_iter().map(|it| it.content()))
            .collect();
        let mut gone = Vec::new();
        for title in first_to_go {
            if table.lines().all(|line| line.trim_end().chars().count() <= columns) {
                break;
            }
            let nth = titles.iter().position(|it| it == title);
            if let Some(column) = nth.and_then(|nth| table.column_mut(nth)) {
                column.set_constraint(ColumnConstraint::Hidden);
                gone.push(*title);
            }
        }
        let mut text = table.trim_fmt();
        if !gone.is_empty() {
            text += &format!("\n not shown, for want of width: {} (--wide)", gone.join(", "));
        }
        text
    }

    /// A report's text with long lines broken between words.
    pub fn wrap(self, text: String) -> String {
        match self.0 {
            Some(columns) => terminal::wrap(&text, columns),
            None => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use comfy_table::presets;

    use super::*;

    fn sample() -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["arm", "p50", "p99", "max", "evidence"]);
        table.add_row(["kernel-udp-blocking", "40.0", "60.0", "4000", "2.00 switches, 2.01 irqs"]);
        table
    }

    #[test]
    fn columns_go_in_their_order_until_the_rest_fits() {
        let order = ["max", "evidence", "p99"];
        let titles =
            |columns| Width(columns).fit(sample(), &order).lines().next().unwrap().to_owned();
        let words =
            |columns| titles(columns).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(None), ["arm", "p50", "p99", "max", "evidence"]);
        assert_eq!(words(Some(60)), ["arm", "p50", "p99", "evidence"]);
        assert_eq!(words(Some(40)), ["arm", "p50", "p99"]);
        assert_eq!(words(Some(10)), ["arm", "p50"]);
        let text = Width(Some(40)).fit(sample(), &order);
        assert!(text.ends_with("max, evidence (--wide)"), "{text}");
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let wide = Width::ALL.fit(sample(), &["max"]);
        assert_eq!(Width(Some(200)).fit(sample(), &["max"]), wide);
    }
}
