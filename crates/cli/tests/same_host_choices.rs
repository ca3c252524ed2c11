//! Connections that must not go over memory, though both ends are under `run --plane stack`: the kernel would give them to
//! another program, or could not take them over. And runs that have memory but no interface.

#[path = "support/echo.rs"]
mod echo;
mod support;
#[path = "support/two_programs.rs"]
mod two_programs;

use std::process::Command;

use busypoll_lab::{Lab, needs, needs_root};
use echo::*;
use support::*;
use two_programs::packets;

const PORT: &str = "7200";

fn listener(lab: &Lab, plane: &str, name: &str, address: &str) -> Running {
    let words = ["serve", name, address, PORT];
    Running::start(&mut two_programs::program(lab, "listeners.py", plane, &words))
}

/// A client at `address`, which says which listeners have answered its connections.
fn client(lab: &Lab, plane: &str, address: &str) -> Running {
    let words = ["call", address, PORT, "20"];
    Running::spawn(&mut two_programs::program(lab, "listeners.py", plane, &words))
}

#[test]
fn a_connection_goes_to_the_listener_that_the_kernel_chooses() {
    needs_root!();
    needs!(program "python3");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for (any, specific, at) in [
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("::", "127.0.0.1", "127.0.0.1"),
        ("::", "0.0.0.0", "127.0.0.1"),
        ("::", "::1", "::1"),
    ] {
        let _ours = listener(&lab, "stack", "ours", any);
        let mut client = client(&lab, "stack", at);
        client.wait_for("ours=20");
        let mut uses_memory = || {
            let before = packets(&lab);
            client.send_line("");
            client.wait_for("ours=20");
            packets(&lab) - before < 10
        };
        wait_until("memory", &mut uses_memory);
        let plain = listener(&lab, "plain", "plain", specific);
        let mut another = self::client(&lab, "plain", at);
        another.wait_for("plain=20");
        // It knows the way to the other listener.
        client.send_line("");
        assert_eq!(client.wait_for("done"), "plain=20 done\n", "{any} {specific}");
        drop(plain);
        client.send_line("");
        assert_eq!(client.wait_for("done"), "ours=20 done\n", "{any} {specific}");
    }
}

/// `words` on the server's host without a capability.
fn without(lab: &Lab, capability: &str, words: &[&str]) -> Command {
    let mut command = lab.server.command("setpriv");
    let without = format!("-{capability}");
    command.args(["--bounding-set", &without, "--inh-caps", &without, "--"]).args(words);
    command
}

#[test]
fn without_the_capability_to_hand_connections_over_they_are_the_kernels() {
    needs_root!();
    needs!(program "python3", program "setpriv");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    let source = source("local.py");
    let run = |words: &[&str]| {
        let device = lab.server.interface();
        let run = [BUSYPOLL, "run", "--plane", "stack", "--dev", device, "--", "python3"];
        let program = [source.to_str().unwrap()];
        without(&lab, "net_admin", &[&run[..], &program, words].concat())
    };
    let _server = Running::start(&mut run(&["serve", "threads", "127.0.0.1", PORT]));
    for how in ["blocking", "fork", "exec"] {
        let mut client = run(&["call", how, "127.0.0.1", PORT, "100000"]);
        assert!(two_programs::call(&lab, &mut client) > 10, "{how}");
    }
}

#[test]
fn with_several_interfaces_or_loopback_named_a_run_has_memory() {
    needs_root!();
    needs!(program "python3", program "ip");
    let _one = one_test_at_a_time();
    let lab = Lab::builder().build().unwrap();
    for words in [
        "link add more0 type veth peer name more1",
        "address add 192.0.2.77/24 dev more0",
        "link set more0 up",
    ] {
        let words = words.split(' ');
        assert!(lab.server.command("ip").args(words).status().unwrap().success());
    }
    let source = source("local.py");
    let run = |dev: &[&str], words: &[&str]| {
        let mut command = lab.server.command(BUSYPOLL);
        command.args(["run", "--plane", "stack"]).args(dev).args(["--", "python3"]);
        command.arg(&source).args(words);
        command
    };
    for (dev, wanted) in [(&[][..], "several interfaces"), (&["--dev", "lo"], "--dev lo")] {
        let _server = Running::start(&mut run(dev, &["serve", "threads", "0.0.0.0", PORT]));
        let words = ["call", "blocking", "127.0.0.1", PORT, "1000000"];
        for at in ["127.0.0.1", "192.0.2.77", &lab.server.ipv4().to_string()] {
            let words = words.map(|word| if word == "127.0.0.1" { at } else { word });
            wait_until(&format!("{wanted} {at}: memory"), || {
                two_programs::call(&lab, &mut run(dev, &words)) < 10
            });
        }
        let output = run(dev, &words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains(wanted) && said.contains("only what programs of this machine"),
            "{said}"
        );
    }
    let strict = run(&["--strict"], &["call", "blocking", "127.0.0.1", PORT, "1"]);
    let output = { strict }.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
