//! The rules in their order, and the settings they give a socket.

use std::net::SocketAddr;

use crate::matcher::{Match, Protocol};
use crate::names::Names;
use crate::settings::{Change, Settings};

/// One rule: its sockets, and the settings it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its sockets.
    pub sockets: Match,
    /// The settings that differ from [`Policy::defaults`].
    pub change: Change,
    /// The line of the file where the rule begins; 0 without a file.
    pub line: usize,
}

/// A policy: the defaults, and rules of which the first that matches a socket applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The settings of sockets that match no rule, and of what a rule leaves out.
    pub defaults: Settings,
    /// The rules in their order.
    pub rules: Vec<Rule>,
    /// The greatest number of threads, of all runs of a user, that may spin at once; `None` = as many
    /// as there are CPUs for them.
    pub max_spinning_threads: Option<u32>,
}

impl Policy {
    /// The settings of one socket, by the names of its program and its current addresses. Neither allocates nor
    /// locks, so that it may be called again after bind and connect.
    #[must_use]
    pub fn for_socket(
        &self,
        program: &Names,
        protocol: Protocol,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
    ) -> Settings {
        let rule = self.rules.iter().find(|r| r.sockets.fits(program, protocol, local, remote));
        rule.map_or(self.defaults, |rule| rule.change.apply(self.defaults))
    }

    /// The settings of an object that is not a single socket, such as an epoll instance: those of the
    /// first rule that names this program and no address or protocol, else the defaults.
    #[must_use]
    pub fn for_program(&self, program: &Names) -> Settings {
        let fits = |rule: &&Rule| {
            rule.sockets.protocol.is_none()
                && !rule.sockets.by_address()
                && rule.sockets.fits_program(program)
        };
        let rule = self.rules.iter().find(fits);
        rule.map_or(self.defaults, |rule| rule.change.apply(self.defaults))
    }

    /// The directory by which processes of other network namespaces are found, if any socket has one: it is the same for
    /// all.
    #[must_use]
    pub fn containers(&self) -> Option<&'static str> {
        let mut of_rules = self.rules.iter().filter_map(|rule| rule.change.containers);
        self.defaults.containers.or_else(|| of_rules.next())
    }

    /// Whether any rule depends on the program.
    #[must_use]
    pub fn names_programs(&self) -> bool {
        self.rules.iter().any(|rule| !rule.sockets.program.is_empty())
    }

    /// Removes the rules that no socket of this program can match, so that fewer must be compared
    /// with each socket.
    #[must_use]
    pub fn narrowed_to(mut self, program: &Names) -> Self {
        self.rules.retain(|rule| rule.sockets.fits_program(program));
        self
    }
}
