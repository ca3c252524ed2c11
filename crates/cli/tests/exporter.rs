//! `busypoll exporter`: what a scrape says before and after traffic, what is missing without rights, and that dashboard
//! and document name only metrics that there are.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use busypoll_exporter::metrics::{ALL, Kind};
use busypoll_lab::{Lab, LabHost, needs, needs_root};
use echo::{Running, exchange_udp};
use serde_json::Value;
use support::*;

four_tests_at_a_time!();

/// The samples of a page by name with labels.
type Samples = BTreeMap<String, f64>;

/// An exporter that has said where it listens; killed at the end of the test.
struct Exporter {
    child: Child,
    address: String,
    _said: BufReader<std::process::ChildStderr>,
}

impl Exporter {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("busypoll: metrics at http://");
        let address = address.unwrap_or_else(|| panic!("{line}")).trim_end_matches("/metrics");
        Exporter { child, address: address.to_owned(), _said: said }
    }

    fn on(host: &LabHost) -> Self {
        let mut command = host.command(BUSYPOLL);
        command.args(["exporter", "--listen", "127.0.0.1:0", "--doctor", "1h"]);
        Exporter::start(command)
    }

    /// A page made after the call.
    fn scrape(&self, host: &LabHost) -> Samples {
        std::thread::sleep(Duration::from_millis(600));
        let text = host.enter(|| get(&self.address)).unwrap();
        parse(&text)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

/// Reads the text format strictly: every sample has its help and type before it, in one block a metric, its name and
/// labels are those of the table, no sample comes twice (`promtool check metrics` wants the same).
fn parse(text: &str) -> Samples {
    let (mut samples, mut seen) = (Samples::new(), BTreeSet::new());
    let mut current = None;
    let mut typed = false;
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            let metric = ALL.iter().find(|metric| metric.name == name).expect(name);
            assert_eq!(help, metric.help);
            assert!(seen.insert(name), "{name} has two blocks");
            (current, typed) = (Some(metric), false);
            continue;
        }
        let metric = current.expect(line);
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let wanted = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
            assert_eq!(kind, format!("{} {wanted}", metric.name));
            typed = true;
            continue;
        }
        assert!(typed, "{line}");
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert_eq!(name, metric.name);
        let mut names: Vec<&str> = labels.trim_end_matches('}').split("\",").collect();
        names.retain(|label| !label.is_empty());
        let names: BTreeSet<&str> =
            names.iter().map(|label| label.split('=').next().unwrap()).collect();
        assert_eq!(names, metric.labels.iter().copied().collect(), "{line}");
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert_eq!(samples.insert(series.to_owned(), value), None, "{series} twice");
    }
    samples
}

/// The sum of the samples of a metric whose labels contain all of `with`.
fn sum(samples: &Samples, name: &str, with: &[&str]) -> f64 {
    let of = |series: &&String| {
        let rest = series.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            && with.iter().all(|label| series.contains(label))
    };
    samples.iter().filter(|(series, _)| of(series)).map(|(_, value)| value).sum()
}

/// A server that answers each datagram, and one that never reads.
const PROGRAM: &str = "
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('10.77.0.2', 7320))
full = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
full.bind(('10.77.0.2', 7321))
full.setblocking(False)
try: full.recv(1)
except BlockingIOError: pass
print('ready', flush=True)
while True:
    data, peer = udp.recvfrom(2000)
    udp.sendto(data, peer)
";

const EXCHANGES: u32 = 200;
const LOST: u32 = 300;

/// Exchanges with the one and floods the other.
fn traffic(lab: &Lab) {
    exchange_udp(lab, 7320, EXCHANGES);
    let client = lab.client.enter(|| UdpSocket::bind("10.77.0.1:0")).unwrap().unwrap();
    for _ in 0..LOST {
        client.send_to(&[0; 1000], "10.77.0.2:7321").unwrap();
    }
    exchange_udp(lab, 7320, 1);
}

