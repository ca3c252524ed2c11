//! Moving data over a connection.

use super::{
    endpoint::{Endpoint, Reading, Writing},
    find::Find,
    message::SendFlags,
    stream::{Inner, TcpStream, pass},
};
use crate::{
    inet::tcp::{Flow, Ready},
    napi::{Context, Direct, Pass, Waiter},
    scarce::{self, Level},
    socket::{
        options::errno,
        udp::ReceiveFlags,
        waiting::{Bed, Call, Something},
    },
};
use std::{
    any::Any,
    hint::cold_path,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    sync::Arc,
    time::Duration,
};

/// The most pieces handed down at once.
const PIECES: usize = 16;

impl TcpStream {
    /// As [`read`](Read::read), but the data stays.
    ///
    /// # Errors
    /// As [`read`](Read::read).
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = ReceiveFlags { peek: true, ..ReceiveFlags::default() };
        self.0.receive(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// As [`write`](Write::write), and says that more follows at once (`MSG_MORE`): a last, partial segment
    /// waits for it, for up to 200 ms.
    ///
    /// # Errors
    /// As [`write`](Write::write).
    pub fn write_more(&self, data: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(data)], SendFlags { more: true, ..SendFlags::default() })
    }
}

impl Inner {
    /// What is there, else busy poll, else sleep. 0 at the end of the stream.
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
        let at_once = flags.dont_wait || waiting.is_nonblocking();
        let bed = OnFlow { bed: Reading(endpoint), endpoint, flow: &flow, sends: false };
        let call = Receiving { bed: &bed, peek: flags.peek, find: Find::new(into) };
        let mut result = waiting.wait_unless(at_once, &bed, &waiting.reading, call);
        // Who waits no longer gets what is there (SO_RCVLOWAT in socket(7)).
        if result.is_err() && endpoint.ready().any(Ready::LITTLE) {
            let mut call = Receiving { bed: &bed, peek: flags.peek, find: Find::new(into) };
            result = call.take().unwrap_or(result);
        }
        // Who does not wait here may go on to an epoll and wait there, which does not ask us.
        if at_once || endpoint.is_watched() {
            bed.reader_waits();
        }
        result
    }

    /// Hands `data` down; a blocking call returns when all of it has found room.
    pub(super) fn send(&self, data: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let unconnected = || errno(self.take_error().unwrap_or(libc::EPIPE));
        let flow = self.connection().ok_or_else(unconnected)?;
        let endpoint = &*self.endpoint;
        let waiting = &endpoint.waiting;
        let len = data.iter().map(|piece| piece.len()).sum();
        let mut sent = 0;
        let at_once = flags.dont_wait || waiting.is_nonblocking();
        let bed = OnFlow { bed: Writing(endpoint), endpoint, flow: &flow, sends: true };
        let result = waiting.wait_unless(at_once, &bed, &waiting.writing, || {
            // An error that ends a call half done is the next call's.
            if sent > 0 && endpoint.ready().any(Ready::ERROR | Ready::HANGUP) {
                return Some(Ok(()));
            }
            let moment = endpoint.moment();
            match push(&flow, (data, len), flags, &mut sent) {
                Ok(()) if sent == len || at_once => {
                    if sent < len {
                        endpoint.passed(moment, Ready::WRITABLE);
                    }
                    Some(Ok(()))
                }
                Ok(()) => {
                    endpoint.passed(moment, Ready::WRITABLE);
                    None
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if sent == 0 && scarce::is(Level::Out) && flow.unacknowledged() == 0 {
                        return Some(Err(errno(libc::ENOBUFS)));
                    }
                    endpoint.passed(moment, Ready::WRITABLE);
                    (sent > 0 && at_once).then_some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            }
        });
        // Else what acknowledges a stream wakes the interrupt thread as long as its sender finds room.
        if endpoint.pours(sent) {
            waiting.look(&bed);
        }
        match result {
            Err(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }
}

/// Where those wait who move data over a connection.
struct OnFlow<'a, B> {
    bed: B,
    endpoint: &'a Endpoint,
    flow: &'a Flow,
    /// It is room that is waited for.
    sends: bool,
}

/// Who polls this long is not in the middle of a burst: an acknowledgment that was left to him goes out.
const QUIET: Duration = Duration::from_micros(10);

/// The reader waits for more: sends the acknowledgment that was left to his answer, if one was and nothing has carried
/// it.
#[inline]
pub(super) fn reader_waits(endpoint: &Endpoint, flow: &Flow) {
    if endpoint.take_ack_left() {
        let mut pass = pass();
        flow.reader_waits(&mut pass);
        pass.wake.wake_all();
    }
}

impl<B> OnFlow<'_, B> {
    #[inline]
    fn reader_waits(&self) {
        reader_waits(self.endpoint, self.flow);
    }
}

