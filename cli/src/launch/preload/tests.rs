use super::*;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};

/// Offsets in an ELF file of 64 bits.
const MACHINE: usize = 18;
const CLASS: usize = 4;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn put(folder: &tempfile::TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("changed");
    path
}

/// A real program of this machine; the tests change a byte or two of it.
fn shell() -> Vec<u8> {
    fs::read("/bin/sh").expect("every machine has a shell")
}

fn obstacles(path: &Path) -> Vec<Obstacle> {
    examine(path.as_os_str(), &[]).expect("executable").obstacles
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let at = bytes
        .windows(from.len())
        .position(|window| window == from)
        .expect("it is there");
    bytes[at..at + to.len()].copy_from_slice(to);
}

#[test]
fn an_ordinary_program_has_no_obstacle() {
    let program = examine(OsStr::new("sh"), &[]).expect("in PATH");
    assert_eq!(program.obstacles, []);
    assert!(!program.address_sanitizer);
}

#[test]
fn a_program_without_a_loader_is_static() {
    let folder = folder();
    let mut bytes = shell();
    let headers = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    for header in (0..headers).map(|number| 64 + number * 56) {
        // PT_INTERP becomes PT_NULL.
        if bytes[header] == 3 {
            bytes[header] = 0;
        }
    }
    assert_eq!(obstacles(&put(&folder, "static", &bytes)), [Obstacle::Static]);
}

#[test]
fn other_machines_are_named() {
    let folder = folder();
    let mut bytes = shell();
    bytes[MACHINE] = 243;
    let path = put(&folder, "riscv", &bytes);
    assert_eq!(obstacles(&path), [Obstacle::OtherArchitecture("RISC-V".to_owned())]);
}

#[test]
fn a_32_bit_program_has_another_architecture() {
    let folder = folder();
    let mut bytes = shell();
    bytes[CLASS] = 1;
    bytes[MACHINE] = 3;
    let path = put(&folder, "old", &bytes);
    assert_eq!(obstacles(&path), [Obstacle::OtherArchitecture("32-bit x86".to_owned())]);
}

#[test]
fn musl_is_another_libc() {
    let folder = folder();
    let mut bytes = shell();
    replace(
        &mut bytes,
        b"/lib64/ld-linux-x86-64.so.2\0",
        b"/lib/ld-musl-x86_64.so.1\0\0\0\0",
    );
    let path = put(&folder, "musl", &bytes);
    assert!(matches!(&obstacles(&path)[..], [Obstacle::OtherLibc(loader)] if loader.contains("ld-musl")));
}

#[test]
fn a_sanitized_program_is_recognized() {
    let folder = folder();
    let mut bytes = shell();
    replace(&mut bytes, b"\0libc.so.6\0", b"\0libasan.so\0");
    let path = put(&folder, "sanitized", &bytes);
    let program = examine(path.as_os_str(), &[]).expect("executable");
    assert!(program.address_sanitizer && program.obstacles.is_empty());
}

#[test]
fn raised_privileges_prevent_preloading() {
    let folder = folder();
    let path = put(&folder, "raised", &shell());
    fs::set_permissions(&path, Permissions::from_mode(0o4755)).expect("changed");
    assert_eq!(obstacles(&path), [], "it is our own, so nothing is raised");
    if geteuid().is_root() {
        chown(&path, Some(65534), None).expect("given away");
        fs::set_permissions(&path, Permissions::from_mode(0o4755)).expect("changed");
        assert_eq!(obstacles(&path), [Obstacle::Privileged("is setuid")]);
    }
}

#[test]
fn a_script_has_the_obstacles_of_its_interpreter() {
    let folder = folder();
    let mut bytes = shell();
    bytes[MACHINE] = 243;
    let interpreter = put(&folder, "interpreter", &bytes);
    let script = put(
        &folder,
        "script",
        format!("#! {} -x\n", interpreter.display()).as_bytes(),
    );
    let outer = put(&folder, "outer", format!("#!{}\n", script.display()).as_bytes());
    let program = examine(outer.as_os_str(), &[]).expect("executable");
    assert_eq!(program.executable, interpreter);
    assert_eq!(program.obstacles.len(), 1);
}

#[test]
fn env_is_looked_through() {
    let folder = folder();
    for line in [
        "#!/usr/bin/env sh",
        "#!/usr/bin/env -S A=1 sh -e",
        "#! /usr/bin/env -i sh",
    ] {
        let script = put(&folder, "script", format!("{line}\n").as_bytes());
        let program = examine(script.as_os_str(), &[]).expect("executable");
        assert_eq!(program.executable.file_name(), Some(OsStr::new("sh")), "{line}");
    }
}

#[test]
fn scripts_that_name_each_other_are_followed_only_so_far() {
    let folder = folder();
    let path = folder.path().join("circle");
    put(&folder, "circle", format!("#!{}\n", path.display()).as_bytes());
    assert!(examine(path.as_os_str(), &[]).is_ok());
}

