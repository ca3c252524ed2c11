//! The settings that `busypoll run` has resolved for a program, in one environment variable, which survives
//! fork, exec and daemon(3).
//!
//! The form is one line of `name=value` separated by `;`; a bare `rule` begins a rule, and the
//! settings have their names from the policy file. Characters with a meaning in this form are written
//! `%XX`. Every process of a run reads it once at its start.

use std::env;
use std::fmt::Write;

use crate::rules::{Policy, Rule};
use crate::settings::{Change, Settings, word};

/// Which semantics may be traded for speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// None: every call behaves as it does without busypoll.
    #[default]
    Safe,
    /// The settings that [`Profile::trades`] lists.
    Latency,
}

impl Profile {
    const WORDS: [(&'static str, Self); 2] =
        [("safe", Profile::Safe), ("latency", Profile::Latency)];

    /// Its name.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Profile::Safe => "safe",
            Profile::Latency => "latency",
        }
    }

    /// Its values for the defaults that neither a policy file nor an option has set.
    #[must_use]
    pub fn defaults(self) -> Settings {
        match self {
            Profile::Safe => Settings::default(),
            Profile::Latency => {
                Settings { busy_poll: 1000, prefer_busy_poll: true, ..Settings::default() }
            }
        }
    }

    /// What `settings` trade for speed, as far as they come from this profile; one line each.
    #[must_use]
    pub fn trades(self, settings: &Settings) -> Vec<String> {
        let mut lines = Vec::new();
        let safe = Settings::default();
        if self == Profile::Latency {
            if settings.busy_poll > safe.busy_poll {
                lines.push(format!(
                    "a wait polls for {} us before it sleeps, instead of {} us: CPU time for answers that take \
                     longer",
                    settings.busy_poll, safe.busy_poll
                ));
            }
            if settings.prefers_on(settings.plane) {
                lines.push(
                    "interrupts stay off between waits: what comes while the program computes may wait for its \
                     next call, up to a millisecond on the stack plane and gro_flush_timeout on the kernel's"
                        .to_owned(),
                );
            }
        }
        lines
    }

    /// Reads [`Profile::word`].
    ///
    /// # Errors
    /// A message of one line with the allowed words.
    pub fn parse(text: &str) -> Result<Self, String> {
        word(text, &Self::WORDS)
    }
}

/// The settings that every process of a run needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// The policy; options such as `--plane` and `--busy-poll` are in its defaults.
    pub policy: Policy,
    /// The interface of the stack plane.
    pub dev: Option<String>,
    /// Which semantics may be traded for speed.
    pub profile: Profile,
    /// Refuse to start without acceleration.
    pub strict: bool,
    /// Steer packets around the firewall's rules.
    pub bypass_firewall: bool,
    /// Connections between programs of this machine that have this set go over memory.
    pub same_host: bool,
    /// AF_UNIX streams too.
    pub unix_streams: bool,
    /// The file to which the process of this number captures what goes over the stack plane; other processes have one
    /// each, with their number behind the name.
    pub pcap: Option<(u32, String)>,
    /// The abstract unix socket of the guard.
    pub guard: Option<String>,
    /// The path of the memory that the processes of the run share, such as `/proc/PID/fd/N`.
    pub shared: Option<String>,
    /// The path of the `busypoll` command, which starts children that the library cannot be preloaded into. None if it
    /// is not needed, as the program's supervisor handles such children.
    pub command: Option<String>,
    /// The PID of the program that the run began with. What it inherits was made outside the run.
    pub first: Option<u32>,
}

/// The first field: a library of another version ignores the rest.
const VERSION: &str = "1";

/// The name of a mapping that every process of the run with this guard has: it is visible in /proc/PID/maps even if a
/// program has overwritten its environment, as nginx and Redis do to set their process title.
#[must_use]
pub fn mark(guard: &str) -> &str {
    // Without the secret after the slash, which proves membership in the run.
    guard.rsplit_once('/').map_or(guard, |(name, _)| name)
}

impl Launch {
    /// The name of the environment variable.
    pub const ENV: &str = "BUSYPOLL_RUN";

