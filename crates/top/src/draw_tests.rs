use std::time::{Duration, UNIX_EPOCH};

use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;

use super::*;
use crate::figures::{NapiRow, Next, Packets, Percentiles, Plane, ProcessRow, ThreadRow};
use crate::keys::Key;
use crate::sample::NotSeen;
use crate::table::View;

fn packets(busy_poll: u64, interrupt: u64) -> Option<Packets> {
    Some(Packets { all: busy_poll + interrupt, busy_poll, interrupt, kernel_thread: 0, link: 0 })
}

fn process(pid: u32, program: &str, busy_poll: u64, interrupt: u64) -> ProcessRow {
    ProcessRow {
        pid,
        program: program.into(),
        plane: Plane::Kernel,
        packets: packets(busy_poll, interrupt),
        empty_polls: Some(250_000),
        avoided: Some(busy_poll),
        cpu_share: Some(0.97),
        polling_share: Some(0.8),
        vain_share: Some(0.12),
        waits: Some(100),
        wait_us: Percentiles { p50: Some(23.4), p99: Some(1840.0) },
        delay_us: Percentiles { p50: Some(2.1), p99: Some(31.0) },
        next: None,
    }
}

fn figures() -> Figures {
    let napi = NapiRow {
        netns: None,
        device: "eth1".into(),
        napi_id: 8193,
        plane: Plane::Kernel,
        link_pid: None,
        packets: packets(40_000, 2_000),
        empty_polls: Some(400_000),
        interrupts: Some(150),
        avoided: Some(38_000),
        wakeups: Some(4_000),
        next: None,
    };
    let mut redis = process(4639, "redis-server", 40_000, 1_000);
    redis.next = Some(Next {
        code: "BP-SOCK-IN-EPOLL",
        subject: "redis-server[4639] fd 8".into(),
        what: "is waited for in epoll 5, which does not poll".into(),
        command: "busypoll doctor --pid 4639".into(),
    });
    let stack = ProcessRow {
        plane: Plane::Stack,
        vain_share: None,
        waits: None,
        wait_us: Percentiles::default(),
        delay_us: Percentiles::default(),
        ..process(77, "feed-handler", 900, 100)
    };
    let thread = ThreadRow {
        pid: 4639,
        tid: 4640,
        name: "io_thd_1".into(),
        call: Some("epoll"),
        waits: 12_000,
        slept: 6_000,
        wait_us: Percentiles { p50: Some(23.4), p99: Some(1840.0) },
        delay_us: Percentiles { p50: Some(2.1), p99: Some(31.0) },
        polling_share: 0.8,
        vain_share: 0.1,
        polled_packets: Some(40_000),
        empty_polls: Some(250_000),
    };
    Figures {
        time: UNIX_EPOCH + Duration::from_secs(1_795_717_464),
        seconds: 2.0,
        machine: MachineRow { cpus: 2, busy_share: 0.5, spinning: 1, ..MachineRow::default() },
        napis: vec![napi],
        processes: vec![stack, redis],
        threads: vec![thread],
        not_seen: Vec::new(),
    }
}

/// The lines that a terminal of this size shows.
fn shown(width: u16, height: u16, state: &State, figures: Option<&Figures>) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame.buffer_mut(), state, figures)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn state(view: View) -> State {
    State::new(view, String::new())
}

