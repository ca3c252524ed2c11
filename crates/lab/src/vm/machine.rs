//! The machine itself: QEMU and its devices, from boot to power-off.
//!
//! Owns the QEMU process, its namespace and its folder, which end with it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{env, fs, io, process, thread};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use super::channel::{Channel, CommandOutput};
use super::image::{self, write};
use super::kernel::Kernel;
use crate::{LabError, Namespace};

/// Switches off what is not under test, or is known beforehand, and would take a second to boot.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off \
    audit=0 apparmor=0 random.trust_cpu=on tsc=reliable no_timer_check lpj=4000000 cpufreq.default_governor=performance";

/// The machine without its command line, its folder and its images.
const HARDWARE: &[&str] = &[
    "-nodefaults -no-user-config -no-reboot -display none",
    "-machine q35,usb=off,sata=off,smbus=off -accel tcg,thread=multi",
    "-cpu max,vendor=GenuineIntel,family=6,model=85",
    "-smp 4,sockets=2,cores=2 -m 512M",
    "-object memory-backend-ram,size=256M,id=near -numa node,nodeid=0,memdev=near,cpus=0-1",
    "-object memory-backend-ram,size=256M,id=far -numa node,nodeid=1,memdev=far,cpus=2-3",
    "-device pxb-pcie,id=far_bus,bus=pcie.0,bus_nr=8,numa_node=1",
    "-device pcie-root-port,id=far_port,bus=far_bus,chassis=1",
    "-netdev tap,id=wire0,ifname=wire0,script=no,downscript=no",
    "-device e1000e,netdev=wire0,bus=far_port,mac=02:00:00:00:01:00,romfile=",
    "-netdev tap,id=wire1,ifname=wire1,script=no,downscript=no,queues=2",
    "-device virtio-net-pci,netdev=wire1,bus=pcie.0,mq=on,vectors=6,mac=02:00:00:00:01:01,romfile=",
    "-netdev hubport,id=nowhere,hubid=0",
    "-device vmxnet3,netdev=nowhere,bus=pcie.0,mac=02:00:00:00:01:02,romfile=",
    "-device virtio-9p-pci,bus=pcie.0,fsdev=share,mount_tag=share",
];

/// Five seconds are usual, four times that on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(100);

/// Rarely the emulator hangs before the kernel's first message.
const MAX_BOOTS: u32 = 3;

/// The ACPI table that gives its CPUs P-states.
const CPUFREQ: &str = "cpufreq.aml";

/// A running machine. Dropping it kills QEMU.
#[derive(Debug)]
pub struct Machine {
    channel: Mutex<Channel>,
    namespace: Namespace,
    power: Power,
}

/// The process and its folder.
#[derive(Debug)]
struct Power {
    qemu: Pid,
    ended: Receiver<()>,
    folder: PathBuf,
    keep: bool,
}

/// The optional parts of a [`Machine`]. Start from [`Machine::builder`].
#[derive(Debug, Clone, Default)]
pub struct MachineBuilder {
    programs: Vec<(String, PathBuf)>,
    command_line: String,
    iommu: bool,
    state: Option<PathBuf>,
}

impl Machine {
    /// A machine with only busybox.
    #[must_use]
    pub fn builder() -> MachineBuilder {
        MachineBuilder::default()
    }

    /// Runs a shell script as root in the machine and waits for it. Processes that it leaves in the background
    /// must not write to its standard output.
    ///
    /// # Errors
    /// If the machine has ended or does not answer; the error shows its console's last lines.
    pub fn run(&self, script: &str) -> Result<CommandOutput, LabError> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).run(script)
    }

    /// The namespace with the other ends of the links: `wire0` (10.78.0.1, to `intel0`) and `wire1`
    /// (10.78.1.1, to `virtio0`). It has no other routes.
    #[must_use]
    pub fn outside(&self) -> &Namespace {
        &self.namespace
    }

    /// Kills QEMU, as a power cut would, and keeps the content of `/var/lib/busypoll`: pass the folder
    /// to [`MachineBuilder::state`] of the next machine, which removes it in the end.
    #[must_use]
    pub fn power_cut(mut self) -> PathBuf {
        self.power.keep = true;
        self.power.folder.clone()
    }
}

