//! Plans, reports and status as plain text for the user.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::apply::{Applied, LeftOut, Written};
use crate::plan::{Line, Plan, State};
use crate::status::Status;
use crate::undo::{How, PutBack};
use crate::value::Value;

/// The note that two settings of the profile exclude each other.
const TAKEN: &str = "; another setting of the profile takes it away";

/// Prints a plan line by line.
pub(crate) fn plan(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}: {}", plan.profile, plan.summary)?;
    let mut device = None;
    let mut lines: Vec<&Line> = plan.lines.iter().collect();
    lines.sort_by_key(|line| &line.device);
    for line in lines {
        if device != Some(&line.device) {
            device = Some(&line.device);
            writeln!(out, "\n{}", line.device.as_deref().unwrap_or("this machine"))?;
        }
        writeln!(out, "{} {:<34} {}", mark(&line.state), line.setting, difference(line))?;
        if matches!(line.state, State::Change | State::Later(_)) {
            writeln!(out, "      why    {}", line.reason)?;
            writeln!(out, "      cost   {}", line.cost)?;
            writeln!(out, "      source {}", line.source)?;
        }
    }
    writeln!(out)?;
    if let Some(companion) = &plan.companion {
        writeln!(out, "In the program: {companion}.")?;
    }
    for note in &plan.notes {
        writeln!(out, "Note: {note}.")?;
    }
    if plan.needs_poller {
        writeln!(
            out,
            "Note: gro-flush-timeout is set only for a process that polls: apply needs --poller PID."
        )?;
    }
    if let Some(why) = &plan.impossible {
        writeln!(out, "It cannot be applied: {why}.")?;
    }
    let count = |wanted: fn(&State) -> bool| plan.lines.iter().filter(|l| wanted(&l.state)).count();
    writeln!(
        out,
        "{} to change, {} already set, {} left out. Nothing was changed.",
        count(|s| matches!(s, State::Change | State::Later(_))),
        count(|s| *s == State::Same),
        count(|s| matches!(s, State::NotHere(_) | State::Taken(_))),
    )
}

fn mark(state: &State) -> char {
    match state {
        State::Change => '~',
        State::Later(_) => '+',
        State::Same => '=',
        State::NotHere(_) | State::Taken(_) => '-',
    }
}

fn difference(line: &Line) -> String {
    let unit = line.knob.key.about().unit;
    let show = |value: &Option<Value>| value.as_ref().map_or("?".into(), |v| v.show(unit));
    match &line.state {
        State::Change => format!("{} -> {}", show(&line.now), show(&line.then)),
        State::Same => format!("{} already", show(&line.now)),
        State::Later(why) => format!("-> {} {why}", show(&line.then)),
        State::NotHere(why) => {
            let now = line.now.as_ref().map(|v| format!("stays {}: ", v.show(unit)));
            format!("{}{why}", now.unwrap_or_default())
        }
        State::Taken(why) => format!("{why}{TAKEN}"),
    }
}

/// Prints what an apply did.
pub(crate) fn applied(applied: &Applied, out: &mut impl Write) -> io::Result<()> {
    for outcome in &applied.outcomes {
        let line = &outcome.line;
        let unit = line.knob.key.about().unit;
        let mut text = format!("{}: {} {}", place(&line.device), line.setting, difference(line));
        match &outcome.result {
            Written::AsPlanned => {}
            Written::Became(value) => write!(text, ", the driver made it {}", value.show(unit))
                .map_err(io::Error::other)?,
            Written::Overtaken(value) => {
                write!(text, ", and is {} now{TAKEN}", value.show(unit))
                    .map_err(io::Error::other)?;
            }
            Written::Refused(why) => {
                text = format!(
                    "{}: {} stays {}: refused: {why}",
                    place(&line.device),
                    line.setting,
                    line.now.as_ref().map_or("?".into(), |v| v.show(unit)),
                );
            }
        }
        writeln!(out, "{text}")?;
    }
    for LeftOut { line, why, lost } in &applied.left_out {
        let since = if *lost { TAKEN } else { "" };
        writeln!(out, "{}: {} left out: {why}{since}", place(&line.device), line.setting)?;
    }
    if let Some(companion) = &applied.plan.companion {
        writeln!(out, "In the program: {companion}.")?;
    }
    for note in &applied.plan.notes {
        writeln!(out, "Note: {note}.")?;
    }
    let refused = applied.refused();
    let done = applied.outcomes.len() - refused;
    match (applied.outcomes.len(), refused) {
        (0, _) => {
            writeln!(out, "Nothing to do: every setting is already set or left out.")
        }
        (_, 0) => writeln!(out, "{done} changed; `busypoll tune rollback` restores them."),
        _ => writeln!(
            out,
            "{done} changed, {refused} refused; `busypoll tune rollback` restores everything."
        ),
    }
}