#[test]
fn processes_stand_on_80_by_24_with_what_to_do_next() {
    let lines = shown(80, 24, &state(View::Process), Some(&figures()));
    assert!(lines[0].starts_with("18:24:24 UTC  2 CPUs: 1 polled, 50% busy"), "{lines:#?}");
    assert!(lines[1].starts_with("21000 packets/s: 95% busy poll, 4% softirq"), "{lines:#?}");
    assert_eq!(lines[2].trim(), "1 napi [2 process] 3 thread");
    let words: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(words[..4], ["PID", "PROGRAM", "PKTv", "POLL%"], "{lines:#?}");
    assert_eq!(words.last(), Some(&"NEXT"));
    // By packets: redis first.
    let words: Vec<&str> = lines[4].split_whitespace().collect();
    assert_eq!(words[..4], ["4639", "redis-server", "20500", "98"], "{lines:#?}");
    assert!(words.contains(&"23us") && words.contains(&"1.8ms"), "{lines:#?}");
    assert!(lines[4].ends_with("SOCK-IN-EPOLL") || lines[4].contains("SOCK-IN"), "{lines:#?}");
    // A wait on the stack plane was not seen, which is no zero.
    assert!(lines[5].contains("feed-handler") && lines[5].contains(" - "), "{lines:#?}");
    assert!(lines[22].starts_with("BP-SOCK-IN-EPOLL: is waited for in epoll 5"), "{lines:#?}");
    assert!(lines[23].starts_with("q quit  1-3 view"), "{lines:#?}");
}

#[test]
fn each_view_stands_on_smaller_terminals() {
    let figures = figures();
    for view in View::ALL {
        for (width, height) in [(60, 24), (40, 10), (20, 5), (1, 1), (200, 60)] {
            let lines = shown(width, height, &state(view), Some(&figures));
            assert!(lines.iter().all(|line| line.chars().count() <= usize::from(width)));
            if width >= 40 {
                assert!(lines[4].contains("eth1") || lines[4].contains("4639"), "{lines:#?}");
            }
        }
    }
    let lines = shown(80, 24, &state(View::Thread), Some(&figures));
    assert!(lines[4].contains("io_thd_1") && lines[4].contains("23us"), "{lines:#?}");
    let lines = shown(80, 24, &state(View::Napi), Some(&figures));
    assert!(lines[4].contains("eth1") && lines[4].contains("8193"), "{lines:#?}");
}

#[test]
fn a_filter_a_pause_and_what_is_not_seen_are_named() {
    let mut figures = figures();
    figures.not_seen = vec![
        NotSeen { what: "how threads wait", why: "it needs CAP_BPF".into() },
        NotSeen { what: "packets by process", why: "it needs CAP_NET_ADMIN".into() },
    ];
    let mut state = state(View::Process);
    for key in [Key::Char('/'), Key::Char('f'), Key::Char('E'), Key::Char('e')] {
        state.press(key, 2, 10);
    }
    let lines = shown(80, 24, &state, Some(&figures));
    assert!(lines[23].starts_with("only rows with: fEe_"), "{lines:#?}");
    assert!(lines[4].contains("feed-handler") && lines[5].is_empty(), "{lines:#?}");
    assert_eq!(lines[1], "not seen: how threads wait (and 1 more): it needs CAP_BPF");
    state.press(Key::Enter, 1, 10);
    state.press(Key::Char('p'), 1, 10);
    let lines = shown(80, 24, &state, Some(&figures));
    assert!(lines[2].contains("PAUSED  only \"fEe\""), "{lines:#?}");
    state.press(Key::Char('?'), 1, 10);
    let lines = shown(80, 24, &state, Some(&figures));
    assert!(lines[4].starts_with("P        plane"), "{lines:#?}");
    assert!(shown(80, 24, &state, None)[0].contains("counting"));
}

#[test]
fn rows_beyond_the_page_are_reached() {
    let mut figures = figures();
    figures.processes =
        (1..100).map(|pid| process(pid, "many", 1000 - u64::from(pid), 0)).collect();
    let mut state = state(View::Process);
    for _ in 0..30 {
        state.press(Key::Down, 99, page(24));
    }
    let lines = shown(80, 24, &state, Some(&figures));
    assert!(lines.iter().any(|line| line.trim_start().starts_with("31 many")), "{lines:#?}");
    state.press(Key::End, 99, page(24));
    let lines = shown(80, 24, &state, Some(&figures));
    assert!(lines.iter().any(|line| line.trim_start().starts_with("99 many")), "{lines:#?}");
}
