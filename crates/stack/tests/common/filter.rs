//! A NIC that sends only the frames that a test accepts; the others are lost.

use busypoll_stack::nic::{Info, Nic, Queue, RingFull, TxQueue};
use std::{io, sync::Arc};

/// Whether a frame is sent.
pub type Verdict = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

pub struct Filter<N> {
    inner: N,
    verdict: Verdict,
}

impl<N: Nic> Filter<N> {
    pub fn new(inner: N, verdict: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Filter<N> {
        Filter { inner, verdict: Arc::new(verdict) }
    }
}

impl<N: Nic> Nic for Filter<N> {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        let Queue { rx, tx, interrupt } = self.inner.open(index)?;
        let tx = Box::new(Tx { inner: tx, verdict: self.verdict.clone(), frame: Vec::new() });
        Ok(Queue { rx, tx, interrupt })
    }
}

struct Tx {
    inner: Box<dyn TxQueue>,
    verdict: Verdict,
    frame: Vec<u8>,
}

impl TxQueue for Tx {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        self.frame.resize(len, 0);
        fill(&mut self.frame);
        if !(self.verdict)(&self.frame) {
            return Ok(());
        }
        self.inner.push(len, partial, &mut |room| room.copy_from_slice(&self.frame))
    }

    fn flush(&mut self) {
        self.inner.flush();
    }
}

/// The payload of a TCP segment over IPv4 in a frame; empty for any other frame.
pub fn tcp_payload(frame: &[u8]) -> &[u8] {
    if frame.get(12..14) != Some(&[8, 0]) || frame.get(23) != Some(&6) {
        return &[];
    }
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let header = 14 + usize::from(frame[14] & 15) * 4;
    let data = header + usize::from(frame[header + 12] >> 4) * 4;
    frame.get(data..14 + total).unwrap_or_default()
}
