//! The environment of a run, and the exec.

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{io, ptr};

use busypoll_linux::executable;
use busypoll_policy::{Launch, Plane, Policy, say};

use super::program::{Kind, Program, Reach, Why};
use super::{LaunchError, capabilities, device, inherited_settings, library, shared, supervise};
use crate::guard;

/// Executes the program `command[0]` with the arguments that follow it, and `argv0` if given.
///
/// # Errors
/// A message of one line: what was wrong and what to do.
pub fn execute(
    mut launch: Launch,
    command: &[OsString],
    argv0: Option<&OsStr>,
) -> Result<Infallible, LaunchError> {
    let (program, name, arguments) = find(command)?;
    device::choose(&mut launch, &program.path)?;
    let missing = capabilities::missing(&launch.policy);
    if !missing.is_empty() {
        report_or_refuse(&launch, format!("not available here: {}", missing.join("; ")))?;
    }
    launch.command =
        env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    reach(&mut launch, &program)?;
    let library = library::find()?;
    if let Some(other) = library::other_build(&library) {
        say(other);
    }
    if let (Reach::Preload, Some(device)) = (program.reach, stack_device(&launch)) {
        guard::begin(&mut launch, &device).map_err(|why| match why.raw_os_error() {
            // In words: `--strict` has refused it.
            None => LaunchError::Device(why.to_string()),
            Some(_) => LaunchError::Guard(why),
        })?;
    }
    launch.shared = shared::prepare();
    launch.first = Some(std::process::id());

    let mut preload = library.into_os_string();
    if let Some(theirs) = env::var_os("LD_PRELOAD").filter(|theirs| !theirs.is_empty()) {
        preload.push(":");
        preload.push(theirs);
    }
    let environment = [("LD_PRELOAD", preload), (Launch::ENV, launch.to_env().into())];
    Err(exec_program(program, arguments, argv0.unwrap_or(name), &environment))
}

/// Executes a program that a process of a run starts and that cannot be preloaded.
///
/// # Errors
/// As [`execute`].
pub fn execute_child(
    command: &[OsString],
    argv0: Option<&OsStr>,
) -> Result<Infallible, LaunchError> {
    let (program, name, arguments) = find(command)?;
    let mut environment = Vec::new();
    // Outside a run there is nothing to set up.
    if let Some(Ok(mut launch)) = Launch::of_this_process() {
        reach(&mut launch, &program)?;
        environment.push((Launch::ENV, launch.to_env().into()));
    }
    Err(exec_program(program, arguments, argv0.unwrap_or(name), &environment))
}

/// The program of a command, its name there, and its arguments.
fn find(command: &[OsString]) -> Result<(Program, &OsStr, &[OsString]), LaunchError> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(LaunchError::NotInPath(String::new()));
    };
    Ok((Program::find(name)?, name, arguments))
}

/// Has a program supervised if it cannot be preloaded, and reports what is not accelerated.
fn reach(launch: &mut Launch, program: &Program) -> Result<(), LaunchError> {
    let path = &program.path;
    match program.reach {
        Reach::Preload => Ok(()),
        Reach::Raw(_) if launch.policy.defaults.plane == Plane::Kernel => {
            match supervise::begin(launch) {
                Ok(no_new_privs) => {
                    launch.command = None;
                    if no_new_privs {
                        say(no_new_privs_notice(path));
                    }
                    Ok(())
                }
                Err(error) => report_or_refuse(launch, unsupervised(path, &error)),
            }
        }
        Reach::Raw(kind) => report_or_refuse(launch, not_preloadable(path, kind)),
        Reach::Out(why) => report_or_refuse(launch, out_of_reach(path, why)),
    }
}

