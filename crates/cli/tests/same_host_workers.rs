//! Listeners that several processes wait for, and clients of the same machine, all under `run --plane stack`: an idle
//! process gets the connection, over memory; none waits for a busy process while another one is idle.

#[path = "support/echo.rs"]
mod echo;
mod support;
#[path = "support/two_programs.rs"]
mod two_programs;

use std::{fs, process::Command, thread, time::Duration};

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use support::*;
use two_programs::packets;

const PORT: &str = "7000";
const SOURCE: &str = "local_workers.py";

fn program(lab: &Lab, plane: &str, words: &[&str]) -> Command {
    two_programs::program(lab, SOURCE, plane, words)
}

/// The workers, and their process ids.
fn serve(lab: &Lab, how: &str, address: &str) -> (Group, Vec<u32>) {
    let mut command = program(lab, "stack", &["serve", how, address, PORT]);
    let mut group = Group::spawn(&mut command);
    let ready = group.0.wait_for("ready");
    let pids = ready.split_whitespace().skip(2).map(|pid| pid.parse().unwrap()).collect();
    (group, pids)
}

/// Runs a client, and returns how many packets loopback has carried meanwhile.
fn call(lab: &Lab, plane: &str, how: &str, address: &str) -> u64 {
    two_programs::call(lab, &mut program(lab, plane, &["call", how, address, PORT]))
}

/// A connection needs so many packets by the kernel.
const BY_KERNEL: u64 = 10;

/// Most connections of a client go over memory: one whose worker does not accept within 3 ms is the kernel's.
fn use_memory(lab: &Lab, what: &str, how: &str, address: &str) {
    // "turns" makes as many at least.
    let connections = if how == "idle" { 51 } else { 20 };
    wait_until(&format!("{what}: {how} over memory"), || {
        call(lab, "stack", how, address) < connections * BY_KERNEL / 2
    });
}

#[test]
fn connections_to_workers_go_over_memory_to_those_that_wait() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for (how, listens) in
        [("accept", "127.0.0.1"), ("poll", "0.0.0.0"), ("epoll", "127.0.0.1"), ("epoll", "0.0.0.0")]
    {
        let what = format!("{how} {listens}");
        let _workers = serve(&lab, how, listens);
        // By the kernel any worker may take it: both wait once they have answered.
        call(&lab, "plain", "turns", "127.0.0.1");
        use_memory(&lab, &what, "turns", "127.0.0.1");
        use_memory(&lab, &what, "idle", "127.0.0.1");
        call(&lab, "stack", "all", "127.0.0.1");
        call(&lab, "plain", "all", "127.0.0.1");
    }
}

#[test]
fn sockets_that_share_a_port_are_connected_to_over_memory() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _workers = serve(&lab, "reuseport", "127.0.0.1");
    call(&lab, "plain", "turns", "127.0.0.1");
    use_memory(&lab, "reuseport", "turns", "127.0.0.1");
}

/// A client that was not answered in time goes elsewhere: the accept of a connection that poll(2) has reported must not
/// wait for the next one, for the program may have other work.
#[test]
fn an_accept_after_poll_does_not_wait_for_another_connection() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (mut workers, _) = serve(&lab, "late", "127.0.0.1");
    // The kernel has the connection then, for either worker.
    let mut client =
        Group::spawn(&mut program(&lab, "stack", &["call", "losses", "127.0.0.1", PORT]));
    client.0.wait_for("connected");
    workers.0.wait_for("aborted");
    workers.0.wait_for("aborted");
    client.0.send_line("");
    println!("{}", client.0.wait_for("losses 0 "));
    workers.0.send_line("");
    // Neither waits in accept.
    workers.0.wait_for("done");
}

#[test]
fn a_worker_that_is_killed_is_replaced() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for how in ["accept", "epoll"] {
        let (_workers, mut pids) = serve(&lab, how, "127.0.0.1");
        call(&lab, "plain", "turns", "127.0.0.1");
        use_memory(&lab, how, "turns", "127.0.0.1");
        // The one that has the name of the address is among them.
        while let Some(pid) = pids.pop() {
            kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
            // No connection fails.
            call(&lab, "stack", "turns", "127.0.0.1");
            use_memory(&lab, how, "idle", "127.0.0.1");
        }
    }
}

