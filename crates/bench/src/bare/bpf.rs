//! A minimal XDP program for AF_XDP: it redirects every frame of a queue to the socket in its map.
//! Written as instructions, loaded by bpf(2), attached by a link that ends with its descriptor.
//!
//! include/uapi/linux/bpf.h.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The attached program; detached when dropped.
pub(super) struct Redirect {
    _link: OwnedFd,
    _map: OwnedFd,
}

impl Redirect {
    /// Redirects every frame that queue 0 of `ifindex` receives to the AF_XDP socket.
    pub(super) fn attach(ifindex: u32, socket: &OwnedFd) -> io::Result<Self> {
        let map = create_map()?;
        update(&map, 0, socket.as_raw_fd() as u32)?;
        let program = load(&map)?;
        let link = link(&program, ifindex)?;
        Ok(Self { _link: link, _map: map })
    }
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: every caller passes the structure that `command` takes, and what it points to outlives
    // the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: bpf(2) has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn create_map() -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    }
    let attributes =
        Attributes { kind: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: 1 };
    bpf(MAP_CREATE, &attributes).map(owned)
}

fn update(map: &OwnedFd, key: u32, value: u32) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: u32,
        _padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let attributes = Attributes {
        map: map.as_raw_fd() as u32,
        _padding: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_ref(&value) as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// One instruction: code, registers (source << 4 | destination), offset, constant.
#[repr(C)]
struct Instruction(u8, u8, i16, i32);

fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log: [u32; 4],
        kernel_version: u32,
        flags: u32,
    }
    // return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS);
    let program = [
        Instruction(0x61, 0x12, 16, 0),              // r2 = *(u32 *)(r1 + 16)
        Instruction(0x18, 0x11, 0, map.as_raw_fd()), // r1 = map ll
        Instruction(0, 0, 0, 0),
        Instruction(0xb7, 0x03, 0, 2),  // r3 = XDP_PASS
        Instruction(0x85, 0x00, 0, 51), // call bpf_redirect_map
        Instruction(0x95, 0x00, 0, 0),  // exit
    ];
    let license = c"Dual MIT/GPL";
    let attributes = Attributes {
        kind: PROG_TYPE_XDP,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log: [0; 4],
        kernel_version: 0,
        flags: 0,
    };
    bpf(PROG_LOAD, &attributes).map(owned)
}

fn link(program: &OwnedFd, ifindex: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        ifindex: u32,
        attach: u32,
        flags: u32,
    }
    let attributes = Attributes {
        program: program.as_raw_fd() as u32,
        ifindex,
        attach: ATTACH_XDP,
        flags: XDP_FLAGS_DRV_MODE,
    };
    bpf(LINK_CREATE, &attributes).map(owned)
}
