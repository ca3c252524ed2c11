//! What each program does, and how the test sees that it was done correctly.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use busypoll_lab::{Lab, LabHost, needs, needs_root};

use super::echo::*;
use super::support::*;

const PORT: u16 = 7300;

/// A lab, and the plane of the programs in it.
struct Setup {
    lab: Lab,
    plane: &'static str,
    /// Further options of `busypoll run`.
    options: Vec<String>,
    _one: std::sync::MutexGuard<'static, ()>,
}

/// A daemon; ended when it is dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.0),
            rustix::process::Signal::TERM,
        );
        let _ = self.0.wait();
    }
}

impl Setup {
    fn new(plane: &'static str) -> Self {
        Self {
            _one: one_test_at_a_time(),
            lab: Lab::builder().build().unwrap(),
            plane,
            options: Vec::new(),
        }
    }

    fn under(&self, host: &LabHost, program: &str) -> Command {
        let mut command = host.command(BUSYPOLL);
        command.args(["run", "--plane", self.plane]);
        if self.plane == "stack" {
            command.args(["--dev", host.interface()]);
        }
        command.args(&self.options).args(["--", program]).stdin(Stdio::null());
        command
    }

    /// A program on the server, on the plane.
    fn server(&self, program: &str) -> Command {
        self.under(&self.lab.server, program)
    }

    /// A program on the client, on the plane.
    fn client(&self, program: &str) -> Command {
        self.under(&self.lab.client, program)
    }

    /// A program on the client, without busypoll.
    fn plain(&self, program: &str) -> Command {
        let mut command = self.lab.client.command(program);
        command.stdin(Stdio::null());
        command
    }

    fn address(&self) -> String {
        self.lab.server.ipv4().to_string()
    }

    /// Starts a daemon, and waits until it takes connections.
    fn daemon(&self, command: &mut Command, port: u16) -> Daemon {
        let mut daemon = Daemon(command.stdout(Stdio::null()).spawn().unwrap());
        self.listens(port, || {
            assert!(daemon.0.try_wait().unwrap().is_none(), "it ended: {command:?}");
        });
        daemon
    }

    /// Waits until connections are made on the plane. Those made before a process first waits stay with the kernel.
    fn listens(&self, port: u16, mut still: impl FnMut()) {
        let address = SocketAddr::from((self.lab.server.ipv4(), port));
        let is_listed =
            || text(&run_on_host(&self.lab.server, &["ss"])).contains(&format!(":{port} "));
        wait_until("it listens", || {
            still();
            let connected = self.lab.client.enter(|| TcpStream::connect(address)).unwrap().is_ok();
            connected && (self.plane == "kernel" || is_listed())
        });
    }

    /// Does `work`, and checks that the server's packets come as the plane promises: its busy polling finds them, or
    /// they never reach its kernel.
    fn polls(&self, work: impl FnMut()) {
        match self.plane {
            "kernel" => busy_polling_finds_packets(&self.lab, work),
            _ => bypasses_the_kernel(&self.lab.server, work),
        }
    }
}

fn number_after<'t>(text: &'t str, name: &str) -> &'t str {
    let (_, after) = text.split_once(name).unwrap_or_else(|| panic!("no {name} in {text}"));
    let after = after.trim_start_matches([' ', '=', ':']);
    after.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap()
}

/// sockperf at both ends. `how` is sockperf's letter for the way it waits; `b` blocks.
fn sockperf(setup: &Setup, tcp: bool, mode: &str, how: &str, options: &[&str]) {
    let port = PORT.to_string();
    let list = temp_dir("sockperf").join("sockets");
    let kind = if tcp { 'T' } else { 'U' };
    fs::write(&list, format!("{kind}:{}:{port}\n", setup.address())).unwrap();
    let address = setup.address();
    let mut sockets: Vec<&str> = match how {
        "b" => vec!["-i", &address, "-p", &port],
        _ => vec!["-f", list.to_str().unwrap(), "-F", how],
    };
    if tcp && how == "b" {
        sockets.push("--tcp");
    }
    let mut server = setup.server("sockperf");
    let mut server = server.arg("sr").args(&sockets).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    let mut output = std::io::BufReader::new(server.stdout.take().unwrap());
    while !ready.contains("Warmup stage")
        && !ready.contains("server is running")
        && !ready.contains("to terminate")
    {
        ready.clear();
        assert!(std::io::BufRead::read_line(&mut output, &mut ready).unwrap() > 0, "it ended");
    }
    let _server = Daemon(server);
    // The server prints it before it first waits, and until then connections stay with the kernel.
    wait_until("its socket is on the plane", || {
        let shown = || text(&busypoll(&setup.lab, Path::new("/"), &["ss"]).output().unwrap());
        setup.plane == "kernel" || shown().contains(&port)
    });
    setup.polls(|| {
        let mut client = setup.client("sockperf");
        client.arg(mode).args(&sockets).args(["-t", "1"]).args(options);
        let output = client.output().unwrap();
        let said = text(&output);
        assert!(output.status.success() && !said.contains("ERROR"), "{how}: {said}");
        if mode != "tp" {
            let received: u64 = number_after(&said, "ReceivedMessages").parse().unwrap();
            // On a busy machine a spinner gets the CPU no more often than other threads.
            assert!(received > 10, "{how}: {said}");
            // Messages under load may find no room, as on the kernel alone, if the sender does not wait for room.
            let dropped = (mode == "pp" || tcp && how == "b").then_some("# dropped messages");
            let never = ["# duplicated messages", "# out-of-order messages"];
            for wrong in never.into_iter().chain(dropped) {
                assert_eq!(number_after(&said, wrong), "0", "{how}: {said}");
            }
        }
    });
}

