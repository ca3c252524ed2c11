//! The tables of spinners, one for each user that has run something.

use std::io;

use busypoll_observe::spinners;

use crate::metrics::{HARM, SPINNERS, SPINNERS_REFUSED};
use crate::page::Page;

/// Adds the tables that this user may read. Returns how many it may not, or left out.
pub(crate) fn collect(page: &mut Page) -> io::Result<u64> {
    let seen = spinners::read()?;
    for table in &seen.rows {
        let user = table.user.to_string();
        page.count(&SPINNERS, &[&user], table.counts.spinning as u64);
        page.count(&SPINNERS_REFUSED, &[&user], table.counts.refused);
        page.count(&HARM, &[&user], table.counts.harm);
    }
    Ok(seen.unseen)
}
