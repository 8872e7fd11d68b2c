//! Files that are made whole or not at all, and never over another one unless the user says so.
//!
//! What is written has no name until it is complete and on the disk; then it takes the target's in one step. A full disk or
//! a kill, even by SIGKILL, leaves the target as it was and nothing beside it. File systems that know no files without a name
//! (NFS, some overlays) get one beside the target, which goes with any signal that can be caught. `-` is standard output.
//! Nothing is written over a file that the same command read ([`protect`]), whatever the user says: a recording that is lost
//! cannot be made again. Deliberately absent: what is written; each command knows that.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction, signal};
use nix::unistd::linkat;
use tempfile::NamedTempFile;

use crate::errors::Failure;

/// What may happen to a file that is there already. Flattened into the arguments of every command that writes one.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Overwrite {
    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
}

impl Overwrite {
    /// The same, with leave to replace a file that this program has written earlier, as its content shows.
    pub fn or_ours(self, path: &Path, is_ours: impl FnOnce(&[u8]) -> bool) -> Overwrite {
        let ours = || path.is_file() && fs::read(path).is_ok_and(|content| is_ours(&content));
        Overwrite {
            force: self.force || ours(),
        }
    }
}

/// Whether `path` stands for standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Device and inode of every file that this command was given to read.
static INPUTS: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// Nothing is written over this file from now on, by whatever name.
pub fn protect(input: &Metadata) {
    // A terminal and `/dev/null` may well be read and written.
    if input.is_file() || input.file_type().is_fifo() {
        let mut inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
        inputs.insert((input.dev(), input.ino()));
    }
}

fn is_input(metadata: io::Result<Metadata>) -> bool {
    let inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    metadata.is_ok_and(|found| inputs.contains(&(found.dev(), found.ino())))
}

/// Refuses standard output if that is one of the inputs: what is written there would be read as a part of it.
///
/// # Errors
/// It is.
pub fn check_standard_output() -> Result<(), Failure> {
    let own = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    match is_input(own.and_then(|file| file.metadata())) {
        true => Err(read_here(Path::new("standard output"))),
        false => Ok(()),
    }
}

/// Refuses what cannot be written anyway; for commands that work long before they write.
///
/// # Errors
/// The file exists and may not be replaced, is a folder, or its folder is missing.
pub fn check(path: &Path, overwrite: Overwrite) -> Result<(), Failure> {
    if is_standard_output(path) {
        return Ok(());
    }
    let shown = path.display();
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Err(Failure::new(format!("{shown}: is a folder; name a file in it"))),
        Ok(metadata) if metadata.is_file() && !overwrite.force => Err(exists(path)),
        Ok(_) => Ok(()),
        Err(_) if folder_of(path).is_dir() => Ok(()),
        Err(_) => Err(Failure::new(format!(
            "{shown}: cannot be written: there is no folder {}; create it or choose another path",
            folder_of(path).display()
        ))),
    }
}

/// Makes a folder for files of ours, and those above it; `option` names another.
///
/// # Errors
/// Whatever the disk says.
pub fn create_folder(folder: &Path, what: &str, option: &str) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| {
        let shown = folder.display();
        Failure::new(format!(
            "{shown}: cannot be used as the folder for {what}: {error}; choose another with {option}"
        ))
    })
}

/// Makes the file, or writes to standard output for `-`. A device or a named pipe is written to and never replaced.
///
/// # Errors
/// Those of [`check`], and whatever the disk says. Nothing is left behind then.
pub fn create(
    path: &Path,
    overwrite: Overwrite,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    create_for(MODE, path, overwrite, write)
}

/// The same for what only its owner may read, as recordings are: command lines, paths, addresses.
///
/// # Errors
/// As above.
pub fn create_private(
    path: &Path,
    overwrite: Overwrite,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    create_for(PRIVATE, path, overwrite, write)
}

