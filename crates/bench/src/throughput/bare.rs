//! Full frames over AF_XDP in one direction, as fast as the rings take them: no stack, no acknowledgements.

use std::net::{Ipv4Addr, SocketAddr};

use super::place::{self, Place, RunResult};
use crate::bare::{self, Bare, MAX_MESSAGE, PORT};
use crate::units::LAB_MTU;

/// The payload of a TCP segment with timestamps at the lab's MTU, so that both arms count the same bytes.
const SEGMENT: u64 = LAB_MTU as u64 - 20 - 20 - 12;

/// Larger rings do not increase the rate.
const RING: u32 = 512;

pub(super) fn stream(place: &Place<'_>) -> Result<RunResult, String> {
    bare::only_at_the_usual_mtu(place.mtu)?;
    let lab = place.lab.ok_or("needs the lab")?;
    place::stream(
        place,
        |announce, gauge| {
            let mut end = Bare::open(&lab.server, &lab.client, RING)?;
            announce.ready(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)));
            let mut message = vec![0; MAX_MESSAGE];
            while !gauge.is_over() {
                if end.take(&mut message).is_some() {
                    gauge.add(SEGMENT);
                }
            }
            Ok(())
        },
        |_, gauge| {
            let mut end = Bare::open(&lab.client, &lab.server, RING)?;
            let message = vec![7; MAX_MESSAGE];
            while !gauge.is_over() {
                end.send_run(&message).map_err(|e| format!("send: {e}"))?;
            }
            Ok(())
        },
    )
}
