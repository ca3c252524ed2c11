//! The CPUs that client and server run on.

use busypoll_linux::topology;

/// The CPUs of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// The client's, which same-cpu arms use for the server, too.
    pub client: u32,
    /// The server's; none if this process may use only one CPU, or the server is on another machine.
    pub server: Option<u32>,
    /// Whether the two are SMT siblings.
    pub share_core: bool,
}

impl Cpus {
    /// The pair that the user named, or the best available.
    ///
    /// # Errors
    /// A message of one line if a named CPU cannot be used.
    pub fn choose(named: Option<(u32, u32)>) -> Result<Self, String> {
        let allowed = topology::allowed().map_err(|e| e.to_string())?;
        if let Some((client, server)) = named {
            for cpu in [client, server] {
                // Pinning checks that the CPU is online and allowed.
                topology::pin(cpu).map(drop).map_err(|e| format!("--cpus: {e}"))?;
            }
            let share_core = topology::cpu(client).siblings.contains(server);
            return Ok(Self { client, server: Some(server), share_core });
        }
        match topology::default_pair() {
            Ok(p) => Ok(Self { client: p.first, server: Some(p.second), share_core: p.share_core }),
            Err(e) => {
                let only = allowed.iter().next().ok_or_else(|| e.to_string())?;
                Ok(Self { client: only, server: None, share_core: false })
            }
        }
    }
}
