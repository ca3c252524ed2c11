//! Throughput over a long way with losses: what loss recovery and congestion control are worth. All lines of
//! a round run at once, each over a relay of its own, and meet the same losses.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, Namespace};
use busypoll_stack::nic::tap::Tap;
use busypoll_stack::nic::{Nic, Queue};
use indicatif::ProgressBar;
use rustix::net::sockopt::set_tcp_congestion;

use super::{Gauge, Line, LineRun, Outcome, Place, Shot, pump, relay, stack};
use crate::arm::Plane;
use crate::run::{Cpus, Skipped, progress};
use crate::slot::Announce;

/// The algorithm of both ends, whatever the kernel's default.
const CONGESTION: &str = "cubic";
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 7000;

/// The way to send over.
#[derive(Debug, Clone, Copy)]
pub struct Losses {
    /// Of packets, each way, 0 to 1.
    pub loss: f64,
    /// Round trip.
    pub rtt: Duration,
}

/// Measures `lines` round by round; a round's number is the seed of its losses.
///
/// # Errors
/// One line when no time is left for a round.
pub fn measure(
    lines: &[Line],
    cpus: Cpus,
    losses: Losses,
    (duration, rounds): (Duration, usize),
) -> Result<Outcome, String> {
    let round = duration / rounds.max(1) as u32;
    if round < losses.rtt * 20 {
        return Err(format!(
            "--duration {} gives each of {rounds} rounds fewer than 20 round trips; give more",
            crate::units::show(duration)
        ));
    }
    let progress: ProgressBar = progress(rounds, "loss");
    let mut shots: Vec<Vec<Option<Shot>>> = lines.iter().map(|_| Vec::new()).collect();
    let mut skipped: Vec<Option<String>> = vec![None; lines.len()];
    for seed in 0..rounds {
        let way = relay::Way { delay: losses.rtt / 2, loss: losses.loss, seed: seed as u64 };
        // Nobody starts before all are ready: what is set up beside it costs a sender time.
        let ready = Barrier::new(skipped.iter().filter(|reason| reason.is_none()).count());
        let results: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = lines
                .iter()
                .zip(&skipped)
                .map(|(line, skipped)| {
                    let place = Place {
                        line,
                        lab: None,
                        client_cpu: cpus.client,
                        server_cpu: cpus.server.unwrap_or(cpus.client),
                        busy_poll: Duration::ZERO,
                        warm_up: Duration::ZERO,
                        measure: round,
                    };
                    let ready = &ready;
                    skipped.is_none().then(|| scope.spawn(move || once(&place, way, ready)))
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("the line panicked".to_owned()))
            };
            started.into_iter().map(|thread| thread.map(join)).collect()
        });
        for ((result, shots), skipped) in results.into_iter().zip(&mut shots).zip(&mut skipped) {
            match result {
                Some(Ok(shot)) => shots.push(Some(shot)),
                Some(Err(reason)) => *skipped = Some(reason),
                None => {}
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let mut outcome = Outcome::default();
    for ((&line, shots), skipped) in lines.iter().zip(shots).zip(skipped) {
        match skipped {
            Some(reason) => outcome.skipped.push(Skipped { name: line.arm.name, reason }),
            None => outcome.lines.push(LineRun { line, shots }),
        }
    }
    Ok(outcome)
}

/// A kernel at one end of the relay.
fn kernel_end(address: Ipv4Addr) -> Result<(Namespace, Queue), String> {
    let namespace = Lab::single().map_err(|e| e.to_string())?;
    let open = || Tap::builder("loss0").kernel_address(&format!("{address}/24")).open()?.open(0);
    let queue = namespace.enter(open).map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    Ok((namespace, queue))
}

fn once(place: &Place<'_>, way: relay::Way, ready: &Barrier) -> Result<Shot, String> {
    let receiver = kernel_end(RECEIVER);
    match place.line.arm.plane {
        Plane::Kernel => {
            let sender = kernel_end(SENDER);
            ready.wait();
            let ((sender, near), (receiver, far)) = (sender?, receiver?);
            carry(place, way, (Some(&sender), &receiver), [near, far], |to, gauge| {
                let peer = TcpStream::connect(to).map_err(|e| format!("connect: {e}"))?;
                set_tcp_congestion(&peer, CONGESTION).map_err(|e| format!("{CONGESTION}: {e}"))?;
                peer.set_write_timeout(Some(pump::PATIENCE)).map_err(|e| e.to_string())?;
                pump::pour(peer, gauge)
            })
        }
        Plane::Stack | Plane::Bare => {
            let sender = stack::Sender::new(SENDER, place.client_cpu);
            ready.wait();
            let ((near, pour), (receiver, far)) = (sender?.split(), receiver?);
            carry(place, way, (None, &receiver), [near, far], pour)
        }
    }
}

/// Sends from one end of the way to the kernel at the other.
fn carry(
    place: &Place<'_>,
    way: relay::Way,
    (sender, receiver): (Option<&Namespace>, &Namespace),
    ends: [Queue; 2],
    send: impl FnOnce(SocketAddr, &Gauge) -> Result<(), String> + Send,
) -> Result<Shot, String> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &over;
        scope.spawn(move || relay::run(ends, way, stop));
        let receive = |announce: &Announce, gauge: &Gauge| {
            let at = SocketAddr::from((RECEIVER, PORT));
            let listener = TcpListener::bind(at).map_err(|e| format!("listen: {e}"))?;
            set_tcp_congestion(&listener, CONGESTION).map_err(|e| format!("{CONGESTION}: {e}"))?;
            announce.ready(at);
            let (peer, _) = listener.accept().map_err(|e| format!("accept: {e}"))?;
            peer.set_read_timeout(Some(pump::PATIENCE)).map_err(|e| e.to_string())?;
            pump::drain(peer, gauge)
        };
        let shot = super::stream_between(place, (sender, Some(receiver)), receive, send);
        over.store(true, Ordering::Relaxed);
        shot
    })
}
