//! What the costs measured here mean elsewhere, on paper: `busypoll model`. Each input stands in a file with its source.

pub mod latency;
pub mod scale;
mod text;

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use busypoll_policy::fit::Width;
use clap::ValueEnum;
use serde::de::DeserializeOwned;

use crate::data::{self, Report};
use crate::error::Error;

/// What the costs measured here mean on other hardware: a model of each, with its inputs and their sources.
///
/// `latency` takes a round trip apart (wire, PCI Express, software, coalescing, idle states, wake-up), reproduces the
/// table that came with the first busy polling patches, and predicts today's hardware. `scale` says what more cores and
/// faster links give on each plane, which limit is met first, and what a fleet pays for its p99. Nothing is measured.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll model latency
  busypoll model scale --cores 8 --hosts 500
  busypoll bench --json run.json && busypoll model scale --run run.json")]
pub struct ModelArgs {
    /// The model
    #[arg(value_enum)]
    pub model: Model,
    /// Compute with these inputs instead
    #[arg(long, value_name = "FILE.toml")]
    pub inputs: Option<PathBuf>,
    /// Print the inputs, each with its source, and stop
    #[arg(long, conflicts_with = "inputs")]
    pub print_inputs: bool,
    /// With scale: the costs of a run of this machine, as `busypoll bench --json` wrote it
    #[arg(long, value_name = "RUN.json")]
    pub run: Option<PathBuf>,
    /// With scale: CPU cores of a host [default: 1,16,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub cores: Vec<u32>,
    /// With scale: hosts of the fleet [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub hosts: Option<u32>,
    /// With scale: threads of a host that wait at a time [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Show all columns, also where the terminal is narrower than they are
    #[arg(long)]
    pub wide: bool,
}

/// The models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// A round trip, by its parts
    Latency,
    /// Cores, links and fleets
    Scale,
}

/// Computes and prints.
///
/// # Errors
/// A message of one line for a mistake in the options or in a file.
pub fn run_model(args: &ModelArgs, out: &mut impl Write) -> Result<(), Error> {
    let only_scale = [
        ("--run", args.run.is_some()),
        ("--cores", !args.cores.is_empty()),
        ("--hosts", args.hosts.is_some()),
        ("--threads", args.threads.is_some()),
    ];
    if args.model == Model::Latency
        && let Some((option, _)) = only_scale.iter().find(|(_, given)| *given)
    {
        return Err(Error(format!("{option}: only `busypoll model scale` has it; leave it out")));
    }
    let built_in = match args.model {
        Model::Latency => latency::INPUTS,
        Model::Scale => scale::INPUTS,
    };
    if args.print_inputs {
        return Ok(out.write_all(built_in.as_bytes())?);
    }
    let text = args.inputs.as_deref().map(read).transpose()?;
    let text = text.as_deref().unwrap_or(built_in);
    let named = |why: String| match &args.inputs {
        Some(path) => format!("{}: {why}", path.display()),
        None => why,
    };
    let width = Width::of_stdout(args.wide);
    let report = match args.model {
        Model::Latency => {
            let inputs = latency::Inputs::parse(text).map_err(named)?;
            text::latency(&inputs, &latency::compute(&inputs)?, width)
        }
        Model::Scale => {
            let inputs = scale::Inputs::parse(text).map_err(named)?;
            let inputs = match &args.run {
                Some(path) => of_run(inputs, path)?,
                None => inputs,
            };
            let cores: &[u32] = if args.cores.is_empty() { &[1, 16, 64] } else { &args.cores };
            let fleet = (args.hosts.unwrap_or(10_000), args.threads.unwrap_or(1));
            text::scale(&inputs, cores, fleet, width)
        }
    };
    Ok(out.write_all(width.wrap(report).as_bytes())?)
}

fn of_run(inputs: scale::Inputs, path: &Path) -> Result<scale::Inputs, String> {
    match data::read(path)? {
        Report::RoundTrips(run) => {
            inputs.of_run(&run).map_err(|why| format!("--run {}: {why}", path.display()))
        }
        _ => Err(format!(
            "--run {}: not of round trips: `busypoll bench --json FILE`, without --sweep or --workload",
            path.display()
        )),
    }
}

/// More than any file of inputs has.
const LARGEST: u64 = 1 << 20;

fn read(path: &Path) -> Result<String, String> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(wrong("larger than any file of inputs".to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| wrong("not text; see --print-inputs".to_owned()))
}

/// Inputs from their text; a mistake is one line with its number.
fn toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        format!("line {line}: {}", e.message().replace('\n', " "))
    })
}
