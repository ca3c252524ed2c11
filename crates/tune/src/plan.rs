//! The changes that a profile would make here. Reads only.

use busypoll_linux::Error as Linux;
use busypoll_linux::deferral;
use busypoll_linux::irqbalance::Irqbalance;
use busypoll_linux::topology::{self, CpuList};
use busypoll_policy::text::nearest;
use serde::{Serialize, Serializer};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::machine::{At, Knob, Machine};
use crate::profile::{Profile, Setting, Want};
use crate::value::Value;

/// The user's options beside the profile.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The devices, by name. No other is touched.
    pub devices: Vec<String>,
    /// The number of sockets in one poll or select.
    pub sockets: Option<u32>,
    /// The CPUs the application runs on.
    pub app_cpus: Option<CpuList>,
}

/// The difference between a profile and the running system.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// The profile's name.
    pub profile: String,
    /// What the profile does.
    pub summary: String,
    /// What the application has to do in addition.
    pub companion: Option<String>,
    /// One line per setting and place, in the order in which they would be written.
    pub lines: Vec<Line>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Whether it sets gro-flush-timeout, which needs a poller.
    pub needs_poller: bool,
    /// Why it cannot be applied, if it cannot.
    pub impossible: Option<String>,
}

/// One setting at one place.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The device; none for a setting of the machine.
    pub device: Option<String>,
    /// The setting, for the user.
    pub setting: String,
    /// The setting.
    pub knob: Knob,
    /// Its current value; none if it cannot be read.
    pub now: Option<Value>,
    /// Its value in the profile; none if the profile has none for this machine.
    pub then: Option<Value>,
    /// What will be done.
    pub state: State,
    /// The reason.
    pub reason: String,
    /// What it costs other programs.
    pub cost: String,
    /// The source of these facts.
    pub source: String,
}

/// What will be done about a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is changed.
    Change,
    /// It has this value already.
    Same,
    /// It will be changed once another change has created its NAPI instance.
    Later(String),
    /// It cannot be made here: why.
    NotHere(String),
    /// It could be made, but another setting of the profile removes its queue or NAPI instance: why.
    Taken(String),
}

impl State {
    /// Why it cannot be made, if it cannot.
    fn obstacle(&self) -> Option<&str> {
        match self {
            State::NotHere(why) | State::Taken(why) => Some(why),
            State::Change | State::Same | State::Later(_) => None,
        }
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&match self {
            State::Change => "change".to_owned(),
            State::Same => "same".to_owned(),
            State::Later(why) => format!("later: {why}"),
            State::NotHere(why) => format!("not here: {why}"),
            State::Taken(why) => format!("taken: {why}"),
        })
    }
}

