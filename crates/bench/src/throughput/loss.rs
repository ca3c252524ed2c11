//! Throughput over a long path with losses: a test of loss recovery and congestion control. All lines of
//! a round run at the same time, each over its own relay, with the same losses.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use busypoll_lab::{Lab, Namespace};
use busypoll_stack::nic::tap::Tap;
use busypoll_stack::nic::{Nic, Queue};
use indicatif::ProgressBar;
use rustix::net::sockopt::set_tcp_congestion;

use super::lines::Line;
use super::place::{self, Gauge, LineRun, Outcome, Place, RunResult};
use super::relay::Losses;
use super::{kernel, pump, relay, stack};
use crate::arm::Plane;
use crate::cpus::Cpus;
use crate::interrupt;
use crate::run::{Skipped, progress, stopped_after};
use crate::slot::Announce;
use crate::units::LAB_MTU;

/// The congestion control of both ends, whatever the kernel's default is.
const CONGESTION: &str = "cubic";
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 7000;

/// Measures `lines` round by round; the number of a round is the seed of its losses.
///
/// # Errors
/// A message of one line if there is not enough time for a round.
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
    let mut all: Vec<Vec<Result<RunResult, String>>> = lines.iter().map(|_| Vec::new()).collect();
    for seed in 0..rounds {
        if interrupt::is_asked() {
            break;
        }
        let way = relay::Way { delay: losses.rtt / 2, loss: losses.loss, seed: seed as u64 };
        // All start together: setting up one line costs the others' senders time.
        let ready = Barrier::new(lines.len());
        let results: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = lines
                .iter()
                .map(|line| {
                    let place = Place {
                        line,
                        lab: None,
                        client_cpu: cpus.client,
                        server_cpu: cpus.server.unwrap_or(cpus.client),
                        busy_poll: Duration::ZERO,
                        mtu: LAB_MTU,
                        warm_up: Duration::ZERO,
                        measure: round,
                    };
                    let ready = &ready;
                    scope.spawn(move || once(&place, way, ready))
                })
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("the line panicked".to_owned()))
            };
            started.into_iter().map(join).collect()
        });
        for (result, of_line) in results.into_iter().zip(&mut all) {
            of_line.push(result);
        }
        progress.inc(1);
        interrupt::round_is_finished(round);
    }
    progress.finish_and_clear();
    let finished = all.iter().map(Vec::len).min().unwrap_or(0);
    let stopped_after = stopped_after(finished, rounds)?;
    let rounds = finished;
    let mut outcome = Outcome { stopped_after, losses: Some(losses), ..Outcome::default() };
    for (&line, results) in lines.iter().zip(all) {
        // Unlike in round trips, a round may fail because of the losses, which does not invalidate the others.
        let failed = results.iter().filter(|result| result.is_err()).count();
        let first = results.iter().find_map(|result| result.as_ref().err().cloned());
        if let Some(why) = first {
            let reason =
                if failed < rounds { format!("{failed} of {rounds} rounds: {why}") } else { why };
            outcome.skipped.push(Skipped { name: line.arm.name, reason });
        }
        if failed < rounds {
            let results = results.into_iter().map(Result::ok).collect();
            outcome.lines.push(LineRun { line, results });
        }
    }
    Ok(outcome)
}

/// A kernel host at one end of the relay.
fn kernel_end(address: Ipv4Addr) -> Result<(Namespace, Queue), String> {
    let namespace = Lab::single().map_err(|e| e.to_string())?;
    let open = || Tap::builder("loss0").kernel_address(&format!("{address}/24")).open()?.open(0);
    let queue = namespace.enter(open).map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    Ok((namespace, queue))
}

fn once(place: &Place<'_>, way: relay::Way, ready: &Barrier) -> Result<RunResult, String> {
    let receiver = kernel_end(RECEIVER);
    // As long as the measurement: every attempt may be lost.
    let timeout = place::FIRST_BYTE + place.measure;
    match place.line.arm.plane {
        Plane::Kernel => {
            let sender = kernel_end(SENDER);
            ready.wait();
            let ((sender, near), (receiver, far)) = (sender?, receiver?);
            carry(place, way, (Some(&sender), &receiver), [near, far], |to, gauge| {
                let peer = TcpStream::connect_timeout(&to, timeout)
                    .map_err(|e| pump::unconnected(&e, timeout))?;
                set_tcp_congestion(&peer, CONGESTION).map_err(|e| format!("{CONGESTION}: {e}"))?;
                peer.set_write_timeout(Some(pump::SOCKET_TIMEOUT)).map_err(|e| e.to_string())?;
                pump::send_until_over(peer, gauge)
            })
        }
        Plane::Stack | Plane::Bare => {
            let sender = stack::Sender::new(SENDER, place.client_cpu);
            ready.wait();
            let ((near, send), (receiver, far)) = (sender?.split(timeout), receiver?);
            carry(place, way, (None, &receiver), [near, far], send)
        }
    }
}

/// Sends from one end of the path to the kernel at the other.
fn carry(
    place: &Place<'_>,
    way: relay::Way,
    (sender, receiver): (Option<&Namespace>, &Namespace),
    ends: [Queue; 2],
    send: impl FnOnce(SocketAddr, &Gauge) -> Result<(), String> + Send,
) -> Result<RunResult, String> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &over;
        scope.spawn(move || relay::run(ends, way, stop));
        let receive = |announce: &Announce, gauge: &Gauge| {
            let at = SocketAddr::from((RECEIVER, PORT));
            let listener = kernel::listen(at)?;
            set_tcp_congestion(&listener, CONGESTION).map_err(|e| format!("{CONGESTION}: {e}"))?;
            announce.ready(at);
            let Some((peer, _)) = pump::accept(gauge, || listener.accept())? else { return Ok(()) };
            pump::drain(peer, gauge)
        };
        let result = place::stream_between(place, (sender, Some(receiver)), receive, send);
        over.store(true, Ordering::Relaxed);
        result
    })
}
