//! The firewall rules that packets taken over AF_XDP skip: XDP runs before every hook of netfilter. Reads nftables over
//! netlink (net/netfilter/nf_tables_api.c), the list of legacy iptables tables, and the BPF programs of the control
//! group; changes nothing.

mod group_programs;

use crate::{
    nic::xdp::netlink::{Attributes, Message, Request, Socket, u32_at},
    stderr,
};
use std::{collections::HashSet, fmt, fs, io, sync::Once};

// linux/netfilter/nf_tables.h
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_RULE_TABLE: u16 = 1;
/// Size of `struct nfgenmsg`; its first byte is the family.
const NFGENMSG: usize = 4;

/// The families whose hooks see our packets. (netdev is also ingress, before IP.)
const FAMILIES: [i32; 4] =
    [libc::NFPROTO_INET, libc::NFPROTO_IPV4, libc::NFPROTO_IPV6, libc::NFPROTO_NETDEV];

/// How often a dump is read again if the rules change meanwhile.
const DUMPS: u32 = 8;

/// The rules found, at least one.
#[derive(Debug)]
pub struct Rules {
    nftables: usize,
    /// Names of the legacy iptables tables in use. The list does not say how many rules they have.
    iptables: Vec<String>,
    /// Names of BPF programs of the control group.
    programs: Vec<String>,
}

impl Rules {
    /// The number of rules. A legacy table and a BPF program count as one.
    pub fn count(&self) -> usize {
        self.nftables + self.iptables.len() + self.programs.len()
    }

    /// Reports on stderr, once per process, that packets on `interface` skip these rules.
    pub fn report(&self, interface: &str) {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            stderr::print(format_args!(
                "{interface}: firewall rules are in force here ({self}); packets for accelerated sockets \
                 skip them"
            ));
        });
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.nftables == 1 { "" } else { "s" };
        let nftables = format!("nftables: {} rule{plural}", self.nftables);
        let iptables = format!("legacy iptables: {}", self.iptables.join(" "));
        let programs = format!("BPF programs of the control group: {}", self.programs.join(" "));
        let parts = [
            (nftables, self.nftables == 0),
            (iptables, self.iptables.is_empty()),
            (programs, self.programs.is_empty()),
        ];
        let parts = parts.into_iter().filter_map(|(part, is_empty)| (!is_empty).then_some(part));
        f.write_str(&parts.collect::<Vec<_>>().join(", "))
    }
}

/// The rules of the calling thread's network namespace and the process's control group. `None` if there are none, or
/// they cannot be read, which takes CAP_NET_ADMIN and a kernel with nftables.
pub fn rules() -> Option<Rules> {
    let nftables = (0..DUMPS).map(|_| nftables()).find(|dump| !changed_under_us(dump));
    let rules = Rules {
        nftables: nftables.and_then(Result::ok).unwrap_or(0),
        iptables: iptables(),
        programs: group_programs::names(),
    };
    (rules.count() > 0).then_some(rules)
}

fn changed_under_us(dump: &io::Result<usize>) -> bool {
    dump.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted)
}

/// All rules of tables with a hook that our packets would pass if they went through the kernel. A chain's policy to
/// drop counts as a rule, too.
fn nftables() -> io::Result<usize> {
    let mut socket = Socket::of(libc::NETLINK_NETFILTER)?;
    let mut tables = HashSet::new();
    let mut rules = 0;
    socket.request(dump(libc::NFT_MSG_GETCHAIN), &mut |chain| {
        let hook = attribute(chain, NFTA_CHAIN_HOOK)
            .and_then(|hook| Attributes::nested(hook).find(|(kind, _)| *kind == NFTA_HOOK_HOOKNUM));
        let Some(hook) = hook.and_then(|(_, number)| be32(number)) else { return };
        // Forwarded packets are never ours.
        if hook != libc::NF_INET_FORWARD
            && let Some(table) = table(chain, NFTA_CHAIN_TABLE)
        {
            tables.insert(table);
            let policy = attribute(chain, NFTA_CHAIN_POLICY).and_then(be32);
            rules += usize::from(policy == Some(libc::NF_DROP));
        }
    })?;
    socket.request(dump(libc::NFT_MSG_GETRULE), &mut |rule| {
        rules += usize::from(table(rule, NFTA_RULE_TABLE).is_some_and(|of| tables.contains(&of)));
    })?;
    Ok(rules)
}

/// A request for all objects of all families.
fn dump(message: libc::c_int) -> Request {
    let kind = libc::NFNL_SUBSYS_NFTABLES << 8 | message;
    Request::new(kind as u16, &[0; NFGENMSG]).dump()
}

/// Family and name of the table that `message` is about, if its family matters here.
fn table(message: Message<'_>, kind: u16) -> Option<(i32, Vec<u8>)> {
    let family = i32::from(*message.payload.first()?);
    let name = attribute(message, kind)?;
    FAMILIES.contains(&family).then(|| (family, name.to_vec()))
}

fn attribute(message: Message<'_>, kind: u16) -> Option<&[u8]> {
    message.attributes(NFGENMSG).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// nftables writes its numbers in network order.
fn be32(value: &[u8]) -> Option<i32> {
    u32_at(value, 0).map(|number| u32::from_be(number) as i32)
}

/// The tables that legacy iptables has registered. From the thread's own file: /proc/net is that of the first thread's
/// namespace.
fn iptables() -> Vec<String> {
    let tables = |command: &str| {
        let names = fs::read_to_string(format!("/proc/thread-self/net/{command}_tables_names"));
        let names = names.unwrap_or_default();
        names.lines().map(|name| format!("{command}:{name}")).collect::<Vec<_>>()
    };
    [tables("ip"), tables("ip6")].concat()
}