impl Plan {
    /// Compares a profile with the running system.
    ///
    /// # Errors
    /// [`Error::NeedsDevice`], [`Error::UnknownFeature`], no such device.
    pub fn make(
        machine: &mut Machine,
        devices: &[Device],
        profile: &Profile,
        options: &Options,
    ) -> Result<Self> {
        let mut plan = Plan {
            profile: profile.name.clone(),
            summary: profile.summary.clone(),
            companion: profile.companion.clone(),
            lines: Vec::new(),
            notes: Vec::new(),
            needs_poller: false,
            impossible: None,
        };
        if let Some(app) = &options.app_cpus {
            let online = topology::online()?;
            if let Some(cpu) = app.iter().find(|cpu| !online.contains(*cpu)) {
                return Err(Linux::NoCpu { cpu, online: online.to_string() }.into());
            }
        }
        let system_wide = profile.settings.iter().any(|s| s.key.is_system_wide());
        if devices.is_empty() {
            if !system_wide {
                return Err(Error::NeedsDevice { profile: profile.name.clone() });
            }
            if profile.settings.iter().any(|s| !s.key.is_system_wide()) {
                plan.notes.push("no device is named: --dev IF plans its settings, too".into());
            }
        }
        for device in devices.iter().filter(|d| profile.built_in && d.is_veth()) {
            plan.add(machine, Some(device), &gro_of_veth(), options)?;
        }
        for setting in &profile.settings {
            if setting.key.is_system_wide() {
                plan.add(machine, None, setting, options)?;
            } else {
                let gro_of_veth =
                    |d: &&Device| profile.built_in && d.is_veth() && setting.key == gro();
                for device in devices.iter().filter(|d| !gro_of_veth(d)) {
                    plan.add(machine, Some(device), setting, options)?;
                }
            }
        }
        plan.mark_excluded(devices);
        for setting in profile.settings.iter().filter(|s| s.essential) {
            let lines = plan.lines.iter().filter(|l| l.knob.key == setting.key);
            let obstacles: Option<Vec<&str>> = lines.map(|l| l.state.obstacle()).collect();
            if let Some([why, ..]) = obstacles.as_deref() {
                plan.impossible = Some(format!("{}: {why}", setting.key));
            }
        }
        plan.keep_from_irqbalance(machine, options)?;
        plan.lines.sort_by_key(|line| order(&line.knob.key));
        plan.needs_poller = plan.lines.iter().any(|line| {
            line.knob.key == Key::GroFlushTimeout
                && matches!(line.state, State::Change | State::Same | State::Later(_))
                && line.then.as_ref().and_then(Value::number) != Some(0)
        });
        plan.warn(devices);
        if !profile.settings.iter().any(|setting| setting.key == Key::GroFlushTimeout) {
            for device in devices {
                plan.note_deferral_cost(machine, device)?;
            }
        }
        Ok(plan)
    }

