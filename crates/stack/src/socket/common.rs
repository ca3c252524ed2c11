//! The methods that every kind of socket has: the typed options about waiting, and what `poll` and `Epoll`
//! need of a socket.

/// Implements the options about waiting and [`Socket`](super::source::Socket) for `$socket`. `$waiting` returns its
/// `WaitOptions`, `$endpoint` the source of its events.
macro_rules! common_options {
    ($socket:ident, $waiting:expr, $endpoint:expr) => {
        impl $socket {
            /// `SO_BUSY_POLL`: microseconds that a call may busy poll before it sleeps; 0 = off. Starts with
            /// the host's `busy_read`.
            ///
            /// # Errors
            /// EINVAL above 2^31 - 1.
            pub fn set_busy_poll(&self, micros: u32) -> io::Result<()> {
                $waiting(self).set_busy_poll(micros)
            }

            /// `SO_BUSY_POLL`, in microseconds.
            pub fn busy_poll(&self) -> u32 {
                $waiting(self).busy_poll()
            }

            /// `SO_PREFER_BUSY_POLL`: after a busy poll the queue is left to its pollers four times as long,
            /// even while other threads sleep that wait for its packets.
            ///
            /// # Errors
            /// None today; a `Result` as in Linux.
            pub fn set_prefer_busy_poll(&self, on: bool) -> io::Result<()> {
                $waiting(self).set_prefer_busy_poll(on);
                Ok(())
            }

            /// `SO_PREFER_BUSY_POLL`.
            pub fn prefer_busy_poll(&self) -> bool {
                $waiting(self).prefers_busy_poll()
            }

            /// `SO_BUSY_POLL_BUDGET`: the most packets of one busy-poll pass; 0 means 8.
            ///
            /// # Errors
            /// None today; a `Result` as in Linux.
            pub fn set_busy_poll_budget(&self, packets: u16) -> io::Result<()> {
                $waiting(self).set_budget(packets);
                Ok(())
            }

            /// `SO_BUSY_POLL_BUDGET`.
            pub fn busy_poll_budget(&self) -> u16 {
                $waiting(self).budget()
            }

            /// `SO_INCOMING_NAPI_ID`: the context that the last packet came from.
            pub fn incoming_napi_id(&self) -> Option<NapiId> {
                Source::napi(&**$endpoint(self))
            }

            /// Calls return `WouldBlock` instead of waiting. They still make one busy-poll pass if
            /// `SO_BUSY_POLL` is set.
            ///
            /// # Errors
            /// None today; a `Result` as in std.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                $waiting(self).set_nonblocking(nonblocking);
                Ok(())
            }

            /// Whether calls return `WouldBlock` instead of waiting.
            pub fn nonblocking(&self) -> bool {
                $waiting(self).is_nonblocking()
            }

            /// The socket's readiness now, as poll(2) reports it.
            pub fn readiness(&self) -> Events {
                Source::readiness(&**$endpoint(self))
            }
        }

        impl Socket for $socket {
            fn busy_poll(&self) -> u32 {
                $waiting(self).busy_poll()
            }
        }

        impl Sealed for $socket {
            fn source(&self) -> &dyn Source {
                &**$endpoint(self)
            }

            fn shared_source(&self) -> Arc<dyn Source> {
                $endpoint(self).clone()
            }

            fn host(&self) -> &Host {
                &self.0.host
            }

            fn task_channel(&self) -> Arc<dyn TaskChannel> {
                self.0.endpoint.clone()
            }
        }
    };
}

/// Implements the two timeouts for `$socket`. `$waiting` returns its `WaitOptions`.
macro_rules! timeouts {
    ($socket:ident, $waiting:expr) => {
        impl $socket {
            /// How long a receive may wait; `None`: for ever (`SO_RCVTIMEO`).
            ///
            /// # Errors
            /// `InvalidInput` for zero.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                $waiting(self).reading.set(timeout)
            }

            /// How long a receive may wait.
            ///
            /// # Errors
            /// None today; a `Result` as in std.
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok($waiting(self).reading.get())
            }

            /// How long a send may wait for room; `None`: for ever (`SO_SNDTIMEO`).
            ///
            /// # Errors
            /// `InvalidInput` for zero.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                $waiting(self).writing.set(timeout)
            }

            /// How long a send may wait for room.
            ///
            /// # Errors
            /// None today; a `Result` as in std.
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                Ok($waiting(self).writing.get())
            }
        }
    };
}

pub(super) use {common_options, timeouts};
