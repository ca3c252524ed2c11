//! What a reader has to know about the figures of a run, in one line each.

use crate::data::Machine;
use crate::demand::DISTURBED;

/// The notes that follow from the machine and the settings.
pub fn of(machine: &Machine) -> Vec<String> {
    let mut notes = Vec::new();
    if machine.share_core {
        notes.push(format!(
            "CPUs {} and {} share a core; spinners slow each other down (choose with --cpus)",
            machine.client_cpu,
            machine.server_cpu.unwrap_or(machine.client_cpu)
        ));
    }
    if machine.server.is_none() && machine.server_cpu.is_none() {
        notes.push(format!(
            "one CPU ({}): both ends take turns on it, so that each wait ends in a switch; an arm that polls needs a CPU \
             for each end",
            machine.client_cpu
        ));
    }
    notes.extend(machine.one_core.note());
    if let Some(idle) = machine.idle_cpu_share
        && 1.0 - idle > DISTURBED
    {
        notes.push(format!(
            "other programs used {:.0}% of all CPUs: tails and CPU us are disturbed; repeat it on a quiet machine",
            (1.0 - idle) * 100.0
        ));
    }
    if (2..6).contains(&machine.rounds) {
        notes.push(format!("{} rounds are too few for a sound 95% interval", machine.rounds));
    }
    notes
}
