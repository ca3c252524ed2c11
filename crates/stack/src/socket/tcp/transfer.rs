//! Receive and send on a connection.

use super::{
    direct_delivery::ReceiveBuffers,
    endpoint::{Endpoint, ReadChannel, WriteChannel},
    message::SendFlags,
    stream::{Inner, TcpStream, pass},
};
use crate::{
    inet::{
        Context, Meta, Pass,
        tcp::{Flow, Ready},
    },
    memory_pressure::{self, Level},
    napi::{DirectBuffer, Waiter},
    socket::{
        options::errno,
        udp::ReceiveFlags,
        waiting::{AlreadyReady, Call, WaitChannel},
    },
    time,
};
use std::{
    hint::cold_path,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    sync::Arc,
    time::Duration,
};

/// The most `IoSlice`s passed to the flow at once.
const MAX_IOVECS: usize = 16;

impl TcpStream {
    /// As [`read`](Read::read), but the data stays unread.
    ///
    /// # Errors
    /// As [`read`](Read::read).
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = ReceiveFlags { peek: true, ..ReceiveFlags::default() };
        self.0.receive(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// As [`write`](Write::write), but more data follows at once (`MSG_MORE`): the last, partial segment waits for it,
    /// for up to 200 ms.
    ///
    /// # Errors
    /// As [`write`](Write::write).
    pub fn write_more(&self, data: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(data)], SendFlags { more: true, ..SendFlags::default() })
    }
}

impl Inner {
    /// Reads unread data; else busy polls; else sleeps. 0 at the end of the stream.
    pub(super) fn receive(
        &self,
        into: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> io::Result<usize> {
        let Some(flow) = self.connection() else { return self.receive_unconnected() };
        if into.iter().all(|room| room.is_empty()) {
            cold_path();
            return Ok(0);
        }
        let endpoint = &*self.endpoint;
        let waiting = &endpoint.waiting;
        let nonblocking = flags.dont_wait || waiting.is_nonblocking();
        let channel =
            FlowChannel { channel: ReadChannel(endpoint), endpoint, flow: &flow, sends: false };
        let mut call =
            ReceiveCall { channel: &channel, peek: flags.peek, direct: ReceiveBuffers::new(into) };
        let mut result =
            waiting.wait_nonblocking_if(nonblocking, &channel, &waiting.reading, &mut call);
        // A wait that ends early returns what is there, less than `SO_RCVLOWAT` (socket(7)).
        if result.is_err() && endpoint.ready().any(Ready::BELOW_LOWAT) {
            result = call.read_now().unwrap_or(result);
        }
        // The caller may go on to wait in an epoll, which does not call us before it sleeps.
        if nonblocking || endpoint.has_waiters() {
            channel.send_deferred_ack();
        }
        result
    }

    /// Sends `data`; a blocking call returns when all of it is in the send buffer.
    pub(super) fn send(&self, data: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let unconnected = || errno(self.take_error().unwrap_or(libc::EPIPE));
        let flow = self.connection().ok_or_else(unconnected)?;
        if let [one] = data
            && flags.are_plain()
            && flow.send_predicted(one, time::now())
        {
            self.poll_after(one.len(), &flow);
            return Ok(one.len());
        }
        self.send_any(&flow, data, flags)
    }

    /// `len` bytes were sent. Polls from time to time: otherwise a sender that always finds room never polls, and each
    /// acknowledgment wakes the interrupt thread.
    #[inline(always)]
    fn poll_after(&self, len: usize, flow: &Flow) {
        if self.endpoint.count_sent(len) {
            self.poll_once(flow);
        }
    }

    #[cold]
    fn poll_once(&self, flow: &Flow) {
        self.endpoint.waiting.poll_once(&self.write_channel(flow));
    }

    fn write_channel<'a>(&'a self, flow: &'a Flow) -> FlowChannel<'a, WriteChannel<'a>> {
        let endpoint = &*self.endpoint;
        FlowChannel { channel: WriteChannel(endpoint), endpoint, flow, sends: true }
    }