/// Executes the program with these variables set, as execvp(3) does. Returns what prevented it.
fn exec_program(
    program: Program,
    arguments: &[OsString],
    argv0: &OsStr,
    environment: &[(&str, OsString)],
) -> LaunchError {
    let argv: Vec<&OsStr> =
        [argv0].into_iter().chain(arguments.iter().map(OsString::as_os_str)).collect();
    let mut source = exec(&program.path, &argv, environment);
    if source.raw_os_error() == Some(libc::ENOEXEC) {
        // A script without an interpreter line runs in the shell, as with execvp(3).
        let shell = [OsStr::new("sh"), program.path.as_os_str()];
        let argv: Vec<&OsStr> = shell.into_iter().chain(argv.into_iter().skip(1)).collect();
        source = exec(Path::new("/bin/sh"), &argv, environment);
    }
    let path = program.path;
    // The program was found, so the missing file is another.
    if source.kind() == io::ErrorKind::NotFound
        && let Some(interpreter) = missing(&path)
    {
        return LaunchError::NoInterpreter { path, interpreter };
    }
    LaunchError::Refused { path, source }
}

fn missing(path: &Path) -> Option<PathBuf> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let missing = executable::missing(&path)?;
    Some(OsString::from_vec(missing.into_bytes()).into())
}

/// The interface, if sockets of the program may be on the stack plane.
fn stack_device(launch: &Launch) -> Option<String> {
    launch.dev.clone().filter(|_| uses_stack_plane(&launch.policy))
}

/// Whether any socket at all may be on the stack plane.
pub(super) fn uses_stack_plane(policy: &Policy) -> bool {
    let of_rules = policy.rules.iter().filter_map(|rule| rule.change.plane);
    of_rules.chain([policy.defaults.plane]).any(|plane| plane == Plane::Stack)
}

/// Reports in one line what is not accelerated; with `--strict` returns it as an error.
pub(super) fn report_or_refuse(launch: &Launch, what: String) -> Result<(), LaunchError> {
    if launch.strict {
        return Err(LaunchError::Strict(what));
    }
    say(what);
    Ok(())
}

fn not_preloadable(path: &Path, kind: Kind) -> String {
    let how = match kind {
        Kind::Static => "is statically linked",
        Kind::Go => "is a Go program, which makes system calls without the C library",
        Kind::OtherLibc => "is linked with a C library other than glibc",
    };
    format!("{} {how}: no library sees its sockets", path.display())
}

fn no_new_privs_notice(path: &Path) -> String {
    format!(
        "{}: supervised, which needs no_new_privs without CAP_SYS_ADMIN: setuid programs that it starts (sudo, \
         ping) run without their privileges",
        path.display()
    )
}

fn unsupervised(path: &Path, error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EBUSY) => "it has a seccomp supervisor already".to_owned(),
        _ => error.to_string(),
    };
    format!(
        "{}: cannot be supervised ({why}): its sockets wait without busy polling",
        path.display()
    )
}

fn out_of_reach(path: &Path, why: Why) -> String {
    let how = match why {
        Why::Privileged => {
            "runs with other privileges than yours (setuid, setgid or capabilities), so the loader \
             does not preload busypoll"
        }
        Why::OtherMachine => "is built for another processor",
    };
    format!("{} {how}: its sockets wait without busy polling", path.display())
}

/// Executes a program, with these variables set. Returns only on failure.
///
/// Does not use `std::process::Command`, which would empty the signal mask that the program
/// inherits.
fn exec(path: &Path, argv: &[&OsStr], set: &[(&str, OsString)]) -> io::Error {
    let c = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::from);
    let joined = |name: &OsStr, value: &OsStr| [name.as_bytes(), b"=", value.as_bytes()].concat();
    let kept = env::vars_os().filter(|(name, _)| set.iter().all(|(s, _)| name != s));
    let built = (|| {
        let path = c(path.as_os_str().as_bytes().to_vec())?;
        let argv: Vec<CString> =
            argv.iter().map(|a| c(a.as_bytes().to_vec())).collect::<io::Result<_>>()?;
        let environment: Vec<CString> = kept
            .map(|(name, value)| c(joined(&name, &value)))
            .chain(set.iter().map(|(name, value)| c(joined(OsStr::new(name), value))))
            .collect::<io::Result<_>>()?;
        io::Result::Ok((path, argv, environment))
    })();
    let (path, argv, environment) = match built {
        Ok(built) => built,
        Err(error) => return error,
    };
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, environment) = (pointers(&argv), pointers(&environment));
    inherited_settings::restore();
    // SAFETY: a plain call; the strings and the arrays, which end with a null pointer, outlive it.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}
