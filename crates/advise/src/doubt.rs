//! Why a prediction may not hold. What has a doubt is shown, and never recommended.

use crate::model::{Costs, Prediction, Setting};
use crate::recording::Recording;
use crate::turns::Count;
use crate::watch::Cpus;
use busypoll_policy::Plane;

/// Fewer rounds say too little.
const ENOUGH: usize = 200;

/// Fewer undisturbed turns of a server may be chance.
const FEWEST: usize = 5;

/// How far the median may move with a tenth of the rounds: the promise of a prediction.
const WITHIN: f64 = 0.2;

/// Why nothing can be predicted of this program.
pub(crate) fn of_program(recording: &Recording, cpus: &Cpus) -> Vec<String> {
    let mut doubts = Vec::new();
    let rounds = recording.rounds().count();
    let seconds = recording.time as f64 / 1e9;
    if rounds < ENOUGH {
        doubts.push(format!(
            "it made {rounds} waits that brought something in {seconds:.1} s: too few"
        ));
    }
    let all = rounds as u64 + recording.lost;
    if recording.lost * 20 > all {
        doubts.push(format!("{} of {all} waits could not be recorded", recording.lost));
    }
    let polled: u64 = recording.threads.iter().map(|thread| thread.polled).sum();
    if polled * 20 > all {
        doubts.push("it busy polls already: advise watches programs that sleep".to_owned());
    }
    if cpus.others > cpus.online as f64 / 2.0 {
        doubts.push(format!(
            "other programs used {:.1} of {} CPUs meanwhile: how long a wake-up takes depends on them",
            cpus.others, cpus.online
        ));
    }
    doubts
}

/// Why the costs are not this machine's own.
pub(crate) fn of_measurement(turns: Count) -> Option<String> {
    (turns.undisturbed < FEWEST).then(|| {
        format!(
            "other programs held the CPUs while the costs were measured: {} of {} turns were undisturbed",
            turns.undisturbed, turns.all
        )
    })
}

/// Why this setting's prediction may not hold.
pub(crate) fn of_setting(
    setting: Setting,
    prediction: &Prediction,
    recording: &Recording,
    costs: &Costs,
    cpus: &Cpus,
) -> Vec<String> {
    let mut doubts = Vec::new();
    let spread = |half: f64| {
        half > 0.0 && {
            let (low, high) = (prediction.round_p40, prediction.round_p60);
            (half - low) / half > WITHIN || (high - half) / half > WITHIN
        }
    };
    if spread(prediction.round_p50) {
        doubts.push(format!(
            "its rounds are of very different lengths: the median lies between {:.0} and {:.0} us",
            prediction.round_p40, prediction.round_p60
        ));
    }
    if setting == Setting::OFF {
        return doubts;
    }
    let free = cpus.quota.map_or(cpus.allowed as f64, |quota| quota.min(cpus.allowed as f64));
    let pollers = recording.pollers();
    if pollers as f64 > free {
        doubts.push(format!("{pollers} threads would poll on {free:.1} CPUs, and take turns"));
    }
    let own = recording.median(|round| round.delay) as f64;
    if own > 2.0 * costs.wake_up_ns || own < costs.wake_up_ns / 2.0 {
        doubts.push(format!(
            "its wake-ups take {:.0} us, those measured here {:.0} us",
            own / 1000.0,
            costs.wake_up_ns / 1000.0
        ));
    }
    if setting.plane == Plane::Stack && prediction.found < 0.9 {
        doubts.push("on the stack plane waits that outlast the poll were not measured".to_owned());
    }
    if setting.plane == Plane::Stack && pollers > 1 {
        doubts.push("several threads would share the queues of the stack plane".to_owned());
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Round, ThreadRounds};

    const CPUS: Cpus = Cpus { allowed: 2, quota: None, online: 2, others: 0.1, own: 0.5 };

    fn recording(count: usize, delay: u64) -> Recording {
        let round =
            Round { wait: 30_000, arrival: 20_000, delay, work: 10_000, ..Round::default() };
        let thread = ThreadRounds { rounds: vec![round; count], ..ThreadRounds::default() };
        Recording { time: 1_000_000_000, threads: vec![thread], lost: 0 }
    }

    #[test]
    fn few_waits_polling_and_a_full_machine_are_said() {
        assert_eq!(of_program(&recording(200, 10_000), &CPUS), [""; 0]);
        assert!(of_program(&recording(199, 10_000), &CPUS)[0].contains("too few"));
        let mut lossy = recording(200, 10_000);
        lossy.lost = 50;
        assert!(of_program(&lossy, &CPUS)[0].contains("not be recorded"));
        let mut polled = recording(200, 10_000);
        polled.threads[0].polled = 100;
        assert!(of_program(&polled, &CPUS)[0].contains("already"));
        let full = Cpus { others: 1.5, ..CPUS };
        assert!(of_program(&recording(200, 10_000), &full)[0].contains("1.5 of 2 CPUs"));
    }

    #[test]
    fn costs_that_were_measured_beside_other_programs_are_not_known() {
        assert_eq!(of_measurement(Count { undisturbed: 5, all: 300 }), None);
        let doubt = of_measurement(Count { undisturbed: 4, all: 90 }).expect("a doubt");
        assert!(doubt.contains("held the CPUs") && doubt.contains("4 of 90"), "{doubt}");
    }

    #[test]
    fn what_the_lab_cannot_tell_is_said_of_each_setting() {
        let costs = Costs { wake_up_ns: 10_000.0, ..Costs::default() };
        let prediction = Prediction {
            found: 1.0,
            round_p40: 39.0,
            round_p50: 40.0,
            round_p60: 41.0,
            ..Prediction::default()
        };
        let kernel = Setting { plane: Plane::Kernel, poll: None };
        let stack = Setting { plane: Plane::Stack, poll: None };
        let one = recording(200, 10_000);
        let of = |setting, prediction: &Prediction, recording: &Recording, cpus: &Cpus| {
            of_setting(setting, prediction, recording, &costs, cpus)
        };
        assert_eq!(of(kernel, &prediction, &one, &CPUS), [""; 0]);
        // Two lengths of waits, the median between them.
        let two = Prediction { round_p60: 900.0, ..prediction };
        assert!(of(kernel, &two, &one, &CPUS)[0].contains("between 39 and 900"));
        assert_eq!(of(Setting::OFF, &two, &one, &CPUS).len(), 1);
        let half = Cpus { quota: Some(0.5), ..CPUS };
        assert!(of(kernel, &prediction, &one, &half)[0].contains("0.5 CPUs"));
        assert_eq!(of(Setting::OFF, &prediction, &one, &half), [""; 0]);
        assert!(of(kernel, &prediction, &recording(200, 90_000), &CPUS)[0].contains("90 us"));
        let missed = Prediction { found: 0.5, ..prediction };
        assert!(of(stack, &missed, &one, &CPUS)[0].contains("not measured"));
        assert_eq!(of(kernel, &missed, &one, &CPUS), [""; 0]);
    }
}
