//! A host of a lab as a machine for faults.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use busypoll_lab::Lab;
use busypoll_lab::vm::CommandOutput;

use super::faults::TestMachine;
use super::vm_machine::{PORT, exchange};
use super::{BUSYPOLL, waiter};

/// The server of a lab, with a `/sys` of its own as `ip netns exec` gives, and a state directory of its own.
pub struct LabMachine {
    pub lab: Lab,
    state: PathBuf,
    waiter: Cell<Option<Child>>,
}

/// Words of remedies that would change more than the lab; no fault of a lab needs them for its cure.
const FORBIDDEN: &[&str] =
    &["sysctl", "/proc/sys", "/proc/irq", "/sys/devices", "/sys/module", "systemctl", "kill "];

impl LabMachine {
    pub fn new(lab: Lab) -> Self {
        let state = format!("busypoll-faults-{}-{}", std::process::id(), lab.server.path().len());
        let state = env::temp_dir().join(state).join(format!("{:?}", std::thread::current().id()));
        fs::create_dir_all(&state).unwrap();
        LabMachine { lab, state, waiter: Cell::new(None) }
    }

    /// A shell in the host; scripts find the other host's namespace as `$PEER`, and its device as `$PEER_DEV`.
    fn shell(&self, script: &str) -> Command {
        let folder = PathBuf::from(BUSYPOLL).parent().unwrap().to_owned();
        let path = env::var("PATH").unwrap();
        let mut command = self.lab.server.command("unshare");
        command.args(["--mount", "sh", "-c"]);
        command.arg(format!("mount -t sysfs sysfs /sys && {{ {script}\n}}"));
        command.env("PATH", format!("{}:{path}", folder.display()));
        command.env("BUSYPOLL_STATE", &self.state);
        command.env("PEER", self.lab.client.path());
        command.env("PEER_DEV", self.lab.client.interface());
        command.env("WAITER_PROGRAM", env::current_exe().unwrap());
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for LabMachine {
    fn drop(&mut self) {
        // The directory is scratch.
        let _ = fs::remove_dir_all(&self.state);
    }
}

impl TestMachine for LabMachine {
    fn sh(&self, script: &str) -> CommandOutput {
        let output = self.shell(script).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        CommandOutput {
            status: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    fn may_run(&self, remedy: &str) -> bool {
        !FORBIDDEN.iter().any(|word| remedy.contains(word))
    }

    fn start(&self, words: &str) -> u32 {
        let mut shell = self.shell("exec \"$WAITER_PROGRAM\" $WAITER_ARGUMENTS");
        shell.env("WAITER", format!("{words} port={PORT}"));
        shell.env("WAITER_ARGUMENTS", waiter::ARGUMENTS);
        let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")), "{words}");
        let pid = child.id();
        self.waiter.set(Some(child));
        pid
    }

    fn exchange_with_waiter(&self) {
        let socket = self.lab.client.enter(|| UdpSocket::bind("0.0.0.0:7301")).unwrap().unwrap();
        exchange(&socket, &self.lab.server.ipv4().to_string());
    }

    fn stop(&self, pid: u32) {
        let mut child = self.waiter.take().unwrap();
        assert_eq!(child.id(), pid);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn device(&self) -> &str {
        self.lab.server.interface()
    }
}
