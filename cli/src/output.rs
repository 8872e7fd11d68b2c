//! Files that are written completely or not at all, and that replace another file only with `--force`.
//!
//! A file has no name until its content is complete and synced to disk; then it gets a temporary name and is renamed to the
//! target. A full disk, or a signal while the content is written (SIGKILL included), leaves the target unchanged and nothing
//! beside it. If the target is a symbolic link, the link stays and its file is replaced. `-` is standard output. A file that
//! the same command read ([`protect`]) is never replaced, even with `--force`: a lost recording cannot be made again.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::linkat;

use crate::errors::Failure;

/// Whether existing files are replaced, for every command that writes a file.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Overwrite {
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
}

impl Overwrite {
    /// Also allows replacing a file that this program wrote earlier, according to `is_ours`.
    pub fn or_ours(self, path: &Path, is_ours: impl FnOnce(&[u8]) -> bool) -> Overwrite {
        let ours = || path.is_file() && fs::read(path).is_ok_and(|content| is_ours(&content));
        Overwrite {
            force: self.force || ours(),
        }
    }
}

/// Whether `path` means standard output. To replace what `/dev/stdout` points to would cut off later output.
pub fn is_standard_output(path: &Path) -> bool {
    path == "-" || path == "/dev/stdout"
}

/// Device and inode of every input file.
static INPUTS: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// From now on this file is not replaced, under any name.
pub fn protect(input: &Metadata) {
    // Terminals and `/dev/null` may be both input and output.
    if input.is_file() || input.file_type().is_fifo() {
        let mut inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
        inputs.insert((input.dev(), input.ino()));
    }
}

fn is_input(metadata: io::Result<Metadata>) -> bool {
    let inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    metadata.is_ok_and(|found| inputs.contains(&(found.dev(), found.ino())))
}

/// Refuses standard output if it is one of the inputs, which would then read its own output.
///
/// # Errors
/// Standard output is an input.
pub fn check_standard_output() -> Result<(), Failure> {
    let own = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    match is_input(own.and_then(|file| file.metadata())) {
        true => Err(is_an_input(Path::new("standard output"))),
        false => Ok(()),
    }
}

/// Checks in advance whether a file can be written, for commands that run long before they write.
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
            "{shown}: cannot be written: there is no folder {}; create it, or choose another path",
            folder_of(path).display()
        ))),
    }
}

/// As [`check`], for a command whose program has standard output.
///
/// # Errors
/// See [`check`]; or the path is standard output.
pub fn check_beside_program(path: &Path, overwrite: Overwrite) -> Result<(), Failure> {
    if is_standard_output(path) {
        return Err(Failure::new(format!(
            "{}: standard output belongs to the program; name a file for the report, the page or the verdict",
            path.display()
        )));
    }
    check(path, overwrite)
}

/// Creates a folder for `what`, and its parents; `option` is the option that names the folder.
///
/// # Errors
/// The folder cannot be created.
pub fn create_folder(folder: &Path, what: &str, option: &str) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| {
        let shown = folder.display();
        Failure::new(format!(
            "{shown}: cannot be used as the folder for {what}: {error}; choose another with {option}"
        ))
    })
}

/// Writes files into the folder that `--out` names, all or none; those that this program wrote earlier, as the `mark` in them
/// shows, are replaced.
///
/// # Errors
/// Those of [`create_folder`] and [`create`].
pub fn replace_own(
    folder: &Path,
    what: &str,
    mark: &str,
    overwrite: Overwrite,
    files: &[(String, Vec<u8>)],
) -> Result<(), Failure> {
    create_folder(folder, what, "--out")?;
    let is_ours = |content: &[u8]| content.windows(mark.len()).any(|window| window == mark.as_bytes());
    let mut checked = Vec::new();
    for (name, content) in files {
        let path = folder.join(name);
        let overwrite = overwrite.or_ours(&path, is_ours);
        check(&path, overwrite)?;
        checked.push((path, overwrite, content));
    }
    let mut checked = checked.into_iter();
    checked.try_for_each(|(path, overwrite, content)| create(&path, overwrite, |out| out.write_all(content)))
}

/// Writes a file, or standard output for `-`. A device or a named pipe is written to, never replaced.
///
/// # Errors
/// Those of [`check`], and I/O errors. The target is then unchanged, and no other file is left behind.
pub fn create(
    path: &Path,
    overwrite: Overwrite,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    create_for(MODE, path, overwrite, write)
}

/// As [`create`], without colours.
///
/// # Errors
/// See [`create`].
pub fn create_plain(
    path: &Path,
    overwrite: Overwrite,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    create(path, overwrite, |out| {
        let mut plain = anstream::StripStream::new(Vec::new());
        write(&mut plain)?;
        out.write_all(&plain.into_inner())
    })
}

