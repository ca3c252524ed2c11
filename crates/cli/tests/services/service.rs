//! One service: its server and its client as lines of shell, run on the hosts of a lab.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use busypoll_lab::{Lab, LabHost, needs};

use super::echo::{one_test_at_a_time, packet_counts, readable, source, temp_dir};
use super::{BUSYPOLL, wait_until};

const PORT: &str = "7400";

/// What the stack plane does for a program.
#[derive(Clone, Copy)]
pub enum On {
    /// The packets pass by the kernel's stack.
    Accelerates,
    /// One line with these words.
    Says(&'static str),
    /// Either, unseen: the program has closed its standard error.
    Works,
}

/// The scripts find `$RUN`, which is put before what is to be on the plane, `$H` and `$PORT`, the server's address,
/// `data`, a file, and `$NOBODY`, which gives up root.
pub struct Service {
    /// Variables, and the programs that they name: in PATH, or unpacked by `.ci/tools`.
    pub programs: &'static [(&'static str, &'static str)],
    pub prepare: &'static str,
    pub server: &'static str,
    pub client: &'static str,
    pub serves: On,
    pub asks: On,
    /// A line that a program may print whatever the plane does for it; empty: none.
    pub may_say: &'static str,
}

impl Service {
    pub const NEW: Service = Service {
        programs: &[],
        prepare: "",
        server: "",
        client: "",
        serves: On::Accelerates,
        asks: On::Accelerates,
        may_say: "",
    };
}

/// Which end is on which plane.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    Plain,
    KernelBoth,
    StackServer,
    StackClient,
}

/// A program on a host; ended, with all its children, when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The programs of a service and its folder.
struct Run<'s> {
    service: &'s Service,
    variables: Vec<(String, PathBuf)>,
    folder: PathBuf,
}