fn create_for(
    mode: u32,
    path: &Path,
    overwrite: Overwrite,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let _limit = LimitIsAnError::new();
    if is_standard_output(path) {
        check_standard_output()?;
        return written(buffered(io::stdout().lock(), write), Path::new("standard output"));
    }
    check(path, overwrite)?;
    check_is_no_input(path)?;
    if path.exists() && !path.is_file() {
        let opened = File::options().write(true).open(path);
        return written(opened.and_then(|file| buffered(file, write)), path);
    }
    let folder = folder_of(path);
    let complete = Unfinished::in_folder(folder, mode).and_then(|mut file| {
        buffered(file.file(), write)?;
        file.file().sync_all()?;
        Ok(file)
    });
    // Some are read while this is written.
    check_is_no_input(path)?;
    match complete.and_then(|file| file.take_name(path, folder, overwrite)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(path)),
        result => written(result, path),
    }
}

fn check_is_no_input(path: &Path) -> Result<(), Failure> {
    match is_input(path.metadata()) {
        true => Err(read_here(path)),
        false => Ok(()),
    }
}

/// A file that nobody sees yet.
enum Unfinished {
    Nameless(File),
    Named(NamedTempFile, RemovedBySignals),
}

impl Unfinished {
    fn in_folder(folder: &Path, mode: u32) -> io::Result<Unfinished> {
        let nameless = File::options()
            .read(true)
            .write(true)
            .mode(mode)
            .custom_flags(nix::libc::O_TMPFILE)
            .open(folder);
        match nameless {
            Ok(file) if Path::new("/proc/self/fd").is_dir() => Ok(Unfinished::Nameless(file)),
            // Not here. If it is something else, the next attempt will say so.
            _ => Unfinished::named(folder, mode),
        }
    }

    fn named(folder: &Path, mode: u32) -> io::Result<Unfinished> {
        let file = beside().permissions(Permissions::from_mode(mode)).tempfile_in(folder)?;
        let removed = RemovedBySignals::new(file.path())?;
        Ok(Unfinished::Named(file, removed))
    }

    fn file(&mut self) -> &mut File {
        match self {
            Unfinished::Nameless(file) => file,
            Unfinished::Named(file, _) => file.as_file_mut(),
        }
    }

    fn take_name(self, path: &Path, folder: &Path, overwrite: Overwrite) -> io::Result<()> {
        let mut file = match self {
            Unfinished::Named(file, _removed) if overwrite.force => return Ok(file.persist(path).map(drop)?),
            Unfinished::Named(file, _removed) => return Ok(file.persist_noclobber(path).map(drop)?),
            Unfinished::Nameless(file) => file,
        };
        let link = |name: &Path| {
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(AT_FDCWD, own.as_str(), AT_FDCWD, name, AtFlags::AT_SYMLINK_FOLLOW).map_err(io::Error::from)
        };
        match link(path) {
            Ok(()) => return Ok(()),
            // A name can be given, but not taken from another in one step, so it goes by a name of its own for that moment.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && overwrite.force => {
                return Ok(beside().make_in(folder, link)?.persist(path).map(drop)?);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
        // Some sandboxes refuse what the file system could do.
        let mode = file.metadata()?.mode();
        let mut named = Unfinished::named(folder, mode & MODE)?;
        file.rewind()?;
        io::copy(&mut file, named.file())?;
        named.file().sync_all()?;
        named.take_name(path, folder, overwrite)
    }
}

/// As any file the user makes: the umask decides who may read it.
const MODE: u32 = 0o666;
/// As a recording.
const PRIVATE: u32 = 0o600;

fn beside() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".culeak-").suffix(".tmp");
    builder
}

/// While this lives, a signal that would end this program removes a file first.
struct RemovedBySignals {
    before: Vec<(Signal, SigAction)>,
}

/// The file to remove: a text that is never freed while a handler may look at it.
static TO_REMOVE: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

