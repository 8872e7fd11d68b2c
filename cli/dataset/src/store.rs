//! The files of a dataset: rows are added in one step, and replace those that they repeat.
//!
//! ```text
//! DIR/culeak-dataset.json                  version and partition columns
//! DIR/sites/job=train/host=n03/….parquet   one file per table, folder and batch
//! DIR/_culeak/lock                         held while files are written
//! DIR/_culeak/step.json                    the files that are about to appear and disappear
//! ```
//!
//! A step writes new files under temporary names, syncs them, and writes the list of what is to be done; then it renames and
//! deletes. If it is interrupted before the list is complete, nothing has changed; afterwards, the next writer completes it. A
//! reader may see a part of the renames while they are done. A file that holds a replaced row is written again without it.
//!
//! Deliberately absent: several versions of the data for readers, as table formats have them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use foldhash::{HashMap, HashSet};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::file::{self, Footer, Keys};
use crate::folder;
use crate::marker::{MARKER, Marker, Problem, at, marker_of, partition_of};
use crate::rows::{Rows, Value};
use crate::schema::{self, Keep, PARTITIONS, Table, tables};
use crate::take::Batch;
use crate::{FORMAT, VERSION};

mod merge;

const OWN: &str = "_culeak";
/// Files that another writer left unfinished begin with this.
const TEMPORARY: &str = ".culeak-";

/// Files of a step, relative to the dataset.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Step {
    /// Temporary name and name.
    appear: Vec<(PathBuf, PathBuf)>,
    disappear: Vec<PathBuf>,
}

/// A dataset that is open for writing.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    partition: Vec<String>,
    /// Metadata of files, by path; valid while time and length of the file are the same.
    footers: HashMap<PathBuf, (SystemTime, u64, Footer)>,
}

