//! The recordings and snapshots of a folder.
//!
//! A folder that has neither stands for the folders in it; of one that has some, the files below are left out, and counted. That
//! search is bounded: to a depth and a number of entries, without links, which may lead in a circle, and without names that begin
//! with a dot, as in a shell.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::file;
use crate::errors::Failure;
use crate::text::units;

/// Folders that contain folders, at most.
const DEPTH: usize = 8;
/// The entries of folders below the named one that are looked at.
const ENTRIES: usize = 100_000;

/// The recordings and snapshots in a folder, sorted by name; those of the folders in it, if it has none.
#[derive(Debug, Default)]
pub struct Members {
    /// `*.culeak`.
    pub recordings: Vec<PathBuf>,
    /// `*.culeak-snapshot`, and those `*.json` files that are snapshots.
    pub snapshots: Vec<PathBuf>,
    /// Folders that cannot be read, and why there are no members.
    pub failures: Vec<Failure>,
    /// What lies below folders with members, and is none.
    pub left_out: Option<LeftOut>,
}

/// Recordings or snapshots that are no members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// A folder with members.
    folder: PathBuf,
    /// One of the files; `None`: there are too many folders to search.
    first: Option<PathBuf>,
    count: u64,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder.display();
        match &self.first {
            Some(first) => write!(
                out,
                "{folder}: has recordings or snapshots itself, so {} left out that the folders below it contain ({} …); name these folders too, or \
                 only {folder}/*.culeak",
                match self.count {
                    1 => "1 file is".to_owned(),
                    count => format!("{} files are", units::count(count)),
                },
                first.display()
            ),
            None => write!(
                out,
                "{folder}: has recordings or snapshots itself, and more than {ENTRIES} files in the folders below it, which were not \
                 searched; name these folders too, or only {folder}/*.culeak"
            ),
        }
    }
}

impl Members {
    pub fn of(folder: &Path) -> Members {
        Members::within(folder, ENTRIES)
    }

    /// As [`Members::of`]; below the folder, at most `most` entries are looked at.
    fn within(folder: &Path, most: usize) -> Members {
        let mut members = Members::default();
        let (mut seen, mut seen_below) = (0, 0);
        let mut next = vec![(folder.to_path_buf(), 0)];
        while let Some((at, depth)) = next.pop() {
            // A job may have more processes than that in one folder.
            let room = if depth == 0 { usize::MAX } else { most - seen };
            let entries = match Entries::of(&at, room) {
                Ok(entries) => entries,
                Err(error) => {
                    let shown = at.display().to_string();
                    members.failures.push(file::unreadable(&shown, &error));
                    continue;
                }
            };
            if entries.are_more {
                return Members {
                    failures: vec![Failure::new(format!(
                        "{}: more than {most} files in the folders below it, which were searched since it has no recordings; \
                         name the folders with recordings, or a pattern such as */*.culeak",
                        folder.display()
                    ))],
                    ..Members::default()
                };
            }
            seen += if depth == 0 { 0 } else { entries.all.len() };
            if members.add(&entries) {
                members.leave_out(&at, &entries, depth, most, &mut seen_below);
            } else if depth < DEPTH {
                // The first one is taken first.
                let below = entries.folders().rev().map(|folder| (folder, depth + 1));
                next.extend(below);
            }
        }
        if members.recordings.is_empty() && members.snapshots.is_empty() && members.failures.is_empty() {
            members.failures.push(Failure::new(format!(
                "{}: a folder without recordings (*.culeak), automatic snapshots (*.culeak-snapshot) or snapshots (*.json); \
                 name another",
                folder.display()
            )));
        }
        members
    }

    /// Counts what lies below a folder with members.
    fn leave_out(&mut self, folder: &Path, entries: &Entries, depth: usize, most: usize, seen: &mut usize) {
        let left_out = |first, count| LeftOut {
            folder: folder.to_path_buf(),
            first,
            count,
        };
        let mut below = Members::default();
        let mut next: Vec<_> = entries.folders().map(|folder| (folder, depth + 1)).collect();
        while let Some((at, depth)) = next.pop() {
            // Such as lost+found.
            let Ok(entries) = Entries::of(&at, most.saturating_sub(*seen)) else {
                continue;
            };
            if entries.are_more {
                self.left_out.get_or_insert(left_out(None, 0));
                return;
            }
            *seen += entries.all.len();
            below.add(&entries);
            if depth < DEPTH {
                next.extend(entries.folders().map(|folder| (folder, depth + 1)));
            }
        }
        let mut all = below.recordings;
        all.append(&mut below.snapshots);
        all.sort();
        if let Some(first) = all.first() {
            let of_these = left_out(Some(first.clone()), all.len() as u64);
            let known = self.left_out.get_or_insert(LeftOut {
                count: 0,
                ..of_these.clone()
            });
            known.count += of_these.count;
        }
    }

    /// Adds the members among these entries; whether there are any.
    fn add(&mut self, entries: &Entries) -> bool {
        let before = (self.recordings.len(), self.snapshots.len());
        for (path, _) in &entries.all {
            let extension = path.extension().unwrap_or_default();
            if extension == "culeak" {
                self.recordings.push(path.clone());
            } else if extension == "culeak-snapshot" || extension == "json" && file::begins_as_snapshot(path) {
                self.snapshots.push(path.clone());
            }
        }
        before != (self.recordings.len(), self.snapshots.len())
    }
}

