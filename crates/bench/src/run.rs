//! A run: the arms that can be measured here, their order, and their results. Owns the lab and the
//! progress bar; prints nothing else.

use std::collections::{BTreeMap, btree_map::Entry};
use std::fmt::Write;
use std::time::Duration;

use busypoll_lab::Lab;
use busypoll_policy::say;
use busypoll_stack::Host;
use busypoll_stack::nic::Coalesce;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::arm::{Arm, Nic, Placement, Plane};
use crate::clock::Clock;
use crate::cpus::Cpus;
use crate::demand::{self, Usage};
use crate::local::OtherEnd;
use crate::remote::Remote;
use crate::schedule::{self, Budget};
use crate::siblings::{self, OneCore, Rounds, Shared};
use crate::slot::{Plan, Slot};
use crate::stats::Rtts;
use crate::units::{LAB_MTU, SIZES, Size, Sizes};
use crate::workload::Load;
use crate::{bare, interrupt, kernel, limit, local, open, stack};

/// The common settings of all arms of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Message sizes.
    pub size: Size,
    /// Pacing.
    pub load: Load,
    /// The number of open connections, or UDP sockets of the server, including the measured one; none: only that one.
    pub open: Option<usize>,
    /// Whether requests are orders of a FIX session.
    pub fix: bool,
    /// Requests of each arm over all rounds, in place of `duration`; none: as many as fit.
    pub messages: Option<u64>,
    /// The sizes of `--sweep size`; 0: no more.
    pub sizes: Sizes,
    /// `SO_BUSY_POLL` of busy-poll arms.
    pub busy_poll: Duration,
    /// Interrupt moderation of cable arms.
    pub coalesce: Coalesce,
    /// The largest packet, in bytes. A cable's is larger if a message is.
    pub mtu: usize,
    /// Rounds.
    pub rounds: usize,
    /// For all arms and rounds together.
    pub duration: Duration,
}

impl Default for Settings {
    /// The defaults of `busypoll bench`: one byte each way, without gaps, in 8 rounds and 40 s.
    fn default() -> Settings {
        Settings {
            size: Size { request: 1, response: 1 },
            load: Load::Closed { gap: Duration::ZERO },
            open: None,
            fix: false,
            messages: None,
            sizes: SIZES,
            busy_poll: Duration::from_micros(50),
            coalesce: Coalesce::default(),
            mtu: LAB_MTU,
            rounds: 8,
            duration: Duration::from_secs(40),
        }
    }
}

/// One arm's rounds; none for a failed round.
#[derive(Debug, Clone)]
pub struct ArmRun {
    /// The arm.
    pub arm: Arm,
    /// By round.
    pub slots: Vec<Option<Slot>>,
}

/// An arm that was not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its name.
    pub name: &'static str,
    /// The reason, and the remedy.
    pub reason: String,
}

/// The result of a measurement.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The shared-memory limit, by round; none with one CPU, between machines, and for rounds that are left out.
    pub limit: Vec<Option<Rtts>>,
    /// Arms with at least one round.
    pub arms: Vec<ArmRun>,
    /// The arms without any.
    pub skipped: Vec<Skipped>,
    /// The idle control.
    pub idle: Usage,
    /// How often the CPUs shared a core.
    pub one_core: OneCore,
    /// The number of finished rounds if Ctrl-C ended the measurement.
    pub stopped_after: Option<usize>,
}

/// The environment that arms run in.
pub struct Bench {
    /// The run's clock.
    pub clock: Clock,
    /// The run's CPUs.
    pub cpus: Cpus,
    veth: Result<Lab, String>,
    // A separate lab: an XDP program on the kernel arms' veth would change what they measure.
    xdp: Result<Lab, String>,
    remote: Option<Remote>,
    host: Option<Host>,
    other_end: Option<OtherEnd>,
}