/// UDP and TCP; blocking, poll, select and epoll.
fn all_waits() -> impl Iterator<Item = (bool, &'static str)> {
    [false, true].into_iter().flat_map(|tcp| ["b", "p", "s", "e"].map(|how| (tcp, how)))
}

pub fn sockperf_udp_ping_pong(plane: &'static str) {
    needs_root!();
    needs!(program "sockperf");
    for how in ["b", "p", "s", "e"] {
        sockperf(&Setup::new(plane), false, "pp", how, &[]);
    }
}

pub fn sockperf_tcp_ping_pong(plane: &'static str) {
    needs_root!();
    needs!(program "sockperf");
    for how in ["b", "p", "s", "e"] {
        sockperf(&Setup::new(plane), true, "pp", how, &[]);
    }
}

pub fn sockperf_under_load(plane: &'static str) {
    needs_root!();
    needs!(program "sockperf");
    // A message every 25 us: within the 50 us that a wait polls.
    for (tcp, how) in all_waits() {
        sockperf(&Setup::new(plane), tcp, "ul", how, &["--mps", "40000", "--reply-every", "5"]);
    }
}

pub fn sockperf_throughput(plane: &'static str) {
    needs_root!();
    needs!(program "sockperf");
    for (tcp, how) in all_waits() {
        sockperf(&Setup::new(plane), tcp, "tp", how, &["-m", "1400"]);
    }
}

fn redis_server(setup: &Setup, folder: &std::path::Path) -> Daemon {
    let mut redis = setup.server("redis-server");
    redis.args(["--port", &PORT.to_string(), "--protected-mode", "no", "--save", ""]);
    redis.arg("--dir").arg(folder);
    setup.daemon(&mut redis, PORT)
}

fn redis_cli(setup: &Setup, arguments: &[&str]) -> String {
    let mut cli = setup.plain("redis-cli");
    cli.args(["-h", &setup.address(), "-p", &PORT.to_string()]).args(arguments);
    succeeds(&mut cli)
}

pub fn redis(plane: &'static str) {
    needs_root!();
    needs!(program "redis-server", program "redis-benchmark", program "redis-cli");
    let setup = Setup::new(plane);
    let _redis = redis_server(&setup, &temp_dir("redis"));
    for (clients, pipeline) in [("1", "1"), ("50", "16")] {
        setup.polls(|| {
            let mut load = setup.client("redis-benchmark");
            load.args([
                "-h",
                &setup.address(),
                "-p",
                &PORT.to_string(),
                "-n",
                "5000",
                "-t",
                "set,get,lpush",
            ]);
            let said = succeeds(load.args(["-c", clients, "-P", pipeline, "-q"]));
            assert_eq!(said.matches("requests per second").count(), 3, "{said}");
            assert!(!said.to_lowercase().contains("error"), "{said}");
        });
    }
    // Rounded up to whole pipelines.
    assert!(redis_cli(&setup, &["LLEN", "mylist"]).trim().parse::<u64>().unwrap() >= 10_000);
}

