//! Journals whose process is killed, and a full file system.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use busypoll_journal::{Error, Journal, Kind, Lock, read};

const KIND: Kind = Kind { name: "test", version: 1 };

/// A directory that is removed after the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("busypoll-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts this test program with `child` below and one argument.
fn start(dir: &Path, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("JOURNAL_DIR", dir)
        .env("JOURNAL_CHILD", what)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The child process: `forever` appends 1, 2, 3 … and reports each when it is on the disk; `hold` takes
/// the lock and waits.
#[test]
#[ignore = "run by the other tests as a process of its own"]
fn child() {
    let dir = PathBuf::from(std::env::var_os("JOURNAL_DIR").unwrap());
    let mut journal = Journal::<u64>::open(&dir, KIND).unwrap();
    println!("\nopen");
    if std::env::var("JOURNAL_CHILD").unwrap() == "hold" {
        std::thread::sleep(std::time::Duration::from_secs(60));
        return;
    }
    let next = journal.entries().last().map_or(1, |n| n + 1);
    for n in next.. {
        journal.append(&[n]).unwrap();
        println!("{n}");
    }
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok)
}

#[test]
fn entries_reported_as_written_survive_kill_9() {
    let dir = Dir::new("killed");
    let mut last = 0;
    for round in 0..40u64 {
        let mut writer = start(&dir.0, "forever");
        let mut lines = lines(&mut writer);
        assert!(lines.any(|l| l == "open"));
        // A different number of complete appends in each round; the kill hits at any point of the next one.
        let mut reported = last;
        for line in lines.by_ref().take((round % 7) as usize) {
            reported = line.parse().unwrap();
        }
        writer.kill().unwrap();
        // Lines that it printed before the kill count as well.
        reported = lines.filter_map(|l| l.parse().ok()).last().unwrap_or(reported);
        writer.wait().unwrap();
        let entries = read::<u64>(&dir.0, KIND).unwrap();
        let expected: Vec<u64> = (1..=entries.len() as u64).collect();
        assert_eq!(entries, expected, "no entry is lost, doubled or made up");
        let found = entries.len() as u64;
        assert!(found == reported || found == reported + 1, "{found} found, {reported} reported");
        last = found;
    }
    assert!(last > 40);
}

#[test]
fn a_second_taker_gets_the_holders_pid_and_a_dead_holder_does_not_count() {
    let dir = Dir::new("lock");
    let mut holder = start(&dir.0, "hold");
    assert!(lines(&mut holder).any(|l| l == "open"));
    match Journal::<u64>::open(&dir.0, KIND) {
        Err(e @ Error::Locked { pid, .. }) => {
            assert_eq!(pid, Some(holder.id()));
            let text = e.to_string();
            assert!(text.contains(&format!("PID {} (", holder.id())), "{text}");
            assert!(!text.contains('\n'));
        }
        other => panic!("{other:?}"),
    }
    // Another journal is independent.
    drop(Lock::take(&dir.0, "other").unwrap());
    holder.kill().unwrap();
    holder.wait().unwrap();
    let journal = Journal::<u64>::open(&dir.0, KIND).unwrap();
    let ours = Journal::<u64>::open(&dir.0, KIND).unwrap_err();
    assert!(matches!(ours, Error::Locked { pid: Some(pid), .. } if pid == std::process::id()));
    drop(journal);
    Journal::<u64>::open(&dir.0, KIND).unwrap();
}

#[test]
fn concurrent_takers_never_hold_the_lock_together() {
    let dir = Dir::new("takers");
    let holders = std::sync::atomic::AtomicU32::new(0);
    let held = std::sync::atomic::AtomicU32::new(0);
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while held.load(order) < 300 {
                    if let Ok(lock) = Lock::take(&dir.0, "test") {
                        assert_eq!(holders.fetch_add(1, order), 0);
                        std::thread::yield_now();
                        holders.fetch_sub(1, order);
                        held.fetch_add(1, order);
                        drop(lock);
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_journal_cut_at_any_byte_can_be_continued() {
    let dir = Dir::new("cut");
    let file = dir.0.join("test.journal");
    let mut journal = Journal::<u64>::open(&dir.0, KIND).unwrap();
    journal.append(&[1, 2]).unwrap();
    journal.append(&[3]).unwrap();
    drop(journal);
    let whole = fs::read(&file).unwrap();
    for cut in 0..whole.len() {
        fs::write(&file, &whole[..cut]).unwrap();
        let mut journal = Journal::<u64>::open(&dir.0, KIND).unwrap();
        let mut expected = journal.entries().to_vec();
        assert!([&[][..], &[1, 2]].contains(&&expected[..]), "cut at {cut}: {expected:?}");
        journal.append(&[4]).unwrap();
        expected.push(4);
        assert_eq!(journal.entries(), expected);
        drop(journal);
        assert_eq!(read::<u64>(&dir.0, KIND).unwrap(), expected, "cut at {cut}");
    }
    Journal::<u64>::open(&dir.0, KIND).unwrap().finish().unwrap();
    assert!(!file.exists());
    assert!(read::<u64>(&dir.0, KIND).unwrap().is_empty());
}

#[test]
fn a_full_disk_leaves_the_journal_unchanged() {
    busypoll_lab::needs_root!();
    busypoll_lab::needs!(program "unshare", program "mount");
    let dir = Dir::new("full");
    // A file system of one page, in a mount namespace that ends with the child.
    let script =
        format!("mount -t tmpfs -o size=4k,nr_inodes=4 none {0} && exec \"$@\"", dir.0.display());
    let exe = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(exe)
        .args(["--exact", "child_on_a_full_disk", "--ignored", "--nocapture"])
        .env("JOURNAL_DIR", &dir.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("was full"), "{output:?}");
}

#[test]
#[ignore = "run by the test above in a mount namespace of its own"]
fn child_on_a_full_disk() {
    let dir = PathBuf::from(std::env::var_os("JOURNAL_DIR").unwrap());
    let mut journal = Journal::<String>::open(&dir, KIND).unwrap();
    let error = loop {
        let before = fs::read(journal.path()).unwrap_or_default();
        if let Err(e) = journal.append(&["x".repeat(300)]) {
            assert_eq!(fs::read(journal.path()).unwrap_or_default(), before);
            break e.to_string();
        }
    };
    assert!(error.contains("no space left") && error.contains("nothing was changed"), "{error}");
    let entries = journal.entries().to_vec();
    drop(journal);
    assert_eq!(read::<String>(&dir, KIND).unwrap(), entries);
    // Finishing needs no space.
    Journal::<String>::open(&dir, KIND).unwrap().finish().unwrap();
    println!("was full");
}