extern "C" fn remove_and_die(signal: c_int) {
    // AcqRel: pairs with the swaps in `new` and `drop`, so that the text is whole, and taken once.
    let path = TO_REMOVE.swap(ptr::null_mut(), Ordering::AcqRel);
    if !path.is_null() {
        // SAFETY: whoever took the pointer owns the text, which `new` made; it is not freed here.
        unsafe { nix::libc::unlink(path) };
    }
    // SAFETY: both may be called in a handler. The signal is held back until this returns, and then ends the program.
    unsafe {
        nix::libc::signal(signal, nix::libc::SIG_DFL);
        nix::libc::raise(signal);
    }
}

impl RemovedBySignals {
    fn new(path: &Path) -> io::Result<RemovedBySignals> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // Release: the handler that takes the text finds it whole.
        forget(TO_REMOVE.swap(path.into_raw(), Ordering::AcqRel));
        let action = SigAction::new(SigHandler::Handler(remove_and_die), SaFlags::empty(), SigSet::empty());
        let mut before = Vec::new();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: the handler calls only what may be called in one.
            let old = unsafe { sigaction(signal, &action) }?;
            if matches!(old.handler(), SigHandler::SigDfl) {
                before.push((signal, old));
            } else {
                // `nohup`, or a caller that waits for signals in its own way.
                // SAFETY: it was in place before.
                unsafe { sigaction(signal, &old) }?;
            }
        }
        Ok(RemovedBySignals { before })
    }
}

impl Drop for RemovedBySignals {
    fn drop(&mut self) {
        for (signal, action) in &self.before {
            // SAFETY: it was in place before.
            let _ = unsafe { sigaction(*signal, action) };
        }
        forget(TO_REMOVE.swap(ptr::null_mut(), Ordering::AcqRel));
    }
}

/// Frees a text that `RemovedBySignals::new` made.
fn forget(path: *mut c_char) {
    if !path.is_null() {
        // SAFETY: it came from `into_raw`, and the swap that gave it to us gives it to nobody else.
        drop(unsafe { CString::from_raw(path) });
    }
}

/// A file that grows beyond what the user's limit allows is an error like a full disk, and not the end of this program.
struct LimitIsAnError(Option<SigHandler>);

impl LimitIsAnError {
    fn new() -> LimitIsAnError {
        // SAFETY: to ignore a signal calls nothing.
        LimitIsAnError(unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.ok())
    }
}

impl Drop for LimitIsAnError {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: it was in place before.
            let _ = unsafe { signal(Signal::SIGXFSZ, before) };
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::new(format!(
        "{}: already exists; choose another name, or replace it with --force",
        path.display()
    ))
}

fn read_here(path: &Path) -> Failure {
    Failure::new(format!(
        "{}: is one of the files that are read here, and would be lost; choose another name",
        path.display()
    ))
}

/// Nobody reading standard output any more is no failure.
fn written(result: io::Result<()>, path: &Path) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format!(
            "{}: cannot be written ({error}); choose another path",
            path.display()
        ))),
        _ => Ok(()),
    }
}