#[test]
fn a_run_of_the_stack_plane_is_counted_as_its_traffic_goes() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--strict", "--"]);
    let program = Running::start(command.args(["python3", "-c", PROGRAM]));
    let exporter = Exporter::on(&lab.server);
    let run = [&*format!("pid=\"{}\"", program.pid()), "program=\"python3\"", "uid=\"0\""];
    let before = exporter.scrape(&lab.server);
    assert_eq!(sum(&before, "busypoll_exporter_source_up", &["guards"]), 1.0, "{before:?}");
    traffic(&lab);
    let mut after = Samples::new();
    // The last datagrams may still be on their way.
    wait_until("all is counted", || {
        after = exporter.scrape(&lab.server);
        sum(&after, "busypoll_run_packets_total", &run) >= f64::from(EXCHANGES + LOST)
    });
    assert_eq!(sum(&after, "busypoll_run_sockets", &run), 2.0, "{after:?}");
    assert_eq!(sum(&after, "busypoll_run_sockets", &["protocol=\"udp\"", "state=\"UNCONN\""]), 2.0);
    let found = |how: &str| sum(&after, "busypoll_run_packets_total", &[run[0], how]);
    assert!(
        found("busy_poll") + found("interrupt") < f64::from(2 * (EXCHANGES + LOST)),
        "{after:?}"
    );
    let drops = sum(&after, "busypoll_run_drops_total", &[run[0], "cause=\"UdpRcvbufErrors\""]);
    assert!(drops > 100.0 && drops <= f64::from(LOST), "{after:?}");
    for series in after.keys() {
        assert!(!series.contains("10.77.") && !series.contains("recvfrom"), "{series}");
    }
    // What is a counter does not fall.
    for (series, value) in &before {
        let counter = ALL.iter().any(|it| it.kind == Kind::Counter && series.starts_with(it.name));
        let now = after.get(series).copied().unwrap_or(*value);
        assert!(!counter || now >= *value, "{series}: {value}, then {now}");
    }
    drop(program);
    wait_until("it is gone", || {
        sum(&exporter.scrape(&lab.server), "busypoll_run_sockets", &run[..1]) == 0.0
    });
}

/// Busy polling of the kernel's: the echo server polls for each datagram.
#[test]
fn passes_of_the_kernels_busy_polling_are_counted_by_queue() {
    needs_root!();
    needs!(program "python3");
    let lab = Lab::builder().build().unwrap();
    let exporter = Exporter::on(&lab.server);
    let device = &*format!("device=\"{}\"", lab.server.interface());
    let before = exporter.scrape(&lab.server);
    if sum(&before, "busypoll_exporter_source_up", &["bpf"]) == 0.0 {
        return busypoll_lab::needs::skipped(module_path!(), "BPF");
    }
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--busy-poll", echo::LONG_POLL, "--", "python3", "-c", PROGRAM]);
    let _program = Running::start(&mut command);
    echo::busy_polling_finds_packets(&lab, || traffic(&lab));
    let after = exporter.scrape(&lab.server);
    let grown = |name, with: &[&str]| sum(&after, name, with) - sum(&before, name, with);
    // Labs of other tests have devices of the same name, in network namespaces of their own.
    let here = "netns=\"\"";
    let packets = grown("busypoll_napi_packets_total", &[device, here]);
    assert!(packets >= f64::from(EXCHANGES + LOST), "{packets} {after:?}");
    let hits = grown("busypoll_napi_busy_polls_total", &[device, here, "result=\"hit\""]);
    let by_polls = grown("busypoll_napi_packets_total", &[device, here, "found=\"busy_poll\""]);
    let kernel = grown("busypoll_kernel_busy_poll_packets_total", &[]);
    assert!(hits > 0.0 && by_polls > 0.0 && kernel > 0.0, "{hits} {by_polls} {kernel} {after:?}");
    assert!(grown("busypoll_device_receive_packets_total", &[device]) >= packets, "{after:?}");
    assert!(sum(&after, "busypoll_doctor_findings", &["code=\"BP-"]) > 0.0, "{after:?}");
}