    /// The lines that change something.
    pub fn changes(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.state == State::Change)
    }

    /// Whether there is nothing to do, now or later.
    pub fn is_empty(&self) -> bool {
        !self.lines.iter().any(|line| matches!(line.state, State::Change | State::Later(_)))
    }

    fn add(
        &mut self,
        machine: &mut Machine,
        device: Option<&Device>,
        setting: &Setting,
        options: &Options,
    ) -> Result<()> {
        let places = machine.places(device, &setting.key)?;
        if places.is_empty() {
            let state = self.state_without_parts(device, &setting.key);
            let then = match &setting.want {
                Want::Is(value) => Some(value.clone()),
                _ => None,
            };
            self.lines.push(line(device, setting, At::Whole, None, then, state));
        }
        for (i, at) in places.into_iter().enumerate() {
            let knob = Knob { key: setting.key.clone(), at: at.clone() };
            let now = match machine.read(device, &knob) {
                Ok(now) => now,
                Err(e) => {
                    let state = State::NotHere(not_here(device, setting, &at, e)?);
                    self.lines.push(line(device, setting, at, None, None, state));
                    continue;
                }
            };
            let then = match resolve(machine, device, &setting.want, i, options) {
                Ok(then) => then,
                Err(why) => {
                    let state = State::NotHere(why);
                    self.lines.push(line(device, setting, at, Some(now), None, state));
                    continue;
                }
            };
            let state = match device.filter(|_| matches!(setting.key, Key::Feature(_))) {
                Some(device) => feature(device, &setting.key, &then)?,
                None if now == then => State::Same,
                None => match device.and_then(|d| machine.objection(d, &setting.key, &then)) {
                    Some(why) => State::NotHere(why),
                    None => State::Change,
                },
            };
            self.lines.push(line(device, setting, at, Some(now), Some(then), state));
        }
        Ok(())
    }

    /// Marks settings that another one makes impossible, as far as this is known beforehand: switching GRO off removes
    /// a veth's NAPI instances. How features depend on each other a driver shows only when they are requested.
    fn mark_excluded(&mut self, devices: &[Device]) {
        for device in devices.iter().filter(|d| d.is_veth() && !d.has_xdp) {
            let here = |line: &Line| line.device.as_deref() == Some(device.name());
            if !self
                .changes()
                .any(|l| here(l) && l.knob.key == gro() && l.then == Some(Value::Switch(false)))
            {
                continue;
            }
            for line in self.lines.iter_mut().filter(|l| here(l) && l.knob.key.is_napi()) {
                if line.state.obstacle().is_none() {
                    line.state = State::Taken(NAPI_OF_VETH.into());
                }
            }
        }
    }

    /// The state of a setting for which the device has no queue, interrupt or NAPI instance.
    fn state_without_parts(&self, device: Option<&Device>, key: &Key) -> State {
        let is_veth = device.is_some_and(Device::is_veth);
        let gro_comes = self.changes().any(|l| {
            l.knob.key == gro()
                && l.device.as_deref() == device.map(Device::name)
                && l.then == Some(Value::Switch(true))
        });
        match key {
            key if key.is_napi() && is_veth && gro_comes => {
                State::Later("on each NAPI instance, once GRO has created them".into())
            }
            key if key.is_napi() && device.is_some_and(|d| !d.up) => State::NotHere(
                "the device is down and has no NAPI instance: `ip link set … up`".into(),
            ),
            key if key.is_napi() && is_veth => State::NotHere(NAPI_OF_VETH.into()),
            key if key.is_napi() => State::NotHere("the device shows no NAPI instance".into()),
            Key::InterruptCpus => State::NotHere("the device shows no interrupt of its own".into()),
            _ => State::NotHere("the device shows no queue for it".into()),
        }
    }

    /// Makes irqbalance leave the interrupts alone that the profile moves.
    fn keep_from_irqbalance(&mut self, machine: &mut Machine, options: &Options) -> Result<()> {
        let moved = |l: &Line| match (&l.state, &l.knob.key, &l.knob.at) {
            (State::Change | State::Same, Key::InterruptCpus, At::Irq { number, .. }) => {
                Some(*number)
            }
            _ => None,
        };
        let mut irqs: Vec<u32> = self.lines.iter().filter_map(moved).collect();
        let Some(irqbalance) = Irqbalance::find().filter(|_| !irqs.is_empty()) else {
            return Ok(());
        };
        match irqbalance.banned() {
            Ok(banned) => irqs.extend(banned),
            Err(e) => {
                let list: Vec<String> = irqs.iter().map(|irq| format!("--banirq={irq}")).collect();
                self.notes.push(format!(
                    "irqbalance will move the interrupts back: stop it, or start it with {} ({e})",
                    list.join(" ")
                ));
                return Ok(());
            }
        }
        let key = Key::IrqbalanceBan;
        let about = key.about();
        let ban = Setting {
            key,
            want: Want::Is(Value::cpus(&irqs.into_iter().collect())),
            reason: about.reason.into(),
            cost: about.cost.into(),
            source: about.source.into(),
            essential: false,
        };
        self.add(machine, None, &ban, options)
    }

    /// Notes the cost of deferred interrupts that the profile does not change, by the doctor's rule.
    fn note_deferral_cost(&mut self, machine: &mut Machine, device: &Device) -> Result<()> {
        let mut longest = None;
        for at in machine.places(Some(device), &Key::GroFlushTimeout)? {
            let mut read = |key: Key| {
                let value = machine.read(Some(device), &Knob { key, at: at.clone() });
                value.ok().as_ref().and_then(Value::number)
            };
            let flush = read(Key::GroFlushTimeout);
            let defer = read(Key::DeferHardIrqs).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
            longest = longest.max(deferral::wait(defer, flush));
        }
        if let Some(wait) = longest {
            let (name, us) = (device.name(), wait.as_micros());
            self.notes.push(format!(
                "{name} defers interrupts, which this profile does not change: a packet that comes after the poll has \
                 ended waits up to {us}us for a timer, which pays only for programs that prefer busy polling \
                 (`busypoll doctor {name}` shows the pollers, and how to reset it)"
            ));
        }
        Ok(())
    }

    fn warn(&mut self, devices: &[Device]) {
        for device in devices.iter().filter(|d| d.is_veth()) {
            self.notes.push(format!(
                "{} is one end of a veth pair: packets carry a NAPI id only if the other end sends with \
                 TSO off (`ethtool -K … tso off` there)",
                device.name()
            ));
        }
    }
}

