//! TCP over a TAP, against the kernel at the other end.

mod tcp_kernel;

use busypoll_lab::{Lab, Namespace, needs_root};
use busypoll_stack::{Host, TcpListener, TcpStream, nic::tap::Tap};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener as KernelListener, TcpStream as KernelStream},
    thread,
};
use tcp_kernel::{converse, echo, pattern};

/// A namespace whose kernel is 10.0.0.1, and our host, 10.0.0.2.
fn tap() -> (Namespace, Host) {
    let namespace = Lab::single().unwrap();
    let host = namespace
        .enter(|| {
            let tap = Tap::builder("tap0").kernel_address("10.0.0.1/24").open()?;
            Host::builder().interface(tap, "10.0.0.2/24").build()
        })
        .unwrap()
        .unwrap();
    (namespace, host)
}

#[test]
fn we_and_the_kernel_talk_in_both_roles() {
    needs_root!();
    let (namespace, host) = tap();
    let ours = TcpListener::bind(&host, "10.0.0.2:7").unwrap();
    let theirs = namespace.enter(|| KernelListener::bind("10.0.0.1:7")).unwrap().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| echo(ours.accept().unwrap().0));
        scope.spawn(|| echo(theirs.accept().unwrap().0));
        converse(namespace.enter(|| KernelStream::connect("10.0.0.2:7")).unwrap().unwrap());
        converse(TcpStream::connect(&host, "10.0.0.1:7").unwrap());
    });
    let refused = TcpStream::connect(&host, "10.0.0.1:9").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let refused = namespace.enter(|| KernelStream::connect("10.0.0.2:9")).unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn each_end_closes_its_half_independently() {
    needs_root!();
    let (namespace, host) = tap();
    let ours = TcpListener::bind(&host, "10.0.0.2:7").unwrap();
    let mut kernel = namespace.enter(|| KernelStream::connect("10.0.0.2:7")).unwrap().unwrap();
    let (mut stream, _) = ours.accept().unwrap();
    let all = pattern(300_000);
    thread::scope(|scope| {
        scope.spawn(|| {
            kernel.write_all(&all).unwrap();
            kernel.shutdown(Shutdown::Write).unwrap();
            let mut got = Vec::new();
            kernel.read_to_end(&mut got).unwrap();
            assert!(got == all);
        });
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == all);
        stream.write_all(&got).unwrap();
        drop(stream);
    });
}

#[test]
fn thousands_of_short_connections_complete() {
    needs_root!();
    let (namespace, host) = tap();
    let ours = TcpListener::bind(&host, "10.0.0.2:7").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in ours.incoming().take(2_000) {
                stream.unwrap().write_all(b"hello").unwrap();
            }
        });
        namespace
            .enter(|| {
                for _ in 0..2_000 {
                    let mut stream = KernelStream::connect("10.0.0.2:7").unwrap();
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).unwrap();
                    assert_eq!(got, b"hello");
                }
            })
            .unwrap();
    });
}