#[test]
fn without_rights_it_says_what_is_missing() {
    needs_root!();
    needs!(program "setpriv");
    // Other users may not enter the folder of the command, so root opens the command for them.
    let script = "exec 9<$0; exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
                  /proc/self/fd/9 exporter --listen 127.0.0.1:0 --doctor 1h";
    let lab = Lab::builder().build().unwrap();
    let mut command = lab.server.command("sh");
    command.args(["-c", script, BUSYPOLL]);
    let exporter = Exporter::start(command);
    let samples = exporter.scrape(&lab.server);
    let up = |source: &str| {
        let label = format!("source=\"{source}\"");
        sum(&samples, "busypoll_exporter_source_up", &[&label])
    };
    let ups = ["kernel", "netlink", "spinners", "guards", "bpf"].map(up);
    assert_eq!(ups, [1.0, 1.0, 1.0, 1.0, 0.0], "{samples:?}");
    assert!(sum(&samples, "busypoll_device_receive_packets_total", &["device=\"lo\""]) >= 0.0);
}

/// As the unit starts it: root with these capabilities, and everything can be read; with one less it cannot.
#[test]
fn the_unit_has_the_capabilities_it_needs_and_no_other() {
    needs_root!();
    needs!(program "setpriv");
    let unit = tree("packaging/systemd/busypoll-exporter.service");
    let rights = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let rights: Vec<String> =
        rights.split(' ').map(|right| right.trim_start_matches("CAP_").to_lowercase()).collect();
    let _table = OtherUsersTable::make();
    let lab = Lab::builder().build().unwrap();
    let sees_all = |rights: &[&String]| {
        let caps: String = rights.iter().map(|right| format!(",+{right}")).collect();
        let caps = format!("-all{caps}");
        let mut command = lab.server.command("setpriv");
        command.args(["--no-new-privs", "--bounding-set", &caps, "--inh-caps", &caps, BUSYPOLL]);
        command.args(["exporter", "--listen", "127.0.0.1:0", "--doctor", "1h"]);
        let samples = Exporter::start(command).scrape(&lab.server);
        let bpf = sum(&samples, "busypoll_exporter_source_up", &["source=\"bpf\""]) == 1.0;
        (bpf, sum(&samples, "busypoll_spinners_refused_total", &["uid=\"65534\""]) == 7.0)
    };
    assert_eq!(sees_all(&rights.iter().collect::<Vec<_>>()), (true, true));
    for missing in &rights {
        let fewer: Vec<&String> = rights.iter().filter(|right| *right != missing).collect();
        assert_ne!(sees_all(&fewer), (true, true), "{missing} is not needed");
    }
}

/// The table of spinners of a user that runs nothing.
struct OtherUsersTable;

const OTHERS: &str = "/dev/shm/busypoll-65534-2";

