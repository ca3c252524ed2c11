//! Runs commands: a script in the shared folder, its number on a serial line, and output and exit code back.
//!
//! This is the host's end of that line. The guest's end is `init.sh`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::image::write;
use crate::LabError;

/// For an emulated guest on a busy machine; no command takes a tenth of this.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// The result of a command in the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// The exit code, or 128 plus the number of the signal.
    pub status: i32,
    /// All it wrote to standard output.
    pub stdout: String,
    /// All it wrote to standard error.
    pub stderr: String,
}

/// The serial line to the machine, for one command at a time.
#[derive(Debug)]
pub(super) struct Channel {
    to: ChildStdin,
    from: Receiver<String>,
    folder: PathBuf,
    number: u32,
}

impl Channel {
    /// Waits until the machine has started, at most `timeout` between two lines.
    pub(super) fn open(
        to: ChildStdin,
        from: ChildStdout,
        folder: PathBuf,
        timeout: Duration,
    ) -> Result<Self, LabError> {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                // The receiver is gone, as the machine is being dropped.
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let channel = Self { to, from: receiver, folder, number: 0 };
        // The firmware may have written to this line.
        while !channel.read_line(timeout)?.ends_with("ready") {}
        Ok(channel)
    }

    pub(super) fn run(&mut self, script: &str) -> Result<CommandOutput, LabError> {
        self.number += 1;
        let number = self.number;
        let file = |kind| self.folder.join(format!("{number}.{kind}"));
        write(&file("sh"), script.as_bytes())?;
        writeln!(self.to, "{number}").map_err(LabError::system("write to the test machine"))?;
        let answer = self.read_line(COMMAND_TIMEOUT)?;
        let text = |kind| {
            let bytes = fs::read(file(kind)).map_err(LabError::system("read what it printed"))?;
            Ok::<_, LabError>(String::from_utf8_lossy(&bytes).into_owned())
        };
        let status = answer.trim().strip_prefix(&format!("{number} ")).and_then(|s| s.parse().ok());
        let status = status.ok_or_else(|| self.gone(&format!("said {answer:?}")))?;
        Ok(CommandOutput { status, stdout: text("out")?, stderr: text("err")? })
    }

    fn read_line(&self, timeout: Duration) -> Result<String, LabError> {
        self.from.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.gone(&format!("has been silent for {timeout:?}")),
            RecvTimeoutError::Disconnected => self.gone("has ended"),
        })
    }

    /// The error with the last lines of the machine's console.
    fn gone(&self, what: &str) -> LabError {
        let console = fs::read(self.folder.join("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let last: Vec<&str> = console.lines().rev().take(20).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        LabError::System {
            doing: "communicate with the test machine".into(),
            source: std::io::Error::other(format!("it {what}; its console:\n{last}")),
        }
    }
}