pub fn redis_saves_in_the_background(plane: &'static str) {
    needs_root!();
    needs!(program "redis-server", program "redis-benchmark", program "redis-cli");
    let (setup, folder) = (Setup::new(plane), temp_dir("redis"));
    let redis = redis_server(&setup, &folder);
    redis_cli(&setup, &["EVAL", "for i=1,20000 do redis.call('SET', 'k'..i, i) end", "0"]);
    let mut load = setup.plain("redis-benchmark");
    load.args(["-h", &setup.address(), "-p", &PORT.to_string(), "-n", "20000", "-t", "get", "-q"]);
    let mut load = load.stdout(Stdio::null()).spawn().unwrap();
    assert!(redis_cli(&setup, &["BGSAVE"]).contains("Background saving started"));
    assert!(load.wait().unwrap().success());
    wait_until("redis has saved", || {
        redis_cli(&setup, &["INFO", "persistence"]).contains("rdb_bgsave_in_progress:0")
    });
    assert!(redis_cli(&setup, &["INFO", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    drop(redis);
    let _redis = redis_server(&setup, &folder);
    assert_eq!(redis_cli(&setup, &["GET", "k19999"]).trim(), "19999");
    assert_eq!(redis_cli(&setup, &["DBSIZE"]).trim(), "20000");
}

pub fn memcached(plane: &'static str) {
    needs_root!();
    needs!(program "memcached");
    let setup = Setup::new(plane);
    let mut memcached = setup.server("memcached");
    memcached.args([
        "-u",
        "root",
        "-l",
        &setup.address(),
        "-p",
        &PORT.to_string(),
        "-t",
        "4",
        "-U",
        "0",
    ]);
    let _memcached = setup.daemon(&mut memcached, PORT);
    let address = SocketAddr::from((setup.lab.server.ipv4(), PORT));
    setup.polls(|| {
        let connections: Vec<TcpStream> = (0..8)
            .map(|_| setup.lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap())
            .collect();
        std::thread::scope(|scope| {
            for (index, mut connection) in connections.into_iter().enumerate() {
                scope.spawn(move || {
                    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    for n in 0..200 {
                        let value = format!("{index}-{n}-{}", "v".repeat(n));
                        let set = format!("set k{index} 0 0 {}\r\n{value}\r\n", value.len());
                        request(&mut connection, &set, "STORED\r\n");
                        let wanted =
                            format!("VALUE k{index} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                        request(&mut connection, &format!("get k{index}\r\n"), &wanted);
                    }
                });
            }
        });
    });
}

fn request(connection: &mut TcpStream, what: &str, wanted: &str) {
    connection.write_all(what.as_bytes()).unwrap();
    let mut came = vec![0; wanted.len()];
    connection.read_exact(&mut came).unwrap();
    assert_eq!(String::from_utf8(came).unwrap(), wanted);
}

pub fn nginx(plane: &'static str) {
    needs_root!();
    needs!(program "nginx", program "wrk", program "curl", program "sha256sum");
    let setup = Setup::new(plane);
    let folder = temp_dir("nginx");
    let mut file = Vec::new();
    for n in 0..500_000_u32 {
        file.extend(n.wrapping_mul(2_654_435_761).to_le_bytes());
    }
    fs::write(folder.join("file"), &file).unwrap();
    fs::write(folder.join("small"), "small\n").unwrap();
    let here = folder.display();
    // As Debian configures it: a master that becomes a daemon, and a worker of another user.
    let configuration = format!(
        "user www-data; worker_processes 1; pid {here}/pid; error_log {here}/error.log;\n\
         events {{ worker_connections 768; }}\n\
         http {{ sendfile on; tcp_nopush on; access_log off; keepalive_requests 1000000;\n\
         server {{ listen {}:{PORT}; root {here}; }} }}\n",
        setup.address()
    );
    fs::write(folder.join("nginx.conf"), configuration).unwrap();
    readable(&folder);
    let mut nginx = setup.server("nginx");
    assert!(nginx.arg("-c").arg(folder.join("nginx.conf")).status().unwrap().success());
    let master =
        || fs::read_to_string(folder.join("pid")).unwrap_or_default().trim().parse::<i32>().ok();
    wait_until("nginx has written its PID", || master().is_some());
    let master = Master(rustix::process::Pid::from_raw(master().unwrap()).unwrap());
    setup.listens(PORT, || {});
    let url = |name: &str| format!("http://{}:{PORT}/{name}", setup.address());
    let sum = succeeds(Command::new("sha256sum").arg(folder.join("file")));
    for _ in 0..3 {
        let got = folder.join("got");
        let mut curl = setup.plain("curl");
        succeeds(curl.args(["-sf", "--max-time", "20", "-o"]).arg(&got).arg(url("file")));
        let got = succeeds(Command::new("sha256sum").arg(got));
        assert_eq!(sum.split(' ').next(), got.split(' ').next());
    }
    setup.polls(|| {
        let mut load = setup.plain("wrk");
        let said = succeeds(load.args(["-t1", "-c32", "-d1s", &url("small")]));
        assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
        assert!(number_after(&said, "Requests/sec").parse::<f64>().unwrap() > 10.0, "{said}");
    });
    drop(master);
    let errors = fs::read_to_string(folder.join("error.log")).unwrap();
    assert!(!errors.contains("[alert]") && !errors.contains("[crit]"), "{errors}");
}

/// nginx's master, which has become a daemon and is not our child.
struct Master(rustix::process::Pid);

impl Drop for Master {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::TERM);
        wait_until("nginx has ended", || rustix::process::test_kill_process(self.0).is_err());
    }
}

pub fn iperf3(plane: &'static str) {
    needs_root!();
    needs!(program "iperf3");
    let setup = Setup::new(plane);
    let mut iperf = setup.server("iperf3");
    let _iperf = setup.daemon(iperf.args(["-s", "-p", &PORT.to_string()]), PORT);
    // Amounts, not durations: a busy machine takes longer, but transfers as much.
    let datagrams = ["-n", "2M", "-u", "-b", "20M", "-l", "1200"];
    for options in [&["-n", "32M"][..], &["-n", "32M", "-R"], &datagrams] {
        let mut end = serde_json::Value::Null;
        // Between two tests the server closes its listener for a moment, or has not finished the previous test.
        wait_until("iperf3 takes the next test", || {
            let mut client = setup.client("iperf3");
            client.args(["-c", &setup.address(), "-p", &PORT.to_string(), "-J"]).args(options);
            let said = text(&client.output().unwrap());
            let mut result: serde_json::Value = serde_json::from_str(&said).unwrap();
            end = result["end"].take();
            let began = !result["start"]["test_start"].is_null();
            match result["error"].as_str() {
                None => true,
                Some(e) if e.contains("Connection refused") || e.contains("busy") => false,
                // A connection in the queue of a listener that closes is reset.
                Some(e) if e.contains("reset by peer") && !began => false,
                Some(e) => panic!("{options:?}: {e}"),
            }
        });
        let sum = if end["sum_received"].is_null() { &end["sum"] } else { &end["sum_received"] };
        assert!(sum["bytes"].as_f64().unwrap() > 1e6, "{options:?}: {end}");
    }
}

/// An echo server with requests over several connections at the same time.
fn echo_server(setup: &Setup, command: &mut Command) {
    let _server = Running::start(command.arg(PORT.to_string()));
    setup.listens(PORT, || {});
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&setup.lab, PORT)).collect();
    setup.polls(|| clients.iter_mut().for_each(|client| client.exchange(200)));
}

