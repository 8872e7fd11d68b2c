//! The recordings and snapshots of a folder.
//!
//! A folder that has neither stands for the folders in it; of one that has some, the files below are left out, and reported. So are
//! those in hidden folders and behind links to folders, as in a shell. The search is bounded by a number of entries, and visits no
//! folder twice: links may lead in a circle.

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use culeak::reader;

use super::file;
use super::incomplete::{self, tag_part};
use crate::errors::Failure;

/// The entries of folders below the named one that are looked at.
const ENTRIES: usize = 100_000;

/// The recordings and snapshots in a folder, sorted by name; those of the folders in it, if it has none.
#[derive(Debug, Default)]
pub struct Members {
    /// `*.culeak`, and other files that begin like one and are not hidden.
    pub recordings: Vec<PathBuf>,
    /// `*.culeak-snapshot`, and those `*.json` files that are snapshots.
    pub snapshots: Vec<PathBuf>,
    /// Folders that cannot be read, and why there are no members.
    pub failures: Vec<Failure>,
    /// A sentence about recordings that are left out, because they are below a folder that has some itself.
    pub left_out: Option<String>,
    /// What the runs of these recordings did not record.
    pub unrecorded: Vec<String>,
}

/// Says that recordings or snapshots are no members. `folder`: the folder with members above them, or with the link or the
/// hidden folder.
fn left_out(folder: &Path, why: &str) -> String {
    let folder = folder.display();
    format!("{folder}: {why}; name these folders too, or only files, such as {folder}/*.culeak")
}

/// The recording that an automatic snapshot is named after: NAME.WHY-N.culeak-snapshot lies beside NAME.culeak, or beside NAME.
pub fn recording_beside(snapshot: &Path) -> Option<PathBuf> {
    let name = snapshot.file_name()?.as_bytes().strip_suffix(b".culeak-snapshot")?;
    let end = name.iter().rposition(|&byte| byte == b'.')?;
    let usual = snapshot.with_file_name(OsStr::from_bytes(&[&name[..end], b".culeak"].concat()));
    let other = usual.with_extension("");
    Some(if other.is_file() && !usual.exists() {
        other
    } else {
        usual
    })
}