    /// [`send`](Inner::send) of what is not predicted.
    #[inline(never)]
    fn send_any(&self, flow: &Flow, data: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let endpoint = &*self.endpoint;
        let waiting = &endpoint.waiting;
        let channel = self.write_channel(flow);
        let len = data.iter().map(|piece| piece.len()).sum();
        let mut sent = 0;
        let nonblocking = flags.dont_wait || waiting.is_nonblocking();
        let result =
            waiting.wait_nonblocking_if(nonblocking, &channel, &waiting.writing, &mut || {
                // An error after a part was sent is returned by the next call.
                if sent > 0 && endpoint.ready().any(Ready::ERROR | Ready::HANGUP) {
                    return Some(Ok(()));
                }
                let snapshot = endpoint.snapshot();
                match push(flow, (data, len), flags, &mut sent) {
                    Ok(()) if sent == len || nonblocking => {
                        if sent < len {
                            endpoint.clear_ready(snapshot, Ready::WRITABLE);
                        }
                        Some(Ok(()))
                    }
                    Ok(()) => {
                        endpoint.clear_ready(snapshot, Ready::WRITABLE);
                        None
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if sent == 0
                            && memory_pressure::is(Level::Out)
                            && flow.unacknowledged() == 0
                        {
                            return Some(Err(errno(libc::ENOBUFS)));
                        }
                        endpoint.clear_ready(snapshot, Ready::WRITABLE);
                        (sent > 0 && nonblocking).then_some(Ok(()))
                    }
                    Err(error) => Some(Err(error)),
                }
            });
        self.poll_after(sent, flow);
        match result {
            Err(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }
}

/// The wait channel of a receive or a send on a flow.
struct FlowChannel<'a, B> {
    channel: B,
    endpoint: &'a Endpoint,
    flow: &'a Flow,
    /// The call waits for room to send.
    sends: bool,
}

/// After polling this long in vain the receiver is not in the middle of a burst: a deferred acknowledgment is sent.
const QUIET: Duration = Duration::from_micros(10);

/// Sends the acknowledgment that was deferred to the reader's answer, if no segment has carried it. Called when the
/// reader waits for more data.
#[inline]
pub(super) fn send_deferred_ack(endpoint: &Endpoint, flow: &Flow) {
    if endpoint.take_deferred_ack() {
        let mut pass = pass();
        flow.reader_waits(&mut pass);
        pass.wake.wake_all();
    }
}

impl<B> FlowChannel<'_, B> {
    #[inline]
    fn send_deferred_ack(&self) {
        send_deferred_ack(self.endpoint, self.flow);
    }
}

impl<B: WaitChannel> WaitChannel for FlowChannel<'_, B> {
    #[inline]
    fn is_ready(&self) -> bool {
        self.channel.is_ready()
    }

    #[inline]
    fn after_pass(&self, found: usize, polled: Duration) -> bool {
        if polled >= QUIET {
            cold_path();
            self.send_deferred_ack();
        }
        self.sends && found > 0 && self.flow.has_room()
    }

    /// A sender's polls find the acknowledgments that make room.
    #[inline]
    fn progresses_by_polling(&self) -> bool {
        self.sends
    }

    #[inline]
    fn poller_id(&self) -> usize {
        self.channel.poller_id()
    }

    #[inline]
    fn expected_flow(&self) -> Option<&Flow> {
        Some(self.flow)
    }

    #[inline]
    fn context(&self) -> Option<Arc<Context>> {
        self.channel.context()
    }

    #[inline]
    fn known_context(&self) -> Option<&Arc<Context>> {
        self.channel.known_context()
    }

    fn prepare_to_wait(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, AlreadyReady> {
        self.send_deferred_ack();
        self.channel.prepare_to_wait(waiter)
    }

    fn finish_wait(&self, waiter: &Arc<Waiter>) {
        self.channel.finish_wait(waiter);
    }
}

/// One receive call.
struct ReceiveCall<'a, 'b> {
    channel: &'a FlowChannel<'a, ReadChannel<'a>>,
    peek: bool,
    direct: ReceiveBuffers<'a, 'b>,
}

impl ReceiveCall<'_, '_> {
    /// Reads the unread data, however little.
    #[inline]
    fn read_now(&mut self) -> Option<io::Result<usize>> {
        let endpoint = self.channel.endpoint;
        let snapshot = endpoint.snapshot();
        let mut pass = pass();
        let result = self.channel.flow.recv(self.direct.into, self.peek, &mut pass);
        pass.wake.wake_all();
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                endpoint
                    .clear_ready(snapshot, Ready::READABLE | Ready::BELOW_LOWAT | Ready::URGENT);
                None
            }
            done => Some(done),
        }
    }

    /// Whether the unread data, though less than `SO_RCVLOWAT`, fills the buffers.
    #[cold]
    fn is_enough(&self) -> bool {
        self.channel.flow.unread() >= self.direct.room()
    }
}

