//! BPF programs that observe and change nothing, their loader and their output. The programs are readable
//! C in `bpf/`, with their compiled objects beside them.
//!
//! | module | program | reports |
//! |---|---|---|
//! | [`files`] | `iter/task_file` | every socket, epoll instance and io_uring of every process |
//! | [`threads`] | `iter/task` | the system call each thread is in |
//! | [`napi`] | `tp_btf/napi_poll` and three more | which thread drove each receive queue, and what it found |
//! | [`deliveries`] | `cgroup_skb/ingress` | which socket each packet reached, and how it was found |
//! | [`follow`] | `tp_btf/sys_exit` and three more | what chosen processes open, as they open it |
//! | [`waits`] | `tp_btf/sys_enter` and eight more | how the threads of chosen processes wait for packets |
//! | [`trace`] | `tp_btf/sched_switch` and many more | the times of a packet's stages |
//!
//! All need a kernel with BTF (`CONFIG_DEBUG_INFO_BTF`), `CAP_BPF` and `CAP_PERFMON` (or `CAP_SYS_ADMIN`)
//! in the initial user namespace, and the initial PID namespace, whose PIDs they report. Programs and
//! maps live by descriptors: they go when the value is dropped or the process ends.

mod btf;
pub mod deliveries;
pub mod files;
pub mod follow;
pub mod napi;
pub mod threads;
pub mod trace;
pub mod waits;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, OnceLock, PoisonError};

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::programs::{
    BtfTracePoint, CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, Iter, ProgramError,
};
use aya::{Btf, Ebpf, EbpfLoader};

use crate::caps::{Capability, Caps};
use crate::error::{Error, Result};

/// Whether BPF programs can be used here. Cheap: loads nothing.
///
/// # Errors
/// [`Error::Denied`] names the capability; [`Error::Unsupported`] a kernel without BTF;
/// [`Error::Os`] a PID namespace that is not the initial one.
pub fn available() -> Result<()> {
    let caps = Caps::current()?;
    for needed in [Capability::Bpf, Capability::Perfmon] {
        if !caps.has_globally(needed) && !caps.has_globally(Capability::SysAdmin) {
            return Err(Error::denied_globally("loading BPF programs", needed));
        }
    }
    if fs::metadata(btf::PATH).is_err() {
        return Err(Error::Unsupported {
            what: "BTF, by which BPF programs find the kernel's structures,",
            since: "5.4",
            with: " built with CONFIG_DEBUG_INFO_BTF (and /sys mounted)",
        });
    }
    // PROC_PID_INIT_INO, include/linux/proc_ns.h.
    const PID_NS_INIT_INO: u64 = 0xEFFF_FFFC;
    let ns = "/proc/self/ns/pid";
    let ino = fs::metadata(ns).map_err(|e| Error::os(format!("reading {ns}"), e))?.ino();
    if ino != PID_NS_INIT_INO {
        let why = "this PID namespace is not the machine's: process numbers would not match; run it outside";
        return Err(Error::os("using BPF iterators", io::Error::other(why)));
    }
    Ok(())
}

/// An object's programs and maps, loaded into the kernel but not attached.
struct Programs {
    name: &'static str,
    btf: &'static Btf,
    ebpf: Ebpf,
}

/// The kernel's BTF. To parse it takes tens of milliseconds, so it is done once.
fn kernel_btf(name: &str) -> Result<&'static Btf> {
    static KERNEL: OnceLock<Btf> = OnceLock::new();
    if let Some(known) = KERNEL.get() {
        return Ok(known);
    }
    let read = Btf::from_sys_fs().map_err(|e| failed(name, "reading the kernel's BTF", &e))?;
    Ok(KERNEL.get_or_init(|| read))
}

/// A loader without constants. To make one parses the kernel's BTF, too, so it is kept.
static LOADER: Mutex<Option<EbpfLoader<'static>>> = Mutex::new(None);

impl Programs {
    /// Loads an object with these values for its constants.
    fn load(name: &'static str, object: &[u8], constants: &[(&str, &[u8])]) -> Result<Self> {
        available()?;
        let btf = kernel_btf(name)?;
        let kept = || LOADER.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loader = kept().take().unwrap_or_default();
        // Drops the loader's own copy.
        loader.btf(Some(btf));
        let ebpf = if constants.is_empty() {
            let ebpf = loader.load(object);
            *kept() = Some(loader);
            ebpf
        } else {
            let mut loader: EbpfLoader<'_> = loader;
            for (constant, value) in constants {
                loader.override_global(constant, *value, true);
            }
            loader.load(object)
        };
        Ok(Programs { name, btf, ebpf: ebpf.map_err(|e| failed(name, "loading", &e))? })
    }

    /// Attaches the tracepoint program of that name to the tracepoint of that name.
    fn attach_tracepoint(&mut self, tracepoint: &str) -> Result<()> {
        let name = self.name;
        let attach = |program: &mut BtfTracePoint, btf: &Btf| -> Result<(), ProgramError> {
            program.load(tracepoint, btf)?;
            program.attach().map(drop)
        };
        let program = self.ebpf.program_mut(tracepoint).ok_or_else(|| missing(name, tracepoint))?;
        let program = program.try_into().map_err(|e: ProgramError| failed(name, tracepoint, &e))?;
        attach(program, self.btf).map_err(|e| failed(name, &format!("attaching {tracepoint}"), &e))
    }

