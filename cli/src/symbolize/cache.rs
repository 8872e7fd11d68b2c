//! A cache of names, since a search in a large library takes seconds, and the library does not change.
//!
//! There is one file per build id, in `$CULEAK_CACHE_DIR`, else in `culeak` in the user's cache folder. It is valid only for
//! the files that were read when it was written ([`Sources`]), so debug information installed later is found, and only if its
//! checksum matches: an incomplete or modified file counts as absent. Files are renamed into place; if two processes write at
//! once, one result is lost and looked up again. The folder is kept below [`FOLDER_MAX`] by removing the least recently used
//! files.
//!
//! Deliberately absent: errors, since a missing cache only costs time; and modules without a build id, which cannot be
//! identified.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use culeak::reader::open_no_link;
use culeak::snapshot::Symbol;
use serde::{Deserialize, Serialize};

use super::locate::Located;

/// The maximum size of all files.
const FOLDER_MAX: u64 = 256 << 20;
/// The maximum size of one file: more than a million addresses.
const FILE_MAX: u64 = 128 << 20;
/// Changes when older files must no longer be read.
const FORMAT: &str = "culeak-symbols-3";

/// Symbols by address; an empty list means that the address has no name.
pub type Names = HashMap<u64, Vec<Symbol>>;

/// The folder of the cache; `None` if there is none.
pub fn folder() -> Option<PathBuf> {
    folder_of(|name| std::env::var_os(name).map(PathBuf::from))
}

fn folder_of(setting: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    match setting("CULEAK_CACHE_DIR") {
        // An empty value disables the cache.
        Some(own) => Some(own).filter(|path| path.is_absolute()),
        None => usual_folder(setting),
    }
}

/// The user's usual folder for what can be made again.
pub fn usual_folder(setting: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let full = |name: &str| setting(name).filter(|path| path.is_absolute());
    let cache = full("XDG_CACHE_HOME").or_else(|| Some(full("HOME")?.join(".cache")));
    Some(cache?.join("culeak"))
}

/// The cached names of one module.
pub struct Cached {
    path: PathBuf,
    sources: Sources,
    build_id: String,
    pub names: Names,
    changed: bool,
}

/// The files that names are read from: path, debug information, size and modification time.
type Sources = Vec<(PathBuf, bool, u64, i64, i64)>;

#[derive(Serialize, Deserialize)]
struct Content {
    build_id: String,
    sources: Sources,
    names: Names,
}

impl Cached {
    /// Reads the cached names; `None` if the module cannot be cached.
    pub fn open(folder: &Path, build_id: &str, located: &Located) -> Option<Cached> {
        // A hostile "build id" could otherwise contain "../".
        if build_id.len() < 8 || !build_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let sources = located.attempts().map(|(path, debug)| {
            let metadata = path.metadata().ok()?;
            let size = metadata.len();
            Some((path.to_path_buf(), debug, size, metadata.mtime(), metadata.mtime_nsec()))
        });
        let sources: Sources = sources.collect::<Option<_>>()?;
        let path = folder.join(format!("{build_id}.symbols"));
        let known = read(&path).filter(|content| content.build_id == build_id && content.sources == sources);
        Some(Cached {
            names: known.map(|content| content.names).unwrap_or_default(),
            build_id: build_id.to_owned(),
            path,
            sources,
            changed: false,
        })
    }

    /// Adds the symbols at an address.
    pub fn add(&mut self, address: u64, symbols: &[Symbol]) {
        self.names.insert(address, symbols.to_vec());
        self.changed = true;
    }

    /// Writes the names if any were added, and otherwise marks the file as used.
    pub fn close(self) {
        if !self.changed {
            // The modification time is that of the last use.
            let file = File::options()
                .append(true)
                .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW)
                .open(&self.path);
            if let Ok(file) = file {
                let _ = file.set_modified(SystemTime::now());
            }
            return;
        }
        let Some(folder) = self.path.parent().map(Path::to_path_buf) else {
            return;
        };
        let content = Content {
            build_id: self.build_id,
            sources: self.sources,
            names: self.names,
        };
        let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        if write(&folder, &self.path, &content).is_some() {
            limit(&folder, FOLDER_MAX);
        }
    }
}

