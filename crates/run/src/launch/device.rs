//! The interface of the stack plane: the given one, or the only one there is.

use std::fs;
use std::path::Path;

use busypoll_linux::link::Links;
use busypoll_policy::{Launch, Names, say};

use super::LaunchError;
use super::start::{report_or_refuse, uses_stack_plane};

/// Linux's name for it.
const LOOPBACK: &str = "lo";

/// Chooses the interface of the stack plane, if `program` or a program it may start can have sockets on it.
///
/// # Errors
/// The given interface does not exist; or none was given, `program` needs one, and there is not exactly one candidate.
pub(super) fn choose(launch: &mut Launch, program: &Path) -> Result<(), LaunchError> {
    if !uses_stack_plane(&launch.policy) {
        return Ok(());
    }
    let executable = fs::canonicalize(program).unwrap_or_default();
    let names = Names { executable, called: program.to_owned() };
    let own = launch.policy.clone().narrowed_to(&names);
    let refused = |error: busypoll_linux::Error| LaunchError::Device(error.to_string());
    let mut links = Links::open().map_err(refused)?;
    if let Some(named) = &launch.dev {
        let link = links.get(named).map_err(refused)?;
        if link.loopback {
            let what =
                format!("--dev {named}: loopback has no queue; nothing on it is accelerated");
            report_or_refuse(launch, what)?;
        }
        return Ok(());
    }
    let mut able = Vec::new();
    for link in links.all().map_err(refused)? {
        if link.up && !link.loopback && !links.addresses(link.ifindex).map_err(refused)?.is_empty()
        {
            able.push(link.name);
        }
    }
    if able.is_empty() && launch.same_host && !launch.strict {
        say(
            "no interface but loopback is up and has an address: only what programs of this machine send to each other is accelerated",
        );
        launch.dev = Some(LOOPBACK.to_owned());
        return Ok(());
    }
    match only_candidate(able) {
        Ok(one) => launch.dev = Some(one),
        Err(why) if uses_stack_plane(&own) => return Err(why),
        // It may never start such a program.
        Err(why) => {
            say(format!("{why}; programs that a rule puts on the stack plane stay with the kernel"))
        }
    }
    Ok(())
}

/// The only one of these interfaces.
fn only_candidate(mut able: Vec<String>) -> Result<String, LaunchError> {
    match (able.pop(), able.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(last), false) => {
            able.push(last);
            Err(LaunchError::Device(format!("which interface is it? one of {}", able.join(", "))))
        }
        (None, _) => {
            let why = "no interface but loopback is up and has an address";
            Err(LaunchError::Device(why.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_interface_needs_no_name() {
        let able = |names: &[&str]| {
            only_candidate(names.iter().map(|name| (*name).to_owned()).collect())
                .map_err(|e| e.to_string())
        };
        assert_eq!(able(&["eth0"]).unwrap(), "eth0");
        assert_eq!(
            able(&["eth0", "eth1"]).unwrap_err(),
            "--dev: which interface is it? one of eth0, eth1"
        );
        assert!(able(&[]).unwrap_err().starts_with("--dev: no interface but loopback"));
    }
}
