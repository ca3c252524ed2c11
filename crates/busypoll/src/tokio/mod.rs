//! Sockets of the stack plane for tokio, with the names and the meaning of tokio's own. Feature `tokio`.
//!
//! A task waits in the socket's wait queue, and the thread that delivers a packet wakes it: there is no descriptor, and
//! no system call. Any runtime of tokio will do; these types use no reactor.
//!
//! **What polls**: nothing, unless the runtime has a [`PollerTask`]. Spawn one for each host, on a runtime of one thread
//! that has a CPU of its own. It polls the host's queues whenever the other tasks wait, for the time given, as
//! `SO_BUSY_POLL` does for a blocking call; then the interrupts take over until a task waits again. Without it a packet
//! raises the interrupt of its queue, whose thread delivers it and wakes the runtime.
//!
//! A runtime checks its timers and the kernel's descriptors after every `event_interval` polls of tasks (61 unless set),
//! and passes of the poller task count as such. So those are late by some microseconds at most. The future given to
//! `block_on` is woken by a system call: let spawned tasks use the sockets.
//!
//! ```
//! use busypoll::stack::{Host, nic::cable};
//! use busypoll::tokio::{PollerTask, TcpListener, TcpStream};
//! use std::time::Duration;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let (a, b) = cable::pair(cable::Config::default())?;
//! let left = Host::builder().interface(a, "10.0.0.1/24").build()?;
//! let right = Host::builder().interface(b, "10.0.0.2/24").build()?;
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! runtime.spawn(PollerTask::new(&left, Duration::from_micros(50))?);
//! runtime.spawn(PollerTask::new(&right, Duration::from_micros(50))?);
//! runtime.block_on(async {
//!     let listener = TcpListener::bind(&right, "10.0.0.2:7").await?;
//!     tokio::spawn(async move {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         let (mut reader, mut writer) = stream.split();
//!         tokio::io::copy(&mut reader, &mut writer).await
//!     });
//!     let mut stream = TcpStream::connect(&left, "10.0.0.2:7").await?;
//!     stream.write_all(b"ping").await?;
//!     let mut answer = [0; 4];
//!     stream.read_exact(&mut answer).await?;
//!     assert_eq!(&answer, b"ping");
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! `TaskWait` of [`stack`](crate::stack) is the same for other runtimes, and its `ReadyFd` a descriptor for mio, for
//! tokio's `AsyncFd`, or for an epoll instance of your own.

mod listener;
mod split;
mod stream;
mod udp;
mod waits;

pub use busypoll_stack::PollerTask;
pub use listener::TcpListener;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
pub use udp::UdpSocket;
