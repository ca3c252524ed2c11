//! What a flow achieves over networks good and bad.

use super::super::*;
use super::sim::{MSS, Net, run};

#[test]
fn a_clean_path_is_filled() {
    for rtt in [1, 20, 200] {
        let net = Net { rtt: Duration::from_millis(rtt), ..Net::default() };
        let out = run(&net, Duration::from_secs(20));
        println!(
            "rtt {rtt} rate {} {out:?}",
            out.rate(),
            out = (out.timeouts, out.probes, out.resent, out.segments, out.figures)
        );
    }
}

#[test]
#[ignore = "prints"]
fn grid() {
    for rtt in [1u64, 20, 100] {
        for loss in [0u32, 100, 1_000, 10_000, 50_000] {
            for reorder in [0, 20_000] {
                for sack in [true, false] {
                    let mut net =
                        Net { rtt: Duration::from_millis(rtt), loss, reorder, ..Net::default() };
                    net.agreed.sack = sack;
                    let out = run(&net, Duration::from_secs(30));
                    println!(
                        "rtt {rtt:3} loss {loss:5} reorder {reorder:5} sack {sack:5}: {:7.3} MB/s rto {} tlp {} resent {}/{} qdrop {} silence {:?} cwnd {}",
                        out.rate() / 1e6,
                        out.timeouts,
                        out.probes,
                        out.resent,
                        out.segments,
                        out.queue_drops,
                        out.silence,
                        out.figures.cwnd / MSS
                    );
                }
            }
        }
    }
}
