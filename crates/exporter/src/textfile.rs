//! A page as a file for node_exporter's textfile collector. A reader sees the old page or the new one, never a part.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes the page to `path`.
///
/// # Errors
/// The system call's. The old file stays then.
pub(crate) fn write(path: &Path, page: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    // node_exporter reads files that end in .prom.
    let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut file = File::create(&new)?;
        file.write_all(page)?;
        file.sync_data()?;
        fs::rename(&new, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_stays() {
        let folder = std::env::temp_dir().join(format!("busypoll-textfile-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("busypoll.prom");
        write(&path, b"a 1\n").unwrap();
        let reader = File::open(&path).unwrap();
        write(&path, b"a 2\n").unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "a 1\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a 2\n");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        // A folder in its place: it stays, and so does nothing else.
        let taken = folder.join("taken.prom");
        fs::create_dir(&taken).unwrap();
        assert!(write(&taken, b"a 3\n").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