fn buffered(file: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    write(&mut out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORCE: Overwrite = Overwrite { force: true };
    const KEEP: Overwrite = Overwrite { force: false };

    fn text(words: &'static str) -> impl FnOnce(&mut dyn Write) -> io::Result<()> {
        move |out| out.write_all(words.as_bytes())
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn a_file_that_exists_is_replaced_only_by_force() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        create(&path, KEEP, text("first")).expect("a new file");
        let error = create(&path, KEEP, text("second")).expect_err("it exists");
        assert!(error.message.contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "first");
        create(&path, FORCE, text("third")).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "third");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_failure_half_way_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        create(&path, KEEP, text("first")).expect("a new file");
        let error = create(&path, FORCE, |out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::Error::from_raw_os_error(28))
        });
        assert!(error.expect_err("no space").message.contains("No space"));
        assert_eq!(fs::read_to_string(&path).expect("the file"), "first");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_file_with_a_name_beside_its_target_serves_as_well() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        for (overwrite, words) in [(KEEP, "first"), (FORCE, "second")] {
            let mut file = Unfinished::named(folder.path(), MODE).expect("a file");
            file.file().write_all(words.as_bytes()).expect("written");
            assert_eq!(names(folder.path()).len(), 1 + usize::from(words == "second"));
            file.take_name(&path, folder.path(), overwrite).expect("named");
            assert_eq!(fs::read_to_string(&path).expect("the file"), words);
        }
        let file = Unfinished::named(folder.path(), MODE).expect("a file");
        let error = file.take_name(&path, folder.path(), KEEP).expect_err("it exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(folder.path()), ["out"]);
    }

    /// Not a claim, but what the next one runs: it writes half a file, and gets a signal.
    #[test]
    #[ignore = "run by another test"]
    fn dies_while_it_writes() {
        let Ok(folder) = std::env::var("CULEAK_TEST_FOLDER") else {
            return;
        };
        let number: i32 = std::env::var("CULEAK_TEST_SIGNAL")
            .expect("a signal")
            .parse()
            .expect("a number");
        let signal = Signal::try_from(number).expect("a signal");
        let folder = Path::new(&folder);
        let half = |out: &mut dyn Write| {
            out.write_all(&[b'x'; 200_000])?;
            assert!(!names(folder).contains(&"out".to_owned()));
            nix::sys::signal::raise(signal)?;
            Ok(())
        };
        match std::env::var_os("CULEAK_TEST_NAMED") {
            Some(_) => half(Unfinished::named(folder, MODE).expect("a file").file()).expect("dead by now"),
            None => create(&folder.join("out"), KEEP, half).expect("dead by now"),
        }
    }

    #[test]
    fn a_kill_half_way_leaves_nothing() {
        use std::os::unix::process::{CommandExt, ExitStatusExt};
        let cases = [
            (Signal::SIGKILL, false),
            (Signal::SIGTERM, false),
            (Signal::SIGTERM, true),
            (Signal::SIGINT, true),
            (Signal::SIGHUP, true),
        ];
        for (signal, named) in cases {
            let folder = tempfile::tempdir().expect("a folder");
            let mut command = std::process::Command::new(std::env::current_exe().expect("this test"));
            command
                .args(["--ignored", "--exact", "output::tests::dies_while_it_writes"])
                .env("CULEAK_TEST_FOLDER", folder.path())
                .env("CULEAK_TEST_SIGNAL", (signal as i32).to_string());
            if named {
                command.env("CULEAK_TEST_NAMED", "");
            }
            if signal != Signal::SIGKILL {
                // Whoever started the tests may ignore it, and what is ignored is handed on.
                // SAFETY: one system call between fork and exec.
                unsafe {
                    command.pre_exec(move || {
                        nix::sys::signal::signal(signal, SigHandler::SigDfl)?;
                        Ok(())
                    });
                }
            }
            let output = command.output().expect("it runs");
            assert_eq!(output.status.signal(), Some(signal as i32), "{signal}: {output:?}");
            assert_eq!(names(folder.path()), [""; 0], "{signal}, named: {named}");
        }
    }

    #[test]
    fn folders_and_missing_folders_are_said_to_be_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = create(folder.path(), FORCE, text("x")).expect_err("a folder");
        assert!(error.message.contains("is a folder"), "{error}");
        let error = create(&folder.path().join("no/out"), FORCE, text("x")).expect_err("no folder");
        assert!(error.message.contains("there is no folder"), "{error}");
    }

    #[test]
    fn a_device_is_written_to_and_stays() {
        create(Path::new("/dev/null"), KEEP, text("x")).expect("written");
        assert!(!Path::new("/dev/null").is_file());
    }
}
