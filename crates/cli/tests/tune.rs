//! `busypoll tune` on the command line, on one end of a lab: mistakes, confirmation, pollers that end, a closed
//! terminal, a full disk, two commands at the same time.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use busypoll_journal::Lock;
use busypoll_lab::{Lab, LabHost, needs, needs_root};
use busypoll_linux::netdev::Netdev;
use busypoll_linux::netns;
use busypoll_linux::process::Process;
use busypoll_linux::sysfs::Sysfs;
use support::*;

four_tests_at_a_time!();

/// A host, a state directory of its own, and the files beside it.
struct Fixture {
    lab: Lab,
    dir: PathBuf,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("busypoll-cli-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Fixture { lab: Lab::builder().queues(2).build().unwrap(), dir }
    }

    fn host(&self) -> &LabHost {
        &self.lab.server
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = self.host().command(BUSYPOLL);
        let arguments = arguments.replace("IF", self.host().interface());
        command.arg("tune").args(arguments.split_whitespace());
        command.env("BUSYPOLL_STATE", self.state()).current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    fn tune(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The output of the command, which must end with this exit code.
    fn output_of(&self, arguments: &str, code: i32) -> String {
        let output = self.tune(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A profile with one setting, in the file `small.toml`.
    fn small(&self) {
        fs::write(self.dir.join("small.toml"), "[queues]\nrps-flow-cnt = 32\n").unwrap();
    }

    /// Changes that setting as another program would.
    fn set_flows(&self, flows: &str) {
        let write = || {
            let device = self.host().interface();
            Sysfs::open().unwrap().set_attribute(device, "queues/rx-0/rps_flow_cnt", flows)
        };
        self.host().enter(write).unwrap().unwrap();
    }

    fn flows(&self) -> String {
        let read = || {
            Sysfs::open().unwrap().attribute(self.host().interface(), "queues/rx-0/rps_flow_cnt")
        };
        self.host().enter(read).unwrap().unwrap()
    }

    /// gro_flush_timeout of the first NAPI instance, in nanoseconds.
    fn flush_timeout(&self) -> u64 {
        let read = || Netdev::open().unwrap().napis(self.host().ifindex()).unwrap();
        self.host().enter(read).unwrap()[0].gro_flush_timeout_ns.unwrap()
    }

    /// The journal's path without its extension.
    fn journal(&self) -> Option<PathBuf> {
        let files = fs::read_dir(self.state()).into_iter().flatten().flatten();
        let mut paths = files.map(|f| f.path());
        paths.find(|p| p.extension().is_some_and(|e| e == "journal")).map(|p| p.with_extension(""))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A process that lives until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Sleeper(Command::new("sleep").arg("600").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mistakes_get_one_line_and_change_nothing() {
    needs_root!();
    let fixture = Fixture::new("mistakes");
    let file = |text: &str| fs::write(fixture.dir.join("my.toml"), text).unwrap();
    for (arguments, wanted) in [
        (
            "plan busypoll",
            &["unknown profile 'busypoll'", "(did you mean 'busy-poll'?); there are "][..],
        ),
        ("plan ./none.toml --dev IF", &["./none.toml"]),
        ("plan busy-poll --dev nosuch0", &["\"nosuch0\"", "ip link"]),
        ("plan busy-poll --dev lo", &["lo is the loopback device"]),
        ("plan busy-poll --dev IF --dev IF", &["named twice"]),
        ("plan busy-poll --dev IF --app-cpus 0-x", &["--app-cpus", "\"x\" is not a CPU number"]),
        ("plan busy-poll --dev IF --app-cpus 4000", &["CPU 4000", "online are"]),
        ("plan prefer-busy-poll", &["prefer-busy-poll", "--dev"]),
        ("apply prefer-busy-poll --dev IF", &["gro-flush-timeout", "--poller PID"]),
        ("apply prefer-busy-poll --dev IF --poller 4194399", &["4194399", "no such process"]),
        ("apply busy-poll --dev IF --confirm 10us", &["--confirm", "at least 1s"]),
        ("apply busy-poll --dev IF --confirm 1.9s", &["--confirm", "'1.9s'", "give 1s or 2s"]),
        ("apply busy-poll --dev IF --confirm soon", &["--confirm", "'soon'"]),
        ("confirm", &["there is nothing to confirm"]),
        ("export busy-poll --format yaml", &["--format", "tuned"]),
        ("export irq-suspend --format sysctl", &["irq-suspend", "--format sysctl"]),
    ] {
        fails_with(&fixture.tune(arguments), wanted);
    }
    for (text, wanted) in [
        ("[coalesce]\nrx-usec = 1\n", &["my.toml:2", "did you mean 'rx-usecs'?"][..]),
        ("[features]\nrx-gor = false\n", &["no feature 'rx-gor'", "did you mean 'rx-gro'?"]),
        ("[napi]\nirq-suspend-timeout = \"10d\"\n", &["my.toml:2", "unknown unit 'd'"]),
        ("[napi]\ngro-flush-timeout = \"1ms\"\n", &["--poller PID"]),
    ] {
        file(text);
        fails_with(&fixture.tune("apply ./my.toml --dev IF"), wanted);
    }
    assert!(fixture.journal().is_none());
    assert_eq!((fixture.flows().as_str(), fixture.flush_timeout()), ("0", 0));
}

#[test]
fn plan_apply_status_and_rollback_have_json() {
    needs_root!();
    let fixture = Fixture::new("json");
    let json = |arguments: &str| -> serde_json::Value {
        let report = serde_json::from_str(&fixture.output_of(arguments, 0)).unwrap();
        let command = arguments.split(' ').next().unwrap();
        json_schema::is_as_documented(&format!("tune-{command}"), &report);
        report
    };
    let plan = json("plan irq-suspend --dev IF --json");
    let lines = plan["lines"].as_array().unwrap();
    let suspend = lines.iter().find(|l| l["knob"]["key"] == "napi.irq-suspend-timeout").unwrap();
    assert_eq!((&suspend["now"], &suspend["then"]), (&0.into(), &20_000_000.into()));
    assert_eq!((&suspend["state"], &plan["needs_poller"]), (&"change".into(), &true.into()));
    assert!(lines.iter().all(|l| l["reason"] != "" && l["cost"] != "" && l["source"] != ""));
    assert!(fixture.journal().is_none());

    fixture.small();
    let applied = json("apply small.toml --dev IF --json".replace("small", "./small").as_str());
    assert_eq!(applied["outcomes"][0]["result"], "as-planned");
    let status = json("status --json");
    assert_eq!(status["settings"][0]["now"], 32);
    assert_eq!(json("rollback --json")[0]["how"], "put-back");
    assert_eq!(fixture.flows(), "0");
}

/// The old value is restored exactly, and a value that another program has set meanwhile is reported.
#[test]
fn a_rollback_reports_what_others_have_changed_since() {
    needs_root!();
    let fixture = Fixture::new("since");
    // The kernel rounds it up to a power of two; this is not a change by another program.
    fs::write(fixture.dir.join("odd.toml"), "[queues]\nrps-flow-cnt = 33\n").unwrap();
    fixture.output_of("apply ./odd.toml --dev IF", 0);
    assert_eq!(fixture.flows(), "64");
    let said = fixture.output_of("rollback", 0);
    assert!(said.contains("back to 0") && !said.contains("since"), "{said}");

    fixture.small();
    fixture.output_of("apply ./small.toml --dev IF", 0);
    fixture.set_flows("128");
    let said = fixture.output_of("rollback", 0);
    let line = said.lines().find(|l| l.contains("rx-0")).unwrap();
    assert!(line.ends_with("back to 0 from 128, to which it was changed since"), "{said}");
    assert_eq!(said.matches("since").count(), 1, "{said}");
    assert_eq!(fixture.flows(), "0");

    // After two applies, the second one's value is the one that may have been changed.
    fixture.output_of("apply ./small.toml --dev IF", 0);
    fixture.output_of("apply ./odd.toml --dev IF", 0);
    assert!(!fixture.output_of("rollback", 0).contains("since"));
}

#[test]
fn a_device_that_is_gone_is_reported_and_can_be_forgotten() {
    needs_root!();
    needs!(program "ip");
    let fixture = Fixture::new("gone");
    fixture.small();
    fixture.output_of("apply ./small.toml --dev IF", 0);
    let device = fixture.host().interface();
    let gone = fixture.host().command("ip").args(["link", "del", device]).status().unwrap();
    assert!(gone.success());
    let status = fixture.output_of("status", 1);
    let setting =
        format!("{device}: rps-flow-cnt of rx-0 was 0, set to 32, its device is not here\n");
    let warning = format!("Warning: {device} is gone from this network namespace: removed, or");
    assert!(status.contains(&setting), "{status}");
    assert_eq!(status.matches(&warning).count(), 1, "{status}");

    let kept = fixture.output_of("rollback", 1);
    assert!(kept.contains("not put back to 0: the device is gone"), "{kept}");
    assert!(kept.contains("2 settings are still to be put back") && kept.contains("--forget"));
    let journal = fixture.journal().unwrap().with_extension("journal");
    let kept = fs::read(&journal).unwrap();
    let forgotten = fixture.output_of("rollback --forget", 0);
    assert!(forgotten.contains("was 0: forgotten: the device is gone"), "{forgotten}");
    let end = "2 settings are forgotten, as the device is not here; everything else is as it was before.\n";
    assert!(forgotten.ends_with(end), "{forgotten}");
    assert!(!forgotten.contains("to be put back"), "{forgotten}");
    assert_eq!(fixture.output_of("status", 0), "Nothing is applied here.\n");
    // In JSON no sentence follows the list.
    fs::write(&journal, kept).unwrap();
    let json = fixture.output_of("rollback --forget --json", 0);
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
}

#[test]
fn gro_flush_timeout_is_rolled_back_when_its_last_poller_ends() {
    needs_root!();
    needs!(program "python3");
    let fixture = Fixture::new("poller");
    let (first, second) = (Sleeper::new(), Sleeper::new());
    let (a, b) = (first.0.id(), second.0.id());
    fixture.output_of(&format!("apply prefer-busy-poll --dev IF --poller {a} --poller {b}"), 0);
    assert_eq!(fixture.flush_timeout(), 200_000);
    let status = fixture.output_of("status", 0);
    assert!(status.contains(&format!("until PID {a}, {b} ends")), "{status}");
    // Neither of them polls, which shows once there is traffic.
    let traffic = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                   for i in range(200): s.sendto(b'x', ('10.77.0.2', 9))";
    let client = &fixture.lab.client;
    assert!(client.command("python3").args(["-c", traffic]).status().unwrap().success());
    wait_until("warned", || fixture.tune("status").status.code() == Some(1));
    let status = fixture.output_of("status", 1);
    assert!(status.contains("packets since was busy polled"), "{status}");
    drop(first);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(fixture.flush_timeout(), 200_000, "one poller still lives");
    drop(second);
    wait_until("rolled back", || fixture.flush_timeout() == 0 && fixture.journal().is_none());
    // The guard writes its last entry after its work.
    wait_until("the guard has finished", || {
        let output = fixture.tune("status");
        String::from_utf8_lossy(&output.stderr).contains("no poller is left")
    });
}

#[test]
fn a_killed_guard_is_reported() {
    needs_root!();
    let fixture = Fixture::new("guard");
    let poller = Sleeper::new();
    fixture.output_of(&format!("apply irq-suspend --dev IF --poller {}", poller.0.id()), 0);
    let status: serde_json::Value =
        serde_json::from_str(&fixture.output_of("status --json", 0)).unwrap();
    let guard = status["applies"][0]["guard"].as_i64().unwrap();
    assert!(Command::new("kill").args(["-9", &guard.to_string()]).status().unwrap().success());
    wait_until("the guard has ended", || fixture.tune("status").status.code() == Some(1));
    assert!(fixture.output_of("status", 1).contains("no guard is left to roll it back"));
    drop(poller);
    let status = fixture.output_of("status", 1);
    assert!(status.contains("gro-flush-timeout set and no process polls"), "{status}");
    fixture.output_of("rollback", 0);
    assert_eq!(fixture.flush_timeout(), 0);
}

#[test]
fn an_unconfirmed_apply_is_rolled_back_also_after_the_terminal_has_closed() {
    needs_root!();
    let fixture = Fixture::new("confirm");
    fixture.small();
    // On a busy machine the time may be over before it is confirmed: then the test tries a longer one.
    let in_time = |seconds: &u64| {
        fixture.output_of(&format!("apply ./small.toml --dev IF --confirm {seconds}s"), 0);
        let confirmed = fixture.tune("confirm").status.success();
        wait_until("kept or rolled back", || confirmed || fixture.journal().is_none());
        confirmed
    };
    let seconds = [1, 5, 25].into_iter().find(in_time).expect("confirmed in time");
    thread::sleep(Duration::from_millis(seconds * 1000 + 500));
    assert_eq!(fixture.flows(), "32", "it was confirmed");
    fixture.output_of("rollback", 0);

    // A shell in its own process group; the whole group gets SIGHUP.
    let mut shell = fixture.host().command("sh");
    let apply =
        format!("tune apply ./small.toml --dev {} --confirm 2s", fixture.host().interface());
    shell.args(["-c", &format!("{BUSYPOLL} {apply}; echo applied; sleep 600")]);
    shell.env("BUSYPOLL_STATE", fixture.state()).current_dir(&fixture.dir).process_group(0);
    let mut shell = shell.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    wait_until("applied", || fixture.flows() == "32");
    let group = format!("-{}", shell.id());
    assert!(Command::new("kill").args(["-HUP", "--", &group]).status().unwrap().success());
    shell.wait().unwrap();
    wait_until("rolled back", || fixture.flows() == "0" && fixture.journal().is_none());
    // The guard writes its last entry after its work.
    wait_until("the guard has finished", || {
        !error_line(&fixture.tune("confirm")).contains("in use by")
    });
    fails_with(&fixture.tune("confirm"), &["nothing to confirm", "it was not confirmed"]);
}

/// Applies are numbered anew in each journal.
#[test]
fn a_guard_does_not_touch_a_later_apply_with_its_number() {
    needs_root!();
    let fixture = Fixture::new("number");
    fixture.small();
    fixture.output_of("apply ./small.toml --dev IF --confirm 5s", 0);
    let status: serde_json::Value =
        serde_json::from_str(&fixture.output_of("status --json", 0)).unwrap();
    let guard = status["applies"][0]["guard"].as_u64().unwrap() as u32;
    let kill = |signal: &str| {
        assert!(
            Command::new("kill").args([signal, &guard.to_string()]).status().unwrap().success()
        );
    };
    kill("-STOP");
    fixture.output_of("rollback", 0);
    fixture.output_of("apply ./small.toml --dev IF", 0);
    thread::sleep(Duration::from_secs(5));
    kill("-CONT");
    wait_until("the guard has ended", || Process::open(guard).is_err());
    assert_eq!(fixture.flows(), "32");
    fixture.output_of("rollback", 0);
}

#[test]
fn a_guard_also_rolls_back_an_apply_that_was_killed() {
    needs_root!();
    let fixture = Fixture::new("killed");
    fixture.small();
    for micros in [0, 500, 1000, 2000, 3000, 5000, 8000] {
        let mut apply = fixture.command("apply ./small.toml --dev IF --confirm 1s");
        let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_micros(micros));
        apply.kill().unwrap();
        apply.wait().unwrap();
        wait_until("rolled back", || fixture.flows() == "0" && fixture.journal().is_none());
    }
}

/// A process may also end between creating the journal and writing its first entry.
#[test]
fn an_empty_journal_counts_as_none() {
    needs_root!();
    let fixture = Fixture::new("wordless");
    fixture.small();
    fixture.output_of("apply ./small.toml --dev IF", 0);
    let own = fixture.journal().unwrap().with_extension("journal");
    let number = fixture.lab.client.enter(netns::cookie).unwrap().unwrap();
    let elsewhere = fixture.state().join(format!("tune-{number}.journal"));
    let listed = || {
        let status: serde_json::Value =
            serde_json::from_str(&fixture.output_of("status --json", 0)).unwrap();
        status["elsewhere"].as_array().unwrap().len()
    };
    fs::copy(&own, &elsewhere).unwrap();
    assert_eq!(listed(), 1);
    fixture.output_of("rollback", 0);
    for file in [&own, &elsewhere] {
        fs::write(file, "").unwrap();
    }
    assert_eq!(listed(), 0);
    // A guard whose parent is not the process that made it has lost that process.
    fixture.output_of("guard 1 --maker 1", 0);
    assert!(!own.exists() && elsewhere.exists());
}

#[test]
fn a_plan_or_status_leaves_no_files() {
    needs_root!();
    let fixture = Fixture::new("look");
    fixture.small();
    fixture.output_of("status", 0);
    fixture.output_of("plan ./small.toml --dev IF", 0);
    assert!(!fixture.state().exists());
}

#[test]
fn journals_of_other_namespaces_are_listed_and_those_of_gone_ones_marked() {
    needs_root!();
    let fixture = Fixture::new("gone");
    fixture.small();
    fixture.output_of("apply ./small.toml --dev IF", 0);
    let own = fixture.journal().unwrap().with_extension("journal");
    let there = fixture.lab.client.enter(netns::cookie).unwrap().unwrap();
    let (there, gone) = (format!("tune-{there}"), format!("tune-{}", u64::MAX));
    for name in [&there, &gone] {
        fs::copy(&own, fixture.state().join(name).with_extension("journal")).unwrap();
    }
    let status: serde_json::Value =
        serde_json::from_str(&fixture.output_of("status --json", 0)).unwrap();
    assert_eq!(status["elsewhere"], serde_json::json!([there]));
    let gone = fixture.state().join(gone).with_extension("journal");
    assert_eq!(status["gone"], serde_json::json!([gone]));
    let told = fixture.output_of("status", 0);
    let line = told.lines().find(|line| line.contains("gone")).unwrap();
    assert!(line.contains(gone.to_str().unwrap()), "{told}");
    fixture.output_of("rollback", 0);
}

#[test]
fn of_two_commands_one_waits_and_then_names_the_other() {
    needs_root!();
    let fixture = Fixture::new("two");
    fixture.small();
    fixture.output_of("apply ./small.toml --dev IF", 0);
    let name = fixture.journal().unwrap();
    let lock = Lock::take(&fixture.state(), name.file_name().unwrap().to_str().unwrap()).unwrap();
    let pid = format!("PID {} (", std::process::id());
    std::thread::scope(|scope| {
        for arguments in ["rollback", "apply irq-suspend --dev IF --poller 1", "confirm"] {
            let (fixture, pid) = (&fixture, &pid);
            scope.spawn(move || fails_with(&fixture.tune(arguments), &[pid, "in use by"]));
        }
    });
    assert_eq!(fixture.flows(), "32");
    // A command that is done within two seconds is waited for.
    let done = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(lock);
    });
    fixture.output_of("rollback", 0);
    assert_eq!(fixture.flows(), "0");
    done.join().unwrap();
}

#[test]
fn a_newer_or_damaged_journal_is_left_alone() {
    needs_root!();
    let fixture = Fixture::new("newer");
    fixture.small();
    fixture.output_of("apply ./small.toml --dev IF", 0);
    let file = fixture.journal().unwrap().with_extension("journal");
    let good = fs::read_to_string(&file).unwrap();
    for (text, wanted) in [
        (good.replacen("busypoll-journal 1", "busypoll-journal 2", 1), "newer busypoll"),
        (good.replace("rps-flow-cnt", "rps-flow-cnx"), "the checksum does not fit"),
        ("root:x:0:0\n".into(), "line 1: not the first line"),
    ] {
        fs::write(&file, &text).unwrap();
        for arguments in ["status", "rollback", "apply ./small.toml --dev IF"] {
            if arguments == "apply ./small.toml --dev IF" {
                fs::write(fixture.dir.join("small.toml"), "[queues]\nrps-flow-cnt = 64\n").unwrap();
            }
            fails_with(&fixture.tune(arguments), &[file.to_str().unwrap(), wanted]);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    fs::write(&file, good).unwrap();
    fixture.output_of("rollback", 0);
    assert_eq!(fixture.flows(), "0");
}

#[test]
fn on_a_full_disk_apply_changes_nothing_and_rollback_still_works() {
    needs_root!();
    needs!(program "unshare", program "mount");
    let fixture = Fixture::new("full");
    fixture.small();
    fs::create_dir(fixture.state()).unwrap();
    let script = "mount -t tmpfs -o size=8k none $BUSYPOLL_STATE; cd $BUSYPOLL_STATE/..; \
                  head -c 9000 /dev/zero > state/full; $1 && exit 8; $2 && exit 9; rm state/full; \
                  $1 && { head -c 9000 /dev/zero > state/full; $3; }";
    let line = |arguments: &str| {
        let arguments = arguments.replace("IF", fixture.host().interface());
        format!("{BUSYPOLL} tune {arguments}")
    };
    let output = fixture
        .host()
        .command("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(line("apply ./small.toml --dev IF"))
        .arg(line(&format!("apply irq-suspend --dev IF --poller {}", std::process::id())))
        .arg(line("rollback"))
        .env("BUSYPOLL_STATE", fixture.state())
        .current_dir(&fixture.dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no space left") && said.contains("nothing was changed"), "{output:?}");
    assert!(output.status.success(), "{output:?}");
    assert_eq!((fixture.flows().as_str(), fixture.flush_timeout()), ("0", 0));
}

#[test]
fn with_a_read_only_sys_everything_is_rolled_back() {
    needs_root!();
    needs!(program "unshare", program "mount");
    let fixture = Fixture::new("readonly");
    // GRO is switched off by ioctl, which works; then the queues' files cannot be written.
    fs::write(
        fixture.dir.join("p.toml"),
        "[features]\nrx-gro-list = true\n[queues]\nrps-flow-cnt = 32\n",
    )
    .unwrap();
    let apply = format!("exec {BUSYPOLL} tune apply ./p.toml --dev {}", fixture.host().interface());
    let output = fixture
        .host()
        .command("unshare")
        .args(["-m", "sh", "-c", &format!("mount -t sysfs -o ro none /sys && {apply}")])
        .env("BUSYPOLL_STATE", fixture.state())
        .current_dir(&fixture.dir)
        .output()
        .unwrap();
    fails_with(&output, &["Read-only file system", "as it was before"]);
    assert!(fixture.journal().is_none());
    let list = fixture
        .host()
        .enter(|| {
            let features =
                busypoll_linux::ethtool::Ethtool::open(fixture.host().interface()).unwrap();
            features.all_off(&["rx-gro-list"]).unwrap()
        })
        .unwrap();
    assert!(list && fixture.flows() == "0");
}

/// Root of a user namespace owns its network namespace, but per-NAPI settings need root of the initial one.
#[test]
fn root_of_a_user_namespace_learns_what_is_missing_and_nothing_remains() {
    needs_root!();
    needs!(program "setpriv", program "unshare");
    let fixture = Fixture::new("userns");
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let can =
        Command::new("setpriv").args(user).args(["unshare", "--user", "true"]).output().unwrap();
    if !can.status.success() {
        return busypoll_lab::needs::skipped(module_path!(), "user namespaces for every user");
    }
    // A copy of the command that every user can read, and a directory that the user may write.
    let (program, state) = (fixture.dir.join("busypoll"), fixture.dir.join("open"));
    fs::copy(BUSYPOLL, &program).unwrap();
    fs::create_dir(&state).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&state, open).unwrap();
    let script = "\"$0\" tune apply irq-suspend --dev lab-client --poller $$; echo code $?; \
                  \"$0\" tune plan irq-suspend --dev lab-client; ls \"$BUSYPOLL_STATE\"";
    let output = Command::new("setpriv")
        .args(user)
        .arg(&program)
        .args(["lab", "--", "sh", "-c", script])
        .arg(&program)
        .env("BUSYPOLL_STATE", &state)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(out.contains("code 2"), "{output:?}");
    assert!(err.contains("CAP_NET_ADMIN") && err.contains("initial user namespace"), "{output:?}");
    assert!(out.contains("0us -> 20ms"), "a setting remained: {out}");
    assert!(!out.contains(".journal"), "{out}");
}
