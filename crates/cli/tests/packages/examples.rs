//! The examples of services and containers, run as far as a machine without systemd or a container daemon can.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::built::{Packages, tree};
use crate::output;
use crate::root::Root;

fn example(name: &str) -> String {
    fs::read_to_string(tree("packaging").join(name)).unwrap()
}

/// Units that systemd would take, and their commands.
pub fn units(root: &Root) {
    if !busypoll_lab::needs::has_program("systemd-analyze") {
        busypoll_lab::needs::skipped(module_path!(), "the program `systemd-analyze` in PATH");
        return;
    }
    let verify = |unit: &str| {
        let mut command = root.command(&["systemd-analyze", "verify", "--man=no", unit]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // The machine's own units may be found wanting, too.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("busypoll")).collect();
        assert!(ours.is_empty(), "{unit}: {ours:?}");
    };
    verify("/usr/lib/systemd/system/busypoll-tune@lab-client.service");
    verify("/usr/lib/systemd/system/busypoll-exporter.service");
    for name in ["run.conf", "run-stack.conf"] {
        let text = example(&format!("systemd/{name}")).replace("PROGRAM ARGUMENTS", "echo ran");
        let service = "[Service]\nExecStart=/usr/bin/echo plain\n";
        root.write("etc/systemd/system/busypoll-example.service", service);
        root.write("etc/systemd/system/busypoll-example.service.d/busypoll.conf", &text);
        verify("/etc/systemd/system/busypoll-example.service");
        let command = exec_start(&text).replace("--dev eth1", "--dev lab-client");
        let rights = text.lines().find_map(|line| line.strip_prefix("AmbientCapabilities="));
        let rights = rights.map_or(String::new(), |rights| rights.replace("CAP_", ""));
        // As systemd starts it for a user without rights: those of the unit are ambient.
        let caps: Vec<String> =
            rights.split_whitespace().map(|it| format!("+{}", it.to_lowercase())).collect();
        let caps =
            if caps.is_empty() { "-all".to_owned() } else { format!("-all,{}", caps.join(",")) };
        let mut words = vec!["busypoll", "lab", "--", "setpriv"];
        words.extend(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        words.extend(["--inh-caps", &caps, "--ambient-caps", &caps]);
        words.extend(command.split_whitespace());
        let output = root.command(&words).output().unwrap();
        assert!(output.status.success() && is_silent(&output), "{name}: {output:?}");
        assert_eq!(output.stdout, b"ran\n");
    }
    fs::remove_dir_all(root.at("etc/systemd/system/busypoll-example.service.d")).unwrap();
    fs::remove_file(root.at("etc/systemd/system/busypoll-example.service")).unwrap();

    let unit = example("systemd/busypoll-tune@.service");
    let command = exec_start(&unit).replace("${PROFILE}", "busy-poll").replace("%i", "lab-client");
    applies_and_rolls_back(root, &command);
}

/// Nothing on standard error but what the lab says of itself.
fn is_silent(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).lines().all(|line| line.starts_with("busypoll: lab "))
}

/// The last `ExecStart` of a unit.
fn exec_start(unit: &str) -> String {
    let mut commands = unit.lines().rev().filter_map(|line| line.strip_prefix("ExecStart="));
    commands.next().unwrap().to_owned()
}

/// A command that applies a profile to `lab-client`, on a host of a lab.
fn applies_and_rolls_back(root: &Root, command: &str) {
    let script = format!(
        "{command}; code=$?; busypoll tune status --json; busypoll tune rollback >&2; exit $code"
    );
    let output = root.command(&["busypoll", "lab", "--", "sh", "-c", &script]).output().unwrap();
    // A lab has no sysctls of its own, and a veth little to set: refusals are results, mistakes are not.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("lab-client"), "{output:?}");
}

/// The steps of the Dockerfile, in a root of this machine in place of the image it begins with.
pub fn dockerfile(root: &Root, packages: &Packages) {
    let context = packages.folder("context");
    let tarball = packages.tarball();
    fs::copy(&tarball, context.join(tarball.file_name().unwrap())).unwrap();
    fs::copy("/bin/echo", context.join("feed-handler")).unwrap();
    let mut start: Vec<String> = Vec::new();
    for line in example("containers/Dockerfile").lines() {
        let Some((step, rest)) = line.split_once(' ') else { continue };
        match step {
            "#" | "FROM" => {}
            "COPY" => {
                let words: Vec<&str> = rest.split(' ').collect();
                let [what, to] = words[..] else { panic!("{line}") };
                let copy = format!("cp {what} {}", root.at(to.trim_start_matches('/')).display());
                output(Command::new("sh").args(["-c", &copy]).current_dir(&context));
            }
            "RUN" => {
                root.says(&["sh", "-c", rest]);
            }
            "ENTRYPOINT" | "CMD" => {
                start.extend(serde_json::from_str::<Vec<String>>(rest).unwrap())
            }
            _ => panic!("a step that this test does not know: {line}"),
        }
    }
    let words: Vec<&str> = start.iter().map(String::as_str).chain(["ran"]).collect();
    let output = root.command(&words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(output.stdout, b"ran\n");
}

/// The documents of a YAML file; none where Python cannot read it.
fn yaml(name: &str) -> Option<Vec<Value>> {
    let mut command = Command::new("/usr/bin/python3");
    let script =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    command.args(["-c", script]).arg(tree("packaging/containers").join(name));
    if !Command::new("/usr/bin/python3")
        .args(["-c", "import yaml"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|it| it.success())
    {
        busypoll_lab::needs::skipped(module_path!(), "Python's yaml (Debian: python3-yaml)");
        return None;
    }
    Some(serde_json::from_str(&output(&mut command)).unwrap())
}

fn words(value: &Value) -> Vec<String> {
    let words = value.as_array().into_iter().flatten();
    words.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// A program that waits for a datagram: only then is the interface used.
const WAITS: &str = r#"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.77.0.1", 7000))
s.settimeout(0.2)
try:
    s.recv(1)
except TimeoutError:
    print("waited")
"#;

/// The pods' programs run with the capabilities that the pods name, and with one less they do not.
pub fn pods(root: &Root) {
    for name in ["kernel-plane.yaml", "stack-plane.yaml"] {
        let Some(documents) = yaml(name) else { return };
        let container = &documents[0]["spec"]["containers"][0];
        let capabilities = &container["securityContext"]["capabilities"];
        assert_eq!(words(&capabilities["drop"]), ["ALL"], "{name}");
        let rights = words(&capabilities["add"]);
        let mut program = vec!["busypoll".to_owned(), "run".into(), "--strict".into()];
        program.extend(words(&container["args"]));
        let handler = program.pop();
        assert_eq!(handler.as_deref(), Some("feed-handler"));
        let dev = program.iter_mut().find(|word| *word == "eth1");
        dev.into_iter().for_each(|word| *word = "lab-client".into());
        program.extend(["/usr/bin/python3", "-c", WAITS].map(str::to_owned));
        let output = with_rights(root, &rights, &program);
        assert!(output.status.success() && is_silent(&output), "{name}: {output:?}");
        for missing in &rights {
            let fewer: Vec<String> = rights.iter().filter(|it| *it != missing).cloned().collect();
            let output = with_rights(root, &fewer, &program);
            assert!(!output.status.success(), "{name}: {missing} is not needed");
        }
    }
}

/// A program as root of a container with these capabilities, and the memory that a container may lock.
fn with_rights(root: &Root, rights: &[String], program: &[String]) -> Output {
    let caps: String = rights.iter().map(|it| format!(",+{}", it.to_lowercase())).collect();
    let caps = format!("-all{caps}");
    let mut words = vec!["busypoll", "lab", "--", "prlimit", "--memlock=65536", "setpriv"];
    words.extend(["--no-new-privs", "--bounding-set", &caps, "--inh-caps", &caps]);
    words.extend(program.iter().map(String::as_str));
    root.command(&words).output().unwrap()
}

/// The container that tunes a node.
pub fn daemon_set(root: &Root) {
    let Some(documents) = yaml("tune-daemonset.yaml") else { return };
    let pod = &documents[0]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let command = words(&container["command"]);
    let ["sh", "-c", script] = command.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("{command:?}");
    };
    let script = script.replace("eth1", "lab-client").replace("exec sleep infinity", "true");
    applies_and_rolls_back(root, &script);
    let stop = words(&container["lifecycle"]["preStop"]["exec"]["command"]);
    assert_eq!(stop, ["busypoll", "tune", "rollback"]);
    // What it wrote down outlives the container.
    let mounted = container["volumeMounts"][0]["mountPath"].as_str();
    assert_eq!(
        (mounted, pod["volumes"][0]["hostPath"]["path"].as_str()),
        (Some("/run/busypoll"), mounted)
    );
}
