//! The sockets for tokio: wake-ups, halves, cancelled waits, many tasks at one socket; with a poller task and without.

use busypoll::{
    stack::{self, Host, nic::cable},
    tokio::{OwnedReadHalf, PollerTask, TcpListener, TcpStream, UdpSocket},
};
use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadBuf},
    runtime::{Builder, Runtime},
    time::timeout,
};

/// A wake-up that is lost fails the test instead of hanging it.
const LONG: Duration = Duration::from_secs(20);

fn hosts() -> [Host; 2] {
    let (a, b) = cable::pair(cable::Config::default()).unwrap();
    let host = |nic, address| Host::builder().interface(nic, address).build().unwrap();
    [host(a, "10.0.0.1/24"), host(b, "10.0.0.2/24")]
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs `test` on a runtime without poller tasks, and with one for each host.
fn with_and_without_pollers<F: Future<Output = io::Result<()>>>(test: impl Fn([Host; 2]) -> F) {
    for polls in [false, true] {
        let hosts = hosts();
        runtime().block_on(async {
            if polls {
                for host in &hosts {
                    let poller = PollerTask::new(host, Duration::from_micros(50)).unwrap();
                    tokio::spawn(poller);
                }
            }
            timeout(LONG, test(hosts)).await.expect("a wake-up was lost").unwrap();
        });
    }
}

/// A connection between the hosts.
async fn connected([left, right]: &[Host; 2]) -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(right, "10.0.0.2:7").await?;
    let connect = tokio::spawn({
        let left = left.clone();
        async move { TcpStream::connect(&left, "10.0.0.2:7").await }
    });
    let (server, peer) = listener.accept().await?;
    let client = connect.await.unwrap()?;
    assert_eq!(client.local_addr()?, peer);
    Ok((client, server))
}

#[test]
fn datagrams_go_to_and_fro() {
    with_and_without_pollers(|[left, right]| async move {
        let server = UdpSocket::bind(&right, "10.0.0.2:7").await?;
        let client = UdpSocket::bind(&left, "10.0.0.1:0").await?;
        client.connect("10.0.0.2:7").await?;
        let echo = tokio::spawn(async move {
            let mut buffer = [0; 8];
            for _ in 0..200 {
                let (len, from) = server.recv_from(&mut buffer).await?;
                server.send_to(&buffer[..len], from).await?;
            }
            io::Result::Ok(())
        });
        for round in 0..200u64 {
            client.send(&round.to_ne_bytes()).await?;
            let mut answer = [0; 8];
            assert_eq!(client.recv(&mut answer).await?, 8);
            assert_eq!(u64::from_ne_bytes(answer), round);
        }
        echo.await.unwrap()
    });
}

/// Much more than the buffers hold, in both directions at once.
#[test]
fn both_halves_of_a_stream_are_used_at_once() {
    with_and_without_pollers(|hosts| async move {
        const LEN: usize = 8 << 20;
        let (client, server) = connected(&hosts).await?;
        let ends = [client, server].map(|stream| {
            let (mut reader, mut writer) = stream.into_split();
            let write = tokio::spawn(async move {
                let block: Vec<u8> = (0..=255).collect();
                for _ in 0..LEN / block.len() {
                    writer.write_all(&block).await?;
                }
                io::Result::Ok(()) // dropped: the peer reads the end
            });
            let read = tokio::spawn(async move {
                let mut all = Vec::new();
                reader.read_to_end(&mut all).await?;
                assert_eq!(all.len(), LEN);
                assert!(all.iter().enumerate().all(|(at, byte)| *byte == at as u8));
                io::Result::Ok(())
            });
            (write, read)
        });
        for (write, read) in ends {
            write.await.unwrap()?;
            read.await.unwrap()?;
        }
        Ok(())
    });
}

#[test]
fn any_number_of_tasks_may_wait_at_one_socket() {
    with_and_without_pollers(|[left, right]| async move {
        let server = std::sync::Arc::new(UdpSocket::bind(&right, "10.0.0.2:7").await?);
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let server = server.clone();
                tokio::spawn(async move {
                    let mut buffer = [0; 1];
                    server.recv(&mut buffer).await.map(|_| buffer[0])
                })
            })
            .collect();
        tokio::task::yield_now().await;
        let client = UdpSocket::bind(&left, "10.0.0.1:0").await?;
        for byte in 0..10 {
            client.send_to(&[byte], "10.0.0.2:7").await?;
        }
        let mut received = Vec::new();
        for task in tasks {
            received.push(task.await.unwrap()?);
        }
        received.sort_unstable();
        assert_eq!(received, (0..10).collect::<Vec<_>>());
        Ok(())
    });
}