/// Prints what a rollback did; with `forgotten`, settings that were not restored have been dropped.
pub(crate) fn put_back(
    report: &[PutBack],
    forgotten: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    for p in report {
        let what = match &p.how {
            How::Already => continue,
            How::PutBack => match &p.found {
                None => format!("back to {}", p.shown),
                Some(found) => {
                    format!("back to {} from {found}, to which it was changed since", p.shown)
                }
            },
            How::Gone(why) => format!("was {}: {why}", p.shown),
            How::NoDevice(why) if forgotten => {
                format!("was {}: forgotten: the device is {why}", p.shown)
            }
            How::NoDevice(why) | How::Down(why) => {
                format!("not put back to {}: the device is {why}", p.shown)
            }
            How::Failed(why) => format!("NOT put back to {}: {why}", p.shown),
        };
        writeln!(out, "{}: {} {what}", place(&p.device), p.setting)?;
    }
    let left: Vec<&PutBack> = report.iter().filter(|p| !p.how.is_settled()).collect();
    let settings = match left.len() {
        1 => "1 setting is".to_owned(),
        n => format!("{n} settings are"),
    };
    // --forget helps only if all that is left waits for a device that is not here.
    let or = match left.iter().all(|p| p.how.is_absent()) {
        true => ", or `busypoll tune rollback --forget` to drop them",
        false => "",
    };
    match (report.len(), left.len()) {
        (0, _) => writeln!(out, "Nothing is applied here."),
        (_, 0) => writeln!(out, "Everything is as it was before."),
        _ if forgotten => writeln!(
            out,
            "{settings} forgotten, as the device is not here; everything else is as it was before."
        ),
        _ => writeln!(out, "{settings} still to be put back: `busypoll tune rollback` again{or}."),
    }
}

/// Prints what is applied.
pub(crate) fn status(status: &Status, out: &mut impl Write) -> io::Result<()> {
    if status.applies.is_empty() {
        writeln!(out, "Nothing is applied here.")?;
    }
    for apply in &status.applies {
        let mut text = format!("apply {}: {}", apply.number, apply.profile);
        if !apply.pollers.is_empty() {
            let pids: Vec<String> = apply.pollers.iter().map(u32::to_string).collect();
            text += &format!(", until PID {} ends", pids.join(", "));
        }
        if let Some(seconds) = apply.confirm_within {
            text += &format!(", rolled back {seconds}s after it was applied unless confirmed");
        }
        if let Some(guard) = apply.guard {
            text += &format!(" (PID {guard} will do that)");
        }
        writeln!(out, "{text}")?;
    }
    for s in &status.settings {
        let unit = s.key.about().unit;
        let now = match &s.now {
            None if s.lost.is_some() => ", its device is not here".into(),
            None => ", cannot be read now".into(),
            Some(now) if *now == s.set => String::new(),
            Some(now) => format!(", now {}", now.show(unit)),
        };
        let set = match s.refused {
            true => format!("stays {}: refused", s.set.show(unit)),
            false => format!("was {}, set to {}", s.before.show(unit), s.set.show(unit)),
        };
        writeln!(out, "  {}: {} {set}{now}", place(&s.device), s.setting)?;
    }
    for warning in &status.warnings {
        writeln!(out, "Warning: {warning}.")?;
    }
    if !status.elsewhere.is_empty() {
        writeln!(out, "Other network namespaces have journals: {}.", status.elsewhere.join(", "))?;
    }
    if !status.gone.is_empty() {
        let gone: Vec<String> = status.gone.iter().map(|path| path.display().to_string()).collect();
        let gone = gone.join(", ");
        writeln!(
            out,
            "Journals of network namespaces that are gone (no name, process or descriptor shows them): {gone}."
        )?;
    }
    Ok(())
}

fn place(device: &Option<String>) -> &str {
    device.as_deref().unwrap_or("this machine")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::status::Setting;

    #[test]
    fn a_status_distinguishes_refused_settings_from_changed_ones() {
        let setting = |key: Key, set: u64, refused, now: u64| Setting {
            device: None,
            setting: key.to_string(),
            key,
            before: Value::Number(0),
            set: Value::Number(set),
            refused,
            now: Some(Value::Number(now)),
            lost: None,
        };
        let settings =
            vec![setting(Key::BusyRead, 0, true, 0), setting(Key::BusyPoll, 50, false, 7)];
        let look = Status {
            applies: Vec::new(),
            settings,
            warnings: Vec::new(),
            last: None,
            elsewhere: Vec::new(),
            gone: Vec::new(),
        };
        let mut text = Vec::new();
        status(&look, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let wanted = [
            "  this machine: sysctl.busy_read stays 0us: refused",
            "  this machine: sysctl.busy_poll was 0us, set to 50us, now 7us",
        ];
        assert_eq!(lines, wanted);
    }
}
