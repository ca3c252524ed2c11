//! The interface of the stack plane: the given one, or the only one there is.

use std::fs;
use std::path::Path;

use busypoll_linux::link::Links;
use busypoll_policy::{Launch, Names, say};

use super::LaunchError;
use super::start::{report_or_refuse, uses_stack_plane};

/// Linux's name for it.
const LOOPBACK: &str = "lo";

/// What a run without an interface accelerates.
const ONLY_MEMORY: &str = "only what programs of this machine send to each other is accelerated";

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
    let has_memory = launch.same_host && !launch.strict;
    if let Some(named) = &launch.dev {
        let link = links.get(named).map_err(refused)?;
        if link.loopback && has_memory {
            say(format!("--dev {named}: {ONLY_MEMORY}"));
        } else if link.loopback {
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
    match only_candidate(able) {
        Ok(one) => launch.dev = Some(one),
        Err(why) if has_memory => {
            say(format!("{why}: {ONLY_MEMORY}"));
            launch.dev = Some(LOOPBACK.to_owned());
        }
        Err(why) if uses_stack_plane(&own) => return Err(LaunchError::Device(why)),
        // It may never start such a program.
        Err(why) => say(format!(
            "--dev: {why}; programs that a rule puts on the stack plane stay with the kernel"
        )),
    }
    Ok(())
}

/// The only one of these interfaces.
///
/// # Errors
/// Why none is chosen.
fn only_candidate(mut able: Vec<String>) -> Result<String, String> {
    match (able.pop(), able.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(last), false) => {
            able.push(last);
            Err(format!("several interfaces are up and have an address ({})", able.join(", ")))
        }
        (None, _) => Err("no interface but loopback is up and has an address".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_interface_needs_no_name() {
        let able =
            |names: &[&str]| only_candidate(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(able(&["eth0"]).unwrap(), "eth0");
        assert_eq!(
            able(&["eth0", "eth1"]).unwrap_err(),
            "several interfaces are up and have an address (eth0, eth1)"
        );
        assert!(able(&[]).unwrap_err().starts_with("no interface but loopback"));
    }
}
