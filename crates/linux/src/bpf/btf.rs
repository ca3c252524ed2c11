//! Looks up in the kernel's BTF what CO-RE cannot: the value of an enumerator of an enum without a
//! name. Reads `/sys/kernel/btf/vmlinux`.
//!
//! Format: Documentation/bpf/btf.rst.

use std::fs;

use crate::error::{Error, Result};

/// The file with the kernel's BTF.
pub(super) const PATH: &str = "/sys/kernel/btf/vmlinux";

/// The value of the first enumerator of that name; `None` if this kernel has none.
fn enumerator(name: &str) -> Result<Option<u32>> {
    let all = fs::read(PATH).map_err(|e| Error::os(format!("reading {PATH}"), e))?;
    find(&all, name)
        .ok_or_else(|| Error::Malformed { path: PATH.into(), why: "no BTF of this version".into() })
}

/// The bit of `napi_struct.state` that a busy poll sets, as a mask: its place differs between kernels.
///
/// # Errors
/// [`Error::Unsupported`] on a kernel without busy polling.
pub(super) fn in_busy_poll() -> Result<u64> {
    let bit = enumerator("NAPI_STATE_IN_BUSY_POLL")?.ok_or(Error::Unsupported {
        what: "busy polling",
        since: "4.10",
        with: " built with CONFIG_NET_RX_BUSY_POLL",
    })?;
    Ok(1u64.checked_shl(bit).unwrap_or(0))
}

/// Whether any type, member or function has that name.
pub(super) fn is_named(name: &str) -> Result<bool> {
    let all = fs::read(PATH).map_err(|e| Error::os(format!("reading {PATH}"), e))?;
    Ok(has_string(&all, name).unwrap_or(false))
}

/// `None`: not BTF.
fn has_string(all: &[u8], name: &str) -> Option<bool> {
    let word = |at: usize| Some(u32::from_ne_bytes(*all.get(at..)?.first_chunk()?) as usize);
    let strings = word(4)?.checked_add(word(16)?)?;
    let all = all.get(strings..strings.checked_add(word(20)?)?)?;
    Some(all.split(|b| *b == 0).any(|text| text == name.as_bytes()))
}

/// Outer `None`: not BTF, or an unknown kind of type, whose length is unknown.
fn find(all: &[u8], name: &str) -> Option<Option<u32>> {
    let word = |at: usize| Some(u32::from_ne_bytes(*all.get(at..)?.first_chunk()?));
    let magic = u16::from_ne_bytes(*all.first_chunk()?);
    if magic != 0xEB9F {
        return None;
    }
    let header = word(4)? as usize;
    let types = header + word(8)? as usize;
    let end = types + word(12)? as usize;
    let strings = header + word(16)? as usize;
    let named = |offset: u32| {
        let text = all.get(strings + offset as usize..)?;
        Some(text.starts_with(name.as_bytes()) && text.get(name.len()) == Some(&0))
    };
    let mut at = types;
    while at < end {
        let info = word(at + 4)?;
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let members = at + 12;
        // BTF_KIND_*: the data after the twelve bytes that every type begins with.
        let (size, first) = match kind {
            1 | 14 | 17 => (4, 1),
            3 => (12, 1),
            4 | 5 | 15 | 19 => (12, count),
            6 | 13 => (8, count),
            2 | 7..=12 | 16 | 18 => (0, 0),
            _ => return None,
        };
        if kind == 6 {
            for i in 0..count {
                if named(word(members + i * size)?)? {
                    return Some(word(members + i * size + 4));
                }
            }
        }
        at = members + size * first;
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::{find, has_string};

    #[test]
    fn an_enumerator_is_found_behind_other_types_and_cut_files_are_refused() {
        let strings = b"\0other\0WANTED\0WANTED_TOO\0";
        let int = [0u32, 1 << 24, 4, 32];
        let function = [0u32, 13 << 24 | 1, 0, 1, 1];
        let numbers = [0u32, 6 << 24 | 2, 4, 14, 9, 7, 6];
        let types: Vec<u8> =
            [&int[..], &function, &numbers].concat().iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut all = Vec::new();
        all.extend(0xEB9Fu16.to_ne_bytes());
        all.extend([1, 0]);
        for w in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            all.extend(w.to_ne_bytes());
        }
        all.extend(&types);
        all.extend(strings);
        assert_eq!(find(&all, "WANTED"), Some(Some(6)));
        assert_eq!(find(&all, "WANTED_TOO"), Some(Some(9)));
        assert_eq!(find(&all, "WANT"), Some(None));
        assert_eq!(has_string(&all, "WANTED_TOO"), Some(true));
        assert_eq!(has_string(&all, "WANT"), Some(false));
        assert_eq!(has_string(&all[..all.len() - 1], "WANTED"), None);
        assert_eq!(find(&all[..40], "WANTED"), None);
        assert_eq!(find(b"not btf", "WANTED"), None);
    }
}
