//! The figures as columns: titles, widths, order and filter. The same for the terminal and for logs.

use std::cmp::Ordering;

use clap::ValueEnum;

use crate::figures::{Figures, NapiRow, Next, Packets, Percentiles, Plane, ProcessRow, ThreadRow};

/// What the rows are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// Receive queues.
    Napi,
    /// Processes.
    Process,
    /// Threads.
    Thread,
}

/// A column: its title and width, and how soon it goes where the terminal is too narrow (0: never).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) width: usize,
    pub(crate) left: bool,
    goes: u8,
}

const fn number(title: &'static str, width: usize, goes: u8) -> Column {
    Column { title, width, left: false, goes }
}

const fn text(title: &'static str, width: usize, goes: u8) -> Column {
    Column { title, width, left: true, goes }
}

const NAPI: &[Column] = &[
    text("DEVICE", 16, 0),
    number("NAPI", 6, 0),
    text("P", 1, 6),
    number("PKT/s", 6, 0),
    number("POLL%", 5, 0),
    number("SIRQ%", 5, 1),
    number("THRD%", 5, 8),
    number("EMPTY/s", 7, 4),
    number("IRQ/s", 6, 3),
    number("AVOID/s", 7, 5),
    number("WAKE/s", 6, 7),
    text("NEXT", 16, 2),
];

const PROCESS: &[Column] = &[
    number("PID", 7, 0),
    text("PROGRAM", 15, 0),
    text("P", 1, 9),
    number("PKT/s", 6, 0),
    number("POLL%", 5, 0),
    number("SIRQ%", 5, 10),
    number("LINK%", 5, 11),
    number("EMPTY/s", 7, 6),
    number("CPU%", 5, 4),
    number("VAIN%", 5, 3),
    number("AVOID/s", 7, 7),
    number("P50", 5, 2),
    number("P99", 5, 5),
    number("LATE99", 6, 8),
    text("NEXT", 16, 1),
];

const THREAD: &[Column] = &[
    number("PID", 7, 0),
    number("TID", 7, 0),
    text("THREAD", 15, 0),
    text("CALL", 8, 6),
    number("WAIT/s", 6, 0),
    number("SLEPT%", 6, 8),
    number("P50", 5, 1),
    number("P99", 5, 3),
    number("LATE50", 6, 5),
    number("LATE99", 6, 4),
    number("POLL%", 5, 1),
    number("VAIN%", 5, 2),
    number("EMPTY/s", 7, 7),
    number("PKT/s", 6, 9),
];

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    Id(u32),
    /// A count a second.
    Rate(Option<f64>),
    /// 0 to 1, and more for several CPUs.
    Share(Option<f64>),
    /// Microseconds.
    Time(Option<f64>),
}

/// A row: its cells, and what to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row<'a> {
    pub(crate) cells: Vec<Cell>,
    pub(crate) next: Option<&'a Next>,
}

impl Cell {
    /// The text; `-` for what was not seen.
    pub(crate) fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Id(id) => id.to_string(),
            Cell::Rate(Some(rate)) => rate_text(*rate),
            Cell::Share(Some(share)) => format!("{:.0}", share * 100.0),
            Cell::Time(Some(us)) => time_text(*us),
            Cell::Rate(None) | Cell::Share(None) | Cell::Time(None) => "-".into(),
        }
    }

    /// What was not seen is less than all that was.
    fn compare(&self, other: &Cell) -> Ordering {
        let number = |cell: &Cell| match cell {
            Cell::Rate(value) | Cell::Share(value) | Cell::Time(value) => value.unwrap_or(-1.0),
            Cell::Id(id) => f64::from(*id),
            Cell::Text(_) => 0.0,
        };
        match (self, other) {
            (Cell::Text(one), Cell::Text(other)) => one.cmp(other),
            _ => number(self).total_cmp(&number(other)),
        }
    }
}

/// At most five characters.
fn rate_text(rate: f64) -> String {
    match rate {
        ..0.05 => "0".into(),
        ..9.95 => format!("{rate:.1}"),
        ..99_999.5 => format!("{rate:.0}"),
        ..9_999_500.0 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.0}M", rate / 1e6),
    }
}

/// At most five characters.
fn time_text(us: f64) -> String {
    match us {
        ..9.95 => format!("{us:.1}us"),
        ..999.5 => format!("{us:.0}us"),
        ..9_950.0 => format!("{:.1}ms", us / 1e3),
        ..999_500.0 => format!("{:.0}ms", us / 1e3),
        _ => format!("{:.0}s", us / 1e6),
    }
}

