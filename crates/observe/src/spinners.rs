//! The tables of spinners in /dev/shm, one for each user that has run something.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use busypoll_linux::spinners::{SpinnerCounts, Spinners};
use busypoll_run::launch::SPINNERS_VERSION;

use crate::Seen;

const FOLDER: &str = "/dev/shm";

/// The most users listed.
const USERS: usize = 256;

/// One user's table.
#[derive(Clone, Copy, Debug)]
pub struct UserSpinners {
    /// The user.
    pub user: u32,
    /// What the table says.
    pub counts: SpinnerCounts,
}

/// The tables that this user may read; unseen are those it may not.
///
/// # Errors
/// /dev/shm cannot be listed.
pub fn read() -> io::Result<Seen<UserSpinners>> {
    let mut users: Vec<u32> = fs::read_dir(FOLDER)?
        .filter_map(|entry| user_of(entry.ok()?.file_name().to_str()?))
        .collect();
    users.sort_unstable();
    let mut unseen = users.len().saturating_sub(USERS) as u64;
    let mut rows = Vec::new();
    for user in users.into_iter().take(USERS) {
        let path = Path::new(FOLDER).join(format!("busypoll-{user}-{SPINNERS_VERSION}"));
        // Any user may take another's name, which is then not used.
        if !fs::symlink_metadata(&path).is_ok_and(|file| file.uid() == user) {
            continue;
        }
        match Spinners::read_counts(&path) {
            Ok(counts) => rows.push(UserSpinners { user, counts }),
            Err(_) => unseen += 1,
        }
    }
    Ok(Seen { rows, unseen })
}

/// The user in the name of a table.
fn user_of(name: &str) -> Option<u32> {
    let (user, version) = name.strip_prefix("busypoll-")?.rsplit_once('-')?;
    (version.parse() == Ok(SPINNERS_VERSION)).then(|| user.parse().ok())?
}
