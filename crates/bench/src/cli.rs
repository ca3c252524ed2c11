//! The options of `busypoll bench` and `busypoll serve`, and their main functions.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use busypoll_policy::fit::Width;
use busypoll_policy::say;
use clap::ValueEnum;

use crate::arm::{self, ARMS, Arm, Mode, Protocol};
use crate::chart;
use crate::cpus::Cpus;
use crate::data::{self, Report, Sweep};
use crate::error::Error;
use crate::interrupt::{self, SigintBlocked};
use crate::local::OtherEnd;
use crate::remote::{self, Remote};
use crate::run::{Bench, Settings};
use crate::schedule::Budget;
use crate::serve::Server;
use crate::sweep;
use crate::throughput::{self, Losses, Workload};
use crate::units::{self, LAB_MTU, Size, UDP_MAX};
use crate::workload::Load;
use crate::{fix, local, machine, stack, stages, summary};

/// Measure what waiting for interrupts costs, and what polling the queue saves.
///
/// Request and response between two hosts on this machine, and between two of its processes, in
/// interleaved rounds; round trips, CPU time per transaction and evidence for each way of waiting.
/// Needs root or a user namespace for the arms that use the network of the two hosts; the rest runs
/// without.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = format!("Arms:\n{}", arm::list()))]
pub struct BenchArgs {
    /// What to measure
    #[arg(long, value_enum, default_value_t)]
    pub workload: Workload,
    /// With --workload loss: packets lost each way, per cent [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = units::percent)]
    pub loss: Option<f64>,
    /// With --workload loss: the round trip [default: 20ms]
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    pub rtt: Option<Duration>,
    /// Arms to run: names or globs, comma separated
    #[arg(long, value_name = "NAMES")]
    pub arms: Option<String>,
    /// List the arms and stop
    #[arg(long, exclusive = true)]
    pub list: bool,
    /// Time for the whole run
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = units::time)]
    pub duration: Duration,
    /// Rounds; in each, every arm runs once
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Bytes of request and response [default: 1,1]
    #[arg(long, value_name = "REQ,RESP", value_parser = units::size)]
    pub size: Option<Size>,
    /// With --sweep size: the sizes [default: 1,64,256,1024,1472,4096,16384,65536]
    #[arg(long, value_name = "LIST", value_parser = units::sizes)]
    pub sizes: Option<units::Sizes>,
    /// With --workload fix: orders of each arm over all rounds, in place of --duration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub messages: Option<u64>,
    /// MTU of the lab and of the cable, 1280 to 65535 [default: 1500, and a cable's holds the message]
    #[arg(long, value_name = "BYTES", conflicts_with = "host",
          value_parser = clap::value_parser!(u16).range(1280..))]
    pub mtu: Option<u16>,
    /// CPUs of client and server [default: two that share no core]
    #[arg(long, value_name = "CLIENT,SERVER", value_parser = units::cpu_pair)]
    pub cpus: Option<(u32, u32)>,
    /// Time between requests (50us, 10ms; a bare number is microseconds) [default: flat out]
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    pub gap: Option<Duration>,
    /// SO_BUSY_POLL of the busy-poll arms [default: 50us, plus twice the largest gap, plus twice the largest rx-usecs]
    #[arg(long, value_name = "TIME", value_parser = units::micros)]
    pub busy_poll: Option<u32>,
    /// Answer a question instead: at what size, at what rate, with what coalescing, with how many open? Uses UDP, except
    /// for coalescing and open; --arms '*-tcp-*' sweeps the sizes of TCP
    #[arg(long, value_name = "QUESTION")]
    pub sweep: Option<Sweep>,
    /// Show where a UDP receive in the stack spends its time
    #[arg(long, conflicts_with_all = ["sweep", "host", "rounds"])]
    pub stages: bool,
    /// Be the other end of an arm between two processes, for the bench that has started this one
    #[arg(long, hide = true, exclusive = true)]
    pub other_end: bool,
    /// What makes this program the other end of those arms; without it they are skipped
    #[arg(skip)]
    pub restart: Option<OtherEnd>,
    /// Measure against `busypoll serve` on another machine
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub host: Option<String>,
    /// Interface for the stack's arms against another machine; the kernel's arms run with its XDP program attached
    #[arg(long, value_name = "IF", requires = "host")]
    pub dev: Option<String>,
    /// Show all columns, also where the terminal is narrower than they are
    #[arg(long)]
    pub wide: bool,
    /// Write the report as JSON; `-` is standard output, which then contains only that
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a chart, and further ones beside it [default with --sweep: busypoll-QUESTION.svg]
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// The far end of `busypoll bench --host`.
///
/// Serves one bench at a time, and only the machine that controls it, until it is stopped.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Address to listen at; UDP uses the same port, TCP data the next one
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from(([0, 0, 0, 0], remote::PORT)))]
    pub listen: SocketAddr,
    /// The CPU to serve on [default: the one that bench would choose for a server]
    #[arg(long, value_name = "N", value_parser = units::number::<u32>)]
    pub cpu: Option<u32>,
    /// Interface for the stack's arms
    #[arg(long, value_name = "IF")]
    pub dev: Option<String>,
    /// Serve one bench and stop
    #[arg(long)]
    pub once: bool,
}

