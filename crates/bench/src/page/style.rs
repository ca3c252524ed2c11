//! The style of a page.

use crate::chart::svg::{MONO, SANS, dark_rules};

/// The style sheet.
pub fn css() -> String {
    include_str!("style.css")
        .replace("SANS", SANS)
        .replace("MONO", MONO)
        .replace("DARK", &format!("@media screen{{{}}}\n", dark_rules()))
}
