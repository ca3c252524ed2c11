//! The options of `busypoll doctor`, and its main function.

use std::io::{self, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use busypoll_policy::{terminal, units};

use crate::report::Style;
use crate::{Error, Scope, diagnose, rules};

/// Check whether busy polling can work here, whether it does, and how to fix what is wrong.
///
/// Changes nothing. Exit code 0: working or fine; 1: there are findings; 2: could not check.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll doctor                     this machine and every device that is up
  busypoll doctor --pid 1234          a process: its sockets, how they wait, what is wrong
  busypoll doctor --pid 1234 --prove 2s   and whether its packets are found by busy polling
  busypoll doctor eth0 --json         one device, for a program
  busypoll doctor --peer 10.0.0.2     the route to a peer and the device it uses")]
pub struct DoctorArgs {
    /// Devices to check [default: all that are up, except loopback]
    #[arg(value_name = "IF")]
    pub devices: Vec<String>,
    /// The route to this address, or to the first address of this name, and the device it uses
    #[arg(long, value_name = "HOST", value_parser = peer)]
    pub peer: Option<IpAddr>,
    /// These processes: each socket and epoll instance, and what keeps it from busy polling
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = units::pid)]
    pub pid: Vec<u32>,
    /// Count for this long (2s, 500ms) how packets are really found
    #[arg(long, value_name = "TIME", value_parser = prove_time)]
    pub prove: Option<Duration>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// List every code with its meaning and source, and stop
    #[arg(long, exclusive = true)]
    pub list: bool,
}

/// An address; for a name, the address that a program would try first (getaddrinfo(3)).
fn peer(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let found = (text, 0).to_socket_addrs().map_err(|e| format!("no address of '{text}': {e}"))?;
    let found = found.map(|address| address.ip()).next();
    found.ok_or_else(|| format!("no address of '{text}'"))
}

fn prove_time(text: &str) -> Result<Duration, String> {
    let time = units::time(text)?;
    if time < Duration::from_millis(10) {
        return Err(format!("'{text}' is too short to count packets in; give at least 10ms"));
    }
    Ok(time)
}

/// Runs the checks and prints the report to `out`.
///
/// # Errors
/// A message of one line if the question cannot be answered: exit code 2.
pub fn run_doctor(args: &DoctorArgs, out: &mut impl Write) -> Result<ExitCode, Error> {
    if args.list {
        let mut text = Vec::new();
        list(&mut text)?;
        write!(out, "{}", fitted(&text))?;
        return Ok(ExitCode::SUCCESS);
    }
    let scope = Scope {
        devices: args.devices.clone(),
        peer: args.peer,
        pids: args.pid.clone(),
        prove: args.prove,
    };
    let report = diagnose(&scope)?;
    match args.json {
        true => report.write_json(&mut *out)?,
        false => {
            let mut text = Vec::new();
            report.write_text(&mut text, Style::of_stdout())?;
            write!(out, "{}", fitted(&text))?;
        }
    }
    out.flush()?;
    Ok(report.exit_code())
}

/// The text with the terminal's lines. A command stays in one line, to be copied.
fn fitted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let Some(columns) = terminal::columns() else { return text.into_owned() };
    let lines = text.split_inclusive('\n');
    let wrapped = lines.map(|line| match line.starts_with("    remedy") {
        true => line.to_owned(),
        false => terminal::wrap(line, columns),
    });
    wrapped.collect()
}

fn list(out: &mut impl Write) -> io::Result<()> {
    for rule in rules::all() {
        writeln!(out, "{}  ({})  {}", rule.code, rule.verdict, rule.meaning)?;
        writeln!(out, "    why     {}", rule.why)?;
        writeln!(out, "    source  {}", rule.source)?;
    }
    Ok(())
}
