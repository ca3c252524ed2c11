//! Writes the frames of a NIC, in both directions, to a capture file for tcpdump and Wireshark: pcap with nanosecond
//! time stamps (draft-ietf-opsawg-pcap), link type Ethernet.
//!
//! Owns the file, a bounded buffer in front of it and the thread that writes the buffer to the file. The data
//! path only copies into the buffer: a slow or full disk loses frames in the capture, never on the NIC.

use super::{Frame, Info, Nic, Queue, RingFull, RxQueue, Steering, TxQueue};
use crate::{
    stderr,
    sync::{Mutex, PoisonError, lock},
    thread,
    time::{self, Instant},
    wire::Data,
};
use std::{
    fmt,
    fs::File,
    io::{self, Write},
    mem,
    path::Path,
    sync::{
        Arc, Condvar,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

/// The size of a buffer in bytes. There are two: one fills while the other is written.
const BUFFER: usize = 1 << 20;
/// How long frames are gathered before they are written.
const GATHER: Duration = Duration::from_millis(50);
/// Magic number of a file with nanoseconds, in the byte order we write: little endian.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
/// The longest frame that a reader must expect: tcpdump's value.
const SNAPLEN: u32 = 262_144;

/// A NIC whose frames are captured.
///
/// Time stamps are taken when a frame is polled or pushed. A checksum that the link will complete is incomplete in the
/// capture of a transmitted frame.
///
/// The file is about 50 ms behind. Dropping the NIC and its queues completes it, and waits for the disk.
///
/// ```
/// use busypoll_stack::nic::{Nic, cable, pcap::Pcap};
/// let (a, _b) = cable::pair(cable::Config::default())?;
/// # let path = std::env::temp_dir().join(format!("busypoll-doc-{}.pcap", std::process::id()));
/// let mut a = Pcap::create(Box::new(a), &path)?;
/// let mut queue = a.open(0)?;
/// queue.tx.push(60, false, &mut |frame| frame.fill(0)).map_err(|_| "the ring is full")?;
/// queue.tx.flush();
/// drop((a, queue));
/// assert_eq!(std::fs::metadata(&path)?.len(), 24 + 16 + 60);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pcap {
    inner: Box<dyn Nic>,
    capture: Capture,
}

/// A capture file, which queues of any number of NICs write to.
#[derive(Clone)]
pub struct Capture {
    recorder: Arc<Recorder>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("counters", &self.recorder.shared.counters).finish()
    }
}

/// How complete a capture is.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Frames written to the file.
    pub captured: AtomicU64,
    /// Frames that are not in the file: the buffer was full, or writing failed.
    pub missed: AtomicU64,
}

impl Pcap {
    /// Captures the frames of `inner` in a new file at `path`.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(inner: Box<dyn Nic>, path: impl AsRef<Path>) -> io::Result<Pcap> {
        let path = path.as_ref();
        let because = |error: io::Error| {
            let line = format!("cannot capture to {}: {error}", path.display());
            io::Error::new(error.kind(), line)
        };
        let file = File::create(path).map_err(because)?;
        Pcap::to(inner, file, &path.display().to_string()).map_err(because)
    }

    /// Captures the frames of `inner` in anything that can be written to, such as the pipe to a running
    /// tcpdump. `name` identifies it in the message if writing fails.
    ///
    /// # Errors
    /// The file header cannot be written.
    pub fn to(
        inner: Box<dyn Nic>,
        file: impl Write + Send + 'static,
        name: &str,
    ) -> io::Result<Pcap> {
        Ok(Pcap { inner, capture: Capture::to(file, name)? })
    }

    /// How complete the capture is; goes on counting after the NIC is handed to a host.
    pub fn counters(&self) -> Arc<Counters> {
        self.capture.recorder.shared.counters.clone()
    }
}

impl Capture {
    /// A capture in anything that can be written to. `name` identifies it in the message if writing fails.
    ///
    /// # Errors
    /// The file header cannot be written.
    pub fn to(mut file: impl Write + Send + 'static, name: &str) -> io::Result<Capture> {
        file.write_all(&header())?;
        file.flush()?;
        Capture::go_on(file, name)
    }

    /// As [`to`](Capture::to), in a file that has its header.
    ///
    /// # Errors
    /// No thread left.
    pub fn go_on(mut file: impl Write + Send + 'static, name: &str) -> io::Result<Capture> {
        let bytes = Vec::with_capacity(BUFFER);
        let buffer = Buffer { bytes, frames: 0, state: State::Open, hurries: false };
        let shared = Arc::new(Shared {
            buffer: Mutex::new(buffer),
            work: Condvar::new(),
            written: Condvar::new(),
            counters: Arc::default(),
            start: (time::now(), since_1970()),
        });
        let writer = {
            let (shared, name) = (shared.clone(), name.to_owned());
            thread::spawn("pcap", move || shared.write_to(&mut file, &name))?
        };
        Ok(Capture { recorder: Arc::new(Recorder { shared, writer: Some(writer) }) })
    }

    /// `queue` with its frames captured.
    #[must_use]
    pub fn of(&self, queue: Queue) -> Queue {
        let Queue { rx, tx, interrupt } = queue;
        Queue {
            rx: Box::new(Rx { inner: rx, recorder: self.recorder.clone() }),
            tx: Box::new(Tx { inner: tx, recorder: self.recorder.clone() }),
            interrupt,
        }
    }

    /// Waits until all frames so far are in the file, for this time at most.
    pub fn flush(&self, most: Duration) {
        let shared = &*self.recorder.shared;
        let mut buffer = lock(&shared.buffer);
        buffer.hurries = true;
        shared.work.notify_one();
        let under_way = |buffer: &mut Buffer| buffer.hurries && buffer.state == State::Open;
        drop(shared.written.wait_timeout_while(buffer, most, under_way));
    }
}

