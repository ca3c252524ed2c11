//! More cores, faster links and many hosts on paper: from the cost of a request on each plane to the rate at which the
//! first limit is met, and what a fleet pays for its p99.

use serde::Deserialize;

use crate::data::RoundTripReport;

/// The inputs in the tree.
pub const INPUTS: &str = include_str!("scale.toml");

/// The links, in Gbit/s.
pub const LINKS: [f64; 4] = [25.0, 100.0, 200.0, 400.0];

/// The planes, and the arm that tells the cost of each.
pub const PLANES: [(&str, &str); 4] = [
    ("kernel, asleep", "kernel-udp-blocking-same-cpu"),
    ("kernel, busy polling", "kernel-udp-busy-poll"),
    ("stack, AF_XDP by copy", "stack-xdp-udp-busy-poll"),
    ("stack, no driver", "stack-cable-udp-busy-poll"),
];

/// An arm's figures, in microseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Round trip.
    pub p50: f64,
    /// Round trip.
    pub p99: f64,
    /// Service demand; none where it could not be measured.
    pub cpu: Option<f64>,
}

/// A count or a limit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// The unit.
    pub unit: String,
    /// `counted` in this tree's code, or `cited`.
    pub kind: Kind,
    /// What it is.
    pub meaning: String,
    /// Where it comes from.
    pub source: String,
}

/// Where an input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Kind {
    Counted,
    Cited,
}

/// A ratio that was measured, and that of two arms which should predict it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// What it is of.
    pub what: String,
    /// As measured.
    pub value: f64,
    /// The arm whose p50 is above the line.
    pub over: String,
    /// The one below it.
    pub under: String,
    /// The command.
    pub source: String,
}

/// All inputs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inputs {
    /// Costs.
    #[serde(rename = "arm")]
    pub arms: Vec<Arm>,
    /// Counts and limits.
    #[serde(rename = "input")]
    pub inputs: Vec<Input>,
    /// Ratios to check against.
    #[serde(default)]
    pub known: Vec<Known>,
}

impl Inputs {
    /// Reads inputs, those in the tree or a user's.
    ///
    /// # Errors
    /// A message of one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let inputs: Self = super::toml(text)?;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        for arm in &inputs.arms {
            let figures = [Some(arm.p50), Some(arm.p99), arm.cpu];
            if !figures.into_iter().flatten().all(positive) {
                return Err(format!("arm '{}': its figures are more than 0", arm.name));
            }
        }
        let all = inputs.inputs.iter().map(|i| (&i.name, i.value, &i.source));
        let known = inputs.known.iter().map(|k| (&k.what, k.value, &k.source));
        for (name, value, source) in all.chain(known) {
            if !positive(value) || source.trim().is_empty() {
                return Err(format!("'{name}' is more than 0 and has a source"));
            }
        }
        for name in ["ring-frames", "takeover", "copies", "headers", "memory", "watts"] {
            if inputs.inputs.iter().all(|input| input.name != name) {
                return Err(format!("no input '{name}'"));
            }
        }
        inputs.has_all_planes().map(|()| inputs)
    }

    /// The arms of a run in place of these; the ratios of other workloads are not that run's.
    ///
    /// # Errors
    /// A message of one line, if an arm that a plane's cost is taken from is not in it.
    pub fn of_run(self, run: &RoundTripReport) -> Result<Self, String> {
        let valid = run.arms.iter().filter(|arm| arm.valid && arm.rtt_us.p50 > 0.0);
        let arms = valid.map(|arm| Arm {
            name: arm.name.clone(),
            p50: arm.rtt_us.p50,
            p99: arm.rtt_us.p99.unwrap_or(arm.rtt_us.max),
            cpu: arm.service_demand_us,
        });
        let inputs = Self { arms: arms.collect(), known: Vec::new(), ..self };
        inputs.has_all_planes().map(|()| inputs)
    }

    fn has_all_planes(&self) -> Result<(), String> {
        match PLANES.iter().find(|(_, name)| self.arm(name).is_none()) {
            Some((plane, name)) => {
                Err(format!("no valid arm '{name}', of which '{plane}' takes its cost"))
            }
            None => Ok(()),
        }
    }

    fn arm(&self, name: &str) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.name == name)
    }

    fn p50(&self, name: &str) -> Option<f64> {
        self.arm(name).map(|arm| arm.p50)
    }

    /// A count or limit; parsing has checked that it is there.
    pub fn get(&self, name: &str) -> f64 {
        self.inputs.iter().find(|input| input.name == name).map_or(f64::NAN, |input| input.value)
    }
}

/// What ends growth first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No core is left.
    Cores,
    /// The link is full.
    Line,
    /// The memory is.
    Memory,
}

