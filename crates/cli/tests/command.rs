//! The command as a user sees it: exit codes, errors in one line, nothing left behind.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use busypoll_lab::{needs, needs_root};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

const BUSYPOLL: &str = env!("CARGO_BIN_EXE_busypoll");

fn busypoll(arguments: &[&str]) -> Output {
    Command::new(BUSYPOLL).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The only line of an output, apart from the lab's banner; exit code 2.
fn error_line(output: &Output) -> String {
    error_line_with(output, 2)
}

fn error_line_with(output: &Output, code: i32) -> String {
    let lines = text(&output.stderr).lines().filter(|line| !line.starts_with("busypoll: lab "));
    let lines: Vec<&str> = lines.collect();
    assert_eq!((lines.len(), text(&output.stdout)), (1, ""), "{output:?}");
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    lines[0].to_owned()
}

#[test]
fn mistakes_get_one_line_with_a_remedy_and_exit_code_2() {
    for (arguments, named) in [
        (&["lab", "--host", "router"][..], "possible values: client, server"),
        (&["lab", "--frobnicate"], "'--frobnicate'"),
        (&["labb"], "'labb'"),
        (&[], "'busypoll' requires a subcommand"),
        (&["tune"], "'busypoll tune' requires a subcommand but one was not provided: try"),
        (&["policy"], "'busypoll policy' requires a subcommand"),
        (&["soak", "--clients", "0"], "--clients"),
        (&["doctor", "--prove", "0"], "at least 10ms"),
        // A bare number is microseconds.
        (&["doctor", "--prove", "2"], "at least 10ms"),
        (&["doctor", "--list", "--json"], "--list"),
        (&["bench", "--list", "--arms", "kernel-*"], "--list"),
    ] {
        let line = error_line(&busypoll(arguments));
        assert!(line.starts_with("busypoll: ") && line.contains(named), "{line}");
        assert!(line.ends_with("try --help"), "{line}");
    }
}

#[test]
fn the_benchmark_refuses_impossible_options_in_one_line() {
    for (arguments, named) in [
        (["bench", "--cpus", "0,x"], "--cpus"),
        (["bench", "--cpus", "0,8191"], "CPU 8191"),
        (["bench", "--size", "1,big"], "--size"),
        (["bench", "--rounds", "0"], "--rounds"),
        (["bench", "--arms", "telepathy"], "telepathy"),
        (["bench", "--duration", "soon"], "--duration"),
        (["serve", "--listen", "nowhere"], "--listen"),
        (["serve", "--listen", "192.0.2.1:7"], "192.0.2.1:7"),
        (["serve", "--listen", "127.0.0.1:65535"], "next port"),
        (["serve", "--cpu", "8191"], "CPU 8191"),
    ] {
        let line = error_line(&busypoll(&arguments));
        assert!(line.starts_with("busypoll: ") && line.contains(named), "{line}");
    }
}

/// For each crate that prints something.
#[test]
fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
    let state = std::env::temp_dir().join(format!("busypoll-command-{}", std::process::id()));
    fs::create_dir(&state).unwrap();
    let policy = state.join("policy.toml");
    fs::write(&policy, "").unwrap();
    let own = std::process::id().to_string();
    for arguments in [
        &["bench", "--list"][..],
        &["doctor", "--list"],
        &["policy", "check", policy.to_str().unwrap()],
        &["ss"],
        &["tune", "status"],
        &["attach", &own],
        &["detach", &own],
    ] {
        let to = |stdout: Stdio| {
            let mut command = Command::new(BUSYPOLL);
            command.env("BUSYPOLL_STATE", &state).args(arguments).stdout(stdout);
            command.output().unwrap()
        };
        let read = to(Stdio::piped());
        assert!(!read.stdout.is_empty(), "{arguments:?}");
        let closed = to(std::io::pipe().unwrap().1.into());
        assert_eq!((closed.status, &closed.stderr), (read.status, &read.stderr), "{arguments:?}");
        let full = to(fs::File::options().write(true).open("/dev/full").unwrap().into());
        // attach and detach have done their work before they print.
        let code = if matches!(arguments[0], "attach" | "detach") { 1 } else { 2 };
        let line = text(&full.stderr);
        assert!(line.contains("standard output: No space left"), "{arguments:?}: {line}");
        assert_eq!((full.status.code(), line.lines().count()), (Some(code), 1), "{line}");
    }
    fs::remove_dir_all(state).unwrap();
}

