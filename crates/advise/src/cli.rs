//! The options of `busypoll advise`, and its main function.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_doctor::{Finding, Scope, Subject, Verdict, diagnose};
use busypoll_linux::bpf::waits::WaitCall;
use busypoll_policy::units;

use crate::advice::{Advice, Budget};
use crate::answering::{Shape, serve};
use crate::calibrate::{self, Like};
use crate::model::Costs;
use crate::watch::{self, Seen};
use crate::{Error, doubt, show};

/// Say what busy polling would buy a program: watch its waits, measure this machine, predict each setting.
///
/// The program is watched as it is and not changed. Then round trips with a server that waits and works like it are
/// measured in a lab, asleep, polling and on the stack plane. From both follow the delay of a packet, the length of a
/// round (a wait and the work before it) and CPU time, off, with 50 us, 200 us and without a limit, on both planes; and
/// the policy file of the best setting that keeps the budget. What cannot be known is said. Needs root.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll advise 1234                        a program that runs
  busypoll advise --cpu 20% 1234              the best that takes no more than a fifth of a CPU
  busypoll advise --p99 50us --time 30s 1234
  busypoll advise -- ./feed-handler           started for it, and ended by SIGTERM after it")]
#[group(id = "what", required = true, args = ["pid", "program", "answer"])]
pub struct AdviseArgs {
    /// The process; those it has started are watched with it
    #[arg(value_name = "PID", value_parser = units::pid)]
    pub pid: Option<u32>,
    /// How long to watch
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = watch_time)]
    pub time: Duration,
    /// The most CPU time the program may take, of one CPU
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub cpu: Option<f64>,
    /// The longest that 99 in 100 packets may take from their arrival to the program
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    pub p99: Option<Duration>,
    /// Print the advice as JSON
    #[arg(long)]
    pub json: bool,
    /// Be the server that is measured
    #[arg(long, value_name = "SHAPE", hide = true)]
    pub answer: Option<Shape>,
    /// A program to start, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

fn watch_time(text: &str) -> Result<Duration, String> {
    let time = units::time(text)?;
    if time < Duration::from_millis(500) {
        return Err(format!("'{text}' is too short to see waits in; give at least 500ms"));
    }
    Ok(time)
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').parse::<f64>().ok();
    let number = number.filter(|number| number.is_finite() && *number > 0.0);
    number
        .map(|number| number / 100.0)
        .ok_or_else(|| format!("'{text}' is no percentage; write for example 20%"))
}

/// Watches, measures, and prints the advice on `out`.
///
/// # Errors
/// A message of one line: no such process, no right to watch it, no lab.
pub fn run_advise(args: &AdviseArgs, out: &mut impl Write) -> Result<(), Error> {
    if let Some(shape) = args.answer {
        return serve(shape).map_err(|error| Error::Io("answering", error));
    }
    busypoll_linux::bpf::available()?;
    let seen = match args.pid {
        Some(pid) => watch::watch(pid, args.time)?,
        None => {
            let started = Started::start(&args.program)?;
            watch::watch(started.0.id(), args.time)?
        }
    };
    let budget = Budget { cpu: args.cpu, p99_us: args.p99.map(|time| time.as_secs_f64() * 1e6) };
    let mut more = impossible(&seen);
    let recording = &seen.recording;
    let measured = match recording.main_call() {
        None => None,
        Some(call) => Some(calibrate::measure(&Like {
            udp: seen.udp,
            call: if call == WaitCall::Uring { WaitCall::Receive } else { call },
            work: recording.median(|round| round.work),
            arrival: recording.median(|round| round.arrival),
            cpus: seen.pinned.clone(),
        })?),
    };
    let costs = measured.as_ref().map_or(Costs::default(), |measured| measured.costs);
    more.extend(measured.as_ref().and_then(|measured| doubt::of_measurement(measured.turns)));
    let advice = Advice::of(recording, &costs, &seen.cpus, more, budget);
    let written = match args.json {
        true => show::json(out, &seen, measured.as_ref(), &advice),
        false => show::text(out, &seen, measured.as_ref(), &advice, budget),
    };
    written.and_then(|()| out.flush()).map_err(|error| Error::Io("writing", error))
}

/// What doctor says cannot be polled, if that is all that the program has.
fn impossible(seen: &Seen) -> Vec<String> {
    if seen.ended {
        return vec!["it ended while it was watched".to_owned()];
    }
    let scope = Scope { pids: vec![seen.pid], ..Scope::default() };
    let Ok(report) = diagnose(&scope) else { return Vec::new() };
    let findings = report.findings();
    // A listener, and a socket that was idle, say nothing.
    let sockets = findings.into_iter().filter(|it| {
        matches!(it.subject, Subject::Descriptor { .. }) && it.verdict() < Verdict::Fine
    });
    let (cannot, can): (Vec<&Finding>, Vec<&Finding>) =
        sockets.partition(|finding| finding.verdict() == Verdict::Impossible);
    match cannot.first() {
        Some(first) if can.is_empty() => {
            vec![format!("none of its sockets can be polled: {}: {}", first.rule.code, first.what)]
        }
        _ => Vec::new(),
    }
}

/// A program that was started to be watched; ended by SIGTERM.
struct Started(Child);

/// How long a program may take to end.
const GRACE: Duration = Duration::from_secs(5);

impl Started {
    fn start(words: &[OsString]) -> Result<Self, Error> {
        let [program, arguments @ ..] = words else {
            return Err(Error::Usage("name a process or a program".into()));
        };
        let started = Command::new(program).args(arguments).spawn();
        match started {
            Ok(child) => Ok(Started(child)),
            Err(error) => {
                Err(Error::Usage(format!("starting {}: {error}", program.to_string_lossy())))
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: a plain call for a child that has not been waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let begun = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if begun.elapsed() > GRACE {
                let _ = self.0.kill();
                let _ = self.0.wait();
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
