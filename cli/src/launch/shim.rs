//! The preload library: embedded in this program, and unpacked once per user and version.
//!
//! An unpacked file is never rewritten, since programs may have it mapped: new content gets a new name, and a file gets its
//! name only when it is complete. An existing file is used only if it belongs to the user and matches byte for byte.
//! Deliberately absent: a search in the current folder or beside the program, where others could put a library that would
//! then run inside the user's processes.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use culeak::reader::open_no_link;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

use crate::errors::Failure;
use crate::symbolize::usual_cache_folder;

/// The bytes of a library that is embedded in this program, and their id.
type Embedded = (&'static [u8], &'static str);
const SHIM: Embedded = (include_bytes!(env!("CULEAK_SHIM_FILE")), env!("CULEAK_SHIM_ID"));
const HOLD: Embedded = (include_bytes!(env!("CULEAK_HOLD_FILE")), env!("CULEAK_HOLD_ID"));
const AUDIT: Embedded = (include_bytes!(env!("CULEAK_AUDIT_FILE")), env!("CULEAK_AUDIT_ID"));
const FAKE_DRIVER: Embedded = (
    include_bytes!(env!("CULEAK_FAKE_DRIVER_FILE")),
    env!("CULEAK_FAKE_DRIVER_ID"),
);

/// The path of the preload library: the value of `CULEAK_SHIM`, else the embedded library, unpacked.
///
/// # Errors
/// `CULEAK_SHIM` is unusable, or no folder can hold the library.
pub fn locate() -> Result<PathBuf, Failure> {
    match env::var_os("CULEAK_SHIM").filter(|path| !path.is_empty()) {
        Some(path) => overridden(&path),
        None => unpack(SHIM, "/libculeak.so"),
    }
}

/// The path of the library that notices the end of a script, which `run --why` preloads too.
///
/// # Errors
/// No folder can hold the library.
pub fn hold_library() -> Result<PathBuf, Failure> {
    unpack(HOLD, "/libculeak-hold.so")
}

/// The path of the library that `run --record audit` names in `LD_AUDIT`.
///
/// # Errors
/// No folder can hold the library.
pub fn audit_library() -> Result<PathBuf, Failure> {
    unpack(AUDIT, "/libculeak-audit.so")
}

/// A folder to put first in `LD_LIBRARY_PATH`; its `libcuda.so.1` is the fake driver.
///
/// # Errors
/// No folder can hold the library.
pub fn fake_driver_folder() -> Result<PathBuf, Failure> {
    let library = unpack(FAKE_DRIVER, "-fake-driver/libcuda.so.1")?;
    Ok(library.parent().map(Path::to_path_buf).unwrap_or_default())
}

fn overridden(path: &OsString) -> Result<PathBuf, Failure> {
    let shown = Path::new(path).display();
    let path = fs::canonicalize(path).map_err(|error| format!(
            "CULEAK_SHIM={shown}: {error}; set it to the path of the preload library, or unset it to use the built-in one"
        ))?;
    if !preloadable_name(&path) {
        return Err(Failure::new(format!(
            "CULEAK_SHIM={shown}: the loader splits LD_PRELOAD at spaces and colons, and replaces names after $; move the library to a path without \
             them"
        )));
    }
    Ok(path)
}

/// Unpacks a library; `ending` follows the version and the id in its name.
fn unpack((bytes, id): Embedded, ending: &str) -> Result<PathBuf, Failure> {
    let name = PathBuf::from(format!("{}-{}{ending}", env!("CARGO_PKG_VERSION"), id));
    let mut reasons = Vec::new();
    for folder in candidates() {
        match unpack_into(&folder, &name, bytes) {
            Ok(path) => return Ok(path),
            Err(reason) => reasons.push(format!("{}: {reason}", folder.display())),
        }
    }
    Err(Failure::new(format!(
        "the preload library cannot be unpacked ({}); set XDG_CACHE_HOME to a folder that only you can write",
        reasons.join("; ")
    )))
}

/// Folders to unpack into, in order of preference; none is shared with other users.
fn candidates() -> Vec<PathBuf> {
    let cache = usual_cache_folder(|name| env::var_os(name).map(PathBuf::from));
    let temporary = env::temp_dir().join(format!("culeak-{}", geteuid()));
    cache.into_iter().chain([temporary]).collect()
}

/// The path of the unpacked library, or why the folder is unsuitable.
fn unpack_into(folder: &Path, name: &Path, bytes: &[u8]) -> Result<PathBuf, String> {
    let target = folder.join(name);
    if !preloadable_name(&target) {
        return Err("the loader splits LD_PRELOAD at spaces and colons, and replaces names after $".to_owned());
    }
    let parent = target.parent().unwrap_or(folder);
    for directory in [folder, parent] {
        private_directory(directory)?;
    }
    let flags = statvfs(parent).map_err(|error| error.to_string())?.flags();
    if flags.contains(FsFlags::ST_NOEXEC) {
        return Err("mounted noexec, so the loader cannot map the library".to_owned());
    }
    if !holds(&target, bytes)? {
        write_whole(parent, &target, bytes).map_err(|error| error.to_string())?;
        if !holds(&target, bytes)? {
            return Err("the unpacked library has disappeared".to_owned());
        }
    }
    Ok(target)
}

