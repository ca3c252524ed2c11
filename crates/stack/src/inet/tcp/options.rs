//! A socket's options in a compact form: those that every segment needs are stored in line, the others are allocated
//! only if a program has set one.

use super::TcpOptions;
use std::{ops::Deref, time::Duration};

static DEFAULT: TcpOptions = TcpOptions {
    nodelay: false,
    cork: false,
    //= RFC 9293 3.8.4
    //# If keep-alives are included, the application MUST be able to turn them on or off for each TCP connection
    //# (MUST-24), and they MUST default to off (MUST-25).
    keepalive: false,
    keep_idle: Duration::ZERO,
    keep_interval: Duration::ZERO,
    keep_count: 0,
    user_timeout: Duration::ZERO,
    linger: None,
    linger2: None,
    max_segment: 0,
    syn_count: 0,
    defer_accept: Duration::ZERO,
    congestion: None,
    quick_ack: None,
    send_buffer: 0,
    receive_buffer: 0,
    window_clamp: 0,
    receive_low_water: 0,
    oob_inline: false,
    notsent_low_water: 0,
    rto_min: Duration::ZERO,
};

/// The options of a connection or an idle socket.
#[derive(Clone, Debug, Default)]
pub struct CompactOptions {
    pub(super) nodelay: bool,
    pub(super) cork: bool,
    rest: Option<Box<TcpOptions>>,
}

impl CompactOptions {
    /// From the options that a program has set.
    pub fn new(options: &TcpOptions) -> CompactOptions {
        let TcpOptions { nodelay, cork, .. } = *options;
        let rest = TcpOptions { nodelay: false, cork: false, ..*options };
        CompactOptions { nodelay, cork, rest: (rest != DEFAULT).then(|| Box::new(rest)) }
    }

    /// All options.
    pub fn get(&self) -> TcpOptions {
        TcpOptions { nodelay: self.nodelay, cork: self.cork, ..**self }
    }
}

/// All options except `nodelay` and `cork`.
impl Deref for CompactOptions {
    type Target = TcpOptions;

    #[inline]
    fn deref(&self) -> &TcpOptions {
        self.rest.as_deref().unwrap_or(&DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_set_are_read_back_and_defaults_take_no_memory() {
        assert_eq!(DEFAULT, TcpOptions::default());
        let often = TcpOptions { nodelay: true, ..DEFAULT };
        let rare = TcpOptions { cork: true, syn_count: 3, ..DEFAULT };
        for (options, boxed) in [(DEFAULT, false), (often, false), (rare, true)] {
            let own = CompactOptions::new(&options);
            assert_eq!((own.get(), own.rest.is_some()), (options, boxed));
        }
    }
}
