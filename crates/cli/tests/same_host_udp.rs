//! Datagrams within one machine under `run --plane stack`: over memory if both ends are processes under it,
//! by the kernel otherwise, and by the kernel as soon as several processes may read them.

#[path = "support/echo.rs"]
mod echo;
mod support;
#[path = "support/two_programs.rs"]
mod two_programs;

use std::process::Command;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use rustix::process::{Pid, Signal, kill_process};
use support::*;
use two_programs::packets;

const PORT: &str = "7000";

/// So many datagrams are sent, and as many come back.
const COUNT: u64 = 500;

/// What a socket that finds its way may have sent and received by the kernel before: a few datagrams of each end.
const FEW: u64 = 40;

fn program(lab: &Lab, plane: &str, words: &[&str]) -> Command {
    two_programs::program(lab, "local_udp.py", plane, words)
}

fn serve(lab: &Lab, plane: &str, how: &str, address: &str) -> Running {
    two_programs::serve(lab, "local_udp.py", plane, how, address)
}

fn call(lab: &Lab, plane: &str, how: &str, address: &str) -> u64 {
    let count = COUNT.to_string();
    two_programs::call(lab, &mut program(lab, plane, &["call", how, address, PORT, &count]))
}

/// A client that waits for lines on its standard input, after its first datagrams.
fn hold(lab: &Lab, how: &str) -> Running {
    let count = COUNT.to_string();
    let words = ["call", how, "127.0.0.1", PORT, &count];
    let mut client = Running::spawn(&mut program(lab, "stack", &words));
    client.wait_for("called");
    client
}

/// Lets a held client send again; returns how many packets loopback has carried meanwhile.
fn again(lab: &Lab, client: &mut Running) -> u64 {
    let before = packets(lab);
    client.send_line("");
    client.wait_for("called");
    packets(lab) - before
}

#[test]
fn both_ends_under_it_use_memory() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let own = lab.server.ipv4().to_string();
    for (listens, server, at) in [
        ("127.0.0.1", "blocking", "127.0.0.1"),
        ("0.0.0.0", "poll", "127.0.0.1"),
        ("127.0.0.1", "asyncio", "127.0.0.1"),
        ("0.0.0.0", "blocking", &own),
        (&own, "asyncio", &own),
        ("::1", "poll", "::1"),
        ("::", "blocking", "::1"),
        ("::", "blocking", "127.0.0.1"),
    ] {
        let _server = serve(&lab, "stack", server, listens);
        for how in ["blocking", "connected", "asyncio", "threads", "sizes"] {
            // asyncio sends no empty datagrams.
            if (server, how) == ("asyncio", "sizes") {
                continue;
            }
            wait_until(&format!("{listens} {how} {at}: memory"), || {
                call(&lab, "stack", how, at) < FEW
            });
        }
    }
    let _server = serve(&lab, "stack", "connected", "127.0.0.1");
    wait_until("memory", || call(&lab, "stack", "connected", "127.0.0.1") < FEW);
}

#[test]
fn ancillary_data_is_that_of_loopback() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let _server = serve(&lab, "stack", "blocking", "127.0.0.1");
    wait_until("memory", || call(&lab, "stack", "info", "127.0.0.1") < FEW);
}

#[test]
fn a_plain_end_is_reached_by_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for listens in ["127.0.0.1", "0.0.0.0"] {
        let _server = serve(&lab, "stack", "blocking", listens);
        for plane in ["plain", "without"] {
            assert!(call(&lab, plane, "blocking", "127.0.0.1") >= 2 * COUNT);
        }
        // A link that another client has does not matter.
        wait_until("memory", || call(&lab, "stack", "blocking", "127.0.0.1") < FEW);
        assert!(call(&lab, "plain", "blocking", "127.0.0.1") >= 2 * COUNT);
    }
    for plane in ["plain", "without"] {
        let _server = serve(&lab, plane, "blocking", "127.0.0.1");
        for how in ["blocking", "connected", "asyncio"] {
            assert!(call(&lab, "stack", how, "127.0.0.1") >= 2 * COUNT);
        }
    }
}

#[test]
fn several_readers_of_a_port_are_the_kernels() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let words = ["serve", "reuse", "127.0.0.1", PORT];
    let _server = Group::start(&mut program(&lab, "stack", &words));
    assert!(call(&lab, "stack", "blocking", "127.0.0.1") >= 2 * COUNT);
}

#[test]
fn other_processes_go_on_by_the_kernel() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    {
        let _server = serve(&lab, "stack", "blocking", "127.0.0.1");
        // Of the datagrams that are exchanged three times, or twice, the first are not the kernel's.
        for (how, times) in [("fork", 2), ("pass", 2), ("spawn", 2), ("exec", 1)] {
            let by_kernel = 2 * times * COUNT;
            wait_until(&format!("{how}: the first datagrams over memory"), || {
                let carried = call(&lab, "stack", how, "127.0.0.1");
                assert!(carried >= by_kernel, "{how}: {carried}");
                carried < by_kernel + FEW
            });
        }
    }
    for how in ["fork", "exec", "spawn"] {
        let words = ["serve", how, "127.0.0.1", PORT];
        let _server = Group::start(&mut program(&lab, "stack", &words));
        // The datagram that the process has received and not read is the other's.
        let carried = call(&lab, "stack", "blocking", "127.0.0.1");
        assert!((2 * COUNT - FEW..2 * COUNT + FEW).contains(&carried), "{how}: {carried}");
    }
}

#[test]
fn a_receiver_that_is_replaced_is_found() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut client = {
        let _server = serve(&lab, "stack", "blocking", "127.0.0.1");
        let mut client = hold(&lab, "hold");
        wait_until("memory", || again(&lab, &mut client) == 0);
        client
    };
    {
        let _server = serve(&lab, "plain", "blocking", "127.0.0.1");
        assert!(again(&lab, &mut client) >= 2 * COUNT);
    }
    let _server = serve(&lab, "stack", "blocking", "127.0.0.1");
    // It looks again now and then.
    wait_until("datagrams over memory", || again(&lab, &mut client) == 0);
}

#[test]
fn a_receiver_that_is_stopped_loses_what_it_has_no_room_for() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let server = serve(&lab, "stack", "blocking", "127.0.0.1");
    let pid = Pid::from_raw(server.child.id().cast_signed()).unwrap();
    let mut client = hold(&lab, "flood");
    wait_until("memory", || again(&lab, &mut client) == 0);
    kill_process(pid, Signal::STOP).unwrap();
    let before = packets(&lab);
    client.send_line("flood");
    client.wait_for("called");
    assert_eq!(packets(&lab) - before, 0);
    kill_process(pid, Signal::CONT).unwrap();
    client.send_line("");
    client.wait_for("done");
}

#[test]
fn a_port_that_is_closed_is_refused() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let mut client = {
        let _server = serve(&lab, "stack", "blocking", "127.0.0.1");
        hold(&lab, "refused")
    };
    client.send_line("");
    client.wait_for("done");
}
