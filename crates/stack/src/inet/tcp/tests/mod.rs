//! Scripts: a connection whose peer the test plays, in virtual time.
//!
//! A script is a test function. It states what comes in, what must be sent, and how much time passes:
//!
//! ```text
//! #[test]
//! fn a_lost_segment_is_retransmitted_after_the_timeout() {
//!     let mut t = Script::established();
//!     t.send(10);                                       // the application writes ten bytes
//!     t.expect("P. 1:11(10) ack 1");                    // they are sent at once
//!     t.expect_after(200..=300, "P. 1:11(10) ack 1");   // and again without an acknowledgment
//!     t.inject(". 1:1(0) ack 11");                      // the peer acknowledges
//!     t.silent(secs(10));                               // and nothing more happens
//! }
//! ```
//!
//! **Segments** are written as in packetdrill: flags (`S F R P E W U`, `.` for ACK), then `first:end(bytes)`, `ack`,
//! `win`, `urg`, options. Numbers are relative to the initial ones of either side: a SYN is `S 0:0(0)`, the first
//! byte of data is number 1, a FIN counts (`F. 11:12(0)`). `win` is the value on the wire, before scaling. Options:
//! `<mss 1000,sackOK,ts 1 0,ws 7,sack 1001:2001 3001:4001>`. Our TSval is 1000 at the start and grows by one per
//! millisecond. `[ce]` before an injected segment: a router has marked it; `[ect0]` before an expected one: it may be
//! marked.
//!
//! **Injected**, a segment without `win` repeats the last window; its data is made up, and checked when the
//! application reads it. **Expected**, only what is written is compared (so `<...>` need only name the option the
//! script is about; `<no ts>` says that there is none). PSH counts only if written. Every segment sent must be
//! expected before the next segment comes in, and at the end of the script.
//!
//! **To begin**: `Script::established()`; `Setup::new().config(..).options(..).peer("<mss 1000,ts 1 1000>")
//! .round_trip(ms(50))` and then `.established()` (opened actively), `.accepted()` (passively), `.connect()` or
//! `.listen()` (the script plays the handshake).
//!
//! **The application**: `send`, `try_send`, `recv` (checks every byte), `recv_nothing`, `recv_end`,
//! `shutdown_write`, `close`, `abort`, `configure`, `ready`, `error`, `info`, `state`.
//! **Time**: `advance`, `silent`, `expect_after`. **The host**: `set_ring_full` (the transmit ring), `set_ring_room`
//! (nearly full), `icmp`.
//!
//! Each script runs on a bare connection and, listed in `over_inet`, over a whole host with IPv4 and with IPv6: as
//! `pub(super) fn`, in the file of its feature. There timers may be a quarter of a millisecond late.
//!
//! Each segment sent is also checked: the stream's bytes, the peer's window and MSS, and that our window's edge and
//! our acknowledgment never go back. Sequence numbers of both sides wrap early in each script. A failure prints all
//! segments received and sent.

mod acks;
mod alive;
mod answers;
mod congestion;
mod doorbell;
mod faults;
mod floor;
mod glue_cost;
mod glue_life;
mod glue_listen;
mod glue_ports;
mod glue_traffic;
mod handshake;
mod hosts;
mod loss;
mod nagle;
mod notation;
mod over_inet;
mod path;
mod predicted;
mod records;
mod script;
mod states;
mod timestamps;
mod urgent;
mod windows;
