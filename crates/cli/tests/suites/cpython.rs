//! CPython's network modules, as Debian packages its tests (libpython3.N-testsuite).

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::environment::{Environment, program};
use super::outcome::{Outcome, Outcomes, Suite, Variant};

/// Debian's Python, whatever is in PATH: the tests are in its library.
const PYTHON: &str = "/usr/bin/python3";
/// Seconds that a test may take.
const LIMIT: u32 = 120;
/// How often a module is continued after a test that has ended its process.
const MOST_ENDS: usize = 40;

/// Modules that take a minute or two together.
pub const SHORT: &[&str] = &[
    "test_poplib",
    "test_httplib",
    "test_asyncio.test_streams",
    "test_asyncio.test_server",
    "test_asyncio.test_buffered_proto",
    "test_socket.BasicTCPTest",
    "test_socket.BasicUDPTest",
    "test_socket.NonBlockingTCPTests",
    "test_socket.FileObjectClassTestCase",
    "test_socket.RecvmsgTCPTest",
    "test_socket.SendmsgTCPTest",
    "test_socket.RecvmsgIntoUDP6Test",
    "test_socket.SendfileUsingSendfileTest",
    "test_socket.InterruptedRecvTimeoutTest",
    "test_smtplib",
    "test_telnetlib",
    "test_asynchat",
    "test_httpservers",
    "test_wsgiref",
];

/// All modules, the longest first.
pub const ALL: &[&str] = &[
    "test_socket",
    "test_imaplib",
    "test_ssl",
    "test_asyncio.test_events",
    "test_asyncio.test_sslproto",
    "test_asyncio.test_ssl",
    "test_asyncio.test_streams",
    "test_asyncio.test_base_events",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_server",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_subprocess",
    "test_asyncio.test_unix_events",
    "test_asyncio.test_pep492",
    "test_asyncio.test_runners",
    "test_socketserver",
    "test_ftplib",
    "test_poplib",
    "test_telnetlib",
    "test_asyncore",
    "test_asynchat",
    "test_httpservers",
    "test_httplib",
    "test_smtplib",
    "test_smtpd",
    "test_nntplib",
    "test_xmlrpc",
    "test_docxmlrpc",
    "test_urllib2_localnet",
    "test_wsgiref",
    "test_select",
    "test_poll",
    "test_epoll",
    "test_selectors",
    "test_timeout",
    "test_eintr",
];

pub struct Cpython {
    modules: Vec<String>,
}

/// Whether Debian's package of its tests is installed.
pub fn is_there() -> bool {
    let look = ["-c", "import test.test_socket"];
    Command::new(PYTHON).args(look).output().is_ok_and(|output| output.status.success())
}

impl Cpython {
    pub fn new(modules: &[&str]) -> Self {
        Self { modules: modules.iter().map(|name| format!("test.{name}")).collect() }
    }
}

impl Suite for Cpython {
    fn name(&self) -> &str {
        "cpython"
    }

    fn version(&self) -> String {
        let output = Command::new(PYTHON).arg("--version").output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().replace("Python ", "")
    }

    fn parts(&self) -> Vec<String> {
        self.modules.clone()
    }

    fn run(
        &self,
        env: &Environment,
        variant: Variant,
        part: &str,
        only: Option<&[String]>,
    ) -> Outcomes {
        let alone = if only.is_some() { "-alone" } else { "" };
        let results = env.folder.join(format!("{part}-{variant}{alone}.txt"));
        let inside = env.inside();
        let _ = fs::remove_file(&results);
        let mut outcomes = Outcomes::new();
        for turn in 0..MOST_ENDS {
            let log = env.folder.join(format!("{part}-{variant}{alone}-{turn}.log"));
            let mut words = vec![PYTHON.to_owned(), "-X".into(), "faulthandler".into()];
            words.push(program("unittest_lines.py").display().to_string());
            words.extend([results.display().to_string(), LIMIT.to_string(), part.into()]);
            let chosen = only.map_or_else(
                || ("but", outcomes.keys().cloned().collect()),
                |only| ("only", only.to_vec()),
            );
            words.push(chosen.0.into());
            words.extend(chosen.1);
            let status = env.run(variant, &words, &inside, &log, Duration::from_secs(1800));
            let text = fs::read_to_string(&results).unwrap_or_default();
            let (found, started) = read(&text);
            outcomes.extend(found);
            // The test that started last has ended the process.
            let Some(started) = started else {
                if text.lines().last() != Some("end") {
                    let why = format!("the module does not run: {status}, {}", log.display());
                    outcomes.insert(part.into(), Outcome::Failed(why));
                }
                return outcomes;
            };
            let hung = fs::read_to_string(&log).is_ok_and(|log| log.contains("Timeout (0:"));
            let why = if hung || status.code() == Some(124) { "it hung" } else { "it crashed" };
            outcomes.insert(started, Outcome::Failed(format!("{why}: {status}")));
            if only.is_some() {
                return outcomes;
            }
        }
        outcomes
            .insert(part.into(), Outcome::Failed("too many of its tests end the process".into()));
        outcomes
    }
}

/// The results written so far, and the test that started last if it has not ended.
fn read(text: &str) -> (Outcomes, Option<String>) {
    let (mut outcomes, mut started) = (Outcomes::new(), None);
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
        let outcome = match word {
            "start" => {
                started = Some(name.to_owned());
                continue;
            }
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped,
            "failed" => Outcome::Failed(why.into()),
            _ => {
                started = None;
                continue;
            }
        };
        if started.as_deref() == Some(name) {
            started = None;
        }
        outcomes.insert(name.into(), outcome);
    }
    (outcomes, started)
}