impl Nic for Pcap {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        Ok(self.capture.of(self.inner.open(index)?))
    }

    fn steering(&self) -> Option<Arc<dyn Steering>> {
        self.inner.steering()
    }
}

struct Rx {
    inner: Box<dyn RxQueue>,
    recorder: Arc<Recorder>,
}

impl RxQueue for Rx {
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Frame<'_>)) -> usize {
        self.inner.poll(budget, &mut |frame| {
            self.recorder.shared.record(frame.data());
            sink(frame);
        })
    }
}

struct Tx {
    inner: Box<dyn TxQueue>,
    recorder: Arc<Recorder>,
}

impl TxQueue for Tx {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        self.inner.push(len, partial, &mut |frame| {
            fill(frame);
            self.recorder.shared.record(Data::from(&*frame));
        })
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn has_room(&mut self, frames: usize) -> bool {
        self.inner.has_room(frames)
    }
}

/// The capture, shared by the NIC and all halves of its queues. Dropping the last one completes the file.
struct Recorder {
    shared: Arc<Shared>,
    writer: Option<thread::Thread>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut buffer = lock(&self.shared.buffer);
        if buffer.state == State::Open {
            buffer.state = State::Closing;
        }
        drop(buffer);
        self.shared.work.notify_one();
        if let Some(writer) = self.writer.take() {
            writer.join();
        }
    }
}

/// State shared by the data path and the writer.
struct Shared {
    buffer: Mutex<Buffer>,
    work: Condvar,
    /// What was gathered is in the file.
    written: Condvar,
    counters: Arc<Counters>,
    /// The same moment on our clock and as time since 1970.
    start: (Instant, Duration),
}

struct Buffer {
    bytes: Vec<u8>,
    /// Frames in it.
    frames: u64,
    state: State,
    /// A thread waits until they are written.
    hurries: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The NIC and its queues are dropped: write the rest.
    Closing,
    /// Writing failed.
    Stopped,
}

impl Shared {
    /// Copies a frame into the buffer if there is room.
    fn record(&self, frame: Data<'_>) {
        let mut buffer = lock(&self.buffer);
        let before = buffer.bytes.len();
        let after = before + RECORD + frame.len();
        if buffer.state == State::Stopped || after > BUFFER {
            self.counters.missed.fetch_add(1, Relaxed);
            return;
        }
        // Under the lock, so that the file is in time order.
        let (start, wall) = self.start;
        buffer.bytes.extend_from_slice(&record(wall + time::now().since(start), frame.len()));
        frame.pieces().for_each(|piece| buffer.bytes.extend_from_slice(piece));
        buffer.frames += 1;
        // The writer sleeps until the first frame, then gathers until the buffer is half full. In between it needs no
        // wake-up.
        if before == 0 || (before < BUFFER / 2 && after >= BUFFER / 2) {
            drop(buffer);
            self.work.notify_one();
        }
    }

    /// The writer: empties the buffer into `file` until the capture ends or writing fails.
    fn write_to(&self, file: &mut impl Write, name: &str) {
        let mut full = Vec::with_capacity(BUFFER);
        let recovered = PoisonError::into_inner;
        loop {
            let buffer = lock(&self.buffer);
            let idle = |buffer: &mut Buffer| {
                buffer.bytes.is_empty() && buffer.state == State::Open && !buffer.hurries
            };
            let buffer = self.work.wait_while(buffer, idle).unwrap_or_else(recovered);
            let gathers = |buffer: &mut Buffer| {
                buffer.bytes.len() < BUFFER / 2 && buffer.state == State::Open && !buffer.hurries
            };
            let (mut buffer, _) = self
                .work
                .wait_timeout_while(buffer, GATHER, gathers)
                .unwrap_or_else(|error| error.into_inner());
            mem::swap(&mut buffer.bytes, &mut full);
            let frames = mem::take(&mut buffer.frames);
            let (state, hurries) = (buffer.state, buffer.hurries);
            drop(buffer);

            match file.write_all(&full).and_then(|()| file.flush()) {
                Ok(()) => self.counters.captured.fetch_add(frames, Relaxed),
                Err(error) => {
                    self.counters.missed.fetch_add(frames, Relaxed);
                    let captured = self.counters.captured.load(Relaxed);
                    return self.stop(format_args!(
                        "the capture to {name} ended after {captured} frames: {error}; \
                         the NIC works on without it"
                    ));
                }
            };
            full.clear();
            if hurries {
                lock(&self.buffer).hurries = false;
                self.written.notify_all();
            }
            if state != State::Open {
                return;
            }
        }
    }

    /// Ends the capture and reports it, once.
    fn stop(&self, why: fmt::Arguments<'_>) {
        let mut buffer = lock(&self.buffer);
        buffer.state = State::Stopped;
        self.counters.missed.fetch_add(buffer.frames, Relaxed);
        buffer.bytes = Vec::new();
        drop(buffer);
        self.written.notify_all();
        // The counters show it, too.
        stderr::print(why);
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The file header.
fn header() -> [u8; 24] {
    let mut header = [0; 24];
    header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&2u16.to_le_bytes()); // version 2.4
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    header[16..20].copy_from_slice(&SNAPLEN.to_le_bytes());
    header[20..24].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
    header
}

/// Bytes of a record's header.
const RECORD: usize = 16;

/// The header of a record. The format has 32 bits of seconds: it ends in 2106.
fn record(time: Duration, len: usize) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[0..4].copy_from_slice(&(time.as_secs() as u32).to_le_bytes());
    record[4..8].copy_from_slice(&time.subsec_nanos().to_le_bytes());
    record[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    record[12..16].copy_from_slice(&(len as u32).to_le_bytes());
    record
}
