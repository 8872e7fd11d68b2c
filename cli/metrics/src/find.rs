//! Recordings in folders.
//!
//! Folders in folders are searched too, without links and names that begin with a dot, to a depth and a number of entries, so
//! that no tree can keep the search busy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders that contain folders, at most.
const DEPTH: usize = 8;
/// The most entries of all folders.
pub const ENTRIES_MAX: usize = 200_000;

/// The recordings of all folders, sorted, and what could not be searched, with the reason.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recordings {
    pub paths: BTreeSet<PathBuf>,
    pub failures: BTreeMap<PathBuf, String>,
    entries: usize,
}

impl Recordings {
    /// Searches these folders.
    pub fn below(roots: &[PathBuf]) -> Recordings {
        let mut found = Recordings::default();
        let mut next: Vec<(PathBuf, usize)> = roots.iter().map(|root| (root.clone(), 0)).collect();
        while let Some((folder, depth)) = next.pop() {
            match found.add(&folder) {
                Ok(folders) if depth < DEPTH => next.extend(folders.into_iter().map(|below| (below, depth + 1))),
                Ok(_) => {}
                // A folder in a folder may be gone again.
                Err(error) if depth > 0 && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => drop(found.failures.insert(folder.clone(), error.to_string())),
            }
            if found.entries >= ENTRIES_MAX {
                let reason = format!("more than {ENTRIES_MAX} files; watch the folders with recordings only");
                found.failures.insert(folder, reason);
                break;
            }
        }
        found
    }

    /// Adds the recordings of a folder, and returns the folders in it.
    fn add(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for entry in fs::read_dir(folder)?.take(ENTRIES_MAX.saturating_sub(self.entries)) {
            let entry = entry?;
            self.entries += 1;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            if kind.is_dir() && !name.as_bytes().starts_with(b".") {
                folders.push(entry.path());
            } else if kind.is_file() && name.as_bytes().ends_with(b".culeak") {
                self.paths.insert(entry.path());
            }
        }
        Ok(folders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: &Recordings) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.paths.iter().map(name).collect()
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
        assert_eq!(names(&Recordings::below(&roots)), ["a.culeak", "b.culeak"]);
        fs::write(at("job/d.culeak"), "").expect("a file");
        fs::remove_file(at("a.culeak")).expect("removed");
        assert_eq!(names(&Recordings::below(&roots)), ["d.culeak", "b.culeak"]);
        fs::remove_dir_all(at("job")).expect("removed");
        assert!(names(&Recordings::below(&roots)).is_empty());
    }

    #[test]
    fn a_folder_that_is_missing_is_reported_and_found_once_it_exists() {
        let folder = tempfile::tempdir().expect("a folder");
        let later = folder.path().join("later");
        assert!(
            Recordings::below(std::slice::from_ref(&later))
                .failures
                .contains_key(&later)
        );
        fs::create_dir(&later).expect("a folder");
        fs::write(later.join("a.culeak"), "").expect("a file");
        assert_eq!(names(&Recordings::below(&[later])), ["a.culeak"]);
    }
}
