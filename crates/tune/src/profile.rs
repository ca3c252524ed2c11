//! Profiles: settings with reason, cost and source. The built-in ones are TOML files like a user's own.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use busypoll_policy::small;
use busypoll_policy::text::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::key::{Key, Unit};
use crate::value::Value;

const BUILT_IN: [(&str, &str); 4] = [
    ("busy-poll", include_str!("../profiles/busy-poll.toml")),
    ("lowest-latency", include_str!("../profiles/lowest-latency.toml")),
    ("prefer-busy-poll", include_str!("../profiles/prefer-busy-poll.toml")),
    ("irq-suspend", include_str!("../profiles/irq-suspend.toml")),
];

/// The names of the built-in profiles.
pub fn built_in() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// Settings that belong together.
#[derive(Clone, Debug)]
pub struct Profile {
    /// A built-in profile's name, or a file's.
    pub name: String,
    /// What it does, in one line.
    pub summary: String,
    /// What the application has to do, in one line.
    pub companion: Option<String>,
    /// Whether it is built in: those adapt to the device; a user's file is applied literally.
    pub built_in: bool,
    /// In the order of the file.
    pub settings: Vec<Setting>,
}

/// One setting of a profile.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The setting.
    pub key: Key,
    /// The wanted value.
    pub want: Want,
    /// The reason.
    pub reason: String,
    /// What it costs other programs.
    pub cost: String,
    /// The source of these facts.
    pub source: String,
    /// Whether the profile must not be applied without it.
    pub essential: bool,
}

/// The wanted value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// This value.
    Is(Value),
    /// A value that depends on the number of sockets polled at once.
    BySockets,
    /// CPUs near the application's.
    BesideApp,
}

/// Errors of profiles, each in one line.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Neither a built-in profile nor a file.
    #[error("unknown profile '{name}'{hint}; there are {}, and files: ./{name}.toml", built_in().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The name as given.
        name: String,
        /// The nearest name, or nothing.
        hint: String,
    },
    /// A file that cannot be read.
    #[error("profile {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file with a mistake.
    #[error("profile {name}:{line}: {what}")]
    Wrong {
        /// The file.
        name: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl Profile {
    /// A built-in profile by its name, or a user's own by its file (`./mine.toml`).
    ///
    /// ```
    /// use busypoll_tune::Profile;
    /// let profile = Profile::find("busy-poll").unwrap();
    /// assert!(profile.settings.iter().any(|s| s.key.to_string() == "sysctl.busy_read"));
    /// let error = Profile::find("busypoll").unwrap_err().to_string();
    /// assert!(error.contains("did you mean 'busy-poll'?"), "{error}");
    /// ```
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn find(name: &str) -> Result<Self, ProfileError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Ok(Profile { built_in: true, ..Self::parse(name, text)? });
        }
        if !name.contains('/') && !name.ends_with(".toml") {
            let near = nearest(name, built_in());
            let hint = near.map_or(String::new(), |near| format!(" (did you mean '{near}'?)"));
            return Err(ProfileError::Unknown { name: name.into(), hint });
        }
        let path = Path::new(name);
        let unreadable = |source| ProfileError::Unreadable { path: path.into(), source };
        let text = small::read(path, "profile").map_err(unreadable)?;
        Self::parse(name, &text)
    }

    /// Reads a profile; `name` is for messages.
    ///
    /// # Errors
    /// [`ProfileError::Wrong`], with the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        Reader { name, text }.profile()
    }
}

struct Reader<'t> {
    name: &'t str,
    text: &'t str,
}

type Table<'t> = DeTable<'t>;

