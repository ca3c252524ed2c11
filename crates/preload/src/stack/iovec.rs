//! The memory that a C program passes, as slices.

use super::common::error;
use libc::{iovec, size_t};
use std::{
    io::{self, IoSlice, IoSliceMut},
    slice,
};

/// Vectors up to this length are converted without an allocation.
const INLINE: usize = 8;

/// UIO_MAXIOV.
pub const UIO_MAXIOV: usize = 1024;

/// The writable bytes of a buffer; none for a null pointer.
///
/// # Safety
/// `buf` points to `len` writable bytes that nothing else uses, or is null.
pub unsafe fn writable<'a>(buf: *mut u8, len: size_t) -> &'a mut [u8] {
    if buf.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's contract; no object is larger than isize::MAX.
    unsafe { slice::from_raw_parts_mut(buf, len.min(isize::MAX as usize)) }
}

/// The readable bytes of a buffer.
///
/// # Errors
/// EFAULT for bytes at a null pointer.
///
/// # Safety
/// `buf` points to `len` readable bytes, or is null.
pub unsafe fn readable<'a>(buf: *const u8, len: size_t) -> io::Result<&'a [u8]> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(error(libc::EFAULT)),
        // SAFETY: the caller's contract; no object is larger than isize::MAX.
        (false, _) => Ok(unsafe { slice::from_raw_parts(buf, len.min(isize::MAX as usize)) }),
    }
}

/// Checks a vector and returns it as a slice.
///
/// # Errors
/// `too_many` for more than 1024, EINVAL for a total length that overflows, EFAULT for bytes at a null pointer.
///
/// # Safety
/// `iov` points to `count` vectors, or `count` is 0.
unsafe fn vectors<'a>(iov: *const iovec, count: usize, too_many: i32) -> io::Result<&'a [iovec]> {
    if count > UIO_MAXIOV {
        return Err(error(too_many));
    }
    match (count, iov.is_null()) {
        (0, _) => return Ok(&[]),
        (_, true) => return Err(error(libc::EFAULT)),
        _ => {}
    }
    // SAFETY: the caller's contract.
    let vectors = unsafe { slice::from_raw_parts(iov, count) };
    if vectors.iter().any(|one| one.iov_base.is_null() && one.iov_len > 0) {
        return Err(error(libc::EFAULT));
    }
    let total = vectors.iter().try_fold(0usize, |sum, one| sum.checked_add(one.iov_len));
    match total {
        Some(total) if isize::try_from(total).is_ok() => Ok(vectors),
        _ => Err(error(libc::EINVAL)),
    }
}

/// Calls `then` with the buffers of a vector, to fill.
///
/// # Errors
/// As [`vectors`].
///
/// # Safety
/// `iov` points to `count` vectors of writable memory that nothing else uses.
pub unsafe fn with_writable<T>(
    iov: *const iovec,
    count: usize,
    too_many: i32,
    then: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<T>,
) -> io::Result<T> {
    // SAFETY: the caller's contract, here and below.
    let vectors = unsafe { vectors(iov, count, too_many) }?;
    // SAFETY: the caller's contract.
    let buffer =
        |one: &iovec| IoSliceMut::new(unsafe { writable(one.iov_base.cast(), one.iov_len) });
    if vectors.len() <= INLINE {
        let mut inline =
            [const { None::<IoSliceMut<'_>> }; INLINE].map(|_| IoSliceMut::new(&mut []));
        inline.iter_mut().zip(vectors).for_each(|(to, from)| *to = buffer(from));
        return then(inline.get_mut(..vectors.len()).unwrap_or_default());
    }
    let mut many: Vec<_> = vectors.iter().map(buffer).collect();
    then(&mut many)
}

/// Calls `then` with the buffers of a vector, to read.
///
/// # Errors
/// As [`with_writable`].
///
/// # Safety
/// `iov` points to `count` vectors of readable memory.
pub unsafe fn with_readable<T>(
    iov: *const iovec,
    count: usize,
    too_many: i32,
    then: impl FnOnce(&[IoSlice<'_>]) -> io::Result<T>,
) -> io::Result<T> {
    // SAFETY: the caller's contract, here and below.
    let vectors = unsafe { vectors(iov, count, too_many) }?;
    // SAFETY: the caller's contract.
    let buffer =
        |one: &iovec| unsafe { readable(one.iov_base.cast(), one.iov_len) }.map(IoSlice::new);
    if vectors.len() <= INLINE {
        let mut inline = [IoSlice::new(&[]); INLINE];
        for (to, from) in inline.iter_mut().zip(vectors) {
            *to = buffer(from)?;
        }
        return then(inline.get(..vectors.len()).unwrap_or_default());
    }
    let many: Vec<_> = vectors.iter().map(buffer).collect::<io::Result<_>>()?;
    then(&many)
}