    /// The text for the variable. It contains no NUL, line break or blank.
    #[must_use]
    pub fn to_env(&self) -> String {
        let mut out = VERSION.to_owned();
        let mut put = |name: &str, value: &str| put(&mut out, name, value);
        Change::from(self.policy.defaults).each(&mut put);
        if let Some(most) = self.policy.max_spinning_threads {
            put("spinning", &most.to_string());
        }
        for (name, value) in [
            ("dev", &self.dev),
            ("guard", &self.guard),
            ("shared", &self.shared),
            ("command", &self.command),
        ] {
            if let Some(value) = value {
                put(name, value);
            }
        }
        if let Some((pid, file)) = &self.pcap {
            put("pcap", &format!("{pid}:{file}"));
        }
        if let Some(first) = self.first {
            put("first", &first.to_string());
        }
        put("profile", self.profile.word());
        for (name, on) in [
            ("strict", self.strict),
            ("bypass_firewall", self.bypass_firewall),
            ("same_host", self.same_host),
            ("unix_streams", self.unix_streams),
        ] {
            if on {
                put(name, "");
            }
        }
        for rule in &self.policy.rules {
            put("rule", "");
            rule.sockets.each(&mut put);
            rule.change.each(&mut put);
        }
        out
    }

    /// Reads the text that [`Launch::to_env`] wrote. Any other text is an error, never a panic.
    ///
    /// # Errors
    /// A message of one line that names the wrong part.
    pub fn from_env(text: &str) -> Result<Self, String> {
        let mut parts = text.split(';');
        let version = parts.next().unwrap_or_default();
        if version != VERSION {
            return Err(format!("written by another version of busypoll ({version:.20})"));
        }
        let mut launch = Launch::default();
        let mut defaults = Change::default();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = unescape(value).ok_or_else(|| format!("{name}: bad escape"))?;
            let read = match launch.policy.rules.last_mut() {
                _ if name == "rule" => {
                    launch.policy.rules.push(Rule::default());
                    Some(Ok(()))
                }
                Some(rule) => {
                    rule.sockets.set(name, &value).or_else(|| rule.change.set(name, &value))
                }
                None => defaults.set(name, &value).or_else(|| launch.set(name, &value)),
            };
            match read {
                Some(Ok(())) => {}
                Some(Err(why)) => return Err(format!("{name}: {why}")),
                None => return Err(format!("'{name:.40}' is unknown")),
            }
        }
        launch.policy.defaults = defaults.apply(launch.policy.defaults);
        Ok(launch)
    }

    /// Overwrites the PID of the first program in a text for the variable: what that program executes in its place
    /// inherits from the run.
    pub fn clear_first(text: &mut [u8]) {
        const FIELD: &[u8] = b";first=";
        let Some(at) = text.windows(FIELD.len()).position(|part| part == FIELD) else { return };
        let digits = text.iter_mut().skip(at + FIELD.len());
        digits.take_while(|byte| byte.is_ascii_digit()).for_each(|digit| *digit = b'0');
    }

    /// Reads this process's [`Launch::ENV`]; `None` if it has none.
    #[must_use]
    pub fn of_this_process() -> Option<Result<Self, String>> {
        let text = env::var_os(Self::ENV)?;
        let read = text.to_str().ok_or_else(|| "not UTF-8".to_owned()).and_then(Self::from_env);
        Some(read.map_err(|why| format!("{}: {why}", Self::ENV)))
    }

    fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        match name {
            "spinning" => match value.parse() {
                Ok(most) => self.policy.max_spinning_threads = Some(most),
                Err(_) => return Some(Err(format!("'{value}' is no number"))),
            },
            "dev" => self.dev = Some(value.to_owned()),
            "pcap" => match value.split_once(':').map(|(pid, file)| (pid.parse(), file)) {
                Some((Ok(pid), file)) => self.pcap = Some((pid, file.to_owned())),
                _ => return Some(Err(format!("'{value}' is no number and file"))),
            },
            "guard" => self.guard = Some(value.to_owned()),
            "shared" => self.shared = Some(value.to_owned()),
            "command" => self.command = Some(value.to_owned()),
            "first" => match value.parse() {
                Ok(first) => self.first = Some(first),
                Err(_) => return Some(Err(format!("'{value}' is no number"))),
            },
            "profile" => match Profile::parse(value) {
                Ok(profile) => self.profile = profile,
                Err(why) => return Some(Err(why)),
            },
            "strict" => self.strict = true,
            "bypass_firewall" => self.bypass_firewall = true,
            "same_host" => self.same_host = true,
            "unix_streams" => self.unix_streams = true,
            _ => return None,
        }
        Some(Ok(()))
    }
}

fn put(out: &mut String, name: &str, value: &str) {
    out.push(';');
    out.push_str(name);
    if value.is_empty() {
        return;
    }
    out.push('=');
    for byte in value.bytes() {
        match byte {
            b';' | b'=' | b'%' | 0..=0x20 | 0x7f.. => {
                // Writing to a String does not fail.
                let _ = write!(out, "%{byte:02X}");
            }
            _ => out.push(char::from(byte)),
        }
    }
}

/// `None` for an invalid escape, or bytes that are not UTF-8.
fn unescape(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