/// Serves benches until stopped.
///
/// # Errors
/// A message of one line for a mistake in the options.
pub fn run_serve(args: &ServeArgs, out: &mut impl Write) -> Result<(), Error> {
    let cpu = match args.cpu {
        Some(cpu) => cpu,
        None => {
            let cpus = Cpus::choose(None)?;
            cpus.server.unwrap_or(cpus.client)
        }
    };
    let server = Server::bind(args.listen, cpu, args.dev.as_deref())?;
    writeln!(out, "serving on CPU {cpu} at {}; stop with Ctrl-C", server.address()?)?;
    loop {
        match server.serve_one() {
            Ok(peer) => writeln!(out, "{peer} has finished")?,
            // A failed bench must not keep the server from the next one.
            Err(why) => say(why),
        }
        if args.once {
            return Ok(());
        }
    }
}

/// Runs the benchmark, writes the files and prints the report to `out`.
///
/// # Errors
/// A message of one line for a mistake in the options, or when nothing could be measured.
pub fn run_bench(args: &BenchArgs, out: &mut impl Write) -> Result<(), Error> {
    if args.list {
        write!(out, "{}--workload stream, crr and loss:\n{}", arm::list(), throughput::list())?;
        return Ok(());
    }
    if args.other_end {
        return local::serve();
    }
    contradictions(args)?;
    // Before the first thread is started.
    let blocked = interrupt::block()?;
    match args.workload {
        Workload::Rr | Workload::Fix => run_round_trips(args, blocked.as_ref(), out)?,
        _ => run_throughput(args, blocked.as_ref(), out)?,
    }
    out.flush()?;
    if let Some(blocked) = blocked {
        blocked.end_if_interrupted();
    }
    Ok(())
}

/// TCP_RR and UDP_RR.
fn run_round_trips(
    args: &BenchArgs,
    interrupts: Option<&SigintBlocked>,
    out: &mut impl Write,
) -> Result<(), Error> {
    let arms = choose_arms(args)?;
    let settings = settings(args, &arms)?;
    let cpus = Cpus::choose(args.cpus)?;
    check_files(args)?;
    if let Some(host) = &args.host {
        listen(interrupts)?;
        if let Some(dev) = &args.dev {
            stack::check_device(dev)?;
        }
        let remote = Remote::connect(host)?;
        let host = args.dev.as_deref().map(|dev| stack::on_device(dev, cpus.client)).transpose()?;
        let settings = Settings { mtu: remote.mtu().unwrap_or(settings.mtu), ..settings };
        let bench = Bench::with_remote(cpus, remote, host);
        let report = match args.sweep {
            Some(sweep) => Report::Sweep(sweep::run(sweep, &bench, &arms, &settings)?),
            None => round_trips(&bench, &arms, &settings)?,
        };
        return finish(args, &report, out);
    }
    // If this fails, the lab fails for each arm with the same reason.
    let _ = busypoll_lab::enter_user_namespace();
    listen(interrupts)?;
    let bench = Bench::with_mtu(cpus, &arms, settings.mtu).with_other_end(args.restart);
    let report = if args.stages {
        Report::Stages(stages::run(&bench, &arms, &settings)?)
    } else if let Some(sweep) = args.sweep {
        Report::Sweep(sweep::run(sweep, &bench, &arms, &settings)?)
    } else {
        round_trips(&bench, &arms, &settings)?
    };
    finish(args, &report, out)
}

fn round_trips(bench: &Bench, arms: &[Arm], settings: &Settings) -> Result<Report, Error> {
    let outcome = bench.measure(arms, settings, "bench")?;
    let machine = machine::describe(bench, settings);
    Ok(Report::RoundTrips(summary::build(machine, settings, &outcome)))
}

/// Files that cannot be written are reported before the measurement.
fn check_files(args: &BenchArgs) -> Result<(), Error> {
    for file in [json_file(args).cloned(), chart_file(args)].into_iter().flatten() {
        data::check(&file)?;
    }
    Ok(())
}

