//! The bpf(2) calls for steering: maps, one program, one link. Owns the layouts of `union bpf_attr`
//! (include/uapi/linux/bpf.h) that they use. Everything made here is freed with its descriptor.

use super::{
    asm::Instruction,
    fragments,
    program::{self, Maps},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const MAP_GET_NEXT_KEY: libc::c_int = 4;
const PROG_LOAD: libc::c_int = 5;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_LRU_HASH: u32 = 9;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
/// BPF_F_XDP_HAS_FRAGS.
const XDP_HAS_FRAGS: u32 = 1 << 5;
const ATTACH_TYPE_XDP: u32 = 37;

/// The program's name, as bpftool shows it.
pub(in super::super) const PROGRAM_NAME: &str = "busypoll_steer";

/// A kernel object's name, `BPF_OBJ_NAME_LEN` bytes with the terminating zero.
type Name = [u8; 16];

fn name(text: &str) -> Name {
    let mut name = [0; 16];
    for (to, from) in name.iter_mut().take(15).zip(text.bytes()) {
        *to = from;
    }
    name
}

/// The XDP mode: where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Hook {
    /// In the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// After the driver made an skb: any device, slower (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: each caller passes the attribute struct of its command; pointers in it are valid
    // during the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>())
    };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bpf_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: a descriptor the kernel has just given us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: Name,
}

fn map(
    map_type: u32,
    title: &str,
    key: usize,
    value: usize,
    max_entries: u32,
) -> io::Result<OwnedFd> {
    bpf_fd(
        MAP_CREATE,
        &mut MapCreate {
            map_type,
            key_size: key as u32,
            value_size: value as u32,
            max_entries,
            // An entry's memory is allocated when it is added: the capacity is a limit, not a reservation.
            map_flags: if map_type == MAP_TYPE_HASH { NO_PREALLOC } else { 0 },
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(title),
        },
    )
}

/// A hash map from `K` to a byte.
pub(in super::super) fn hash_map<K>(title: &str, max_entries: u32) -> io::Result<OwnedFd> {
    map(MAP_TYPE_HASH, title, size_of::<K>(), 1, max_entries)
}

/// A hash map that drops its oldest entry for a new one. All its memory is allocated now: `max_entries`.
pub(in super::super) fn recent_map<K, V>(title: &str, max_entries: u32) -> io::Result<OwnedFd> {
    map(MAP_TYPE_LRU_HASH, title, size_of::<K>(), size_of::<V>(), max_entries)
}

/// A map from a number to an AF_XDP socket. The kernel removes a closed socket.
pub(in super::super) fn socket_map(title: &str, entries: u32) -> io::Result<OwnedFd> {
    map(MAP_TYPE_XSKMAP, title, size_of::<u32>(), size_of::<u32>(), entries)
}

