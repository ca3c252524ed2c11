//! A report that cannot be printed: the exit code still says whether the work was done.

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

fn unprinted(words: &[&str]) -> Result<ExitCode> {
    let words = [&["tune"], words].concat();
    run_tune(&Command::try_parse_from(words).unwrap().tune, &mut Full)
}

#[test]
fn work_that_was_done_without_a_report_exits_with_1() {
    busypoll_lab::needs_root!();
    let (lab, state) = (Lab::builder().queues(1).build().unwrap(), State::new("told"));
    // SAFETY: no other test of this file reads or writes the environment.
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
            // A plan is only its report.
            assert!(matches!(unprinted(&report("plan")), Err(Error::Io { .. })));
            for (words, then) in [(report("apply"), "32"), (vec!["rollback"], "0")] {
                assert_eq!(unprinted(&words).unwrap(), ExitCode::from(1), "{words:?}");
                assert_eq!(flows(), then);
            }
        })
        .unwrap();
}

#[test]
fn the_commands_own_error_is_reported_instead_of_the_failed_print() {
    let state = State::new("own");
    // Fails after the first file, whose path is the report so far.
    fs::create_dir(state.0.join("etc")).unwrap();
    fs::write(state.0.join("etc/tuned"), "").unwrap();
    let error =
        unprinted(&["export", "busy-poll", "--dir", state.0.to_str().unwrap()]).unwrap_err();
    assert!(state.0.join("etc/sysctl.d/60-busypoll.conf").exists());
    assert!(error.to_string().contains("etc/tuned/busypoll/tuned.conf"), "{error}");
}
