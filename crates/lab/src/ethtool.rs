//! Temporary.
use std::io;
use std::os::fd::AsRawFd;

pub(crate) const SGRO: u32 = 0x2c;
pub(crate) const GGRO: u32 = 0x2b;
pub(crate) const STSO: u32 = 0x1f;
pub(crate) const GTSO: u32 = 0x1e;

pub(crate) fn call(name: &str, command: u32, value: u32) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let mut request = [command, value];
    // SAFETY: x
    let mut ifr: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in ifr.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    ifr.ifr_ifru.ifru_data = request.as_mut_ptr().cast::<libc::c_char>();
    // SAFETY: x
    if unsafe { libc::ioctl(socket.as_raw_fd(), 0x8946, &raw mut ifr) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request[1])
}
