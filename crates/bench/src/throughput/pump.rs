//! The loops of both workloads, over anything that reads and writes.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::place::{CONNECTIONS, Gauge, Place, RunResult};
use crate::demand::Usage;
use crate::stats;
use busypoll_linux::stat::CpuTimes;

/// Bytes of one write and one read: large enough that the cost of the calls is small.
const CHUNK: usize = 64 * 1024;

/// How long a read waits before it checks whether the run is over.
pub(super) const SOCKET_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a client waits for a server: as both are on this machine, a longer silence means that it is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(2);

/// The error of a failed connect.
pub(super) fn unconnected(e: &io::Error, timeout: Duration) -> String {
    match e.kind() {
        ErrorKind::TimedOut => {
            format!("no connection in {}, so much was lost", crate::units::show(timeout))
        }
        _ => format!("connect: {e}"),
    }
}

/// Accepts the sender's connection; accepts wait for [`SOCKET_TIMEOUT`]. None once the run is over.
pub(super) fn accept<S>(
    gauge: &Gauge,
    mut accept: impl FnMut() -> io::Result<S>,
) -> Result<Option<S>, String> {
    while !gauge.is_over() {
        match accept() {
            Ok(peer) => return Ok(Some(peer)),
            Err(e) if is_pause(&e) => {}
            Err(e) => return Err(format!("accept: {e}")),
        }
    }
    Ok(None)
}

/// Writes until the run is over.
pub(super) fn send_until_over(mut to: impl Write, gauge: &Gauge) -> Result<(), String> {
    let chunk: Vec<u8> = (0..CHUNK).map(|i| i as u8).collect();
    while !gauge.is_over() {
        match to.write(&chunk) {
            Ok(_) => {}
            Err(e) if is_pause(&e) => {}
            // The receiver has noticed the end of the run first.
            Err(_) if gauge.is_over() => {}
            Err(e) => return Err(format!("send: {e}")),
        }
    }
    Ok(())
}

/// Reads to the end, or until the run is over.
pub(super) fn drain(mut from: impl Read, gauge: &Gauge) -> Result<(), String> {
    let mut chunk = vec![0; CHUNK];
    while !gauge.is_over() {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(n) => gauge.add(n as u64),
            Err(e) if is_pause(&e) => {}
            // The sender has noticed the end of the run first, and its host is gone.
            Err(_) if gauge.is_over() => {}
            Err(e) => return Err(format!("receive: {e}")),
        }
    }
    Ok(())
}

pub(super) fn is_pause(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The error of connect(2) for a handshake that does not finish in time.
fn is_begun(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINPROGRESS)
}

/// The client of TCP_CRR: connects, sends, receives and waits for the end of the connection, in a loop. `connect` must
/// set timeouts so that no step waits longer than [`SILENCE`].
pub(super) fn connections<S: Read + Write>(
    place: &Place<'_>,
    gauge: &Gauge,
    mut connect: impl FnMut() -> io::Result<S>,
) -> Result<RunResult, String> {
    let mut once = || -> io::Result<()> {
        let mut peer = connect()?;
        let mut byte = [1];
        peer.write_all(&byte)?;
        peer.read_exact(&mut byte)?;
        match peer.read(&mut byte)? {
            0 => Ok(()),
            _ => Err(io::Error::other("more than one byte came back")),
        }
    };
    let mut run = || {
        let warm = Instant::now();
        for _ in 0..CONNECTIONS / 10 {
            once()?;
            if warm.elapsed() > place.warm_up {
                break;
            }
        }
        let mut times = stats::histogram();
        let counters = |e: busypoll_linux::Error| io::Error::other(e.to_string());
        let polled = || gauge.busy_polled(place.lab).map_err(io::Error::other);
        let polled_before = polled()?;
        let before = CpuTimes::now().map_err(counters)?;
        let start = Instant::now();
        let mut from = start;
        while times.len() < CONNECTIONS * 9 / 10 && from - start < place.measure {
            once()?;
            let to = Instant::now();
            times.saturating_record((to - from).as_nanos() as u64);
            from = to;
        }
        let elapsed = from - start;
        let cpu = CpuTimes::now().map_err(counters)?.since(&before);
        let usage = Usage { used: cpu.used(elapsed), capacity: elapsed * cpu.cpus.len() as u32 };
        let busy_polled = polled()?.saturating_sub(polled_before);
        Ok(RunResult { count: times.len(), elapsed, usage, busy_polled, times: Some(times) })
    };
    let result = run().map_err(|e: io::Error| match is_pause(&e) || is_begun(&e) {
        true => format!("connection: no answer in {}", crate::units::show(SILENCE)),
        false => format!("connection: {e}"),
    });
    gauge.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    // Wakes a waiting server; if it is gone, this does not matter.
    drop(connect());
    result
}

/// The server of TCP_CRR: accepts, receives, answers and closes first; accepts and reads wait for [`SOCKET_TIMEOUT`].
pub(super) fn answers<S: Read + Write>(
    gauge: &Gauge,
    mut accept: impl FnMut() -> io::Result<S>,
) -> Result<(), String> {
    while !gauge.is_over() {
        let mut peer = match accept() {
            Ok(peer) => peer,
            Err(e) if is_pause(&e) => continue,
            Err(e) => return Err(format!("accept: {e}")),
        };
        let mut byte = [0];
        let heard = loop {
            match peer.read(&mut byte) {
                Err(e) if is_pause(&e) && !gauge.is_over() => {}
                heard => break heard,
            }
        };
        let answered = heard.and_then(|n| match n {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => peer.write_all(&byte),
        });
        // The last client sends nothing: it only wakes the server.
        if let Err(e) = answered
            && !gauge.is_over()
        {
            return Err(format!("answer: {e}"));
        }
    }
    Ok(())
}
