//! Files that are made whole or not at all, and never over another one unless the user says so.
//!
//! What is written lies beside its target until it is complete and on the disk; then it takes the target's name in one
//! step. A full disk or a kill leaves the target as it was. `-` is standard output. Deliberately absent: what is
//! written; each command knows that.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use clap::Args;

use crate::errors::Failure;

/// What may happen to a file that is there already. Flattened into the arguments of every command that writes one.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Overwrite {
    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
}

/// Whether `path` stands for standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
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
            "{shown}: cannot be written: there is no folder {}; make it or choose another place",
            folder_of(path).display()
        ))),
    }
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
    if is_standard_output(path) {
        return written(buffered(io::stdout().lock(), write), Path::new("standard output"));
    }
    check(path, overwrite)?;
    if path.exists() && !path.is_file() {
        let opened = File::options().write(true).open(path);
        return written(opened.and_then(|file| buffered(file, write)), path);
    }
    // As any file the user makes: the umask decides who may read it.
    let beside = tempfile::Builder::new()
        .prefix(".culeak-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder_of(path));
    let complete = beside.and_then(|mut file| {
        buffered(file.as_file_mut(), write)?;
        file.as_file().sync_all()?;
        Ok(file)
    });
    let file = match complete {
        Ok(file) => file,
        Err(error) => return written(Err(error), path),
    };
    let renamed = if overwrite.force {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    match renamed {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(path)),
        Err(error) => written(Err(error.error), path),
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
        "{}: exists already; choose another name, or --force to replace it",
        path.display()
    ))
}

/// Nobody reading standard output any more is no failure.
fn written(result: io::Result<()>, path: &Path) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format!(
            "{}: cannot be written ({error}); choose another place",
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
    use std::fs;

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