/// Refuses options that have no effect together with others. Options that exclude each other whatever their values
/// are refused by clap.
fn contradictions(args: &BenchArgs) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error(why.to_owned()));
    let first = |options: &[(&'static str, bool)]| {
        options.iter().find(|(_, given)| *given).map(|(option, _)| *option)
    };
    if args.workload != Workload::Loss
        && let Some(option) =
            first(&[("--loss", args.loss.is_some()), ("--rtt", args.rtt.is_some())])
    {
        return refuse(&format!(
            "{option}: only --workload loss has a line that loses and delays; add it"
        ));
    }
    if args.workload != Workload::Rr
        && let Some(option) = first(&[
            ("--sweep", args.sweep.is_some()),
            ("--stages", args.stages),
            ("--host", args.host.is_some()),
            ("--gap", args.gap.is_some() && args.workload != Workload::Fix),
            ("--size", args.size.is_some()),
        ])
    {
        let word = args.workload.word();
        return refuse(&format!(
            "{option}: --workload {word} does not have it, only round trips (--workload rr) do; leave out {option}, or \
             --workload {word}",
        ));
    }
    if args.workload == Workload::Loss && args.mtu.is_some() {
        return refuse("--mtu: --workload loss has packets of 1500 bytes; leave it out");
    }
    if args.workload != Workload::Fix && args.messages.is_some() {
        return refuse(
            "--messages: only --workload fix counts messages; add it, or give --duration",
        );
    }
    if args.sweep != Some(Sweep::Size) && args.sizes.is_some() {
        return refuse(
            "--sizes: only --sweep size has several sizes; add it, or give --size REQ,RESP",
        );
    }
    if let (Some(_), Some(sweep @ (Sweep::Coalesce | Sweep::Open))) = (&args.host, args.sweep) {
        return refuse(&format!(
            "--sweep {}: not against another machine, whose hosts are not the benchmark's to set up; --sweep size and \
             rate are",
            sweep.word()
        ));
    }
    if args.host.is_some() && args.cpus.is_some() {
        return refuse(
            "--cpus: the server's CPU is not this machine's with --host; name it there (`busypoll serve \
             --cpu N`) and bind the client with `taskset -c N`",
        );
    }
    match args.sweep {
        Some(Sweep::Size) if args.size.is_some() => {
            refuse("--size: --sweep size sets the sizes itself; leave it out")
        }
        Some(Sweep::Rate) if args.gap.is_some() => {
            refuse("--gap: --sweep rate sets the time between requests itself; leave it out")
        }
        Some(Sweep::Rate)
            if args.size.is_some_and(|s| s.request.min(s.response) < sweep::RATE_BYTES) =>
        {
            refuse(&format!(
                "--size: --sweep rate numbers its messages, which takes {} bytes; give at least \
                 {0},{0}",
                sweep::RATE_BYTES
            ))
        }
        _ => Ok(()),
    }
}

/// TCP_STREAM or TCP_CRR.
fn run_throughput(
    args: &BenchArgs,
    interrupts: Option<&SigintBlocked>,
    out: &mut impl Write,
) -> Result<(), Error> {
    let lines = throughput::select(args.workload, args.arms.as_deref())
        .map_err(|e| no_such_arm(args, e))?;
    let settings = settings(args, &lines.iter().map(|line| line.arm).collect::<Vec<_>>())?;
    let cpus = Cpus::choose(args.cpus)?;
    check_files(args)?;
    // If this fails, the lab fails for each arm with the same reason.
    let _ = busypoll_lab::enter_user_namespace();
    listen(interrupts)?;
    let (loss, rtt) = (args.loss.unwrap_or(1.0), args.rtt.unwrap_or(Duration::from_millis(20)));
    let losses = Losses { loss: loss / 100.0, rtt };
    let outcome = throughput::measure(
        &lines,
        cpus,
        (settings.busy_poll, losses),
        (settings.duration, settings.rounds),
        settings.mtu,
    )?;
    let machine = machine::describe(&Bench::new(cpus, &[]), &settings);
    let report = throughput::build(machine, args.workload, &outcome);
    finish(args, &Report::Throughput(report), out)
}

/// The chart's file; a sweep always has one.
fn chart_file(args: &BenchArgs) -> Option<PathBuf> {
    let default = |sweep: Sweep| PathBuf::from(format!("busypoll-{}.svg", sweep.word()));
    args.svg.clone().or_else(|| args.sweep.map(default))
}

/// The file for the report as JSON, unless that is standard output.
fn json_file(args: &BenchArgs) -> Option<&PathBuf> {
    args.json.as_ref().filter(|path| !is_standard_output(path))
}

fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Writes the report as JSON, and the charts, if requested; and the text to `out`, unless the JSON goes there. What can
/// be written is, before an error ends it.
fn finish(args: &BenchArgs, report: &Report, out: &mut impl Write) -> Result<(), Error> {
    let to_stdout = args.json.as_deref().is_some_and(is_standard_output);
    let json = json_file(args).map_or(Ok(()), |path| data::write(path, report));
    let charts =
        chart_file(args).map_or(Ok(String::new()), |path| chart::write(&path, &chart::of(report)));
    if to_stdout {
        out.write_all(data::text(report)?.as_bytes())?;
    } else {
        let width = Width::of_stdout(args.wide);
        let files = charts.as_deref().unwrap_or_default();
        write!(out, "{}", width.wrap(report.render(width) + files))?;
    }
    json?;
    charts?;
    Ok(())
}

