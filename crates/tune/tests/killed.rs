//! kill -9 at every step of apply and of rollback, in real processes on a real veth: a rollback afterwards
//! restores every value.

mod common;

use std::os::unix::process::ExitStatusExt;

use busypoll_lab::{Lab, LabHost};
use busypoll_linux::ethtool::{Ethtool, GRO};
use busypoll_linux::netdev::{NapiChange, Netdev};
use busypoll_linux::sysfs::Sysfs;
use busypoll_tune::{Machine, Options, Process, Profile, Request, Step, apply, journal, undo};
use common::{State, everything};
use rustix::process::{Signal, getpid, kill_process};

/// Applies or rolls back in a process of its own, and kills itself at the given step.
#[test]
#[ignore = "run by the other tests as a process of its own"]
fn child() {
    let variable = |name| std::env::var(name).unwrap();
    let kill_at: usize = variable("TUNE_KILL_AT").parse().unwrap();
    let mut at = 0;
    let mut step = |_: Step<'_>| {
        if at == kill_at {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        at += 1;
    };
    let mut machine = Machine::open().unwrap();
    match variable("TUNE_CHILD").as_str() {
        "rollback" => {
            let report =
                undo(&mut machine, journal().unwrap(), |_| true, false, &mut step).unwrap();
            assert!(report.iter().all(|p| p.how.is_settled()), "{report:#?}");
        }
        profile => {
            let profile = Profile::find(profile).unwrap();
            let options = Options { devices: vec![variable("TUNE_DEVICE")], ..Options::default() };
            let request = Request {
                profile: &profile,
                options: &options,
                guard: None,
                confirm_within: None,
                pollers: vec![Process::find(std::process::id()).unwrap()],
            };
            let applied = apply(&mut machine, journal().unwrap(), &request, &mut step).unwrap();
            assert_eq!(applied.refused(), 0, "{applied:#?}");
        }
    }
    println!("whole");
}

fn run(host: &LabHost, state: &State, what: &str, kill_at: usize) -> bool {
    let output = common::child(host, state, what, kill_at).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.signal() == Some(9) {
        return false;
    }
    assert!(output.status.success() && text.contains("whole"), "{what} {kill_at}: {output:?}");
    true
}

/// A host whose device has values that no default would restore.
fn odd(queues: u32, gro: bool) -> Lab {
    let lab = Lab::builder().queues(queues).gro(gro).build().unwrap();
    let host = &lab.server;
    host.enter(|| {
        let device = host.interface();
        let sysfs = Sysfs::open().unwrap();
        sysfs.set_attribute(device, "gro_flush_timeout", "7000").unwrap();
        sysfs.set_attribute(device, "napi_defer_hard_irqs", "3").unwrap();
        sysfs.set_attribute(device, "queues/rx-0/rps_cpus", "3").unwrap();
        sysfs.set_attribute(device, "queues/rx-0/rps_flow_cnt", "256").unwrap();
        let mut netdev = Netdev::open().unwrap();
        for (n, napi) in (1..).zip(netdev.napis(host.ifindex()).unwrap()) {
            let change = NapiChange {
                defer_hard_irqs: Some(n),
                gro_flush_timeout_ns: Some(1000 * n),
                irq_suspend_timeout_ns: Some(10_000 * n),
                threaded: None,
            };
            netdev.set_napi(host.ifindex(), napi.id, change).unwrap();
        }
    })
    .unwrap();
    lab
}

fn killed_at_every_step(lab: &Lab, profile: &str) {
    let state = State::new("killed");
    let host = &lab.server;
    let before = everything(host, host.interface());
    let mut changed = false;
    for kill_at in 0.. {
        assert!(kill_at < 500, "it never comes to an end");
        let whole = run(host, &state, profile, kill_at);
        changed |= everything(host, host.interface()) != before;
        run(host, &state, "rollback", usize::MAX);
        assert_eq!(everything(host, host.interface()), before, "{profile}, killed at {kill_at}");
        assert!(state.journals().is_empty());
        if whole {
            assert!(kill_at > 8 && changed, "{kill_at} steps");
            break;
        }
    }
    // The same for the rollback: after each kill the next one continues.
    run(host, &state, profile, usize::MAX);
    let applied = everything(host, host.interface());
    for kill_at in 0.. {
        if run(host, &state, "rollback", kill_at) {
            assert!(kill_at > 4, "{kill_at} steps");
            break;
        }
        if kill_at == 0 {
            assert_eq!(everything(host, host.interface()), applied);
        }
        run(host, &state, "rollback", usize::MAX);
        assert_eq!(everything(host, host.interface()), before, "{profile}, killed at {kill_at}");
        run(host, &state, profile, usize::MAX);
    }
    assert_eq!(everything(host, host.interface()), before);
    assert!(state.journals().is_empty());
}

const EVERYTHING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/everything.toml");

#[test]
fn after_kill_9_anywhere_in_an_apply_of_all_kinds_a_rollback_restores_all() {
    busypoll_lab::needs_root!();
    killed_at_every_step(&odd(2, true), EVERYTHING);
}

#[test]
fn after_kill_9_anywhere_in_irq_suspend_a_rollback_restores_all() {
    busypoll_lab::needs_root!();
    killed_at_every_step(&odd(2, true), "irq-suspend");
}

/// GRO is off: the profile creates the NAPI instances that it then sets.
#[test]
fn after_kill_9_anywhere_while_napi_instances_are_created_a_rollback_restores_all() {
    busypoll_lab::needs_root!();
    killed_at_every_step(&odd(1, false), "prefer-busy-poll");
}

/// The rollback finds other NAPI instances than those of the apply.
#[test]
fn new_napi_instances_get_the_old_values() {
    busypoll_lab::needs_root!();
    let (lab, state) = (odd(2, true), State::new("anew"));
    let host = &lab.server;
    let before = everything(host, host.interface());
    let off = state.0.join("off.toml");
    std::fs::write(&off, "[features]\nrx-gro-list = true\ntx-scatter-gather = false\n").unwrap();
    run(host, &state, off.to_str().unwrap(), usize::MAX);
    // GRO is switched off and on: new instances, with the device's defaults.
    host.enter(|| {
        let veth = Ethtool::open(host.interface()).unwrap();
        veth.set_features(GRO, false).unwrap();
        veth.set_features(GRO, true).unwrap();
    })
    .unwrap();
    assert_ne!(everything(host, host.interface()), before);
    run(host, &state, "rollback", usize::MAX);
    assert_eq!(everything(host, host.interface()), before);
    assert!(state.journals().is_empty());
}
