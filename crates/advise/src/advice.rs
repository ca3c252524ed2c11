//! All settings with their predictions, the best one for a budget, and its policy file.

use std::fmt::Write;

use busypoll_policy::Plane;

use crate::doubt;
use crate::model::{ALWAYS, Costs, Prediction, Setting, predict};
use crate::recording::Recording;
use crate::watch::Cpus;

/// What the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Budget {
    /// CPU time of the program; 1 is one CPU.
    pub(crate) cpu: Option<f64>,
    /// From a packet's arrival to the program, 99 in 100, in microseconds.
    pub(crate) p99_us: Option<f64>,
}

/// A setting, what it would give, and why that may not hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) setting: Setting,
    pub(crate) prediction: Option<Prediction>,
    pub(crate) doubts: Vec<String>,
}

/// The advice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Advice {
    pub(crate) rows: Vec<Row>,
    /// Why nothing can be said of this program.
    pub(crate) doubts: Vec<String>,
    /// The best setting that keeps the budget.
    pub(crate) best: Option<Setting>,
}

/// Rounds that differ by less are alike: the cheaper one is better.
const ALIKE: f64 = 0.03;

impl Advice {
    /// From what was seen and measured.
    pub(crate) fn of(
        recording: &Recording,
        costs: &Costs,
        cpus: &Cpus,
        more: Vec<String>,
        budget: Budget,
    ) -> Self {
        let mut doubts = doubt::of_program(recording, cpus);
        doubts.extend(more);
        let row = |setting| {
            let prediction = predict(recording, costs, setting);
            let doubts = prediction
                .map(|prediction| doubt::of_setting(setting, &prediction, recording, costs, cpus));
            Row { setting, prediction, doubts: doubts.unwrap_or_default() }
        };
        let rows: Vec<Row> = Setting::all().into_iter().map(row).collect();
        let best = if doubts.is_empty() { best(&rows, budget) } else { None };
        Advice { rows, doubts, best }
    }
}

fn best(rows: &[Row], budget: Budget) -> Option<Setting> {
    let allowed = rows.iter().filter_map(|row| {
        let prediction = row.prediction.filter(|_| row.doubts.is_empty())?;
        let cpu = budget.cpu.is_none_or(|most| prediction.cpu <= most);
        let p99 = budget.p99_us.is_none_or(|most| prediction.delay_p99 <= most);
        (cpu && p99).then_some((row.setting, prediction))
    });
    let allowed: Vec<(Setting, Prediction)> = allowed.collect();
    let shortest = allowed.iter().map(|(_, it)| it.round_p50).min_by(f64::total_cmp)?;
    let near = allowed.iter().filter(|(_, it)| it.round_p50 <= shortest * (1.0 + ALIKE));
    near.min_by(|(_, one), (_, other)| one.cpu.total_cmp(&other.cpu)).map(|(setting, _)| *setting)
}

impl Setting {
    /// `off`, `kernel 50us`, `stack always`.
    pub(crate) fn name(self) -> String {
        let plane = match self.plane {
            Plane::Kernel => "kernel",
            Plane::Stack => "stack",
            Plane::Off => return "off".into(),
        };
        match self.poll {
            Some(time) => format!("{plane} {}us", time.as_micros()),
            None => format!("{plane} always"),
        }
    }
}

/// The policy file that gives the setting to this program.
pub(crate) fn policy(setting: Setting, program: &str) -> String {
    let mut text = String::from("[[rule]]\n");
    // A name with a quote or a backslash is rare, and would end the string.
    let program = program.replace(['\\', '"'], "?");
    let _ = writeln!(text, "program = \"{program}\"");
    match setting.plane {
        Plane::Off => text.push_str("plane = \"off\"\n"),
        Plane::Kernel => text.push_str("plane = \"kernel\"\n"),
        Plane::Stack => text.push_str("plane = \"stack\"\n"),
    }
    if setting.plane != Plane::Off {
        let time = setting.poll.unwrap_or(ALWAYS);
        let _ = writeln!(text, "busy_poll = \"{}us\"", time.as_micros());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(plane: Plane, poll: Option<u64>, round: f64, cpu: f64, delay_p99: f64) -> Row {
        let setting = Setting { plane, poll: poll.map(Duration::from_micros) };
        let prediction = Prediction { round_p50: round, cpu, delay_p99, ..Prediction::default() };
        Row { setting, prediction: Some(prediction), doubts: Vec::new() }
    }

    fn rows() -> Vec<Row> {
        vec![
            row(Plane::Off, Some(0), 40.0, 0.3, 30.0),
            row(Plane::Kernel, Some(50), 25.0, 0.7, 30.0),
            row(Plane::Kernel, Some(200), 25.1, 0.9, 3.0),
            row(Plane::Stack, None, 12.0, 1.0, 3.0),
        ]
    }

    #[test]
    fn the_best_is_the_shortest_round_within_the_budget_and_the_cheaper_of_those_alike() {
        let name = |rows: &[Row], cpu: Option<f64>, p99_us: Option<f64>| {
            best(rows, Budget { cpu, p99_us }).map(Setting::name)
        };
        let mut all = rows();
        assert_eq!(name(&all, None, None).as_deref(), Some("stack always"));
        assert_eq!(name(&all, Some(0.95), None).as_deref(), Some("kernel 50us"));
        assert_eq!(name(&all, Some(0.95), Some(5.0)).as_deref(), Some("kernel 200us"));
        assert_eq!(name(&all, Some(0.5), None).as_deref(), Some("off"));
        assert_eq!(name(&all, Some(0.1), None), None);
        // What is in doubt is not recommended.
        all[3].doubts.push("no".into());
        assert_eq!(name(&all, None, None).as_deref(), Some("kernel 50us"));
    }

    #[test]
    fn the_policy_is_read_as_it_was_meant() {
        for row in rows() {
            let text = policy(row.setting, "redis-server");
            let policy = busypoll_policy::Policy::parse(&text).unwrap_or_else(|_| panic!("{text}"));
            assert!(policy.names_programs(), "{text}");
        }
    }
}
