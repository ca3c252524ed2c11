//! Whether a wait may busy poll. Whoever embeds the stack may have a say in it: the preload library knows of other
//! processes that spin, and of waits that were longer for it.

use std::{sync::OnceLock, time::Duration};

/// Who is asked.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The calling thread begins a wait, which would busy poll for so long: whether it may.
    pub begin: fn(Duration) -> bool,
    /// It has ended that wait.
    pub end: fn(),
}

static RULE: OnceLock<Rule> = OnceLock::new();

/// Has `rule` asked from now on. The first one given stays.
pub fn set_rule(rule: Rule) {
    let _ = RULE.set(rule);
}

/// A wait of the calling thread, from before it polls until it is over.
pub(crate) struct Turn {
    rule: Option<Rule>,
    may_poll: bool,
}

impl Turn {
    /// Begins a wait that would busy poll for `span`; one that has no time for it asks nobody.
    #[inline]
    pub(crate) fn begin(span: Duration) -> Turn {
        let rule = if span.is_zero() { None } else { RULE.get().copied() };
        Turn { rule, may_poll: rule.is_none_or(|rule| (rule.begin)(span)) }
    }

    /// Whether it may busy poll.
    #[inline]
    pub(crate) fn may_poll(&self) -> bool {
        self.may_poll
    }
}

impl Drop for Turn {
    #[inline]
    fn drop(&mut self) {
        if let Some(rule) = self.rule {
            (rule.end)();
        }
    }
}
