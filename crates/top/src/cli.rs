//! The options of `busypoll top`, and its main function.

use std::io::Write;
use std::time::Duration;

use busypoll_policy::units;
use ratatui_core::terminal::Terminal;

use crate::figures::Figures;
use crate::sample::{Collector, Sample};
use crate::screen::{Ansi, Input, Shown, Signals};
use crate::table::View;
use crate::view::{State, Wish};
use crate::{Error, batch, draw};

/// Show live how packets are found, on both planes: by receive queue, by process, by thread.
///
/// Packets a second by what found them, polls that found nothing, CPU time spent polling in vain, interrupts avoided,
/// how long waits take, which CPUs are polled; and the worst finding of doctor for each. Changes nothing. As root it sees
/// all; what this user may not see is named, never shown as 0.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll top                          the processes that packets are for
  busypoll top --view napi              receive queues
  busypoll top --batch 5 --interval 2s  five tables, two seconds apart, for a log
  busypoll top --batch --json           a line of JSON every second, until Ctrl-C

Keys: 1-3 view, s sort, r reverse, / filter, p pause, up and down, ? columns, q quit.")]
pub struct TopArgs {
    /// Print text, for a log, so many times; without a number until Ctrl-C
    #[arg(long, value_name = "N", num_args = 0..=1, value_parser = units::number::<u32>)]
    pub batch: Option<Option<u32>>,
    /// With --batch: JSON, one line each time, with the rows of all views
    #[arg(long, requires = "batch", conflicts_with_all = ["view", "sort", "filter"])]
    pub json: bool,
    /// The time that is counted in
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// The rows
    #[arg(long, value_name = "VIEW", default_value = "process")]
    pub view: View,
    /// Sort by this column
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
    /// Only rows that contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    /// Do not count by BPF, which makes each pass over a queue and each system call some tens of nanoseconds longer
    #[arg(long)]
    pub no_bpf: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::time(text)?;
    if time < Duration::from_millis(100) {
        return Err(format!("'{text}' is too short to count in; give at least 100ms"));
    }
    Ok(time)
}

/// Shows the view until the user ends it; with `--batch` prints on `out`.
///
/// # Errors
/// A message of one line: no terminal, no such column, an output that fails.
pub fn run_top(args: &TopArgs, out: &mut impl Write) -> Result<(), Error> {
    let mut state = State::new(args.view, args.filter.clone());
    if let Some(column) = &args.sort
        && !state.order_by(column)
    {
        let titles: Vec<&str> = args.view.columns().iter().map(|column| column.title).collect();
        return Err(Error::NoColumn(column.clone(), titles.join(", ")));
    }
    let signals = Signals::block()?;
    match args.batch {
        Some(times) => log(args, times, &state, &signals, out),
        None => {
            let shown = Shown::begin()?;
            show(args, state, &signals, &shown)
        }
    }
}

fn log(
    args: &TopArgs,
    times: Option<u32>,
    state: &State,
    signals: &Signals,
    out: &mut impl Write,
) -> Result<(), Error> {
    let failed = |error| Error::Io("writing", error);
    let mut collector = Collector::start(!args.no_bpf);
    let mut before = collector.sample();
    for round in 0u32.. {
        if times.is_some_and(|times| round >= times) {
            break;
        }
        loop {
            match signals.wait(before.at + args.interval, false)? {
                Input::Time => break,
                Input::End | Input::Suspend => return Ok(()),
                Input::Keys(_) | Input::Redraw => {}
            }
        }
        let now = collector.sample();
        let figures = Figures::between(&before, &now);
        collector.check(figures.busiest());
        let written = match args.json {
            true => batch::json(out, &figures),
            false => batch::text(out, state, &figures),
        };
        written.and_then(|()| out.flush()).map_err(failed)?;
        before = now;
    }
    Ok(())
}

fn show(args: &TopArgs, mut state: State, signals: &Signals, shown: &Shown) -> Result<(), Error> {
    let failed = |error| Error::Io("the terminal", error);
    let mut terminal = Terminal::new(Ansi::new()).map_err(failed)?;
    let mut figures: Option<Figures> = None;
    draw_on(&mut terminal, &state, figures.as_ref())?;
    let mut collector = Collector::start(!args.no_bpf);
    let mut before: Sample = collector.sample();
    loop {
        match signals.wait(before.at + args.interval, true)? {
            Input::End => return Ok(()),
            Input::Suspend => {
                shown.suspend()?;
                terminal.clear().map_err(failed)?;
            }
            Input::Redraw => {
                shown.again()?;
                terminal.clear().map_err(failed)?;
            }
            Input::Keys(keys) => {
                for key in keys {
                    let rows = figures.as_ref().map_or(0, |figures| {
                        let (order, reversed) = (state.order(), state.is_reversed());
                        state.view.sorted(figures, &state.filter, order, reversed).len()
                    });
                    let page = draw::page(terminal.size().map_err(failed)?.height);
                    match state.press(key, rows, page) {
                        Wish::Nothing => {}
                        Wish::Quit => return Ok(()),
                        Wish::Suspend => {
                            shown.suspend()?;
                            terminal.clear().map_err(failed)?;
                        }
                        Wish::Redraw => terminal.clear().map_err(failed)?,
                    }
                }
            }
            Input::Time => {
                let now = collector.sample();
                let new = Figures::between(&before, &now);
                collector.check(new.busiest());
                if !state.paused {
                    figures = Some(new);
                }
                before = now;
            }
        }
        draw_on(&mut terminal, &state, figures.as_ref())?;
    }
}

fn draw_on(
    terminal: &mut Terminal<Ansi>,
    state: &State,
    figures: Option<&Figures>,
) -> Result<(), Error> {
    let drawn = terminal.draw(|frame| draw::draw(frame.buffer_mut(), state, figures));
    // A terminal that has gone is noticed where keys are awaited.
    drawn.map(drop).map_err(|error| Error::Io("the terminal", error))
}
