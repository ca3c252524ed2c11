//! The sentence above the stages.

use crate::data::ArmStages;
use crate::text::figures::us_text;

/// Names the longest stage of each arm.
pub fn stages(arms: &[ArmStages]) -> String {
    let clauses: Vec<String> = arms
        .iter()
        .filter_map(|arm| {
            let longest = arm.stages_us.iter().max_by(|a, b| a.p50.total_cmp(&b.p50))?;
            Some(format!(
                "{} spends {} of {} us in {}",
                arm.arm,
                us_text(longest.p50),
                us_text(arm.total_us),
                longest.stage
            ))
        })
        .collect();
    match clauses.is_empty() {
        true => "No answer: no stack arm could be measured.".to_owned(),
        false => {
            format!("From the sender's doorbell to the return of recv: {}.", clauses.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::Mode;
    use crate::data::Stage;

    #[test]
    fn the_answer_names_the_longest_stage() {
        let stage = |stage: &str, p50| Stage { stage: String::from(stage), p50, p99: p50 };
        let arm = ArmStages {
            arm: "stack-cable-udp-interrupt".into(),
            mode: Mode::Interrupt,
            stages_us: vec![stage("ring", 0.0), stage("wake-up", 30.0), stage("napi", 0.1)],
            total_us: 31.0,
        };
        assert!(stages(&[arm]).contains("30.0 of 31.0 us in wake-up"));
        assert!(stages(&[]).contains("No answer"));
    }
}
