//! HTTP for one reader: `GET /metrics` and `GET /`, one answer a connection, one thread. Any host that reaches the
//! address may connect, so a request, a connection's time and the number of connections are limited.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::page::CONTENT_TYPE;

/// The longest request.
const REQUEST: usize = 8 * 1024;

/// How long a connection may take, from its accept to the end of the answer.
const TIME: Duration = Duration::from_secs(10);

/// The most connections at once. A further one replaces the oldest.
const CONNECTIONS: usize = 16;

/// How long a page serves further requests: a page costs more than a request.
const FRESH: Duration = Duration::from_millis(500);

/// When accept is tried again after it failed for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

struct Connection {
    stream: TcpStream,
    until: Instant,
    request: Vec<u8>,
    /// The answer and how much of it is sent.
    answer: Option<(Vec<u8>, usize)>,
}

/// Listens.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves pages that `make` makes, for ever.
pub(crate) fn serve(listener: &TcpListener, mut make: impl FnMut() -> Vec<u8>) -> io::Error {
    let mut connections: Vec<Connection> = Vec::new();
    let mut made: Option<(Instant, Vec<u8>)> = None;
    let mut page = move || match &made {
        Some((at, page)) if at.elapsed() < FRESH => page.clone(),
        _ => {
            let page = make();
            made.insert((Instant::now(), page)).1.clone()
        }
    };
    let mut paused = false;
    loop {
        if let Err(error) = wait(listener, &connections, paused) {
            return error;
        }
        paused = accept(listener, &mut connections);
        let now = Instant::now();
        connections
            .retain_mut(|connection| connection.until > now && connection.advance(&mut page));
    }
}

/// Waits until there is something to do.
fn wait(listener: &TcpListener, connections: &[Connection], paused: bool) -> io::Result<()> {
    let mut fds = Vec::with_capacity(1 + connections.len());
    if !paused {
        fds.push(PollFd::new(listener, PollFlags::IN));
    }
    for Connection { stream, answer, .. } in connections {
        let events = if answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
        fds.push(PollFd::from_borrowed_fd(stream.as_fd(), events));
    }
    let until = connections.iter().map(|connection| connection.until).min();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let limit = left.into_iter().chain(paused.then_some(ACCEPT_RETRY)).min();
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Accepts what waits; returns whether accept failed for lack of something.
fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) -> bool {
    for _ in 0..CONNECTIONS {
        match listener.accept() {
            Ok((stream, _)) => {
                if connections.len() >= CONNECTIONS {
                    connections.remove(0);
                }
                if stream.set_nonblocking(true).is_ok() {
                    let until = Instant::now() + TIME;
                    let request = Vec::new();
                    connections.push(Connection { stream, until, request, answer: None });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // The peer has gone meanwhile, or no descriptor is left.
            Err(_) => return true,
        }
    }
    false
}

impl Connection {
    /// Goes on as far as it can without waiting; returns whether there is more to do.
    fn advance(&mut self, page: &mut impl FnMut() -> Vec<u8>) -> bool {
        while self.answer.is_none() {
            let mut bytes = [0; 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(read) => self.request.extend_from_slice(&bytes[..read]),
                Err(error) => return is_later(&error),
            }
            self.answer = answer(&self.request, page).map(|answer| (answer, 0));
        }
        let Some((bytes, sent)) = &mut self.answer else { return false };
        while let Some(rest) = bytes.get(*sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(written) => *sent += written,
                Err(error) => return is_later(&error),
            }
        }
        false
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The answer, once the request is complete or cannot become one.
fn answer(request: &[u8], page: &mut impl FnMut() -> Vec<u8>) -> Option<Vec<u8>> {
    let complete = [b"\r\n\r\n".as_slice(), b"\n\n"]
        .iter()
        .any(|end| request.windows(end.len()).any(|window| window == *end));
    if !complete {
        return (request.len() > REQUEST).then(|| say("431 Request Header Fields Too Large"));
    }
    let line = request.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = str::from_utf8(line).unwrap_or_default().trim_end();
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    if words.next().is_some() || !version.is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Some(say("400 Bad Request"));
    }
    let target = target.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    Some(match (method, path) {
        (Some("GET"), "/metrics") => with("200 OK", CONTENT_TYPE, &page()),
        (Some("GET"), "/") => with("200 OK", "text/html; charset=utf-8", INDEX.as_bytes()),
        (Some("GET"), _) => say("404 Not Found"),
        _ => say("405 Method Not Allowed"),
    })
}

const INDEX: &str =
    "<!doctype html><title>busypoll exporter</title><a href=\"/metrics\">metrics</a>\n";

fn say(status: &str) -> Vec<u8> {
    with(status, "text/plain; charset=utf-8", format!("{status}\n").as_bytes())
}

fn with(status: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn started() -> SocketAddr {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        // It ends with the test's process.
        thread::spawn(move || serve(&listener, || b"busypoll_x 1\n".to_vec()));
        address
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // The server may have answered and closed before all of it is sent.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn it_serves_the_page_and_the_index_and_nothing_else() {
        let address = started();
        for (request, status, body) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", "busypoll_x 1\n"),
            ("GET /metrics?a=b HTTP/1.0\n\n", "200 OK", "busypoll_x 1\n"),
            ("GET / HTTP/1.1\r\n\r\n", "200 OK", INDEX),
            ("GET /../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found", "404 Not Found\n"),
            (
                "POST /metrics HTTP/1.1\r\n\r\n",
                "405 Method Not Allowed",
                "405 Method Not Allowed\n",
            ),
            ("GET /metrics\r\n\r\n", "400 Bad Request", "400 Bad Request\n"),
            ("\u{1}\u{2}\r\n\r\n", "400 Bad Request", "400 Bad Request\n"),
        ] {
            let answer = ask(address, request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request:?}: {answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{request:?}: {answer}");
            assert!(answer.contains(&format!("Content-Length: {}\r\n", body.len())), "{answer}");
        }
    }

    #[test]
    fn a_request_without_end_is_refused_and_silent_peers_do_not_block_others() {
        let address = started();
        let answer = ask(address, &[b'x'; 2 * REQUEST]);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        let silent: Vec<TcpStream> =
            (0..3 * CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").contains("200 OK"));
        // The oldest had to go.
        let mut first = silent.into_iter().next().unwrap();
        assert_eq!(first.read(&mut [0; 8]).unwrap_or(0), 0);
    }
}