#[test]
fn a_mistake_has_exit_code_2_although_standard_error_is_closed() {
    for arguments in [&["ben"][..], &["bench", "--size", "0,1"], &["attach", "4194305"]] {
        let mut command = Command::new(BUSYPOLL);
        command.args(arguments).stderr(std::io::pipe().unwrap().1);
        assert_eq!(command.status().unwrap().code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn help_is_printed_also_about_help() {
    let asked = busypoll(&["--help"]);
    assert!(asked.status.success());
    let help = text(&asked.stdout);
    assert!(help.contains("Usage: busypoll") && help.contains("  bench "), "{help}");
    for (about_help, same) in [
        (&["help", "--help"][..], &["help"][..]),
        (&["help", "-h"], &["help"]),
        (&["help", "tune", "--help"], &["help", "tune"]),
        (&["tune", "help", "--help"], &["tune", "help"]),
    ] {
        let (asked, same) = (busypoll(about_help), busypoll(same));
        assert!(asked.status.success(), "{about_help:?}: {asked:?}");
        assert_eq!(text(&asked.stdout), text(&same.stdout), "{about_help:?}");
    }
    assert!(error_line(&busypoll(&["help", "--version"])).contains("'--version'"));
}

#[test]
fn the_exit_code_of_a_command_in_a_lab_is_passed_on() {
    needs_root!();
    assert_eq!(busypoll(&["lab", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(busypoll(&["lab", "true"]).status.code(), Some(0));
    assert_eq!(busypoll(&["lab", "--", "sh", "-c", "kill -TERM $$"]).status.code(), Some(143));
    // As for env(1), also inside a lab.
    for (program, code) in [("/nonexistent/program", 127), ("/etc/passwd", 126), ("/etc", 126)] {
        let line = error_line_with(&busypoll(&["lab", "--", program]), code);
        assert!(line.starts_with(&format!("busypoll: cannot run {program}: ")), "{line}");
        let inside = busypoll(&["lab", "--", BUSYPOLL, "lab", "--host", "server", program]);
        assert_eq!(error_line_with(&inside, code), line);
    }
}

#[test]
fn a_mistyped_word_gets_the_nearest_name_if_one_is_near() {
    for (arguments, meant) in [
        (&["bensh"][..], "bench"),
        (&["docter"], "doctor"),
        (&["tune", "plna", "busy-poll"], "plan"),
        (&["run", "--stric", "true"], "--strict"),
        (&["bench", "--arms", "kernel-upd-spin"], "kernel-udp-spin"),
        (&["bench", "--workload", "crr", "--arms", "kernel-tcp-cr"], "kernel-tcp-crr"),
    ] {
        let line = error_line(&busypoll(arguments));
        assert!(line.contains(&format!("did you mean '{meant}'?")), "{line}");
    }
    for arguments in [
        &["frobnicate"][..],
        &["xyzzy"],
        &["tune", "xyzzy"],
        &["run", "--xyzzy", "true"],
        &["bench", "--arms", "telepathy"],
        &["bench", "--workload", "stream", "--arms", "x"],
    ] {
        let line = error_line(&busypoll(arguments));
        assert!(!line.contains("did you mean"), "{line}");
    }
}

#[test]
fn json_on_standard_output_is_all_of_it() {
    let folder = std::env::temp_dir().join(format!("busypoll-stdout-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    for arguments in [
        &["bench", "--duration", "300ms", "--rounds", "1"][..],
        &["bench", "--duration", "300ms", "--stages"],
        &["bench", "--duration", "900ms", "--rounds", "1", "--sweep", "coalesce"],
        &[
            "bench",
            "--duration",
            "300ms",
            "--rounds",
            "1",
            "--workload",
            "stream",
            "--svg",
            "it.svg",
        ],
    ] {
        let arm = match arguments {
            [.., "--stages"] => "stack-cable-udp-busy-poll",
            [.., "--svg", _] => "stack-cable-tcp-stream",
            _ => "stack-cable-udp-interrupt-same-cpu",
        };
        let mut command = Command::new(BUSYPOLL);
        command.args(arguments).args(["--arms", arm, "--json", "-"]).current_dir(&folder);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["schema"].is_string() && report["machine"].is_object(), "{report}");
        assert!(!folder.join("-").exists());
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A bench that gets SIGINT after a while. The process that started the tests may have that signal ignored.
fn ended_by_ctrl_c(options: &[&str], after: Duration) -> Output {
    let mut command = Command::new(BUSYPOLL);
    command.args(["bench", "--arms", "stack-cable-udp-interrupt-same-cpu"]).args(options);
    // SAFETY: a plain call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(after);
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    let output = bench.wait_with_output().unwrap();
    // So that the waiting shell sees a death by SIGINT.
    assert_eq!(output.status.signal(), Some(libc::SIGINT), "{output:?}");
    output
}

#[test]
fn ctrl_c_reports_the_finished_rounds() {
    // Of half a second each; how long the first takes on a busy machine is unknown.
    let options = ["--duration", "500s", "--rounds", "1000", "--json", "-"];
    let output = [2, 8, 32].iter().find_map(|seconds| {
        let output = ended_by_ctrl_c(&options, Duration::from_secs(*seconds));
        (!output.stdout.is_empty()).then_some(output)
    });
    let output = output.expect("a finished round");
    let said = text(&output.stderr);
    assert!(said.contains("is reported within") && said.contains(" of 1000 rounds"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rounds = report["machine"]["rounds"].as_u64().unwrap();
    assert!((1..1000).contains(&rounds), "{rounds}");
    assert!(report["arms"][0]["transactions"].as_u64() > Some(0), "{report}");
    let idle = report["machine"]["idle_cpu_share"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&idle), "{idle}");
}

/// Before the first round is finished there is nothing to report, and the bench ends at once.
#[test]
fn ctrl_c_ends_a_bench_without_a_finished_round() {
    let output = ended_by_ctrl_c(&["--duration", "1h", "--rounds", "1"], Duration::from_secs(1));
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn a_command_in_a_lab_reaches_the_other_host_of_the_same_lab() {
    needs_root!();
    let script = format!(
        "echo $BUSYPOLL_LAB_HOST $BUSYPOLL_LAB_INTERFACE $BUSYPOLL_LAB_ADDRESS $BUSYPOLL_LAB_PEER
         {BUSYPOLL} lab --host client -- sh -c 'readlink /proc/self/ns/net; echo $BUSYPOLL_LAB_ADDRESS'
         {BUSYPOLL} lab --host client -- readlink /proc/self/ns/net
         readlink /proc/self/ns/net"
    );
    let output = busypoll(&["lab", "--host", "server", "--", "sh", "-c", &script]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let [server, client, address, client_again, here] = lines[..] else { panic!("{output:?}") };
    assert_eq!(server, "server lab-server 10.77.0.2 10.77.0.1");
    assert_eq!((client, address), (client_again, "10.77.0.1"));
    assert_ne!(client, here);
    // One lab, one banner.
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
}

#[test]
fn bench_and_serve_meet_across_the_lab() {
    needs_root!();
    let script = format!(
        "{BUSYPOLL} lab --host server -- {BUSYPOLL} serve --once >&2 &
         for attempt in $(seq 100); do
             {BUSYPOLL} bench --host $BUSYPOLL_LAB_PEER --duration 2s --rounds 1 \\
                 --arms kernel-udp-spin && break
             sleep 0.1
         done
         wait"
    );
    let output = busypoll(&["lab", "--", "sh", "-c", &script]);
    assert!(text(&output.stdout).contains("kernel-udp-spin"), "{output:?}");
}

#[test]
fn a_lab_that_has_ended_is_reported_as_such() {
    let output = Command::new(BUSYPOLL)
        .args(["lab", "true"])
        .envs([("BUSYPOLL_LAB_CLIENT_NS", "/proc/0/fd/3"), ("BUSYPOLL_LAB_CLIENT_CPU", "0")])
        .output();
    let line = error_line_with(&output.unwrap(), 125);
    assert!(line.contains("has ended") && line.contains("/proc/0/fd/3"), "{line}");
}

/// A lab with a long-running command, the command's PID, and its network namespace.
fn long_running() -> (Child, Pid, PathBuf) {
    let mut lab = Command::new(BUSYPOLL)
        .args(["lab", "--", "sh", "-c", "echo $$ $(readlink /proc/self/ns/net); exec sleep 1000"])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(lab.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (pid, namespace) = line.trim().split_once(' ').unwrap();
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    // The shell prints the line before `exec sleep`, and until then reacts to signals in its own way.
    wait_until("sleep starts", || comm(pid).is_some_and(|name| name.trim() == "sleep"));
    (lab, pid, namespace.into())
}

fn comm(pid: Pid) -> Option<String> {
    fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).ok()
}

/// The processes in the namespace. Its number may be reused when all of them have left.
fn processes_in(namespace: &PathBuf) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    processes.filter(|process| is_in(process, namespace)).collect()
}

fn is_in(process: &Path, namespace: &PathBuf) -> bool {
    fs::read_link(process.join("ns/net")).is_ok_and(|ns| &ns == namespace)
}

fn wait_until_gone(processes: &[PathBuf], namespace: &PathBuf) {
    let left = || processes.iter().any(|process| is_in(process, namespace));
    wait_until("the namespace empties", || !left());
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "still waiting: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ctrl_c_ends_the_command_and_then_the_lab() {
    needs_root!();
    let (mut lab, _, namespace) = long_running();
    let those = processes_in(&namespace);
    assert!(!those.is_empty());
    // As a terminal at Ctrl-C: the signal goes to the whole foreground process group.
    kill_process_group(Pid::from_child(&lab), Signal::INT).unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(130));
    wait_until_gone(&those, &namespace);
}

#[test]
fn the_command_does_not_outlive_a_killed_lab() {
    needs_root!();
    for signal in [Signal::KILL, Signal::TERM] {
        let (mut lab, _, namespace) = long_running();
        let those = processes_in(&namespace);
        kill_process(Pid::from_child(&lab), signal).unwrap();
        assert_eq!(lab.wait().unwrap().signal(), Some(signal.as_raw()));
        wait_until_gone(&those, &namespace);
    }
}

/// A copy of the command that any user may run, whatever the permissions of the build folder.
struct PublicCopy(PathBuf);

impl PublicCopy {
    fn new(test: &str) -> Self {
        // In a folder of its own, which any user may write: the command looks for its library beside itself.
        let folder = std::env::temp_dir().join(format!("busypoll-{test}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let path = folder.join("busypoll");
        // Copied by another process: this process's forks for other tests would hold the file open for writing, and
        // busy.
        let copied = Command::new("cp").arg(BUSYPOLL).arg(&path).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for PublicCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

/// The command line in front of a program that runs as `nobody`.
fn as_nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
}

#[test]
fn a_program_that_only_other_users_may_execute_is_refused_in_one_line() {
    needs_root!();
    needs!(program "setpriv");
    let (copy, program) = (PublicCopy::new("run"), PublicCopy::new("roots"));
    fs::set_permissions(&program.0, fs::Permissions::from_mode(0o744)).unwrap();
    let run = as_nobody().arg(&copy.0).args(["run", "--"]).arg(&program.0).output().unwrap();
    let said = text(&run.stderr);
    assert!(said.contains("not executable by this user") && said.lines().count() == 1, "{run:?}");
    assert_eq!(run.status.code(), Some(126));
}

#[test]
fn a_user_without_root_gets_a_lab_where_user_namespaces_are_allowed() {
    needs_root!();
    needs!(program "setpriv", program "unshare");
    let copy = PublicCopy::new("user");
    let nobody = |arguments: &[&str]| as_nobody().args(arguments).output().unwrap();
    if !nobody(&["unshare", "--user", "true"]).status.success() {
        needs::skipped(module_path!(), "a system that allows unprivileged user namespaces");
        return;
    }
    let program = copy.0.to_str().unwrap();
    let script = format!(
        "id -u; readlink /proc/self/ns/net; {program} lab --host server -- readlink /proc/self/ns/net"
    );
    let output = nobody(&[program, "lab", "--", "sh", "-c", &script]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let [uid, client, server] = lines[..] else { panic!("{output:?}") };
    assert_eq!((uid, output.status.code()), ("0", Some(0)));
    assert!(server.starts_with("net:") && client != server, "{output:?}");
    // The copy has no library beside it; its lab it gets.
    let soak = nobody(&[program, "soak", "--plane", "kernel", "--duration", "1s"]);
    let said = text(&soak.stderr);
    assert!(said.contains("libbusypoll_preload") && !said.contains("network namespace"), "{said}");
}

#[test]
fn a_user_without_root_learns_which_sysctl_forbids_user_namespaces() {
    needs_root!();
    needs!(program "setpriv", program "unshare");
    let copy = PublicCopy::new("limit");
    // user.max_user_namespaces counts per user namespace: a private one has its own, to be set to zero.
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces &&
         exec setpriv --bounding-set=-all --inh-caps=-all {} lab true",
        copy.0.display()
    );
    let output =
        Command::new("unshare").args(["--user", "--map-root-user", "sh", "-c", &script]).output();
    let line = error_line_with(&output.unwrap(), 125);
    for wanted in
        ["busypoll: ", "user.max_user_namespaces is 0", "sysctl user.max_user_namespaces="]
    {
        assert!(line.contains(wanted), "{line}");
    }
}

/// The report of a short bench by `user`, who runs the copy with the given options.
fn benched(copy: &PublicCopy, user: impl FnOnce(&str) -> Command) -> Value {
    let json = copy.0.with_extension("json");
    let options = "--arms stack-cable-udp-*,kernel-udp-blocking,stack-xdp-udp-interrupt,bare-xdp-spin \
        --busy-poll 20ms --duration 2s --rounds 2";
    let bench = format!("{} bench {options} --json {}", copy.0.display(), json.display());
    let output = user(&bench).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = fs::read_to_string(&json).unwrap();
    let _ = fs::remove_file(&json);
    serde_json::from_str(&report).unwrap()
}

/// The arms of the cable and the limit are in the report. Exactly the arms named in `skipped` are skipped; each is
/// listed with the given cause and remedy.
fn ran_all_but(report: &Value, skipped: &[(&str, &[&str])]) {
    assert!(report["limit"]["shared_memory_rtt_us"].as_f64().unwrap() > 0.0, "{report}");
    let mut ran = 0;
    for arm in report["arms"].as_array().unwrap() {
        assert!(arm["transactions"].as_u64().unwrap() > 0, "{arm}");
        if arm["nic"] == "cable" {
            // A thread that never gets its CPU cannot poll.
            assert!(arm["valid"] == true || arm["mode"] == "busy-poll", "{arm}");
            ran += 1;
        }
    }
    assert_eq!(ran, 3, "{report}");
    let listed = report["skipped"].as_array().unwrap();
    assert_eq!(listed.len(), skipped.len(), "{report}");
    for (name, wanted) in skipped {
        let entry = listed.iter().find(|entry| entry["name"] == *name).unwrap();
        let reason = entry["reason"].as_str().unwrap();
        assert!(wanted.iter().all(|wanted| reason.contains(wanted)), "{reason}");
    }
}

#[test]
fn a_user_without_root_benches_the_arms_that_need_no_rights() {
    needs_root!();
    needs!(program "setpriv", program "unshare");
    let copy = PublicCopy::new("bench");
    let report = benched(&copy, |bench| {
        // A user namespace in which no other may be created.
        let script = format!(
            "echo 0 > /proc/sys/user/max_user_namespaces &&
             exec setpriv --bounding-set=-all --inh-caps=-all {bench}"
        );
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-f", "-c", &script]);
        command
    });
    let reason: &[&str] = &["user.max_user_namespaces is 0", "sysctl user.max_user_namespaces="];
    let skipped = ["kernel-udp-blocking", "stack-xdp-udp-interrupt", "bare-xdp-spin"];
    ran_all_but(&report, &skipped.map(|name| (name, reason)));
}

#[test]
fn a_user_without_root_benches_the_kernel_where_user_namespaces_are_allowed() {
    needs_root!();
    needs!(program "setpriv", program "unshare");
    if !as_nobody().args(["unshare", "--user", "true"]).status().unwrap().success() {
        needs::skipped(module_path!(), "a system that allows unprivileged user namespaces");
        return;
    }
    let copy = PublicCopy::new("bench-user");
    let report = benched(&copy, |bench| {
        let mut command = as_nobody();
        command.args(bench.split_whitespace());
        command
    });
    // The bench has created the namespace itself, and has all capabilities in it.
    let reason: &[&str] = &["needs root", "a user namespace of its own", "sudo"];
    ran_all_but(&report, &["stack-xdp-udp-interrupt", "bare-xdp-spin"].map(|name| (name, reason)));
    let kernel = |arm: &Value| arm["name"] == "kernel-udp-blocking";
    assert!(report["arms"].as_array().unwrap().iter().any(kernel), "{report}");
}

#[test]
fn a_lab_s_default_command_is_a_shell_which_ends_with_a_killed_lab() {
    needs_root!();
    needs!(program "bash");
    let mut lab = Command::new(BUSYPOLL)
        .arg("lab")
        .env("SHELL", "bash")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut shell = lab.stdin.take().unwrap();
    writeln!(shell, "readlink /proc/self/ns/net").unwrap();
    let mut line = String::new();
    BufReader::new(lab.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let namespace = PathBuf::from(line.trim());
    let those = processes_in(&namespace);
    assert!(!those.is_empty(), "{line}");
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until_gone(&those, &namespace);
}
