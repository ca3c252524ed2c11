//! TCP sockets of ours made of the kernel's: for those who bring existing programs' sockets here, after bind(2) and
//! listen(2) have said all that is to be said about the port.

use super::{
    endpoint::Endpoint,
    listener::TcpListener,
    stream::{Bound, TcpStream},
};
use crate::{
    Host,
    host::{Beside, BesideEndpoint, Hold, Service, get_option},
    inet::tcp::{Ready, TcpEndpoint},
    napi::Pass,
    socket::options::{IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, errno},
    sync::lock,
    sys, time,
};
use std::{
    io,
    net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream},
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// So long after a port was taken over from the kernel, what was on its way to the kernel's connections has been
/// taken from our rings.
const TAKE_OVER: Duration = Duration::from_millis(200);

/// What a listener accepts that listens beside one of the kernel's.
#[derive(Debug)]
pub enum Accepted {
    /// A connection over our queues, and who made it.
    Ours(TcpStream, SocketAddr),
    /// A connection that the kernel has made (loopback, other interfaces), as accept(2) returns it.
    Kernel(KernelStream),
}

/// The kernel's half of a listener.
#[derive(Debug)]
pub(super) struct KernelHalf {
    /// Perhaps connections wait at the kernel's socket.
    waiting: Arc<Waiting>,
    kernel: Beside,
}

#[derive(Debug)]
struct Waiting {
    some: AtomicBool,
    endpoint: Arc<Endpoint>,
    /// The kernel's socket, to be looked at.
    kernel: RawFd,
    /// Held to look at it or to accept from it, so that nobody is told of a connection that was accepted already.
    looking: Mutex<()>,
}

impl BesideEndpoint for Waiting {
    fn readable(&self, pass: &mut Pass<'_>) {
        let _looking = lock(&self.looking);
        if sys::poll(self.kernel, Some(Duration::ZERO)) > 0 {
            self.some.store(true, Ordering::SeqCst);
            self.endpoint.changed(Ready::READABLE, None, pass);
        }
    }
}

impl KernelHalf {
    /// The next of the kernel's connections; who `looks` takes also one that was not heard of.
    pub(super) fn accept(&self, looks: bool) -> Option<io::Result<KernelStream>> {
        // Forgotten before we look: what comes after the look is remembered.
        if !self.waiting.some.swap(false, Ordering::SeqCst) && !looks {
            return None;
        }
        let _looking = lock(&self.waiting.looking);
        let accepted = self.kernel.accept();
        if accepted.is_some() {
            self.waiting.some.store(true, Ordering::SeqCst);
        }
        accepted
    }

    /// Whether one was heard of and not taken; at first, nobody has looked yet.
    pub(super) fn may_have_some(&self) -> bool {
        self.waiting.some.load(Ordering::SeqCst)
    }

    /// Whether there is one.
    pub(super) fn has_some(&self) -> bool {
        if !self.waiting.some.swap(false, Ordering::SeqCst) {
            return false;
        }
        let some = self.kernel.is_readable();
        if some {
            self.waiting.some.store(true, Ordering::SeqCst);
        }
        some
    }
}

impl TcpStream {
    /// A socket at the address that `kernel` is bound to, for [`connect_to`](TcpStream::connect_to). It takes its
    /// own hold of `kernel`, which keeps the port until the last connection from it is over.
    ///
    /// Options are not taken over but for those that bind(2) looks at.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if it is bound to no address of an interface that `host` shares, and what binding can fail
    /// with; no descriptor left.
    pub fn adopt(host: &Host, kernel: &KernelStream) -> io::Result<TcpStream> {
        let own = kernel.as_fd().try_clone_to_owned()?;
        let local = kernel.local_addr()?;
        adopted(host, local, kernel, |service, only_v6| {
            Ok(service.hold_to_connect(local, only_v6, own))
        })
    }
}

impl TcpListener {
    /// Listens where `kernel` does, beside it: whoever comes over our queues connects to us, whoever comes another
    /// way to the kernel's socket, and [`accept_any`](TcpListener::accept_any) accepts from both. Others may hold
    /// descriptors of `kernel`; if it blocks, it does not for the moments in which we accept from it.
    ///
    /// Options are not taken over but for those that bind(2) looks at. `backlog` as in
    /// [`listen`](TcpStream::listen).
    ///
    /// # Errors
    /// EADDRNOTAVAIL if it is bound to no address of an interface that `host` shares, and what listening can fail
    /// with; no descriptor left.
    pub fn beside(host: &Host, kernel: &KernelListener, backlog: u32) -> io::Result<TcpListener> {
        TcpListener::beside_taken(host, kernel, backlog, None)
    }

