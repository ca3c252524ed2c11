//! A TCP echo server with tokio on the stack plane. Needs the feature `tokio`.
//!
//! `tokio_server` has a client of its own in memory: no privileges, no device.
//! `tokio_server INTERFACE ADDRESS:PORT` serves over AF_XDP.

use busypoll::{
    stack::{
        Host,
        nic::{cable, xdp::Xdp},
    },
    tokio::{PollerTask, TcpListener, TcpStream},
};
use std::{env, io, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long the runtime busy polls when it has nothing else to do.
const BUSY_POLL: Duration = Duration::from_micros(50);

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    // One thread, which polls the queues itself: pin it to a CPU of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match &words[..] {
        [] => println!("{}", runtime.block_on(in_memory())?),
        [interface, address] => runtime.block_on(async {
            let host = Host::builder().shared_interface(Xdp::open(interface)?).build()?;
            tokio::spawn(PollerTask::new(&host, BUSY_POLL)?);
            serve(TcpListener::bind(&host, address).await?).await
        })?,
        _ => eprintln!("usage: tokio_server [INTERFACE ADDRESS:PORT]"),
    }
    Ok(())
}

/// Echoes on every connection, each in a task of its own.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let (mut reader, mut writer) = stream.split();
            match tokio::io::copy(&mut reader, &mut writer).await {
                Ok(bytes) => eprintln!("{peer}: {bytes} bytes"),
                Err(error) => eprintln!("{peer}: {error}"),
            }
        });
    }
}

/// Two hosts in this process, joined by a cable: the server, and a client whose answer is returned.
pub async fn in_memory() -> io::Result<String> {
    let (a, b) = cable::pair(cable::Config::default())?;
    let left = Host::builder().interface(a, "10.0.0.1/24").build()?;
    let right = Host::builder().interface(b, "10.0.0.2/24").build()?;
    tokio::spawn(PollerTask::new(&left, BUSY_POLL)?);
    tokio::spawn(PollerTask::new(&right, BUSY_POLL)?);
    tokio::spawn(serve(TcpListener::bind(&right, "10.0.0.2:7").await?));

    let mut client = TcpStream::connect(&left, "10.0.0.2:7").await?;
    client.write_all(b"hello").await?;
    client.shutdown().await?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    Ok(answer)
}
