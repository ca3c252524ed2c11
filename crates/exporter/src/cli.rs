//! The options of `busypoll exporter`, and its main function.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use busypoll_observe::findings::Findings;
use busypoll_observe::passes::{By, PassCount};
use busypoll_observe::runs::Guards;
use busypoll_policy::{say, units};

use crate::collector::Collector;
use crate::{Error, server, textfile};

/// Show what busy polling does on this machine as metrics for Prometheus.
///
/// Changes nothing. Works for every user; what this user may not read is missing, and busypoll_exporter_source_up says
/// so. Metrics name programs by name, user and PID; no command lines and no addresses.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll exporter --listen 127.0.0.1:9753
  busypoll exporter --textfile /var/lib/prometheus/node-exporter/busypoll.prom --interval 30s")]
#[group(id = "where", required = true, args = ["listen", "textfile"])]
pub struct ExporterArgs {
    /// Serve /metrics at this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// Write the metrics to this file, for node_exporter's textfile collector, and stop
    #[arg(long, value_name = "FILE")]
    pub textfile: Option<PathBuf>,
    /// Do not stop, but write the file again after this time
    #[arg(long, value_name = "TIME", value_parser = interval, conflicts_with = "listen")]
    pub interval: Option<Duration>,
    /// The most samples of a page; what is left out is counted
    #[arg(long, value_name = "N", default_value = "10000", value_parser = units::number::<u32>)]
    pub max_series: u32,
    /// How often doctor's checks are made
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = interval)]
    pub doctor: Duration,
    /// Let doctor check every process, too
    #[arg(long)]
    pub processes: bool,
    /// Do not count NAPI passes by BPF, which makes each pass some hundred nanoseconds longer
    #[arg(long)]
    pub no_bpf: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::time(text)?;
    if time < Duration::from_secs(1) {
        return Err(format!("'{text}' is too short; give at least 1s"));
    }
    Ok(time)
}

/// Serves or writes metrics. Returns if one file was written, else never.
///
/// # Errors
/// A message of one line if the address or the file cannot be used.
pub fn run_exporter(args: &ExporterArgs) -> Result<(), Error> {
    let listener = args.listen.map(|address| (address, server::listen(address)));
    let once = listener.is_none() && args.interval.is_none();
    let mut collector = Collector {
        // A count needs a time to count in.
        passes: match args.no_bpf || once {
            true => PassCount::off(if once { "a single page counts nothing" } else { "--no-bpf" }),
            false => PassCount::start(By::Queue),
        },
        findings: match once {
            true => Findings::once(args.processes),
            false => Findings::every(args.doctor, args.processes),
        },
        guards: Guards::default(),
        max_series: args.max_series as usize,
        left_out: 0,
        // What the user does not want is no news, nor that the first check takes a moment.
        reported: if args.no_bpf || once { vec!["bpf", "doctor"] } else { vec!["doctor"] },
    };
    if let Some((address, listener)) = listener {
        let failed = |error| Error::Io(format!("listening at {address}"), error);
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        say(format_args!("metrics at http://{address}/metrics"));
        return Err(failed(server::serve(&listener, || collector.page())));
    }
    let Some(path) = &args.textfile else {
        return Err(Error::Option("name an address (--listen) or a file (--textfile)".into()));
    };
    loop {
        let written = textfile::write(path, &collector.page());
        let written = written.map_err(|error| Error::Io(path.display().to_string(), error));
        match args.interval {
            None => return written,
            // A full disk may have room later.
            Some(interval) => {
                if let Err(error) = written {
                    say(error);
                }
                thread::sleep(interval);
            }
        }
    }
}
