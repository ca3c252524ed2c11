//! The policy file: TOML to [`Policy`], every mistake with its line.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::matcher::MATCHES;
use crate::rules::{Policy, Rule};
use crate::settings::{CONTAINERS, Change, SETTINGS, Settings};
use crate::small;
use crate::text::nearest;

const RULE: &str = "rule";
const MAX_SPINNING_THREADS: &str = "max_spinning_threads";

/// A mistake in the text of a policy, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Mistake {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// Why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("policy {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It contains a mistake.
    #[error("policy {}:{}: {}", path.display(), mistake.line, mistake.what)]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        mistake: Mistake,
    },
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// A message of one line with the file, the line in it and the correction.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::read_over(path, Settings::default())
    }

    /// As [`read`](Policy::read), with `defaults` for what the file leaves out.
    ///
    /// # Errors
    /// As [`read`](Policy::read).
    pub fn read_over(path: &Path, defaults: Settings) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
        let text = small::read(path, "policy").map_err(unreadable)?;
        Self::parse_over(&text, defaults)
            .map_err(|mistake| FileError::Wrong { path: path.to_owned(), mistake })
    }

    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        Self::parse_over(text, Settings::default())
    }

    pub(crate) fn parse_over(text: &str, left_out: Settings) -> Result<Self, Mistake> {
        let reader = Reader { text };
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().unwrap_or_default();
            reader.mistake(&at, error.message().lines().collect::<Vec<_>>().join("; "))
        })?;
        let mut policy = Policy::default();
        let mut defaults = Change::default();
        let known: Vec<&str> = SETTINGS.into_iter().chain([MAX_SPINNING_THREADS, RULE]).collect();
        for (key, value) in reader.entries(table.get_ref()) {
            match key.get_ref().as_ref() {
                RULE => policy.rules = reader.rules(value)?,
                MAX_SPINNING_THREADS => {
                    policy.max_spinning_threads = Some(reader.spinning(value)?);
                }
                name => {
                    let set = |text: &str| defaults.set(name, text);
                    if !reader.set(name, value, false, set)? {
                        let inside = MATCHES.contains(&name);
                        return Err(reader.unknown(&key.span(), name, inside, &known));
                    }
                }
            }
        }
        policy.defaults = defaults.apply(left_out);
        let directory = policy.containers();
        let differs =
            |rule: &&Rule| rule.change.containers.is_some_and(|own| Some(own) != directory);
        if let (Some(rule), Some(directory)) = (policy.rules.iter().find(differs), directory) {
            let what = format!("{CONTAINERS}: all rules have one directory, and it is {directory}");
            return Err(Mistake { line: rule.line, what });
        }
        Ok(policy)
    }
}

struct Reader<'t> {
    text: &'t str,
}

type Entry<'a, 't> = (&'a Spanned<std::borrow::Cow<'t, str>>, &'a Spanned<DeValue<'t>>);

impl Reader<'_> {
    /// In the order of the file, so that the first mistake is the one reported.
    fn entries<'a, 't>(&self, table: &'a DeTable<'t>) -> Vec<Entry<'a, 't>> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        entries
    }

    fn rules(&self, value: &Spanned<DeValue<'_>>) -> Result<Vec<Rule>, Mistake> {
        let wrong = || self.mistake(&value.span(), "a rule begins with the line [[rule]]".into());
        let tables = value.get_ref().as_array().ok_or_else(wrong)?;
        let known: Vec<&str> = MATCHES.into_iter().chain(SETTINGS).collect();
        let mut rules = Vec::new();
        for entry in tables.iter() {
            let table = entry.get_ref().as_table().ok_or_else(wrong)?;
            let mut rule = Rule { line: self.line(&entry.span()), ..Rule::default() };
            for (key, value) in self.entries(table) {
                let name = key.get_ref().as_ref();
                let sockets = &mut rule.sockets;
                if self.set(name, value, true, |text| sockets.set(name, text))? {
                    continue;
                }
                let change = &mut rule.change;
                if !self.set(name, value, false, |text| change.set(name, text))? {
                    let outside = name == MAX_SPINNING_THREADS;
                    return Err(self.unknown(&key.span(), name, outside, &known));
                }
            }
            if rule.change == Change::default() {
                let what = "this rule changes nothing; add a setting, for example busy_poll";
                return Err(self.mistake(&entry.span(), what.into()));
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    /// Passes the value, or each value of a list, to `set`; false if `set` does not know the name.
    fn set(
        &self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        list: bool,
        mut set: impl FnMut(&str) -> Option<Result<(), String>>,
    ) -> Result<bool, Mistake> {
        let mut one = |value: &Spanned<DeValue<'_>>| {
            let text = scalar(value.get_ref())
                .map_err(|kind| self.mistake(&value.span(), format!("{name}: {kind}")));
            match (set(text.as_deref().unwrap_or_default()), text) {
                (None, _) => Ok(false),
                (Some(_), Err(mistake)) => Err(mistake),
                (Some(set), Ok(_)) => set
                    .map(|()| true)
                    .map_err(|what| self.mistake(&value.span(), format!("{name}: {what}"))),
            }
        };
        match value.get_ref().as_array() {
            Some(values) if list && !values.is_empty() => {
                for value in values.iter() {
                    if !one(value)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            _ => one(value),
        }
    }

    fn spinning(&self, value: &Spanned<DeValue<'_>>) -> Result<u32, Mistake> {
        let number = scalar(value.get_ref()).ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| {
            let what = format!("{MAX_SPINNING_THREADS}: write a number of threads; 0 = none spins");
            self.mistake(&value.span(), what)
        })
    }

    /// An unknown name, with the nearest known one.
    fn unknown(&self, at: &Range<usize>, name: &str, elsewhere: bool, known: &[&str]) -> Mistake {
        let hint = match nearest(name, known.iter().copied()) {
            _ if elsewhere && name == MAX_SPINNING_THREADS => {
                "it goes at the top of the file, before the first [[rule]]".to_owned()
            }
            _ if elsewhere => "it goes into a [[rule]]".to_owned(),
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("known here are {}", known.join(", ")),
        };
        let what = if elsewhere { "is not known here" } else { "is unknown" };
        self.mistake(at, format!("'{name}' {what}; {hint}"))
    }

    fn mistake(&self, at: &Range<usize>, what: String) -> Mistake {
        Mistake { line: self.line(at), what }
    }

    fn line(&self, at: &Range<usize>) -> usize {
        self.text.bytes().take(at.start).filter(|&byte| byte == b'\n').count() + 1
    }
}

/// A value that is neither a list nor a table, as text.
fn scalar(value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Integer(_) => Err("write the number in decimal"),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(on) => Ok(on.to_string()),
        DeValue::Array(values) if values.is_empty() => Err("an empty list matches nothing"),
        DeValue::Array(_) => Err("one value is meant, not a list"),
        DeValue::Table(_) => Err("a value is meant, not a table"),
        DeValue::Datetime(_) => Err("a date is no value here"),
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
