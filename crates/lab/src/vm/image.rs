//! The content of the machine's initramfs: init, busybox, modules, programs and their
//! libraries.
//!
//! Runs `strip` on copies and `ldd`; changes nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use super::cpio::Archive;
use super::kernel::{Kernel, read};
use crate::LabError;

const INIT: &[u8] = include_bytes!("init.sh");
/// The modules for the machine's devices, its shared folder and the tests.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "e1000e",
    "virtio_net",
    "vmxnet3",
    "veth",
    "tun",
    "acpi_cpufreq",
    "cpufreq_powersave",
];

/// The archive with `programs`; `scratch` is a folder for stripped copies.
pub(super) fn build(
    kernel: &Kernel,
    programs: &[(String, PathBuf)],
    scratch: &Path,
) -> Result<Vec<u8>, LabError> {
    let mut archive = Archive::default();
    archive.file("init", INIT);
    archive.file("bin/busybox", &read(&in_path("busybox")?)?);
    let mut order = String::new();
    for module in kernel.modules(MODULES)? {
        let name = file_name(&module);
        archive.file(&format!("modules/{name}"), &read(&module)?);
        order += &format!("{name}\n");
    }
    archive.file("modules/order", order.as_bytes());
    for (name, program) in programs {
        let stripped = scratch.join("stripped");
        let mut strip = Command::new("strip");
        run(strip.arg("-o").arg(&stripped).arg(program))?;
        archive.file(&format!("programs/{name}"), &read(&stripped)?);
        for library in libraries(program)? {
            archive.file(library.trim_start_matches('/'), &read(Path::new(&library))?);
        }
    }
    Ok(archive.finish())
}

/// The paths that `ldd` prints: `libc.so.6 => /lib/… (0x…)` and the loader. None for a static program.
fn libraries(program: &Path) -> Result<Vec<String>, LabError> {
    let text = run(Command::new("ldd").arg(program)).unwrap_or_default();
    Ok(text
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(Into::into)
        .collect())
}

pub(super) fn in_path(program: &str) -> Result<PathBuf, LabError> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file()).ok_or(
        LabError::Setting {
            what: "program",
            value: program.into(),
            remedy: "not found in PATH: install it".into(),
        },
    )
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The output of the command; an error if it fails.
fn run(command: &mut Command) -> Result<String, LabError> {
    let output = command.output().and_then(|output| match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    });
    output.map_err(LabError::system(format!("run {}", command.get_program().to_string_lossy())))
}

/// Writes a file of the machine's folder.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), LabError> {
    fs::write(path, content).map_err(LabError::system(format!("write {}", path.display())))
}
