//! In which order a connection changes its owner, the kernel or this process. The steps are behind two traits, so that
//! the models in `tests/loom.rs` run the same order against a kernel and a peer of their own.
//!
//! What the order makes sure of: the new owner has all that was acknowledged to the peer; at no time both send; and if
//! the process ends between two steps, or a step fails that cannot be undone, the peer learns that the connection is
//! over. The kernel's socket is *frozen* (`TCP_REPAIR`) while it is not the owner: it tells the peer nothing if it is
//! closed. So the guard must know of the connection before that, and until after.

/// The steps of taking a connection over from the kernel, whose socket goes on receiving while it is frozen.
pub(crate) trait FromKernel {
    /// The connection, now ours.
    type Ours;
    /// Why it stays the kernel's.
    type Why;

    /// From now on the guard resets the connection if this process ends.
    fn note(&mut self);
    /// Freezes the kernel's socket.
    fn freeze(&mut self) -> Result<(), Self::Why>;
    /// Makes a connection of ours of all that the kernel's socket has received.
    fn copy(&mut self) -> Result<(), Self::Why>;
    /// From now on the packets come to ours. What the kernel's socket still acknowledges, of packets that were on their
    /// way, is to be passed on until none can be; then it is closed, frozen.
    fn steer(&mut self) -> Result<Self::Ours, Self::Why>;
    /// Forgets ours, if there is one, without a word.
    fn forget(&mut self);
    /// The kernel's socket goes on. False: that cannot be done.
    fn thaw(&mut self) -> bool;
    /// Ends the kernel's socket, which is frozen: its user learns it at once, the peer with its next packet.
    fn end(&mut self);
}

/// Takes a connection over from the kernel.
///
/// # Errors
/// It stays the kernel's, or has ended.
pub(crate) fn take_over<S: FromKernel>(steps: &mut S) -> Result<S::Ours, S::Why> {
    steps.note();
    steps.freeze()?;
    steps.copy().and_then(|()| steps.steer()).inspect_err(|_| {
        steps.forget();
        if !steps.thaw() {
            steps.end();
        }
    })
}

/// The steps of handing a connection over to a socket of the kernel's. Ours does not change meanwhile, and the guard
/// knows of it.
pub(crate) trait ToKernel {
    type Error;

    /// Freezes the kernel's socket, which is not connected yet.
    fn freeze(&mut self) -> Result<(), Self::Error>;
    /// Makes it a connection with the state of ours.
    fn copy(&mut self) -> Result<(), Self::Error>;
    /// From now on the packets come to the kernel.
    fn steer(&mut self) -> Result<(), Self::Error>;
    /// The kernel's socket goes on.
    fn thaw(&mut self) -> Result<(), Self::Error>;
    /// Makes the kernel's socket unconnected again, without a word.
    fn forget(&mut self);
}

/// Why a connection was not handed over.
#[derive(Debug)]
pub(crate) enum Failed<E> {
    /// It stays ours.
    Stays(E),
    /// The kernel has its packets, and no socket for them: reset it.
    Lost(E),
}

/// Hands a connection over to the kernel. The caller then ends ours without a word, and lets the guard forget it.
///
/// # Errors
/// See [`Failed`].
pub(crate) fn hand_over<S: ToKernel>(steps: &mut S) -> Result<(), Failed<S::Error>> {
    steps.freeze().map_err(Failed::Stays)?;
    if let Err(error) = steps.copy().and_then(|()| steps.steer()) {
        steps.forget();
        return Err(Failed::Stays(error));
    }
    steps.thaw().map_err(|error| {
        steps.forget();
        Failed::Lost(error)
    })
}
