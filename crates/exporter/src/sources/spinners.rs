//! The tables of spinners in /dev/shm, one for each user that has run something.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use busypoll_linux::spinners::Spinners;
use busypoll_run::launch::SPINNERS_VERSION;

use crate::metrics::{HARM, SPINNERS, SPINNERS_REFUSED};
use crate::page::Page;

const FOLDER: &str = "/dev/shm";

/// The most users listed.
const USERS: usize = 256;

/// Adds the tables that this user may read. Returns how many it may not, or left out.
pub(crate) fn collect(page: &mut Page) -> io::Result<u64> {
    let mut users: Vec<u32> = fs::read_dir(FOLDER)?
        .filter_map(|entry| user_of(entry.ok()?.file_name().to_str()?))
        .collect();
    users.sort_unstable();
    let mut unseen = users.len().saturating_sub(USERS) as u64;
    for user in users.into_iter().take(USERS) {
        let path = Path::new(FOLDER).join(format!("busypoll-{user}-{SPINNERS_VERSION}"));
        // Any user may take another's name, which is then not used.
        let own = fs::symlink_metadata(&path).is_ok_and(|file| file.uid() == user);
        if !own {
            continue;
        }
        let Ok(counts) = Spinners::read_counts(&path) else {
            unseen += 1;
            continue;
        };
        let user = user.to_string();
        page.count(&SPINNERS, &[&user], counts.spinning as u64);
        page.count(&SPINNERS_REFUSED, &[&user], counts.refused);
        page.count(&HARM, &[&user], counts.harm);
    }
    Ok(unseen)
}

/// The user in the name of a table.
fn user_of(name: &str) -> Option<u32> {
    let (user, version) = name.strip_prefix("busypoll-")?.rsplit_once('-')?;
    (version.parse() == Ok(SPINNERS_VERSION)).then(|| user.parse().ok())?
}
