//! Shell completions and manual pages, generated from the command's own arguments.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

/// Prints a shell's completion script for busypoll
#[derive(Debug, clap::Args)]
#[command(after_help = "\
For one session of bash: source <(busypoll completions bash)")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Writes the manual pages
#[derive(Debug, clap::Args)]
pub struct ManualArgs {
    /// The folder
    folder: PathBuf,
}

/// Prints the completions.
///
/// # Errors
/// If writing fails.
pub fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "busypoll", &mut text);
    out.write_all(&text)
}

/// Writes a page for the command and for each subcommand.
///
/// # Errors
/// If writing fails; the error names the folder.
pub fn manual(args: &ManualArgs, command: Command) -> io::Result<()> {
    clap_mangen::generate_to(command, &args.folder).map_err(|error| {
        io::Error::new(error.kind(), format!("{}: {error}", args.folder.display()))
    })
}