pub fn python_asyncio(plane: &'static str) {
    needs_root!();
    needs!(program "python3");
    let setup = Setup::new(plane);
    echo_server(&setup, setup.server("python3").arg(source("echo.py")));
}

pub fn java_nio(plane: &'static str) {
    needs_root!();
    needs!(program "java");
    let setup = Setup::new(plane);
    echo_server(&setup, setup.server("java").arg(source("Echo.java")));
}

pub fn go_echo(plane: &'static str) {
    needs_root!();
    needs!(program "go");
    let setup = Setup::new(plane);
    echo_server(&setup, &mut setup.server(go().to_str().unwrap()));
}

/// A session of FIX over QuickFIX, with 10 ms between orders and without a pause, for each value of `receive`.
pub fn quickfix(plane: &'static str) {
    needs_root!();
    needs!(program "g++");
    if !std::path::Path::new("/usr/include/quickfix/Application.h").exists() {
        return busypoll_lab::needs::skipped(module_path!(), "the package libquickfix-dev");
    }
    let program = temp_dir("fix").join("fix");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++14", "-O1", "-w", "-o"]).arg(&program).arg(source("fix.cpp"));
    build(compiler.args(["-lquickfix", "-pthread"]));
    let program = program.to_str().unwrap();
    for receive in ["interrupt", "busy-poll", "aggressive"] {
        let policy = temp_dir("policy").join("policy.toml");
        fs::write(
            &policy,
            format!("receive = \"{receive}\"\naggressive_receive_delay = \"2ms\"\n"),
        )
        .unwrap();
        let mut setup = Setup::new(plane);
        setup.options = vec!["--policy".into(), policy.to_str().unwrap().into()];
        let port = PORT.to_string();
        let _acceptor = Running::start(setup.server(program).args(["acceptor", &port]));
        for (orders, gap) in [("50", "10000"), ("500", "0")] {
            // Heartbeats take a second or two of silence, until both ends have sent one.
            let heartbeats = receive == "busy-poll" && gap != "0";
            let session = || {
                let mut initiator = setup.client(program);
                initiator.args(["initiator", &port, &setup.address(), orders, gap]);
                initiator.args(heartbeats.then_some("heartbeats"));
                let said = succeeds(&mut initiator);
                assert!(said.contains(&format!("done {orders} ")), "{receive}: {said}");
            };
            match receive {
                "interrupt" if plane == "kernel" => {
                    assert_eq!(busy_polled(&setup.lab.server, session), 0, "{receive}");
                }
                _ if gap == "0" => setup.polls(session),
                _ => session(),
            }
        }
    }
}
