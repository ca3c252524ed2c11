//! The view as lines of a terminal: the machine, the rows, what to do next, the keys.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use crate::figures::{Figures, MachineRow};
use crate::table::{self, Cell};
use crate::view::State;

/// Lines above and below the rows: the machine, packets, views, titles; next, keys.
const ABOVE: u16 = 4;
const BELOW: u16 = 2;

const HELP: &str = "q quit  1-3 view  s sort  r reverse  / filter  p pause  up/down  ? columns";

/// The columns in words, for `?`.
const COLUMNS: &[&str] = &[
    "P        plane: K the kernel's, S the stack plane",
    "PKT/s    packets; of a thread, those that its own polls found",
    "POLL%    of the packets: found by busy polls; of a thread: CPU time spent polling",
    "SIRQ%    found by softirqs; stack plane: by the interrupt thread and leaders",
    "THRD%    found by the kernel thread of the NAPI instance",
    "LINK%    over links to other processes of this machine",
    "EMPTY/s  busy polls that found nothing",
    "AVOID/s  interrupts that busy polls made unnecessary, at most",
    "CPU%     of one CPU; VAIN%: polling in waits that polling brought nothing for",
    "P50 P99  how long waits took that brought something",
    "LATE     from the wake-up, or the poll that found the packet, to the return",
    "NEXT     the worst finding of busypoll doctor",
    "-        not seen: the second line says why",
];

/// How many rows fit in so many lines.
pub(crate) fn page(lines: u16) -> usize {
    usize::from(lines.saturating_sub(ABOVE + BELOW)).max(1)
}

/// Draws the view into `buffer`. Without figures it says that they are being counted.
pub(crate) fn draw(buffer: &mut Buffer, state: &State, figures: Option<&Figures>) {
    let area = buffer.area;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let width = usize::from(area.width);
    let mut put = |y: u16, text: &str, style: Style| {
        if y < area.height {
            buffer.set_stringn(area.x, area.y + y, text, width, style);
            if style == reversed {
                let line = Rect { x: area.x, y: area.y + y, width: area.width, height: 1 };
                buffer.set_style(line, style);
            }
        }
    };
    let last = area.height.saturating_sub(1);
    put(last, &bottom(state), reversed);
    let Some(figures) = figures else {
        put(0, "counting...", bold);
        return;
    };
    put(0, &top(figures), bold);
    put(1, &second(figures), Style::new());
    put(2, &views(state), Style::new());
    if state.help {
        for (y, text) in (ABOVE..last).zip(COLUMNS) {
            put(y, text, Style::new());
        }
        return;
    }
    let columns = state.view.columns();
    let kept = table::fitting(columns, width);
    let title = |at: usize| {
        let title = columns[at].title;
        if at == state.order() { mark(title, state.is_reversed()) } else { title.to_owned() }
    };
    put(3, &table::line(columns, &kept, title), reversed);
    let rows = state.view.sorted(figures, &state.filter, state.order(), state.is_reversed());
    let page = page(area.height);
    let selected = state.selected.min(rows.len().saturating_sub(1));
    let first = (selected + 1).saturating_sub(page);
    for (y, (nth, row)) in (ABOVE..last).zip(rows.iter().enumerate().skip(first).take(page)) {
        let text = table::line(columns, &kept, |at| row.cells[at].text());
        put(y, &text, if nth == selected { bold } else { Style::new() });
    }
    if rows.is_empty() {
        let why = if state.filter.is_empty() { "no packet, no wait" } else { "no row matches" };
        put(ABOVE, why, Style::new());
    }
    let next = rows.get(selected).and_then(|row| row.next).or(figures.machine.next.as_ref());
    if let (Some(next), true) = (next, last > ABOVE) {
        let code = next.code;
        put(last - 1, &format!("{code}: {}  ->  {}", next.what, next.command), Style::new());
    }
}

/// The title of the column that sorts.
fn mark(title: &str, reversed: bool) -> String {
    let end = title.trim_end_matches(['%', 's']).trim_end_matches('/');
    format!("{end}{}", if reversed { '^' } else { 'v' })
}

/// Hours, minutes and seconds, UTC.
pub(crate) fn clock(figures: &Figures) -> String {
    let since = figures.time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let of_day = since.as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

fn top(figures: &Figures) -> String {
    let MachineRow { cpus, busy_share, softirq_share, spinning, refused, harm, .. } =
        figures.machine;
    let percent = |share: f64| Cell::Share(Some(share)).text();
    let mut text = format!(
        "{} UTC  {cpus} CPUs: {spinning} polled, {}% busy, {}% softirq",
        clock(figures),
        percent(busy_share),
        percent(softirq_share),
    );
    if refused > 0 {
        text += &format!(", {refused} waits found their CPU polled");
    }
    if harm > 0 {
        text += &format!(", {harm} times polling slowed a run");
    }
    text
}

fn second(figures: &Figures) -> String {
    if let Some(first) = figures.not_seen.first() {
        let more = figures.not_seen.len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        return format!("not seen: {}{more}: {}", first.what, first.why);
    }
    let seconds = figures.seconds;
    let rate = |count: u64| Cell::Rate(Some(count as f64 / seconds)).text();
    let (mut all, mut polled, mut softirq, mut avoided) = (0, 0, 0, 0);
    for row in &figures.napis {
        let packets = row.packets.unwrap_or_default();
        all += packets.all;
        polled += packets.busy_poll;
        softirq += packets.interrupt;
        avoided += row.avoided.unwrap_or(0);
    }
    let share = |part: u64| 100 * part / all.max(1);
    let net_rx = figures.machine.net_rx_softirqs.map_or("-".into(), rate);
    format!(
        "{} packets/s: {}% busy poll, {}% softirq; {net_rx} NET_RX/s, {} interrupts/s avoided",
        rate(all),
        share(polled),
        share(softirq),
        rate(avoided)
    )
}

fn views(state: &State) -> String {
    let name = |(nth, view): (usize, &table::View)| {
        let (open, close) = if *view == state.view { ('[', ']') } else { (' ', ' ') };
        format!("{open}{} {}{close}", nth + 1, view.title())
    };
    let mut text: String = table::View::ALL.iter().enumerate().map(name).collect();
    if state.paused {
        text += "  PAUSED";
    }
    if !state.filter.is_empty() && !state.editing {
        text += &format!("  only \"{}\" (Esc: all)", state.filter);
    }
    text
}

fn bottom(state: &State) -> String {
    match state.editing {
        true => format!("only rows with: {}_   Enter: keep  Esc: all rows", state.filter),
        false => HELP.to_owned(),
    }
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
