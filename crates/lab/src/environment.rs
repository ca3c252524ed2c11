//! A lab in the environment of the commands that run in it, so that a command can reach both hosts.
//!
//! Owns the names of the variables. The namespaces are named by the holder's descriptors, so the
//! names are good exactly as long as the lab is.

use std::env;
use std::path::Path;

use crate::{Lab, LabError, LabHost, Namespace, Side};

/// Variables that name a host's namespace and CPU.
fn names(side: Side) -> [&'static str; 2] {
    match side {
        Side::Client => ["BUSYPOLL_LAB_CLIENT_NS", "BUSYPOLL_LAB_CLIENT_CPU"],
        Side::Server => ["BUSYPOLL_LAB_SERVER_NS", "BUSYPOLL_LAB_SERVER_CPU"],
    }
}

impl Lab {
    /// What a command on the host `side` should find in its environment: `BUSYPOLL_LAB_HOST`
    /// (`client` or `server`), `_INTERFACE`, `_ADDRESS` (its own IPv4), `_PEER` (the other's), and
    /// for both hosts `BUSYPOLL_LAB_CLIENT_NS`, `_CLIENT_CPU`, `_SERVER_NS`, `_SERVER_CPU`. An
    /// `_NS` suits `nsenter --net=`.
    #[must_use]
    pub fn variables(&self, side: Side) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("BUSYPOLL_LAB_HOST", side.to_string()),
            ("BUSYPOLL_LAB_INTERFACE", side.interface().into()),
            ("BUSYPOLL_LAB_ADDRESS", side.ipv4().to_string()),
            ("BUSYPOLL_LAB_PEER", side.peer().ipv4().to_string()),
        ];
        for host in [&self.client, &self.server] {
            let [namespace, cpu] = names(host.side());
            variables.extend([(namespace, host.path()), (cpu, host.cpu().to_string())]);
        }
        variables
    }

    /// The lab this process was started in, if its environment has [`Lab::variables`].
    ///
    /// # Errors
    /// [`LabError::Ended`] if the lab's holder is gone, [`LabError::Unprivileged`] if the process
    /// may not enter it.
    pub fn from_environment() -> Result<Option<Self>, LabError> {
        let host = |side| {
            let [namespace, cpu] = names(side).map(|name| env::var(name).ok());
            let (Some(path), Some(cpu)) = (namespace, cpu.and_then(|cpu| cpu.parse().ok())) else {
                return Ok(None);
            };
            let namespace =
                Namespace::open(Path::new(&path)).map_err(|_| LabError::Ended { path })?;
            LabHost::find(namespace, side, cpu).map(Some)
        };
        let (client, server) = (host(Side::Client)?, host(Side::Server)?);
        Ok(client.zip(server).map(|(client, server)| Self { client, server }))
    }
}
