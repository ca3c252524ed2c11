//! SYN cookies (RFC 4987 section 3.6), as Linux makes them: our sequence number encodes the peer, the time and the
//! MSS, so that a flood of SYNs takes no memory. Other options of the SYN go into the low bits of the timestamp, if
//! there is one (net/ipv4/syncookies.c).

use super::{
    connection::Outgoing,
    handshake::{Agreed, Request},
    input::millis,
    isn::keyed,
    segment::Segment,
    seq::Seq,
    tuple::Tuple,
};
use crate::{inet::random::Key, time::Instant};

/// The MSS values a cookie can encode, smallest first; the same as Linux's for either family.
const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS_V6: [u16; 4] = [1220, 1420, 1440, 8940];

/// A cookie is valid in the minute it was made in and the next.
const MINUTE: u64 = 60_000_000_000;
const MINUTES: u32 = 2;

/// The low bits hold the index of the MSS, masked by a value that changes every minute; the high bits hold the
/// minute.
const DATA_BITS: u32 = 24;
const DATA: u32 = (1 << DATA_BITS) - 1;

/// The encoding in the low bits of a timestamp.
const SCALE: u32 = 0xf;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;
const STAMP_BITS: u32 = 6;

/// The options of a SYN, as far as its timestamp can encode them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) window_scale: Option<u8>,
    pub(super) sack: bool,
    pub(super) ecn: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cookies {
    keys: [Key; 2],
}

impl Cookies {
    pub(super) fn new(mut next: impl FnMut() -> Key) -> Cookies {
        Cookies { keys: [next(), next()] }
    }

    /// Our sequence number for a SYN numbered `theirs` whose sender takes segments of `mss` bytes.
    pub(super) fn make(&self, tuple: &Tuple, theirs: Seq, mss: u16, now: Instant) -> Seq {
        let index = table(tuple).iter().rposition(|fits| *fits <= mss).unwrap_or(0) as u32;
        let minute = minute(now);
        let base = self.base(tuple, theirs).wrapping_add(minute << DATA_BITS);
        Seq(base.wrapping_add(self.mask(tuple, minute).wrapping_add(index) & DATA))
    }

    /// The MSS in `cookie`, which the peer has acknowledged; `None` if we did not make it for this peer within the
    /// last minutes.
    pub(super) fn check(
        &self,
        tuple: &Tuple,
        theirs: Seq,
        cookie: Seq,
        now: Instant,
    ) -> Option<u16> {
        let rest = cookie.0.wrapping_sub(self.base(tuple, theirs));
        let age = minute(now).wrapping_sub(rest >> DATA_BITS) & (u32::MAX >> DATA_BITS);
        if age >= MINUTES {
            return None;
        }
        let mask = self.mask(tuple, minute(now).wrapping_sub(age));
        let index = (rest & DATA).wrapping_sub(mask) & DATA;
        table(tuple).get(index as usize).copied()
    }

    /// The SYN-ACK to `request`, which may be dropped then. Without timestamps the options of the SYN cannot be
    /// encoded, and none is negotiated.
    pub(super) fn syn_ack(
        &self,
        tuple: &Tuple,
        request: &mut Request,
        ts_offset: u32,
        now: Instant,
    ) -> Outgoing<'static> {
        request.iss = self.make(tuple, request.irs, request.agreed.mss, now);
        let agreed = &mut request.agreed;
        if !agreed.timestamps {
            *agreed = Agreed { mss: agreed.mss, ..Agreed::default() };
        }
        let window_scale = agreed.window_scale.map(|(theirs, _)| theirs);
        let offered = Offered { window_scale, sack: agreed.sack, ecn: agreed.ecn };
        let mut syn_ack = request.syn_ack(now);
        if let Some((value, _)) = &mut syn_ack.segment.options.timestamps {
            *value = offered.stamp(millis(now)).wrapping_add(ts_offset);
        }
        syn_ack
    }

    /// The options negotiated with the peer whose `ack` brings back a cookie; `None` if the cookie is not ours.
    pub(super) fn agreed(
        &self,
        tuple: &Tuple,
        ack: &Segment<'_>,
        ts_offset: u32,
        now: Instant,
    ) -> Option<Agreed> {
        let mss = self.check(tuple, ack.seq - 1, ack.ack - 1, now)?;
        let echo = ack.options.timestamps.map(|(_, echo)| echo.wrapping_sub(ts_offset));
        let Offered { window_scale, sack, ecn } =
            echo.map_or_else(Default::default, Offered::unstamp);
        let window_scale = window_scale.map(|theirs| (theirs, 0));
        Some(Agreed { mss, window_scale, sack, timestamps: echo.is_some(), ecn })
    }

    fn base(&self, tuple: &Tuple, theirs: Seq) -> u32 {
        (keyed(&self.keys[0], tuple, 0) as u32).wrapping_add(theirs.0)
    }

    fn mask(&self, tuple: &Tuple, minute: u32) -> u32 {
        keyed(&self.keys[1], tuple, minute.into()) as u32
    }
}

