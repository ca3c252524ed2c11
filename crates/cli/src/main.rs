//! The `busypoll` command: parses the arguments, calls the subcommand, and prints errors in one line.

mod generate;
mod lab;
mod soak;

use std::env;
use std::ffi::OsStr;
use std::io::{self, StdoutLock, Write};
use std::process::ExitCode;

use busypoll_advise::cli::{AdviseArgs, run_advise};
use busypoll_bench::cli::{BenchArgs, ServeArgs, run_bench, run_serve};
use busypoll_bench::model::{ModelArgs, run_model};
use busypoll_bench::report::{ReportArgs, run_report};
use busypoll_doctor::cli::{DoctorArgs, run_doctor};
use busypoll_exporter::cli::{ExporterArgs, run_exporter};
use busypoll_policy::cli::{PolicyArgs, run_policy};
use busypoll_policy::say;
use busypoll_policy::text::nearest;
use busypoll_run::attach::cli::{AttachArgs, DetachArgs, run_attach, run_detach};
use busypoll_run::launch::cli::{RunArgs, run_program};
use busypoll_run::launch::{LaunchError, OWN_FAILURE};
use busypoll_run::ss::{SsArgs, run_ss};
use busypoll_top::cli::{TopArgs, run_top};
use busypoll_trace::cli::{TraceArgs, run_trace};
use busypoll_tune::cli::{TuneArgs, run_tune};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

/// Sockets that poll the NIC instead of waiting for it.
#[derive(Debug, Parser)]
#[command(name = "busypoll", version = busypoll_policy::VERSION, arg_required_else_help = false)]
#[command(after_help = "Start with `busypoll bench`: no configuration, less than a minute.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Advise(AdviseArgs),
    Bench(Box<BenchArgs>),
    Report(ReportArgs),
    Model(ModelArgs),
    Serve(ServeArgs),
    Lab(lab::LabArgs),
    Soak(soak::SoakArgs),
    Doctor(DoctorArgs),
    Exporter(ExporterArgs),
    Policy(PolicyArgs),
    Run(RunArgs),
    Ss(SsArgs),
    Top(TopArgs),
    Trace(TraceArgs),
    Tune(TuneArgs),
    Attach(AttachArgs),
    Detach(DetachArgs),
    Completions(generate::CompletionsArgs),
    #[command(hide = true)]
    Manual(generate::ManualArgs),
}

/// Exit code for a mistake of the user, or a request that the machine does not allow.
const REFUSED: u8 = 2;

/// What makes this command the other end of a benchmark arm between two processes.
const OTHER_END: &[&str] = &["bench", "--other-end"];

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_error(&value_error(help_about_help(error))),
    };
    let done = |()| ExitCode::SUCCESS;
    let is_lab = matches!(cli.command, Command::Lab(_));
    let outcome = match cli.command {
        Command::Advise(args) => run_advise(&args, &mut Out::new()).map(done).map_err(Into::into),
        Command::Bench(mut args) => {
            args.restart = Some(OTHER_END);
            run_bench(&args, &mut Out::new()).map(done).map_err(Into::into)
        }
        Command::Report(args) => run_report(&args, &mut Out::new()).map(done).map_err(Into::into),
        Command::Model(args) => run_model(&args, &mut Out::new()).map(done).map_err(Into::into),
        Command::Serve(args) => run_serve(&args, &mut Out::new()).map(done).map_err(Into::into),
        Command::Lab(args) => lab::run(&args),
        Command::Soak(args) => soak::run(&args, &mut Out::new()),
        Command::Doctor(args) => run_doctor(&args, &mut Out::new()).map_err(Into::into),
        Command::Exporter(args) => run_exporter(&args).map(done).map_err(Into::into),
        Command::Run(args) => run_program(&args).map(|never| match never {}).map_err(Into::into),
        Command::Ss(args) => run_ss(&args, &mut Out::new()).map(done).map_err(Into::into),
        Command::Top(args) => run_top(&args, &mut Out::new()).map(done).map_err(Into::into),
        Command::Trace(args) => run_trace(&args, &mut Out::new()).map_err(Into::into),
        Command::Tune(args) => run_tune(&args, &mut Out::new()).map_err(Into::into),
        Command::Attach(args) => run_attach(&args, &mut Out::new()).map_err(Into::into),
        Command::Detach(args) => run_detach(&args, &mut Out::new()).map_err(Into::into),
        Command::Completions(args) => generate::completions(&args, Cli::command(), &mut Out::new())
            .map(done)
            .map_err(Into::into),
        Command::Manual(args) => {
            generate::manual(&args, Cli::command()).map(done).map_err(Into::into)
        }
        Command::Policy(args) => match run_policy(&args, &mut Out::new()) {
            Ok(printed) => printed.map(done).map_err(Into::into),
            Err(error) => Err(error.into()),
        },
    };
    outcome.unwrap_or_else(|error| {
        say(in_one_line(&error));
        ExitCode::from(match error.downcast_ref::<LaunchError>() {
            Some(error) => error.exit_code(),
            None if is_lab => OWN_FAILURE,
            None => REFUSED,
        })
    })
}

