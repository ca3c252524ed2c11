//! The two bpf(2) calls that attach an XDP program to an interface, until its descriptor is closed
//! (`include/uapi/linux/bpf.h`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::program::Instruction;

const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// XDP in the driver: veth answers from its NAPI context.
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u32; 4],
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct Link {
    program: u32,
    ifindex: u32,
    attach: u32,
    flags: u32,
}

/// Attaches the program to an interface in the network namespace of the calling thread.
pub(super) fn attach(program: &[Instruction], ifindex: u32) -> io::Result<OwnedFd> {
    let load = Load {
        kind: PROG_TYPE_XDP,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log: [0; 4],
        kernel_version: 0,
        flags: 0,
    };
    let program = bpf(PROG_LOAD, &load)?;
    let flags = XDP_FLAGS_DRV_MODE;
    bpf(
        LINK_CREATE,
        &Link { program: program.as_raw_fd() as u32, ifindex, attach: ATTACH_XDP, flags },
    )
}

/// A bpf(2) call that returns a descriptor.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let size = size_of::<T>();
    // SAFETY: both callers pass the structure that goes with the command; what it points to outlives the call.
    let made =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just made.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}
