//! Devices that vanish, come back with another index, or are replaced by another one of the same name; a
//! second apply; a rollback of one of two applies.

mod common;

use std::process::Stdio;

use busypoll_lab::{Lab, Namespace};
use busypoll_linux::sysfs::Sysfs;
use busypoll_tune::{
    Applied, Device, How, Machine, Options, Plan, Process, Profile, PutBack, Request,
    State as Planned, Status, Value, Written, apply, journal, undo,
};
use common::{State, everything};

/// Held by the test whose state directory is in the environment.
static STATE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Runs `work` in a namespace with a state directory of its own.
fn tuned<R: Send>(namespace: &Namespace, state: &State, work: impl FnOnce() -> R + Send) -> R {
    // SAFETY: tests of this file that read or write the environment hold `STATE`.
    unsafe { std::env::set_var("BUSYPOLL_STATE", &state.0) };
    namespace.enter(work).unwrap()
}

fn ip(namespace: &Namespace, arguments: &str) {
    let mut ip = namespace.command("ip");
    let status = ip.args(arguments.split(' ')).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn pair(namespace: &Namespace, index: u32, mac: &str) {
    ip(
        namespace,
        &format!(
            "link add tuned0 index {index} address {mac} numrxqueues 2 numtxqueues 2 type veth peer name far0"
        ),
    );
    ip(namespace, "link set tuned0 up");
    ip(namespace, "link set far0 up");
}

fn profile(state: &State, text: &str) -> Profile {
    let path = state.0.join("p.toml");
    std::fs::write(&path, text).unwrap();
    Profile::find(path.to_str().unwrap()).unwrap()
}

fn apply_to(device: &str, profile: &Profile) -> u32 {
    let options = Options { devices: vec![device.into()], ..Options::default() };
    let request = Request {
        profile,
        options: &options,
        guard: None,
        confirm_within: None,
        pollers: vec![Process::find(std::process::id()).unwrap()],
    };
    let applied = requested(&request);
    assert_eq!(applied.refused(), 0, "{applied:#?}");
    applied.number.unwrap()
}

fn planned(device: &str, profile: &Profile) -> Plan {
    let options = Options { devices: vec![device.into()], ..Options::default() };
    let devices = [Device::open(device).unwrap()];
    Plan::make(&mut Machine::open().unwrap(), &devices, profile, &options).unwrap()
}

/// Applies without a poller.
fn applied_to(
    device: &str,
    profile: &Profile,
    guard: Option<Process>,
    confirm_within: Option<u64>,
) -> Applied {
    let options = Options { devices: vec![device.into()], ..Options::default() };
    requested(&Request { profile, options: &options, guard, confirm_within, pollers: Vec::new() })
}

fn requested(request: &Request<'_>) -> Applied {
    apply(&mut Machine::open().unwrap(), journal().unwrap(), request, &mut |_| ()).unwrap()
}

fn roll_back(which: impl Fn(u32) -> bool) -> Vec<PutBack> {
    undo(&mut Machine::open().unwrap(), journal().unwrap(), which, false, &mut |_| ()).unwrap()
}

const STEERING: &str = "[queues]\nrps-cpus = \"0\"\nrps-flow-cnt = 32\n[features]\ntso = false\n";

#[test]
fn a_device_that_came_back_with_another_index_is_recognised() {
    busypoll_lab::needs_root!();
    busypoll_lab::needs!(program "ip");
    let _one = STATE.lock();
    let (namespace, state) = (Lab::single().unwrap(), State::new("back"));
    pair(&namespace, 10, "02:00:00:00:00:01");
    let fresh = everything(&namespace, "tuned0");
    tuned(&namespace, &state, || apply_to("tuned0", &profile(&state, STEERING)));

    ip(&namespace, "link del tuned0");
    let report = tuned(&namespace, &state, || roll_back(|_| true));
    assert!(report.iter().all(|p| matches!(p.how, How::NoDevice(_))), "{report:#?}");
    assert_eq!(state.journals().len(), 1, "it may come back");

    // Another device with the same name and index is not touched.
    pair(&namespace, 10, "02:00:00:00:00:99");
    ip(&namespace, "link set tuned0 txqueuelen 77");
    tuned(&namespace, &state, || {
        Sysfs::open().unwrap().set_attribute("tuned0", "queues/rx-0/rps_flow_cnt", "64").unwrap();
    });
    let stranger = everything(&namespace, "tuned0");
    let report = tuned(&namespace, &state, || roll_back(|_| true));
    assert!(report.iter().all(|p| matches!(p.how, How::NoDevice(_))), "{report:#?}");
    assert_eq!(everything(&namespace, "tuned0"), stranger);
    ip(&namespace, "link del tuned0");

    // The device is back, with another index and with values that another program has set.
    pair(&namespace, 20, "02:00:00:00:00:01");
    tuned(&namespace, &state, || {
        let sysfs = Sysfs::open().unwrap();
        sysfs.set_attribute("tuned0", "queues/rx-0/rps_flow_cnt", "32").unwrap();
        sysfs.set_attribute("tuned0", "queues/rx-1/rps_cpus", "1").unwrap();
    });
    let report = tuned(&namespace, &state, || roll_back(|_| true));
    assert!(report.iter().any(|p| p.how == How::PutBack), "{report:#?}");
    assert!(report.iter().all(|p| p.how.is_settled()), "{report:#?}");
    assert_eq!(everything(&namespace, "tuned0"), fresh);
    assert!(state.journals().is_empty());
}

#[test]
fn rollback_of_a_second_apply_restores_the_values_before_the_first() {
    busypoll_lab::needs_root!();
    let _one = STATE.lock();
    let (lab, state) = (Lab::builder().queues(2).build().unwrap(), State::new("second"));
    let (host, device) = (&lab.server, lab.server.interface());
    let before = everything(host, device);
    tuned(host, &state, || {
        apply_to(device, &profile(&state, STEERING));
        apply_to(
            device,
            &profile(&state, "[queues]\nrps-flow-cnt = 128\n[napi]\nthreaded = true\n"),
        );
        apply_to(device, &Profile::find("irq-suspend").unwrap());
    });
    assert_eq!(everything(host, device).iter().filter(|l| l.contains("20000000")).count(), 2);
    let report = tuned(host, &state, || roll_back(|_| true));
    assert!(report.iter().all(|p| p.how.is_settled()), "{report:#?}");
    assert_eq!(everything(host, device), before);
}

#[test]
fn rollback_of_one_apply_leaves_the_others_in_force() {
    busypoll_lab::needs_root!();
    let _one = STATE.lock();
    let (lab, state) = (Lab::builder().queues(1).build().unwrap(), State::new("one"));
    let (host, device) = (&lab.server, lab.server.interface());
    let before = everything(host, device);
    let flows = |of: &str| {
        let line =
            everything(host, device).into_iter().find(|l| l.contains("rps_flow_cnt")).unwrap();
        assert!(line.ends_with(&format!("Some(\"{of}\")")), "{line}, not {of}");
    };
    let first = tuned(host, &state, || {
        let first =
            apply_to(device, &profile(&state, "[queues]\nrps-flow-cnt = 32\nrps-cpus = \"0\"\n"));
        apply_to(device, &profile(&state, "[queues]\nrps-flow-cnt = 64\n"));
        first
    });
    // The second apply has the flows now: only the other setting of the first is restored.
    let report = tuned(host, &state, || roll_back(|n| n == first));
    assert_eq!(report.iter().filter(|p| p.how == How::PutBack).count(), 1, "{report:#?}");
    flows("64");
    // The rollback of the second does not restore the first one's value.
    tuned(host, &state, || roll_back(|_| true));
    flows("0");
    assert_eq!(everything(host, device), before);
    assert!(state.journals().is_empty());
}

#[test]
fn plan_and_status_change_nothing_and_report_the_current_values() {
    busypoll_lab::needs_root!();
    let _one = STATE.lock();
    let (lab, state) =
        (Lab::builder().queues(2).gro(false).tso(true).build().unwrap(), State::new("plan"));
    let (host, device) = (&lab.server, lab.server.interface());
    let before = everything(host, device);
    tuned(host, &state, || {
        let devices = busypoll_tune::Device::open(device).unwrap();
        let options = Options { devices: vec![device.into()], ..Options::default() };
        let mut machine = Machine::open().unwrap();
        for name in busypoll_tune::built_in() {
            let profile = Profile::find(name).unwrap();
            let plan = Plan::make(&mut machine, std::slice::from_ref(&devices), &profile, &options)
                .unwrap();
            assert!(plan.impossible.is_none(), "{name}: {:?}", plan.impossible);
            assert!(plan.changes().any(|l| l.setting == "rx-gro"), "{plan:#?}");
        }
    });
    assert_eq!(everything(host, device), before);
    assert!(state.journals().is_empty());

    tuned(host, &state, || {
        apply_to(device, &profile(&state, "[queues]\nrps-flow-cnt = 32\n"));
        let mut machine = Machine::open().unwrap();
        let status = Status::read(&mut machine).unwrap();
        assert_eq!((status.applies.len(), status.settings.len()), (1, 2));
        assert!(status.warnings.is_empty(), "{:?}", status.warnings);
        assert!(status.settings.iter().all(|s| s.now.as_ref() == Some(&s.set)));
        // A change by another program is reported.
        Sysfs::open().unwrap().set_attribute(device, "queues/rx-0/rps_flow_cnt", "8").unwrap();
        let status = Status::read(&mut machine).unwrap();
        assert_eq!(status.settings.iter().filter(|s| s.now.as_ref() != Some(&s.set)).count(), 1);
        let [warning] = &status.warnings[..] else { panic!("{:?}", status.warnings) };
        assert!(warning.starts_with("1 setting was changed by others since"), "{warning}");
        roll_back(|_| true);
        assert!(Status::read(&mut machine).unwrap().applies.is_empty());
    });
    assert_eq!(everything(host, device), before);
}

#[test]
fn a_refused_setting_is_not_reported_as_applied() {
    busypoll_lab::needs_root!();
    let _one = STATE.lock();
    let (lab, state) = (Lab::builder().queues(1).build().unwrap(), State::new("refused"));
    let device = lab.server.interface();
    tuned(&lab.server, &state, || {
        // The kernel refuses a mask whose only CPU does not exist.
        let profile = profile(&state, "[queues]\nrps-cpus = \"8191\"\nrps-flow-cnt = 32\n");
        assert_eq!(applied_to(device, &profile, None, None).refused(), 1);
        let status = Status::read(&mut Machine::open().unwrap()).unwrap();
        assert_eq!(status.warnings, ["1 setting was refused"]);
        let [refused, set] = &status.settings[..] else { panic!("{:?}", status.settings) };
        assert!(refused.refused && refused.set == refused.before, "{refused:?}");
        assert!(!set.refused && set.set != set.before, "{set:?}");
        roll_back(|_| true);
    });
}

/// Settings of queues are made on the queues that exist after the other changes, and reported if there are none.
#[test]
fn a_setting_that_another_one_makes_impossible_is_reported() {
    busypoll_lab::needs_root!();
    let _one = STATE.lock();
    let (lab, state) = (Lab::builder().queues(2).build().unwrap(), State::new("taken"));
    let (host, device) = (&lab.server, lab.server.interface());
    let before = everything(host, device);
    let threaded = || everything(host, device).iter().filter(|l| l.contains("Some(On)")).count();
    for (shape, instances, lost) in
        [("[channels]\nrx = 1\ntx = 1\n", 1, 0), ("[features]\ngro = false\n", 0, 1)]
    {
        let profile = profile(&state, &format!("{shape}[napi]\nthreaded = true\n"));
        let applied = tuned(host, &state, || applied_to(device, &profile, None, None));
        assert_eq!((applied.refused(), applied.lost()), (0, lost), "{applied:#?}");
        assert_eq!((threaded(), applied.left_out.len()), (instances, lost), "{applied:#?}");
        let report = tuned(host, &state, || roll_back(|_| true));
        assert!(report.iter().all(|p| p.how.is_settled()), "{report:#?}");
        assert_eq!(everything(host, device), before, "{shape}");
    }
    // If an essential setting becomes impossible, the profile is refused before anything is changed.
    let text = "[napi.threaded]\nvalue = true\nessential = true\n[features]\ngro = false\n";
    let profile = profile(&state, text);
    let plan = tuned(host, &state, || planned(device, &profile));
    let taken: Vec<_> =
        plan.lines.iter().filter(|l| matches!(l.state, Planned::Taken(_))).collect();
    assert!(taken.len() == 2 && taken.iter().all(|l| l.setting.contains("threaded")), "{plan:#?}");
    assert!(plan.impossible.is_some_and(|why| why.starts_with("napi.threaded: veth has NAPI")));
    assert_eq!(everything(host, device), before);
}

/// Whether the feature was switched on by this apply or before.
#[test]
fn a_feature_that_another_one_switches_off_is_reported() {
    busypoll_lab::needs_root!();
    let _one = STATE.lock();
    let (lab, state) = (Lab::builder().build().unwrap(), State::new("down"));
    let (host, device) = (&lab.server, lab.server.interface());
    let before = everything(host, device);
    let both = profile(&state, "[features]\ntso = true\nsg = false\n");
    let applied = tuned(host, &state, || applied_to(device, &both, None, None));
    let overtaken = Written::Overtaken(Value::Switch(false));
    let undone = applied.outcomes.iter().filter(|o| o.result == overtaken).count();
    assert_eq!((undone, applied.lost(), applied.refused()), (4, 4, 0), "{applied:#?}");
    tuned(host, &state, || roll_back(|_| true));
    assert_eq!(everything(host, device), before);

    let on = profile(&state, "[features]\ntso = true\n");
    tuned(host, &state, || applied_to(device, &on, None, None));
    let applied = tuned(host, &state, || applied_to(device, &both, None, None));
    assert_eq!((applied.left_out.len(), applied.lost()), (4, 4), "{applied:#?}");
    tuned(host, &state, || roll_back(|_| true));
    assert_eq!(everything(host, device), before);
}

#[test]
fn a_guard_is_shown_only_while_it_lives_and_has_a_reason_to_roll_back() {
    busypoll_lab::needs_root!();
    let _one = STATE.lock();
    let (lab, state) = (Lab::builder().queues(1).build().unwrap(), State::new("named"));
    let me = Process::find(std::process::id()).unwrap();
    let dead = Process { started: me.started + 1, ..me };
    tuned(&lab.server, &state, || {
        let profile = profile(&state, "[queues]\nrps-flow-cnt = 32\n");
        for (guard, confirm, named) in
            [(me, Some(60), true), (me, None, false), (dead, Some(60), false)]
        {
            applied_to(lab.server.interface(), &profile, Some(guard), confirm);
            let status = Status::read(&mut Machine::open().unwrap()).unwrap();
            assert_eq!(status.applies[0].guard.is_some(), named, "{status:#?}");
            roll_back(|_| true);
        }
    });
}

/// Some drivers keep NAPI settings while the device is down: they are restored when it is up.
#[test]
fn a_device_that_is_down_keeps_its_journal() {
    busypoll_lab::needs_root!();
    busypoll_lab::needs!(program "ip");
    let _one = STATE.lock();
    let (lab, state) = (Lab::builder().queues(1).build().unwrap(), State::new("down"));
    let (host, device) = (&lab.server, lab.server.interface());
    let before = everything(host, device);
    tuned(host, &state, || apply_to(device, &Profile::find("irq-suspend").unwrap()));
    ip(host, &format!("link set {device} down"));
    let report = tuned(host, &state, || roll_back(|_| true));
    assert!(report.iter().all(|p| matches!(&p.how, How::Down(why) if why.contains("down"))));
    assert_eq!(state.journals().len(), 1);
    ip(host, &format!("link set {device} up"));
    let report = tuned(host, &state, || roll_back(|_| true));
    assert!(report.iter().all(|p| p.how.is_settled()), "{report:#?}");
    assert_eq!(everything(host, device), before);
    assert!(state.journals().is_empty());
}

/// A restored setting is done with, even if the rest waits for its device.
#[test]
fn a_partial_rollback_does_not_touch_restored_settings_again() {
    busypoll_lab::needs_root!();
    busypoll_lab::needs!(program "ip");
    let _one = STATE.lock();
    let (namespace, state) = (Lab::single().unwrap(), State::new("parts"));
    pair(&namespace, 10, "02:00:00:00:00:01");
    ip(&namespace, "link add here0 type veth peer name there0");
    let flows = |write: Option<&str>| {
        tuned(&namespace, &state, || {
            let (sysfs, name) = (Sysfs::open().unwrap(), "queues/rx-0/rps_flow_cnt");
            if let Some(value) = write {
                sysfs.set_attribute("here0", name, value).unwrap();
            }
            sysfs.attribute("here0", name).unwrap()
        })
    };
    let profile = profile(&state, "[queues]\nrps-flow-cnt = 32\n");
    for device in ["tuned0", "here0"] {
        tuned(&namespace, &state, || apply_to(device, &profile));
    }
    assert_eq!(flows(None), "32");

    ip(&namespace, "link del tuned0");
    let report = tuned(&namespace, &state, || roll_back(|_| true));
    assert!(report.iter().any(|p| p.how == How::PutBack), "{report:#?}");
    assert!(report.iter().any(|p| matches!(p.how, How::NoDevice(_))), "{report:#?}");
    assert_eq!((flows(None).as_str(), flows(Some("64")).as_str()), ("0", "64"));

    pair(&namespace, 20, "02:00:00:00:00:01");
    let report = tuned(&namespace, &state, || roll_back(|_| true));
    assert!(report.iter().all(|p| p.device.as_deref() == Some("tuned0")), "{report:#?}");
    assert_eq!(flows(None), "64");
    assert!(state.journals().is_empty());
}
