//! Whether a library can be preloaded into a program, examined before the program starts.
//!
//! The executable is found as a shell finds it, and `#!` lines are followed to the interpreter. The examination is necessary:
//! in a static or setuid program the loader never loads the library, so a missing report would look like a program without
//! leaks. Deliberately absent: wrappers that start the real program later; the program inherits their environment.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fmt};

use nix::unistd::{AccessFlags, access, getegid, geteuid, getuid};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, elf};

use super::environment::is_address_sanitizer;
use crate::errors::Failure;

/// The exit codes that a shell uses for the same two errors.
pub const NOT_FOUND: u8 = 127;
pub const NOT_EXECUTABLE: u8 = 126;

/// The kernel follows at most this many `#!` lines.
const MAX_SCRIPTS: usize = 5;

/// What is known about a program before it starts.
#[derive(Debug)]
pub struct Program {
    /// The file that will be executed; for a script, its interpreter.
    pub executable: PathBuf,
    /// Linked to a shared AddressSanitizer runtime, which must be first in `LD_PRELOAD`.
    pub address_sanitizer: bool,
    pub obstacles: Vec<Obstacle>,
}

/// Why no library can be preloaded into a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    Static,
    Privileged(&'static str),
    OtherArchitecture(String),
    OtherLibc(String),
    /// A client of a daemon or another machine, which starts the real program.
    StartsElsewhere(String),
    /// It starts the real program with another environment.
    DropsPreload {
        how: String,
        inside: String,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&match self {
            Obstacle::Static => "is statically linked, so no library can be preloaded".to_owned(),
            Obstacle::Privileged(how) => format!("{how}, so the loader ignores LD_PRELOAD"),
            Obstacle::OtherArchitecture(theirs) => {
                let ours = env::consts::ARCH;
                format!("is built for {theirs}, but the preload library for {ours}")
            }
            Obstacle::OtherLibc(loader) => {
                format!("uses the loader {loader}, but the preload library needs glibc, as CUDA does")
            }
            Obstacle::DropsPreload { how, .. } => format!("{how}, so the program gets no LD_PRELOAD"),
            Obstacle::StartsElsewhere(what) => {
                format!("starts programs elsewhere ({what}), where LD_PRELOAD has no effect")
            }
        })
    }
}

/// Programs whose only purpose is to start another one with other privileges.
const STARTERS: [&str; 4] = ["sudo", "su", "doas", "pkexec"];

impl Obstacle {
    /// What to do about it.
    pub fn remedy(&self, executable: &Path) -> String {
        let path = executable.display();
        let name = executable.file_name().unwrap_or_default().to_string_lossy();
        match self {
            Obstacle::Static => {
                "link it again without -static; a static CUDA runtime, nvcc's default, is no obstacle".to_owned()
            }
            Obstacle::Privileged(_) if STARTERS.contains(&&*name) => {
                format!("start culeak inside it: {}", inside(&name))
            }
            Obstacle::Privileged(_) => {
                format!("record a copy, which has no privileges: cp {path} /tmp/{name} && culeak run -- /tmp/{name}")
            }
            Obstacle::OtherArchitecture(theirs) => {
                format!("run a culeak that is built for {theirs} in the same place: culeak help install")
            }
            Obstacle::OtherLibc(_) => {
                "run it in an image with glibc, which CUDA needs too: docker run --gpus all debian:12 …".to_owned()
            }
            Obstacle::DropsPreload { inside, .. } => format!("start culeak inside it: {inside}"),
            Obstacle::StartsElsewhere(_) => {
                let page = match &*name {
                    "kubectl" => "kubernetes",
                    "systemd-run" => "systemd",
                    "ssh" => return "ssh HOST culeak run -o DIR -- PROGRAM, with culeak installed there".to_owned(),
                    _ => "containers",
                };
                format!("{name} … culeak run -o DIR -- PROGRAM, with culeak installed there; see culeak help {page}")
            }
        }
    }
}

/// Finds the program and the obstacles to recording it, with these arguments.
///
/// # Errors
/// The program cannot be executed; the exit code is that of a shell.
pub fn examine(command: &OsStr, arguments: &[OsString]) -> Result<Program, Failure> {
    let mut file = find(command, env::var_os("PATH").as_deref())?;
    let elsewhere = starts_elsewhere(&file);
    let drops = drops_preload(&file, arguments);
    for _ in 0..MAX_SCRIPTS {
        match interpreter(&file) {
            // The kernel reports a missing interpreter.
            Some(next) if next.exists() => file = next,
            _ => break,
        }
    }
    let privileged = privileged(&file);
    // A file that cannot be read (mode 0711, for example) may still be executable.
    let image = elf_image(&file).unwrap_or_default();
    // How a client is linked does not matter where it does not run the program itself.
    let of_image = image.obstacle.filter(|_| elsewhere.is_none());
    let drops = drops.filter(|_| privileged.is_none());
    let obstacles = [elsewhere, privileged, drops, of_image].into_iter().flatten().collect();
    Ok(Program {
        executable: file,
        address_sanitizer: image.address_sanitizer,
        obstacles,
    })
}

