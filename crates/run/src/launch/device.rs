//! The interface of the stack plane: the one named, or the only one there is.

use std::path::Path;

use busypoll_linux::link::Links;
use busypoll_policy::{Launch, Plane};

use super::LaunchError;
use super::start::say_or_refuse;

/// Settles which interface the stack plane has, if `program` can have sockets on it.
///
/// # Errors
/// There is none of the name given; none was given and there is not exactly one that it can be.
pub(super) fn settle(launch: &mut Launch, program: &Path) -> Result<(), LaunchError> {
    let policy = launch.policy.clone().narrowed_to(program);
    let rules = policy.rules.iter().map(|rule| rule.change.apply(policy.defaults));
    if !rules.chain([policy.defaults]).any(|settings| settings.plane == Plane::Stack) {
        return Ok(());
    }
    let refused = |error: busypoll_linux::Error| LaunchError::Device(error.to_string());
    let mut links = Links::open().map_err(refused)?;
    if let Some(named) = &launch.dev {
        let link = links.get(named).map_err(refused)?;
        if link.loopback {
            let what =
                format!("--dev {named}: loopback has no queue; nothing on it is accelerated");
            say_or_refuse(launch, what)?;
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
    launch.dev = Some(only(able)?);
    Ok(())
}

/// The only one of these interfaces.
fn only(mut able: Vec<String>) -> Result<String, LaunchError> {
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
            only(names.iter().map(|name| (*name).to_owned()).collect()).map_err(|e| e.to_string())
        };
        assert_eq!(able(&["eth0"]).unwrap(), "eth0");
        assert_eq!(
            able(&["eth0", "eth1"]).unwrap_err(),
            "--dev: which interface is it? one of eth0, eth1"
        );
        assert!(able(&[]).unwrap_err().starts_with("--dev: no interface but loopback"));
    }
}