const NAPI_OF_VETH: &str = "veth has NAPI instances only with GRO on or an XDP program";

fn gro() -> Key {
    Key::Feature("rx-gro".into())
}

/// veth is the exception to "GRO off": it has NAPI instances only with GRO on.
fn gro_of_veth() -> Setting {
    Setting {
        key: gro(),
        want: Want::Is(Value::Switch(true)),
        reason: "veth has NAPI instances, and so anything to busy poll, only with GRO on".into(),
        cost: "packets that come in one burst are merged".into(),
        source: "drivers/net/veth.c".into(),
        essential: false,
    }
}

fn line(
    device: Option<&Device>,
    setting: &Setting,
    at: At,
    now: Option<Value>,
    then: Option<Value>,
    state: State,
) -> Line {
    let knob = Knob { key: setting.key.clone(), at };
    Line {
        device: device.map(|d| d.name().to_owned()),
        setting: knob.show(),
        knob,
        now,
        then,
        state,
        reason: setting.reason.clone(),
        cost: setting.cost.clone(),
        source: setting.source.clone(),
    }
}

/// The order in which settings are written; settings that delay packets are written last and restored first.
fn order(key: &Key) -> u8 {
    match key {
        key if key.resets_queues() => 0,
        // Before the interrupts are moved.
        Key::IrqbalanceBan => 0,
        Key::GroFlushTimeout => 3,
        key if key.is_napi() => 2,
        _ => 1,
    }
}

/// A feature's state: it may be fixed, or prevented by another.
fn feature(device: &Device, key: &Key, then: &Value) -> Result<State> {
    let Key::Feature(name) = key else { return Ok(State::Change) };
    let features = device.ethtool.features()?;
    let Some(feature) = features.iter().find(|f| f.name == *name) else { return Ok(State::Change) };
    let then = *then == Value::Switch(true);
    Ok(match feature.changeable {
        _ if feature.on == then && (feature.wanted == then || !feature.changeable) => State::Same,
        false => State::NotHere("the driver has it fixed".into()),
        true if feature.wanted == then => State::NotHere("another feature prevents it".into()),
        true => State::Change,
    })
}

/// Why a setting cannot be read here, or an error if the profile or the system is wrong.
fn not_here(device: Option<&Device>, setting: &Setting, at: &At, e: Linux) -> Result<String> {
    Ok(match (&setting.key, e) {
        (Key::Feature(name), Linux::DeviceLacks { device: on, .. }) => {
            let features = device.and_then(|d| d.ethtool.features().ok()).unwrap_or_default();
            let near = nearest(name, features.iter().map(|f| f.name.as_str()));
            let hint = near.map_or(String::new(), |near| format!(" (did you mean '{near}'?)"));
            return Err(Error::UnknownFeature { device: on, name: name.clone(), hint });
        }
        (_, Linux::NotInitialNetns { .. }) => {
            "visible and set in the initial network namespace only, but applies to all".into()
        }
        (Key::IrqSuspendTimeout, Linux::DeviceLacks { .. }) if *at == At::Whole => {
            "needs Linux 6.13 or newer".into()
        }
        (_, Linux::DeviceLacks { .. }) => "not supported by this device".into(),
        (_, e @ (Linux::Unsupported { .. } | Linux::NoNapi { .. })) => e.to_string(),
        (_, e) => return Err(e.into()),
    })
}

/// The wanted value of the `i`th part.
pub(crate) fn resolve(
    machine: &Machine,
    device: Option<&Device>,
    want: &Want,
    i: usize,
    options: &Options,
) -> Result<Value, String> {
    match want {
        Want::Is(Value::Cpus(list)) if device.is_some() && !list.is_empty() => {
            Ok(Value::Cpus(list.clone()))
        }
        Want::Is(value) => Ok(value.clone()),
        Want::BySockets => by_sockets(options.sockets).map(Value::Number),
        Want::BesideApp => {
            let app = options.app_cpus.as_ref().ok_or(
                "--app-cpus LIST says where the application runs; then the interrupts are moved near it",
            )?;
            let node = device.and_then(|d| machine.sysfs.attribute(d.name(), "device/numa_node"));
            let node = node.and_then(|node| node.parse::<u32>().ok());
            let online = topology::online().map_err(|e| e.to_string())?;
            let cpus: Vec<topology::Cpu> = online.iter().map(topology::cpu).collect();
            let beside = near_app(&cpus, node, app)?;
            // One CPU for each, in turn: with a list the kernel could choose and change the CPU.
            let cpu = beside.get(i % beside.len().max(1)).copied();
            Ok(Value::cpus(&cpu.into_iter().collect()))
        }
    }
}

