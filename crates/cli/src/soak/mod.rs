//! `busypoll soak`: opens, uses and ends connections at random between two hosts of a lab for a given time, while it
//! injects faults into their link and their processes. All data that comes back is compared with what was sent.
//!
//! Client and server are this command too, under `busypoll run` as any program: [`end`].

mod end;

use std::env;
use std::io::Write;
use std::process::{Child, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use busypoll_lab::{Lab, LabHost, enter_user_namespace};
use busypoll_policy::units;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use crate::lab::end_with_this_process;

/// Opens, uses and ends connections at random for a long time, with faults, and checks every byte.
///
/// Two hosts of a lab of their own (as `busypoll lab` creates) run an echo server and clients of TCP and UDP under
/// `busypoll run`. Meanwhile the link goes down and up, neighbour tables are flushed, and processes are stopped for a
/// moment. The command fails at the first wrong byte, or if a byte does not come back within a minute.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long to run
    #[arg(long, default_value = "30m", value_name = "TIME", value_parser = units::time)]
    duration: Duration,
    /// The plane of both ends
    #[arg(long, default_value = "stack", value_parser = ["kernel", "stack"])]
    plane: String,
    /// How many clients run at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// The seed of the random numbers
    #[arg(long, default_value_t = 1, value_parser = units::number::<u64>)]
    seed: u64,
    /// Which end this process is
    #[arg(long, hide = true, value_parser = ["server", "client"])]
    end: Option<String>,
}

/// A shorter soak would end before any data comes back.
const SHORTEST: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &SoakArgs, out: &mut impl Write) -> Result<ExitCode> {
    if args.end.is_some() {
        end::exit_with_the_soak();
    }
    match args.end.as_deref() {
        Some("server") => end::serve(),
        Some(_) => end::run_clients(args, out),
        None => soak(args, out),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The process of one end. It ends with the soak, even when the soak is killed: its standard input closes then.
struct End(Child);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl End {
    fn start(args: &SoakArgs, host: &LabHost, name: &str) -> Result<End> {
        let busypoll = env::current_exe()?;
        let mut command = host.command(&busypoll);
        command.args(["run", "--plane", &args.plane]);
        if args.plane == "stack" {
            command.args(["--dev", host.interface()]);
        }
        command.arg("--").arg(busypoll).args(["soak", "--end", name]);
        command.args(["--duration", &format!("{}ms", args.duration.as_millis())]);
        command.args(["--clients", &args.clients.to_string(), "--seed", &args.seed.to_string()]);
        // A process that is stopped would not notice that its standard input closes.
        end_with_this_process(&mut command, Signal::KILL);
        let child = command.stdin(Stdio::piped()).spawn();
        Ok(End(child.with_context(|| format!("cannot start the {name}"))?))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }
}

fn soak(args: &SoakArgs, out: &mut impl Write) -> Result<()> {
    if args.duration < SHORTEST {
        bail!("--duration {}: less than 1 s tests nothing", units::show(args.duration));
    }
    enter_user_namespace()?;
    let lab = Lab::builder().build()?;
    let server = End::start(args, &lab.server, "server")?;
    let mut client = End::start(args, &lab.client, "client")?;
    let mut random = Random::new(args.seed, u32::MAX);
    let mut faults = 0;
    let status = loop {
        thread::sleep(Duration::from_millis(200 + random.below(1800)));
        if let Some(status) = client.0.try_wait()? {
            break status;
        }
        inject_fault(&lab, [&server, &client], &mut random)?;
        faults += 1;
    };
    if !status.success() {
        bail!("the soak failed after {faults} faults, with --seed {}", args.seed);
    }
    Ok(writeln!(out, "{faults} faults, and every byte was right")?)
}

/// One fault, short enough that data in flight still arrives in time.
fn inject_fault(lab: &Lab, ends: [&End; 2], random: &mut Random) -> Result<()> {
    let span = Duration::from_millis(5 + random.below(300));
    let host = [&lab.server, &lab.client][random.below(2) as usize];
    let ip = |words: &[&str]| -> Result<()> {
        let status = host.command("ip").args(words).stderr(Stdio::null()).status();
        status.context("cannot run ip (package iproute2)").map(drop)
    };
    match random.below(4) {
        0 => {
            ip(&["link", "set", host.interface(), "down"])?;
            thread::sleep(span);
            ip(&["link", "set", host.interface(), "up"])
        }
        1 => ip(&["neigh", "flush", "dev", host.interface()]),
        _ => {
            let end = ends[random.below(2) as usize];
            end.signal(Signal::STOP)?;
            thread::sleep(span);
            end.signal(Signal::CONT)
        }
    }
}

/// Repeatable random numbers: SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(u64);

impl Random {
    /// The generator of one thread.
    pub(crate) fn new(seed: u64, thread: u32) -> Self {
        // The first number of the seed, not the seed itself: else threads of neighbouring seeds would share sequences.
        Random(Random(seed).next().wrapping_add(thread.into()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_seed_and_thread_has_its_own_random_sequence() {
        let each = (0..20).flat_map(|seed| (0..20).map(move |thread| Random::new(seed, thread)));
        let sequences: HashSet<_> = each.map(|mut random| [random.next(), random.next()]).collect();
        assert_eq!(sequences.len(), 400);
    }
}
