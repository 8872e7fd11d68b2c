//! The recordings and snapshots that were read last, with names and holders, for `culeak mcp`: it is asked about the same file again and
//! again. Deliberately absent: recordings of processes that run, which change without a new time of modification, and what was read
//! with a message or lacks names: the next answer needs the message too, and names may be found later.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{Loaded, file, sidecar};
use crate::errors::Failure;
use crate::progress;

/// Enough for a comparison.
const MOST: usize = 2;

struct Kept {
    /// Looks up names; whether all were found.
    name: fn(&mut Loaded) -> bool,
    /// The last one is the newest.
    items: Vec<(Key, Loaded)>,
}

/// Empty, and never locked, unless files are kept: commands read many files at once.
type Memory = OnceLock<Mutex<Kept>>;

static KEPT: Memory = OnceLock::new();

/// The files that an item was read from, as they were.
#[derive(PartialEq, Eq)]
struct Key {
    path: PathBuf,
    /// Device, number, size and time of modification: of the file, and of the holders beside it.
    files: [Option<[i128; 4]>; 2],
}

impl Key {
    fn of(path: &Path) -> Key {
        let state = |path: &Path| {
            let file = path.metadata().ok()?;
            let modified = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
            Some([file.dev().into(), file.ino().into(), file.len().into(), modified])
        };
        Key {
            path: path.to_path_buf(),
            files: [state(path), state(&sidecar::beside(path))],
        }
    }
}

/// Keeps files from now on. `name`: looks up names, and returns whether all were found.
pub fn begin(name: fn(&mut Loaded) -> bool) {
    begin_in(&KEPT, name);
}

fn begin_in(memory: &Memory, name: fn(&mut Loaded) -> bool) {
    memory.get_or_init(|| {
        Mutex::new(Kept {
            name,
            items: Vec::new(),
        })
    });
}

/// The file as it was kept, if it is the same, or as it is read.
///
/// # Errors
/// `read` fails.
pub fn or_read(path: &Path, read: impl FnOnce() -> Result<Loaded, Failure>) -> Result<Loaded, Failure> {
    or_read_in(&KEPT, path, read)
}

fn or_read_in(memory: &Memory, path: &Path, read: impl FnOnce() -> Result<Loaded, Failure>) -> Result<Loaded, Failure> {
    let Some(kept) = memory.get() else { return read() };
    let key = Key::of(path);
    let name = {
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, item)) = kept.items.iter().find(|(known, _)| *known == key) {
            return Ok(item.clone());
        }
        kept.name
    };
    // Reading may read other files, and takes long, so nothing is locked.
    let said_before = progress::said_here();
    let mut item = read()?;
    let is_whole = progress::said_here() == said_before;
    let is_complete = item.snapshot.process.state.has_ended() || file::begins_as_snapshot(path);
    if is_whole && is_complete && key == Key::of(path) && name(&mut item) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.items.retain(|(known, _)| known.path != key.path);
        let older = (kept.items.len() + 1).saturating_sub(MOST);
        kept.items.drain(..older);
        kept.items.push((key, item.clone()));
    }
    Ok(item)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::time::Duration;
    use std::{fs, thread};

    use culeak::snapshot::ProcessState;

    use super::*;
    use crate::text::sample::leaky;

    #[test]
    fn files_are_read_at_the_same_time() {
        let begun = Memory::new();
        begin_in(&begun, |_| true);
        for memory in [&Memory::new(), &begun] {
            let (reads, second) = mpsc::channel();
            let item = || Ok(Loaded::of(leaky(), "a.culeak"));
            thread::scope(|scope| {
                let first = or_read_in(memory, Path::new("a.culeak"), || {
                    let reads_too = move || {
                        reads.send(()).expect("the first waits");
                        item()
                    };
                    scope.spawn(|| or_read_in(memory, Path::new("b.culeak"), reads_too));
                    let read = second.recv_timeout(Duration::from_secs(60));
                    read.expect("it is read while the first is");
                    item()
                });
                first.expect("read");
            });
        }
    }

    #[test]
    fn a_file_is_read_again_only_if_it_changed_and_a_running_process_each_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.culeak");
        fs::write(&path, "first").expect("written");
        let (memory, reads) = (Memory::new(), Cell::new(0));
        let read = |state| {
            let result = or_read_in(&memory, &path, || {
                reads.set(reads.get() + 1);
                let mut snapshot = leaky();
                snapshot.process.state = state;
                Ok(Loaded::of(snapshot, "a.culeak"))
            });
            result.expect("read").snapshot
        };
        read(ProcessState::Exited);
        read(ProcessState::Exited);
        assert_eq!(reads.replace(0), 2, "nothing is kept before it begins");
        begin_in(&memory, |_| true);
        assert_eq!(read(ProcessState::Exited), read(ProcessState::Exited));
        assert_eq!(reads.replace(0), 1);
        fs::write(&path, "longer").expect("written");
        read(ProcessState::Exited);
        fs::write(sidecar::beside(&path), "holders").expect("written");
        read(ProcessState::Exited);
        assert_eq!(reads.replace(0), 2, "it changed, and got holders");
        fs::write(&path, "grows").expect("written");
        read(ProcessState::Running);
        read(ProcessState::Running);
        assert_eq!(reads.replace(0), 2, "of a process that runs");
    }
}
