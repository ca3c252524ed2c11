//! Exchanges that work on a kernel socket and on one of ours.
#![allow(dead_code)] // each test file uses its own part

use std::io::{Read, Write};

/// Bytes that differ by their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Echoes until the peer ends.
pub fn echo(mut stream: impl Read + Write) {
    let mut buffer = vec![0; 100_000];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return,
            len => stream.write_all(&buffer[..len]).unwrap(),
        }
    }
}

/// Requests and answers of all sizes; the large ones while both sides send at once.
pub fn converse(stream: impl Read + Write + Handle) {
    for len in [1, 2, 100, 1447, 1448, 1449, 10_000] {
        let mut stream = stream.again();
        stream.write_all(&pattern(len)).unwrap();
        let mut answer = vec![0; len];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer == pattern(len), "{len} bytes");
    }
    let len = 3_000_001;
    let (mut reader, mut writer) = (stream.again(), stream);
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(&pattern(len)).unwrap());
        let mut answer = vec![0; len];
        reader.read_exact(&mut answer).unwrap();
        assert!(answer == pattern(len), "{len} bytes");
    });
}

/// Another handle to the same socket.
pub trait Handle: Send {
    fn again(&self) -> Self;
}

impl Handle for std::net::TcpStream {
    fn again(&self) -> Self {
        self.try_clone().unwrap()
    }
}

impl Handle for busypoll_stack::TcpStream {
    fn again(&self) -> Self {
        self.try_clone().unwrap()
    }
}