/// What the runs of these recordings did not record, in sentences. Of a link, also what lies beside its target.
pub fn unrecorded_of(recordings: &[PathBuf]) -> Vec<String> {
    let mut unknown = BTreeSet::new();
    let unlisted = |path: &Path, error: &io::Error| {
        let shown = path.display();
        format!(
            "{shown}: whether a run left a {} here is unknown ({error}); make the folder readable",
            incomplete::ENDING
        )
    };
    let targets: Vec<PathBuf> = recordings
        .iter()
        .filter_map(|path| fs::canonicalize(path).ok())
        .collect();
    let both = || recordings.iter().chain(&targets);
    let names: Vec<&[u8]> = both().filter_map(|path| Some(path.file_name()?.as_bytes())).collect();
    let is_of_them = |note: &PathBuf| {
        let tag = note.file_stem().and_then(OsStr::to_str).map(tag_part);
        tag.is_some_and(|tag| names.iter().any(|name| contains(name, tag.as_bytes())))
    };
    let folders: BTreeSet<PathBuf> = both()
        .filter_map(|path| fs::canonicalize(path.parent()?.join(".")).ok())
        .collect();
    let mut notes = Vec::new();
    for folder in &folders {
        match Entries::of(folder, usize::MAX) {
            Ok(entries) => notes.extend(entries.ending_with(incomplete::ENDING).cloned()),
            Err(error) => {
                unknown.insert(unlisted(folder, &error));
            }
        }
    }
    let notes = notes.iter().filter(|note| is_of_them(note));
    notes.flat_map(|note| incomplete::read(note)).chain(unknown).collect()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A folder to search.
struct Folder {
    path: PathBuf,
    /// The folder whose members, or whose name, exclude those in this one.
    above: Option<PathBuf>,
    is_aside: bool,
}

impl Members {
    /// Beside recordings, the snapshots of other processes. Those of the same processes show their memory again.
    pub fn strangers(&self) -> impl Iterator<Item = &PathBuf> {
        let identities = LazyCell::new(|| {
            let known = self.recordings.iter().filter_map(|path| reader::identity(path).ok());
            known.map(|of| (of.pid, of.started_unix_ns)).collect::<HashSet<_>>()
        });
        let is_known = move |snapshot: &PathBuf| match recording_beside(snapshot) {
            Some(recording) => self.recordings.contains(&recording),
            None => file::identity(snapshot).is_some_and(|of| identities.contains(&of)),
        };
        let snapshots = self.snapshots.iter().filter(|_| !self.recordings.is_empty());
        snapshots.filter(move |snapshot| !is_known(snapshot))
    }

    pub fn of(folder: &Path) -> Members {
        Members::within(folder, ENTRIES)
    }

    /// As [`Members::of`]; below the folder, at most `most` entries are looked at, and as many that cannot be members.
    fn within(folder: &Path, most: usize) -> Members {
        let mut members = Members::default();
        let (mut seen, mut seen_below) = (0, 0);
        let mut visited = HashSet::new();
        // The last one of `next` is taken first; those aside when no other is left, since a link may lead to one of these.
        let mut next = vec![Folder {
            path: folder.to_path_buf(),
            above: None,
            is_aside: false,
        }];
        let mut aside = Vec::new();
        let mut is_first = true;
        while let Some(at) = next.pop().or_else(|| aside.pop()) {
            if at.above.is_some() && members.left_out.is_some() {
                continue;
            }
            let identity = fs::metadata(&at.path).map(|folder| (folder.dev(), folder.ino()));
            if identity.is_ok_and(|identity| !visited.insert(identity)) {
                continue;
            }
            let seen = if at.above.is_some() { &mut seen_below } else { &mut seen };
            // A job may have more processes than that in one folder.
            let room = if is_first { usize::MAX } else { most - *seen };
            let entries = match (Entries::of(&at.path, room), &at.above) {
                (Ok(entries), _) => entries,
                // That of a file system's check, which only root can read.
                (Err(_), Some(_)) if at.path.ends_with("lost+found") => continue,
                (Err(error), Some(above)) => {
                    let reason = file::unreadable(&at.path.display().to_string(), &error);
                    let why = format!("whether recordings are in a folder below it is unknown ({reason})");
                    members.left_out = Some(left_out(above, &why));
                    continue;
                }
                (Err(error), None) => {
                    let shown = at.path.display().to_string();
                    members.failures.push(file::unreadable(&shown, &error));
                    continue;
                }
            };
            let (recordings, snapshots) = entries.members(at.above.is_none(), &mut members.unrecorded);
            let first = recordings.first().or(snapshots.first()).cloned();
            match &at.above {
                Some(above) if entries.are_more || first.is_some() => {
                    let first = first.as_deref().map(Path::display);
                    let why = match first {
                        Some(first) if at.is_aside => format!(
                            "recordings or snapshots in a hidden folder, or behind a link to a folder, are left out ({first} …)"
                        ),
                        Some(first) => format!(
                            "has recordings or snapshots itself, so those in the folders below it are left out ({first} …)"
                        ),
                        None => format!("more than {ENTRIES} files in the folders below it, which were not searched"),
                    };
                    members.left_out = Some(left_out(above, &why));
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
                _ => *seen += if is_first { 0 } else { entries.all.len() },
            }
            let notes = entries.ending_with(incomplete::ENDING);
            members.unrecorded.extend(notes.flat_map(|note| incomplete::read(note)));
            is_first = false;
            let above = at.above.clone().or_else(|| first.map(|_| at.path.clone()));
            for (path, kind) in entries.all.into_iter().rev() {
                let (above, is_aside) = (above.clone(), at.is_aside);
                match kind {
                    Entry::Folder => next.push(Folder { path, above, is_aside }),
                    Entry::Aside => aside.push(Folder {
                        path,
                        above: Some(above.unwrap_or_else(|| at.path.clone())),
                        is_aside: true,
                    }),
                    Entry::Other => {}
                }
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
    /// By name.
    all: Vec<(PathBuf, Entry)>,
    /// There are more of them.
    are_more: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Folder,
    /// A hidden folder, or a link to a folder.
    Aside,
    Other,
}

fn may_be_folder(link: &Path) -> bool {
    match fs::metadata(link) {
        Ok(target) => target.is_dir(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."))
}

impl Entry {
    fn of(entry: &fs::DirEntry) -> Entry {
        let is = |kind: fn(&fs::FileType) -> bool| entry.file_type().is_ok_and(|of| kind(&of));
        match () {
            () if is(fs::FileType::is_dir) && !is_hidden(&entry.path()) => Entry::Folder,
            () if is(fs::FileType::is_dir) => Entry::Aside,
            () if is(fs::FileType::is_symlink) && may_be_folder(&entry.path()) => Entry::Aside,
            () => Entry::Other,
        }
    }
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
            all.push((entry.path(), Entry::of(&entry)));
        }
        all.sort();
        Ok(Entries { all, are_more })
    }

    fn ending_with(&self, wanted: &'static str) -> impl Iterator<Item = &PathBuf> {
        let all = self.all.iter().map(|(path, _)| path);
        all.filter(move |path| path.extension().is_some_and(|extension| extension == wanted))
    }

    /// The recordings and the snapshots among them. `reads`: recordings are recognized by their first bytes too; `unknown` gets a
    /// sentence for each file that may not be read.
    fn members(&self, reads: bool, unknown: &mut Vec<String>) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let mut begins_as_one = |path: &Path| {
            file::begins_as_recording(path).unwrap_or_else(|error| {
                let shown = path.display();
                unknown.push(format!(
                    "{shown}: whether this file is a recording is unknown ({error}); make it readable, or move it to another folder"
                ));
                false
            })
        };
        let mut is_recording = |(path, kind): &&(PathBuf, Entry)| match path.extension() {
            Some(ending) if ending == "culeak" => true,
            // An automatic snapshot; an incomplete copy of a spooled recording; holders; notes of runs.
            Some(ending)
                if ["culeak-snapshot", "part", "culeak-why", incomplete::ENDING]
                    .iter()
                    .any(|known| ending == *known) =>
            {
                false
            }
            _ => reads && *kind == Entry::Other && !is_hidden(path) && begins_as_one(path),
        };
        let recordings: Vec<_> = self.all.iter().filter(|entry| is_recording(entry)).collect();
        let snapshots = self.ending_with("json").filter(|path| file::begins_as_snapshot(path));
        let mut snapshots: Vec<PathBuf> = self.ending_with("culeak-snapshot").chain(snapshots).cloned().collect();
        snapshots.sort();
        (recordings.iter().map(|(path, _)| path.clone()).collect(), snapshots)
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
    fn folders_in_a_folder_without_recordings_are_searched() {
        let folder = folder(&["b/1.culeak", "a/x/2.culeak", "a/y/notes", "b/below/4.culeak"]);
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
        ]);
        let members = Members::of(nested.path());
        assert_eq!(recordings(&members, nested.path()), ["stray.culeak"]);
        let text = members.left_out.expect("files below");
        assert!(
            text.contains("rank0/1.culeak …)") && text.contains("/*.culeak"),
            "{text}"
        );
        // Of a folder without members, those of its folders count.
        let deeper = folder(&["a/stray.culeak", "a/rank0/1.culeak", "b/2.culeak"]);
        let members = Members::of(deeper.path());
        assert_eq!(recordings(&members, deeper.path()), ["a/stray.culeak", "b/2.culeak"]);
        let left_out = members.left_out.expect("files below");
        let above = deeper.path().join("a").display().to_string();
        assert!(left_out.starts_with(&format!("{above}: ")), "{left_out}");
        let many = folder(&["1.culeak", "a/1", "a/2", "b/3.culeak"]);
        let text = Members::within(many.path(), 1).left_out.expect("unknown");
        assert!(text.contains("not searched"), "{text}");
        let clean = folder(&["1.culeak", "pages/report.html"]);
        assert_eq!(Members::of(clean.path()).left_out, None);
    }

    #[test]
    fn recordings_aside_are_left_out_however_deep_they_are() {
        let deep = format!("a/{}2.culeak", "d/".repeat(40));
        for (files, first) in [
            (&["a/1.culeak", "a/.host2/2.culeak"][..], "a/.host2/2.culeak …"),
            (&["a/1.culeak", ".host2/b/2.culeak"], ".host2/b/2.culeak …"),
            (&["a/1.culeak", &deep], "2.culeak …"),
        ] {
            let folder = folder(files);
            let members = Members::of(folder.path());
            assert_eq!(recordings(&members, folder.path()), ["a/1.culeak"]);
            let text = members.left_out.expect("files aside");
            assert!(text.contains(first) && text.contains("/*.culeak"), "{text}");
        }
        let deep = folder(&["a/1.culeak", &format!("b/{}2.culeak", "d/".repeat(40))]);
        assert_eq!(Members::of(deep.path()).recordings.len(), 2);
        let (linked, elsewhere) = (folder(&["a/1.culeak", "b/2.culeak"]), folder(&["3.culeak"]));
        let link = |to: &Path, name: &str| symlink(to, linked.path().join(name)).expect("a link");
        link(&linked.path().join("b"), "a/latest");
        link(Path::new("nowhere"), "a/nowhere");
        link(linked.path(), "circle");
        assert_eq!(Members::of(linked.path()).left_out, None);
        link(elsewhere.path(), "c");
        let members = Members::of(linked.path());
        assert_eq!(recordings(&members, linked.path()), ["a/1.culeak", "b/2.culeak"]);
        let text = members.left_out.expect("files behind a link");
        assert!(text.contains("c/3.culeak …") && text.contains("a link"), "{text}");
    }

    #[test]
    fn a_recording_may_have_any_name() {
        let folder = folder(&[
            "a.7.culeak",
            "C",
            ".d",
            "notes.txt",
            "b.8.rec.mark-1.culeak-snapshot",
            "e/f.rec",
        ]);
        let begin = |name, start: [u8; 8]| fs::write(folder.path().join(name), start).expect("written");
        for name in [
            "C",
            ".d",
            "e/f.rec",
            "g.culeak.1.part",
            "b.8.rec.mark-1.culeak-snapshot",
        ] {
            begin(name, culeak::format::MAGIC);
        }
        begin("b.8.rec", culeak::file::spool::NOTE);
        let members = Members::of(folder.path());
        assert_eq!(recordings(&members, folder.path()), ["C", "a.7.culeak", "b.8.rec"]);
        assert_eq!(members.strangers().count(), 0);
        fs::remove_file(folder.path().join("C")).expect("removed");
        let nested = Members::of(&folder.path().join("e"));
        assert_eq!(recordings(&nested, &folder.path().join("e")), ["f.rec"]);
    }

    #[test]
    fn a_file_that_may_not_be_read_may_be_a_recording() {
        let folder = folder(&["a.culeak", "b", "notes.culeak-why"]);
        fs::write(folder.path().join("b"), culeak::format::MAGIC).expect("written");
        for name in ["b", "notes.culeak-why"] {
            fs::set_permissions(folder.path().join(name), Permissions::from_mode(0o000)).expect("permissions");
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("permissions");
        let mine = setfsuid(Uid::from_raw(65534));
        let found = crate::load::places(folder.path());
        setfsuid(mine);
        assert_eq!(found.places.len(), 1);
        let text = found.left_out.concat();
        assert!(
            text.contains("/b: whether this file is a recording is unknown")
                && text.contains("make it readable")
                && !text.contains("notes"),
            "{text}"
        );
    }

    #[test]
    fn snapshots_of_other_processes_beside_recordings_are_left_out() {
        let folder = folder(&["a.7.culeak", "a.7.mark-1.culeak-snapshot", "b.8.peak-1.culeak-snapshot"]);
        let other = culeak::snapshot::Snapshot {
            format: culeak::snapshot::FORMAT.into(),
            ..Default::default()
        };
        let json = serde_json::to_vec(&other).expect("JSON");
        fs::write(folder.path().join("other.json"), json).expect("written");
        let members = Members::of(folder.path());
        let names: Vec<_> = members
            .strangers()
            .map(|path| path.file_name().expect("a name"))
            .collect();
        assert_eq!(names, ["b.8.peak-1.culeak-snapshot", "other.json"]);
        fs::remove_file(folder.path().join("a.7.culeak")).expect("removed");
        assert_eq!(Members::of(folder.path()).strangers().count(), 0);
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
        let folder = folder(&["b/2.culeak", "a/1.culeak"]);
        let closed = folder.path().join("b");
        let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
        allow(folder.path(), 0o755);
        allow(&closed, 0o000);
        // Root can read every folder, so this thread runs as another user here.
        let mine = setfsuid(Uid::from_raw(65534));
        let members = Members::of(folder.path());
        setfsuid(mine);
        fs::remove_dir_all(folder.path().join("a")).expect("removed");
        fs::write(folder.path().join("3.culeak"), "").expect("written");
        setfsuid(Uid::from_raw(65534));
        let beside = Members::of(folder.path());
        setfsuid(mine);
        allow(&closed, 0o700);
        assert_eq!(recordings(&members, folder.path()), ["a/1.culeak"]);
        let reason = members.failures.first().expect("a failure").to_string();
        assert!(
            members.failures.len() == 1 && reason.contains("permission denied"),
            "{reason}"
        );
        assert_eq!(recordings(&beside, folder.path()), ["3.culeak"]);
        let reason = beside.left_out.expect("a folder below");
        assert!(
            reason.contains("is unknown") && reason.contains("permission denied"),
            "{reason}"
        );
    }

    #[test]
    fn a_note_of_a_folder_that_cannot_be_listed_may_exist() {
        let folder = folder(&["app.k3f9.host.7.culeak"]);
        let recording = [folder.path().join("app.k3f9.host.7.culeak")];
        assert_eq!(unrecorded_of(&recording), [""; 0]);
        fs::set_permissions(folder.path(), Permissions::from_mode(0o311)).expect("permissions");
        let mine = setfsuid(Uid::from_raw(65534));
        let sentences = unrecorded_of(&recording);
        setfsuid(mine);
        let text = sentences.concat();
        assert!(
            text.contains("is unknown") && text.contains("ermission denied"),
            "{text}"
        );
    }

    #[test]
    fn the_note_of_a_link_in_a_folder_is_beside_its_target() {
        let (own, other) = (folder(&["app.k3f9.host.7.culeak"]), folder(&[]));
        let of = "app.k3f9.host.7.culeak";
        symlink(own.path().join(of), other.path().join(of)).expect("a link");
        incomplete::leave(own.path(), "k3f9", &["the program failed".to_owned()]).expect("a note");
        let left_out = crate::load::places(other.path()).left_out.concat();
        assert!(left_out.contains("the program failed"), "{left_out}");
    }

    #[test]
    fn a_folder_that_is_missing_or_has_nothing_is_a_failure() {
        let folder = folder(&["a/notes"]);
        let text = |path: &Path| Members::of(path).failures[0].to_string();
        assert!(text(folder.path()).contains("a folder without recordings"));
        assert!(text(&folder.path().join("none")).contains("no such file"));
    }
}
