//! Request-response over the cable, both ends busy polling: `udp_rr [SECONDS [CPU CPU]]`.

use busypoll_stack::{Host, UdpSocket, nic::cable, time};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

fn pin(cpu: usize) {
    // SAFETY: an empty set, one CPU added, for the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let seconds = args.next().unwrap_or(1);
    let cpus = [args.next().unwrap_or(0), args.next().unwrap_or(1)];
    let (a, b) = cable::pair(cable::Config::default())?;
    let one = Host::builder().interface(a, "10.0.0.1/24").busy_read(1000).build()?;
    let two = Host::builder().interface(b, "10.0.0.2/24").busy_read(1000).build()?;
    let server = UdpSocket::bind(&two, "10.0.0.2:7")?;
    let client = UdpSocket::bind(&one, "10.0.0.1:0")?;
    client.connect("10.0.0.2:7")?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus[1]);
            let mut buffer = [0; 64];
            server.connect(client.local_addr().expect("bound")).expect("connect");
            while !stop.load(Ordering::Relaxed) {
                let len = server.recv(&mut buffer).expect("receive");
                server.send(&buffer[..len]).expect("send");
            }
        });
        pin(cpus[0]);
        let mut rtt = Vec::with_capacity(1 << 24);
        let end = time::now() + Duration::from_secs(seconds as u64);
        let mut before = time::now();
        while before < end && rtt.len() < rtt.capacity() {
            client.send(b"x").expect("send");
            client.recv(&mut [0; 64]).expect("receive");
            let after = time::now();
            rtt.push((after - before).as_nanos() as u32);
            before = after;
        }
        stop.store(true, Ordering::Relaxed);
        client.send(b"x").expect("send");
        rtt.sort_unstable();
        let at = |q: f64| rtt[(rtt.len() as f64 * q) as usize];
        println!(
            "{} round trips, ns: p50 {} p99 {} p99.9 {}",
            rtt.len(),
            at(0.5),
            at(0.99),
            at(0.999)
        );
        println!("client {:?}", client.stats());
        println!("napi {:?}", one.contexts().next().map(|context| context.stats()));
    });
    Ok(())
}
