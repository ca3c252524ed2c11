//! A report that cannot be printed: the exit code still says whether it was done.

mod common;

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use busypoll_lab::Lab;
use busypoll_linux::sysfs::Sysfs;
use busypoll_tune::cli::{TuneArgs, run_tune};
use busypoll_tune::{Error, Result};
use clap::Parser;
use common::State;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    tune: TuneArgs,
}

/// `/dev/full`.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn untold(words: &[&str]) -> Result<ExitCode> {
    let words = [&["tune"], words].concat();
    run_tune(&Command::try_parse_from(words).unwrap().tune, &mut Full)
}

#[test]
fn what_was_done_and_cannot_be_told_was_done() {
    busypoll_lab::needs_root!();
    let (lab, state) = (Lab::builder().queues(1).build().unwrap(), State::new("told"));
    // SAFETY: nobody else in this file reads or writes the environment.
    unsafe { std::env::set_var("BUSYPOLL_STATE", &state.0) };
    let device = lab.server.interface();
    let profile = state.0.join("p.toml");
    fs::write(&profile, "[queues]\nrps-flow-cnt = 32\n").unwrap();
    let options = [profile.to_str().unwrap(), "--dev", device];
    let report = |word| [&[word], &options[..]].concat();
    lab.server
        .enter(|| {
            let flows =
                || Sysfs::open().unwrap().attribute(device, "queues/rx-0/rps_flow_cnt").unwrap();
            // All there is to a plan is its report.
            assert!(matches!(untold(&report("plan")), Err(Error::Io { .. })));
            for (words, then) in [(report("apply"), "32"), (vec!["rollback"], "0")] {
                assert_eq!(untold(&words).unwrap(), ExitCode::from(1), "{words:?}");
                assert_eq!(flows(), then);
            }
        })
        .unwrap();
}

#[test]
fn the_commands_own_error_is_the_one_that_is_told() {
    let state = State::new("own");
    // After the first file, whose name is the report so far.
    fs::create_dir(state.0.join("etc")).unwrap();
    fs::write(state.0.join("etc/tuned"), "").unwrap();
    let error = untold(&["export", "busy-poll", "--dir", state.0.to_str().unwrap()]).unwrap_err();
    assert!(state.0.join("etc/sysctl.d/60-busypoll.conf").exists());
    assert!(error.to_string().contains("etc/tuned/busypoll/tuned.conf"), "{error}");
}
