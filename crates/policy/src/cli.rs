//! `busypoll policy`.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::file::FileError;
use crate::rules::Policy;

/// Policy files: which programs and sockets busy poll, and how.
#[derive(Clone, Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    /// Reads a policy file and explains it in words
    Check {
        /// The file
        file: PathBuf,
    },
}

/// Explains the file on `out`; the inner result is that of writing.
///
/// # Errors
/// A message of one line with the file, the line in it and the correction.
pub fn run_policy(args: &PolicyArgs, out: &mut impl Write) -> Result<io::Result<()>, FileError> {
    let Command::Check { file } = &args.command;
    Ok(out.write_all(Policy::read(file)?.explain().as_bytes()))
}
