//! Busy-poll options of sockets and epoll instances, set past our own hooks.

use std::io;

use busypoll_linux::EpollParams;
use libc::{c_int, c_ulong};

use crate::config::Config;
use crate::real;
use crate::report::Once;

/// `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` or `SO_BUSY_POLL_BUDGET` of a socket.
pub fn set_option(fd: c_int, name: c_int, value: u32) -> io::Result<()> {
    let len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel reads one int, which `value` is.
    let result =
        unsafe { real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `EPIOCSPARAMS` of an epoll instance.
pub fn set_params(fd: c_int, params: EpollParams) -> io::Result<()> {
    let params = libc::epoll_params {
        busy_poll_usecs: params.busy_poll_usecs,
        busy_poll_budget: params.busy_poll_budget,
        prefer_busy_poll: params.prefer_busy_poll.into(),
        __pad: 0,
    };
    // SAFETY: the kernel reads one such struct.
    let result =
        unsafe { real::ioctl(fd, libc::EPIOCSPARAMS as c_ulong, (&raw const params).addr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

static REFUSED: Once = Once::new();

/// Reports what the kernel refused. The launcher has already reported what is refused to every
/// socket.
pub fn report_refusal(what: &str, error: &io::Error) {
    REFUSED.report(format_args!("{what}: {error}: such sockets wait without busy polling"));
}

/// The parameters of an instance that polls by the settings at this index.
pub fn params(config: &Config, index: usize) -> EpollParams {
    config.settings.get(index).map_or_else(EpollParams::default, |settings| EpollParams {
        busy_poll_usecs: config.kernel_micros(index),
        busy_poll_budget: settings.busy_poll_budget,
        prefer_busy_poll: settings.prefer_busy_poll,
    })
}