/// Creates the directory if necessary, and checks that only this user can write to it.
fn private_directory(path: &Path) -> Result<(), String> {
    match DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.to_string()),
    }
    let found = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !found.is_dir() {
        return Err("not a directory".to_owned());
    }
    if found.uid() != geteuid().as_raw() {
        return Err(format!("belongs to user {}", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(format!("others can write to it (mode {:o})", found.mode() & 0o7777));
    }
    Ok(())
}

/// Whether an intact copy already exists. A different file is an error: it may be in use, so it stays.
fn holds(target: &Path, bytes: &[u8]) -> Result<bool, String> {
    let mut file = match open_no_link(target) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(format!("{}: {error}", target.display())),
    };
    let found = file.metadata().map_err(|error| error.to_string())?;
    let same = found.uid() == geteuid().as_raw()
        && found.mode() & 0o022 == 0
        && found.len() == bytes.len() as u64
        && same_content(&mut file, bytes).map_err(|error| error.to_string())?;
    let shown = target.display();
    let differs = || format!("{shown} differs from the file that culeak unpacks; remove it");
    same.then_some(true).ok_or_else(differs)
}

fn same_content(file: &mut File, bytes: &[u8]) -> io::Result<bool> {
    let mut content = Vec::with_capacity(bytes.len());
    file.take(bytes.len() as u64 + 1).read_to_end(&mut content)?;
    Ok(content == bytes)
}

/// Writes under a temporary name and renames, so that no process can load an incomplete library.
fn write_whole(folder: &Path, target: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".unpacking-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(0o555))?;
    match file.persist_noclobber(target) {
        Ok(_) => Ok(()),
        // Another culeak was faster; the caller checks its file.
        Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(failed) => Err(failed.error),
    }
}

/// Whether the loader reads the path as one entry of `LD_PRELOAD`.
fn preloadable_name(path: &Path) -> bool {
    !path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n' | b'$'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn name() -> PathBuf {
        PathBuf::from("1.0-abc/lib.so")
    }

    fn private_folder() -> tempfile::TempDir {
        tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .expect("a private folder")
    }

    #[test]
    fn a_library_is_unpacked_once() {
        let folder = private_folder();
        let first = unpack_into(folder.path(), &name(), b"code").expect("unpacked");
        let inode = fs::metadata(&first).expect("it is there").ino();
        let second = unpack_into(folder.path(), &name(), b"code").expect("found again");
        assert_eq!(first, second);
        assert_eq!(
            fs::metadata(&second).expect("still there").ino(),
            inode,
            "the same file, not a new one"
        );
        assert_eq!(fs::read(&first).expect("readable"), b"code");
        assert_eq!(fs::metadata(&first).expect("still there").mode() & 0o777, 0o555);
    }

    #[test]
    fn a_file_with_other_content_is_refused_and_left_alone() {
        let folder = private_folder();
        let path = unpack_into(folder.path(), &name(), b"code").expect("unpacked");
        let reason = unpack_into(folder.path(), &name(), b"evil").expect_err("same name, other content");
        assert!(reason.contains("differs from"), "{reason}");
        assert_eq!(fs::read(path).expect("readable"), b"code");
    }

    #[test]
    fn symlinks_are_not_followed() {
        let folder = private_folder();
        let elsewhere = private_folder();
        fs::write(elsewhere.path().join("lib.so"), b"code").expect("written");
        private_directory(&folder.path().join("1.0-abc")).expect("made");
        symlink(elsewhere.path().join("lib.so"), folder.path().join(name())).expect("linked");
        assert!(
            unpack_into(folder.path(), &name(), b"code").is_err(),
            "the file is a link"
        );

        let link = folder.path().join("link");
        symlink(elsewhere.path(), &link).expect("linked");
        assert!(unpack_into(&link, &name(), b"code").is_err(), "the folder is a link");
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let folder = private_folder();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("changed");
        let reason = unpack_into(folder.path(), &name(), b"code").expect_err("shared folder");
        assert!(reason.contains("others can write"), "{reason}");
    }

    #[test]
    fn a_path_that_the_loader_would_split_or_change_is_refused() {
        let folder = private_folder();
        assert!(unpack_into(&folder.path().join("my cache"), &name(), b"code").is_err());
        assert!(unpack_into(&folder.path().join("a:b"), &name(), b"code").is_err());
        let reason = unpack_into(&folder.path().join("$LIB"), &name(), b"code").expect_err("another name");
        assert!(reason.contains("names after $"), "{reason}");
    }
}
