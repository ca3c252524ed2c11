//! The Debian kernel of the test machine, in the folder of `.ci/vm-kernel`, and its modules in
//! load order.
//!
//! Reads files only.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::{LabError, needs};

/// An unpacked kernel package.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    modules: HashMap<String, PathBuf>,
}

impl Kernel {
    /// The folder `vm-kernel` of the build's target folder, or `BUSYPOLL_VM_KERNEL`.
    pub(super) fn folder() -> Option<PathBuf> {
        let elsewhere = env::var_os("BUSYPOLL_VM_KERNEL").map(PathBuf::from);
        elsewhere.or_else(|| needs::unpacked("vm-kernel"))
    }

    pub(super) fn open() -> Result<Self, LabError> {
        let missing = || LabError::Setting {
            what: "test machine",
            value: "without a kernel".into(),
            remedy: "run .ci/vm-kernel".into(),
        };
        let folder = Self::folder().ok_or_else(missing)?;
        let image = entries(&folder.join("boot"))?
            .into_iter()
            .find(|file| name(file).starts_with("vmlinux-"))
            .ok_or_else(missing)?;
        let mut modules = HashMap::new();
        walk(&folder.join("lib/modules"), &mut modules)?;
        Ok(Self { image, modules })
    }

    /// These modules and their dependencies, in load order.
    pub(super) fn modules(&self, wanted: &[&str]) -> Result<Vec<PathBuf>, LabError> {
        let mut order = Vec::new();
        for name in wanted {
            self.add(name, &mut order)?;
        }
        Ok(order)
    }

    fn add(&self, name: &str, order: &mut Vec<PathBuf>) -> Result<(), LabError> {
        // A module that is built into the kernel has no file.
        let Some(file) = self.modules.get(name).filter(|file| !order.contains(file)) else {
            return Ok(());
        };
        let content = read(file)?;
        for needed in needs(&content).split(',').filter(|needed| !needed.is_empty()) {
            self.add(&needed.replace('-', "_"), order)?;
        }
        order.push(file.clone());
        Ok(())
    }
}

/// The `depends=` line of a module's `.modinfo` section, which consists of zero-terminated text.
fn needs(module: &[u8]) -> String {
    let key = b"\0depends=";
    let line = module.windows(key.len()).position(|window| window == key).map_or(&[][..], |at| {
        let line = &module[at + key.len()..];
        &line[..line.iter().position(|byte| *byte == 0).unwrap_or(0)]
    });
    String::from_utf8_lossy(line).into_owned()
}

fn walk(folder: &Path, modules: &mut HashMap<String, PathBuf>) -> Result<(), LabError> {
    for entry in entries(folder)? {
        if entry.is_dir() {
            walk(&entry, modules)?;
        } else if let Some(module) = name(&entry).strip_suffix(".ko") {
            modules.insert(module.replace('-', "_"), entry.clone());
        }
    }
    Ok(())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let read = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>();
    read().map_err(LabError::system(format!("read {}", folder.display())))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, LabError> {
    fs::read(path).map_err(LabError::system(format!("read {}", path.display())))
}