impl Reader<'_> {
    fn profile(&self) -> Result<Profile, ProfileError> {
        let table = DeTable::parse(self.text).map_err(|e| {
            let at = e.span().unwrap_or_default();
            self.wrong(&at, e.message().lines().next().unwrap_or("not TOML").to_owned())
        })?;
        let mut profile = Profile {
            name: self.name.into(),
            summary: format!("settings of {}", self.name),
            companion: None,
            built_in: false,
            settings: Vec::new(),
        };
        for (key, value) in in_order(table.get_ref()) {
            let name = key.get_ref().as_ref();
            match (name, value.get_ref()) {
                ("summary", DeValue::String(text)) => profile.summary = text.to_string(),
                ("companion", DeValue::String(text)) => profile.companion = Some(text.to_string()),
                (section, DeValue::Table(table)) if Key::sections().any(|s| s == section) => {
                    self.section(section, table, &mut profile.settings)?;
                }
                (known, _) if Key::sections().any(|s| s == known) => {
                    let what = format!("'{known}' is a section: write [{known}]");
                    return Err(self.wrong(&key.span(), what));
                }
                _ => {
                    let known = Key::sections().chain(["summary", "companion"]);
                    return Err(self.unknown(&key.span(), name, known));
                }
            }
        }
        if profile.settings.is_empty() {
            return Err(self.wrong(&(0..0), "sets nothing; write for example [coalesce]".into()));
        }
        Ok(profile)
    }

    fn section(
        &self,
        section: &str,
        table: &Table<'_>,
        settings: &mut Vec<Setting>,
    ) -> Result<(), ProfileError> {
        for (key, value) in in_order(table) {
            let name = key.get_ref().as_ref();
            let Some(keys) = Key::lookup(section, name) else {
                return Err(self.unknown(&key.span(), name, Key::known(section)));
            };
            for found in keys {
                let setting = self.setting(found, name, value)?;
                if settings.iter().any(|s| s.key == setting.key) {
                    let what = format!("'{name}' is set twice");
                    return Err(self.wrong(&key.span(), what));
                }
                settings.push(setting);
            }
        }
        Ok(())
    }

    /// `name = VALUE`, or `[section.name]` with `value`, `reason`, `cost`, `source`, `essential`.
    fn setting(
        &self,
        key: Key,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Setting, ProfileError> {
        let about = key.about();
        let mut setting = Setting {
            key,
            want: Want::Is(Value::Switch(false)),
            reason: about.reason.into(),
            cost: about.cost.into(),
            source: about.source.into(),
            essential: false,
        };
        let Some(table) = value.get_ref().as_table() else {
            setting.want = self.want(&setting.key, name, value)?;
            return Ok(setting);
        };
        let mut found = false;
        for (field, value) in in_order(table) {
            match (field.get_ref().as_ref(), value.get_ref()) {
                ("value", _) => {
                    setting.want = self.want(&setting.key, name, value)?;
                    found = true;
                }
                ("reason", DeValue::String(text)) => setting.reason = text.to_string(),
                ("cost", DeValue::String(text)) => setting.cost = text.to_string(),
                ("source", DeValue::String(text)) => setting.source = text.to_string(),
                ("essential", DeValue::Boolean(on)) => setting.essential = *on,
                (other, _) => {
                    let known = ["value", "reason", "cost", "source", "essential"];
                    return Err(self.unknown(&field.span(), other, known));
                }
            }
        }
        if !found {
            return Err(self.wrong(&value.span(), format!("{name}: value = … is missing")));
        }
        Ok(setting)
    }

    fn want(
        &self,
        key: &Key,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Want, ProfileError> {
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(on) => on.to_string(),
            _ => {
                let what = format!("{name}: write one value, in decimal if it is a number");
                return Err(self.wrong(&value.span(), what));
            }
        };
        match (key, text.as_str()) {
            (Key::BusyPoll, "by-sockets") => return Ok(Want::BySockets),
            (Key::InterruptCpus, "beside-app") => return Ok(Want::BesideApp),
            _ => {}
        }
        let read = Value::read(&text, &key.about()).and_then(|value| match &value {
            Value::Cpus(list) if list.is_empty() && *key == Key::InterruptCpus => {
                Err("an interrupt needs a CPU; write a list or \"beside-app\"".into())
            }
            _ => Ok(Want::Is(value)),
        });
        read.map_err(|what| self.wrong(&value.span(), format!("{name}: {what}{}", hint(key))))
    }

    fn unknown<'a>(
        &self,
        at: &Range<usize>,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> ProfileError {
        let known: Vec<&str> = known.into_iter().collect();
        let hint = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("known here are {}", known.join(", ")),
        };
        self.wrong(at, format!("'{name}' is unknown; {hint}"))
    }

    fn wrong(&self, at: &Range<usize>, what: String) -> ProfileError {
        let line = self.text.bytes().take(at.start).filter(|byte| *byte == b'\n').count() + 1;
        ProfileError::Wrong { name: self.name.into(), line, what }
    }
}

