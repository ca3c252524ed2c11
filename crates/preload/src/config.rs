//! What `busypoll run` has resolved for this program, read once from its environment variable.

use std::ffi::{CStr, OsStr};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{ptr, slice};

use busypoll_policy::{Launch, Names, Plane, Protocol, Settings};

use crate::report::Once;

/// The run this process is part of.
pub struct Config {
    /// The launch as the launcher resolved it, with the rules that can match this program.
    pub launch: Launch,
    /// The variable's text for children.
    pub text: &'static CStr,
    /// The names by which the policy knows this program.
    pub program: Names,
    /// All settings that a socket or an epoll instance of this program can have, the defaults first. The state of a
    /// descriptor holds an index into it.
    pub settings: Vec<Settings>,
}

/// As many settings as one byte can index. Rules beyond that get the defaults.
const MOST: usize = 256;

impl Config {
    /// The index of a socket's settings, by the addresses it has so far. Does not allocate.
    pub fn settings_of(
        &self,
        protocol: Protocol,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
    ) -> usize {
        self.index(self.launch.policy.for_socket(&self.program, protocol, local, remote))
    }

    /// The index of the settings for descriptors that belong to no single socket.
    pub fn settings_of_program(&self) -> usize {
        self.index(self.launch.policy.for_program(&self.program))
    }

    /// The index of the settings that an epoll instance needs when it watches sockets with both these settings.
    pub fn joined(&self, one: usize, other: usize) -> usize {
        let (Some(a), Some(b)) = (self.settings.get(one), self.settings.get(other)) else {
            return one;
        };
        let both = a.joined(*b, Plane::Kernel);
        let longer = || if b.kernel_micros() > a.kernel_micros() { other } else { one };
        self.settings.iter().position(|s| *s == both).unwrap_or_else(longer)
    }

    /// Whether this is the program that the run began with.
    pub fn is_first(&self) -> bool {
        self.launch.first == Some(std::process::id())
    }

    /// Whether any socket of this program may be on the stack plane.
    pub fn is_stack(&self) -> bool {
        self.launch.dev.is_some() && self.settings.iter().any(|s| s.plane == Plane::Stack)
    }

    /// Whether any socket of this program may be polled for by the kernel.
    pub fn is_kernel(&self) -> bool {
        (0..self.settings.len()).any(|index| self.kernel_micros(index) > 0)
    }

    fn index(&self, settings: Settings) -> usize {
        self.settings.iter().position(|s| *s == settings).unwrap_or(0)
    }

    /// How many microseconds the kernel polls in a wait with the settings at this index; 0 where they are not for the
    /// kernel plane.
    pub fn kernel_micros(&self, index: usize) -> u32 {
        self.settings.get(index).map_or(0, Settings::kernel_micros)
    }
}

static CONFIG: AtomicPtr<Option<Config>> = AtomicPtr::new(ptr::null_mut());
static BAD: Once = Once::new();

/// The configuration; `None` in a process that is not part of a run, or whose variable cannot be parsed.
///
/// Lives as long as the process. If two threads come first, both read it and one reading is leaked.
pub fn get() -> Option<&'static Config> {
    let mut config = CONFIG.load(Ordering::Acquire);
    if config.is_null() {
        let read = Box::into_raw(Box::new(read()));
        match CONFIG.compare_exchange(ptr::null_mut(), read, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => config = read,
            // The first reading stays; this one is leaked, once.
            Err(first) => config = first,
        }
    }
    // SAFETY: not null, from `Box::into_raw`, never freed, and never changed.
    unsafe { &*config }.as_ref()
}

fn read() -> Option<Config> {
    // SAFETY: the name is a C string. At load time no other thread changes the environment.
    let text = unsafe { libc::getenv(c"BUSYPOLL_RUN".as_ptr()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: getenv returned a C string.
    let variable = unsafe { CStr::from_ptr(text) };
    let launch = match variable.to_str().map_err(|e| e.to_string()).and_then(Launch::from_env) {
        Ok(launch) => launch,
        Err(why) => {
            BAD.report(format_args!("BUSYPOLL_RUN: {why}: this program runs without busy polling"));
            return None;
        }
    };
    let len = variable.count_bytes();
    // SAFETY: the kernel has put the environment above the program's stack, which is writable. As above: no other
    // thread uses it.
    Launch::clear_first(unsafe { slice::from_raw_parts_mut(text.cast(), len) });
    // SAFETY: as above.
    let text: &'static CStr =
        Box::leak(unsafe { CStr::from_ptr(text) }.to_owned().into_boxed_c_str());
    let program = names();
    let launch = Launch { policy: launch.policy.narrowed_to(&program), ..launch };
    let policy = &launch.policy;
    let mut settings = vec![policy.defaults];
    for rule in &policy.rules {
        let these = rule.change.apply(policy.defaults);
        if settings.len() < MOST && !settings.contains(&these) {
            settings.push(these);
        }
    }
    add_joined(&mut settings);
    Some(Config { launch, text, program, settings })
}

fn names() -> Names {
    let path = |path: &CStr| PathBuf::from(OsStr::from_bytes(path.to_bytes()));
    let executable = rustix::fs::readlink("/proc/self/exe", Vec::new());
    // SAFETY: a plain call.
    let called = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const libc::c_char;
    // SAFETY: a C string that the kernel has put above the program's stack.
    let called = (!called.is_null()).then(|| path(unsafe { CStr::from_ptr(called) }));
    let executable = executable.map_or_else(|_| PathBuf::new(), |executable| path(&executable));
    Names { executable, called: called.unwrap_or_default() }
}

/// Adds the settings of epoll instances that watch sockets with different ones of `settings`.
fn add_joined(settings: &mut Vec<Settings>) {
    let mut at = 1;
    while at < settings.len() && settings.len() < MOST {
        for other in 0..at {
            let both = settings[at].joined(settings[other], Plane::Kernel);
            if settings.len() < MOST && !settings.contains(&both) {
                settings.push(both);
            }
        }
        at += 1;
    }
}
