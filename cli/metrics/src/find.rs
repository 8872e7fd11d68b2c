//! Recordings in folders, found again and again at little cost: a folder is listed only if it has changed.
//!
//! Folders in folders are searched too, without links and names that begin with a dot, to a depth and a number of entries, so
//! that no tree can keep the search busy. A folder's time has a limited resolution, so one that has just changed is listed once
//! more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use culeak::system::unix_ns;

/// Folders that contain folders, at most.
const DEPTH: usize = 8;
/// The most entries of all folders.
pub const ENTRIES_MAX: usize = 200_000;
/// A folder that changed within this time may change again without another time.
const UNSETTLED_NS: i128 = 3_000_000_000;

/// What was found last in a folder.
#[derive(Debug, Default)]
struct Listed {
    /// Device, inode and time of change; `None`: list it again.
    state: Option<(u64, u64, i128)>,
    recordings: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    entries: usize,
}

/// Finds recordings.
#[derive(Debug, Default)]
pub struct Finder {
    folders: HashMap<PathBuf, Listed>,
}

/// The recordings of all folders, sorted, and what could not be searched, with the reason.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub recordings: BTreeSet<PathBuf>,
    pub failures: BTreeMap<PathBuf, String>,
}

impl Finder {
    /// Searches these folders.
    pub fn find(&mut self, roots: &[PathBuf]) -> Found {
        let mut found = Found::default();
        let mut visited = BTreeSet::new();
        let mut next: Vec<(PathBuf, usize)> = roots.iter().map(|root| (root.clone(), 0)).collect();
        let mut entries = 0;
        while let Some((folder, depth)) = next.pop() {
            if !visited.insert(folder.clone()) {
                continue;
            }
            let listed = self.folders.entry(folder.clone()).or_default();
            if let Err(error) = listed.update(&folder, ENTRIES_MAX - entries) {
                listed.state = None;
                // A folder in a folder may be gone again.
                if depth == 0 || error.kind() != io::ErrorKind::NotFound {
                    found.failures.insert(folder, error.to_string());
                }
                continue;
            }
            entries += listed.entries;
            if entries >= ENTRIES_MAX {
                let reason = format!("more than {ENTRIES_MAX} files; watch the folders with recordings only");
                found.failures.insert(folder, reason);
                break;
            }
            found.recordings.extend(listed.recordings.iter().cloned());
            if depth < DEPTH {
                next.extend(listed.folders.iter().map(|folder| (folder.clone(), depth + 1)));
            }
        }
        self.folders.retain(|folder, _| visited.contains(folder));
        found
    }
}

impl Listed {
    fn update(&mut self, folder: &Path, room: usize) -> io::Result<()> {
        let metadata = fs::metadata(folder)?;
        let changed_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        let state = (metadata.dev(), metadata.ino(), changed_ns);
        if self.state == Some(state) {
            return Ok(());
        }
        *self = Listed::default();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            self.entries += 1;
            if self.entries >= room {
                return Ok(());
            }
            let name = entry.file_name();
            let kind = entry.file_type()?;
            if kind.is_dir() && !name.as_bytes().starts_with(b".") {
                self.folders.push(entry.path());
            } else if kind.is_file() && name.as_bytes().ends_with(b".culeak") {
                self.recordings.push(entry.path());
            }
        }
        let age_ns = i128::from(unix_ns()) - changed_ns;
        self.state = (age_ns > UNSETTLED_NS).then_some(state);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: &Found) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.recordings.iter().map(name).collect()
    }

    #[test]
    fn new_recordings_are_found_and_removed_ones_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("job/rank0")).expect("folders");
        fs::create_dir_all(at(".hidden")).expect("folders");
        for name in ["a.culeak", "job/rank0/b.culeak", ".hidden/c.culeak", "notes.txt"] {
            fs::write(at(name), "").expect("a file");
        }
        std::os::unix::fs::symlink(folder.path(), at("job/circle")).expect("a link");
        let roots = [folder.path().to_path_buf()];
        let mut finder = Finder::default();
        assert_eq!(names(&finder.find(&roots)), ["a.culeak", "b.culeak"]);
        fs::write(at("job/d.culeak"), "").expect("a file");
        fs::remove_file(at("a.culeak")).expect("removed");
        assert_eq!(names(&finder.find(&roots)), ["d.culeak", "b.culeak"]);
        fs::remove_dir_all(at("job")).expect("removed");
        assert_eq!(finder.find(&roots), Found::default());
    }

    #[test]
    fn a_folder_that_is_missing_is_reported_and_found_once_it_exists() {
        let folder = tempfile::tempdir().expect("a folder");
        let later = folder.path().join("later");
        let mut finder = Finder::default();
        assert!(finder.find(std::slice::from_ref(&later)).failures.contains_key(&later));
        fs::create_dir(&later).expect("a folder");
        fs::write(later.join("a.culeak"), "").expect("a file");
        assert_eq!(names(&finder.find(&[later])), ["a.culeak"]);
    }

    #[test]
    fn a_settled_folder_is_not_listed_again() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a.culeak"), "").expect("a file");
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        fs::File::open(folder.path())
            .expect("a folder")
            .set_modified(old)
            .expect("set");
        let mut finder = Finder::default();
        let roots = [folder.path().to_path_buf()];
        assert_eq!(finder.find(&roots).recordings.len(), 1);
        // A new file without a new time of the folder: not seen, which shows that nothing was listed.
        fs::write(folder.path().join("b.culeak"), "").expect("a file");
        fs::File::open(folder.path())
            .expect("a folder")
            .set_modified(old)
            .expect("set");
        assert_eq!(finder.find(&roots).recordings.len(), 1);
    }
}
