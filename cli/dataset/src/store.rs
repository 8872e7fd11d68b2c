//! The files of a dataset: one per table, process and point, so that a later export replaces what it repeats by a rename.
//!
//! ```text
//! DIR/culeak-dataset.json                                version and partition columns
//! DIR/processes/job=train/host=n03/PROCESS.parquet       also blocks: the latest state of a process
//! DIR/sites/job=train/host=n03/PROCESS-POINT.parquet     also points, objects
//! DIR/stacks/job=train/STACKS.parquet                    named after the stacks in it
//! ```
//!
//! A file appears under its name when it is complete, and no file is read. A process has its row in `processes` after all others.
//! Deliberately absent: merging small files, which an engine does with one line, and changes of many files in one step.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use foldhash::HashMap;

use crate::file;
use crate::folder;
use crate::marker::{MARKER, Marker, Problem, at, partition_of};
use crate::rows::{Rows, Value};
use crate::schema::{Keep, tables};
use crate::take::Batch;
use crate::{FORMAT, VERSION};

/// A dataset that is open for writing, also by several threads.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    partition: Vec<String>,
    /// The wall clock of the snapshots that files were written from, for files that a later snapshot replaces.
    written: Mutex<HashMap<PathBuf, u64>>,
}

impl Store {
    /// Opens a dataset, or creates one in a folder that is empty or missing. `partition`: `None` takes that of the dataset, and
    /// the job for a new one.
    ///
    /// # Errors
    /// The folder is something else, of another version, or partitioned otherwise.
    pub fn open(folder: &Path, partition: Option<&[String]>) -> Result<Store, Problem> {
        let marker = folder.join(MARKER);
        if !marker.exists() {
            create(folder, partition.unwrap_or(&["job".to_owned()]))?;
        }
        // Another command may have created it meanwhile.
        let known = partition_of(folder)?;
        if let Some(wanted) = partition.filter(|wanted| **wanted != known) {
            return Err(Problem::new(
                folder,
                format!(
                    "a dataset that is partitioned by {}, not by {}; choose another folder, or leave out --partition",
                    known.join(","),
                    wanted.join(",")
                ),
            ));
        }
        Ok(Store {
            folder: folder.to_owned(),
            partition: known,
            written: Mutex::default(),
        })
    }

    /// Writes the state of a process at a point. Files of the same process and point are replaced.
    ///
    /// # Errors
    /// A file cannot be written. Those of other processes are complete.
    pub fn add(&self, batch: &Batch) -> Result<(), Problem> {
        let process = &batch.process;
        for rows in batch.tables() {
            let table = rows.table;
            let name = match table.keep {
                Keep::Latest if batch.is_peak => continue,
                Keep::Latest => process.clone(),
                Keep::EachPoint => format!("{process}-{:016x}", folder::hash(batch.point.as_bytes())),
                Keep::Forever => {
                    let mut stacks: Vec<&str> = (0..rows.len()).map(|row| rows.text(1, row)).collect();
                    stacks.sort_unstable();
                    format!("{:016x}", folder::hash(stacks.concat().as_bytes()))
                }
            };
            let partition = folder::partitions(table.keep, &self.partition);
            // This table has one row, with all of these columns.
            let below = folder::of_row(&batch.points, 0, &partition);
            let path = self.folder.join(table.name).join(below).join(name + ".parquet");
            if table.keep == Keep::Forever && path.exists() {
                continue;
            }
            self.replace(&path, rows, &partition, batch).map_err(at(&path))?;
        }
        Ok(())
    }