impl Call for ReceiveCall<'_, '_> {
    type Output = usize;

    #[inline]
    fn attempt(&mut self) -> Option<io::Result<usize>> {
        if let Some(found) = self.direct.take_delivered() {
            return Some(Ok(found));
        }
        let ready = self.channel.endpoint.ready();
        // `Ready::URGENT`: an urgent byte in front of the data is skipped by the receive.
        if ready.any(Ready::READABLE | Ready::URGENT)
            || ready.any(Ready::BELOW_LOWAT) && self.is_enough()
        {
            return self.read_now();
        }
        None
    }

    #[inline]
    fn direct(&mut self) -> Option<&mut dyn DirectBuffer<Meta>> {
        if self.peek { None } else { Some(&mut self.direct) }
    }
}

/// Sends `data`, `len` bytes in all, from byte `sent` on, until there is no room; adds to `sent`. `Ok` also if only a
/// part had room.
#[inline]
fn push(
    flow: &Flow,
    (data, len): (&[IoSlice<'_>], usize),
    flags: SendFlags,
    sent: &mut usize,
) -> io::Result<()> {
    let mut pass = pass();
    let result = match data {
        [one] => push_one(flow, one, flags, sent, &mut pass),
        many => push_many(flow, (many, len), flags, sent, &mut pass),
    };
    pass.wake.wake_all();
    result
}

#[inline]
fn push_one(
    flow: &Flow,
    data: &[u8],
    flags: SendFlags,
    sent: &mut usize,
    pass: &mut Pass<'_>,
) -> io::Result<()> {
    loop {
        let rest = IoSlice::new(data.get(*sent..).unwrap_or_default());
        *sent += match flags.mark(true) {
            None => flow.send(&[rest], flags.more, pass)?,
            Some(mark) => flow.send_marked(&[rest], flags.more, mark, pass)?,
        };
        // Sending makes room again if little may stay unsent (`TCP_NOTSENT_LOWAT`).
        if *sent == data.len() || !flow.has_room() {
            return Ok(());
        }
    }
}

fn push_many(
    flow: &Flow,
    (data, len): (&[IoSlice<'_>], usize),
    flags: SendFlags,
    sent: &mut usize,
    pass: &mut Pass<'_>,
) -> io::Result<()> {
    loop {
        let mut pieces = [IoSlice::new(&[]); MAX_IOVECS];
        let (count, wanted) = rest(data, *sent, &mut pieces);
        let last = *sent + wanted == len;
        let more = flags.more || !last;
        let taken = match flags.mark(last) {
            None => flow.send(&pieces[..count], more, pass)?,
            Some(mark) => flow.send_marked(&pieces[..count], more, mark, pass)?,
        };
        *sent += taken;
        if *sent == len || taken < wanted && !flow.has_room() {
            return Ok(());
        }
    }
}

/// Fills `pieces` with `data` from byte `skip` on, as far as there is room. Returns the number of pieces and bytes.
fn rest<'a>(
    data: &'a [IoSlice<'_>],
    mut skip: usize,
    pieces: &mut [IoSlice<'a>; MAX_IOVECS],
) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for piece in data {
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let Some(room) = pieces.get_mut(count) else { break };
        *room = IoSlice::new(piece.get(skip..).unwrap_or_default());
        bytes += room.len();
        count += 1;
        skip = 0;
    }
    (count, bytes)
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.receive(&mut [IoSliceMut::new(buffer)], ReceiveFlags::default())
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.receive(buffers, ReceiveFlags::default())
    }
}

impl Write for &TcpStream {
    /// Returns when all of `data` is in the send buffer, unless non-blocking; the write timeout, an error or a signal
    /// may end it earlier.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(data)], SendFlags::default())
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(data, SendFlags::default())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_many_buffers_starts_at_the_right_byte() {
        let text: Vec<u8> = (0..100).collect();
        let data: Vec<IoSlice> = text.chunks(3).map(IoSlice::new).collect();
        for skip in 0..=100 {
            let mut pieces = [IoSlice::new(&[]); MAX_IOVECS];
            let (count, bytes) = rest(&data, skip, &mut pieces);
            let got: Vec<u8> =
                pieces[..count].iter().flat_map(|piece| piece.iter().copied()).collect();
            assert_eq!(got, &text[skip..skip + bytes], "{skip}");
            assert!(count == MAX_IOVECS || skip + bytes == 100, "{skip}");
        }
    }
}
