//! A copy of this machine's root to install into: an overlay in a mount namespace of the test's thread, so that nothing
//! installed there is ever seen outside, and all of it ends with the thread.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::built::Kind;
use crate::output;

/// What is below it is what the thread's commands see by chroot(8).
pub struct Root {
    /// A tmpfs, mounted for this thread alone.
    folder: PathBuf,
}

/// What package managers keep of their own, and caches.
const NOT_THE_PACKAGES: [&str; 6] =
    ["var/lib/dpkg", "var/lib/rpm", "root/.rpmdb", "var/cache", "var/log", "etc/ld.so.cache"];

impl Root {
    pub fn new() -> Self {
        // SAFETY: the thread has a mount namespace, and a working directory, of its own from here on; no memory is touched.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages-root");
        fs::create_dir_all(&folder).unwrap();
        let mount = |words: &[&str]| output(Command::new("mount").args(words));
        mount(&["--make-rprivate", "/"]);
        let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        mount(&["-t", "tmpfs", "none", &at("")]);
        for name in ["upper", "work", "root"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        let layers = format!("lowerdir=/,upperdir={},workdir={}", at("upper"), at("work"));
        mount(&["-t", "overlay", "-o", &layers, "overlay", &at("root")]);
        for name in ["dev", "sys", "proc"] {
            mount(&["--rbind", &format!("/{name}"), &at(&format!("root/{name}"))]);
        }
        for name in ["dev/shm", "run", "tmp"] {
            mount(&["-t", "tmpfs", "none", &at(&format!("root/{name}"))]);
        }
        Self { folder }
    }

    /// Where `path`, without its first slash, is outside.
    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.join("root").join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A command in it.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command.arg(self.at("")).args(words).current_dir("/").stdin(Stdio::null());
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command.env_clear().env("PATH", path).env("HOME", "/root").env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// What a command in it prints; it must succeed.
    pub fn says(&self, words: &[&str]) -> String {
        output(&mut self.command(words))
    }

    /// Installs a package, or puts it in the place of another version.
    pub fn install(&self, kind: Kind, package: &Path) {
        let inside = format!("tmp/package.{}", kind.suffix());
        fs::copy(package, self.at(&inside)).unwrap();
        let inside = format!("/{inside}");
        match kind {
            Kind::Deb => self.says(&["dpkg", "--force-unsafe-io", "-i", &inside]),
            // Of this root's libraries rpm knows nothing.
            Kind::Rpm => self.says(&["rpm", "-U", "--nodeps", &inside]),
        };
    }

    /// The version that is installed.
    pub fn version(&self, kind: Kind) -> String {
        match kind {
            Kind::Deb => {
                self.says(&["dpkg-query", "--show", "--showformat=${Version}", "busypoll"])
            }
            Kind::Rpm => self.says(&["rpm", "-q", "--queryformat=%{VERSION}", "busypoll"]),
        }
    }

    /// Removes the package: what is said.
    pub fn remove(&self, kind: Kind) -> String {
        match kind {
            Kind::Deb => self.says(&["dpkg", "--force-unsafe-io", "-r", "busypoll"]),
            Kind::Rpm => self.says(&["rpm", "-e", "busypoll"]),
        }
    }

    /// The files that this root has and the machine's has not, or has otherwise.
    pub fn files(&self) -> BTreeSet<PathBuf> {
        let all = files(&self.folder.join("upper"));
        let packages = |path: &PathBuf| !NOT_THE_PACKAGES.iter().any(|it| path.starts_with(it));
        all.into_iter().filter(packages).collect()
    }
}

/// All files below a folder, as from there.
pub fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let kind = entry.file_type().unwrap();
            match kind.is_dir() {
                true => folders.push(entry.path()),
                // A character device in the upper layer is a file removed.
                false => {
                    let path = entry.path().strip_prefix(folder).unwrap().to_owned();
                    let removed = if kind.is_char_device() { "removed:" } else { "" };
                    found.insert(PathBuf::from(format!("{removed}{}", path.display())));
                }
            }
        }
    }
    found
}
