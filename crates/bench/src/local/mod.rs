//! The `local-*` arms: two processes of this machine, joined by loopback, AF_UNIX, a cable, or bare memory. The second
//! process is this program once more.

mod memory;
pub(crate) mod process;
mod serve;
mod unix;

use std::net::Ipv4Addr;

use busypoll_linux::topology;
use busypoll_stack::nic::cable;

use crate::arm::{Arm, Nic, Protocol};
use crate::kernel::{self, Wait};
use crate::slot::{self, Plan, Slot};
use crate::stack;
use crate::workload::Load;

pub use process::OtherEnd;
pub use serve::serve;

use memory::Memory;
use process::{Job, Process};
use unix::Unix;

/// Why such an arm cannot run in a program that is not the command.
pub(crate) const NO_OTHER_END: &str =
    "needs a second process of this program, which only the busypoll command can be";

/// The addresses of the ends of a cable; the kernel does not know them.
const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// Runs an arm between two processes once.
///
/// # Errors
/// A message of one line.
pub fn run(arm: &Arm, plan: &Plan<'_>) -> Result<Slot, String> {
    let other_end = plan.other_end.ok_or(NO_OTHER_END)?;
    let (data, theirs) = match arm.nic {
        Nic::Unix => unix::pair(arm.protocol).map(Some)?.unzip(),
        Nic::Memory => memory::file(plan.size).map(Some)?.unzip(),
        _ => (None, None),
    };
    let other = Process::start(other_end, &job(arm, plan), theirs)?;
    // Only now, or the other process would begin with this CPU alone.
    let _pinned = topology::pin(plan.client_cpu).map_err(|e| e.to_string())?;
    let data = || data.ok_or_else(|| "nothing joins the processes".to_owned());
    let clock = plan.clock;
    // The open loop's client never sleeps, in any arm: only the server's waiting differs.
    let wait = match plan.load {
        Load::Closed { .. } => Wait::of(arm.mode, plan.busy_poll),
        Load::Open { .. } => Wait::Spin,
    };
    match (arm.nic, arm.protocol) {
        (Nic::Unix, protocol) => {
            slot::run_local(plan, &other, || Unix::new(data()?, protocol, wait, clock))
        }
        (Nic::Memory, _) => {
            slot::run_local(plan, &other, || Memory::client(&data()?, plan.size, clock))
        }
        (Nic::Cable, protocol) => {
            other.listens()?;
            let nic = cable::connect(&cable_name(std::process::id())).map_err(stack::one_line)?;
            let host = stack::host(nic, Some(ENDS[0]), plan.client_cpu)?;
            let wait = stack::Wait::client(arm, plan);
            match protocol {
                Protocol::Udp => slot::run_local(plan, &other, || {
                    stack::Udp::client(&host, other.address()?, wait, clock)
                }),
                Protocol::Tcp => slot::run_local(plan, &other, || {
                    stack::Tcp::client(&host, other.address()?, wait, clock)
                }),
            }
        }
        (_, Protocol::Udp) => {
            slot::run_local(plan, &other, || kernel::Udp::client(other.address()?, wait, clock))
        }
        (_, Protocol::Tcp) => {
            slot::run_local(plan, &other, || kernel::Tcp::client(other.address()?, wait, clock))
        }
    }
}

/// What the other process has to know.
fn job(arm: &Arm, plan: &Plan<'_>) -> Job {
    Job {
        arm: arm.name.to_owned(),
        cpu: plan.server_cpu,
        request_bytes: plan.size.request,
        response_bytes: plan.size.response,
        busy_poll_us: u64::try_from(plan.busy_poll.as_micros()).unwrap_or(u64::MAX),
        mtu: plan.mtu,
        bench: std::process::id(),
    }
}

/// The name at which the other process of `bench` listens for a cable.
fn cable_name(bench: u32) -> String {
    format!("bench-{bench}")
}
