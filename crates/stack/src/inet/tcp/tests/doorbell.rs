//! When the doorbell rings. Not scripts, because over a host the ring gets the mark.

use super::{
    super::{connection::Outgoing, emit, tuple::Tuple},
    hosts::{A, ADDRESSES, B, Net},
    script::{Script, secs},
};
use crate::{
    inet::{Pass, PathOptions, tcp::ListenOptions},
    napi::NapiId,
    nic::{Checksum, Frame},
};
use std::io::IoSlice;

#[test]
fn the_last_segment_to_send_is_marked_as_last() {
    // It rings the doorbell, before recovery has recorded the segment.
    let mut t = Script::established();
    t.send(2_500);
    assert_eq!(t.last_marks(), [false, false, true]);
    t.expect_data(1, 2_501);
    t.advance(secs(1));
    let again = t.last_marks();
    assert!(
        !again.is_empty() && !again.contains(&true),
        "what goes again has recovery's word first"
    );
    t.ignore();
    t.inject(". 1:1(0) ack 2501");
    t.set_ring_room(1);
    t.send(1_500);
    assert_eq!(t.last_marks(), [false]);
    t.expect(". 2501:3501(1000) ack 1");
    t.set_ring_full(false);
    assert_eq!(t.last_marks(), [true]);
    t.expect("P. 3501:4001(500) ack 1");
    t.shutdown_write();
    assert_eq!(t.last_marks(), [true]);
    t.expect("F. 4001:4002(0) ack 1");
}

#[test]
fn the_last_segment_rings_at_once_and_the_others_when_all_are_out() {
    let net = Net::new();
    let host = &net.hosts[A];
    host.doorbells(); // of ARP
    let (local, remote) = (ADDRESSES[A].into(), ADDRESSES[B].into());
    let tuple = Tuple::of((local, 1), (remote, 2));
    let options = PathOptions::default();
    let path = host.inet.tcp_path((tuple.local(), tuple.remote()), 0, options, net.now).unwrap();
    for (last_marks, rung) in
        [(&[true][..], [1, 0]), (&[false, false], [0, 1]), (&[true, false], [1, 1])]
    {
        let mut batch = host.inet.segment_batch(&path, net.now);
        for &last in last_marks {
            let out = Outgoing { last, ..Outgoing::default() };
            emit::push(&mut batch, &tuple, &out, true).unwrap();
        }
        let before = host.doorbells();
        drop(batch);
        assert_eq!([before, host.doorbells()], rung, "{last_marks:?}");
    }
}

#[test]
fn flows_that_send_at_the_end_of_one_pass_share_a_doorbell() {
    let mut net = Net::new();
    let listening = net.listen(B, "10.0.0.2:80", ListenOptions::default());
    let flows: Vec<_> = (0..3)
        .map(|_| {
            let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
            net.settle();
            (client, listening.accept().unwrap())
        })
        .collect();
    for (client, _) in &flows {
        client.send(&[IoSlice::new(b"hello")], false, &mut net.pass()).unwrap();
    }
    let frames = net.hosts[A].sent();
    assert_eq!(frames.len(), 3);
    let host = &net.hosts[B];
    for (napi, doorbells) in [(None, 3), (NapiId::new(9_000), 1)] {
        napi.into_iter().for_each(|napi| host.iface.set_napi(0, napi));
        host.doorbells();
        let mut pass = Pass { batched: true, napi, ..net.pass() };
        for frame in &frames {
            let frame = Frame::whole(frame, Checksum::Unverified);
            host.inet.receive(&host.iface, 0, frame, &mut pass);
        }
        host.inet.end_of_pass(&mut pass);
        // The second time the data is old, which is acknowledged as well.
        assert_eq!(host.sent().len(), 3);
        assert_eq!((host.doorbells(), pass.doorbell_pending), (doorbells, doorbells == 1));
    }
}
