//! What `busypoll detach` tells of what it puts back.

#[path = "support/echo.rs"]
mod echo;
mod support;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;

#[test]
fn a_setting_that_was_changed_twice_is_told_of_once() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let state = place("state");
    let program = Running::start(lab.server.command("python3").arg(source("echo.py")).arg("7000"));
    let before = epolls(program.pid());
    let pid = program.pid().to_string();
    let run = |arguments: &[&str]| succeeds(&mut busypoll(&lab, &state, arguments));
    for time in ["50us", "70us"] {
        // Named twice, as two searches may find it: it is one.
        let told = run(&["attach", &pid, &pid, "--busy-poll", time]);
        assert!(told.contains(time) && told.matches(&format!("process {pid},")).count() == 1);
    }
    let told = run(&["detach", &pid]);
    let mut settings: Vec<&str> = told.lines().skip(1).collect();
    assert!(
        settings.iter().all(|line| line.contains("put back") && line.contains(" 0 ")),
        "{told}"
    );
    let all = settings.len();
    settings.dedup();
    assert!(all > 0 && settings.len() == all, "{told}");
    assert!(told.contains(&format!("{all} put back, 0 left alone")), "{told}");
    assert_eq!(epolls(program.pid()), before);
}

#[test]
fn what_was_done_and_could_not_be_told_was_done() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let state = place("state");
    let start =
        |port| Running::start(lab.server.command("python3").arg(source("echo.py")).arg(port));
    let programs = ["7000", "7001"].map(start);
    let epolls = || programs.each_ref().map(|program| epolls(program.pid()));
    let before = epolls();
    let pids = programs.each_ref().map(|program| program.pid().to_string());
    let untold = |arguments: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let run = busypoll(&lab, &state, arguments).stdout(full).output().unwrap();
        let line = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{line}");
        assert!(line.contains("No space left") && line.lines().count() == 1, "{line}");
    };
    // One by one: of one call there are no more spinners than CPUs.
    pids.iter().for_each(|pid| untold(&["attach", pid]));
    let attached = epolls();
    assert!(attached.iter().zip(&before).all(|(now, before)| now != before), "{attached:?}");
    untold(&["detach", &pids[0], &pids[1]]);
    assert_eq!(epolls(), before);
}
