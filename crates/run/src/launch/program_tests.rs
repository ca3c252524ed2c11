use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;

use busypoll_linux::executable::MACHINE;

use super::*;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

fn reach_of(name: &str) -> Reach {
    Program::find(name.as_ref()).unwrap().reach
}

#[test]
fn programs_are_found_as_the_shell_finds_them() {
    assert_eq!(reach_of("sh"), Reach::Preload);
    assert_eq!(reach_of("/bin/sh"), Reach::Preload);
    assert!(matches!(Program::find("no-such-thing".as_ref()), Err(LaunchError::NotInPath(_))));
    assert!(matches!(Program::find("./no/such".as_ref()), Err(LaunchError::NotFound(_))));
    assert!(matches!(Program::find("/etc/passwd".as_ref()), Err(LaunchError::NotExecutable(_))));
    assert!(matches!(Program::find("/tmp".as_ref()), Err(LaunchError::Folder(_))));
    // Not an error that says it does not exist.
    let below = Program::find("/etc/passwd/none".as_ref());
    assert!(matches!(below, Err(LaunchError::Refused { .. })), "{below:?}");
}

/// An ELF file with these program headers, of type and content.
fn elf(name: &str, machine: u16, headers: &[(u32, &[u8])]) -> PathBuf {
    let mut bytes = vec![0; 64];
    bytes[..5].copy_from_slice(b"\x7fELF\x02");
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
    bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
    bytes[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
    let mut at = 64 + 56 * headers.len() as u64;
    let mut contents = Vec::new();
    for (kind, content) in headers {
        let mut header = [0; 56];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&at.to_le_bytes());
        header[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
        bytes.extend(header);
        contents.extend_from_slice(content);
        at += content.len() as u64;
    }
    bytes.extend(contents);
    write(name, &bytes, 0o755)
}

fn write(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = env::temp_dir().join(format!("busypoll-program-{}-{name}", std::process::id()));
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_missing_loader_is_named() {
    let missing = |name: &str, loader: &[u8]| {
        let path = elf(name, MACHINE, &[(PT_INTERP, loader)]);
        let missing = executable::missing(&CString::new(path.as_os_str().as_bytes()).unwrap());
        fs::remove_file(path).unwrap();
        missing
    };
    assert_eq!(missing("lost", b"/no/such-ld.so\0").as_deref(), Some(c"/no/such-ld.so"));
    assert_eq!(missing("found", b"/bin/sh\0"), None);
}

#[test]
fn programs_that_cannot_be_preloaded_are_recognised() {
    let glibc: (u32, &[u8]) = (PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0");
    let go: (u32, &[u8]) = (PT_NOTE, b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id");
    for (name, machine, headers, wanted) in [
        ("dynamic", MACHINE, vec![glibc], Reach::Preload),
        ("static", MACHINE, vec![], Reach::Raw(Kind::Static)),
        ("go", MACHINE, vec![go], Reach::Raw(Kind::Go)),
        ("cgo", MACHINE, vec![glibc, go], Reach::Raw(Kind::Go)),
        (
            "musl",
            MACHINE,
            vec![(PT_INTERP, &b"/lib/ld-musl-x86_64.so.1\0"[..])],
            Reach::Raw(Kind::OtherLibc),
        ),
        ("foreign", 8, vec![glibc], Reach::Out(Why::OtherMachine)),
    ] {
        let path = elf(name, machine, &headers);
        assert_eq!(executable::reach(&path), wanted, "{name}");
        // The same through a script.
        let script =
            write(&format!("{name}.sh"), format!("#! {} -x\n", path.display()).as_bytes(), 0o755);
        assert_eq!(executable::reach(&script), wanted, "{name}");
        fs::remove_file(path).unwrap();
        fs::remove_file(script).unwrap();
    }
}

#[test]
fn invalid_files_are_left_to_the_kernel() {
    for (name, bytes) in
        [("empty", &b""[..]), ("short", b"\x7fELF\x02"), ("text", b"hello"), ("nowhere", b"#!")]
    {
        let path = write(name, bytes, 0o755);
        assert_eq!(executable::reach(&path), Reach::Preload, "{name}");
        fs::remove_file(path).unwrap();
    }
    // A table that points outside the file.
    let path = elf("cut", MACHINE, &[(PT_INTERP, b"/lib/ld.so")]);
    fs::File::options().write(true).open(&path).unwrap().set_len(70).unwrap();
    assert_eq!(executable::reach(&path), Reach::Preload);
    fs::remove_file(path).unwrap();
}

#[test]
fn a_script_that_runs_itself_ends() {
    let path = write("loop", b"", 0o755);
    fs::write(&path, format!("#!{}\n", path.display())).unwrap();
    assert_eq!(executable::reach(&path), Reach::Preload);
    fs::remove_file(path).unwrap();
}
