//! `busypoll soak`: connections opened, used and ended at random between two hosts of a lab, for as long as one
//! likes, while their link and their processes are disturbed. All that comes back is compared with what was sent.
//!
//! The ends are this command once more, under `busypoll run` like anybody's program: [`end`].

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
/// Two hosts that exist only for it (as `busypoll lab` makes them) run a server and clients of TCP and UDP under
/// `busypoll run`. Meanwhile the link goes down and up, neighbours are forgotten, and either end is stopped for a
/// while. It ends with the first byte that is wrong, or that does not come within a minute.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long it runs
    #[arg(long, default_value = "30m", value_name = "TIME", value_parser = units::time)]
    duration: Duration,
    /// The plane both ends are on
    #[arg(long, default_value = "stack", value_parser = ["kernel", "stack"])]
    plane: String,
    /// How many clients there are at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// The beginning of chance
    #[arg(long, default_value_t = 1, value_parser = units::number::<u64>)]
    seed: u64,
    /// The end of it that this process is
    #[arg(long, hide = true, value_parser = ["server", "client"])]
    end: Option<String>,
}

/// Less is over before anything comes back.
const SHORTEST: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &SoakArgs, out: &mut impl Write) -> Result<ExitCode> {
    if args.end.is_some() {
        end::with_the_soak();
    }
    match args.end.as_deref() {
        Some("server") => end::serve(),
        Some(_) => end::exercise(args, out),
        None => soak(args, out),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// An end of it; ended by its end, also where that is a kill: its standard input closes.
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
        // One that was stopped does not read.
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
        bail!("--duration {}: less than 1 s shows nothing", units::show(args.duration));
    }
    enter_user_namespace()?;
    let lab = Lab::builder().build()?;
    let server = End::start(args, &lab.server, "server")?;
    let mut client = End::start(args, &lab.client, "client")?;
    let mut chance = Chance::of(args.seed, u32::MAX);
    let mut faults = 0;
    let status = loop {
        thread::sleep(Duration::from_millis(200 + chance.below(1800)));
        if let Some(status) = client.0.try_wait()? {
            break status;
        }
        disturb(&lab, [&server, &client], &mut chance)?;
        faults += 1;
    };
    if !status.success() {
        bail!("it failed after {faults} faults, with --seed {}", args.seed);
    }
    Ok(writeln!(out, "{faults} faults on the way, and every byte was right")?)
}

/// One fault: short enough for what is on the way to come in time.
fn disturb(lab: &Lab, ends: [&End; 2], chance: &mut Chance) -> Result<()> {
    let span = Duration::from_millis(5 + chance.below(300));
    let host = [&lab.server, &lab.client][chance.below(2) as usize];
    let ip = |words: &[&str]| -> Result<()> {
        let status = host.command("ip").args(words).stderr(Stdio::null()).status();
        status.context("cannot run ip (package iproute2)").map(drop)
    };
    match chance.below(4) {
        0 => {
            ip(&["link", "set", host.interface(), "down"])?;
            thread::sleep(span);
            ip(&["link", "set", host.interface(), "up"])
        }
        1 => ip(&["neigh", "flush", "dev", host.interface()]),
        _ => {
            let end = ends[chance.below(2) as usize];
            end.signal(Signal::STOP)?;
            thread::sleep(span);
            end.signal(Signal::CONT)
        }
    }
}

/// Chance that can be had again: SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Chance(u64);

impl Chance {
    /// Of a thread's own.
    pub(crate) fn of(seed: u64, thread: u32) -> Self {
        // The seed's first number, not the seed: or the threads of neighbouring seeds would be the same.
        Chance(Chance(seed).next().wrapping_add(thread.into()))
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
    fn no_two_threads_of_any_seeds_take_the_same_course() {
        let each = (0..20).flat_map(|seed| (0..20).map(move |thread| Chance::of(seed, thread)));
        let courses: HashSet<_> = each.map(|mut chance| [chance.next(), chance.next()]).collect();
        assert_eq!(courses.len(), 400);
    }
}
