//! The packages themselves: built once for all tests, and another version of each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::output;

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Deb,
    Rpm,
}

impl Kind {
    pub fn suffix(self) -> &'static str {
        match self {
            Kind::Deb => "deb",
            Kind::Rpm => "rpm",
        }
    }
}

pub struct Packages {
    /// target/packages
    out: PathBuf,
    /// Where cargo has put the command and the library.
    pub built: PathBuf,
}

/// A file of the project.
pub fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

static BUILT: Mutex<bool> = Mutex::new(false);

impl Packages {
    /// Builds them, the first time; or takes those that stand in the folder `BUSYPOLL_PACKAGES`.
    pub fn build() -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let given = std::env::var_os("BUSYPOLL_PACKAGES").map(PathBuf::from);
        let mut built = BUILT.lock().unwrap();
        if given.is_none() && !*built {
            let mut command = Command::new(tree("packaging/build"));
            // What cargo has set for this test is not meant for another build.
            let ours = |(name, _): &(String, String)| {
                name.starts_with("CARGO") || name.starts_with("RUST")
            };
            for (name, _) in std::env::vars().filter(ours) {
                if !["CARGO_HOME", "RUSTUP_HOME"].contains(&name.as_str()) {
                    command.env_remove(name);
                }
            }
            output(command.env("CARGO_TARGET_DIR", target));
            *built = true;
        }
        Self {
            out: given.unwrap_or_else(|| target.join("packages")),
            built: target.join("x86_64-unknown-linux-gnu/release"),
        }
    }

    /// A folder that is empty and this test's own.
    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("packages-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The one file of `out` that begins and ends so.
    fn file(&self, begin: &str, end: &str) -> PathBuf {
        let named = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.strip_prefix(begin).is_some_and(|rest| rest.ends_with(end))
        };
        let entries = fs::read_dir(&self.out).unwrap().map(|entry| entry.unwrap().path());
        let mut found = entries.filter(named);
        let one = found.next().unwrap_or_else(|| panic!("no {begin}...{end}"));
        assert!(found.next().is_none());
        one
    }

    pub fn of(&self, kind: Kind) -> PathBuf {
        match kind {
            Kind::Deb => self.file("busypoll_", ".deb"),
            Kind::Rpm => self.file("busypoll-0", ".rpm"),
        }
    }

    /// The tarball of the program.
    pub fn tarball(&self) -> PathBuf {
        self.file("busypoll-", "linux-gnu.tar.gz")
    }

    /// A tarball, unpacked: `tree` or `debug`.
    pub fn unpacked(&self, which: &str) -> PathBuf {
        let tarball = match which {
            "tree" => self.tarball(),
            _ => self.file("busypoll-", "-debug.tar.gz"),
        };
        let folder = self.folder(which);
        output(
            Command::new("tar")
                .args(["--strip-components=1", "-xzf"])
                .arg(tarball)
                .arg("-C")
                .arg(&folder),
        );
        folder
    }

    /// The package as a later version would be.
    pub fn another_version(&self, kind: Kind) -> PathBuf {
        let folder = self.folder(&format!("another-{}", kind.suffix()));
        let usr = folder.join("usr");
        match kind {
            Kind::Deb => {
                output(Command::new("dpkg-deb").arg("-R").arg(self.of(kind)).arg(&folder));
                let control = folder.join("DEBIAN/control");
                let text = fs::read_to_string(&control).unwrap();
                fs::write(&control, text.replace("Version: 0.", "Version: 1.")).unwrap();
                let package = folder.join("another.deb");
                output(
                    Command::new("dpkg-deb")
                        .args(["--root-owner-group", "-Znone", "-b"])
                        .arg(&folder)
                        .arg(&package),
                );
                package
            }
            Kind::Rpm => {
                let package = folder.join("old.rpm");
                fs::copy(self.of(kind), &package).unwrap();
                output(Command::new("rpm2archive").arg(&package));
                output(
                    Command::new("tar")
                        .arg("-xzf")
                        .arg(folder.join("old.rpm.tgz"))
                        .arg("-C")
                        .arg(&folder),
                );
                let _ = fs::remove_dir_all(usr.join("lib/.build-id"));
                let debug = folder.join("debug");
                fs::create_dir_all(debug.join("lib/debug")).unwrap();
                let define = |name: &str, value: &Path| format!("{name} {}", value.display());
                let mut command = Command::new("rpmbuild");
                command.args(["-bb", "--quiet", "--target", "x86_64"]);
                for it in [
                    define("_topdir", &folder.join("top")),
                    define("_rpmdir", &folder.join("rpms")),
                    "_build_name_fmt %%{NAME}.rpm".into(),
                    "version_ 1.0".into(),
                    define("tree", &usr),
                    define("debugtree", &debug),
                ] {
                    command.arg("--define").arg(it);
                }
                output(command.arg(tree("packaging/busypoll.spec")));
                folder.join("rpms/busypoll.rpm")
            }
        }
    }
}