    /// As [`beside`](TcpListener::beside), of a `kernel` whose port was [taken](PortTaken::before_listen) before it
    /// listened.
    ///
    /// # Errors
    /// As [`beside`](TcpListener::beside).
    pub fn beside_taken(
        host: &Host,
        kernel: &KernelListener,
        backlog: u32,
        taken: Option<PortTaken>,
    ) -> io::Result<TcpListener> {
        let own = KernelListener::from(kernel.as_fd().try_clone_to_owned()?);
        // What comes before we listen, or know which connections the kernel has, is not to be refused.
        let taking_over = || host.inet().tcp_take_over_until(time::now() + TAKE_OVER);
        taking_over();
        let local = own.local_addr()?;
        let stream = adopted(host, local, &own, |service, only_v6| match taken {
            Some(PortTaken(hold)) if hold.local() == Some(local) => Ok(Some(hold)),
            _ => service.adopt_hold(local, only_v6, false),
        })?;
        taking_over();
        stream.listen_beside(backlog, |endpoint| {
            let waiting = Arc::new(Waiting {
                some: AtomicBool::new(true),
                endpoint: endpoint.clone(),
                kernel: own.as_raw_fd(),
                looking: Mutex::new(()),
            });
            let service = host.kernel().ok_or_else(|| errno(libc::EADDRNOTAVAIL))?;
            Ok(KernelHalf { kernel: service.beside(own, waiting.clone())?, waiting })
        })
    }

    /// As [`accept`](TcpListener::accept), also of those that have come to the kernel's socket, for a listener that
    /// listens [`beside`](TcpListener::beside) one. Non-blocking if `dont_wait`, whatever the socket is.
    ///
    /// # Errors
    /// As [`accept`](TcpListener::accept), and what accept(2) says.
    pub fn accept_any(&self, dont_wait: bool) -> io::Result<Accepted> {
        self.accept_from_both(dont_wait)
    }
}

/// A port whose packets come to our queues, before a kernel socket that is bound to it listens: so the kernel has no
/// connection there.
#[derive(Debug)]
pub struct PortTaken(Hold);

impl PortTaken {
    /// Takes the port of `kernel`, which nobody else is bound to. What comes before a
    /// [listener](TcpListener::beside_taken) of ours is there is not answered.
    ///
    /// # Errors
    /// As [`beside`](TcpListener::beside).
    pub fn before_listen(host: &Host, kernel: &KernelListener) -> io::Result<PortTaken> {
        host.inet().tcp_take_over_until(time::now() + TAKE_OVER);
        let only_v6 = get_option(kernel, IPPROTO_IPV6, IPV6_V6ONLY).is_ok_and(|on| on != 0);
        let service = host.kernel().ok_or_else(|| errno(libc::EADDRNOTAVAIL))?;
        let hold = service.adopt_hold(kernel.local_addr()?, only_v6, true)?;
        hold.map(PortTaken).ok_or_else(|| errno(libc::EADDRNOTAVAIL))
    }
}

/// A socket of ours that is bound where `kernel` is, with the hold that is made for it.
fn adopted(
    host: &Host,
    local: SocketAddr,
    kernel: &impl AsRawFd,
    hold: impl FnOnce(&Service, bool) -> io::Result<Option<Hold>>,
) -> io::Result<TcpStream> {
    let stream = TcpStream::new(host);
    let on = |level, name| get_option(kernel, level, name).is_ok_and(|on| on != 0);
    for (level, name) in
        [(SOL_SOCKET, SO_REUSEADDR), (SOL_SOCKET, SO_REUSEPORT), (IPPROTO_IPV6, IPV6_V6ONLY)]
    {
        if on(level, name) {
            stream.setsockopt(level, name, 1)?;
        }
    }
    let options = lock(&stream.0.values).clone();
    let Some(service) = host.kernel() else { return Err(errno(libc::EADDRNOTAVAIL)) };
    let hold = hold(service, options.only_v6)?.ok_or_else(|| errno(libc::EADDRNOTAVAIL))?;
    let inet = host.inet().tcp_bind_agreed(local, &options.listen(0))?;
    stream.0.set_bound(Bound { inet, hold: Some(Arc::new(hold)) });
    Ok(stream)
}