fn minute(now: Instant) -> u32 {
    (now.nanos() / MINUTE) as u32
}

fn table(tuple: &Tuple) -> &'static [u16; 4] {
    if tuple.is_v4() { &MSS_V4 } else { &MSS_V6 }
}

impl Offered {
    /// A timestamp not after `clock` that encodes the options.
    pub(super) fn stamp(self, clock: u32) -> u32 {
        let scale = self.window_scale.map_or(SCALE, |scale| u32::from(scale.min(14)));
        let sack = if self.sack { SACK } else { 0 };
        let bits = scale | sack | if self.ecn { ECN } else { 0 };
        let low = (1 << STAMP_BITS) - 1;
        let stamp = clock & !low | bits;
        if stamp > clock { stamp.wrapping_sub(1 << STAMP_BITS) } else { stamp }
    }

    /// Decodes a timestamp that came back.
    pub(super) fn unstamp(stamp: u32) -> Offered {
        let scale = stamp & SCALE;
        Offered {
            window_scale: (scale != SCALE).then_some(scale as u8),
            sack: stamp & SACK != 0,
            ecn: stamp & ECN != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn cookies() -> Cookies {
        let mut seed = 7u128;
        Cookies::new(|| {
            seed += 1;
            seed.into()
        })
    }

    fn tuple(remote: &str) -> Tuple {
        Tuple::new("10.0.0.1:80".parse().unwrap(), remote.parse().unwrap())
    }

    #[test]
    fn a_cookie_is_good_for_its_peer_for_one_to_two_minutes() {
        let (cookies, peer) = (cookies(), tuple("10.0.0.2:4000"));
        let made = Instant::from_millis(59_000);
        let cookie = cookies.make(&peer, Seq(77), 1452, made);
        let check = |peer: &Tuple, theirs, after: u64| {
            cookies.check(peer, Seq(theirs), cookie, made + Duration::from_secs(after))
        };
        assert_eq!(check(&peer, 77, 0), Some(1440));
        assert_eq!(check(&peer, 77, 60), Some(1440));
        assert_eq!(check(&peer, 77, 61), None);
        assert_eq!(check(&peer, 99, 0), None);
        assert_eq!(check(&tuple("10.0.0.2:4001"), 77, 0), None);
        assert_eq!(cookies.check(&peer, Seq(77), cookie + 1, made), Some(1460));
        assert_eq!(cookies.check(&peer, Seq(77), cookie + 2, made), None);
    }

    #[test]
    fn ipv6_has_a_table_of_its_own() {
        let peer =
            Tuple::new("[2001:db8::1]:80".parse().unwrap(), "[2001:db8::2]:4000".parse().unwrap());
        let now = Instant::from_millis(59_000);
        for (mss, promised) in [(900, 1220), (1419, 1220), (1439, 1420), (1460, 1440), (9000, 8940)]
        {
            let cookie = cookies().make(&peer, Seq(77), mss, now);
            assert_eq!(cookies().check(&peer, Seq(77), cookie, now), Some(promised), "{mss}");
        }
    }

    #[test]
    fn guessing_needs_millions_of_tries() {
        let (cookies, peer) = (cookies(), tuple("10.0.0.2:4000"));
        let now = Instant::from_millis(600_000);
        let good = |guess: &u32| {
            cookies.check(&peer, Seq(1), Seq(guess.wrapping_mul(0x9e37_79b9)), now).is_some()
        };
        // 8 of 2^32 are valid: the chance of one among these is 1 in 5,000.
        assert_eq!((0..100_000).filter(good).count(), 0);
    }

    proptest! {
        #[test]
        fn a_timestamp_keeps_what_was_offered(
            clock: u32, scale in proptest::option::of(0..=14u8), sack: bool, ecn: bool,
        ) {
            let offered = Offered { window_scale: scale, sack, ecn };
            let stamp = offered.stamp(clock);
            prop_assert_eq!(Offered::unstamp(stamp), offered);
            let behind = clock.wrapping_sub(stamp);
            prop_assert!(behind < 128, "{behind}");
        }

        #[test]
        fn the_mss_is_the_largest_that_fits(mss: u16, theirs: u32, secs in 0..1_000_000u64) {
            let now = Instant::from_millis(secs * 1000);
            for peer in ["10.0.0.2:1", "10.9.0.2:77"].map(tuple) {
                let cookie = cookies().make(&peer, Seq(theirs), mss, now);
                let got = cookies().check(&peer, Seq(theirs), cookie, now).unwrap();
                prop_assert!(got <= mss.max(536));
                prop_assert!(!MSS_V4.iter().any(|other| *other <= mss && *other > got));
            }
        }
    }
}
