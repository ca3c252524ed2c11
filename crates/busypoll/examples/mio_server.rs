//! A TCP echo server with mio on the kernel plane: the kernel's sockets, and an epoll instance that busy polls.
//!
//! `mio_server [ADDRESS:PORT]`, 0.0.0.0:7777 unless given. Whether packets really come by busy polling says
//! `busypoll doctor --pid PID --prove 2s`.

use busypoll::{EpollBusyPollExt, EpollParams};
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};
use std::{
    collections::HashMap,
    env,
    io::{self, ErrorKind, Read, Write},
};

const LISTENER: Token = Token(0);

fn main() -> io::Result<()> {
    let address = env::args().nth(1).unwrap_or_else(|| "0.0.0.0:7777".into());
    let address =
        address.parse().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
    serve(TcpListener::bind(address)?, usize::MAX)
}

/// Echoes until `most` connections have ended.
pub fn serve(mut listener: TcpListener, most: usize) -> io::Result<()> {
    let mut poll = Poll::new()?;
    // Waits poll the device for up to 50 us before they sleep. Linux 6.9 or newer; no privilege.
    let params = EpollParams { busy_poll_usecs: 50, ..EpollParams::default() };
    if let Err(error) = poll.registry().set_busy_poll_params(params) {
        eprintln!("without busy polling: {error}");
    }
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;

    let mut streams = HashMap::new();
    let (mut next, mut ended) = (1, 0);
    let mut events = Events::with_capacity(64);
    while ended < most {
        if let Err(error) = poll.poll(&mut events, None) {
            match error.kind() {
                ErrorKind::Interrupted => continue,
                _ => return Err(error),
            }
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    poll.registry().register(&mut stream, Token(next), Interest::READABLE)?;
                    streams.insert(Token(next), stream);
                    next += 1;
                }
            } else if let Some(stream) = streams.get_mut(&event.token())
                && echo(stream).is_none_or(|result| result.is_err())
            {
                streams.remove(&event.token());
                ended += 1;
            }
        }
    }
    Ok(())
}

/// Echoes what there is to read. `None` at the end of the stream.
fn echo(stream: &mut TcpStream) -> Option<io::Result<()>> {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            // An example: a peer that does not read its echo is dropped.
            Ok(len) => match stream.write_all(&buffer[..len]) {
                Ok(()) => {}
                failed => return Some(failed),
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(Ok(())),
            Err(error) => return Some(Err(error)),
        }
    }
}