impl<B: Bed> Bed for OnFlow<'_, B> {
    #[inline]
    fn is_ready(&self) -> bool {
        self.bed.is_ready()
    }

    #[inline]
    fn looked(&self, found: usize, polled: Duration) -> bool {
        if polled >= QUIET {
            cold_path();
            self.reader_waits();
        }
        self.sends && found > 0 && self.flow.has_room()
    }

    /// A sender's polling finds the acknowledgments that make room.
    #[inline]
    fn is_moved_by_polling(&self) -> bool {
        self.sends
    }

    #[inline]
    fn poller(&self) -> usize {
        self.bed.poller()
    }

    #[inline]
    fn likely(&self) -> Option<&(dyn Any + Send + Sync)> {
        Some(self.flow.likely())
    }

    #[inline]
    fn context(&self) -> Option<Arc<Context>> {
        self.bed.context()
    }

    fn join(&self, waiter: &Arc<Waiter>) -> Result<Option<Arc<Context>>, Something> {
        self.reader_waits();
        self.bed.join(waiter)
    }

    fn leave(&self, waiter: &Arc<Waiter>) {
        self.bed.leave(waiter);
    }
}

/// A receive.
struct Receiving<'a, 'b> {
    bed: &'a OnFlow<'a, Reading<'a>>,
    peek: bool,
    find: Find<'a, 'b>,
}

impl Receiving<'_, '_> {
    /// What is there now, however little.
    #[inline]
    fn take(&mut self) -> Option<io::Result<usize>> {
        let endpoint = self.bed.endpoint;
        let moment = endpoint.moment();
        let mut pass = pass();
        let result = self.bed.flow.recv(self.find.into, self.peek, &mut pass);
        pass.wake.wake_all();
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                endpoint.passed(moment, Ready::READABLE | Ready::LITTLE | Ready::URGENT);
                None
            }
            done => Some(done),
        }
    }

    /// Whether less than `SO_RCVLOWAT` is there, and still all that is asked for.
    #[cold]
    fn is_enough(&self) -> bool {
        self.bed.flow.unread() >= self.find.room()
    }
}

impl Call for Receiving<'_, '_> {
    type Output = usize;

    #[inline]
    fn attempt(&mut self) -> Option<io::Result<usize>> {
        if let Some(found) = self.find.take() {
            return Some(Ok(found));
        }
        let ready = self.bed.endpoint.ready();
        // An urgent byte alone is passed over.
        if ready.any(Ready::READABLE | Ready::URGENT)
            || ready.any(Ready::LITTLE) && self.is_enough()
        {
            return self.take();
        }
        None
    }

    #[inline]
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        if self.peek { None } else { Some(&mut self.find) }
    }
}

/// Hands down what of `data`, `len` bytes in all, is after the first `sent` bytes, until there is no room; `sent`
/// grows. `Ok` also if only a part had room.
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
        // What was sent of it makes room again, where little may wait to be sent.
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
        let mut pieces = [IoSlice::new(&[]); PIECES];
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

/// Writes to `pieces` what of `data` is after its first `skip` bytes, as far as there is room: how many pieces
/// and bytes.
fn rest<'a>(
    data: &'a [IoSlice<'_>],
    mut skip: usize,
    pieces: &mut [IoSlice<'a>; PIECES],
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
    /// Returns when all of `data` has found room, unless non-blocking; the write timeout, an error or a signal
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
    fn the_rest_of_many_pieces_begins_in_the_right_one() {
        let text: Vec<u8> = (0..100).collect();
        let data: Vec<IoSlice> = text.chunks(3).map(IoSlice::new).collect();
        for skip in 0..=100 {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let (count, bytes) = rest(&data, skip, &mut pieces);
            let got: Vec<u8> =
                pieces[..count].iter().flat_map(|piece| piece.iter().copied()).collect();
            assert_eq!(got, &text[skip..skip + bytes], "{skip}");
            assert!(count == PIECES || skip + bytes == 100, "{skip}");
        }
    }
}
