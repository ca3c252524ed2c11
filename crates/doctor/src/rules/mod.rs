//! The table of all findings that the doctor can make: one rule per row, one code per rule, one verdict per
//! code. Codes are stable: scripts and tests use them.

mod process;
mod prove;
mod support;
mod tuning;

pub use process::*;
pub use prove::*;
pub use support::*;
pub use tuning::*;

use crate::Verdict;

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its stable name, `BP-…`.
    pub code: &'static str,
    /// Its verdict on busy polling.
    pub verdict: Verdict,
    /// When it applies.
    pub meaning: &'static str,
    /// Why that matters, in one sentence.
    pub why: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
}

/// Rows `NAME "code" Verdict, "meaning", "why", "source";` become constants and the section's list.
macro_rules! rules {
    ($list:ident; $($name:ident $code:literal $verdict:ident, $meaning:literal, $why:literal, $source:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $name: $crate::Rule = $crate::Rule {
                code: $code,
                verdict: $crate::Verdict::$verdict,
                meaning: $meaning,
                why: $why,
                source: $source,
            };
        )*
        pub(super) const $list: &[&$crate::Rule] = &[$(&$name),*];
    };
}
use rules;

/// Every rule, section after section.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    [support::SUPPORT, tuning::TUNING, process::PROCESS, prove::PROVE]
        .into_iter()
        .flatten()
        .copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_every_cell_is_filled() {
        let mut seen = HashSet::new();
        for rule in all() {
            assert!(seen.insert(rule.code), "{} twice", rule.code);
            let tail = rule.code.strip_prefix("BP-").unwrap_or_else(|| panic!("{}", rule.code));
            assert!(tail.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-'));
            for cell in [rule.meaning, rule.why, rule.source] {
                assert!(!cell.is_empty() && !cell.contains('\n'), "{}", rule.code);
            }
        }
    }
}
