//! `busypoll run`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;

use busypoll_policy::text::nearest;
use busypoll_policy::{Launch, Plane, Policy, Profile, say, units};

use super::start::uses_stack_plane;
use super::{LaunchError, capture, containers, execute, execute_child};

/// Runs a program unchanged, with sockets that busy poll.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The kernel plane changes only the sockets and epoll instances of the program and of its
children. Options before PROGRAM are busypoll's; those after it are the program's.")]
pub struct RunArgs {
    /// Where the sockets run: in the kernel, or in busypoll's own stack on the interface --dev
    #[arg(long, value_name = "kernel|stack", value_parser = plane)]
    plane: Option<Plane>,
    /// The interface of the stack plane, if there are several. Without it, only what programs of this machine send to
    /// each other is accelerated then
    #[arg(long, value_name = "INTERFACE")]
    dev: Option<String>,
    /// How long a wait polls before it sleeps [default: 50us, or the value of the policy or profile]
    #[arg(long, value_name = "TIME", value_parser = units::micros)]
    busy_poll: Option<u32>,
    /// Which programs and sockets busy poll, and how; `busypoll policy check FILE` explains the file [default:
    /// $BUSYPOLL_POLICY]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// What may be traded for speed. `latency`: a wait polls for 1 ms (CPU time), and interrupts stay off between waits
    /// (packets that arrive while the program computes may wait for its next call), unless the policy or an option says
    /// otherwise. A line reports what is traded
    #[arg(long, value_name = "safe|latency", value_parser = Profile::parse, default_value = "safe")]
    profile: Profile,
    /// Refuse to start if any part would not be accelerated
    #[arg(long)]
    strict: bool,
    /// Capture what goes over the stack plane, past the kernel: a file for Wireshark and tcpdump. Other processes of
    /// the run have a file each, with their PID behind this name
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Let packets of the stack plane bypass firewall and NAT rules
    #[arg(long)]
    bypass_firewall: bool,
    /// Leave to the kernel what programs of this machine send to each other, also by AF_UNIX streams and between
    /// containers; otherwise it goes over shared memory if both run on the stack plane
    #[arg(long)]
    no_same_host: bool,
    /// Leave AF_UNIX streams to the kernel; otherwise those between programs on the stack plane go over shared memory
    /// once they have lasted for a thousand calls
    #[arg(long)]
    no_unix_streams: bool,
    /// The program's argv[0]
    #[arg(long, hide = true, value_name = "NAME", allow_hyphen_values = true)]
    argv0: Option<OsString>,
    /// The program is started by a process of a run, whose environment has all settings
    #[arg(long, hide = true)]
    child: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Executes the program.
///
/// # Errors
/// A message of one line: what was wrong and what to do.
pub fn run_program(args: &RunArgs) -> Result<Infallible, LaunchError> {
    if args.child {
        return execute_child(&args.command, args.argv0.as_deref());
    }
    let policy = match args.policy.clone().or_else(policy_of_environment) {
        Some(file) => Policy::read_over(&file, args.profile.defaults())?,
        None => Policy { defaults: args.profile.defaults(), ..Policy::default() },
    };
    let mut launch = Launch {
        policy,
        dev: args.dev.clone(),
        profile: args.profile,
        strict: args.strict,
        bypass_firewall: args.bypass_firewall,
        ..Launch::default()
    };
    let defaults = &mut launch.policy.defaults;
    defaults.plane = args.plane.unwrap_or(defaults.plane);
    defaults.busy_poll = args.busy_poll.unwrap_or(defaults.busy_poll);
    if !uses_stack_plane(&launch.policy) {
        let without = [
            ("--pcap", args.pcap.is_some()),
            ("--dev", args.dev.is_some()),
            ("--bypass-firewall", args.bypass_firewall),
            ("--no-same-host", args.no_same_host),
            ("--no-unix-streams", args.no_unix_streams),
        ];
        if let Some((option, _)) = without.into_iter().find(|(_, given)| *given) {
            return Err(LaunchError::NoStack(option));
        }
    }
    launch.same_host = uses_stack_plane(&launch.policy) && !args.no_same_host;
    launch.unix_streams = launch.same_host && !args.no_unix_streams;
    if let Some(directory) = launch.policy.containers().filter(|_| launch.same_host) {
        containers::check(directory)?;
        say(containers::notice(directory));
    }
    for trade in args.profile.trades(&launch.policy.defaults) {
        say(format_args!("--profile {}: {trade}", args.profile.word()));
    }
    let file = args.pcap.as_deref().map(capture::begin).transpose()?;
    launch.pcap = file.map(|file| (std::process::id(), file));
    execute(launch, &args.command, args.argv0.as_deref())
}

/// For programs that are started by a script or a unit that cannot be changed.
fn policy_of_environment() -> Option<PathBuf> {
    std::env::var_os("BUSYPOLL_POLICY").filter(|file| !file.is_empty()).map(PathBuf::from)
}

fn plane(text: &str) -> Result<Plane, String> {
    match text {
        "kernel" => Ok(Plane::Kernel),
        "stack" => Ok(Plane::Stack),
        _ => Err(match nearest(text, ["kernel", "stack"]) {
            Some(near) => format!("did you mean '{near}'?"),
            None => "it is kernel or stack".to_owned(),
        }),
    }
}
