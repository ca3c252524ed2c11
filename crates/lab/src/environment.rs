//! The environment variables of commands in a lab, by which a command can reach both hosts.
//!
//! The namespaces are named by descriptors of the lab's process, so the
//! names are valid as long as the lab exists.

use std::env;
use std::path::Path;

use crate::{Lab, LabError, LabHost, Namespace, Side};

/// The variables for a host's namespace and CPU.
fn names(side: Side) -> [&'static str; 2] {
    match side {
        Side::Client => ["BUSYPOLL_LAB_CLIENT_NS", "BUSYPOLL_LAB_CLIENT_CPU"],
        Side::Server => ["BUSYPOLL_LAB_SERVER_NS", "BUSYPOLL_LAB_SERVER_CPU"],
    }
}

impl Lab {
    /// The environment of a command on the host `side`: `BUSYPOLL_LAB_HOST`
    /// (`client` or `server`), `_INTERFACE`, `_ADDRESS` (its own IPv4), `_PEER` (the other's), and
    /// for both hosts `BUSYPOLL_LAB_CLIENT_NS`, `_CLIENT_CPU`, `_SERVER_NS`, `_SERVER_CPU`. An
    /// `_NS` can be given to `nsenter --net=`.
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

    /// The lab this process was started in, if its environment has the [`Lab::variables`].
    ///
    /// # Errors
    /// [`LabError::Ended`] if the lab's process is gone, [`LabError::Unprivileged`] if this process
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
