//! A TCP client on the stack plane: sends a line, prints the answer.
//!
//! `tcp_client` talks to a server of its own in memory: no privileges, no device.
//! `tcp_client INTERFACE ADDRESS:PORT` connects over AF_XDP; the interface's addresses and routes are the kernel's.

use busypoll::stack::{
    Host, TcpListener, TcpStream,
    nic::{cable, xdp::Xdp},
};
use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    thread,
};

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &words[..] {
        [] => print!("{}", in_memory()?),
        [interface, address] => {
            // Each read busy polls for up to 50 us, then sleeps.
            let host = Host::builder().shared_interface(Xdp::open(interface)?).busy_read(50);
            print!("{}", ask(&host.build()?, address, "hello\n")?);
        }
        _ => eprintln!("usage: tcp_client [INTERFACE ADDRESS:PORT]"),
    }
    Ok(())
}

/// Sends `line` to the server at `address`, and returns the line that it answers.
pub fn ask(host: &Host, address: &str, line: &str) -> io::Result<String> {
    let stream = TcpStream::connect(host, address)?;
    stream.set_nodelay(true)?;
    (&stream).write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer)?;
    eprintln!("round trip time, smoothed: {:?}", stream.info()?.rtt);
    Ok(answer)
}

/// Two hosts in this process, joined by a cable; one answers.
pub fn in_memory() -> io::Result<String> {
    let (a, b) = cable::pair(cable::Config::default())?;
    let left = Host::builder().interface(a, "fd00::1/64").busy_read(50).build()?;
    let right = Host::builder().interface(b, "fd00::2/64").busy_read(50).build()?;
    let listener = TcpListener::bind(&right, "[fd00::2]:7")?;
    thread::spawn(move || -> io::Result<()> {
        let (stream, _) = listener.accept()?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        (&stream).write_all(line.to_uppercase().as_bytes())
    });
    ask(&left, "[fd00::2]:7", "hello\n")
}