#[test]
fn damaged_programs_do_not_crash_the_examination() {
    let folder = folder();
    let whole = shell();
    for length in [0, 1, 4, 20, 63, 64, 100, 600, whole.len() / 2] {
        examine(put(&folder, "cut", &whole[..length]).as_os_str(), &[]).expect("executable");
    }
    for offset in (32..64).chain(64..200) {
        let mut bytes = whole.clone();
        bytes[offset] ^= 0xff;
        examine(put(&folder, "bent", &bytes).as_os_str(), &[]).expect("executable");
    }
}

#[test]
fn errors_have_the_exit_codes_of_a_shell() {
    let exit = |command: &str| examine(OsStr::new(command), &[]).expect_err("cannot run").exit;
    assert_eq!(exit("no-such-program-anywhere"), NOT_FOUND);
    assert_eq!(exit("./no-such-file"), NOT_FOUND);
    assert_eq!(exit("/"), NOT_EXECUTABLE);
    let folder = folder();
    let data = put(&folder, "data", b"text");
    fs::set_permissions(&data, Permissions::from_mode(0o644)).expect("changed");
    assert_eq!(exit(&data.to_string_lossy()), NOT_EXECUTABLE);
    let path = Some(folder.path().as_os_str());
    assert_eq!(
        find(OsStr::new("data"), path).expect_err("not executable").exit,
        NOT_EXECUTABLE
    );
}

#[test]
fn clients_of_daemons_are_reported() {
    let folder = folder();
    let path = put(&folder, "docker", &shell());
    assert!(matches!(&obstacles(&path)[..], [Obstacle::StartsElsewhere(_)]));
}

/// The obstacles of a program with this name, which is the shell, and these arguments.
fn named(name: &str, image: &[u8], arguments: &[&str]) -> Vec<Obstacle> {
    let folder = folder();
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let path = put(&folder, name, image);
    examine(path.as_os_str(), &arguments).expect("executable").obstacles
}

#[test]
fn a_static_client_of_a_container_starts_the_program_elsewhere_and_that_is_all() {
    let mut bytes = shell();
    let headers = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    for header in (0..headers).map(|number| 64 + number * 56) {
        // PT_INTERP becomes PT_NULL.
        if bytes[header] == 3 {
            bytes[header] = 0;
        }
    }
    assert_eq!(named("anything", &bytes, &[]), [Obstacle::Static]);
    assert!(matches!(
        named("docker", &bytes, &["run"])[..],
        [Obstacle::StartsElsewhere(_)]
    ));
}

#[test]
fn programs_that_drop_the_variable_are_known_by_their_options() {
    let shell = shell();
    for (words, drops) in [
        (&["env", "-i", "./train"][..], true),
        (&["env", "-", "./train"], true),
        (&["env", "--ignore-environment", "./train"], true),
        (&["env", "-C", "/tmp", "A=1", "-u", "LD_PRELOAD", "./train"], true),
        (&["env", "--unset=LD_PRELOAD", "./train"], true),
        (&["env", "LD_PRELOAD=x.so", "./train"], true),
        (&["env", "-u", "HOME", "A=1", "./train", "-i"], false),
        (&["env"], false),
        (&["su", "-", "-c", "./train"], true),
        (&["su", "-c", "./train"], false),
        (&["runuser", "-l", "me"], true),
        (&["runuser", "-u", "me", "--", "./train"], false),
        (&["sudo", "./train"], true),
        (&["doas", "./train"], true),
        (&["setpriv", "--reset-env", "./train"], true),
        (&["setpriv", "--nnp", "./train"], false),
        (&["nice", "./train"], false),
        (&["env", "-0i", "./train"], true),
        (&["env", "-vi", "./train"], true),
        (&["env", "-a", "name", "-i", "./train"], true),
        (&["env", "--ignore-env", "./train"], true),
        (&["env", "-v", "./train", "-i"], false),
        (&["su", "-lc", "./train"], true),
        (&["su", "-s", "/bin/false", "me"], false),
        (&["su", "me", "-l"], false),
        (&["runuser", "-u", "me", "--", "ls", "-l"], false),
        (&["runuser", "-u", "me", "ls", "-l"], false),
        (&["setpriv", "--reuid", "1000", "--reset-env", "./train"], true),
        (&["setpriv", "--reuid=1000", "./train", "--reset-env"], false),
    ] {
        let found = named(words[0], &shell, &words[1..]);
        let found: Vec<bool> = found
            .iter()
            .map(|of| matches!(of, Obstacle::DropsPreload { .. }))
            .collect();
        assert_eq!(found, vec![true; usize::from(drops)], "{words:?}");
    }
}

#[test]
fn a_script_of_python_that_is_not_executable_gets_its_interpreter() {
    let folder = folder();
    let path = put(&folder, "leak.py", b"print()\n");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("changed");
    let failure = examine(path.as_os_str(), &[]).expect_err("not executable");
    let command = format!("culeak run -- python3 {}", path.display());
    assert!(failure.message.contains(&command), "{}", failure.message);
    assert_eq!(failure.exit, NOT_EXECUTABLE);
}
