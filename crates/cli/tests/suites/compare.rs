//! Runs a suite three ways, and says where a plane is not as plain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::Instant;
use std::{fmt, thread};

use super::expected::Table;
use super::outcome::{Outcome, Outcomes, Suite, Way};
use super::place::{Counts, Place};

/// How often a test is run again, by itself, on the plane and plain, before it counts as a difference.
const AGAIN: usize = 3;

/// What has become of a suite.
pub struct Report {
    pub suite: String,
    pub version: String,
    pub outcomes: BTreeMap<Way, Outcomes>,
    pub counts: BTreeMap<Way, Counts>,
    /// Tests that are not the same each time they are run plain.
    pub unsteady: BTreeSet<String>,
    /// Differences that did not come again, and those that are expected to come and go.
    pub passing: Vec<String>,
    /// What is not expected: differences, expected ones that are none, a way without evidence.
    pub surprises: Vec<String>,
    /// Expected differences that were there.
    pub met: usize,
    seconds: u64,
}

/// Parts at a time: much of a suite's time is spent asleep.
const AT_A_TIME: usize = 3;

pub fn run(suite: &dyn Suite, table: &Table) -> Report {
    let (started, version) = (Instant::now(), suite.version());
    let parts = Mutex::new(suite.parts().into_iter().collect::<VecDeque<_>>());
    let whole = Mutex::new(Report::new(suite.name(), version));
    let jobs = parts.lock().unwrap().len().min(AT_A_TIME);
    thread::scope(|scope| {
        for job in 0..jobs {
            let (parts, whole) = (&parts, &whole);
            scope.spawn(move || {
                // One process at a time has an interface: each job has hosts of its own.
                let place = Place::new(suite.name(), job);
                let next = || parts.lock().unwrap().pop_front();
                while let Some(part) = next() {
                    let report = run_part(suite, &place, table, &part);
                    whole.lock().unwrap().add(report);
                }
            });
        }
    });
    let mut report = whole.into_inner().unwrap();
    report.evidence();
    report.seconds = started.elapsed().as_secs();
    report
}

fn run_part(suite: &dyn Suite, place: &Place, table: &Table, part: &str) -> Report {
    let mut report = Report::new(suite.name(), String::new());
    for way in Way::ALL {
        let (before, since) = (place.counts(), Instant::now());
        let outcomes = suite.run(place, way, part, None);
        let counts = place.counts().since(before);
        let (took, total) = (since.elapsed().as_secs(), tally(&outcomes));
        println!("{} {part} {way}: {total}, {took} s, {counts}", suite.name());
        report.counts.insert(way, counts);
        report.outcomes.insert(way, outcomes);
    }
    for way in Way::PLANES {
        report.compare(suite, place, table, part, way);
    }
    report
}

impl Report {
    fn new(suite: &str, version: String) -> Self {
        Self {
            suite: suite.into(),
            version,
            outcomes: BTreeMap::new(),
            counts: BTreeMap::new(),
            unsteady: BTreeSet::new(),
            passing: Vec::new(),
            surprises: Vec::new(),
            met: 0,
            seconds: 0,
        }
    }

    fn add(&mut self, part: Self) {
        for (way, outcomes) in part.outcomes {
            self.outcomes.entry(way).or_default().extend(outcomes);
        }
        for (way, counts) in part.counts {
            *self.counts.entry(way).or_default() += counts;
        }
        self.unsteady.extend(part.unsteady);
        self.passing.extend(part.passing);
        self.surprises.extend(part.surprises);
        self.met += part.met;
    }