/// Writes a file that only its owner can read, such as a snapshot: it contains command lines, paths and addresses.
///
/// # Errors
/// See [`create`].
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
    // A rename would replace a link instead of its file.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let complete = unnamed(folder_of(&target), mode).and_then(|file| {
        buffered(&file, write)?;
        file.sync_all()?;
        Ok(file)
    });
    // Inputs may have been opened while this was written.
    check_is_no_input(path)?;
    match complete.and_then(|file| name(file, mode, &target, overwrite)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(path)),
        result => written(result, path),
    }
}

fn check_is_no_input(path: &Path) -> Result<(), Failure> {
    match is_input(path.metadata()) {
        true => Err(is_an_input(path)),
        false => Ok(()),
    }
}

/// Mode of most files; the umask applies.
const MODE: u32 = 0o666;
/// Mode of recordings and snapshots.
const PRIVATE: u32 = 0o600;

/// A file without a name: the kernel removes it if this process ends.
fn unnamed(folder: &Path, mode: u32) -> io::Result<File> {
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .mode(mode)
        .custom_flags(nix::libc::O_TMPFILE);
    // Some file systems have no O_TMPFILE; then the file is created and unlinked.
    let file = options.open(folder).or_else(|_| tempfile::tempfile_in(folder))?;
    // An input that was removed meanwhile may have left its number to this file.
    let new = file.metadata()?;
    let mut inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    inputs.remove(&(new.dev(), new.ino()));
    Ok(file)
}

/// Gives a complete file its name in one step.
fn name(mut file: File, mode: u32, path: &Path, overwrite: Overwrite) -> io::Result<()> {
    let folder = folder_of(path);
    let mut temporary = tempfile::Builder::new();
    let temporary = temporary
        .prefix(".culeak-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(mode));
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let linked = temporary.make_in(folder, |name| {
        linkat(AT_FDCWD, own.as_str(), AT_FDCWD, name, AtFlags::AT_SYMLINK_FOLLOW).map_err(io::Error::from)
    });
    let named = match linked {
        Ok(linked) => linked.into_temp_path(),
        // An unlinked file cannot be linked again, and some sandboxes refuse to link any.
        Err(_) => {
            let mut copy = temporary.tempfile_in(folder)?;
            file.rewind()?;
            io::copy(&mut file, &mut copy)?;
            copy.as_file().sync_all()?;
            copy.into_temp_path()
        }
    };
    match overwrite.force {
        true => Ok(named.persist(path)?),
        false => Ok(named.persist_noclobber(path)?),
    }
}

/// Ignores SIGXFSZ, so that exceeding the file size limit is an I/O error and does not end this program.
struct LimitIsAnError(Option<SigHandler>);

impl LimitIsAnError {
    fn new() -> LimitIsAnError {
        // SAFETY: ignoring a signal installs no handler.
        LimitIsAnError(unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.ok())
    }
}

impl Drop for LimitIsAnError {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: this restores the previous disposition.
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

fn is_an_input(path: &Path) -> Failure {
    Failure::new(format!(
        "{}: is an input of this command, and would be lost; choose another name",
        path.display()
    ))
}

/// Turns an I/O error into a failure, except a closed pipe.
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
    fn a_failure_half_way_leaves_the_target_unchanged_and_nothing_else() {
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
    fn a_file_that_cannot_be_linked_is_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let unlinked = |words: &str| {
            let mut file = tempfile::NamedTempFile::new_in(folder.path())
                .expect("a file")
                .into_file();
            file.write_all(words.as_bytes()).expect("written");
            file
        };
        for (overwrite, words) in [(KEEP, "first"), (FORCE, "second")] {
            name(unlinked(words), PRIVATE, &path, overwrite).expect("named");
            assert_eq!(fs::read_to_string(&path).expect("the file"), words);
            assert_eq!(path.metadata().expect("the file").mode() & 0o777, PRIVATE);
        }
        let error = name(unlinked("third"), MODE, &path, KEEP).expect_err("it exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(folder.path()), ["out"]);
    }

    /// Not a claim; the next test runs it in a child process: it writes half a file and raises a signal.
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
        create(&folder.join("out"), KEEP, half).expect("dead by now");
    }

    #[test]
    fn a_signal_half_way_leaves_nothing() {
        use std::os::unix::process::{CommandExt, ExitStatusExt};
        for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut command = std::process::Command::new(std::env::current_exe().expect("this test"));
            command
                .args(["--ignored", "--exact", "output::tests::dies_while_it_writes"])
                .env("CULEAK_TEST_FOLDER", folder.path())
                .env("CULEAK_TEST_SIGNAL", (signal as i32).to_string());
            if signal != Signal::SIGKILL {
                // A signal that the test runner ignores would be ignored here too.
                // SAFETY: between fork and exec only async-signal-safe functions may run; `signal` is one.
                unsafe {
                    command.pre_exec(move || {
                        nix::sys::signal::signal(signal, SigHandler::SigDfl)?;
                        Ok(())
                    });
                }
            }
            let output = command.output().expect("it runs");
            assert_eq!(output.status.signal(), Some(signal as i32), "{signal}: {output:?}");
            assert_eq!(names(folder.path()), [""; 0], "{signal}");
        }
    }

    #[test]
    fn folders_and_missing_folders_are_reported() {
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
