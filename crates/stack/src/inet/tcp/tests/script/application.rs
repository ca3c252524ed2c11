//! The calls of the application and the host.

use super::{Script, absolute, stream};
use crate::inet::{
    SocketError,
    tcp::{Mark, Ready, TcpOptions, connection::State, info::TcpInfo},
};
use std::{fmt::Write, io, net::Shutdown};

impl Script {
    pub(super) fn log_line(&mut self, what: &str) {
        let _ = writeln!(self.log, "{:>9} - {what}", self.clock());
    }

    /// Writes `len` bytes, all of which find room.
    #[track_caller]
    pub(in super::super) fn send(&mut self, len: usize) {
        let sent = self.try_send(len, false);
        assert!(matches!(sent, Ok(n) if n == len), "send({len}) = {sent:?}\n{}", self.log);
    }

    /// Writes `len` bytes with `MSG_MORE`.
    #[track_caller]
    pub(in super::super) fn send_more(&mut self, len: usize) {
        let sent = self.try_send(len, true);
        assert!(matches!(sent, Ok(n) if n == len), "send({len}) = {sent:?}\n{}", self.log);
    }

    /// Writes `len` bytes, the last of which has a mark.
    #[track_caller]
    pub(in super::super) fn send_marked(&mut self, len: usize, mark: Mark) {
        self.log_line(&format!("send {len}, {mark:?}"));
        let now = self.now;
        let data = stream(self.written as i64, len, true);
        let sent = self.target.send_marked(&data, mark, now);
        assert!(matches!(sent, Ok(n) if n == len), "send({len}) = {sent:?}\n{}", self.log);
        self.written += len;
        self.transmit();
    }

    /// `MSG_OOB`: the error, or the byte is the peer's number `at`.
    #[track_caller]
    pub(in super::super) fn recv_urgent(&mut self, peek: bool, at: Result<i64, i32>) {
        self.log_line("recv urgent");
        let got = self.target.recv_urgent(peek).map_err(|error| error.raw_os_error().unwrap_or(0));
        let want = at.map(|at| stream(at - 1, 1, false).first().copied());
        assert_eq!(got, want, "\n{}", self.log);
    }

    /// A read skips the urgent byte.
    pub(in super::super) fn skip_urgent(&mut self) {
        self.read += 1;
    }

    pub(in super::super) fn is_at_mark(&self) -> bool {
        self.target.is_at_mark()
    }

    pub(in super::super) fn unread(&self) -> usize {
        self.target.unread()
    }

    pub(in super::super) fn ready(&mut self) -> Ready {
        self.target.ready()
    }

    /// Writes up to `len` bytes.
    pub(in super::super) fn try_send(&mut self, len: usize, more: bool) -> io::Result<usize> {
        self.log_line(&format!("send {len}"));
        let now = self.now;
        let data = stream(self.written as i64, len, true);
        let sent = self.target.send(&data, more, now);
        self.written += sent.as_ref().copied().unwrap_or(0);
        self.transmit();
        sent
    }

    /// Reads exactly `len` bytes, which are the peer's.
    #[track_caller]
    pub(in super::super) fn recv(&mut self, len: usize) {
        let mut left = len;
        while left > 0 {
            match self.try_recv(left) {
                Ok(n) if n > 0 => left -= n,
                other => panic!("recv({len}): {other:?} with {left} to go\n{}", self.log),
            }
        }
    }

    /// Reads up to `len` bytes.
    #[track_caller]
    pub(in super::super) fn try_recv(&mut self, len: usize) -> io::Result<usize> {
        self.log_line(&format!("recv {len}"));
        let now = self.now;
        let mut into = vec![0; len];
        let got = self.target.recv(&mut into, now);
        if let Ok(n) = got {
            let want = stream(self.read as i64, n, false);
            assert_eq!(into[..n], want, "not the bytes the peer sent\n{}", self.log);
            self.read += n;
        }
        self.transmit();
        got
    }

    /// There is nothing to read now, and more may come.
    #[track_caller]
    pub(in super::super) fn recv_nothing(&mut self) {
        let got = self.try_recv(1).map_err(|e| e.kind());
        assert_eq!(got, Err(io::ErrorKind::WouldBlock), "\n{}", self.log);
    }

    /// The stream has ended.
    #[track_caller]
    pub(in super::super) fn recv_end(&mut self) {
        let got = self.try_recv(1).map_err(|e| e.kind());
        assert_eq!(got, Ok(0), "the end of the stream\n{}", self.log);
    }

    pub(in super::super) fn shutdown_write(&mut self) {
        self.log_line("shutdown(write)");
        let now = self.now;
        self.target.shutdown(Shutdown::Write, now);
        self.transmit();
    }

    pub(in super::super) fn close(&mut self) {
        self.log_line("close");
        let now = self.now;
        self.target.close(now);
        self.transmit();
    }

    pub(in super::super) fn abort(&mut self) {
        self.log_line("abort");
        let now = self.now;
        self.target.abort(now);
        self.transmit();
    }

    pub(in super::super) fn configure(&mut self, change: impl FnOnce(&mut TcpOptions)) {
        self.log_line("setsockopt");
        let now = self.now;
        let mut options = self.target.options();
        change(&mut options);
        self.target.set_options(options, now);
        self.transmit();
    }

    pub(in super::super) fn state(&mut self) -> State {
        self.target.state()
    }

    #[track_caller]
    pub(in super::super) fn check_state(&mut self, want: State) {
        let is = self.state();
        assert_eq!(is, want, "\n{}", self.log);
    }

    /// `SO_ERROR`: the errno, none afterwards.
    pub(in super::super) fn error(&mut self) -> Option<i32> {
        self.target.take_error()
    }

    pub(in super::super) fn info(&mut self) -> TcpInfo {
        let now = self.now;
        self.target.info(now)
    }

    /// Bytes written and not acknowledged (`SIOCOUTQ`).
    pub(in super::super) fn unacknowledged(&self) -> usize {
        self.target.unacknowledged()
    }

    /// Checks again whether something may be sent.
    pub(in super::super) fn retry_transmit(&mut self) {
        self.transmit();
    }

    /// Whether the handshake was dropped, or no SYN has come.
    pub(in super::super) fn is_listening(&self) -> bool {
        self.target.is_listening()
    }

    // -- the host

    /// The transmit ring is full from now on, or has room again.
    pub(in super::super) fn set_ring_full(&mut self, jammed: bool) {
        self.set_ring_room(if jammed { 0 } else { u64::MAX });
    }

    /// The transmit ring takes this many segments at a time from now on.
    pub(in super::super) fn set_ring_room(&mut self, segments: u64) {
        self.log_line(&format!("ring with room for {segments}"));
        self.target.set_ring_room(segments);
        self.transmit();
    }

    /// An ICMP error comes that quotes our segment at `quoted`.
    pub(in super::super) fn icmp(&mut self, error: SocketError, quoted: i64) {
        self.log_line(&format!("icmp {error:?} about {quoted}"));
        let quoted = absolute(quoted, self.iss());
        self.target.unreachable(error, quoted, self.now);
        self.transmit();
    }

    /// ICMP reports about our segment at `quoted` that the path's MSS is `mss`.
    pub(in super::super) fn icmp_too_big(&mut self, mss: u16, quoted: i64) {
        self.log_line(&format!("icmp too big: {mss} about {quoted}"));
        let (now, quoted) = (self.now, absolute(quoted, self.iss()));
        self.target.too_big(mss, quoted, now);
        self.transmit();
    }
}
