//! Explains a policy in words.

use std::fmt::{Display, Write};
use std::time::Duration;

use crate::matcher::{Match, Protocol};
use crate::rules::{Policy, Rule};
use crate::settings::{BUSY_POLL_BUDGET, CONTAINERS, PREFER_BUSY_POLL, Plane, Receive, Settings};
use crate::units::show;

impl Policy {
    /// The meaning of the policy, rule by rule, with notes on settings that have no effect.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut out = String::new();
        match self.rules.len() {
            0 => out.push_str("No rules: all sockets are treated alike.\n"),
            1 => out.push_str("One rule; sockets that do not match it have the defaults.\n"),
            n => {
                let _ = writeln!(out, "{n} rules; the first that matches a socket applies.");
            }
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let at = if rule.line > 0 { format!(" (line {})", rule.line) } else { String::new() };
            let _ = writeln!(out, "\nRule {}{at}: {}", index + 1, describe_match(&rule.sockets));
            let settings = rule.change.apply(self.defaults);
            describe(&mut out, settings);
            for note in self.notes(index, rule) {
                let _ = writeln!(out, "    note: {note}");
            }
        }
        let others = if self.rules.is_empty() { "All sockets" } else { "All other sockets" };
        let _ = writeln!(out, "\n{others}");
        describe(&mut out, self.defaults);
        for note in setting_notes(self.defaults, self.defaults.aggressive_receive_delay != 1000) {
            let _ = writeln!(out, "    note: {note}");
        }
        let _ = writeln!(out, "\n{}", self.spinning());
        out
    }

    fn spinning(&self) -> String {
        let limit = match self.max_spinning_threads {
            None => return "As many threads spin at once as there are CPUs for them.".to_owned(),
            Some(0) => "No thread spins: every wait sleeps at once.".to_owned(),
            Some(1) => "One thread spins at a time; others sleep at once.".to_owned(),
            Some(n) => {
                format!("At most {n} threads spin at the same time; the others sleep at once.")
            }
        };
        format!(
            "{limit}\n    note: of all runs of the user; programs that cannot be preloaded (static ones, Go's) are not \
             counted, and not held back"
        )
    }

    fn notes(&self, index: usize, rule: &Rule) -> Vec<String> {
        let settings = rule.change.apply(self.defaults);
        let mut notes = setting_notes(settings, rule.change.aggressive_receive_delay.is_some());
        let earlier = self.rules.iter().take(index).position(|r| covers(&r.sockets, &rule.sockets));
        if let Some(earlier) = earlier {
            notes.push(format!(
                "never reached: rule {} matches every socket that this one matches",
                earlier + 1
            ));
        }
        if rule.sockets.by_remote() {
            notes.push("the peer is known only once a socket is connected".to_owned());
        }
        if rule.change.plane == Some(Plane::Stack) && rule.sockets.by_remote() {
            notes.push("the plane of a connecting socket is chosen with its peer known".to_owned());
        }
        if settings.containers.is_some() && rule.sockets.protocol == Some(Protocol::Udp) {
            notes.push(format!("{CONTAINERS} has no effect on UDP sockets"));
        }
        notes
    }
}

/// Notes on settings that have no effect, or that need a privilege.
fn setting_notes(settings: Settings, delay_given: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if settings.plane == Plane::Off {
        return notes;
    }
    let polls = polls(settings);
    for (given, key) in [
        (settings.prefer_busy_poll, PREFER_BUSY_POLL),
        (settings.busy_poll_budget > 0, BUSY_POLL_BUDGET),
    ] {
        if given && !polls {
            notes.push(format!("{key} has no effect if no wait polls"));
        }
    }
    if delay_given && settings.receive != Receive::Aggressive {
        notes.push(
            "aggressive_receive_delay has no effect without receive = \"aggressive\"".to_owned(),
        );
    }
    if settings.plane == Plane::Kernel && settings.containers.is_some() {
        notes.push(format!("{CONTAINERS} has no effect without plane = \"stack\""));
    }
    if settings.plane == Plane::Kernel && settings.receive == Receive::Aggressive {
        notes.push(
            "it is the kernel that polls, for a socket that has received from a device's queue; any \
             other sleeps at once"
                .to_owned(),
        );
    }
    if settings.prefers_on(Plane::Kernel) {
        notes.push(
            "prefer_busy_poll needs CAP_NET_ADMIN on a socket, and nothing on an epoll instance"
                .to_owned(),
        );
    }
    if settings.plane == Plane::Kernel && polls && settings.busy_poll_budget > 0 {
        notes.push(
            "a budget needs CAP_NET_ADMIN on a socket, and on an epoll instance if it is above 64"
                .to_owned(),
        );
    }
    notes
}

/// Whether a wait polls at all.
fn polls(settings: Settings) -> bool {
    settings.micros_on(settings.plane) > 0
}

/// The sockets that a rule is for.
fn describe_match(m: &Match) -> String {
    let mut out = match m.protocol {
        Some(Protocol::Tcp) => "TCP sockets".to_owned(),
        Some(Protocol::Udp) => "UDP sockets".to_owned(),
        None => "sockets".to_owned(),
    };
    out.push_str(" of ");
    out.push_str(&if m.program.is_empty() { "every program".into() } else { list(&m.program) });
    for (what, addresses, ports) in [
        (" bound to", list(&m.local_address), list(&m.local_port)),
        (" connected to", list(&m.remote_address), list(&m.remote_port)),
    ] {
        if addresses.is_empty() && ports.is_empty() {
            continue;
        }
        out.push_str(what);
        if !addresses.is_empty() {
            let _ = write!(out, " {addresses}");
        }
        if !ports.is_empty() {
            let _ = write!(out, " port {ports}");
        }
    }
    out
}

