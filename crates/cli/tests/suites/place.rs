//! Where a suite runs: the client of a lab with a mirror, with loopback mapped to it, in a PID namespace that ends what
//! the suite leaves behind.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use busypoll_lab::{Lab, Mirror};
use busypoll_linux::stat;

use super::outcome::Way;

const BUSYPOLL: &str = env!("CARGO_BIN_EXE_busypoll");

pub struct Place {
    lab: Lab,
    mirror: Mirror,
    library: PathBuf,
    /// Where logs are kept.
    pub folder: PathBuf,
    job: usize,
}

/// What the machine has counted on the client.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Packets that came over the wire.
    pub came: u64,
    /// Those that the kernel's stack has seen.
    pub kernel: u64,
    /// Those that the kernel's busy polling found.
    pub polled: u64,
}

impl Counts {
    pub fn since(self, earlier: Self) -> Self {
        Self {
            came: self.came - earlier.came,
            kernel: self.kernel.saturating_sub(earlier.kernel),
            polled: self.polled - earlier.polled,
        }
    }
}

/// Before the suite: a table of spinners that no other run shares, and a shell that lives as long as the suite: its end
/// ends all that is in the namespace, and it is not a program whose signals a test could miss.
const FENCE: &str = "mount -t tmpfs none /dev/shm && \"$@\"";
/// The map stands before busypoll's library.
const MAP: &str = "LD_PRELOAD=$LOOPBACK_LIBRARY${LD_PRELOAD:+:$LD_PRELOAD} exec \"$@\"";

impl Place {
    /// Several may run a suite at a time: `job` tells them apart.
    pub fn new(name: &str, job: usize) -> Self {
        let lab = Lab::builder().build().unwrap();
        let mirror = lab.mirror().unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suites").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join(format!("loopback-{job}.so"));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library);
        assert!(compiler.arg(program("loopback.c")).status().unwrap().success());
        Self { lab, mirror, library, folder, job }
    }

    /// Runs a program one way, its output in `log`, and ends it when `limit` is over: the status is 124 then.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        way: Way,
        words: impl IntoIterator<Item = S>,
        inside: &Path,
        log: &Path,
        limit: Duration,
    ) -> ExitStatus {
        let said = File::create(log).unwrap();
        // Not on one CPU: a suite has threads that wait for each other.
        let host: &busypoll_lab::Namespace = &self.lab.client;
        let mut command = host.command("timeout");
        command.args(["-k", "5", &limit.as_secs().to_string()]);
        command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", FENCE, "sh"]);
        match way {
            Way::Plain => {}
            Way::Kernel => {
                // Long enough to find what another thread of the program sends.
                command.args([BUSYPOLL, "run", "--busy-poll", "1ms", "--"]);
            }
            Way::Stack => {
                command.args([BUSYPOLL, "run", "--plane", "stack", "--dev"]);
                command.args([self.lab.client.interface(), "--"]);
            }
        }
        command.args(["sh", "-c", MAP, "sh"]).args(words);
        command.env("LOOPBACK_LIBRARY", &self.library);
        command.env("LOOPBACK_OWN4", self.lab.client.ipv4().to_string());
        command.env("LOOPBACK_MIRROR4", self.mirror.ipv4().to_string());
        if let Some((own, mirror)) = self.lab.client.ipv6().zip(self.mirror.ipv6()) {
            command.env("LOOPBACK_OWN6", own.to_string());
            command.env("LOOPBACK_MIRROR6", mirror.to_string());
        }
        // As the CI's own: what it means to programs that are tested is not meant here.
        command.env_remove("CI").current_dir(inside).stdin(Stdio::null());
        command.stdout(said.try_clone().unwrap()).stderr(said);
        command.status().unwrap()
    }

    /// An empty folder for programs to be in.
    pub fn inside(&self) -> PathBuf {
        let inside = self.folder.join(format!("in-{}", self.job));
        let _ = std::fs::remove_dir_all(&inside);
        std::fs::create_dir_all(&inside).unwrap();
        inside
    }

    pub fn counts(&self) -> Counts {
        let host = &self.lab.client;
        let count = || {
            let came = stat::received_packets().unwrap();
            // Both stacks count what goes over the real loopback as well.
            let seen = stat::ip_received().unwrap() + ip6_received();
            Counts {
                came: came[host.interface()],
                kernel: seen.saturating_sub(came["lo"]),
                polled: stat::busy_poll_rx_packets().unwrap(),
            }
        };
        host.enter(count).unwrap()
    }
}

/// `Ip6InReceives` of the thread's network namespace; none where IPv6 is switched off.
fn ip6_received() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Ip6InReceives"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

/// The source of a program of `tests/programs`.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}