    fn replace(&self, path: &Path, rows: &Rows, partition: &[&str], batch: &Batch) -> io::Result<()> {
        let file = match rows.is_empty() {
            true => None,
            false => {
                let folder = path.parent().unwrap_or(path);
                fs::create_dir_all(folder)?;
                let file = temporary(folder)?;
                file::write(rows, partition, file.reopen()?)?;
                file.as_file().sync_data()?;
                Some(file)
            }
        };
        // Only one snapshot is of this point, so nothing is to be remembered.
        let is_single = batch.is_now && rows.table.keep != Keep::Latest;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_single {
            let known = written.entry(path.to_owned()).or_default();
            if *known > batch.taken_unix_ns {
                return Ok(());
            }
            *known = batch.taken_unix_ns;
        }
        match file {
            Some(file) => file.persist(path).map(drop).map_err(|failed| failed.error),
            None => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }
}

/// A file that is removed unless it gets a name. Engines ignore names that begin with a dot.
fn temporary(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".culeak-").suffix(".tmp");
    builder.permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

/// Creates an empty dataset.
fn create(folder: &Path, partition: &[String]) -> Result<(), Problem> {
    fs::create_dir_all(folder).map_err(at(folder))?;
    for entry in fs::read_dir(folder).map_err(at(folder))?.flatten() {
        let name = entry.file_name();
        let is_ours = name.to_string_lossy().starts_with(".culeak-") || tables().iter().any(|table| name == table.name);
        if !is_ours && name != MARKER {
            let reason = format!(
                "a folder with other files ({}); choose another, or an empty one",
                name.display()
            );
            return Err(Problem::new(folder, reason));
        }
    }
    for table in tables() {
        // Engines need one file to read an empty table.
        let partitions = folder::partitions(table.keep, partition);
        let parts: Vec<String> = partitions
            .iter()
            .map(|column| folder::name(column, Value::Null))
            .collect();
        let below = folder.join(table.name).join(parts.join("/"));
        fs::create_dir_all(&below).map_err(at(&below))?;
        let write = || {
            let file = temporary(&below)?;
            file::write(&Rows::new(table), &partitions, file.reopen()?)?;
            file.persist(below.join("empty.parquet")).map_err(|failed| failed.error)
        };
        write().map_err(at(&below))?;
    }
    let marker = Marker {
        format: FORMAT.to_owned(),
        version: VERSION,
        partition: partition.to_vec(),
    };
    let write = || {
        let file = temporary(folder)?;
        serde_json::to_writer_pretty(file.as_file(), &marker)?;
        file.persist(folder.join(MARKER)).map_err(|failed| failed.error)
    };
    write().map(drop).map_err(at(folder))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use culeak::analysis::categories::Categories;
    use culeak::snapshot::{ProcessState, Snapshot};

    use super::*;
    use crate::sample;
    use crate::take::About;

    fn snapshot(pid: u32, state: ProcessState, at_ns: u64) -> Snapshot {
        let mut snapshot = sample::leaky();
        snapshot.process.pid = pid;
        snapshot.process.state = state;
        (snapshot.taken.at_ns, snapshot.taken.at_unix_ns) = (at_ns, at_ns);
        snapshot
    }

    fn add(store: &Store, job: &str, snapshot: &Snapshot) {
        let about = About {
            job: Some(job),
            source: "a.culeak",
            is_running: false,
            blocks: true,
            categories: &Categories::default(),
            escape: str::to_owned,
        };
        store.add(&Batch::of(snapshot, &about)).expect("written");
    }

    /// The content of each file, without those of empty tables.
    fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut next = vec![folder.to_owned()];
        while let Some(folder) = next.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => next.push(path),
                    false if path.ends_with("empty.parquet") => {}
                    false => drop(found.insert(path.display().to_string(), fs::read(&path).expect("a file"))),
                }
            }
        }
        found
    }

    fn count(folder: &Path, table: &str) -> usize {
        files(&folder.join(table)).len()
    }

    #[test]
    fn the_same_process_is_replaced_and_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), None).expect("a dataset");
        for pid in [1, 2] {
            add(&store, "one", &snapshot(pid, ProcessState::Exited, 5));
        }
        add(&store, "two", &snapshot(1, ProcessState::Exited, 5));
        let before = files(folder.path());
        assert_eq!(
            [count(folder.path(), "processes"), count(folder.path(), "stacks")],
            [3, 2]
        );
        let again = Store::open(folder.path(), None).expect("a dataset");
        add(&again, "one", &snapshot(1, ProcessState::Exited, 5));
        assert!(files(folder.path()) == before);
    }

    #[test]
    fn points_of_a_running_process_are_added_and_the_latest_state_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), None).expect("a dataset");
        let latest = snapshot(1, ProcessState::Running, 9);
        add(&store, "job", &latest);
        let before = files(&folder.path().join("processes"));
        add(&store, "job", &snapshot(1, ProcessState::Running, 7));
        assert!(files(&folder.path().join("processes")) == before);
        assert_eq!([count(folder.path(), "points"), count(folder.path(), "blocks")], [2, 1]);
        // All memory is freed.
        let mut empty = snapshot(1, ProcessState::Running, 11);
        empty.allocations = Default::default();
        add(&store, "job", &empty);
        assert_eq!([count(folder.path(), "points"), count(folder.path(), "blocks")], [3, 0]);
    }

    #[test]
    fn other_folders_versions_and_partitions_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let refused = |path: &Path, partition: &[&str]| {
            let partition: Vec<String> = partition.iter().map(|&name| name.to_owned()).collect();
            Store::open(path, Some(&partition)).expect_err("refused").reason
        };
        fs::create_dir(at("other")).expect("a folder");
        fs::write(at("other/notes"), "").expect("written");
        assert!(refused(&at("other"), &["job"]).contains("other files (notes)"));
        Store::open(&at("dataset"), None).expect("a dataset");
        assert!(refused(&at("dataset"), &["job", "host"]).contains("partitioned by job"));
        let text = fs::read_to_string(at("dataset").join(MARKER)).expect("a file");
        fs::write(
            at("dataset").join(MARKER),
            text.replace("\"version\": 1", "\"version\": 2"),
        )
        .expect("written");
        assert!(refused(&at("dataset"), &["job"]).contains("version 2"));
    }
}