/// A future that is dropped after its wake-up leaves the datagram, and the wake-up, to the next.
#[test]
fn a_cancelled_wait_passes_its_wake_up_on() {
    with_and_without_pollers(|[left, right]| async move {
        let server = UdpSocket::bind(&right, "10.0.0.2:7").await?;
        let client = UdpSocket::bind(&left, "10.0.0.1:0").await?;
        client.connect("10.0.0.2:7").await?;
        for _ in 0..50 {
            let (mut first, mut second) = ([0; 1], [0; 1]);
            {
                let mut cx = Context::from_waker(Waker::noop());
                let mut cancelled = pin!(server.recv(&mut first));
                assert!(cancelled.as_mut().poll(&mut cx).is_pending());
                let mut other = pin!(server.recv(&mut second));
                assert!(poll_fn(|cx| Poll::Ready(other.as_mut().poll(cx).is_pending())).await);
                client.send(b"x").await?;
                // Until the datagram is there, and its wake-up has gone to the first.
                while !server.get_ref().readiness().has(stack::Events::READABLE) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                cancelled.set(server.recv(&mut []));
                assert_eq!(other.await?, 1);
            }
            assert_eq!(&second, b"x");
        }
        Ok(())
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    with_and_without_pollers(|[left, right]| async move {
        let refused = TcpStream::connect(&left, "10.0.0.2:9").await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        drop(right);
        Ok(())
    });
}

#[test]
fn halves_come_together_again_or_end_sending() {
    with_and_without_pollers(|hosts| async move {
        let (client, mut server) = connected(&hosts).await?;
        let (reader, writer) = client.into_split();
        let mut client = reader.reunite(writer).unwrap();
        client.write_all(b"whole").await?;
        let mut read = [0; 5];
        server.read_exact(&mut read).await?;
        assert_eq!(&read, b"whole");

        let (reader, writer): (OwnedReadHalf, _) = client.into_split();
        drop(writer);
        assert_eq!(server.read(&mut read).await?, 0, "the end");
        server.write_all(b"still").await?;
        let mut reader = reader;
        reader.read_exact(&mut read).await?;
        assert_eq!(&read, b"still");
        Ok(())
    });
}

#[test]
fn readable_and_the_poll_methods_wait_and_take_nothing_too_much() {
    with_and_without_pollers(|hosts| async move {
        let (client, server) = connected(&hosts).await?;
        assert_eq!(server.try_read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let ready = tokio::spawn(async move {
            server.readable().await?;
            let mut seen = [0; 8];
            assert_eq!(server.peek(&mut seen).await?, 4);
            assert_eq!(server.try_read(&mut seen)?, 4);
            io::Result::Ok(seen)
        });
        tokio::task::yield_now().await;
        client.writable().await?;
        assert_eq!(client.try_write(b"data")?, 4);
        assert_eq!(&ready.await.unwrap()?[..4], b"data");

        let socket = UdpSocket::bind(&hosts[0], "10.0.0.1:99").await?;
        let mut buffer = [0; 8];
        let mut buffer = ReadBuf::new(&mut buffer);
        assert!(poll_fn(|cx| Poll::Ready(socket.poll_recv(cx, &mut buffer).is_pending())).await);
        socket.send_to(b"self", "10.0.0.1:99").await?;
        poll_fn(|cx| socket.poll_recv(cx, &mut buffer)).await?;
        assert_eq!(buffer.filled(), b"self");
        Ok(())
    });
}

/// The poller task, not the interrupt, finds the packets of a steady exchange; and it stops when no task waits for them.
#[test]
fn the_poller_task_finds_the_packets_and_ends_with_its_host() {
    let [left, right] = hosts();
    let polled =
        |host: &Host| host.contexts().map(|context| context.stats().bp_cleaned).sum::<u64>();
    runtime().block_on(async {
        let poller = PollerTask::new(&right, Duration::from_secs(5)).unwrap();
        let second = PollerTask::new(&right, Duration::ZERO).unwrap_err();
        assert_eq!(second.raw_os_error(), Some(libc::EBUSY));
        let poller = tokio::spawn(poller);
        let server = UdpSocket::bind(&right, "10.0.0.2:7").await.unwrap();
        let client = stack::UdpSocket::bind(&left, "10.0.0.1:0").unwrap();
        for _ in 0..100 {
            client.send_to(b"x", "10.0.0.2:7").unwrap();
            timeout(LONG, server.recv(&mut [0; 1])).await.expect("lost").unwrap();
        }
        // Not all: the poller task gives way to the threads of other tests.
        assert_ne!(polled(&right), 0, "of 100 packets");
        drop((server, right));
        timeout(LONG, poller).await.expect("the poller task goes on without a host").unwrap();
    });
}
