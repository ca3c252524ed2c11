//! irqbalance(1), the daemon that moves interrupts, and those that it leaves alone. Touches only the list that
//! [`Irqbalance::ban`] sets, which is lost when the daemon ends.
//!
//! Source: irqbalance, `irqbalance.c` (`init_socket`, `sock_handle`), the protocol of irqbalance-ui.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::error::{Error, Result};

/// It answers between two scans of the interrupts, which are up to its interval apart.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A running irqbalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Irqbalance {
    /// Its PID.
    pub pid: u32,
}

impl Irqbalance {
    /// The running one, if any. It moves an interrupt that is not banned back within 10 s.
    pub fn find() -> Option<Self> {
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let pids = processes.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let is_it = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == "irqbalance")
        };
        pids.into_iter().find(is_it).map(|pid| Irqbalance { pid })
    }

    /// The interrupts it leaves alone.
    ///
    /// # Errors
    /// [`Error::Os`]: it has no socket, or does not answer because this user is not root.
    pub fn banned(self) -> Result<BTreeSet<u32>> {
        let answer = self.send("setup")?;
        // SLEEP 10 IRQ 24 LOAD 0 DIFF 0 CLASS 5 IRQ … BANNED 00000000
        let words: Vec<&str> = answer.split_ascii_whitespace().collect();
        if words.first() != Some(&"SLEEP") {
            let nothing = io::Error::other("it sent no answer, as to users other than root");
            return Err(Error::os(self.doing(), nothing));
        }
        let irq = |pair: &[&str]| (pair[0] == "IRQ").then(|| pair[1].parse().ok()).flatten();
        Ok(words.windows(2).filter_map(irq).collect())
    }

    /// Makes it leave these interrupts alone, and no others.
    ///
    /// # Errors
    /// As [`Irqbalance::banned`].
    pub fn ban(self, irqs: &BTreeSet<u32>) -> Result<()> {
        let list: Vec<String> = irqs.iter().map(u32::to_string).collect();
        let list = if list.is_empty() { "NONE".to_owned() } else { list.join(" ") };
        self.send(&format!("settings ban irqs {list}")).map(drop)
    }

    fn send(self, command: &str) -> Result<String> {
        let exchange = || {
            let path = format!("/run/irqbalance/irqbalance{}.sock", self.pid);
            let mut socket = UnixStream::connect(path)?;
            socket.set_read_timeout(Some(READ_TIMEOUT))?;
            socket.write_all(command.as_bytes())?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer)?;
            Ok(answer)
        };
        exchange().map_err(|e| Error::os(self.doing(), e))
    }

    fn doing(self) -> String {
        format!("asking irqbalance (PID {}) which interrupts it leaves alone", self.pid)
    }
}