impl Bench {
    /// Makes the labs if possible; otherwise arms that need one are skipped with the reason.
    pub fn new(cpus: Cpus, arms: &[Arm]) -> Self {
        Bench::with_mtu(cpus, arms, LAB_MTU)
    }

    /// As [`new`](Bench::new), with another MTU of the labs.
    pub fn with_mtu(cpus: Cpus, arms: &[Arm], mtu: usize) -> Self {
        let lab = |nic| {
            if !arms.iter().any(|a| a.nic == nic) {
                return Err("no arm needs it".to_owned());
            }
            lab(cpus, mtu)
        };
        Self {
            clock: Clock::default(),
            cpus,
            veth: lab(Nic::Veth),
            xdp: no_xdp().map_or_else(|| lab(Nic::Xdp), |why| Err(why.to_owned())),
            remote: None,
            host: None,
            other_end: None,
        }
    }

    /// With `other_end`, arms between two processes can run.
    pub fn with_other_end(self, other_end: Option<OtherEnd>) -> Self {
        Self { other_end, ..self }
    }

    /// A bench whose server is on another machine; stack arms go over `host`.
    pub fn with_remote(cpus: Cpus, remote: Remote, host: Option<Host>) -> Self {
        // The second CPU of the pair is not used here.
        let cpus = Cpus { server: None, share_core: false, ..cpus };
        Self { remote: Some(remote), host, ..Self::new(cpus, &[]) }
    }

    /// The server's machine, if it is another one.
    pub fn server(&self) -> Option<&str> {
        self.remote.as_ref().map(|remote| remote.name.as_str())
    }

    /// Why an arm cannot run here, as far as known.
    fn obstacle(&self, arm: &Arm) -> Option<String> {
        if self.remote.is_some() {
            let lacks = arm.plane == Plane::Stack && self.host.is_none();
            return lacks.then(|| stack::NO_DEVICE.to_owned());
        }
        if arm.placement == Placement::SeparateCpus && self.cpus.server.is_none() {
            return Some(format!(
                "needs two CPUs, this process may run on CPU {} only: widen its affinity (taskset, \
                 cpuset)",
                self.cpus.client
            ));
        }
        if arm.is_local() {
            return self.other_end.is_none().then(|| local::NO_OTHER_END.to_owned());
        }
        match arm.nic {
            Nic::Veth => self.veth.as_ref().err().cloned(),
            Nic::Xdp => self.xdp.as_ref().err().cloned(),
            _ => None,
        }
    }

    fn run_once(&self, arm: &Arm, plan: &Plan<'_>) -> Result<Slot, String> {
        if let Some(count) = plan.open {
            open::room(arm, count)?;
        }
        // A lab of its own, so that the remains of ten thousand connections do not affect the next run.
        let fresh = plan
            .lab
            .filter(|_| plan.open.is_some())
            .map(|_| lab(self.cpus, plan.mtu))
            .transpose()?;
        let plan = &Plan { lab: fresh.as_ref().or(plan.lab), ..*plan };
        match (arm.nic, arm.plane) {
            _ if arm.is_local() => local::run(arm, plan),
            (Nic::Xdp, Plane::Bare) => bare::run(plan),
            (Nic::Xdp | Nic::Cable, _) => stack::run(arm, plan),
            _ => kernel::run(arm, plan),
        }
    }

