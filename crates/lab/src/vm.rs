//! A small virtual machine with real drivers, for tests of what veth lacks: interrupts and their
//! affinity, coalescing, channels, NUMA nodes, an older kernel.
//!
//! QEMU emulates it in software: two NUMA nodes with two CPUs each and frequency governors, an Intel
//! 82574L on the second node (`intel0`, driver e1000e), a virtio-net with two queue pairs (`virtio0`),
//! each connected to a TAP in a network namespace of its own, and a vmxnet3 that is not connected
//! (`vmxnet30`). A Debian kernel boots an initramfs with busybox and the given programs.
//! Its timings are meaningless.
//!
//! ```no_run
//! use busypoll_lab::vm::Machine;
//! let machine = Machine::builder().program("ethtool", "/usr/sbin/ethtool").boot()?;
//! let read = machine.run("ethtool -c intel0")?;
//! assert!(read.status == 0 && read.stdout.contains("rx-usecs: 3"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It needs root (for the namespace and its TAPs), `qemu-system-x86_64`, `busybox`, `strip`, `ldd`,
//! and the kernel that `.ci/vm-kernel` fetches: see [`needs_vm!`](crate::needs_vm). The machine ends
//! with the process that started it, however that ends.

mod channel;
mod cpio;
mod image;
mod kernel;
mod machine;

pub use channel::CommandOutput;
pub use machine::{Machine, MachineBuilder};

/// Skips the test like [`needs_root!`](crate::needs_root) unless a [`Machine`] can be booted here.
#[macro_export]
macro_rules! needs_vm {
    () => {
        $crate::needs_root!();
        $crate::needs!(
            program "qemu-system-x86_64",
            program "busybox",
            program "strip",
            program "ldd",
        );
        if !$crate::vm::has_kernel() {
            $crate::needs::skipped(module_path!(), "the test machine's kernel: run .ci/vm-kernel");
            return;
        }
    };
}

/// Whether `.ci/vm-kernel` has been run for this target folder.
#[must_use]
pub fn has_kernel() -> bool {
    kernel::Kernel::folder().is_some_and(|folder| folder.join("boot").is_dir())
}
