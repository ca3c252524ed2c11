//! `busypoll ss`: the sockets of the stack plane, of all runs of this user in this network namespace, as ss(8) lists
//! the kernel's. Reads what the runs keep in shared memory. Asks no program, and no guard but root's and this user's.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use busypoll_policy::fit::Width;
use busypoll_policy::{say, units};
use busypoll_stack::ledger::{LedgerEntry, LedgerQueue, SocketCounts, Way};
use busypoll_stack::wire::Protocol;
use busypoll_stack::{lease, stream_names, unix};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::{guard, watch};

/// Lists the sockets of the stack plane, as ss lists the kernel's.
///
/// Those of all runs of this user in this network namespace, and of root's runs as far as this user may see them: TCP
/// connections and listeners, UDP sockets, and AF_UNIX streams over memory. The queues of a listener are the connections that wait to be accepted, and
/// the limit. Connections over memory have the process at their other end in the column Link.
#[derive(Clone, Debug, clap::Args)]
pub struct SsArgs {
    /// How the packets of each socket were found, drops and retransmissions
    #[arg(short, long)]
    info: bool,
    /// List again after this time, until Ctrl-C
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", value_parser = interval)]
    watch: Option<Duration>,
    /// All columns, also where the terminal is too narrow for them
    #[arg(long)]
    wide: bool,
    /// In JSON, one line per socket
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::time(text)?;
    if time < Duration::from_millis(100) {
        return Err(format!("'{text}' is too short to read a list in; give at least 100ms"));
    }
    Ok(time)
}

/// A socket, as it is reported.
#[derive(Serialize)]
struct Row {
    netid: &'static str,
    state: &'static str,
    recv_q: u32,
    send_q: u32,
    local: String,
    peer: Option<String>,
    napi_id: Option<u32>,
    /// The process at the other end of its link; 0: not visible.
    link_pid: Option<i32>,
    process: String,
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<Info>,
    #[serde(skip)]
    ends: (SocketAddr, SocketAddr),
}

/// How a socket's packets were found.
#[derive(Serialize)]
struct Info {
    own_polls: u64,
    other_polls: u64,
    interrupts: u64,
    kernel: u64,
    drops: u64,
    retransmits: u64,
}

/// Lists them on `out`, with `--watch` again and again.
///
/// # Errors
/// The list cannot be written.
pub fn run_ss(args: &SsArgs, out: &mut impl Write) -> io::Result<()> {
    let Some(interval) = args.watch else { return list(args, out) };
    watch::repeat(interval, out, |out| list(args, out))
}

fn list(args: &SsArgs, out: &mut dyn Write) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut of_others = 0;
    let mut seen = BTreeSet::new();
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
        for (pid, ledger) in listed.unwrap_or_default() {
            // Its own guard lists it, and the guard whose interface it has joined.
            if pid != 0 && !seen.insert(pid) {
                continue;
            }
            let process = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let queues = ledger.queues();
            let of = (pid, process.trim_end());
            rows.extend(ledger.list().iter().map(|line| row(line, &queues, of, args.info)));
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
    rows.sort_by_key(|row| (row.netid, row.pid, row.ends));
    if args.json {
        for row in &rows {
            serde_json::to_writer(&mut *out, row)?;
            writeln!(out)?;
        }
        return Ok(());
    }
    let width = Width::of_stdout(args.wide);
    let text = width.fit(table(&rows), &["NAPI", "Send-Q", "Recv-Q", "Process"]);
    if !args.info {
        return writeln!(out, "{text}");
    }
    // Below each socket, as ss(8) shows what it knows of one.
    let mut infos = rows.iter().filter_map(|row| row.info.as_ref());
    for (nth, line) in text.lines().enumerate() {
        writeln!(out, "{line}")?;
        if let Some(info) = (nth > 0).then(|| infos.next()).flatten() {
            let text = format!("        {}\n", info.text());
            write!(out, "{}", width.wrap(text))?;
        }
    }
    Ok(())
}

impl Info {
    fn of(counts: &SocketCounts) -> Self {
        let SocketCounts { own_polls, other_polls, interrupts, kernel, drops, retransmits } =
            *counts;
        Info { own_polls, other_polls, interrupts, kernel, drops, retransmits }
    }

    fn text(&self) -> String {
        format!(
            "own_polls:{} other_polls:{} interrupts:{} kernel:{} drops:{} retransmits:{}",
            self.own_polls,
            self.other_polls,
            self.interrupts,
            self.kernel,
            self.drops,
            self.retransmits
        )
    }
}

fn row(line: &LedgerEntry, queues: &[LedgerQueue], (pid, process): (i32, &str), info: bool) -> Row {
    // An AF_UNIX stream, whose ends in the ledger are not its own.
    let stream = stream_names(line.local);
    let (local, peer) = match &stream {
        Some((local, peer)) => (local.clone(), Some(peer.clone())),
        None => {
            (line.local.to_string(), (line.remote.port() != 0).then(|| line.remote.to_string()))
        }
    };
    Row {
        ends: (line.local, line.remote),
        netid: if stream.is_some() {
            "u_str"
        } else if line.protocol == Protocol::UDP {
            "udp"
        } else {
            "tcp"
        },
        state: state(line.state),
        recv_q: line.unread,
        send_q: line.unacknowledged,
        local,
        peer,
        napi_id: Some(line.napi).filter(|id| *id != 0),
        link_pid: link_pid(line.napi, queues),
        process: process.to_owned(),
        pid,
        info: info.then(|| Info::of(&line.counts)),
    }
}

/// The process at the other end, if the queue with this id is a link's.
fn link_pid(napi: u32, queues: &[LedgerQueue]) -> Option<i32> {
    match queues.iter().find(|queue| napi != 0 && queue.napi == napi)?.way {
        Way::Link(pid) => Some(pid),
        Way::Interface => None,
    }
}

/// The names of `ss` (`sstate_name`, misc/ss.c of iproute2).
pub fn state(number: u8) -> &'static str {
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
    // Most hosts have no links.
    let has_links = rows.iter().any(|row| row.link_pid.is_some());
    let link = |text: String| has_links.then_some(text);
    let header = ["Netid", "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port"];
    let header = header.into_iter().chain(["NAPI"]).map(str::to_owned);
    let header = header.chain(link("Link".into())).chain(["Process".to_owned()]);
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        let unspecified = if row.ends.0.is_ipv4() { "0.0.0.0:*" } else { "[::]:*" };
        let link_text = match row.link_pid {
            None => "-".to_owned(),
            Some(0) => "local".to_owned(),
            Some(pid) => format!("local pid {pid}"),
        };
        let cells = [
            row.netid.to_owned(),
            row.state.to_owned(),
            row.recv_q.to_string(),
            row.send_q.to_string(),
            row.local.clone(),
            row.peer.clone().unwrap_or_else(|| unspecified.to_owned()),
            row.napi_id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
        ];
        let process = format!("{} {}", row.pid, row.process);
        table.add_row(cells.into_iter().chain(link(link_text)).chain([process]));
    }
    for column in [2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
