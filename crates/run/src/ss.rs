//! `busypoll ss`: the sockets of the stack plane, of all runs of this user in this network namespace, as ss(8) lists
//! the kernel's. Reads what the runs keep in shared memory. Asks no program, and no guard but root's and this user's.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;

use busypoll_policy::say;
use busypoll_stack::ledger::LedgerEntry;
use busypoll_stack::wire::Protocol;
use busypoll_stack::{lease, unix};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::guard;

/// Lists the sockets of the stack plane, as ss lists the kernel's.
///
/// Those of all runs of this user in this network namespace, and of root's runs as far as this user may see them: TCP
/// connections and listeners, UDP sockets. The queues of a listener are the connections that wait to be accepted, and
/// the limit.
#[derive(Clone, Debug, clap::Args)]
pub struct SsArgs {
    /// In JSON, one line per socket
    #[arg(long)]
    json: bool,
}

/// A socket, as it is reported.
#[derive(Serialize)]
struct Row {
    netid: &'static str,
    state: &'static str,
    recv_q: u32,
    send_q: u32,
    local: SocketAddr,
    peer: Option<SocketAddr>,
    napi_id: Option<u32>,
    process: String,
    pid: i32,
}

/// Lists them on `out`.
///
/// # Errors
/// The list cannot be written.
pub fn run_ss(args: &SsArgs, out: &mut impl Write) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut of_others = 0;
    for name in unix::names(guard::NAME) {
        let listed = lease::list(&name);
        match listed.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::TimedOut) => {
                say(format_args!("the guard @{name} does not answer; its sockets are not listed"));
            }
            Err(io::ErrorKind::PermissionDenied) => of_others += 1,
            _ => {}
        }
        // A guard that has gone meanwhile, or another user's, lists nothing.
        if let Ok(Some((pid, ledger))) = listed {
            let process = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            rows.extend(ledger.list().iter().map(|line| row(line, pid, process.trim_end())));
            match ledger.left_out() {
                0 => {}
                more => {
                    say(format_args!(
                        "process {pid} has {more} sockets more than its list holds; they are not listed"
                    ));
                }
            }
        }
    }
    if of_others > 0 && rustix::process::geteuid().is_root() {
        say(format_args!(
            "guards of other users are left out ({of_others}), as any user may listen at such a name; \
             `busypoll ss` of these users lists their own"
        ));
    }
    rows.sort_by_key(|row| (row.netid, row.pid, row.local, row.peer));
    if args.json {
        for row in &rows {
            serde_json::to_writer(&mut *out, row)?;
            writeln!(out)?;
        }
        return Ok(());
    }
    writeln!(out, "{}", table(&rows).trim_fmt())
}

fn row(line: &LedgerEntry, pid: i32, process: &str) -> Row {
    Row {
        netid: if line.protocol == Protocol::UDP { "udp" } else { "tcp" },
        state: state(line.state),
        recv_q: line.unread,
        send_q: line.unacknowledged,
        local: line.local,
        peer: Some(line.remote).filter(|peer| peer.port() != 0),
        napi_id: Some(line.napi).filter(|id| *id != 0),
        process: process.to_owned(),
        pid,
    }
}

/// The names of `ss` (`sstate_name`, misc/ss.c of iproute2).
fn state(number: u8) -> &'static str {
    const NAMES: [&str; 12] = [
        "UNKNOWN",
        "ESTAB",
        "SYN-SENT",
        "SYN-RECV",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "UNCONN",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
    ];
    NAMES.get(usize::from(number)).copied().unwrap_or("UNKNOWN")
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "Netid",
        "State",
        "Recv-Q",
        "Send-Q",
        "Local Address:Port",
        "Peer Address:Port",
        "NAPI",
        "Process",
    ]);
    for row in rows {
        let unspecified = if row.local.is_ipv4() { "0.0.0.0:*" } else { "[::]:*" };
        table.add_row([
            row.netid.to_owned(),
            row.state.to_owned(),
            row.recv_q.to_string(),
            row.send_q.to_string(),
            row.local.to_string(),
            row.peer.map_or_else(|| unspecified.to_owned(), |peer| peer.to_string()),
            row.napi_id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
            format!("{} {}", row.pid, row.process),
        ]);
    }
    for column in [2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