    /// Attaches the program of that name to the ingress of the root control group's sockets, which are all
    /// sockets. It is detached when this value is dropped.
    fn attach_to_all_sockets(&mut self, program: &str) -> Result<()> {
        let name = self.name;
        let root = crate::cgroup::root()?;
        let found = self.ebpf.program_mut(program).ok_or_else(|| missing(name, program))?;
        let found: &mut CgroupSkb =
            found.try_into().map_err(|e: ProgramError| failed(name, program, &e))?;
        found
            .load()
            .and_then(|()| {
                // A link never excludes other programs, so this mode has no effect.
                let (kind, mode) = (CgroupSkbAttachType::Ingress, CgroupAttachMode::Single);
                found.attach(root, kind, mode).map(drop)
            })
            .map_err(|e| {
                failed(name, &format!("attaching {program} to the root control group"), &e)
            })
    }

    fn load_iterator(&mut self, program: &str, kind: &str) -> Result<()> {
        let name = self.name;
        let iter = self.ebpf.program_mut(program).ok_or_else(|| missing(name, program))?;
        let iter: &mut Iter =
            iter.try_into().map_err(|e: ProgramError| failed(name, program, &e))?;
        iter.load(kind, self.btf).map_err(|e| failed(name, &format!("loading iter/{kind}"), &e))
    }

    /// Runs a loaded iterator once, from beginning to end.
    fn run_iterator(&mut self, program: &str) -> Result<Vec<u8>> {
        let name = self.name;
        let iter = self.ebpf.program_mut(program).ok_or_else(|| missing(name, program))?;
        let iter: &mut Iter =
            iter.try_into().map_err(|e: ProgramError| failed(name, program, &e))?;
        let doing = format!("running iterator {program}");
        let link = iter.attach().map_err(|e| failed(name, &doing, &e))?;
        let link = iter.take_link(link).map_err(|e| failed(name, &doing, &e))?;
        let mut file = link.into_file().map_err(|e| failed(name, &doing, &e))?;
        let mut all = Vec::new();
        io::Read::read_to_end(&mut file, &mut all).map_err(|e| Error::os(doing, e))?;
        Ok(all)
    }

    fn map<'a, M>(&'a mut self, map: &str) -> Result<M>
    where
        M: TryFrom<&'a mut aya::maps::Map, Error = aya::maps::MapError>,
    {
        let name = self.name;
        let found = self.ebpf.map_mut(map).ok_or_else(|| missing(name, map))?;
        M::try_from(found).map_err(|e| failed(name, map, &e))
    }

    /// The ring of that name; once.
    fn take_ring(&mut self, ring: &str) -> Result<RingBuf<MapData>> {
        let name = self.name;
        let found = self.ebpf.take_map(ring).ok_or_else(|| missing(name, ring))?;
        RingBuf::try_from(found).map_err(|e| failed(name, ring, &e))
    }

    /// Adds a process to those that the programs look at (`bpf/processes.h`).
    fn add_process(&mut self, pid: u32) -> Result<()> {
        let name = self.name;
        let mut pids: HashMap<_, u32, u32> = self.map("pids")?;
        pids.insert(pid, 1, 0).map_err(|e| failed(name, "one more process", &e))
    }

    /// Removes a process from them; one that has ended is gone already.
    fn remove_process(&mut self, pid: u32) -> Result<()> {
        let mut pids: HashMap<_, u32, u32> = self.map("pids")?;
        let _ = pids.remove(&pid);
        Ok(())
    }

    /// What had no room (`bpf/lost.h`).
    fn lost(&mut self) -> Result<u64> {
        let name = self.name;
        let lost: Array<_, u64> = self.map("lost")?;
        lost.get(&0, 0).map_err(|e| failed(name, "reading lost", &e))
    }
}

fn missing(object: &str, what: &str) -> Error {
    let why = "not in the object this program was built with";
    Error::Malformed { path: format!("{object}.bpf.o: {what}"), why: why.into() }
}

/// One line with an error and all its causes. The last is the kernel's; the verifier's log is left out.
fn failed(object: &str, doing: &str, e: &(dyn std::error::Error + 'static)) -> Error {
    let mut errno = None;
    let mut why = String::new();
    let mut next = Some(e);
    while let Some(cause) = next {
        if let Some(os) = cause.downcast_ref::<io::Error>() {
            errno = os.raw_os_error();
        }
        let text = cause.to_string();
        let line = text.lines().next().unwrap_or_default();
        if !why.contains(line) {
            why = if why.is_empty() { line.into() } else { format!("{why}: {line}") };
        }
        next = cause.source();
    }
    let doing = format!("BPF program {object}: {doing}");
    match errno {
        Some(libc::EPERM | libc::EACCES) => Error::denied_globally(doing, Capability::Bpf),
        _ => Error::os(doing, io::Error::other(why)),
    }
}

/// Reads a record that a program wrote: native integers without padding, in the order of its `struct`.
struct Record<'a>(&'a [u8]);

impl Record<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let Some((head, rest)) = self.0.split_first_chunk::<N>() else { return [0; N] };
        self.0 = rest;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.bytes())
    }

    fn string<const N: usize>(&mut self) -> String {
        text(&self.bytes::<N>())
    }
}

/// The text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}