impl Limit {
    /// The word in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Line => "line",
            Self::Memory => "memory",
        }
    }
}

/// Requests a second, and what keeps them from being more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests answered, a second.
    pub per_second: f64,
    /// What is met first.
    pub limit: Limit,
}

/// Microseconds of a core for a request: to receive it and to send the answer. Half of a round trip, which has two such
/// ends, whether on two CPUs or on one.
pub fn cost(inputs: &Inputs, plane: &str) -> f64 {
    let arm = PLANES.iter().find(|(name, _)| *name == plane).map_or("", |(_, arm)| arm);
    inputs.p50(arm).map_or(f64::NAN, |p50| p50 / 2.0)
}

/// What `cores` cores answer over a link, with messages of `bytes` each way.
pub fn rate(inputs: &Inputs, plane: &str, cores: u32, gbits: f64, bytes: u32) -> Rate {
    let bytes = f64::from(bytes);
    let by_cores = f64::from(cores) * 1e6 / cost(inputs, plane);
    let by_line = gbits * 1e9 / 8.0 / (bytes + inputs.get("headers"));
    // Received and sent.
    let by_memory = inputs.get("memory") * 1e9 / (2.0 * inputs.get("copies") * bytes);
    let all = [(by_cores, Limit::Cores), (by_line, Limit::Line), (by_memory, Limit::Memory)];
    let first = all.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    first.map_or(Rate { per_second: 0.0, limit: Limit::Cores }, |(per_second, limit)| Rate {
        per_second,
        limit,
    })
}

/// Cores that the doorbells of one plane take at a rate: what AF_XDP's system calls and passes add to a request.
pub fn doorbell_cores(inputs: &Inputs, per_second: f64) -> f64 {
    let own = cost(inputs, "stack, no driver");
    per_second * (cost(inputs, "stack, AF_XDP by copy") - own).max(0.0) / 1e6
}

/// For how long a queue's frames last at a rate of its own, in microseconds.
pub fn ring_lasts(inputs: &Inputs, per_second: f64) -> f64 {
    inputs.get("ring-frames") * 1e6 / per_second
}

/// The rate of one queue above which its frames do not last until another thread takes over.
pub fn ring_limit(inputs: &Inputs) -> f64 {
    inputs.get("ring-frames") * 1e6 / inputs.get("takeover")
}

/// What a fleet pays.
#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    /// The plane.
    pub plane: &'static str,
    /// Microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
    /// Cores that spin.
    pub cores: f64,
    /// Kilowatts, at most.
    pub kilowatts: f64,
    /// Megawatt hours in a year.
    pub mwh_a_year: f64,
}

/// What `hosts` hosts with `threads` waiting threads each pay.
pub fn fleet(inputs: &Inputs, hosts: u32, threads: u32) -> Vec<Fleet> {
    let of = |&(plane, arm): &(&'static str, &str)| {
        let arm = inputs.arm(arm)?;
        let spins = !arm.name.contains("blocking");
        let cores = if spins { f64::from(hosts) * f64::from(threads) } else { 0.0 };
        let kilowatts = cores * inputs.get("watts") / 1e3;
        let mwh_a_year = kilowatts * 8.766;
        Some(Fleet { plane, p50: arm.p50, p99: arm.p99, cores, kilowatts, mwh_a_year })
    };
    PLANES.iter().filter_map(of).collect()
}

/// A prediction about the machine of the inputs, beside what was measured there.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// What is predicted, and from what.
    pub what: String,
    /// By the model.
    pub predicted: f64,
    /// There.
    pub measured: f64,
}