/// Reads a file: a line with the format and a checksum, then JSON.
fn read(path: &Path) -> Option<Content> {
    let file = open_no_link(path).ok()?;
    let metadata = file.metadata().ok()?;
    // Only files of this user are read.
    if metadata.len() > FILE_MAX || metadata.uid() != nix::unistd::geteuid().as_raw() {
        return None;
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let (line, json) = (&bytes[..end], &bytes[end + 1..]);
    let expected = format!("{FORMAT} {:08x}", crc32fast::hash(json));
    (line == expected.as_bytes())
        .then(|| serde_json::from_slice(json).ok())
        .flatten()
}

fn write(folder: &Path, path: &Path, content: &Content) -> Option<()> {
    let json = serde_json::to_vec(content).ok()?;
    if json.len() as u64 + 64 > FILE_MAX {
        return None;
    }
    let mut file = tempfile::Builder::new().prefix(".writing-").tempfile_in(folder).ok()?;
    writeln!(file, "{FORMAT} {:08x}", crc32fast::hash(&json)).ok()?;
    file.write_all(&json).ok()?;
    file.persist(path).ok()?;
    Some(())
}

/// Removes the least recently used files until the rest fits, including incomplete files of killed processes.
fn limit(folder: &Path, most: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".symbols") || name.starts_with(".writing-")
    };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok().filter(|metadata| metadata.is_file())?;
            let path = entry.path();
            ours(&path).then_some(())?;
            Some((metadata.modified().ok()?, metadata.len(), path))
        })
        .collect();
    files.sort();
    let mut sum: u64 = files.iter().map(|file| file.1).sum();
    for (_, bytes, path) in files {
        if sum <= most {
            break;
        }
        if fs::remove_file(path).is_ok() {
            sum -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const BUILD_ID: &str = "0123456789abcdef";

    fn located(folder: &Path) -> Located {
        let module = folder.join("lib.so");
        if !module.exists() {
            fs::write(&module, "a library").expect("a file");
        }
        Located {
            module: Some(module),
            ..Located::default()
        }
    }

    fn symbol(function: &str) -> Symbol {
        Symbol {
            function: function.to_owned(),
            file: Some("/src/été.cc".to_owned()),
            line: Some(7),
            inlined: false,
        }
    }

    fn filled(folder: &Path) -> PathBuf {
        let mut cached = Cached::open(folder, BUILD_ID, &located(folder)).expect("a cache");
        cached.add(0x1000, &[symbol("step"), symbol("run")]);
        cached.add(0x2000, &[]);
        let path = cached.path.clone();
        cached.close();
        path
    }

    fn known(folder: &Path) -> usize {
        Cached::open(folder, BUILD_ID, &located(folder))
            .expect("a cache")
            .names
            .len()
    }

    #[test]
    fn cached_names_are_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("not/there/yet");
        let mut cached = Cached::open(&below, BUILD_ID, &located(folder.path())).expect("a cache");
        cached.add(0x1000, &[symbol("step")]);
        cached.close();
        let cached = Cached::open(&below, BUILD_ID, &located(folder.path())).expect("a cache");
        assert_eq!(cached.names[&0x1000], [symbol("step")]);
    }

    #[test]
    fn changed_sources_invalidate_the_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        filled(folder.path());
        assert_eq!(known(folder.path()), 2);
        let debug = folder.path().join("lib.debug");
        fs::write(&debug, "debug information").expect("a file");
        let installed = Located {
            debug: Some(debug),
            ..located(folder.path())
        };
        let cached = Cached::open(folder.path(), BUILD_ID, &installed).expect("a cache");
        assert!(cached.names.is_empty());
        fs::write(folder.path().join("lib.so"), "another library").expect("a file");
        assert_eq!(known(folder.path()), 0);
    }

    #[test]
    fn torn_and_changed_files_count_as_absent() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = filled(folder.path());
        let whole = fs::read(&path).expect("the file");
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).expect("written");
            assert_eq!(known(folder.path()), 0, "cut to {length} bytes");
        }
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(&path, changed).expect("written");
            assert_eq!(known(folder.path()), 0, "changed at {place}");
        }
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(folder.path().join("lib.so"), &path).expect("a link");
        assert_eq!(known(folder.path()), 0);
    }

    #[test]
    fn an_invalid_build_id_is_not_cached() {
        let folder = tempfile::tempdir().expect("a folder");
        for build_id in ["", "12", "../../../../etc/passwd", "0123456789abcdeg"] {
            assert!(Cached::open(folder.path(), build_id, &located(folder.path())).is_none());
        }
    }

    #[test]
    fn the_least_recently_used_cache_files_are_removed_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let now = SystemTime::now();
        for (age, name) in ["new.symbols", "old.symbols", ".writing-x", "notes"].iter().enumerate() {
            let path = folder.path().join(name);
            fs::write(&path, [0; 100]).expect("a file");
            let file = File::options().append(true).open(path).expect("the file");
            file.set_modified(now - Duration::from_secs(3600 * age as u64))
                .expect("a time");
        }
        limit(folder.path(), 150);
        let left = |name: &str| folder.path().join(name).exists();
        assert!(left("new.symbols") && left("notes"));
        assert!(!left("old.symbols") && !left(".writing-x"));
    }

    #[test]
    fn settings_determine_the_folder() {
        let with = |set: &[(&str, &str)]| {
            let set: HashMap<String, PathBuf> = set.iter().map(|(k, v)| (k.to_string(), PathBuf::from(v))).collect();
            folder_of(|name| set.get(name).cloned())
        };
        let home = ("HOME", "/home/me");
        assert_eq!(with(&[home]), Some(PathBuf::from("/home/me/.cache/culeak")));
        assert_eq!(
            with(&[home, ("XDG_CACHE_HOME", "/c")]),
            Some(PathBuf::from("/c/culeak"))
        );
        assert_eq!(with(&[home, ("CULEAK_CACHE_DIR", "/own")]), Some(PathBuf::from("/own")));
        assert_eq!(with(&[home, ("CULEAK_CACHE_DIR", "")]), None);
        assert_eq!(with(&[]), None);
    }
}
