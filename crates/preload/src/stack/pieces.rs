//! The memory a C program hands us, as slices.

use super::error;
use libc::{iovec, size_t};
use std::{
    io::{self, IoSlice, IoSliceMut},
    slice,
};

/// Pieces handed down without an allocation.
const FEW: usize = 8;

/// UIO_MAXIOV.
pub const MOST: usize = 1024;

/// # Safety
/// `buf` points to `len` writable bytes that nobody else uses, or `len` is 0.
pub unsafe fn room<'a>(buf: *mut u8, len: size_t) -> &'a mut [u8] {
    if buf.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's word; no object is larger than isize::MAX.
    unsafe { slice::from_raw_parts_mut(buf, len.min(isize::MAX as usize)) }
}

/// # Safety
/// `buf` points to `len` readable bytes, or `len` is 0.
pub unsafe fn bytes<'a>(buf: *const u8, len: size_t) -> &'a [u8] {
    if buf.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's word; no object is larger than isize::MAX.
    unsafe { slice::from_raw_parts(buf, len.min(isize::MAX as usize)) }
}

/// Checks a vector and finds it in memory.
///
/// # Safety
/// `iov` points to `count` vectors, or `count` is 0.
unsafe fn vectors<'a>(iov: *const iovec, count: usize, too_many: i32) -> io::Result<&'a [iovec]> {
    if count > MOST {
        return Err(error(too_many));
    }
    if iov.is_null() || count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's word.
    let vectors = unsafe { slice::from_raw_parts(iov, count) };
    let total = vectors.iter().try_fold(0usize, |sum, one| sum.checked_add(one.iov_len));
    match total {
        Some(total) if isize::try_from(total).is_ok() => Ok(vectors),
        _ => Err(error(libc::EINVAL)),
    }
}

/// Hands `then` the pieces of a vector to fill.
///
/// # Errors
/// `too_many` for more than 1024, EINVAL for more bytes than can be counted.
///
/// # Safety
/// `iov` points to `count` vectors of writable memory that nobody else uses.
pub unsafe fn with_room<T>(
    iov: *const iovec,
    count: usize,
    too_many: i32,
    then: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<T>,
) -> io::Result<T> {
    // SAFETY: the caller's word, here and below.
    let vectors = unsafe { vectors(iov, count, too_many) }?;
    // SAFETY: the caller's contract.
    let piece = |one: &iovec| IoSliceMut::new(unsafe { room(one.iov_base.cast(), one.iov_len) });
    if vectors.len() <= FEW {
        let mut few = [const { None::<IoSliceMut<'_>> }; FEW].map(|_| IoSliceMut::new(&mut []));
        few.iter_mut().zip(vectors).for_each(|(to, from)| *to = piece(from));
        return then(few.get_mut(..vectors.len()).unwrap_or_default());
    }
    let mut many: Vec<_> = vectors.iter().map(piece).collect();
    then(&mut many)
}

/// Hands `then` the pieces of a vector to read.
///
/// # Errors
/// As [`with_room`].
///
/// # Safety
/// `iov` points to `count` vectors of readable memory.
pub unsafe fn with_bytes<T>(
    iov: *const iovec,
    count: usize,
    too_many: i32,
    then: impl FnOnce(&[IoSlice<'_>]) -> io::Result<T>,
) -> io::Result<T> {
    // SAFETY: the caller's word, here and below.
    let vectors = unsafe { vectors(iov, count, too_many) }?;
    // SAFETY: the caller's contract.
    let piece = |one: &iovec| IoSlice::new(unsafe { bytes(one.iov_base.cast(), one.iov_len) });
    if vectors.len() <= FEW {
        let mut few = [IoSlice::new(&[]); FEW];
        few.iter_mut().zip(vectors).for_each(|(to, from)| *to = piece(from));
        return then(few.get(..vectors.len()).unwrap_or_default());
    }
    let many: Vec<_> = vectors.iter().map(piece).collect();
    then(&many)
}