impl Drop for Power {
    fn drop(&mut self) {
        // QEMU is our child, and not reaped before the other thread reports that.
        if self.ended.try_recv().is_err() {
            let _ = kill_process(self.qemu, Signal::KILL);
            let _ = self.ended.recv();
        }
        if !self.keep {
            // A temporary folder; if this fails, the system's cleanup removes it.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl MachineBuilder {
    /// A program of this machine, with its libraries, under this name in the guest's `PATH`.
    #[must_use]
    pub fn program(mut self, name: &str, path: impl Into<PathBuf>) -> Self {
        self.programs.push((name.into(), path.into()));
        self
    }

    /// Additional kernel parameters, such as `isolcpus=3`.
    #[must_use]
    pub fn command_line(self, more: &str) -> Self {
        Self { command_line: format!("{} {more}", self.command_line), ..self }
    }

    /// An IOMMU between PCI devices and memory, strict: each mapping is invalidated at once.
    #[must_use]
    pub fn strict_iommu(self) -> Self {
        Self { iommu: true, ..self }.command_line("intel_iommu=on iommu.strict=1")
    }

    /// Starts with the state that [`Machine::power_cut`] has kept.
    #[must_use]
    pub fn state(self, folder: PathBuf) -> Self {
        Self { state: Some(folder), ..self }
    }

    /// Boots the machine and waits until it takes commands: about five seconds.
    ///
    /// # Errors
    /// [`LabError::Setting`] without the kernel, else the failure, with the console's last lines.
    pub fn boot(self) -> Result<Machine, LabError> {
        let kernel = Kernel::open()?;
        let folder = self.state.clone().map_or_else(new_folder, Ok)?;
        let archive = folder.join("initramfs");
        write(&archive, &image::build(&kernel, &self.programs, &folder)?)?;
        write(&folder.join(CPUFREQ), include_bytes!("cpufreq.aml"))?;
        let mut left = MAX_BOOTS;
        loop {
            left -= 1;
            let namespace = Namespace::new()?;
            let command = self.command(&kernel.image, &archive, &folder, &namespace);
            let Started { qemu, to, from, ended } = start(command)?;
            let mut power = Power { qemu, ended, folder: folder.clone(), keep: false };
            match Channel::open(to, from, folder.clone(), BOOT_TIMEOUT) {
                Ok(channel) => {
                    wire(&namespace)?;
                    return Ok(Machine { channel: Mutex::new(channel), namespace, power });
                }
                Err(error) if left == 0 => return Err(error),
                Err(_) => power.keep = true,
            }
        }
    }

    fn command(
        &self,
        kernel: &Path,
        archive: &Path,
        folder: &Path,
        namespace: &Namespace,
    ) -> Command {
        let joined = |before: &str, path: &Path, after: &str| {
            let mut text = OsString::from(before);
            text.push(path);
            text.push(after);
            text
        };
        let mut command = namespace.command("qemu-system-x86_64");
        // The IOMMU must come before the devices that it translates for.
        command.args(if self.iommu { &["-device", "intel-iommu,intremap=off"][..] } else { &[] });
        command.args(HARDWARE.iter().flat_map(|line| line.split_whitespace()));
        command.arg("-acpitable").arg(joined("file=", &folder.join(CPUFREQ), ""));
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(archive);
        command.arg("-append").arg(format!("{COMMAND_LINE} {}", self.command_line));
        let share = joined("local,id=share,path=", folder, ",security_model=none");
        command.arg("-fsdev").arg(share);
        command.arg("-serial").arg(joined("file:", &folder.join("console"), ""));
        command.args(["-chardev", "stdio,id=commands,signal=off", "-serial", "chardev:commands"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        command
    }
}

struct Started {
    qemu: Pid,
    to: ChildStdin,
    from: ChildStdout,
    ended: Receiver<()>,
}

/// Starts QEMU on a thread that lives as long as QEMU does: the kernel sends the death signal when the
/// thread that forked ends, not only when the process does (prctl(2), PR_SET_PDEATHSIG).
fn start(mut command: Command) -> Result<Started, LabError> {
    let (started, hear_started) = mpsc::channel();
    let (ended, hear_ended) = mpsc::channel();
    thread::spawn(move || {
        let spawned = command.spawn().map(|mut child| {
            let lines = child.stdin.take().zip(child.stdout.take());
            (Pid::from_child(&child), lines, child)
        });
        let mut child = None;
        // The receiver waits for the first message, and possibly for the second.
        let _ = started.send(spawned.map(|(pid, lines, it)| {
            child = Some(it);
            (pid, lines)
        }));
        let _ = child.map(|mut child| child.wait());
        let _ = ended.send(());
    });
    let nothing = || io::Error::from(io::ErrorKind::BrokenPipe);
    let lines = || {
        let (qemu, lines) = hear_started.recv().map_err(|_| nothing())??;
        let (to, from) = lines.ok_or_else(nothing)?;
        Ok(Started { qemu, to, from, ended: hear_ended })
    };
    lines().map_err(LabError::system("start qemu-system-x86_64"))
}

/// Sets the addresses of the outer ends of the links.
fn wire(namespace: &Namespace) -> Result<(), LabError> {
    for (name, address) in [("wire0", "10.78.0.1/24"), ("wire1", "10.78.1.1/24")] {
        for words in [&["address", "add", address, "dev", name][..], &["link", "set", name, "up"]] {
            let done = namespace.command("ip").args(words).status();
            done.and_then(|status| match status.success() {
                true => Ok(()),
                false => Err(io::Error::other(status.to_string())),
            })
            .map_err(LabError::system(format!("run ip {}", words.join(" "))))?;
        }
    }
    Ok(())
}

fn new_folder() -> Result<PathBuf, LabError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("busypoll-vm-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = env::temp_dir().join(name);
    fs::create_dir_all(&folder).map_err(LabError::system(format!("make {}", folder.display())))?;
    Ok(folder)
}