impl OtherUsersTable {
    fn make() -> Self {
        // 1,024 CPUs of 64 bytes, then the common words; the second word of a CPU counts refusals.
        let mut bytes = vec![0; 1025 * 64];
        bytes[8] = 7;
        let _ = fs::remove_file(OTHERS);
        fs::write(OTHERS, bytes).unwrap();
        std::os::unix::fs::chown(OTHERS, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(OTHERS, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        OtherUsersTable
    }
}

impl Drop for OtherUsersTable {
    fn drop(&mut self) {
        let _ = fs::remove_file(OTHERS);
    }
}

#[test]
fn a_text_file_is_written_once_and_says_where_it_cannot_be() {
    let folder = std::env::temp_dir().join(format!("busypoll-exporter-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("busypoll.prom");
    let output = run_locally(&["exporter", "--textfile", path.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let text = fs::read_to_string(&path).unwrap();
    let samples = parse(&text);
    // Prometheus's own check, where it is installed.
    if busypoll_lab::needs::has_program("promtool") {
        let mut check = Command::new("promtool");
        let mut check = check.args(["check", "metrics"]).stdin(Stdio::piped()).spawn().unwrap();
        check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(check.wait().unwrap().success());
    }
    assert_eq!(sum(&samples, "busypoll_exporter_source_up", &["doctor"]), 1.0, "{output:?}");
    assert_eq!(sum(&samples, "busypoll_build_info", &[]), 1.0);
    fs::remove_dir_all(&folder).unwrap();
    let output = run_locally(&["exporter", "--textfile", path.to_str().unwrap()]);
    fails_with(&output, &["busypoll.prom", "No such file"]);
    fails_with(&run_locally(&["exporter"]), &["--listen"]);
    fails_with(&run_locally(&["exporter", "--listen", "9753"]), &["'9753'"]);
}

fn tree(path: &str) -> String {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(project.join(path)).unwrap()
}

/// The names of metrics in a query or a document.
fn named(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !word(c)).filter(|it| it.starts_with("busypoll_"));
    words.map(str::to_owned).collect()
}

/// A query names metrics and labels that the exporter has, and asks a counter, and no gauge, for its rate.
fn names_what_there_is(query: &str) {
    let names = named(query);
    assert!(!names.is_empty(), "{query}");
    let mut labels = BTreeSet::from(["instance", "job", "le"]);
    for name in &names {
        let metric = ALL.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{query}: no metric {name}"));
        labels.extend(metric.labels);
        let rated = ["rate", "increase"].iter().any(|of| query.contains(&format!("{of}({name}")));
        let counter = metric.kind == Kind::Counter;
        assert_eq!(rated, counter, "{query}: a counter is asked for its rate, a gauge is not");
    }
    // Labels in selectors and in `by (...)`.
    let by =
        query.split("by (").skip(1).flat_map(|rest| rest.split(')').next().unwrap().split(','));
    let selectors =
        query.split('{').skip(1).flat_map(|rest| rest.split('}').next().unwrap().split(','));
    let selected = selectors.filter_map(|label| label.split(['=', '!']).next());
    for label in by.chain(selected).map(str::trim).filter(|label| !label.is_empty()) {
        assert!(labels.contains(label), "{query}: no label {label}");
    }
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        assert_eq!(query.matches(open).count(), query.matches(close).count(), "{query}");
    }
}

#[test]
fn the_alerts_ask_for_metrics_and_labels_that_there_are() {
    // An expression is on the line of its key, or indented below it.
    let rules = tree("packaging/prometheus/busypoll.rules.yml");
    let mut queries = Vec::new();
    for rule in rules.split("- alert: ").skip(1) {
        let (_, rest) = rule.split_once("expr: ").unwrap();
        let ends = ["\n        for:", "\n        annotations:"];
        let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap();
        let query = rest[..end].trim_start_matches(">-").split_whitespace();
        queries.push(query.collect::<Vec<_>>().join(" "));
        for label in rule.split("$labels.").skip(1) {
            let label = label.split(' ').next().unwrap();
            let query = queries.last().unwrap();
            let known = ALL.iter().filter(|metric| query.contains(metric.name));
            let mut labels = known.flat_map(|metric| metric.labels.iter().copied());
            assert!(label == "instance" || labels.any(|of| of == label), "{query}: {label}");
        }
    }
    assert_eq!(queries.len(), 5);
    queries.iter().for_each(|query| names_what_there_is(query));
    // Each alert of the document is one of the file, and the reverse.
    let document = tree("docs/deploy.md");
    let (_, worth) = document.split_once("Worth an alert").unwrap();
    let (worth, _) = worth.split_once("By hand:").unwrap();
    let named_there = named(worth);
    for query in &queries {
        assert!(named(query).iter().any(|name| named_there.contains(name)), "{query}");
    }
}

#[test]
fn the_dashboard_asks_for_metrics_and_labels_that_there_are() {
    let dashboard: Value = serde_json::from_str(&tree("packaging/grafana/busypoll.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(panel["title"].is_string() && panel["gridPos"]["w"].is_u64(), "{panel}");
        let targets = panel["targets"].as_array().into_iter().flatten();
        queries.extend(targets.map(|target| target["expr"].as_str().unwrap().to_owned()));
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        queries.extend(variable["query"].as_str().filter(|it| it.contains('(')).map(str::to_owned));
    }
    assert!(queries.len() > 12, "{queries:?}");
    queries.iter().for_each(|query| names_what_there_is(query));
    let asked: BTreeSet<String> = queries.iter().flat_map(|query| named(query)).collect();
    assert!(asked.len() > 15, "{asked:?}");
}

#[test]
fn the_document_lists_every_metric_and_no_other() {
    let listed = named(&tree("docs/exporter.md"));
    let known: BTreeSet<String> = ALL.iter().map(|metric| metric.name.to_owned()).collect();
    assert_eq!(listed, known);
}