impl View {
    /// All views, in the order of their keys.
    pub(crate) const ALL: [View; 3] = [View::Napi, View::Process, View::Thread];

    /// Its name.
    pub(crate) fn title(self) -> &'static str {
        match self {
            View::Napi => "napi",
            View::Process => "process",
            View::Thread => "thread",
        }
    }

    /// Its columns.
    pub(crate) fn columns(self) -> &'static [Column] {
        match self {
            View::Napi => NAPI,
            View::Process => PROCESS,
            View::Thread => THREAD,
        }
    }

    /// The column that sorts at first.
    pub(crate) fn first_order(self) -> usize {
        let wanted = if self == View::Thread { "WAIT/s" } else { "PKT/s" };
        self.columns().iter().position(|column| column.title == wanted).unwrap_or(0)
    }

    /// The rows, in no order.
    fn rows(self, figures: &Figures) -> Vec<Row<'_>> {
        let seconds = figures.seconds;
        match self {
            View::Napi => figures.napis.iter().map(|row| napi(row, seconds)).collect(),
            View::Process => figures.processes.iter().map(|row| process(row, seconds)).collect(),
            View::Thread => figures.threads.iter().map(|row| thread(row, seconds)).collect(),
        }
    }

    /// The rows that contain `filter`, by this column: the greatest number first, text from A, or the reverse.
    pub(crate) fn sorted<'a>(
        self,
        figures: &'a Figures,
        filter: &str,
        by: usize,
        reversed: bool,
    ) -> Vec<Row<'a>> {
        let filter = filter.to_lowercase();
        let mut rows = self.rows(figures);
        rows.retain(|row| {
            row.cells.iter().any(|cell| cell.text().to_lowercase().contains(&filter))
        });
        rows.sort_by(|one, other| {
            let (Some(one), Some(other)) = (one.cells.get(by), other.cells.get(by)) else {
                return Ordering::Equal;
            };
            let order = one.compare(other);
            let from_a = matches!(one, Cell::Text(_));
            if from_a == reversed { order.reverse() } else { order }
        });
        rows
    }
}

/// The columns that fit, by their numbers. Those that can be missed go first; the last takes what is left.
pub(crate) fn fitting(columns: &[Column], width: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let needed = |kept: &[usize]| -> usize {
        let widths = kept.iter().map(|at| columns[*at].width + 1).sum::<usize>();
        // Text at the end may be cut.
        let last = kept.last().map(|at| columns[*at]);
        widths
            .saturating_sub(last.filter(|it| it.left && it.width > 8).map_or(1, |it| it.width - 7))
    };
    while needed(&kept) > width {
        let most = kept.iter().copied().max_by_key(|at| columns[*at].goes);
        match most.filter(|at| columns[*at].goes > 0) {
            Some(at) => kept.retain(|kept| *kept != at),
            None => break,
        }
    }
    kept
}

/// One line of these columns.
pub(crate) fn line(columns: &[Column], kept: &[usize], text: impl Fn(usize) -> String) -> String {
    let mut line = String::new();
    for (nth, at) in kept.iter().enumerate() {
        let column = columns[*at];
        let text = text(*at);
        let last = nth + 1 == kept.len();
        let width = column.width;
        // A name may be longer than its column.
        let text: String = if last { text } else { text.chars().take(width.max(5)).collect() };
        if nth > 0 {
            line.push(' ');
        }
        match column.left {
            true if last => line.push_str(&text),
            true => line.push_str(&format!("{text:<width$}")),
            false => line.push_str(&format!("{text:>width$}")),
        }
    }
    line
}

fn plane(plane: Plane) -> Cell {
    Cell::Text(if plane == Plane::Kernel { "K" } else { "S" }.into())
}

fn share(packets: Option<Packets>, of: fn(&Packets) -> u64) -> Cell {
    let packets = packets.filter(|packets| packets.all > 0);
    Cell::Share(packets.map(|packets| of(&packets) as f64 / packets.all as f64))
}

/// The code without the letters that all begin with.
fn code(next: &Option<Next>) -> Cell {
    let code = next.as_ref().map(|next| next.code.trim_start_matches("BP-"));
    Cell::Text(code.unwrap_or_default().to_owned())
}

