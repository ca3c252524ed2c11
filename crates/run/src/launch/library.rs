//! Where the preload library is: beside this command in a build tree, or where it is installed.

use std::env;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use busypoll_linux::executable;
use busypoll_policy::{BUILD, NOTE_OWNER};

use super::LaunchError;

/// Overrides the path of the library.
pub(super) const OVERRIDE: &str = "BUSYPOLL_PRELOAD_LIBRARY";

const NAME: &str = "libbusypoll_preload.so";

/// Finds the library.
pub(super) fn find() -> Result<PathBuf, LaunchError> {
    let found = match env::var_os(OVERRIDE) {
        Some(path) => {
            let path = PathBuf::from(path);
            if !is_elf(&path) {
                return Err(LaunchError::NotALibrary(path));
            }
            path
        }
        None => {
            let command = env::current_exe().unwrap_or_default();
            let folder = command.parent().unwrap_or(Path::new("."));
            // First where cargo builds it: the one beside the command may be of an earlier build.
            ["deps", "", "../lib/busypoll"]
                .iter()
                .map(|directory| folder.join(directory).join(NAME))
                .find(|path| path.is_file())
                .ok_or(LaunchError::NoLibrary)?
        }
    };
    // A child in another directory must find it as well.
    let found = found.canonicalize().unwrap_or(found);
    if found.as_os_str().as_bytes().iter().any(|b| b" :\t\n".contains(b)) {
        return Err(LaunchError::BadLibraryPath(found));
    }
    Ok(found)
}

/// One line if the library is of another build than this command.
pub(super) fn other_build(library: &Path) -> Option<String> {
    let note = executable::note(library, NOTE_OWNER).unwrap_or_default();
    let build = String::from_utf8_lossy(&note);
    (build != BUILD).then(|| {
        let build = if build.is_empty() { "unknown" } else { &build };
        format!(
            "{} is of another build ({build}) than this command ({BUILD}); install both together",
            library.display()
        )
    })
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && &magic == b"\x7fELF"
}