    fn plan(&self, arm: &Arm, settings: &Settings, budget: &Budget) -> Plan<'_> {
        let lab = match arm.nic {
            Nic::Veth => self.veth.as_ref().ok(),
            Nic::Xdp => self.xdp.as_ref().ok(),
            _ => None,
        };
        let server_cpu = match arm.placement {
            Placement::SameCpu => self.cpus.client,
            Placement::SeparateCpus => self.cpus.server.unwrap_or(self.cpus.client),
        };
        Plan {
            clock: &self.clock,
            lab,
            remote: self.remote.as_ref(),
            other_end: self.other_end,
            host: self.host.as_ref(),
            client_cpu: self.cpus.client,
            server_cpu,
            size: settings.size.carried_by(arm.protocol),
            load: settings.load,
            open: settings.open,
            fix: settings.fix,
            messages: settings.messages.map(|all| all.div_ceil(settings.rounds.max(1) as u64)),
            busy_poll: settings.busy_poll,
            coalesce: settings.coalesce,
            mtu: settings.mtu,
            warm_up: budget.warm_up,
            measure: budget.measure,
        }
    }

    /// Calls `run` with the plan of one of `arms`, each of which gets its share of the duration.
    ///
    /// # Errors
    /// A message of one line if the duration is too short; inside, why this arm cannot run.
    pub fn once<R>(
        &self,
        arm: &Arm,
        settings: &Settings,
        arms: usize,
        run: impl FnOnce(&Plan<'_>) -> Result<R, String>,
    ) -> Result<Result<R, String>, String> {
        let budget = Budget::divide(settings.duration, arms, 1)?;
        Ok(match self.obstacle(arm) {
            Some(reason) => Err(reason),
            None => run(&self.plan(arm, settings, &budget)),
        })
    }

    /// The idle control, on both machines if there are two.
    fn idle(&self, time: Duration) -> Result<Usage, String> {
        let Some(remote) = &self.remote else { return demand::idle(time) };
        let (mut both, here) = remote.idle(time, || demand::idle(time))?;
        both.add(here?);
        Ok(both)
    }

    /// The shared-memory limit; none without two CPUs on this machine.
    fn limit(&self, time: Duration) -> Result<Option<(Rtts, Shared)>, String> {
        let Cpus { client, server, .. } = self.cpus;
        let ping_pong = |server| {
            siblings::watch(&self.clock, self.cpus, Placement::SeparateCpus, || {
                limit::ping_pong(&self.clock, client, server, time)
            })
        };
        server.map(ping_pong).transpose()
    }

    /// Measures `arms` in interleaved rounds.
    ///
    /// # Errors
    /// A message of one line if the duration is too short, or if the machine's counters cannot be read. The errors of
    /// single arms are in [`Outcome::skipped`].
    pub fn measure(
        &self,
        arms: &[Arm],
        settings: &Settings,
        title: &str,
    ) -> Result<Outcome, String> {
        let outcomes = self.measure_together(arms, std::slice::from_ref(settings), title)?;
        Ok(outcomes.into_iter().next().unwrap_or_default())
    }

    /// Measures `arms` with each of `settings` in the same rounds, so that the results can be compared by round. All
    /// have the same number of rounds, and share the time. One outcome for each.
    ///
    /// # Errors
    /// As [`Bench::measure`].
    pub fn measure_together(
        &self,
        arms: &[Arm],
        settings: &[Settings],
        title: &str,
    ) -> Result<Vec<Outcome>, String> {
        // The settings of one arm are neighbours.
        let units: Vec<(&Arm, &Settings)> =
            arms.iter().flat_map(|arm| settings.iter().map(move |s| (arm, s))).collect();
        let mut skipped: BTreeMap<usize, String> = BTreeMap::new();
        for (i, (arm, _)) in units.iter().enumerate() {
            if let Some(reason) = self.obstacle(arm) {
                skipped.insert(i, reason);
            }
        }
        let runnable: Vec<usize> = (0..units.len()).filter(|i| !skipped.contains_key(i)).collect();
        let rounds = settings.first().map_or(0, |s| s.rounds);
        let duration = settings.iter().map(|s| s.duration).sum();
        let budget = Budget::divide(duration, runnable.len(), rounds)?;
        let progress = progress(runnable.len() * rounds, title);
        let mut common = Outcome::default();
        let mut slots: Vec<Rounds<Slot>> = vec![vec![None; rounds]; units.len()];
        let mut limit: Rounds<Rtts> = vec![None; rounds];
        let mut finished = 0;
        'rounds: for (round, order) in schedule::rounds(runnable.len(), rounds).iter().enumerate() {
            let idle = self.idle(budget.idle)?;
            common.idle.add(idle);
            // Alternately before and after the arms, as the arms' order is reversed in each second round.
            if round % 2 == 0 {
                limit[round] = self.limit(budget.limit)?;
            }
            for i in order.iter().map(|&position| runnable[position]) {
                if interrupt::is_asked() {
                    break 'rounds;
                }
                let (arm, settings) = units[i];
                progress.set_message(arm.name);
                // An arm that failed once is left out: half its rounds cannot be compared.
                if let Entry::Vacant(free) = skipped.entry(i) {
                    let once = || self.run_once(arm, &self.plan(arm, settings, &budget));
                    match siblings::watch(&self.clock, self.cpus, arm.placement, once) {
                        Ok(slot) => slots[i][round] = Some(slot),
                        Err(reason) => drop(free.insert(reason)),
                    }
                }
                progress.inc(1);
            }
            if round % 2 == 1 {
                limit[round] = self.limit(budget.limit)?;
            }
            finished = round + 1;
            interrupt::round_is_finished(budget.warm_up + budget.measure);
        }
        progress.finish_and_clear();
        common.stopped_after = stopped_after(finished, rounds)?;
        slots.iter_mut().for_each(|rounds| rounds.truncate(finished));
        limit.truncate(finished);
        let measured = slots.iter().enumerate().filter(|(i, _)| !skipped.contains_key(i));
        let looks = measured.map(|(_, rounds)| siblings::shared(rounds));
        let looks: Vec<_> = looks.chain([siblings::shared(&limit)]).collect();
        common.one_core = OneCore::judge(&looks);
        common.limit = common.one_core.keep(limit);
        let one_core = common.one_core;
        let mut outcomes = vec![common; settings.len()];
        for (i, slots) in slots.into_iter().enumerate() {
            let (arm, outcome) = (*units[i].0, &mut outcomes[i % settings.len()]);
            match skipped.remove(&i) {
                Some(reason) => outcome.skipped.push(Skipped { name: arm.name, reason }),
                None => outcome.arms.push(ArmRun { arm, slots: one_core.keep(slots) }),
            }
        }
        Ok(outcomes)
    }
}