impl Store {
    /// Opens a dataset, or creates one in a folder that is empty or missing. `partition`: `None` takes that of the dataset, and
    /// the job for a new one.
    ///
    /// # Errors
    /// The folder is something else, of another version, or partitioned otherwise.
    pub fn open(folder: &Path, partition: Option<&[String]>) -> Result<Store, Problem> {
        let marker = folder.join(MARKER);
        let known = match fs::read(&marker) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(at(&marker)(error)),
        };
        let partition = match (known, partition) {
            (Some(text), wanted) => {
                let known = marker_of(&marker, &text)?;
                if let Some(wanted) = wanted.filter(|wanted| **wanted != known.partition) {
                    return Err(Problem::new(
                        folder,
                        format!(
                            "a dataset that is partitioned by {}, not by {}; choose another folder, or leave out --partition",
                            known.partition.join(","),
                            wanted.join(",")
                        ),
                    ));
                }
                known.partition
            }
            (None, wanted) => wanted.map_or_else(|| vec!["job".to_owned()], <[String]>::to_vec),
        };
        let store = Store {
            folder: folder.to_owned(),
            partition,
            footers: HashMap::default(),
        };
        store.create()?;
        Ok(store)
    }

    /// Creates what is missing of an empty dataset.
    fn create(&self) -> Result<(), Problem> {
        let marker = self.folder.join(MARKER);
        if marker.exists() {
            return Ok(());
        }
        fs::create_dir_all(&self.folder).map_err(at(&self.folder))?;
        let mut others = fs::read_dir(&self.folder).map_err(at(&self.folder))?.flatten();
        let ours =
            |name: &std::ffi::OsStr| name == OWN || name == MARKER || tables().iter().any(|table| name == table.name);
        if let Some(other) = others.find(|entry| !ours(&entry.file_name())) {
            return Err(Problem::new(
                &self.folder,
                format!(
                    "a folder with other files ({}); choose another, or an empty one",
                    other.file_name().display()
                ),
            ));
        }
        let _lock = self.lock()?;
        // Another command may have created it meanwhile.
        if marker.exists() {
            return match partition_of(&self.folder)? == self.partition {
                true => Ok(()),
                false => Err(Problem::new(
                    &self.folder,
                    "another command has just created this dataset with another partition; start this one again",
                )),
            };
        }
        for table in tables() {
            // Engines need one file to read an empty table.
            let partitions = folder::partitions(table.keep, &self.partition);
            let parts: Vec<String> = partitions
                .iter()
                .map(|column| folder::name(column, Value::Null))
                .collect();
            let at_folder = self.folder.join(table.name).join(parts.join("/"));
            let path = at_folder.join("empty.parquet");
            fs::create_dir_all(&at_folder).map_err(at(&at_folder))?;
            let write = || file::write(&Rows::new(table), &partitions, &Keys::new(), File::create(&path)?);
            write().map_err(at(&path))?;
        }
        let text = serde_json::to_vec_pretty(&Marker {
            format: FORMAT.to_owned(),
            version: VERSION,
            partition: self.partition.clone(),
        });
        let text = text.map_err(|error| Problem::new(&marker, error))?;
        let temporary = self.folder.join(OWN).join("new-marker");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &marker))
            .map_err(at(&marker))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn lock(&self) -> Result<Flock<File>, Problem> {
        let own = self.folder.join(OWN);
        fs::create_dir_all(&own).map_err(at(&own))?;
        let path = own.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(at(&path))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| Problem::new(&path, error))
    }

    /// Adds a batch in one step. Rows of the same process, or the same process and point, are replaced.
    ///
    /// # Errors
    /// The dataset is as before, unless the list of changes was complete: then the next writer completes it.
    pub fn add(&mut self, mut batch: Batch) -> Result<(), Problem> {
        let _lock = self.lock()?;
        self.recover()?;
        self.drop_known(&mut batch)?;
        let mut step = Step::default();
        let result = self.write_all(&batch, &mut step);
        self.finish(result, step)
    }

    /// Files of a step that was interrupted.
    fn recover(&self) -> Result<(), Problem> {
        let path = self.step_path();
        match fs::read(&path) {
            Ok(text) => {
                // An incomplete list was never begun.
                if let Ok(step) = serde_json::from_slice::<Step>(&text) {
                    self.complete(&step)?;
                }
                fs::remove_file(&path).map_err(at(&path))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(&path)(error)),
        }
        let left = self.folder.join(OWN).join("writing");
        if left.exists() {
            for table in tables() {
                for (path, _) in self.all_files(table, "", TEMPORARY)? {
                    let _ = fs::remove_file(path);
                }
            }
            let _ = fs::remove_file(left);
        }
        Ok(())
    }

    fn step_path(&self) -> PathBuf {
        self.folder.join(OWN).join("step.json")
    }

    fn finish(&mut self, written: Result<(), Problem>, step: Step) -> Result<(), Problem> {
        let writing = self.folder.join(OWN).join("writing");
        if let Err(problem) = written {
            for (temporary, _) in &step.appear {
                let _ = fs::remove_file(self.folder.join(temporary));
            }
            let _ = fs::remove_file(writing);
            return Err(problem);
        }
        let path = self.step_path();
        let temporary = self.folder.join(OWN).join("next-step");
        let text = serde_json::to_vec(&step).map_err(|error| Problem::new(&path, error))?;
        let list = || {
            let folder = File::open(&self.folder)?;
            // All new files at once, where each alone would take a write of the disk.
            nix::unistd::syncfs(&folder)?;
            let mut file = File::create(&temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            folder.sync_all()
        };
        list().map_err(at(&path))?;
        self.complete(&step)?;
        for name in &step.disappear {
            self.footers.remove(&self.folder.join(name));
        }
        fs::remove_file(&path).map_err(at(&path))?;
        let _ = fs::remove_file(writing);
        Ok(())
    }

    fn complete(&self, step: &Step) -> Result<(), Problem> {
        for (temporary, name) in &step.appear {
            let (from, to) = (self.folder.join(temporary), self.folder.join(name));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&to)(error)),
                _ => {}
            }
        }
        for name in &step.disappear {
            let path = self.folder.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Drops rows that the dataset has already: stacks, and states and peaks of processes of which it has a later state.
    fn drop_known(&mut self, batch: &mut Batch) -> Result<(), Problem> {
        let jobs: HashSet<String> = (0..batch.processes.len())
            .map(|row| batch.processes.text(0, row).to_owned())
            .collect();
        let mut known: HashSet<(String, String)> = HashSet::default();
        for job in &jobs {
            for (path, _) in self.files(&schema::STACKS, job)? {
                let rows = self.read(&schema::STACKS, &path)?;
                known.extend((0..rows.len()).map(|row| (rows.text(0, row).to_owned(), rows.text(1, row).to_owned())));
            }
        }
        batch.drop_stacks(|job, stack| known.contains(&(job.to_owned(), stack.to_owned())));
        let time = |rows: &Rows, row: usize| match rows.table.column("at_unix_ns").map(|at| rows.value(at, row)) {
            Some(Value::Number(at)) => at,
            _ => 0,
        };
        let rows = &batch.processes;
        let fresh = (0..rows.len()).filter_map(|row| Some((file::key(rows, row)?, time(rows, row))));
        let fresh: HashMap<String, i64> = fresh.collect();
        let mut stale: HashSet<(String, String)> = HashSet::default();
        for job in &jobs {
            for (path, _) in self.files(&schema::PROCESSES, job)? {
                if !self.footer(&path)?.keys.iter().any(|key| fresh.contains_key(key)) {
                    continue;
                }
                let rows = self.read(&schema::PROCESSES, &path)?;
                let id = rows.table.column("process").unwrap_or(0);
                for row in 0..rows.len() {
                    let at = file::key(&rows, row).and_then(|key| fresh.get(&key).copied());
                    if at.is_some_and(|at| time(&rows, row) > at) {
                        stale.insert((rows.text(0, row).to_owned(), rows.text(id, row).to_owned()));
                    }
                }
            }
        }
        if !stale.is_empty() {
            let is_stale = |job: &str, process: &str| stale.contains(&(job.to_owned(), process.to_owned()));
            batch.drop_latest(is_stale);
            // So far a later snapshot knows more of the peak.
            let wanted = batch.single_points(is_stale);
            let mut there = HashSet::default();
            for job in &jobs {
                for (path, _) in self.files(&schema::POINTS, job)? {
                    there.extend(self.footer(&path)?.keys.into_iter().filter(|key| wanted.contains(key)));
                }
            }
            batch.drop_points(&there);
        }
        Ok(())
    }

    /// Writes the files of a batch, and those that lose rows to it.
    fn write_all(&mut self, batch: &Batch, step: &mut Step) -> Result<(), Problem> {
        for rows in batch.tables() {
            let table = rows.table;
            let mut by_job: BTreeMap<&str, Keys> = BTreeMap::new();
            let mut by_folder: BTreeMap<String, (Vec<usize>, Keys)> = BTreeMap::new();
            let partitions = folder::partitions(table.keep, &self.partition);
            for row in 0..rows.len() {
                let part = by_folder.entry(folder::of_row(rows, row, &partitions)).or_default();
                part.0.push(row);
                if let Some(key) = file::key(rows, row)
                    && part.1.insert(key.clone())
                {
                    by_job.entry(rows.text(0, row)).or_default().insert(key);
                }
            }
            if table.keep == Keep::Latest {
                // A process may have no blocks any more.
                let all = &batch.processes;
                for row in 0..all.len() {
                    by_job.entry(all.text(0, row)).or_default().extend(file::key(all, row));
                }
            }
            // A process that has no rows any more, such as objects at a later point, keeps those of other points.
            for (name, (members, keys)) in &by_folder {
                let wanted: HashSet<usize> = members.iter().copied().collect();
                let mut part = Rows::new(table);
                part.extend(rows, |row| wanted.contains(&row));
                self.write(&part, name, keys, step)?;
            }
            let new: HashSet<PathBuf> = step.appear.iter().map(|(_, name)| name.clone()).collect();
            for (job, keys) in by_job {
                for (path, folder) in self.files(table, job)? {
                    let relative = path.strip_prefix(&self.folder).unwrap_or(&path).to_owned();
                    let old = self.footer(&path)?.keys;
                    if new.contains(&relative) || old.is_disjoint(&keys) {
                        continue;
                    }
                    if !old.is_subset(&keys) {
                        let rows = self.read(table, &path)?;
                        let mut rest = Rows::new(table);
                        rest.extend(&rows, |row| {
                            file::key(&rows, row).is_some_and(|key| !keys.contains(&key))
                        });
                        let left: Keys = old.difference(&keys).cloned().collect();
                        self.write(&rest, &folder, &left, step)?;
                    }
                    step.disappear.push(relative);
                }
            }
        }
        // A name is that of the keys of a file, so a file may be replaced by one of the same name.
        let new: HashSet<&PathBuf> = step.appear.iter().map(|(_, name)| name).collect();
        step.disappear.retain(|name| !new.contains(name));
        Ok(())
    }

    /// Writes a file under a temporary name.
    fn write(&self, rows: &Rows, part: &str, keys: &Keys, step: &mut Step) -> Result<(), Problem> {
        let table = rows.table;
        let below = Path::new(table.name).join(part);
        let path = self.folder.join(&below);
        let writing = self.folder.join(OWN).join("writing");
        fs::write(&writing, "").map_err(at(&writing))?;
        fs::create_dir_all(&path).map_err(at(&path))?;
        let mut names = String::new();
        match table.keep {
            Keep::Forever => {
                (0..rows.len()).for_each(|row| names += &format!("{}\n{}\n", rows.text(0, row), rows.text(1, row)))
            }
            _ => keys.iter().for_each(|key| names += &format!("{key}\n")),
        }
        let name = below.join(format!(
            "{}-{:016x}.parquet",
            table.name,
            folder::hash(names.as_bytes())
        ));
        let temporary = below.join(format!("{TEMPORARY}{}.tmp", step.appear.len()));
        step.appear.push((temporary.clone(), name));
        let temporary = self.folder.join(temporary);
        let partitions = folder::partitions(table.keep, &self.partition);
        let write = || file::write(rows, &partitions, keys, File::create(&temporary)?);
        write().map_err(at(&temporary))
    }

    fn footer(&mut self, path: &Path) -> Result<Footer, Problem> {
        let metadata = fs::metadata(path).map_err(at(path))?;
        let is_of = (metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len());
        if let Some((time, length, footer)) = self.footers.get(path)
            && (*time, *length) == is_of
        {
            return Ok(footer.clone());
        }
        let footer = file::footer(path).map_err(at(path))?;
        self.footers.insert(path.to_owned(), (is_of.0, is_of.1, footer.clone()));
        Ok(footer)
    }

    fn read(&self, table: &'static Table, path: &Path) -> Result<Rows, Problem> {
        let below = path.strip_prefix(&self.folder).unwrap_or(path);
        let names: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let fixed = self.partition.iter().filter_map(|column| {
            let value = names.iter().find_map(|name| folder::value(name, column))?;
            Some((column.as_str(), value))
        });
        let fixed: Vec<(&str, Option<String>)> = fixed.collect();
        let values: Vec<(&str, Value)> = fixed
            .iter()
            .map(|(column, value)| {
                let number = value.as_deref().and_then(|value| value.parse().ok());
                let value = match *column {
                    "rank" => number.map_or(Value::Null, Value::Number),
                    _ => value.as_deref().into(),
                };
                (*column, value)
            })
            .collect();
        file::read(path, table, &values).map_err(at(path))
    }

    /// The files of a table that may have rows of a job, and their folders below the table.
    fn files(&self, table: &Table, job: &str) -> Result<Vec<(PathBuf, String)>, Problem> {
        let by_job = self.partition.iter().any(|column| column == "job");
        let below = if by_job {
            folder::name("job", Value::Text(job))
        } else {
            String::new()
        };
        let mut files = self.all_files(table, &below, "")?;
        files.retain(|(path, _)| path.extension().is_some_and(|extension| extension == "parquet"));
        files.retain(|(path, _)| path.file_name().is_some_and(|name| name != "empty.parquet"));
        Ok(files)
    }

    /// Files of a table whose names begin with this, sorted, and their folders.
    fn all_files(&self, table: &Table, below: &str, prefix: &str) -> Result<Vec<(PathBuf, String)>, Problem> {
        let mut found = Vec::new();
        let mut next = vec![(below.to_owned(), if below.is_empty() { 0 } else { 1 })];
        while let Some((below, depth)) = next.pop() {
            let path = self.folder.join(table.name).join(&below);
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(at(&path)(error)),
            };
            for entry in entries {
                let entry = entry.map_err(at(&path))?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let kind = entry.file_type().map_err(at(&path))?;
                if kind.is_dir() && depth < PARTITIONS.len() {
                    let inner = if below.is_empty() {
                        name
                    } else {
                        format!("{below}/{name}")
                    };
                    next.push((inner, depth + 1));
                } else if kind.is_file() && name.starts_with(prefix) {
                    found.push((entry.path(), below.clone()));
                }
            }
        }
        found.sort();
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