/// Standard output. A closed pipe is no error: its reader has read enough.
struct Out(StdoutLock<'static>);

impl Out {
    fn new() -> Self {
        Self(io::stdout().lock())
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ignore_broken_pipe(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        ignore_broken_pipe(self.0.flush(), ())
    }
}

fn ignore_broken_pipe<T>(written: io::Result<T>, otherwise: T) -> io::Result<T> {
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(otherwise),
        Err(e) => Err(io::Error::new(e.kind(), format!("standard output: {e}"))),
        written => written,
    }
}

/// The error and its causes, without causes whose text it contains already.
fn in_one_line(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |line, cause| {
        if line.contains(&cause) { line } else { format!("{line}: {cause}") }
    })
}

/// `busypoll help --help` shows the help: clap would look for a subcommand of that name.
fn help_about_help(error: clap::Error) -> clap::Error {
    let is_help = |word: &OsStr| word == "--help" || word == "-h";
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if is_help(OsStr::new(word)) => {}
        _ => return error,
    }
    let rest = env::args_os().filter(|word| !is_help(word));
    match Cli::try_parse_from(rest) {
        Err(help) if help.kind() == ErrorKind::DisplayHelp => help,
        _ => error,
    }
}

/// The error for a value such as -1, which clap takes for an unknown option.
fn value_error(error: clap::Error) -> clap::Error {
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument => word,
        _ => return error,
    };
    if !unknown.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        return error;
    }
    match hyphens_are_values(Cli::command()).try_get_matches_from(env::args_os()) {
        Err(of_value) if of_value.kind() == ErrorKind::ValueValidation => of_value,
        _ => error,
    }
}

/// Used only to get the error: with it `--dev --json` would take `--json` as the value of `--dev`.
fn hyphens_are_values(command: clap::Command) -> clap::Command {
    let value = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_hyphen_values(true),
        false => arg,
    };
    command.mut_args(value).mut_subcommands(hyphens_are_values)
}

/// Prints help and version as clap does, and a mistake in one line where clap prints five.
fn usage_error(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        error.exit();
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // The mistake and the possible values come before the first empty line.
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    // Not the list of subcommands, which includes hidden ones: --help lists the others.
    let what: Vec<&str> = lines.filter(|line| !line.starts_with("[subcommands: ")).collect();
    let tip = tip(error).map_or(String::new(), |name| format!(" (did you mean '{name}'?)"));
    say(format_args!("{}{tip}: try --help", what.join(" ")));
    ExitCode::from(REFUSED)
}

/// The nearest command or option, if one is near enough.
fn tip(error: &clap::Error) -> Option<String> {
    let names = |kind| match error.get(kind) {
        Some(ContextValue::String(name)) => vec![name.as_str()],
        Some(ContextValue::Strings(names)) => names.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let of = |typed, known| nearest(names(typed).first()?, names(known)).map(str::to_owned);
    of(ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand)
        .or_else(|| of(ContextKind::InvalidArg, ContextKind::SuggestedArg))
}
