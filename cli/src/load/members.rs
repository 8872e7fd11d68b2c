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
}

impl fmt::Display for LeftOut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder.display();
        write!(out, "{folder}: has recordings or snapshots itself, ")?;
        match &self.first {
            Some(first) => write!(
                out,
                "so those in the folders below it are left out ({} …)",
                first.display()
            )?,
            None => write!(
                out,
                "and more than {ENTRIES} files in the folders below it, which were not searched"
            )?,
        }
        write!(out, "; name these folders too, or only {folder}/*.culeak")
    }
}

impl Members {
    pub fn of(folder: &Path) -> Members {
        Members::within(folder, ENTRIES)
    }

    /// As [`Members::of`]; below the folder, at most `most` entries are looked at, and as many below folders with members.
    fn within(folder: &Path, most: usize) -> Members {
        let mut members = Members::default();
        let (mut seen, mut seen_below) = (0, 0);
        // The first one is taken first. Behind each, the folder with members that it is below.
        let mut next = vec![(folder.to_path_buf(), 0, None::<PathBuf>)];
        while let Some((at, depth, above)) = next.pop() {
            if above.is_some() && members.left_out.is_some() {
                continue;
            }
            let seen = if above.is_some() { &mut seen_below } else { &mut seen };
            // A job may have more processes than that in one folder.
            let room = if depth == 0 { usize::MAX } else { most - *seen };
            let entries = match Entries::of(&at, room) {
                Ok(entries) => entries,
                // Such as lost+found.
                Err(_) if above.is_some() => continue,
                Err(error) => {
                    members
                        .failures
                        .push(file::unreadable(&at.display().to_string(), &error));
                    continue;
                }
            };
            let (recordings, snapshots) = entries.members();
            let first = recordings.first().or(snapshots.first()).cloned();
            match &above {
                Some(above) if entries.are_more || first.is_some() => {
                    let folder = above.clone();
                    members.left_out = Some(LeftOut { folder, first });
                    continue;
                }
                None if entries.are_more => {
                    return Members {
                        failures: vec![Failure::new(format!(
                            "{}: more than {most} files in the folders below it, which were searched since it has no recordings; \
                             name the folders with recordings, or a pattern such as */*.culeak",
                            folder.display()
                        ))],
                        ..Members::default()
                    };
                }
                _ => *seen += if depth == 0 { 0 } else { entries.all.len() },
            }
            let above = above.or_else(|| first.map(|_| at));
            if depth < DEPTH {
                next.extend(entries.folders().rev().map(|folder| (folder, depth + 1, above.clone())));
            }
            members.recordings.extend(recordings);
            members.snapshots.extend(snapshots);
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

    /// The recordings and the snapshots among them.
    fn members(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let has = |path: &Path, wanted| path.extension().is_some_and(|extension| extension == wanted);
        let all = || self.all.iter().map(|(path, _)| path);
        let is_snapshot =
            |path: &Path| has(path, "culeak-snapshot") || has(path, "json") && file::begins_as_snapshot(path);
        let recordings = all().filter(|path| has(path, "culeak"));
        (
            recordings.cloned().collect(),
            all().filter(|path| is_snapshot(path)).cloned().collect(),
        )
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
    fn files_below_a_folder_with_recordings_are_left_out() {
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
        assert!(
            text.contains("rank0/1.culeak …)") && text.contains("/*.culeak"),
            "{text}"
        );
        // Of a folder without members, those of its folders count.
        let deeper = folder(&["a/stray.culeak", "a/rank0/1.culeak", "b/2.culeak"]);
        let members = Members::of(deeper.path());
        assert_eq!(recordings(&members, deeper.path()), ["a/stray.culeak", "b/2.culeak"]);
        let left_out = members.left_out.expect("files below");
        assert_eq!(left_out.folder, deeper.path().join("a"));
        let many = folder(&["1.culeak", "a/1", "a/2", "b/3.culeak"]);
        let text = Members::within(many.path(), 1).left_out.expect("unknown").to_string();
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
