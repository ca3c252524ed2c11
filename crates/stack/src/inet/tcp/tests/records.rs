//! Records (`MSG_EOR`): no segment holds the end of one record and the beginning of the next.

use super::super::Mark;
use super::script::{Script, Setup, ms};

const RECORD: Mark = Mark { record: true, urgent: false };

#[test]
pub(super) fn records_that_wait_together_are_sent_in_separate_segments() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    // A record end that another record follows does not wait for anything (`tcp_write_xmit`).
    t.send_marked(20, RECORD);
    t.expect_nothing();
    t.send_marked(30, RECORD);
    t.expect(". 11:31(20) ack 1");
    t.send(40);
    t.expect(". 31:61(30) ack 1");
    t.inject(". 1:1(0) ack 61");
    t.expect("P. 61:101(40) ack 1");
}

#[test]
pub(super) fn a_long_record_is_cut_at_its_end_and_a_fin_goes_with_the_last() {
    let mut t = Setup::new().options(|o| o.cork = true).round_trip(ms(50)).established();
    t.send_marked(1_500, RECORD);
    t.expect(". 1:1001(1000) ack 1");
    t.send(100);
    t.expect(". 1001:1501(500) ack 1");
    t.close();
    t.expect("FP. 1501:1602(100) ack 1");
}

#[test]
pub(super) fn retransmissions_keep_records_apart() {
    let mut t = Setup::new().options(|o| o.nodelay = true).round_trip(ms(50)).established();
    // So many that recovery joins small ones.
    for i in 0..300 {
        t.send_marked(10, RECORD);
        t.expect(&format!("P. {}:{}(10) ack 1", 1 + i * 10, 11 + i * 10));
    }
    t.expect_after(0..=5_000, "P. 2991:3001(10) ack 1");
    t.expect_after(0..=5_000, ". 1:11(10) ack 1");
    let again = t.take_ranges();
    assert!(!again.is_empty() && again.iter().all(|(from, to)| to - from == 10), "{again:?}");
}