/// `Documentation/admin-guide/sysctl/net.rst`: 50 for several sockets, 100 for several hundred, and epoll for
/// more.
fn by_sockets(sockets: Option<u32>) -> Result<u64, String> {
    match sockets.unwrap_or(1) {
        0..100 => Ok(50),
        100..1000 => Ok(100),
        many => Err(format!(
            "poll and select over {many} sockets would poll them all in turn: use epoll, with parameters of \
             its own (`busypoll run`, `busypoll attach`)"
        )),
    }
}

/// The CPUs for interrupts: of the device's node, not the application's, and not their SMT siblings if
/// there are others.
fn near_app(cpus: &[topology::Cpu], node: Option<u32>, app: &CpuList) -> Result<Vec<u32>, String> {
    let near = |cpu: &&topology::Cpu| node.is_none_or(|node| cpu.node == node);
    let free = |cpu: &&topology::Cpu| !app.contains(cpu.id);
    let apart = |cpu: &&topology::Cpu| !cpu.siblings.iter().any(|sibling| app.contains(sibling));
    let of = |test: &dyn Fn(&&topology::Cpu) -> bool| -> Vec<u32> {
        cpus.iter().filter(test).map(|cpu| cpu.id).collect()
    };
    let choices = [
        of(&|c| near(c) && apart(c)),
        of(&|c| near(c) && free(c)),
        of(&|c| apart(c)),
        of(&|c| free(c)),
    ];
    choices
        .into_iter()
        .find(|choice| !choice.is_empty())
        .ok_or_else(|| format!("the application has all CPUs ({app}): leave one to the interrupts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_go_near_the_application_but_not_to_its_cpus() {
        let cpu = |id, siblings: &str, node| topology::Cpu {
            id,
            siblings: siblings.parse().unwrap(),
            package: node,
            node,
        };
        let list = |text: &str| text.parse::<CpuList>().unwrap();
        // Two nodes of two cores with two SMT threads each.
        let machine = [
            cpu(0, "0,4", 0),
            cpu(1, "1,5", 0),
            cpu(2, "2,6", 1),
            cpu(3, "3,7", 1),
            cpu(4, "0,4", 0),
            cpu(5, "1,5", 0),
            cpu(6, "2,6", 1),
            cpu(7, "3,7", 1),
        ];
        assert_eq!(near_app(&machine, Some(1), &list("2")), Ok(vec![3, 7]));
        assert_eq!(near_app(&machine, Some(0), &list("2")), Ok(vec![0, 1, 4, 5]));
        // The application uses all cores of the node: an SMT sibling is better than another node.
        assert_eq!(near_app(&machine, Some(1), &list("2-3")), Ok(vec![6, 7]));
        assert_eq!(near_app(&machine, Some(1), &list("2-3,6-7")), Ok(vec![0, 1, 4, 5]));
        assert_eq!(near_app(&machine, None, &list("0-3")), Ok(vec![4, 5, 6, 7]));
        assert!(near_app(&machine, None, &list("0-7")).unwrap_err().contains("all CPUs (0-7)"));
    }

    #[test]
    fn the_poll_time_depends_on_the_number_of_sockets() {
        assert_eq!((by_sockets(None), by_sockets(Some(99))), (Ok(50), Ok(50)));
        assert_eq!(by_sockets(Some(400)), Ok(100));
        assert!(by_sockets(Some(5000)).unwrap_err().contains("use epoll"));
    }
}