fn napi(row: &NapiRow, seconds: f64) -> Row<'_> {
    let rate = |count: Option<u64>| Cell::Rate(count.map(|count| count as f64 / seconds));
    let device = match (row.netns, row.link_pid) {
        (Some(netns), _) => format!("{}@{netns}", row.device),
        (_, Some(pid)) => format!("{}->{pid}", row.device),
        _ => row.device.clone(),
    };
    let cells = vec![
        Cell::Text(device),
        Cell::Id(row.napi_id),
        plane(row.plane),
        rate(row.packets.map(|packets| packets.all)),
        share(row.packets, |packets| packets.busy_poll),
        share(row.packets, |packets| packets.interrupt),
        share(row.packets, |packets| packets.kernel_thread),
        rate(row.empty_polls),
        rate(row.interrupts),
        rate(row.avoided),
        rate(row.wakeups),
        code(&row.next),
    ];
    Row { cells, next: row.next.as_ref() }
}

fn process(row: &ProcessRow, seconds: f64) -> Row<'_> {
    let rate = |count: Option<u64>| Cell::Rate(count.map(|count| count as f64 / seconds));
    let Percentiles { p50, p99 } = row.wait_us;
    let cells = vec![
        Cell::Id(row.pid),
        Cell::Text(row.program.clone()),
        plane(row.plane),
        rate(row.packets.map(|packets| packets.all)),
        share(row.packets, |packets| packets.busy_poll),
        share(row.packets, |packets| packets.interrupt),
        share(row.packets, |packets| packets.link),
        rate(row.empty_polls),
        Cell::Share(row.cpu_share),
        Cell::Share(row.vain_share),
        rate(row.avoided),
        Cell::Time(p50),
        Cell::Time(p99),
        Cell::Time(row.delay_us.p99),
        code(&row.next),
    ];
    Row { cells, next: row.next.as_ref() }
}

fn thread(row: &ThreadRow, seconds: f64) -> Row<'_> {
    let rate = |count: u64| Cell::Rate(Some(count as f64 / seconds));
    let slept = (row.waits > 0).then(|| row.slept as f64 / row.waits as f64);
    let cells = vec![
        Cell::Id(row.pid),
        Cell::Id(row.tid),
        Cell::Text(row.name.clone()),
        Cell::Text(row.call.unwrap_or("-").to_owned()),
        rate(row.waits),
        Cell::Share(slept),
        Cell::Time(row.wait_us.p50),
        Cell::Time(row.wait_us.p99),
        Cell::Time(row.delay_us.p50),
        Cell::Time(row.delay_us.p99),
        Cell::Share(Some(row.polling_share)),
        Cell::Share(Some(row.vain_share)),
        row.empty_polls.map_or(Cell::Rate(None), rate),
        row.polled_packets.map_or(Cell::Rate(None), rate),
    ];
    Row { cells, next: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_every_view_fits_a_terminal_of_80_columns_and_one_of_40() {
        for view in View::ALL {
            let columns = view.columns();
            for width in [80, 40] {
                let kept = fitting(columns, width);
                let last_is_text = kept.last().is_some_and(|at| columns[*at].left);
                let text = line(columns, &kept, |at| columns[at].title.to_owned());
                let shown = text.chars().count();
                assert!(shown <= width, "{view:?}: {shown} of {width}: {text}");
                assert!(kept.len() >= 4, "{text}");
                assert!(!last_is_text || shown + 4 <= width + 8, "{text}");
            }
            assert_eq!(fitting(columns, 500).len(), columns.len());
        }
    }

    #[test]
    fn figures_are_short_and_what_was_not_seen_is_no_zero() {
        for rate in [0.0, 0.5, 9.96, 123.4, 84_123.0, 123_456.0, 9_999_400.0, 12e6, 5e8] {
            let text = Cell::Rate(Some(rate)).text();
            assert!(text.len() <= 5, "{text}");
        }
        for us in [0.01, 9.96, 12.0, 999.4, 1000.0, 9_960.0, 50_000.0, 999_400.0, 5e6, 5e9] {
            let text = Cell::Time(Some(us)).text();
            assert!(text.len() <= 5, "{text}");
        }
        assert_eq!(Cell::Rate(Some(84_123.4)).text(), "84123");
        assert_eq!(Cell::Time(Some(12_345.0)).text(), "12ms");
        assert_eq!(Cell::Share(Some(1.25)).text(), "125");
        for cell in [Cell::Rate(None), Cell::Share(None), Cell::Time(None)] {
            assert_eq!(cell.text(), "-");
            assert_eq!(cell.compare(&Cell::Rate(Some(0.0))), Ordering::Less);
        }
    }
}
