//! `busypoll lab`: a shell or a command on one of two hosts that exist only for this command.
//!
//! This process keeps the lab while the command runs. It leaves the terminal's signals to the command, and ensures
//! that the command does not outlive the lab.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use busypoll_lab::{Lab, Side, enter_user_namespace};
use busypoll_policy::say;
use busypoll_run::launch::{NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Two hosts on this machine: a shell, or a command, on one of them.
///
/// The hosts are joined by a veth pair of their own (NAPI on) and reach nothing else: client 10.77.0.1, server
/// 10.77.0.2. The lab ends with the command, or with the last process that the command leaves running there.
/// Without root they are created in a user namespace, if the system allows that.
///
/// Inside, `busypoll lab --host server` is the other host of the same lab.
///
/// The exit code is the command's, or 128 plus the signal that ended it; 127 if there is no such command, 126 if it
/// cannot be executed, 125 if the lab cannot be created, 2 for a mistake in the options.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  busypoll lab                                   a shell on the client
  busypoll lab -- ping -c3 10.77.0.2             one command; its exit code is passed on
  busypoll lab --host server -- iperf3 -s &      inside that shell: the other host")]
pub(crate) struct LabArgs {
    /// The host to run on
    #[arg(long, default_value = "client", value_parser = side())]
    host: Side,

    /// The command to run there, on the host's own CPU; without it, your shell
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

fn side() -> impl TypedValueParser<Value = Side> {
    PossibleValuesParser::new(Side::BOTH.map(Side::name)).try_map(|name| name.parse())
}

pub(crate) fn run(args: &LabArgs) -> Result<ExitCode> {
    if let Some(lab) = Lab::from_environment()? {
        // Another process keeps the lab: become the command.
        let mut command = command(&lab, args);
        let error = command.exec();
        return Ok(not_started(&command, &error));
    }
    enter_user_namespace()?;
    let lab = Lab::builder().build()?;
    let mut command = command(&lab, args);
    end_with_this_process(
        &mut command,
        if args.command.is_empty() { Signal::HUP } else { Signal::KILL },
    );
    leave_interrupts_to_the_command();
    banner(&lab, args.host);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(&command, &error)),
    };
    let status = child.wait().context("wait for the command")?;
    // As a shell reports it: the code, or 128 and the signal.
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(code as u8))
}

fn command(lab: &Lab, args: &LabArgs) -> Command {
    let shell = || env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let (program, arguments) = match args.command.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (shell(), &[][..]),
    };
    let mut command = lab.host(args.host).command(program);
    command.args(arguments).envs(lab.variables(args.host));
    command
}

/// Says in one line that the command was not started; the exit code is as for env(1).
fn not_started(command: &Command, error: &io::Error) -> ExitCode {
    use io::ErrorKind::{Interrupted, OutOfMemory, WouldBlock};
    let program: &OsStr = command.get_program();
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ": check the name and PATH",
        _ => "",
    };
    say(format_args!("cannot run {}{remedy}: {error}", program.display()));
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        // An error of the fork, not of the program.
        WouldBlock | OutOfMemory | Interrupted => OWN_FAILURE,
        _ => NOT_EXECUTABLE,
    })
}

fn banner(lab: &Lab, side: Side) {
    let (host, other) = (lab.host(side), side.peer());
    let ipv6 = host.ipv6().map(|address| format!(" {address}")).unwrap_or_default();
    say(format_args!(
        "lab {side}: {} {}{ipv6} on CPU {}, {other} is {}; `busypoll lab --host {other}` runs a shell there",
        host.interface(),
        host.ipv4(),
        host.cpu(),
        other.ipv4(),
    ));
}

/// Makes the kernel end the command when this process ends, however it ends. A shell gets SIGHUP, which it passes on
/// to its jobs.
pub(crate) fn end_with_this_process(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let arrange = move || {
        set_parent_process_death_signal(Some(signal))?;
        if signal == Signal::HUP {
            // Under nohup the shell would ignore it.
            // SAFETY: async-signal-safe.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        }
        // This process may have ended before prctl was called.
        if getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::Interrupted.into()) }
    };
    // SAFETY: between fork and exec the closure makes three system calls and allocates nothing.
    unsafe { command.pre_exec(arrange) };
}

/// Ctrl-C and Ctrl-\ reach the whole foreground process group; only the command reacts, and the lab stays.
fn leave_interrupts_to_the_command() {
    extern "C" fn nothing(_: libc::c_int) {}
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // A handler and not SIG_IGN: exec resets a handler, so the command starts with the default.
        let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing, which is async-signal-safe.
        let before = unsafe { libc::signal(signal, handler) };
        if before == libc::SIG_IGN {
            // Our parent has set it to be ignored, and the command inherits that.
            // SAFETY: no handler is installed.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}
