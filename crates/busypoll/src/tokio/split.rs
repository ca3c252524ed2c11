//! The halves of a connection, borrowed and owned.

use super::stream::{Shared, TcpStream, addresses, reading, writing};
use busypoll_stack::TaskWait;
use std::{
    error, fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The read half of a stream: [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) wait: &'a mut TaskWait,
}

/// The write half of a stream: [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) wait: &'a mut TaskWait,
}

/// The read half of a stream: [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf {
    pub(super) shared: Arc<Shared>,
    pub(super) wait: TaskWait,
}

/// The write half of a stream: [`TcpStream::into_split`]. Dropping it ends sending: the peer reads all that was written,
/// then the end.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    pub(super) shared: Arc<Shared>,
    pub(super) wait: TaskWait,
    pub(super) shuts_down: bool,
}

/// The halves are of two streams.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of two streams")
    }
}

impl error::Error for ReuniteError {}

impl OwnedReadHalf {
    /// The stream again.
    ///
    /// # Errors
    /// The halves are of two streams.
    pub fn reunite(self, writer: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.shared, &writer.shared) {
            return Err(ReuniteError(self, writer));
        }
        writer.forget();
        Ok(TcpStream::new(self.shared))
    }
}

impl OwnedWriteHalf {
    /// The stream again.
    ///
    /// # Errors
    /// The halves are of two streams.
    pub fn reunite(self, reader: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        reader.reunite(self)
    }

    /// Drops it, and leaves sending as it is.
    pub fn forget(mut self) {
        self.shuts_down = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shuts_down {
            // The connection may have ended.
            let _ = self.shared.shut_down();
        }
    }
}

reading!(ReadHalf<'_>);
reading!(OwnedReadHalf);
writing!(WriteHalf<'_>);
writing!(OwnedWriteHalf);
addresses!(ReadHalf<'_>);
addresses!(OwnedReadHalf);
addresses!(WriteHalf<'_>);
addresses!(OwnedWriteHalf);

macro_rules! async_read {
    ($half:ty) => {
        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let half = self.get_mut();
                half.shared.poll_read(&mut half.wait, cx, buf)
            }
        }
    };
}

macro_rules! async_write {
    ($half:ty) => {
        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                let half = self.get_mut();
                half.shared.poll_write(&mut half.wait, cx, data)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.shared.shut_down())
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let half = self.get_mut();
                half.shared.poll_write_vectored(&mut half.wait, cx, data)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }
        }
    };
}

async_read!(ReadHalf<'_>);
async_read!(OwnedReadHalf);
async_write!(WriteHalf<'_>);
async_write!(OwnedWriteHalf);