/// `a`, `a or b`, `a, b or c`.
fn list(items: &[impl Display]) -> String {
    let texts: Vec<String> = items.iter().map(ToString::to_string).collect();
    match texts.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    }
}

fn describe(out: &mut String, s: Settings) {
    let us = |micros: u32| show(Duration::from_micros(micros.into()));
    let plane = match s.plane {
        Plane::Kernel => "run by the kernel",
        Plane::Stack => "run by the stack in user space",
        Plane::Off => {
            out.push_str("    are left unchanged.\n");
            return;
        }
    };
    let wait = match s.receive {
        Receive::Interrupt => "a receiver sleeps until the interrupt".to_owned(),
        _ if s.busy_poll == 0 && s.receive == Receive::BusyPoll => {
            "a receiver sleeps until the interrupt (busy_poll is 0)".to_owned()
        }
        Receive::BusyPoll => {
            format!("a receiver polls the queue for {}, then sleeps", us(s.busy_poll))
        }
        Receive::Aggressive => format!(
            "a receiver polls the queue for {}, then for {} more, then sleeps",
            us(s.aggressive_receive_delay),
            us(s.busy_poll)
        ),
    };
    let _ = writeln!(out, "    are {plane}; {wait}.");
    if s.prefers_on(s.plane) {
        out.push_str("    Between polls the interrupt stays masked.\n");
    }
    if polls(s) && s.busy_poll_budget > 0 {
        let _ = writeln!(out, "    A poll takes at most {} packets.", s.busy_poll_budget);
    }
    if let (Some(directory), Plane::Stack) = (s.containers, s.plane) {
        let _ = writeln!(
            out,
            "    TCP connections with containers that share {directory} go over memory, past firewalls and network \
             policies."
        );
    }
}

/// Whether `wide` matches every socket that `narrow` matches, as far as comparing the lists shows.
fn covers(wide: &Match, narrow: &Match) -> bool {
    fn list<T: PartialEq>(wide: &[T], narrow: &[T]) -> bool {
        wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(|item| wide.contains(item)))
    }
    (wide.protocol.is_none() || wide.protocol == narrow.protocol)
        && list(&wide.program, &narrow.program)
        && list(&wide.local_address, &narrow.local_address)
        && list(&wide.local_port, &narrow.local_port)
        && list(&wide.remote_address, &narrow.remote_address)
        && list(&wide.remote_port, &narrow.remote_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(text: &str) -> String {
        Policy::parse(text).unwrap().explain()
    }

    #[test]
    fn a_policy_reads_back() {
        let text = explained(
            r#"
            busy_poll = "100us"
            max_spinning_threads = 2
            [[rule]]
            program = ["redis-server", "/opt/*/feed"]
            protocol = "tcp"
            local_port = [6379, "7000-7010"]
            plane = "stack"
            receive = "aggressive"
            aggressive_receive_delay = "20ms"
            [[rule]]
            remote_address = "10.0.0.0/8"
            receive = "interrupt"
            "#,
        );
        for wanted in [
            "Rule 1 (line 4): TCP sockets of redis-server or /opt/*/feed bound to port 6379 or 7000-7010",
            "are run by the stack in user space; a receiver polls the queue for 20ms, then for 100us \
             more, then sleeps.",
            "Rule 2 (line 11): sockets of every program connected to 10.0.0.0/8",
            "a receiver sleeps until the interrupt.",
            "note: the peer is known only once",
            "All other sockets\n    are run by the kernel; a receiver polls the queue for 100us, then sleeps.",
            "At most 2 threads spin",
        ] {
            assert!(text.contains(wanted), "no {wanted:?} in:\n{text}");
        }
    }

    #[test]
    fn settings_without_effect_are_named() {
        for (policy, wanted) in [
            ("aggressive_receive_delay = '2ms'", "no effect without receive"),
            ("prefer_busy_poll = true", "CAP_NET_ADMIN"),
            ("receive = 'aggressive'", "it is the kernel that polls"),
            ("max_spinning_threads = 2", "are not counted"),
            ("prefer_busy_poll = true\nbusy_poll = 0", "prefer_busy_poll has no effect"),
            ("busy_poll_budget = 9\nreceive = 'interrupt'", "busy_poll_budget has no effect"),
            ("busy_poll_budget = 64", "CAP_NET_ADMIN"),
            ("containers = '/run/busypoll'", "containers has no effect without plane"),
            (
                "plane='stack'\n[[rule]]\nprotocol='udp'\ncontainers='/run/busypoll'",
                "no effect on UDP",
            ),
            (
                "[[rule]]\nprogram='a'\nplane='off'\n[[rule]]\nprogram='a'\nlocal_port=7\nbusy_poll=1",
                "never reached",
            ),
        ] {
            assert!(explained(policy).contains(wanted), "{policy}:\n{}", explained(policy));
        }
        let containers = explained("plane='stack'\ncontainers='/run/busypoll'");
        assert!(containers.contains("past firewalls"), "{containers}");
        let silent = explained("plane='off'\nprefer_busy_poll=true\naggressive_receive_delay=7");
        assert!(!silent.contains("note"), "{silent}");
        let nothing = explained("prefer_busy_poll=true\nbusy_poll=0");
        assert!(!nothing.contains("CAP_NET_ADMIN"), "{nothing}");
        let longer = explained("prefer_busy_poll=true\nbusy_poll=0\nreceive='aggressive'");
        assert!(longer.contains("stays masked") && !longer.contains("no effect"), "{longer}");
        let reached = explained(
            "[[rule]]\nprogram='a'\nlocal_port=7\nbusy_poll=1\n[[rule]]\nprogram='a'\nplane='off'",
        );
        assert!(!reached.contains("never reached"), "{reached}");
    }
}
