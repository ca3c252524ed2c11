//! Two hosts on one machine: network namespaces joined by a veth pair on which NAPI is really on.
//!
//! ```no_run
//! let lab = busypoll_lab::Lab::builder().queues(2).build()?;
//! let answered = lab.client.command("ping").args(["-c1", "10.77.0.2"]).status()?.success();
//! let bound = lab.server.enter(|| std::net::UdpSocket::bind(("10.77.0.2", 7)))??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing in the lab has a name outside the process: file descriptors hold the namespaces,
//! and both interfaces are created inside them. So the lab ends with the process, however the process
//! ends, and the machine's own interfaces, `/run/netns` and firewall are not affected. A child
//! started inside a host keeps that host alive until the child ends.
//!
//! Without root, call [`enter_user_namespace`] first thing in `main`.
//!
//! Linux only. `/sys` inside a host still shows the machine's own devices: use rtnetlink or ethtool
//! instead.

mod cpu;
mod environment;
mod error;
mod interface;
mod lab;
mod mirror;
mod namespace;
pub mod needs;
mod rtnetlink;
mod side;
mod user_namespace;
pub mod vm;

pub use error::LabError;
pub use lab::{Lab, LabBuilder, LabHost};
pub use mirror::Mirror;
pub use namespace::Namespace;
pub use side::{PREFIX_V4, PREFIX_V6, Side};
pub use user_namespace::{enter_user_namespace, in_own_user_namespace};