impl Check {
    /// The relative error.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// All checks that the inputs allow.
pub fn checks(inputs: &Inputs) -> Vec<Check> {
    let mut all = Vec::new();
    let mut add = |what: String, predicted: Option<f64>, measured: Option<f64>| {
        if let (Some(predicted), Some(measured)) = (predicted, measured) {
            all.push(Check { what, predicted, measured });
        }
    };
    for arm in &inputs.arms {
        let (ends, why) = match arm.name.as_str() {
            name if name.ends_with("same-cpu") => (1.0, "one CPU works all the time"),
            name if name.ends_with("busy-poll") || name.ends_with("spin") => (2.0, "two CPUs do"),
            _ => continue,
        };
        add(format!("CPU us of {}: {why}", arm.name), Some(ends * arm.p50), arm.cpu);
    }
    let p50 = |name: &str| inputs.p50(name);
    for protocol in ["udp", "tcp"] {
        let layers = p50("bare-xdp-spin").zip(p50(&format!("stack-cable-{protocol}-busy-poll")));
        add(
            format!(
                "p50 of stack-xdp-{protocol}-busy-poll: bare rings and the stack over the cable"
            ),
            layers.map(|(driver, stack)| driver + stack),
            p50(&format!("stack-xdp-{protocol}-busy-poll")),
        );
    }
    let tcp = p50("kernel-tcp-busy-poll").zip(p50("kernel-udp-busy-poll"));
    add(
        "p50 of kernel-tcp-blocking-same-cpu: UDP's, and what TCP adds where both poll".to_owned(),
        tcp.zip(p50("kernel-udp-blocking-same-cpu")).map(|((tcp, udp), asleep)| asleep + tcp - udp),
        p50("kernel-tcp-blocking-same-cpu"),
    );
    for known in &inputs.known {
        let ratio = p50(&known.over).zip(p50(&known.under)).map(|(over, under)| over / under);
        add(format!("{}: the round trips' ratio", known.what), ratio, Some(known.value));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample::sample;

    fn inputs() -> Inputs {
        Inputs::parse(INPUTS).expect("the tree's inputs")
    }

    #[test]
    fn what_it_predicts_of_its_own_machine_holds_within_20_percent() {
        let checks = checks(&inputs());
        assert_eq!(checks.len(), 9 + 2 + 1 + 2, "{checks:#?}");
        for check in checks {
            assert!(check.error().abs() < 0.2, "{check:?}");
        }
    }

    #[test]
    fn the_first_limit_counts() {
        let inputs = inputs();
        let of = |plane, cores, gbits, bytes| rate(&inputs, plane, cores, gbits, bytes);
        let one = of("kernel, busy polling", 1, 400.0, 64);
        assert_eq!(one.limit, Limit::Cores);
        assert!((one.per_second - 1e6 / 3.24).abs() < 1.0, "{one:?}");
        let many = of("kernel, busy polling", 16, 400.0, 64);
        assert!((many.per_second / one.per_second - 16.0).abs() < 1e-9);
        let full = of("stack, no driver", 64, 25.0, 1472);
        assert_eq!(full.limit, Limit::Line);
        assert!((full.per_second - 25e9 / 8.0 / 1538.0).abs() < 1.0, "{full:?}");
        let mut slow = inputs.clone();
        slow.inputs.iter_mut().filter(|i| i.name == "memory").for_each(|i| i.value = 1.0);
        assert_eq!(rate(&slow, "stack, no driver", 64, 400.0, 1472).limit, Limit::Memory);
    }

    #[test]
    fn a_ring_lasts_exactly_until_the_takeover_at_its_limit() {
        let inputs = inputs();
        assert!((ring_lasts(&inputs, ring_limit(&inputs)) - inputs.get("takeover")).abs() < 1e-6);
        assert!((ring_limit(&inputs) - 1.28e6).abs() < 1.0);
        // At one request each microsecond, the difference of the two costs in cores.
        assert!((doorbell_cores(&inputs, 1e6) - (4.22 - 0.34) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn only_those_that_poll_cost_cores_while_nothing_arrives() {
        let fleet = fleet(&inputs(), 10_000, 2);
        assert_eq!(fleet.iter().map(|row| row.cores).collect::<Vec<_>>(), [0.0, 2e4, 2e4, 2e4]);
        assert!((fleet[1].kilowatts - 83.4).abs() < 1e-9, "{fleet:?}");
    }

    #[test]
    fn a_run_takes_the_place_of_the_trees_figures_if_it_has_all_planes() {
        assert!(inputs().of_run(&sample()).is_err_and(|why| why.contains("stack")));
        let mut run = sample();
        let model = run.arms[0].clone();
        run.arms = PLANES
            .iter()
            .map(|(_, name)| {
                let mut arm = model.clone();
                (arm.name, arm.valid, arm.rtt_us.p50) = ((*name).to_owned(), true, 10.0);
                arm
            })
            .collect();
        let own = inputs().of_run(&run).expect("all planes");
        assert_eq!(cost(&own, "kernel, busy polling"), 5.0);
    }

    #[test]
    fn wrong_inputs_are_one_line() {
        for (was, is, named) in [
            ("p50 = 0.34", "p50 = 0", "more than 0"),
            ("p50 = 0.34", "p50 = inf", "more than 0"),
            ("name = \"copies\"", "name = \"copy\"", "copies"),
            ("kind = \"cited\"", "kind = \"heard\"", "heard"),
            ("name = \"kernel-udp-busy-poll\"", "name = \"other\"", "kernel-udp-busy-poll"),
        ] {
            let why = Inputs::parse(&INPUTS.replacen(was, is, 1)).expect_err(named);
            assert!(why.contains(named) && why.lines().count() == 1, "{why}");
        }
    }
}
