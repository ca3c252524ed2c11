//! An initramfs in the "newc" cpio format that the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Builds the bytes. Reads no file itself.

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive of files and folders.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    names: std::collections::BTreeSet<String>,
}

impl Archive {
    /// Adds an executable file, after its parent folders. `path` is relative to the root.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        for (end, _) in path.match_indices('/') {
            self.entry(&path[..end], FOLDER, &[]);
        }
        self.entry(path, PROGRAM, content);
    }

    /// The finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        if !self.names.insert(name.into()) {
            return;
        }
        let inode = self.names.len();
        let header = format!(
            "070701{inode:08x}{mode:08x}{zero:08x}{zero:08x}{links:08x}{zero:08x}{size:08x}{zero:08x}{zero:08x}{zero:08x}{zero:08x}{name_size:08x}{zero:08x}",
            zero = 0,
            links = 1,
            size = content.len(),
            name_size = name.len() + 1,
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
