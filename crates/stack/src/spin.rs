//! Whether a wait may busy poll. A library that embeds the stack may set a rule: the preload library knows of other
//! processes that spin, and of waits that took longer because of spinning.

use std::{sync::OnceLock, time::Duration};

/// The functions that decide.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The calling thread begins a wait that would busy poll for this long: whether it may.
    pub begin: fn(Duration) -> bool,
    /// The calling thread has ended that wait.
    pub end: fn(),
}

static RULE: OnceLock<Rule> = OnceLock::new();

/// Sets the rule. The first one given stays.
pub fn set_rule(rule: Rule) {
    let _ = RULE.set(rule);
}

/// A wait of the calling thread, from before it polls until it ends.
pub(crate) struct SpinTurn {
    rule: Option<Rule>,
    may_poll: bool,
}

impl SpinTurn {
    /// Begins a wait that would busy poll for `span`. With a span of zero the rule is not called.
    #[inline]
    pub(crate) fn begin(span: Duration) -> SpinTurn {
        let rule = if span.is_zero() { None } else { RULE.get().copied() };
        SpinTurn { rule, may_poll: rule.is_none_or(|rule| (rule.begin)(span)) }
    }

    /// Whether the wait may busy poll.
    #[inline]
    pub(crate) fn may_poll(&self) -> bool {
        self.may_poll
    }
}

impl Drop for SpinTurn {
    #[inline]
    fn drop(&mut self) {
        if let Some(rule) = self.rule {
            (rule.end)();
        }
    }
}
