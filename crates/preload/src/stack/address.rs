//! Socket addresses, between C's form and Rust's.

use super::common::error;
use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};
use std::{
    io,
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

/// Reads an address of IPv4 or IPv6.
///
/// # Errors
/// EINVAL for one too short for its family, EAFNOSUPPORT for another family.
///
/// # Safety
/// `from` points to `len` readable bytes, or is null.
pub unsafe fn read(from: *const sockaddr, len: socklen_t) -> io::Result<SocketAddr> {
    let len = len as usize;
    if from.is_null() || len < size_of::<libc::sa_family_t>() {
        return Err(error(libc::EINVAL));
    }
    // SAFETY: as many bytes are readable; every address starts with a family.
    let family = c_int::from(unsafe { from.cast::<libc::sa_family_t>().read_unaligned() });
    match family {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: long enough; any bytes are valid.
            let from = unsafe { from.cast::<libc::sockaddr_in>().read_unaligned() };
            let address = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(address, u16::from_be(from.sin_port)).into())
        }
        // SIN6_LEN_RFC2133: the kernel takes an address without its scope.
        libc::AF_INET6 if len >= 24 => {
            let mut whole = MaybeUninit::<libc::sockaddr_in6>::zeroed();
            let take = len.min(size_of::<libc::sockaddr_in6>());
            // SAFETY: `take` bytes are readable and fit; any bytes are valid.
            let from = unsafe {
                ptr::copy_nonoverlapping(from.cast::<u8>(), whole.as_mut_ptr().cast(), take);
                whole.assume_init()
            };
            let address = Ipv6Addr::from(from.sin6_addr.s6_addr);
            let (port, flow) = (u16::from_be(from.sin6_port), from.sin6_flowinfo);
            Ok(SocketAddrV6::new(address, port, flow, from.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(error(libc::EINVAL)),
        _ => Err(error(libc::EAFNOSUPPORT)),
    }
}

/// As [`read`], for the destination of a datagram: an IPv4 socket takes AF_UNSPEC for AF_INET (`udp_sendmsg`).
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// That of [`read`].
pub unsafe fn read_of(
    domain: c_int,
    from: *const sockaddr,
    len: socklen_t,
) -> io::Result<SocketAddr> {
    let fits = (size_of::<libc::sockaddr_in>()..=LONGEST).contains(&(len as usize));
    // SAFETY: the caller's contract, here and below.
    if domain != libc::AF_INET || !fits || from.is_null() || unsafe { names_family(from, len) } {
        // SAFETY: the caller's contract.
        return unsafe { read(from, len) };
    }
    // SAFETY: not null, and long enough; any bytes are valid.
    let mut named = unsafe { from.cast::<libc::sockaddr_in>().read_unaligned() };
    named.sin_family = libc::AF_INET as libc::sa_family_t;
    // SAFETY: an address of our own.
    unsafe { read((&raw const named).cast(), size_of_val(&named) as socklen_t) }
}

/// The longest address that a call takes (`move_addr_to_kernel`).
pub const LONGEST: usize = size_of::<sockaddr_storage>();

/// Whether the length is valid and the family is not AF_UNSPEC.
///
/// # Safety
/// As [`read`].
pub unsafe fn names_family(from: *const sockaddr, len: socklen_t) -> bool {
    let lengths = size_of::<libc::sa_family_t>()..=LONGEST;
    if from.is_null() || !lengths.contains(&(len as usize)) {
        return false;
    }
    // SAFETY: as many bytes are readable; every address starts with a family.
    let family = unsafe { from.cast::<libc::sa_family_t>().read_unaligned() };
    c_int::from(family) != libc::AF_UNSPEC
}

/// An address as the kernel writes it for a socket of `domain`: an IPv6 socket gets mapped IPv4 addresses.
pub fn laid_out(address: SocketAddr, domain: c_int) -> (sockaddr_storage, socklen_t) {
    let mut storage = MaybeUninit::<sockaddr_storage>::zeroed();
    let address = match address {
        SocketAddr::V4(v4) if domain == libc::AF_INET6 => {
            SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
        }
        other => other,
    };
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: an address of any family fits.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in>().write(self::v4(v4)) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: an address of any family fits.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in6>().write(self::v6(v6)) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    // SAFETY: all zeroes are valid, and so is what was written over them.
    (unsafe { storage.assume_init() }, len as socklen_t)
}

pub fn v4(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: in_addr(*address.ip()),
        sin_zero: [0; 8],
    }
}

pub fn v6(address: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: address.flowinfo(),
        sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
        sin6_scope_id: address.scope_id(),
    }
}

pub fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

/// Writes an address for a C program, cut if there is not enough room, and its full length. Without an address only the
/// length 0 is written.
///
/// # Errors
/// As `move_addr_to_user`: EINVAL for room below zero, EFAULT for null pointers.
///
/// # Safety
/// `to` is null or points to `*len` writable bytes.
pub unsafe fn write(
    address: Option<SocketAddr>,
    domain: c_int,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> io::Result<()> {
    // SAFETY: null or valid, by the caller's contract.
    let Some(len) = (unsafe { len.as_mut() }) else { return Err(error(libc::EFAULT)) };
    if c_int::try_from(*len).is_err() {
        return Err(error(libc::EINVAL));
    }
    let laid_out = address.map(|address| laid_out(address, domain));
    let full = laid_out.map_or(0, |(_, full)| full);
    let copied = (*len).min(full) as usize;
    if let Some((storage, _)) = laid_out
        && copied > 0
    {
        if to.is_null() {
            return Err(error(libc::EFAULT));
        }
        // SAFETY: no more than either side holds.
        unsafe {
            ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast::<u8>(), copied);
        }
    }
    *len = full;
    Ok(())
}

/// As [`write`], for calls where the address is optional: with a null pointer nothing is written.
///
/// # Errors
/// As [`write`].
///
/// # Safety
/// That of [`write`].
pub unsafe fn write_if_asked(
    address: Option<SocketAddr>,
    domain: c_int,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> io::Result<()> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe { write(address, domain, to, len) }
}

/// The unspecified address of a family, any port.
pub fn any(domain: c_int) -> SocketAddr {
    let ip: IpAddr = match domain {
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    (ip, 0).into()
}