/// Why this process cannot use AF_XDP, if that is known: it has made itself root of a user namespace.
pub(crate) fn no_xdp() -> Option<&'static str> {
    busypoll_lab::in_own_user_namespace().then_some(
        "needs root: for an ordinary user bench makes its hosts in a user namespace of its own, where the kernel \
         allows neither BPF nor AF_XDP; run with sudo",
    )
}

/// Two hosts on the run's CPUs.
fn lab(cpus: Cpus, mtu: usize) -> Result<Lab, String> {
    let server = cpus.server.unwrap_or(cpus.client);
    Lab::builder().mtu(mtu as u32).cpus(cpus.client, server).build().map_err(|e| e.to_string())
}

/// The number of finished rounds if Ctrl-C ended the measurement; none if all were finished.
pub(crate) fn stopped_after(finished: usize, rounds: usize) -> Result<Option<usize>, String> {
    if finished == rounds {
        return Ok(None);
    }
    if finished == 0 {
        return Err("stopped by Ctrl-C before a round was finished".to_owned());
    }
    say(format_args!("stopped by Ctrl-C: {finished} of {rounds} rounds"));
    Ok(Some(finished))
}

/// A progress bar on stderr if that is a terminal. It is drawn only between measurements.
pub(crate) fn progress(steps: usize, title: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {left}  {msg}") {
        // Before the first step there is no estimate.
        let left = |state: &ProgressState, to: &mut dyn Write| match state.pos() {
            0 => {}
            _ => drop(write!(to, "{:#} left", HumanDuration(state.eta()))),
        };
        bar.set_style(style.progress_chars("=> ").with_key("left", left));
    }
    bar.set_prefix(title.to_owned());
    bar
}
