//! Root for an unprivileged user: a user namespace for this process, if the system allows it.
//!
//! Changes only the calling process. Also words the error, because callers need the
//! reason and the remedy, not an errno.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use busypoll_linux::caps::{Capability, Caps};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::LabError;

/// Gives an unprivileged process the right to make labs, by moving it into a user namespace
/// in which its user is root. Does nothing if it has CAP_SYS_ADMIN already.
///
/// Must be the first call in `main`: the kernel refuses a process that has started a second thread.
/// The namespace maps a single user and group, so files of all others appear to belong to `nobody`;
/// new files keep their real owner. It ends with the process.
///
/// # Errors
/// [`LabError::Unprivileged`] if the system forbids it, with the sysctl and the remedy; the
/// process is then unchanged.
pub fn enter_user_namespace() -> Result<(), LabError> {
    // Not probed on another thread: its remains may still be there when unshare counts
    // threads.
    if Caps::current()?.has(Capability::SysAdmin) {
        return Ok(());
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: the descriptor table stays shared, and the kernel refuses a process with a second
    // thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.map_err(refusal)?;
    // An unprivileged process must disable setgroups(2) before it may map its group:
    // user_namespaces(7), "Interaction with system calls that change process UIDs or GIDs".
    fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
        .map_err(refusal)?;
    ENTERED.store(true, Ordering::Relaxed);
    Ok(())
}

static ENTERED: AtomicBool = AtomicBool::new(false);

/// Whether this process is root of a user namespace because of [`enter_user_namespace`]. If so, that is why it lacks
/// what needs root of the machine (BPF, AF_XDP), whatever capabilities it has.
pub fn in_own_user_namespace() -> bool {
    ENTERED.load(Ordering::Relaxed)
}

/// The error of a failed `unshare(2)` or mapping: the cause and the remedy.
pub(crate) fn refusal(error: impl Into<io::Error>) -> LabError {
    let sysctl = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).ok();
    let (cause, remedy) = explain(error.into().raw_os_error(), sysctl);
    LabError::Unprivileged { cause, remedy }
}

fn explain(errno: Option<i32>, sysctl: impl Fn(&str) -> Option<String>) -> (String, String) {
    let first = |obstacles: &[(&str, &str, &str)]| {
        let is = |name: &str, value: &str| {
            let file = name.replacen('.', "/", 1);
            sysctl(&file).is_some_and(|text| text.trim() == value)
        };
        let (name, found, wanted) = obstacles.iter().find(|(name, found, _)| is(name, found))?;
        let remedy = format!("run with sudo, or set `sudo sysctl {name}={wanted}`");
        Some((format!("{name} is {found}"), remedy))
    };
    let limits =
        [("user.max_user_namespaces", "0", "1024"), ("user.max_net_namespaces", "0", "1024")];
    let bans = [
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        // If this sysctl denies user namespaces, the process gets EPERM.
        limits[0],
    ];
    let said = |cause: &str, remedy: &str| (cause.into(), remedy.into());
    match errno {
        Some(libc::ENOSPC) => first(&limits).unwrap_or_else(|| {
            said(
                "user.max_user_namespaces or user.max_net_namespaces is used up",
                "end programs that hold namespaces (lsns lists them), or raise the sysctl",
            )
        }),
        Some(libc::EINVAL) => said(
            "a user namespace needs a process with one thread and a kernel with CONFIG_USER_NS",
            "run with sudo",
        ),
        _ => first(&bans).unwrap_or_else(|| {
            said(
                "CAP_SYS_ADMIN is missing, and no user namespace gives it",
                "run with sudo; a container needs --cap-add SYS_ADMIN --cap-add NET_ADMIN",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::explain;

    /// A machine on which only one sysctl exists, with this value.
    fn with<'a>(name: &'a str, value: &'a str) -> impl Fn(&str) -> Option<String> + 'a {
        move |asked| (asked == name).then(|| format!("{value}\n"))
    }

    #[test]
    fn the_sysctl_that_forbids_it_is_named_with_its_remedy() {
        for (errno, file, value, remedy) in [
            (
                libc::EPERM,
                "kernel/unprivileged_userns_clone",
                "0",
                "kernel.unprivileged_userns_clone=1",
            ),
            (
                libc::EACCES,
                "kernel/apparmor_restrict_unprivileged_userns",
                "1",
                "kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (libc::ENOSPC, "user/max_user_namespaces", "0", "user.max_user_namespaces=1024"),
            (libc::ENOSPC, "user/max_net_namespaces", "0", "user.max_net_namespaces=1024"),
            (libc::EPERM, "user/max_user_namespaces", "0", "user.max_user_namespaces=1024"),
        ] {
            let (cause, advice) = explain(Some(errno), with(file, value));
            assert_eq!(cause, format!("{} is {value}", file.replacen('/', ".", 1)));
            assert!(advice.contains(remedy), "{advice}");
        }
    }

    #[test]
    fn a_sysctl_that_allows_it_is_not_named() {
        let (cause, _) = explain(Some(libc::EPERM), with("kernel/unprivileged_userns_clone", "1"));
        assert!(cause.contains("CAP_SYS_ADMIN"), "{cause}");
    }
}