/// A worker serves one connection at a time, and others are not its own before it accepts them.
#[test]
fn a_worker_that_is_killed_loses_the_connection_that_it_serves_and_no_other() {
    const KILLS: usize = 20;
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (workers, _) = serve(&lab, "epoll", "127.0.0.1");
    let mut clients = [(); 3].map(|()| {
        let words = ["call", "losses", "127.0.0.1", PORT];
        let mut client = Running::spawn(&mut program(&lab, "stack", &words));
        client.wait_for("connected");
        client
    });
    for n in 0..KILLS {
        thread::sleep(Duration::from_millis(50));
        let all = children(workers.0.pid());
        kill_process(Pid::from_raw(all[n % all.len()]).unwrap(), Signal::KILL).unwrap();
    }
    let mut losses = 0;
    for client in &mut clients {
        client.send_line("");
        let line = client.wait_for("losses");
        println!("{line}");
        losses += line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap();
        assert!(client.child.wait().unwrap().success());
    }
    assert!(losses <= KILLS, "{losses} connections were lost");
}

/// The children of a process.
fn children(pid: u32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A program without busypoll waits for the same listener: it gets what no idle worker takes.
#[test]
fn a_plain_program_that_shares_the_listener_gets_its_connections() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _workers = serve(&lab, "plain", "127.0.0.1");
    for _ in 0..3 {
        call(&lab, "stack", "all", "127.0.0.1");
        call(&lab, "stack", "idle", "127.0.0.1");
    }
}

/// A worker that is stopped while it waits takes nothing.
#[test]
fn a_worker_that_is_stopped_keeps_no_connection() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let (_workers, pids) = serve(&lab, "epoll", "127.0.0.1");
    call(&lab, "plain", "turns", "127.0.0.1");
    use_memory(&lab, "epoll", "turns", "127.0.0.1");
    let pid = Pid::from_raw(pids[0].cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    for _ in 0..3 {
        call(&lab, "stack", "one", "127.0.0.1");
    }
    kill_process(pid, Signal::CONT).unwrap();
    use_memory(&lab, "epoll", "turns", "127.0.0.1");
}

#[test]
fn no_request_fails_while_nginx_is_reloaded() {
    needs_root!();
    needs!(program "python3", program "nginx");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let folder = temp_dir("reload");
    let here = folder.display();
    // Processes of another user than the client's are the kernel's.
    let configuration = format!(
        "user root; daemon off; worker_processes 2; pid {here}/pid; error_log {here}/error.log;\n\
         events {{ worker_connections 768; }}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:{PORT}; location / {{ return 200 \"hello\\n\"; }} }} }}\n"
    );
    fs::write(folder.join("nginx.conf"), configuration).unwrap();
    let mut command = lab.server.command(BUSYPOLL);
    command.args(["run", "--plane", "stack", "--dev", lab.server.interface(), "--", "nginx", "-c"]);
    let _nginx = Group::spawn(command.arg(folder.join("nginx.conf")));
    let master = || fs::read_to_string(folder.join("pid")).ok()?.trim().parse().ok();
    wait_until("nginx has written its PID", || master().is_some());
    let pid = Pid::from_raw(master().unwrap()).unwrap();
    let client = || {
        let words = ["call", "requests", "127.0.0.1", PORT];
        let mut client = Running::spawn(&mut program(&lab, "stack", &words));
        client.wait_for("connected");
        client
    };
    let mut clients = [client(), client()];
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(200));
        kill_process(pid, Signal::HUP).unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    // The new workers take them over memory as well.
    wait_until("memory", || {
        let before = packets(&lab);
        thread::sleep(Duration::from_millis(50));
        packets(&lab) - before < 10
    });
    for client in &mut clients {
        client.send_line("");
        println!("{}", client.wait_for("requests"));
        assert!(client.child.wait().unwrap().success());
    }
}
