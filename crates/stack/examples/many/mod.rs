//! Shared by the examples that measure with many sockets or connections: their arguments and exit code.

use std::{env, error::Error, process::ExitCode};

/// Runs `measure` with the two numbers from the command line, or their defaults. Prints an error and exits with 2.
pub fn run(
    usage: &str,
    most: usize,
    measure: impl FnOnce(usize, usize) -> Result<(), Box<dyn Error>>,
) -> ExitCode {
    let mut words = env::args().skip(1);
    let mut number = |default: usize, most: usize| -> Result<usize, String> {
        let Some(word) = words.next() else { return Ok(default) };
        let number = word.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| format!("'{word}' is not a number from 1 to {most}; usage: {usage}"))
    };
    let numbers = number(10_000, most).and_then(|open| Ok((open, number(1_000_000, 1 << 32)?)));
    match numbers.map_err(Into::into).and_then(|(open, rounds)| measure(open, rounds)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
