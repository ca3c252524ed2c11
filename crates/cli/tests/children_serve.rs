//! A connection follows its user: the parent accepts it, and the child that alone has it takes it over from the kernel.
//! Every byte comes, in order; no connection has two owners, and none is silent when a process is killed.

#[path = "support/echo.rs"]
mod echo;
mod support;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::*;

four_tests_at_a_time!();

const PORT: u16 = 7000;

fn server(lab: &Lab, how: &str) -> Group {
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--", "python3"]);
    Group::start(command.arg(source("child_serves.py")).args([&PORT.to_string(), how]))
}

/// A connection of a plain client.
struct Asker(TcpStream);

impl Asker {
    fn connect(lab: &Lab) -> Asker {
        let address = SocketAddr::from((lab.server.ipv4(), PORT));
        let stream = lab.client.enter(|| TcpStream::connect(address)).unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Asker(stream)
    }

    /// The process that has answered with the same data.
    fn ask(&mut self, data: &[u8]) -> io::Result<u32> {
        let request = [format!("{:06}", data.len()).as_bytes(), data].concat();
        // The data may come in parts.
        let (first, rest) = request.split_at(request.len() / 2);
        self.0.write_all(first)?;
        self.0.write_all(rest)?;
        let mut answer = vec![0; 7 + data.len()];
        self.0.read_exact(&mut answer)?;
        let (pid, echo) = answer.split_at(7);
        assert!(echo == data, "other data came back");
        Ok(str::from_utf8(pid).unwrap().parse().unwrap())
    }

    /// Exchanges of all sizes, all answered by one process.
    fn converse(&mut self, times: usize) -> u32 {
        let pids: Vec<u32> = (0..times)
            .map(|at| {
                let len = [1, 100, 3_000, 40_000][at % 4] + at;
                let data: Vec<u8> = (0..len).map(|n| (n * 31 + at) as u8).collect();
                self.ask(&data).unwrap()
            })
            .collect();
        assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
        pids[0]
    }

    /// The process on whose stack it is.
    fn owner(&self, lab: &Lab) -> Option<u32> {
        let remote = self.0.local_addr().unwrap().to_string();
        let listed = text(&run_on_host(&lab.server, &["ss", "--json"]));
        let rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut its = rows.filter(|row| row["peer"] == *remote && row["state"] == "ESTAB");
        let owner = its.next()?["pid"].as_u64().map(|pid| pid as u32);
        assert!(its.next().is_none(), "two processes have it");
        owner
    }

    /// It has ended, by a reset unless `quietly`.
    fn has_ended(&mut self) {
        let ended = self.0.read(&mut [0; 16]).map_or_else(
            |error| error.kind() == io::ErrorKind::ConnectionReset,
            |count| count == 0,
        );
        assert!(ended, "it has not ended");
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_child_takes_over_a_connection_that_it_alone_has() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    for how in ["closes", "epoll", "waits"] {
        let lab = Lab::builder().build().unwrap();
        let server = server(&lab, how);
        // The kernel makes the connections that wait when the parent first accepts.
        Asker::connect(&lab).ask(b"first").unwrap();
        let mut askers = [(); 3].map(|()| Asker::connect(&lab));
        for asker in &mut askers {
            let child = asker.converse(600);
            assert_ne!(child, server.0.pid());
            assert_eq!(asker.owner(&lab), Some(child), "{how}");
            // Over the queues: the kernel's counters do not move.
            bypasses_the_kernel(&lab.server, || {
                asker.converse(200);
            });
        }
        // The port and the others are as before.
        askers.iter_mut().for_each(|asker| assert_ne!(asker.converse(20), 0));
        Asker::connect(&lab).converse(20);
    }
}