/// The file that `execvp` would execute.
fn find(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let shown = Path::new(command).display();
    let not_found = |why: String| Err(Failure::with_exit(why, NOT_FOUND));
    let not_executable = |file: &Path, error: io::Error, next: &str| {
        let why = format!("{}: cannot be executed: {error}; {next}", file.display());
        Err(Failure::with_exit(why, NOT_EXECUTABLE))
    };
    if command.is_empty() {
        return not_found("the name of the program to start is empty".to_owned());
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return match executable(&file) {
            Ok(()) => Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                not_found(format!("{shown}: no such file; check the path"))
            }
            Err(error) => not_executable(&file, error, &permission(&file)),
        };
    }
    let mut denied = None;
    for folder in env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        let file = folder.join(command);
        match executable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => _ = denied.get_or_insert((file, error)),
            Err(_) => {}
        }
    }
    match denied {
        Some((file, error)) => not_executable(&file, error, "check its permissions"),
        None => not_found(format!(
            "{shown}: not found in PATH; for a program in this folder write ./{shown}"
        )),
    }
}

/// What to do about a file that is not executable.
fn permission(file: &Path) -> String {
    let shown = file.display();
    let is_python = file.extension().is_some_and(|ending| ending == "py") && file.is_file();
    match is_python {
        true => format!("start it with its interpreter: culeak run -- python3 {shown}"),
        false => "check its permissions".to_owned(),
    }
}

fn executable(file: &Path) -> io::Result<()> {
    if fs::metadata(file)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is a directory"));
    }
    access(file, AccessFlags::X_OK).map_err(io::Error::from)
}

/// The interpreter in the first line of a script; `/usr/bin/env` is looked through.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(script).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let interpreter = Path::new(words.next()?);
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Some(interpreter.to_path_buf());
    }
    let setting = |word: &OsStr| word.as_bytes().starts_with(b"-") || word.as_bytes().contains(&b'=');
    let command = words.find(|word| !setting(word))?;
    find(command, env::var_os("PATH").as_deref()).ok()
}

/// Programs known to start other programs on another machine, in a container or through a daemon.
fn starts_elsewhere(file: &Path) -> Option<Obstacle> {
    let elsewhere = match file.file_name()?.to_str()? {
        "docker" | "podman" | "nerdctl" => "in a container",
        "kubectl" => "in a pod",
        "ssh" => "on another machine",
        "systemd-run" => "under systemd",
        _ => return None,
    };
    Some(Obstacle::StartsElsewhere(elsewhere.to_owned()))
}

/// Whether the program starts another one without the variables that it was given.
fn drops_preload(file: &Path, arguments: &[OsString]) -> Option<Obstacle> {
    let name = file.file_name()?.to_str()?;
    let words: Vec<&str> = arguments.iter().map_while(|word| word.to_str()).collect();
    let is_login = || {
        options(&words).any(|word| {
            // Behind one of these letters is its value.
            let letters = word.split(['c', 's', 'g', 'G', 'u', 'w']).next().unwrap_or_default();
            matches!(word, "-" | "--login") || !word.starts_with("--") && letters.contains('l')
        })
    };
    let how = match name {
        // They remove the variables of the loader, also if root starts them.
        "sudo" | "doas" | "pkexec" => "removes variables from the environment",
        "su" | "runuser" if is_login() => "starts a login shell with an environment of its own",
        "env" if env_drops_preload(&words) => "starts the program without the variable",
        "setpriv" if options(&words).any(|word| word == "--reset-env") => "resets the environment",
        _ => return None,
    };
    Some(Obstacle::DropsPreload {
        how: how.to_owned(),
        inside: inside(name),
    })
}

/// The options among the words of a command, up to those of the program that it starts. The word behind an option without `=`
/// may be its value.
fn options<'a>(words: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let mut may_have_value = false;
    let own = words.iter().take_while(move |word| {
        let is_option = word.starts_with('-');
        let is_own = **word != "--" && (is_option || may_have_value);
        may_have_value = is_option && !word.contains('=') && !matches!(**word, "-" | "-l" | "--login" | "--reset-env");
        is_own
    });
    own.copied().filter(|word| word.starts_with('-'))
}

