//! Names that were looked up before, kept between runs: a large library takes seconds to search, and never changes.
//!
//! One file per build id, in `$CULEAK_CACHE_DIR`, else `culeak` in the user's cache folder. It answers only for the files
//! that were asked when it was written ([`Sources`]: debug information that was installed since asks anew), and only if
//! it is whole: what another process is writing, what was cut short or changed by hand fails the checksum and counts as
//! absent. Files take their name in one step; of two culeaks that write at once one is forgotten and asks again next time.
//! The folder is kept below [`FOLDER_MAX`] by throwing out what was used longest ago.
//!
//! Deliberately absent: errors. Without a cache everything is only slower. And modules without a build id, which another
//! file of that name could not be told from.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use culeak::snapshot::Symbol;
use serde::{Deserialize, Serialize};

use super::locate::Located;

/// All files together.
const FOLDER_MAX: u64 = 256 << 20;
/// One file: more than a million addresses.
const FILE_MAX: u64 = 128 << 20;
/// Changes when older files must not be read any more.
const FORMAT: &str = "culeak-symbols-3";

/// Symbols by address; an address without any is one that is known to have no name.
pub type Names = HashMap<u64, Vec<Symbol>>;

/// The folder that the user's settings name.
pub fn folder() -> Option<PathBuf> {
    folder_of(|name| std::env::var_os(name).map(PathBuf::from))
}

fn folder_of(setting: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let full = |path: PathBuf| path.is_absolute().then_some(path);
    match setting("CULEAK_CACHE_DIR") {
        // Empty: none is wanted.
        Some(own) => full(own),
        None => setting("XDG_CACHE_HOME")
            .and_then(full)
            .or_else(|| Some(setting("HOME").and_then(full)?.join(".cache")))
            .map(|cache| cache.join("culeak")),
    }
}

/// What is known of one module.
pub struct Cached {
    path: PathBuf,
    sources: Sources,
    build_id: String,
    pub names: Names,
    changed: bool,
}

/// The files that names are read from, as they are now.
type Sources = Vec<(PathBuf, bool, u64, i64, i64)>;

#[derive(Serialize, Deserialize)]
struct Content {
    build_id: String,
    sources: Sources,
    names: Names,
}

impl Cached {
    /// Reads what is known. `None`: this module cannot be cached.
    pub fn open(folder: &Path, build_id: &str, located: &Located) -> Option<Cached> {
        // Also keeps a hostile "build id" from climbing out of the folder.
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

    /// Remembers what an address is called.
    pub fn add(&mut self, address: u64, symbols: &[Symbol]) {
        self.names.insert(address, symbols.to_vec());
        self.changed = true;
    }

    /// Writes what was added, and says that the rest was used.
    pub fn close(self) {
        if !self.changed {
            // The age of a file is the time since it was used last.
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

/// A line with the format and a checksum, then JSON.
fn read(path: &Path) -> Option<Content> {
    // Without waiting: the name may be that of a FIFO. And only what this user wrote.
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW)
        .open(path)
        .ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > FILE_MAX || metadata.uid() != nix::unistd::geteuid().as_raw() {
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

/// Throws out what was used longest ago until the rest fits. Also what a killed culeak left half written.
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
    fn what_was_looked_up_is_known_the_next_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("not/there/yet");
        let mut cached = Cached::open(&below, BUILD_ID, &located(folder.path())).expect("a cache");
        cached.add(0x1000, &[symbol("step")]);
        cached.close();
        let cached = Cached::open(&below, BUILD_ID, &located(folder.path())).expect("a cache");
        assert_eq!(cached.names[&0x1000], [symbol("step")]);
    }

    #[test]
    fn other_files_than_before_are_asked_anew() {
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
    fn a_build_id_that_is_none_is_not_cached() {
        let folder = tempfile::tempdir().expect("a folder");
        for build_id in ["", "12", "../../../../etc/passwd", "0123456789abcdeg"] {
            assert!(Cached::open(folder.path(), build_id, &located(folder.path())).is_none());
        }
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_nothing_but_our_own_files() {
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
    fn the_users_settings_say_where() {
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