/// If SIGINT is blocked, makes Ctrl-C end the measurement but not the report.
fn listen(interrupts: Option<&SigintBlocked>) -> Result<(), Error> {
    Ok(interrupts.map_or(Ok(()), SigintBlocked::listen)?)
}

fn choose_arms(args: &BenchArgs) -> Result<Vec<Arm>, Error> {
    let known = match &args.host {
        Some(_) => arm::between_machines(),
        None if args.workload == Workload::Fix => fix::arms(),
        None => ARMS.to_vec(),
    };
    let arms = match &args.arms {
        Some(patterns) => arm::select(patterns, &known).map_err(|e| no_such_arm(args, e))?,
        None if args.stages => known.into_iter().filter(stages::is_staged).collect(),
        None => args.sweep.map_or(known.clone(), |sweep| sweep.default_arms(&known)),
    };
    let size = size(args);
    let largest = size.request.max(size.response);
    if largest > UDP_MAX && arms.iter().any(|a| a.protocol == Protocol::Udp) {
        return Err(Error(format!(
            "--size: {largest} bytes do not fit in a UDP datagram (at most {UDP_MAX}); choose smaller \
             messages, or TCP alone with --arms '*-tcp-*'"
        )));
    }
    Ok(arms)
}

/// `why` no arm has that name, or the workload that has one.
fn no_such_arm(args: &BenchArgs, why: String) -> String {
    let has = |workload: Workload, pattern: &str| match workload {
        Workload::Rr => arm::select(pattern, ARMS).is_ok(),
        Workload::Fix => arm::select(pattern, &fix::arms()).is_ok(),
        _ => throughput::select(workload, Some(pattern)).is_ok(),
    };
    let unknown = args.arms.iter().flat_map(|p| p.split(',')).find(|p| !has(args.workload, p));
    let workloads = Workload::value_variants().iter();
    match unknown.and_then(|p| Some((p.trim(), workloads.copied().find(|w| has(*w, p))?))) {
        Some((pattern, workload)) => {
            format!("--arms: '{pattern}' is of --workload {}; give that, too", workload.word())
        }
        None => format!("--arms: {why}"),
    }
}

fn size(args: &BenchArgs) -> Size {
    args.size.unwrap_or(Settings::default().size)
}

fn settings(args: &BenchArgs, arms: &[Arm]) -> Result<Settings, Error> {
    let gap = args.gap.unwrap_or(Duration::ZERO);
    // A receiver that polls through the gap needs more time than the gap, because a peer that sleeps through it wakes
    // late. The same holds if the peer sleeps until a late interrupt: otherwise the two make each other sleep for
    // ever.
    let (gaps, late) = match args.sweep {
        Some(Sweep::Rate) => (sweep::longest_gap(), 0),
        Some(Sweep::Coalesce) => (gap, data::RX_USECS),
        _ => (gap, 0),
    };
    let busy_poll = match args.busy_poll {
        Some(micros) => Duration::from_micros(micros.into()),
        None => Settings::default().busy_poll + (gaps + Duration::from_micros(late.into())) * 2,
    };
    let rounds = if args.stages { 1 } else { usize::from(args.rounds) };
    let settings = Settings {
        size: size(args),
        load: Load::Closed { gap },
        fix: args.workload == Workload::Fix,
        messages: args.messages,
        sizes: args.sizes.unwrap_or(units::SIZES),
        busy_poll,
        rounds,
        duration: args.duration,
        mtu: args.mtu.map_or(LAB_MTU, usize::from),
        ..Settings::default()
    };
    let points = args.sweep.map_or(1, |sweep| sweep.steps(&settings).len());
    let has_a_place = |arm: &&Arm| args.sweep.is_none_or(|sweep| sweep.refuses(arm).is_none());
    let arms: Vec<&Arm> = arms.iter().filter(has_a_place).collect();
    if args.busy_poll.is_some() && arms.iter().all(|arm| arm.mode != Mode::BusyPoll) {
        return Err(Error("--busy-poll: none of these arms busy polls; leave it out".to_owned()));
    }
    let budget = Budget::of_each(args.duration, points, arms.len(), rounds)?;
    if gap * 3 > budget.measure && args.messages.is_none() {
        return Err(Error(format!(
            "--gap {} leaves fewer than three requests in a round of {}; give a longer --duration or \
             fewer --arms",
            units::show(gap),
            units::show(budget.measure)
        )));
    }
    Ok(settings)
}