/// Whether `env` with these words starts a program without the `LD_PRELOAD` of its own environment.
fn env_drops_preload(words: &[&str]) -> bool {
    const PRELOAD: &str = "LD_PRELOAD";
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "-" | "--ignore-environment" => return true,
            "-u" | "--unset" if words.next() == Some(&PRELOAD) => return true,
            "-u" | "--unset" => {}
            "-C" | "--chdir" | "-a" | "--argv0" => drop(words.next()),
            // `-0i`, `-vi`, and the abbreviations of the long option.
            word if word.starts_with("--ignore-e") => return true,
            word if word.starts_with('-') && word[1..].trim_start_matches(['0', 'v']).starts_with('i') => return true,
            word if word.strip_prefix("-u").or(word.strip_prefix("--unset=")) == Some(PRELOAD) => return true,
            word if word.starts_with('-') => {}
            word if word.split_once('=').is_some_and(|(name, _)| name == PRELOAD) => return true,
            word if word.contains('=') => {}
            _ => return false,
        }
    }
    false
}

/// How culeak is started by a program whose purpose is to start another one.
fn inside(name: &str) -> String {
    match name {
        // Its first word is a user.
        "su" => "su -c 'culeak run -- PROGRAM'".to_owned(),
        "runuser" => "runuser -u USER -- culeak run -- PROGRAM".to_owned(),
        // Without PATH, the command needs its path.
        "env" | "setpriv" => format!("{name} … \"$(command -v culeak)\" run -- PROGRAM"),
        _ => format!("{name} culeak run -- PROGRAM"),
    }
}

/// Whether executing the file raises privileges (the kernel's AT_SECURE).
fn privileged(file: &Path) -> Option<Obstacle> {
    let found = fs::metadata(file).ok()?;
    if found.mode() & 0o4000 != 0 && found.uid() != geteuid().as_raw() {
        return Some(Obstacle::Privileged("is setuid"));
    }
    if found.mode() & 0o2010 == 0o2010 && found.gid() != getegid().as_raw() {
        return Some(Obstacle::Privileged("is setgid"));
    }
    let capabilities = xattr::get_deref(file, "security.capability").ok().flatten();
    (capabilities.is_some() && !getuid().is_root()).then_some(Obstacle::Privileged("has file capabilities"))
}

/// What the ELF headers contain.
#[derive(Debug, Default)]
struct Image {
    obstacle: Option<Obstacle>,
    address_sanitizer: bool,
}

/// Reads the headers; `None` if the file is not a readable ELF file.
fn elf_image(path: &Path) -> Option<Image> {
    let data = ReadCache::new(File::open(path).ok()?);
    match FileKind::parse(&data).ok()? {
        FileKind::Elf64 => image_of(elf::FileHeader64::<Endianness>::parse(&data).ok()?, &data),
        FileKind::Elf32 => image_of(elf::FileHeader32::<Endianness>::parse(&data).ok()?, &data),
        _ => None,
    }
}

fn image_of<Elf>(header: &Elf, data: &ReadCache<File>) -> Option<Image>
where
    Elf: FileHeader<Endian = Endianness>,
{
    let endian = header.endian().ok()?;
    let machine = header.e_machine(endian);
    if machine != NATIVE_MACHINE || !header.is_type_64() {
        return Some(Image {
            obstacle: Some(Obstacle::OtherArchitecture(machine_name(machine))),
            ..Image::default()
        });
    }
    let segments = header.program_headers(endian, data).ok()?;
    let loader = segments
        .iter()
        .find_map(|segment| segment.interpreter(endian, data).ok().flatten());
    let Some(loader) = loader else {
        return Some(Image {
            obstacle: Some(Obstacle::Static),
            ..Image::default()
        });
    };
    let loader = String::from_utf8_lossy(loader).into_owned();
    Some(Image {
        obstacle: loader.contains("ld-musl").then_some(Obstacle::OtherLibc(loader)),
        address_sanitizer: needs_address_sanitizer(header, endian, data).unwrap_or(false),
    })
}

/// Whether the file needs a shared AddressSanitizer runtime of gcc or clang.
fn needs_address_sanitizer<Elf>(header: &Elf, endian: Endianness, data: &ReadCache<File>) -> object::read::Result<bool>
where
    Elf: FileHeader<Endian = Endianness>,
{
    let table = header.sections(endian, data)?.dynamic_table(endian, data)?;
    Ok(table
        .iter()
        .filter(|entry| entry.tag == elf::DT_NEEDED)
        .any(|entry| is_address_sanitizer(table.string(entry).unwrap_or_default())))
}

const NATIVE_MACHINE: elf::Machine = if cfg!(target_arch = "aarch64") {
    elf::EM_AARCH64
} else {
    elf::EM_X86_64
};

fn machine_name(machine: elf::Machine) -> String {
    match machine {
        elf::EM_386 => "32-bit x86".to_owned(),
        elf::EM_X86_64 => "x86_64".to_owned(),
        elf::EM_ARM => "32-bit ARM".to_owned(),
        elf::EM_AARCH64 => "aarch64".to_owned(),
        elf::EM_PPC64 => "ppc64".to_owned(),
        elf::EM_RISCV => "RISC-V".to_owned(),
        elf::Machine(other) => format!("machine type {other}"),
    }
}

#[cfg(test)]
mod tests;
