//! Numbers that are derived from the ends of a connection and that an outsider must not guess: initial sequence
//! numbers, timestamp offsets, and where the search for a port begins.

use super::{seq::Seq, tuple::Tuple};
use crate::{inet::random::Key, time::Instant};
use std::{
    hash::Hasher,
    net::{IpAddr, SocketAddr},
};

/// The keys, drawn once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Secrets {
    sequence: Key,
    timestamps: Key,
    ports: Key,
}

/// The first sequence number of a connection if an earlier one on its 4-tuple went as far as `last`: beyond the
/// window of that one (`tcp_twsk_unique`).
pub(super) fn after(last: Seq) -> Seq {
    last + (65_535 + 2)
}

/// A hash of the ends of a connection under a key.
pub(super) fn keyed(key: &Key, tuple: &Tuple, more: u64) -> u64 {
    let mut hash = key.hasher();
    tuple.words().into_iter().for_each(|word| hash.write_u64(word));
    hash.write_u64(more);
    hash.finish()
}

impl Secrets {
    /// With keys from `next`.
    pub(super) fn new(mut next: impl FnMut() -> Key) -> Secrets {
        Secrets { sequence: next(), timestamps: next(), ports: next() }
    }

    //= RFC 9293 3.4.1
    //# A TCP implementation MUST use the above type of "clock" for clock-driven selection of initial sequence numbers
    //# (MUST-8), and SHOULD generate its initial sequence numbers with the expression:
    //= RFC 9293 3.4.1
    //# ISN = M + F(localip, localport, remoteip, remoteport, secretkey)
    //= RFC 9293 3.4.1
    //# F() MUST NOT be computable from the outside (MUST-9), or an attacker could still guess at sequence numbers
    //# from the ISN used for some other connection.
    /// The initial sequence number; M is the 4 microsecond timer.
    pub(super) fn isn(&self, tuple: &Tuple, now: Instant) -> Seq {
        let m = (now.nanos() / 4_000) as u32;
        Seq(m.wrapping_add(keyed(&self.sequence, tuple, 0) as u32))
    }

    //= RFC 7323 7.1
    //# It is therefore RECOMMENDED to generate a random, per-connection offset to be used with the clock source when
    //# generating the Timestamps option value
    /// One number for each pair of hosts, so that timestamps only grow from one connection to the next and TIME_WAIT
    /// can tell old from new (`secure_tcp_ts_off`).
    pub(super) fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        keyed(&self.timestamps, &tuple.hosts(), 0) as u32
    }

    /// Where the search for a local port begins: RFC 6056 section 3.3.4, by the destination.
    pub(super) fn port_hash(&self, local: IpAddr, remote: SocketAddr) -> u64 {
        keyed(&self.ports, &Tuple::new((local, 0).into(), remote), 0)
    }

    /// The hash that selects one of several listeners for a connection.
    pub(super) fn pick(&self, tuple: &Tuple) -> u32 {
        keyed(&self.ports, tuple, 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(mut seed: u128) -> Secrets {
        Secrets::new(|| {
            seed += 1;
            seed.into()
        })
    }

    fn tuple(local: &str, remote: &str) -> Tuple {
        Tuple::new(local.parse().unwrap(), remote.parse().unwrap())
    }

    //= RFC 9293 3.4.1 test
    //# A TCP implementation MUST use the above type of "clock" for clock-driven selection of initial sequence [...]
    //= RFC 9293 3.4.1 test
    //# ISN = M + F(localip, localport, remoteip, remoteport, secretkey)
    //= RFC 9293 3.4.1 test
    //# F() MUST NOT be computable from the outside (MUST-9), or an attacker could still guess at sequence [...]
    #[test]
    fn the_sequence_moves_with_the_clock_by_4_us_and_differs_by_tuple_and_key() {
        let tuple_a = tuple("10.0.0.1:1", "10.0.0.2:2");
        let isn = |s: u128, t: &Tuple, micros| secrets(s).isn(t, Instant::from_micros(micros));
        assert_eq!(isn(0, &tuple_a, 4_000) - isn(0, &tuple_a, 0), 1_000);
        assert_ne!(isn(0, &tuple_a, 0), isn(1, &tuple_a, 0));
        for other in ["10.0.0.1:1 10.0.0.2:3", "10.0.0.1:2 10.0.0.2:2", "10.0.0.1:1 10.0.0.3:2"] {
            let (local, remote) = other.split_once(' ').unwrap();
            assert_ne!(isn(0, &tuple_a, 0), isn(0, &tuple(local, remote), 0));
        }
    }

    //= RFC 7323 7.1 test
    //# It is therefore RECOMMENDED to generate a random, per-connection offset to be used with the clock source [...]
    #[test]
    fn hosts_have_one_offset_of_timestamps_whatever_the_ports() {
        let of = |local, remote| secrets(0).timestamp_offset(&tuple(local, remote));
        assert_eq!(of("[fd::1]:1", "[fd::2]:2"), of("[fd::1]:3", "[fd::2]:4"));
        assert_ne!(of("[fd::1]:1", "[fd::2]:2"), of("[fd::1]:1", "[fd::3]:2"));
    }
}
