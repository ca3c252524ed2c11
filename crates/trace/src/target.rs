//! What is traced: processes with their children, a device, or a program that is started for it.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command};

use busypoll_linux::bpf::trace::{Target, Tracer};
use busypoll_linux::link::Links;
use busypoll_linux::netns;
use busypoll_linux::process::Process;
use rustix::process::{Pid, Signal, kill_process};

use crate::error::TraceError;
use crate::stack::Stacks;

/// What is traced, in the kernel.
pub struct Traced {
    /// The kernel's programs.
    pub tracer: Tracer,
    /// In words.
    pub name: String,
    /// The stacks of its processes, on the stack plane.
    pub stacks: Stacks,
    /// What ends the trace when it ends.
    pub lives: Lives,
}

/// What the trace is of.
pub enum Lives {
    /// A device, which stays.
    Device,
    /// These processes.
    Processes(Vec<Process>),
    /// The program that was started.
    Program(Child),
}

impl Lives {
    /// Whether all of them have ended.
    pub fn have_ended(&mut self) -> bool {
        match self {
            Lives::Device => false,
            Lives::Processes(all) => all.iter().all(|process| !process.is_alive()),
            Lives::Program(child) => !matches!(child.try_wait(), Ok(None)),
        }
    }

    /// The processes with whose children it is traced.
    pub fn pids(&self) -> Vec<u32> {
        match self {
            Lives::Device => Vec::new(),
            Lives::Processes(all) => all.iter().map(Process::pid).collect(),
            Lives::Program(child) => vec![child.id()],
        }
    }

    /// Ends the program that was started, if it still runs, as timeout(1) does.
    pub fn end(&mut self) {
        if let Lives::Program(child) = self
            && matches!(child.try_wait(), Ok(None))
        {
            // It may have ended just now.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }
}

/// Traces these processes, and their children of now and later.
pub fn processes(pids: &[u32]) -> Result<Traced, TraceError> {
    let mut all = Vec::new();
    for pid in pids {
        let opened = Process::open(*pid);
        all.push(opened.map_err(|e| TraceError::Process { pid: *pid, why: e.to_string() })?);
    }
    let names: Vec<String> =
        all.iter().map(|process| format!("process {}", process.pid())).collect();
    let mut tracer = Tracer::start(Target::Processes)?;
    let mut new: Vec<u32> = pids.to_vec();
    // What they start from now on the kernel's programs add themselves.
    while let Some(pid) = new.pop() {
        tracer.add(pid)?;
        new.extend(Process::open(pid).map(|process| process.children()).unwrap_or_default());
    }
    Ok(Traced {
        tracer,
        name: names.join(", "),
        stacks: Stacks::default(),
        lives: Lives::Processes(all),
    })
}

/// Traces the packets of a device of this network namespace.
pub fn device(name: &str) -> Result<Traced, TraceError> {
    let ifindex = Links::open()?.get(name)?.ifindex;
    let tracer = Tracer::start(Target::Device { ifindex, netns: netns::inode()? })?;
    Ok(Traced {
        tracer,
        name: format!("device {name}"),
        stacks: Stacks::default(),
        lives: Lives::Device,
    })
}

/// Starts a program and traces it.
pub fn program(words: &[OsString]) -> Result<Traced, TraceError> {
    let mut tracer = Tracer::start(Target::Processes)?;
    let (first, arguments) = words.split_first().ok_or_else(|| TraceError::Start {
        program: "''".to_owned(),
        why: io::ErrorKind::NotFound.into(),
    })?;
    let program = first.to_string_lossy().into_owned();
    // A child of a traced process is traced from its first instruction on.
    let me = std::process::id();
    tracer.add(me)?;
    let child = Command::new(first).args(arguments).spawn();
    tracer.remove(me)?;
    let child = child.map_err(|why| TraceError::Start { program: program.clone(), why })?;
    Ok(Traced { tracer, name: program, stacks: Stacks::default(), lives: Lives::Program(child) })
}