/// What is in a folder.
struct Entries {
    /// By name, and whether each is a folder itself, not a link to one.
    all: Vec<(PathBuf, bool)>,
    /// There are more of them.
    are_more: bool,
}

impl Entries {
    fn of(folder: &Path, most: usize) -> io::Result<Entries> {
        let (mut all, mut are_more) = (Vec::new(), false);
        for entry in fs::read_dir(folder)? {
            if all.len() == most {
                are_more = true;
                break;
            }
            let entry = entry?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            all.push((entry.path(), is_folder));
        }
        all.sort();
        Ok(Entries { all, are_more })
    }

    fn folders(&self) -> impl DoubleEndedIterator<Item = PathBuf> {
        let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
        let folders = self
            .all
            .iter()
            .filter(move |(path, is_folder)| *is_folder && !is_hidden(path));
        folders.map(|(path, _)| path.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use nix::unistd::{Uid, setfsuid};

    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, "").expect("written");
        }
        folder
    }

    fn recordings(members: &Members, folder: &Path) -> Vec<String> {
        let below = |path: &PathBuf| path.strip_prefix(folder).expect("below").display().to_string();
        members.recordings.iter().map(below).collect()
    }

    #[test]
    fn folders_in_a_folder_without_recordings_are_searched_but_neither_links_nor_hidden_ones() {
        let folder = folder(&[
            "b/1.culeak",
            "a/x/2.culeak",
            "a/y/notes",
            ".trash/3.culeak",
            "b/below/4.culeak",
        ]);
        symlink(folder.path(), folder.path().join("circle")).expect("a link");
        let members = Members::of(folder.path());
        assert_eq!(recordings(&members, folder.path()), ["a/x/2.culeak", "b/1.culeak"]);
        assert!(members.failures.is_empty(), "{:?}", members.failures);
        let own = Members::of(&folder.path().join("b"));
        assert_eq!(recordings(&own, folder.path()), ["b/1.culeak"]);
    }

    #[test]
    fn files_below_a_folder_with_recordings_are_left_out_and_counted() {
        let nested = folder(&[
            "stray.culeak",
            "rank0/1.culeak",
            "rank1/deep/2.culeak",
            "rank1/deep/2.mark-1.culeak-snapshot",
            "notes/none",
            ".trash/3.culeak",
        ]);
        let members = Members::of(nested.path());
        assert_eq!(recordings(&members, nested.path()), ["stray.culeak"]);
        let text = members.left_out.expect("files below").to_string();
        assert!(text.contains("so 3 files are left out"), "{text}");
        assert!(
            text.contains("rank0/1.culeak …") && text.contains("/*.culeak"),
            "{text}"
        );
        // Of a folder without members, those of its folders count.
        let deeper = folder(&["a/stray.culeak", "a/rank0/1.culeak", "b/2.culeak"]);
        let members = Members::of(deeper.path());
        assert_eq!(recordings(&members, deeper.path()), ["a/stray.culeak", "b/2.culeak"]);
        let left_out = members.left_out.expect("files below");
        assert_eq!((left_out.folder, left_out.count), (deeper.path().join("a"), 1));
        let text = Members::within(nested.path(), 3).left_out.expect("unknown").to_string();
        assert!(text.contains("not searched"), "{text}");
        let clean = folder(&["1.culeak", "pages/report.html"]);
        assert_eq!(Members::of(clean.path()).left_out, None);
    }

    #[test]
    fn a_search_of_too_many_files_ends_with_advice() {
        let folder = folder(&["a/1", "a/2", "b/3.culeak", "4", "5", "6"]);
        assert_eq!(Members::within(folder.path(), 3).recordings.len(), 1);
        let ended = Members::within(folder.path(), 2);
        assert!(ended.recordings.is_empty());
        let text = ended.failures[0].to_string();
        assert!(
            text.contains("more than 2 files") && text.contains("*/*.culeak"),
            "{text}"
        );
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_reported() {
        let folder = folder(&["a/1.culeak", "b/2.culeak"]);
        let closed = folder.path().join("b");
        let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
        allow(folder.path(), 0o755);
        allow(&closed, 0o000);
        // Root can read every folder, so this thread runs as another user here.
        let mine = setfsuid(Uid::from_raw(65534));
        let members = Members::of(folder.path());
        setfsuid(mine);
        allow(&closed, 0o700);
        assert_eq!(recordings(&members, folder.path()), ["a/1.culeak"]);
        let reason = members.failures.first().expect("a failure").to_string();
        assert!(
            members.failures.len() == 1 && reason.contains("permission denied"),
            "{reason}"
        );
    }

    #[test]
    fn a_folder_that_is_missing_or_has_nothing_is_a_failure() {
        let folder = folder(&["a/notes"]);
        let text = |path: &Path| Members::of(path).failures[0].to_string();
        assert!(text(folder.path()).contains("a folder without recordings"));
        assert!(text(&folder.path().join("none")).contains("no such file"));
    }
}
