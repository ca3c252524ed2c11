//! The capture, on a real cable, read back from the file.

use busypoll_stack::nic::{Nic, Queue, cable, pcap::Pcap};
use std::{
    env, fs,
    io::Read,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{self, Command},
    sync::{Mutex, atomic::Ordering::Relaxed, mpsc},
    time::{Duration, SystemTime},
};

/// A file that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(env::temp_dir().join(format!("busypoll-{}-{name}.pcap", process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Reads a capture: time since 1970 and bytes of every frame.
fn parse(file: &[u8]) -> Vec<(Duration, Vec<u8>)> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let (header, mut rest) = file.split_at(24);
    assert_eq!(word(header), 0xa1b2_3c4d, "nanosecond pcap");
    assert_eq!(header[4..8], [2, 0, 4, 0], "version 2.4");
    assert_eq!(word(&header[20..]), 1, "Ethernet");
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (record, bytes) = rest.split_at(16);
        let len = word(&record[8..]) as usize;
        assert_eq!(len, word(&record[12..]) as usize, "whole frames");
        let time = Duration::new(word(record).into(), word(&record[4..]));
        assert!(word(&record[4..]) < 1_000_000_000);
        frames.push((time, bytes[..len].to_vec()));
        rest = &bytes[len..];
    }
    frames
}

fn send(queue: &mut Queue, bytes: &[u8]) {
    queue.tx.push(bytes.len(), false, &mut |frame| frame.copy_from_slice(bytes)).unwrap();
    queue.tx.flush();
}

fn cable() -> (Box<dyn Nic>, Queue) {
    let (a, mut b) = cable::pair(cable::Config::default()).unwrap();
    (Box::new(a), b.open(0).unwrap())
}

#[test]
fn both_directions_are_in_the_file_in_order_with_the_time_of_day() {
    let file = Scratch::new("both");
    let (nic, mut far) = cable();
    let mut nic = Pcap::create(nic, &file.0).unwrap();
    let counters = nic.counters();
    let mut queue = nic.open(0).unwrap();
    let wall = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let before = wall();
    let mut expected = Vec::new();
    for number in 0..500u16 {
        let frame = vec![number as u8; 60 + usize::from(number)];
        let (from, to) =
            if number % 2 == 0 { (&mut queue, &mut far) } else { (&mut far, &mut queue) };
        send(from, &frame);
        assert_eq!(to.rx.poll(8, &mut |got| assert_eq!(got.bytes, frame)), 1);
        expected.push(frame);
    }
    let after = wall();
    drop((nic, queue));
    let frames = parse(&fs::read(&file.0).unwrap());
    assert!(frames.iter().map(|(_, bytes)| bytes).eq(&expected));
    assert!(frames.is_sorted_by_key(|(time, _)| *time));
    // Two clocks, read separately: allow a second.
    let grace = Duration::from_secs(1);
    assert!(frames.iter().all(|(time, _)| (before - grace..after + grace).contains(time)));
    assert_eq!((counters.captured.load(Relaxed), counters.missed.load(Relaxed)), (500, 0));
}

#[test]
fn tcpdump_reads_it() {
    busypoll_lab::needs!(program "tcpdump");
    let file = Scratch::new("tcpdump");
    let (nic, _far) = cable();
    let mut nic = Pcap::create(nic, &file.0).unwrap();
    let mut queue = nic.open(0).unwrap();
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
    arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    send(&mut queue, &arp);
    drop((nic, queue));
    let output = Command::new("tcpdump").args(["-n", "-r"]).arg(&file.0).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Request who-has 10.0.0.2 tell 10.0.0.1"), "{text}");
}

#[test]
fn a_frame_that_was_refused_is_not_in_the_file() {
    let file = Scratch::new("refused");
    let (nic, _far) = cable();
    let mut nic = Pcap::create(nic, &file.0).unwrap();
    let mut queue = nic.open(0).unwrap();
    let mut taken = 0;
    while queue.tx.push(60, false, &mut |frame| frame.fill(7)).is_ok() {
        taken += 1;
    }
    drop((nic, queue));
    assert_eq!(parse(&fs::read(&file.0).unwrap()).len(), taken);
}

#[test]
fn a_failed_capture_ends_and_the_nic_works_on() {
    let (nic, mut far) = cable();
    let (mut reader, writer) = UnixStream::pair().unwrap();
    let mut nic = Pcap::to(nic, writer, "a socket whose reader leaves").unwrap();
    let counters = nic.counters();
    let mut queue = nic.open(0).unwrap();
    reader.read_exact(&mut [0; 24]).unwrap();
    drop(reader);
    let mut sent = 0;
    let mut round = || {
        send(&mut queue, &[7; 60]);
        assert_eq!(far.rx.poll(8, &mut |_| ()), 1);
        sent += 1;
    };
    while counters.missed.load(Relaxed) == 0 {
        round();
    }
    for _ in 0..1000 {
        round();
    }
    drop((nic, queue));
    assert_eq!(counters.captured.load(Relaxed), 0);
    assert_eq!(counters.missed.load(Relaxed), sent);
}

/// A disk that hangs until it is released.
struct Hanging {
    go: Mutex<mpsc::Receiver<()>>,
    header: bool,
}

impl std::io::Write for Hanging {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if std::mem::replace(&mut self.header, false) {
            return Ok(bytes.len());
        }
        // An error means that the other end released it for good.
        let _ = self.go.lock().unwrap().recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_hanging_disk_delays_nothing_and_costs_bounded_memory() {
    let (nic, mut far) = cable();
    let (let_go, go) = mpsc::channel();
    let mut nic =
        Pcap::to(nic, Hanging { go: Mutex::new(go), header: true }, "a disk that hangs").unwrap();
    let counters = nic.counters();
    let mut queue = nic.open(0).unwrap();
    for _ in 0..10_000 {
        send(&mut queue, &[7; 1500]);
        assert_eq!(far.rx.poll(8, &mut |_| ()), 1);
    }
    // Two buffers of 1 MiB hold 1382 such frames with their headers.
    let missed = counters.missed.load(Relaxed);
    assert!((10_000 - 1382..10_000).contains(&missed), "{missed} missed");
    drop(let_go);
    drop((nic, queue));
    assert_eq!(counters.captured.load(Relaxed) + missed, 10_000);
}

#[test]
fn a_file_that_cannot_be_created_is_named_in_the_error() {
    let (nic, _far) = cable();
    let line = Pcap::create(nic, "/nowhere/at.pcap").err().unwrap().to_string();
    assert!(line.contains("cannot capture to /nowhere/at.pcap: "), "{line}");
    let (nic, _far) = cable();
    let line = Pcap::create(nic, "/dev/full").err().unwrap().to_string();
    assert!(line.contains("/dev/full: No space left"), "{line}");
}