#[repr(C)]
struct MapElement {
    map_fd: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `map[key] = value`; `K` and `V` are the map's types.
pub(in super::super) fn update<K: Copy, V: Copy>(
    map: &OwnedFd,
    key: &K,
    value: &V,
) -> io::Result<()> {
    element(MAP_UPDATE_ELEM, map, Some(key), std::ptr::from_ref(value) as u64, 0).map(drop)
}

/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

/// As [`update`], for a key that the map does not have; EEXIST if it has.
pub(in super::super) fn insert<K: Copy, V: Copy>(
    map: &OwnedFd,
    key: &K,
    value: &V,
) -> io::Result<()> {
    element(MAP_UPDATE_ELEM, map, Some(key), std::ptr::from_ref(value) as u64, NO_EXIST).map(drop)
}

/// `BPF_EXIST`.
const EXIST: u64 = 2;

/// As [`update`], for a key that the map has; ENOENT if it has not.
pub(in super::super) fn replace<K: Copy, V: Copy>(
    map: &OwnedFd,
    key: &K,
    value: &V,
) -> io::Result<()> {
    element(MAP_UPDATE_ELEM, map, Some(key), std::ptr::from_ref(value) as u64, EXIST).map(drop)
}

/// The byte at `key`; `None`: there is none.
pub(in super::super) fn lookup<K: Copy>(map: &OwnedFd, key: &K) -> Option<u8> {
    let mut value = 0_u8;
    element(MAP_LOOKUP_ELEM, map, Some(key), &raw mut value as u64, 0).ok().map(|_| value)
}

/// The key after `key`; the first one if there is no such key (any more). `None`: it was the last.
pub(in super::super) fn next_key<K: Copy>(map: &OwnedFd, key: Option<&K>) -> Option<K> {
    let mut next = std::mem::MaybeUninit::<K>::zeroed();
    element(MAP_GET_NEXT_KEY, map, key, next.as_mut_ptr() as u64, 0).ok()?;
    // SAFETY: the kernel has written a key, which consists of plain integers.
    Some(unsafe { next.assume_init() })
}

/// A command on the element at `key`; `value` is the address of what the command reads or writes.
fn element<K: Copy>(
    command: libc::c_int,
    map: &OwnedFd,
    key: Option<&K>,
    value: u64,
    flags: u64,
) -> io::Result<i32> {
    let key = key.map_or(0, |key| std::ptr::from_ref(key) as u64);
    bpf(command, &mut MapElement { map_fd: map.as_raw_fd() as u32, key, value, flags })
}

/// Removes `key`.
pub(in super::super) fn delete<K: Copy>(map: &OwnedFd, key: &K) -> io::Result<()> {
    element(MAP_DELETE_ELEM, map, Some(key), 0, 0).map(drop)
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: Name,
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Loads the steering program over its maps, and over one more of its own. `sockets` has `queues` entries for each
/// slot. With `driver_pieces` drivers may run it on packets of several pieces, of which it sees the first.
pub(in super::super) fn load_steering(
    ports: BorrowedFd<'_>,
    sockets: BorrowedFd<'_>,
    queues: u32,
    driver_pieces: bool,
) -> io::Result<OwnedFd> {
    // The program keeps it.
    let datagrams =
        recent_map::<fragments::Key, fragments::Value>("busypoll_frags", fragments::DATAGRAMS)?;
    let maps = Maps { ports, sockets, datagrams: datagrams.as_fd() };
    let code: Vec<Instruction> = program::steering(&maps, queues);
    bpf_fd(
        PROG_LOAD,
        &mut ProgLoad {
            prog_type: PROG_TYPE_XDP,
            insn_cnt: code.len() as u32,
            insns: code.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: if driver_pieces { XDP_HAS_FRAGS } else { 0 },
            prog_name: name(PROGRAM_NAME),
            prog_ifindex: 0,
            expected_attach_type: ATTACH_TYPE_XDP,
        },
    )
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Attaches `program` to an interface until the returned link is closed, also by the end of the process.
pub(in super::super) fn attach(program: &OwnedFd, ifindex: u32, hook: Hook) -> io::Result<OwnedFd> {
    // linux/if_link.h
    let flags = match hook {
        Hook::Generic => 1 << 1,
        Hook::Native => 1 << 2,
    };
    bpf_fd(
        LINK_CREATE,
        &mut LinkCreate {
            prog_fd: program.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: ATTACH_TYPE_XDP,
            flags,
        },
    )
}

#[repr(C)]
struct LinkDetach {
    link_fd: u32,
}

/// Detaches the program of `link` from its interface, even if other processes have the link.
pub(in super::super) fn detach(link: &OwnedFd) {
    // It fails only if the program is detached already, because the interface no longer exists.
    let _ = bpf(LINK_DETACH, &mut LinkDetach { link_fd: link.as_raw_fd() as u32 });
}

#[repr(C)]
struct GetFdById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct GetInfo {
    fd: u32,
    info_len: u32,
    info: u64,
}

/// The first part of `struct bpf_prog_info`, up to the name.
#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    created_by_uid: u32,
    map_count: u32,
    map_ids: u64,
    name: Name,
}

/// The id of a program.
pub(in super::super) fn program_id(program: &OwnedFd) -> io::Result<u32> {
    info(program).map(|info| info.id)
}

/// Whether this text of /proc/PID/fdinfo is of an XDP link whose program has that id (`bpf_link_show_fdinfo`).
pub(in super::super) fn is_link_of(info: &str, program: u32) -> bool {
    let says = |what: &str, value: &str| {
        let mut of_it = info.lines().filter_map(|line| line.strip_prefix(what));
        of_it.next().is_some_and(|rest| rest.trim() == value)
    };
    says("link_type:", "xdp") && says("prog_id:", &program.to_string())
}

fn info(program: &OwnedFd) -> io::Result<ProgInfo> {
    let mut info = ProgInfo::default();
    bpf(
        OBJ_GET_INFO_BY_FD,
        &mut GetInfo {
            fd: program.as_raw_fd() as u32,
            info_len: size_of::<ProgInfo>() as u32,
            info: std::ptr::from_mut(&mut info) as u64,
        },
    )
    .map(|_| info)
}

/// `BPF_F_QUERY_EFFECTIVE`: those of the groups above it, too.
const QUERY_EFFECTIVE: u32 = 1;

#[repr(C)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    /// Older kernels refuse anything else there.
    zero: u32,
}

/// The ids of up to 64 programs that run for a control group at this hook (`enum bpf_attach_type`).
pub(in super::super) fn programs_of_group(
    group: BorrowedFd<'_>,
    hook: u32,
) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; 64];
    let mut query = Query {
        target_fd: group.as_raw_fd() as u32,
        attach_type: hook,
        query_flags: QUERY_EFFECTIVE,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: ids.len() as u32,
        zero: 0,
    };
    match bpf(PROG_QUERY, &mut query) {
        // ENOSPC: there are more.
        Err(error) if error.raw_os_error() != Some(libc::ENOSPC) => Err(error),
        _ => Ok(ids.into_iter().take_while(|id| *id != 0).collect()),
    }
}

/// The name of the program with this id; empty if it has none, no longer exists, or may not be read.
pub(in super::super) fn program_name(id: u32) -> String {
    let program = bpf_fd(PROG_GET_FD_BY_ID, &mut GetFdById { id, next_id: 0, open_flags: 0 });
    match program.and_then(|program| info(&program)) {
        Ok(info) => info.name.iter().take_while(|b| **b != 0).map(|b| char::from(*b)).collect(),
        Err(_) => String::new(),
    }
}
