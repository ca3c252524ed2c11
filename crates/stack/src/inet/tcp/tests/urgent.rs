//! Urgent data as in Linux: the byte before the pointer, read separately or in line.

use super::super::{Mark, Ready};
use super::script::{Script, Setup};

const URGENT: Mark = Mark { record: false, urgent: true };

//= RFC 9293 3.8.5 test
//# However, TCP implementations MUST still include support for the urgent mechanism (MUST-30).
//= RFC 9293 3.8.5 test
//# A TCP implementation MUST (MUST-32) inform the application layer asynchronously whenever it receives an [...]
//= RFC 9293 3.8.5 test
//# The TCP implementation MUST (MUST-33) provide a way for the application to learn how much urgent data [...]
#[test]
pub(super) fn the_byte_before_the_urgent_pointer_is_read_separately() {
    let mut t = Script::established();
    t.inject("PU. 1:4(3) ack 1 urg 3");
    t.ignore();
    assert!(t.ready().has(Ready::READABLE | Ready::URGENT));
    assert_eq!((t.unread(), t.is_at_mark()), (2, false));
    t.inject("P. 4:9(5) ack 1");
    // A read stops before it, and the next continues after it.
    assert_eq!(t.try_recv(64).ok(), Some(2));
    assert_eq!((t.unread(), t.is_at_mark()), (0, true));
    t.recv_urgent(true, Ok(3));
    t.recv_urgent(false, Ok(3));
    t.recv_urgent(false, Err(libc::EINVAL));
    assert!(!t.ready().any(Ready::URGENT) && t.is_at_mark());
    t.skip_urgent();
    assert_eq!(t.try_recv(64).ok(), Some(5));
    assert!(!t.is_at_mark());
    t.recv_urgent(false, Err(libc::EINVAL));
    // Later segments take the fast path again.
    t.ignore();
    t.inject("P. 9:19(10) ack 1");
    t.ignore();
    t.recv(10);
}

#[test]
pub(super) fn an_urgent_byte_alone_is_no_readable_data() {
    let mut t = Script::established();
    t.inject("PU. 1:2(1) ack 1 urg 1");
    t.ignore();
    assert!(t.ready().has(Ready::URGENT) && !t.ready().any(Ready::READABLE));
    assert!(t.is_at_mark());
    t.recv_nothing();
    // It was skipped, and is lost unread.
    t.recv_urgent(false, Err(libc::EINVAL));
}

#[test]
pub(super) fn with_oobinline_the_urgent_byte_is_read_in_line_and_a_read_stops_before_it() {
    let mut t = Setup::new().options(|o| o.oob_inline = true).established();
    t.inject("PU. 1:11(10) ack 1 urg 5");
    t.ignore();
    assert_eq!(t.unread(), 10);
    t.recv_urgent(false, Err(libc::EINVAL));
    assert_eq!(t.try_recv(64).ok(), Some(4));
    assert!(t.is_at_mark() && t.ready().has(Ready::READABLE | Ready::URGENT));
    assert_eq!(t.try_recv(64).ok(), Some(6));
    assert!(!t.ready().any(Ready::URGENT));
}

#[test]
pub(super) fn an_urgent_byte_that_has_yet_to_arrive_blocks_no_call() {
    let mut t = Script::established();
    t.inject("U. 1:1(0) ack 1 urg 11");
    t.recv_urgent(false, Err(libc::EAGAIN));
    assert!(!t.ready().any(Ready::URGENT));
    t.inject("P. 1:21(20) ack 1");
    t.ignore();
    assert!(t.ready().has(Ready::URGENT));
    t.recv_urgent(false, Ok(11));
    assert_eq!(t.try_recv(64).ok(), Some(10));
    t.skip_urgent();
    assert_eq!(t.try_recv(64).ok(), Some(9));
}

//= RFC 9293 3.10.7.4 test
//# If the URG bit is set, RCV.UP <- max(RCV.UP,SEG.UP), and signal the user that the remote side has urgent [...]
#[test]
pub(super) fn a_later_urgent_pointer_counts_and_an_old_one_does_not() {
    let mut t = Script::established();
    t.inject("PU. 1:6(5) ack 1 urg 5");
    t.ignore();
    t.inject("PU. 6:11(5) ack 1 urg 5");
    t.recv_urgent(false, Ok(10));
    assert_eq!(t.unread(), 9, "the old one is data");
    assert_eq!(t.try_recv(64).ok(), Some(9));
    t.ignore();
    t.inject("PU. 1:6(5) ack 1 urg 5");
    t.recv_urgent(false, Err(libc::EINVAL));
    t.ignore();
}

#[test]
pub(super) fn the_urgent_pointer_is_sent_until_the_urgent_byte_is_acknowledged() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    // Nagle does not hold it back.
    t.send_marked(3, URGENT);
    t.expect("PU. 11:14(3) ack 1 urg 3");
    t.inject("P. 1:11(10) ack 11");
    t.expect(". 14:14(0) ack 11");
    t.inject(". 11:11(0) ack 14");
    t.send(10);
    t.expect("P. 14:24(10) ack 11");
}

#[test]
pub(super) fn every_segment_before_the_urgent_byte_has_the_urgent_pointer() {
    let mut t = Setup::new().round_trip(super::script::ms(50)).established();
    t.send_marked(2_500, URGENT);
    t.expect("U. 1:1001(1000) ack 1 urg 2500");
    t.expect("U. 1001:2001(1000) ack 1 urg 1500");
    t.expect("PU. 2001:2501(500) ack 1 urg 500");
}
