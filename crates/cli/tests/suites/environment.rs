//! The environment of a suite: the client of a lab with a mirror, with loopback mapped to it, in a PID namespace that
//! ends the processes that the suite leaves behind.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use busypoll_lab::{Lab, Mirror};
use busypoll_linux::stat;

use super::outcome::Variant;

const BUSYPOLL: &str = env!("CARGO_BIN_EXE_busypoll");

pub struct Environment {
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
    /// Packets that the kernel's stack has received.
    pub kernel: u64,
    /// Packets that the kernel's busy polling has found.
    pub polled: u64,
    /// Packets that the kernel's loopback has carried.
    pub loopback: u64,
}

impl Counts {
    pub fn since(self, earlier: Self) -> Self {
        Self {
            came: self.came - earlier.came,
            kernel: self.kernel.saturating_sub(earlier.kernel),
            polled: self.polled - earlier.polled,
            loopback: self.loopback - earlier.loopback,
        }
    }
}

/// Run before the suite: a table of spinners and a /tmp that are shared with no other run (libuv's tests remove a socket
/// of one name in /tmp), and a shell that lives as long as the suite. The end of the shell ends all processes in the
/// namespace, and no test misses the shell's signals.
const FENCE: &str = r#"
mount -t tmpfs none /dev/shm || exit
case $PWD/ in
    /tmp/*) ;; # The suite's own files are there.
    *) mount -t tmpfs none /tmp || exit ;;
esac
"$@"
exit $?
"#;
/// The loopback map comes before busypoll's library.
const MAP: &str = "LD_PRELOAD=$LOOPBACK_LIBRARY${LD_PRELOAD:+:$LD_PRELOAD} exec \"$@\"";

impl Environment {
    /// Several may run a suite at the same time: `job` tells them apart.
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

    /// Runs a program in one variant, with its output in `log`. After `limit` it is ended, with status 124.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        variant: Variant,
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
        match variant {
            Variant::Plain | Variant::Loopback => {}
            Variant::Kernel => {
                // Long enough to find what another thread of the program sends.
                command.args([BUSYPOLL, "run", "--busy-poll", "1ms", "--"]);
            }
            Variant::Stack | Variant::Memory => {
                command.args([BUSYPOLL, "run", "--plane", "stack", "--dev"]);
                command.args([self.lab.client.interface(), "--"]);
            }
        }
        if variant.has_mirror() {
            command.args(["sh", "-c", MAP, "sh"]);
        }
        command.args(words);
        command.env("LOOPBACK_LIBRARY", &self.library);
        command.env("LOOPBACK_OWN4", self.lab.client.ipv4().to_string());
        command.env("LOOPBACK_MIRROR4", self.mirror.ipv4().to_string());
        if let Some((own, mirror)) = self.lab.client.ipv6().zip(self.mirror.ipv6()) {
            command.env("LOOPBACK_OWN6", own.to_string());
            command.env("LOOPBACK_MIRROR6", mirror.to_string());
        }
        // The tested programs would take `CI` for their own project's.
        command.env_remove("CI").current_dir(inside).stdin(Stdio::null());
        command.stdout(said.try_clone().unwrap()).stderr(said);
        command.status().unwrap()
    }

    /// An empty working directory for programs.
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
            // Both counters include what goes over the real loopback.
            let seen = stat::ip_received().unwrap() + ip6_received();
            Counts {
                came: came[host.interface()],
                kernel: seen.saturating_sub(came["lo"]),
                polled: stat::busy_poll_rx_packets().unwrap(),
                loopback: came["lo"],
            }
        };
        host.enter(count).unwrap()
    }
}

/// `Ip6InReceives` of the thread's network namespace; 0 if IPv6 is disabled.
fn ip6_received() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Ip6InReceives"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

/// The source of a program of `tests/programs`.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}
