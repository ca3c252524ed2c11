//! What is to be seen of connections over memory, which `tcpdump -i lo` does not see: `ss` marks them at both ends, `top`
//! and the exporter count them apart from what goes by the interface.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::process::Command;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use serde_json::Value;
use support::*;

const PORT: &str = "7000";

fn program(lab: &Lab, options: &[&str], words: &[&str]) -> Command {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface()]).args(options);
    command.args(["--", "python3", source("local.py").to_str().unwrap()]).args(words);
    command
}

/// A server, and a client that holds a connection to it over memory after one byte each way.
fn connected(lab: &Lab) -> (Running, Running) {
    let start = || {
        let server = Running::start(&mut program(lab, &[], &["serve", "threads", "0.0.0.0", PORT]));
        let words = ["call", "hold", "127.0.0.1", PORT, "1"];
        let mut client = Running::spawn(&mut program(lab, &[], &words));
        client.wait_for("connected");
        (server, client)
    };
    // The server, too, anew: it counts links and connections.
    start_until("a connection over memory", start, |(server, client)| {
        links_of(&lab.server, client.pid()) == [server.pid()]
    })
}

fn json_lines(lab: &Lab, arguments: &[&str]) -> Vec<Value> {
    let output = run_on_host(&lab.server, arguments);
    assert!(output.status.success(), "{output:?}");
    text(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn ss_marks_a_connection_over_memory_at_both_ends() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (server, client) = connected(&lab);
    // A connection by the interface, to the same listener.
    let mut remote = Client::connect(&lab, 7000);
    remote.exchange(1);
    let pids = [server.pid(), client.pid()];
    let rows = json_lines(&lab, &["ss", "--json"]);
    rows.iter().for_each(|row| json_schema::is_as_documented("ss", row));
    let of = |pid: u32, way: &str| -> Vec<&Value> {
        let is = |row: &&Value| {
            let local = row["local"].as_str().unwrap();
            row["pid"] == pid && row["state"] == "ESTAB" && local.starts_with(way)
        };
        rows.iter().filter(is).collect()
    };
    for (own, other) in [(0, 1), (1, 0)] {
        let found = of(pids[own], "127.0.0.1:");
        assert_eq!((found.len(), &found[0]["link_pid"]), (1, &pids[other].into()), "{rows:#?}");
    }
    let by_interface = of(pids[0], "10.77.0.2:");
    assert_eq!((by_interface.len(), &by_interface[0]["link_pid"]), (1, &Value::Null), "{rows:#?}");
    let shown = run_on_host(&lab.server, &["ss", "--wide"]);
    for pid in pids {
        assert!(text(&shown).contains(&format!("local pid {pid}")), "{}", text(&shown));
    }
    drop(client);
    wait_until("the server's end is gone, and with it the column", || {
        let shown = text(&run_on_host(&lab.server, &["ss"]));
        shown.contains("10.77.0.2:7000") && !shown.contains("Link")
    });
}

#[test]
fn what_goes_over_links_is_counted_apart_from_the_interface() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (server, mut client) = connected(&lab);
    let pid = server.pid();
    let page = || {
        let file = std::env::temp_dir().join(format!("busypoll-links-{}.prom", std::process::id()));
        let words = ["exporter", "--no-bpf", "--textfile", file.to_str().unwrap()];
        assert!(run_on_host(&lab.server, &words).status.success());
        let page = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        page
    };
    let sample = |page: &str, metric: &str, way: &str| -> u64 {
        let is = |line: &&str| {
            line.starts_with(metric)
                && line.contains(&format!("pid=\"{pid}\""))
                && line.contains(way)
        };
        let line = page.lines().find(is).unwrap_or_else(|| panic!("{metric} {way}: {page}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let (packets, connections) =
        ("busypoll_run_received_packets_total", "busypoll_run_tcp_connections_total");
    let before = page();
    assert_eq!(sample(&before, "busypoll_run_links", ""), 1);
    assert_eq!(sample(&before, connections, "way=\"link\""), 1);
    let by_link = sample(&before, packets, "way=\"link\"");
    assert!(by_link >= 3, "a handshake and a byte: {before}");
    // Only the interface's count grows.
    Client::connect(&lab, 7000).exchange(20);
    let after = page();
    let grown = |way: &str| sample(&after, packets, way) - sample(&before, packets, way);
    assert!(grown("way=\"link\"") < 20, "{after}");
    assert!(grown("way=\"interface\"") >= 20, "{after}");
    assert_eq!(sample(&after, connections, "way=\"link\""), 1);
    assert!(sample(&after, connections, "way=\"interface\"") >= 1, "{after}");

    let lines = json_lines(&lab, &["top", "--no-bpf", "--batch", "2", "--json"]);
    let last = lines.last().unwrap();
    json_schema::is_as_documented("top", last);
    let rows = |key: &str| last[key].as_array().unwrap().clone();
    let other = client.pid();
    assert!(rows("napis").iter().any(|row| row["link_pid"] == other), "{last:#}");
    let own = rows("processes").into_iter().find(|row| row["pid"] == pid).unwrap();
    assert!(own["packets"]["link"].is_u64(), "{own}");

    // A link that has ended keeps its count.
    client.send_line("");
    client.wait_for("done");
    client.end();
    wait_until("the link has ended", || sample(&page(), "busypoll_run_links", "") == 0);
    assert!(sample(&page(), packets, "way=\"link\"") > by_link);
}