    fn compare(&mut self, suite: &dyn Suite, place: &Place, table: &Table, part: &str, way: Way) {
        let names: BTreeSet<String> =
            self.outcomes.values().flat_map(|o| o.keys().cloned()).collect();
        for name in names {
            let of = |way: Way| self.outcomes[&way].get(&name).cloned();
            let (plain, there) = (of(Way::Plain), of(way));
            let line = table.find(suite.name(), &name, way);
            if same(&plain, &there) {
                if let Some(line) = line.filter(|line| !line.varies && !line.test.ends_with('*')) {
                    let reason = &line.reason;
                    self.surprises
                        .push(format!("{name}, {way}: as plain, though expected: {reason}"));
                }
                continue;
            }
            if line.is_some() {
                self.met += 1;
                continue;
            }
            let only = [name.clone()];
            let again = |way| suite.run(place, way, part, Some(&only)).remove(&name);
            let mut on_plane: Vec<_> = (0..AGAIN).map(|_| again(way)).collect();
            let in_plain: Vec<_> = (0..AGAIN).map(|_| again(Way::Plain)).collect();
            let words = format!("{name}, {way}: {} (plain {})", says(&there), says(&plain));
            if in_plain.iter().any(|outcome| !same(outcome, &plain))
                || !holds_alone(&plain, &in_plain)
            {
                self.unsteady.insert(name.clone());
                self.passing.push(format!("{words}; plain is not the same each time either"));
            } else if on_plane.iter().all(|outcome| same(outcome, &plain)) {
                self.passing.push(format!("{words}; {AGAIN} times as plain when run again"));
                // What is counted is what came again.
                let last = on_plane.pop().flatten().map(|outcome| (name, outcome));
                self.outcomes.get_mut(&way).unwrap().extend(last);
            } else {
                self.surprises.push(words);
            }
        }
    }

    /// That the packets went over the wire, and on the stack plane past the kernel's stack: where a test is two
    /// processes, one of them has the interface, and the other's packets are the kernel's. Nothing is asked of the kernel
    /// plane: what the mirror sends back often comes within the send, before anybody polls.
    fn evidence(&mut self) {
        for (way, counts) in &self.counts {
            let missing = match way {
                Way::Plain | Way::Kernel => {
                    (counts.came < 100).then_some("next to nothing came over the wire")
                }
                Way::Stack => (counts.kernel * 4 > counts.came * 3)
                    .then_some("the kernel's stack has seen more than three quarters"),
            };
            if let Some(missing) = missing {
                self.surprises.push(format!("{way}: {missing}: {counts}"));
            }
        }
    }

    pub fn passed(&self, way: Way) -> usize {
        self.outcomes[&way].values().filter(|outcome| **outcome == Outcome::Passed).count()
    }
}

fn same(a: &Option<Outcome>, b: &Option<Outcome>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.is_as(b),
        (None, None) => true,
        _ => false,
    }
}

/// Whether a test did what it did, or was not there to be run alone.
fn holds_alone(plain: &Option<Outcome>, again: &[Option<Outcome>]) -> bool {
    plain.is_none() || again.iter().all(Option::is_some)
}

fn says(outcome: &Option<Outcome>) -> String {
    outcome.as_ref().map_or("not run".into(), Outcome::to_string)
}

fn tally(outcomes: &Outcomes) -> String {
    let count = |kind: &Outcome| outcomes.values().filter(|outcome| outcome.is_as(kind)).count();
    let failed = count(&Outcome::Failed(String::new()));
    format!(
        "{} passed, {failed} failed, {} skipped",
        count(&Outcome::Passed),
        count(&Outcome::Skipped)
    )
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.came += more.came;
        self.kernel += more.kernel;
        self.polled += more.polled;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { came, kernel, polled } = self;
        write!(
            f,
            "{came} packets, {kernel} of them through the kernel's stack, {polled} busy polled by it"
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}, {} s", self.suite, self.version, self.seconds)?;
        for (way, outcomes) in &self.outcomes {
            writeln!(f, "  {way:6} {}; {}", tally(outcomes), self.counts[way])?;
        }
        writeln!(f, "  {} expected differences met", self.met)?;
        for line in &self.passing {
            writeln!(f, "  came and went: {line}")?;
        }
        for line in &self.surprises {
            writeln!(f, "  NOT EXPECTED: {line}")?;
        }
        Ok(())
    }
}
