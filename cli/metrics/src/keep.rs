//! Snapshots on disk, limited by their number for each process, their bytes and their age; the oldest are removed first.
//!
//! The folder is the state: after a restart its listing says what is kept. Only files with the names that are made here are
//! ever removed.

use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub folder: PathBuf,
    /// Between two snapshots of a process.
    pub every: Duration,
    pub per_process: usize,
    pub bytes: u64,
    pub age: Duration,
}

/// A snapshot on disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    /// Since 1970.
    seconds: u64,
    process: String,
    path: PathBuf,
    bytes: u64,
}

/// The snapshots of a folder.
#[derive(Debug)]
pub struct Keeper {
    pub policy: Policy,
    /// In order of time.
    kept: Vec<Kept>,
    pub failures: u64,
}

impl Keeper {
    /// Lists the folder, which must exist.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn open(policy: Policy) -> io::Result<Keeper> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&policy.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let metadata = entry.metadata()?;
            if let Some((process, seconds)) = parts(&name).filter(|_| metadata.is_file()) {
                kept.push(Kept {
                    seconds,
                    process: process.to_owned(),
                    path: entry.path(),
                    bytes: metadata.len(),
                });
            }
        }
        kept.sort();
        Ok(Keeper {
            policy,
            kept,
            failures: 0,
        })
    }

    /// Where a snapshot of this process goes that is taken now; `None`: the last one is recent enough.
    pub fn due(&self, process: &str, now_seconds: u64) -> Option<PathBuf> {
        let last = self.kept.iter().rev().find(|kept| kept.process == process);
        let is_due =
            last.is_none_or(|last| now_seconds >= last.seconds.saturating_add(self.policy.every.as_secs().max(1)));
        is_due.then(|| self.policy.folder.join(format!("{process}~{now_seconds}.json")))
    }

    /// Adds a snapshot that was written.
    pub fn add(&mut self, path: PathBuf) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((process, seconds)) = parts(&name) else { return };
        self.kept.push(Kept {
            seconds,
            process: process.to_owned(),
            bytes: fs::metadata(&path).map_or(0, |metadata| metadata.len()),
            path,
        });
        self.kept.sort();
    }

    /// Removes what the policy does not allow. Returns the failures.
    pub fn prune(&mut self, now_seconds: u64) -> Vec<String> {
        let mut failures = Vec::new();
        let mut of_process: foldhash::HashMap<String, usize> = foldhash::HashMap::default();
        let mut bytes: u64 = 0;
        let oldest = now_seconds.saturating_sub(self.policy.age.as_secs());
        // The newest first: these stay.
        let mut stays: Vec<bool> = Vec::with_capacity(self.kept.len());
        for kept in self.kept.iter().rev() {
            let number = of_process.entry(kept.process.clone()).or_default();
            *number += 1;
            bytes = bytes.saturating_add(kept.bytes);
            stays.push(*number <= self.policy.per_process && bytes <= self.policy.bytes && kept.seconds >= oldest);
        }
        let mut stays = stays.into_iter().rev();
        self.kept.retain(|kept| {
            if stays.next().unwrap_or(true) {
                return true;
            }
            match fs::remove_file(&kept.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    failures.push(format!("{}: cannot be removed: {error}", kept.path.display()));
                    true
                }
                _ => false,
            }
        });
        self.failures += failures.len() as u64;
        failures
    }

    /// The snapshots of a process, oldest first.
    pub fn of(&self, process: &str) -> Vec<PathBuf> {
        let of = self.kept.iter().filter(|kept| kept.process == process);
        of.map(|kept| kept.path.clone()).collect()
    }

    /// Number and bytes of all.
    pub fn totals(&self) -> (usize, u64) {
        (self.kept.len(), self.kept.iter().map(|kept| kept.bytes).sum())
    }
}

/// A name for a process that is the same after a restart: its recording's name, and a hash of its path and its start.
pub fn process_name(recording: &Path, started_unix_ns: u64) -> String {
    let stem = recording.file_stem().unwrap_or_default().to_string_lossy();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let stem: String = stem.chars().filter(is_plain).take(100).collect();
    let hash = foldhash::quality::FixedState::default().hash_one((recording, started_unix_ns)) as u32;
    format!("{}~{hash:08x}", stem.trim_start_matches('.'))
}

/// The process and the time in a file's name.
fn parts(name: &str) -> Option<(&str, u64)> {
    let (process, seconds) = name.strip_suffix(".json")?.rsplit_once('~')?;
    let (_, hash) = process.rsplit_once('~')?;
    let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((process, seconds.parse().ok()?)).filter(|_| is_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(folder: &Path, per_process: usize, bytes: u64) -> Keeper {
        let policy = Policy {
            folder: folder.to_path_buf(),
            every: Duration::from_secs(10),
            per_process,
            bytes,
            age: Duration::from_secs(1000),
        };
        Keeper::open(policy).expect("a folder")
    }

    fn keep(keeper: &mut Keeper, process: &str, seconds: u64) {
        if let Some(path) = keeper.due(process, seconds) {
            fs::write(&path, [b'x'; 100]).expect("a file");
            keeper.add(path);
        }
    }

    #[test]
    fn the_oldest_go_first_by_number_size_and_age() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = ("a~00000001", "b~00000002");
        let mut keeper = keeper(folder.path(), 3, 450);
        for seconds in [100, 105, 110, 120, 130] {
            keep(&mut keeper, a, seconds);
        }
        assert_eq!(keeper.of(a).len(), 4, "105 is too close to 100");
        keep(&mut keeper, b, 200);
        keep(&mut keeper, b, 210);
        assert!(keeper.prune(220).is_empty());
        // Three of `a` are allowed, and 450 bytes are four files.
        assert_eq!((keeper.of(a).len(), keeper.of(b).len()), (2, 2));
        assert!(keeper.of(a)[0].ends_with("a~00000001~120.json"));
        assert_eq!(keeper.totals(), (4, 400));
        assert!(keeper.prune(1205).is_empty());
        assert_eq!((keeper.of(a).len(), keeper.of(b).len()), (0, 1));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn after_a_restart_the_folder_says_what_is_kept_and_other_files_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["notes.json", "a~1.json", "a~0000000g~5.json", "a~00000001~x.json"] {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        keep(&mut keeper(folder.path(), 1, u64::MAX), "a~00000001", 100);
        let mut again = keeper(folder.path(), 1, u64::MAX);
        assert_eq!(again.due("a~00000001", 105), None);
        assert_eq!(again.totals().0, 1);
        again.prune(u64::MAX);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 4);
    }

    #[test]
    fn names_of_processes_can_be_read_again_and_stay_in_the_folder() {
        for recording in [
            "/runs/train.n1.7.culeak",
            "/runs/../../..",
            "/x/~~.culeak",
            "/x/a b\n.culeak",
        ] {
            let process = process_name(Path::new(recording), 5);
            let file = format!("{process}~17.json");
            assert_eq!(parts(&file), Some((process.as_str(), 17)), "{file}");
            assert!(!file.contains('/') && !file.starts_with('.'), "{file}");
        }
        let of = |path: &str, started| process_name(Path::new(path), started);
        assert_ne!(of("/a/x.culeak", 1), of("/b/x.culeak", 1));
        assert_ne!(of("/a/x.culeak", 1), of("/a/x.culeak", 2));
    }
}
