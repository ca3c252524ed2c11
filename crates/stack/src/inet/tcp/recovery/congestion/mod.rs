//! Congestion control: how large the window may be. Owns the choice of the algorithm.

/// The congestion control of a connection (`TCP_CONGESTION`, `net.ipv4.tcp_congestion_control`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438, with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
}

impl Algorithm {
    /// Linux's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::Reno => "reno",
        }
    }

    /// The one Linux calls `name`.
    pub fn named(name: &str) -> Option<Algorithm> {
        [Algorithm::Cubic, Algorithm::Reno].into_iter().find(|a| a.name() == name)
    }
}