fn hint(key: &Key) -> &'static str {
    match key.about().unit {
        Unit::Cpus => "; write a list of CPUs such as \"0,2-3\", or \"none\"",
        _ => "",
    }
}

/// In the order of the file, so that the first mistake is the one reported.
fn in_order<'a, 't>(
    table: &'a Table<'t>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'t, str>>, &'a Spanned<DeValue<'t>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_profiles_have_the_documented_values() {
        let value = |profile: &str, key: Key| {
            let profile = Profile::find(profile).unwrap();
            profile.settings.iter().find(|s| s.key == key).map(|s| s.want.clone())
        };
        let number = |n| Some(Want::Is(Value::Number(n)));
        assert_eq!(value("busy-poll", Key::BusyRead), number(50));
        assert_eq!(value("busy-poll", Key::RxUsecs), number(100));
        assert_eq!(value("busy-poll", Key::BusyPoll), Some(Want::BySockets));
        assert_eq!(value("lowest-latency", Key::RxUsecs), number(0));
        assert_eq!(value("lowest-latency", Key::RxFrames), number(1));
        assert_eq!(value("lowest-latency", Key::AdaptiveRx), Some(Want::Is(Value::Switch(false))));
        assert_eq!(value("prefer-busy-poll", Key::DeferHardIrqs), number(100));
        assert_eq!(value("prefer-busy-poll", Key::GroFlushTimeout), number(200_000));
        assert_eq!(value("irq-suspend", Key::IrqSuspendTimeout), number(20_000_000));
        assert_eq!(value("irq-suspend", Key::GroFlushTimeout), number(20_000));
        for name in built_in() {
            let profile = Profile::find(name).unwrap();
            assert!(profile.companion.is_some());
            for s in profile.settings {
                assert!(![&s.reason, &s.cost, &s.source].iter().any(|t| t.is_empty()), "{}", s.key);
            }
        }
    }

    #[test]
    fn a_users_profile_needs_only_values() {
        let profile = Profile::parse(
            "mine.toml",
            "[coalesce]\nrx-usecs = 8\nadaptive-rx = false\n[napi.gro-flush-timeout]\n\
             value = \"50us\"\nreason = \"measured\"\n[features]\ntso = false\n",
        )
        .unwrap();
        let keys: Vec<String> = profile.settings.iter().map(|s| s.key.to_string()).collect();
        assert_eq!(keys.len(), 7, "{keys:?}");
        assert_eq!(profile.settings[2].reason, "measured");
        assert_eq!(profile.settings[2].cost, Key::GroFlushTimeout.about().cost);
    }

    #[test]
    fn mistakes_are_reported_with_line_and_correction() {
        for (text, line, wanted) in [
            ("[coalesce]\nrx-usec = 1\n", 2, "did you mean 'rx-usecs'?"),
            ("[coalesc]\nrx-usecs = 1\n", 1, "did you mean 'coalesce'?"),
            ("\n[napi]\ngro-flush-timeout = \"5d\"\n", 3, "unknown unit 'd'"),
            ("[napi]\ngro-flush-timeout = \"9s\"\n", 2, "the largest the kernel takes"),
            ("[napi.gro-flush-timeout]\nvalu = 1\n", 2, "did you mean 'value'?"),
            ("[napi.gro-flush-timeout]\nreason = \"x\"\n", 1, "value = … is missing"),
            ("[coalesce]\nrx-usecs = [1]\n", 2, "write one value"),
            ("[features]\ngro = 3\n", 2, "neither true nor false"),
            ("[features]\ngro = true\nrx-gro = false\n", 3, "set twice"),
            ("[interrupts]\ncpus = \"\"\n", 2, "needs a CPU"),
            ("[queues]\nrps-cpus = \"x\"\n", 2, "write a list of CPUs"),
            ("coalesce = 3\n", 1, "write [coalesce]"),
            ("[coalesce\n", 1, ""),
            ("", 1, "sets nothing"),
        ] {
            let error = Profile::parse("p.toml", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("profile p.toml:{line}: ")), "{error}");
            assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
        }
        let error = Profile::find("/dev/zero").unwrap_err().to_string();
        assert_eq!(error, "profile /dev/zero: larger than 1 MiB: is it a profile?");
        let error = Profile::find("./nosuch.toml").unwrap_err().to_string();
        assert!(error.contains("./nosuch.toml: No such file"), "{error}");
    }
}