pub fn check(module: &str, service: &Service) {
    let mut variables = Vec::new();
    for (variable, program) in service.programs {
        let Some(path) = find(program) else {
            return needs::skipped(module, &format!("{program}: see .ci/run and .ci/tools"));
        };
        variables.push(((*variable).to_owned(), path));
    }
    let _one = one_test_at_a_time();
    let run = Run { service, variables, folder: temp_dir("service") };
    let data: Vec<u8> =
        (0..75_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(run.folder.join("data"), data).unwrap();
    readable(&run.folder);
    let lab = Lab::builder().build().unwrap();
    let prepared = run
        .shell(&lab, &lab.server, Variant::Plain, &format!("set -e\n{}", service.prepare))
        .output();
    let prepared = prepared.unwrap();
    if !prepared.status.success() {
        let why = String::from_utf8_lossy(&prepared.stderr).into_owned();
        return needs::skipped(module, &format!("what its preparation needs: {why}"));
    }
    drop(lab);
    let plain = run.result(Variant::Plain);
    assert!(!plain.is_empty());
    for variant in [Variant::KernelBoth, Variant::StackServer, Variant::StackClient] {
        assert_eq!(plain, run.result(variant), "{variant:?}");
    }
}

/// A program in PATH or where daemons are, or in the folder of `.ci/tools`.
fn find(program: &str) -> Option<PathBuf> {
    let roots = [Some(PathBuf::from("/")), needs::unpacked("tools")];
    let mut folders = Vec::new();
    for root in roots.into_iter().flatten() {
        // Before PATH: there Debian has a script in place of these.
        let versions =
            fs::read_dir(root.join("usr/lib/postgresql")).into_iter().flatten().flatten();
        folders.extend(versions.map(|version| version.path().join("bin")));
        folders.extend([root.clone(), root.join("usr/bin"), root.join("usr/sbin")]);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

impl Run<'_> {
    /// A shell on a host of the lab, in the folder. It has processes of its own, which end with it, and a table of
    /// spinners that it shares with no other run.
    fn shell(&self, lab: &Lab, host: &LabHost, variant: Variant, script: &str) -> Command {
        let stack = format!("{BUSYPOLL} run --plane stack --dev {} --", host.interface());
        let is_server = host.interface() == lab.server.interface();
        let run = match variant {
            Variant::KernelBoth => format!("{BUSYPOLL} run --"),
            Variant::StackServer if is_server => stack,
            Variant::StackClient if !is_server => stack,
            _ => String::new(),
        };
        // Not on one CPU: a service has processes that wait for each other.
        let namespace: &busypoll_lab::Namespace = host;
        let mut command = namespace.command("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        command.arg(format!("mount -t tmpfs none /dev/shm\n{script}"));
        command.env("RUN", run).env("H", lab.server.ipv4().to_string()).env("PORT", PORT);
        command.env("NOBODY", "setpriv --reuid 65534 --regid 65534 --clear-groups");
        command.env("PROGRAMS", source("")).envs(self.variables.iter().cloned());
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// What the client prints, with its status.
    fn result(&self, variant: Variant) -> String {
        let lab = Lab::builder().build().unwrap();
        let log = |what: &str| self.folder.join(format!("{what}-{variant:?}"));
        let mut server = self.shell(&lab, &lab.server, variant, self.service.server);
        let output = fs::File::create(log("server")).unwrap();
        server.stdout(output.try_clone().unwrap()).stderr(output);
        let mut server = Ended(server.spawn().unwrap());
        wait_until("the server listens", || {
            let said = || fs::read_to_string(log("server")).unwrap();
            assert!(server.0.try_wait().unwrap().is_none(), "{variant:?}: it ended: {}", said());
            listens(&lab.server)
        });
        let client = || {
            let mut client = self.shell(&lab, &lab.client, variant, self.service.client);
            let output = client.stderr(fs::File::create(log("client")).unwrap()).output().unwrap();
            let said = fs::read_to_string(log("client")).unwrap();
            assert!(output.status.success(), "{variant:?}: {output:?}, {said}");
            String::from_utf8(output.stdout).unwrap()
        };
        let (host, does, log) = match variant {
            Variant::Plain | Variant::KernelBoth => return client(),
            Variant::StackServer => (&lab.server, self.service.serves, log("server")),
            Variant::StackClient => (&lab.client, self.service.asks, log("client")),
        };
        let mut printed = None;
        // The connections made before a server first waits are the kernel's.
        wait_until("the stack plane does what it promises", || {
            let before = packet_counts(host);
            let now = client();
            let after = packet_counts(host);
            let (came, seen) = (after.0 - before.0, after.1 - before.1);
            assert_eq!(*printed.get_or_insert_with(|| now.clone()), now, "{variant:?}");
            let lines = self.lines(&log);
            match does {
                On::Accelerates => {
                    assert!(lines.is_empty(), "{variant:?}: {lines:?}");
                    came >= 20 && seen * 10 <= came
                }
                On::Works => true,
                On::Says(words) => {
                    let others = lines.iter().filter(|line| !line.contains(words));
                    assert_eq!(others.count(), 0, "{variant:?}: {lines:?}");
                    // Each run of the client is a run of busypoll, the server is one.
                    assert!(variant == Variant::StackClient || lines.len() <= 1, "{lines:?}");
                    !lines.is_empty()
                }
            }
        });
        printed.unwrap()
    }

    /// What busypoll has said, but for remarks on CPUs, and on connections from before a server first waits.
    fn lines(&self, log: &Path) -> Vec<String> {
        let text = fs::read(log).unwrap();
        let text = String::from_utf8_lossy(&text);
        let may = self.service.may_say;
        let is_remark =
            |line: &str| line.contains(" CPU") || line.contains("before it is accepted");
        let lines = text.lines().filter(|line| line.contains("busypoll: ") && !is_remark(line));
        lines.filter(|line| may.is_empty() || !line.contains(may)).map(str::to_owned).collect()
    }
}

/// Whether a process on the host listens, in the kernel's table: an attempt to connect would count as a connection.
fn listens(host: &LabHost) -> bool {
    let port = format!(":{:04X} ", PORT.parse::<u16>().unwrap());
    let has = |table: &str| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        text.lines().any(|line| line.contains(&port) && line.contains(" 0A "))
    };
    host.enter(|| has("tcp") || has("tcp6")).unwrap()
}
