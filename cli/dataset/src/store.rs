//! The files of a dataset: one per table, process and point, so that a later export replaces what it repeats by a rename.
//!
//! ```text
//! DIR/culeak-dataset.json, duckdb.sql, spark.sql    the version, and the views for each engine
//! DIR/processes/job=train/PROCESS.parquet           also blocks: the latest state of a process
//! DIR/sites/job=train/PROCESS-POINT.parquet         also points
//! DIR/stacks/job=train/STACKS.parquet               named after the stacks in it
//! ```
//!
//! A file appears under its name when it is complete, and no file is read. A process has its row in `processes` after all others.
//! Deliberately absent: merging small files, which an engine does with one line, and changes of many files in one step.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use culeak::analysis::facts::Facts;
use culeak::analysis::groups::Groups;
use culeak::analysis::site::CallStacks;
use culeak::point::Point;
use culeak::snapshot::Snapshot;
use foldhash::HashMap;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RecordWriter;
use parquet::schema::types::ColumnPath;
use serde_json::json;

use crate::rows::{About, SiteText, Subject, Totals, block_rows, stack_rows, stack_texts};
use crate::schema::{Block, Instant, Process, SiteRow, StackRow};
use crate::{FORMAT, VERSION, folder};

const MARKER: &str = "culeak-dataset.json";
/// The queries, as views in the order in which they use one another; both engines run this text.
const QUERIES: &str = include_str!("../sql/queries.sql");
/// The views of the tables, by engine.
const ENGINES: [(&str, &str); 2] = [
    ("duckdb.sql", include_str!("../sql/duckdb.sql")),
    ("spark.sql", include_str!("../sql/spark.sql")),
];
/// Rows of a row group: engines skip groups whose statistics exclude them.
const GROUP: usize = 1 << 17;

/// Why a dataset cannot be used or written: path and reason.
#[derive(Debug)]
pub struct Problem {
    pub path: PathBuf,
    pub reason: String,
}

fn at(path: &Path) -> impl Fn(io::Error) -> Problem {
    let path = path.to_owned();
    move |error| Problem {
        path: path.clone(),
        reason: error.to_string(),
    }
}

/// A dataset that is open for writing, also by several threads.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    is_created: Mutex<bool>,
    /// The wall clock of the snapshots that files were written from, for files that a later snapshot replaces.
    written: Mutex<HashMap<PathBuf, u64>>,
}

impl Store {
    /// Opens a dataset. In a folder that is empty or missing, the first process creates one: an export that reads none leaves no trace.
    ///
    /// # Errors
    /// The folder is something else, or of another version.
    pub fn open(folder: &Path) -> Result<Store, Problem> {
        let store = Store {
            folder: folder.to_owned(),
            is_created: Mutex::default(),
            written: Mutex::default(),
        };
        let marker = folder.join(MARKER);
        if !marker.exists() {
            store.suits()?;
            return Ok(store);
        }
        let text = fs::read(&marker).map_err(at(&marker))?;
        let known: serde_json::Value = serde_json::from_slice(&text).map_err(|error| at(&marker)(error.into()))?;
        if known["format"] != FORMAT || known["version"] != VERSION {
            let version = &known["version"];
            let reason = format!(
                "a dataset of version {version}, this build writes version {VERSION}; choose another folder, or use another release"
            );
            return Err(Problem { path: marker, reason });
        }
        Ok(store)
    }

    /// Whether the folder is missing, empty, or what an export that was killed has left.
    fn suits(&self) -> Result<(), Problem> {
        let folder = &self.folder;
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(at(folder))?,
        };
        const TABLES: [&str; 5] = ["processes", "points", "sites", "stacks", "blocks"];
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_ours = name.starts_with(".culeak-") || TABLES.contains(&&*name) || name.ends_with(".sql");
            if !is_ours && name != MARKER {
                let reason = format!("a folder with other files ({name}); choose another, or an empty one");
                return Err(Problem {
                    path: folder.clone(),
                    reason,
                });
            }
        }
        Ok(())
    }

    /// Creates the dataset unless it exists.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn create(&self) -> Result<(), Problem> {
        let folder = &self.folder;
        let mut is_created = self.is_created.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_created || folder.join(MARKER).exists() {
            return Ok(());
        }
        // Engines need one file to read an empty table.
        let empty = |table: &str| folder.join(table).join(folder::NULL).join("empty.parquet");
        self.write::<Process>(&empty("processes"), &[])?;
        self.write::<Instant>(&empty("points"), &[])?;
        self.write::<SiteRow>(&empty("sites"), &[])?;
        self.write::<StackRow>(&empty("stacks"), &[])?;
        self.write::<Block>(&empty("blocks"), &[])?;
        for (name, tables) in ENGINES {
            let path = folder.join(name);
            place(&path, |mut file| {
                file.write_all(format!("{tables}\n{QUERIES}").as_bytes())
            })
            .map_err(at(&path))?;
        }
        let (marker, text) = (
            folder.join(MARKER),
            json!({"format": FORMAT, "version": VERSION}).to_string(),
        );
        place(&marker, |mut file| file.write_all(text.as_bytes())).map_err(at(&marker))?;
        *is_created = true;
        Ok(())
    }

    /// Writes the state of a process at a point: a snapshot with names. Files of the same process and point are replaced.
    ///
    /// # Errors
    /// A file cannot be written. Those of other processes are complete.
    pub fn add(&self, snapshot: &Snapshot, about: &About) -> Result<(), Problem> {
        self.create()?;
        let subject = Subject::of(snapshot, about);
        let stacks = CallStacks::of(snapshot);
        let groups = Groups::of(snapshot, &stacks);
        let sums = Totals::of(&groups);
        let texts = stack_texts(snapshot, &stacks, about.escape);
        let path = |table: &str, name: &str| {
            let folder = self.folder.join(table).join(folder::name(&subject.job));
            folder.join(format!("{name}.parquet"))
        };
        // A peak is no state that a process is left in.
        let is_latest = snapshot.taken.point != Some(Point::Peak);
        let of_point = format!("{}-{}", subject.process, subject.point_key());
        // Only one snapshot is of a point at which the process runs, so nothing is to be remembered.
        let time = (!subject.is_one_of_many()).then_some(snapshot.taken.at_unix_ns);

        let rows = stack_rows(&texts);
        let names: String = rows.iter().map(|row| row.stack).collect();
        let stacks_path = path("stacks", &format!("{:016x}", folder::hash(names.as_bytes())));
        if !rows.is_empty() && !stacks_path.exists() {
            self.write(&stacks_path, &rows)?;
        }
        if is_latest {
            let is_listed = about.blocks && !snapshot.allocations.is_summed();
            let blocks = match is_listed {
                true => block_rows(&subject, snapshot, &groups, &stacks, &texts, about.categories),
                false => Vec::new(),
            };
            self.replace(
                &path("blocks", &subject.process),
                &blocks,
                Some(snapshot.taken.at_unix_ns),
            )?;
        }
        let facts = Facts::in_detail(snapshot, &stacks, &groups, about.categories);
        let sites = SiteText::all(&facts.sites, about.escape);
        self.replace(
            &path("sites", &of_point),
            &subject.site_rows(snapshot, &facts, &sites),
            time,
        )?;
        self.replace(
            &path("points", &of_point),
            &[subject.point_row(snapshot, &sums, about)],
            time,
        )?;
        if is_latest {
            let row = [subject.process_row(snapshot, &sums, about)];
            self.replace(
                &path("processes", &subject.process),
                &row,
                Some(snapshot.taken.at_unix_ns),
            )?;
        }
        Ok(())
    }

    /// Replaces a file, unless a later snapshot wrote it. `taken`: when this one was taken, if there may be several.
    fn replace<T>(&self, path: &Path, rows: &[T], taken: Option<u64>) -> Result<(), Problem>
    where
        for<'r> &'r [T]: RecordWriter<T>,
    {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = taken {
            let known = written.entry(path.to_owned()).or_default();
            if *known > taken {
                return Ok(());
            }
            *known = taken;
        }
        drop(written);
        match rows.is_empty() {
            false => self.write(path, rows),
            true => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
                _ => Ok(()),
            },
        }
    }

    fn write<T>(&self, path: &Path, rows: &[T]) -> Result<(), Problem>
    where
        for<'r> &'r [T]: RecordWriter<T>,
    {
        place(path, |file| write_rows(rows, file)).map_err(at(path))
    }
}

/// Writes a file and gives it its name when it is complete.
fn place(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    // It is removed unless it gets a name. Engines ignore names that begin with a dot.
    let mut builder = tempfile::Builder::new();
    builder
        .prefix(".culeak-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o666));
    let file = builder.tempfile_in(folder)?;
    write(file.reopen()?)?;
    file.as_file().sync_data()?;
    file.persist(path).map(drop).map_err(|failed| failed.error)
}

/// One Parquet file, compressed with Zstandard, with statistics per row group and page.
fn write_rows<T>(rows: &[T], out: File) -> io::Result<()>
where
    for<'r> &'r [T]: RecordWriter<T>,
{
    let properties = WriterProperties::builder()
        .set_created_by(format!("culeak {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_column_statistics_enabled(ColumnPath::from("frames"), EnabledStatistics::None)
        // Their values are almost all distinct.
        .set_column_dictionary_enabled(ColumnPath::from("address"), false)
        .set_column_dictionary_enabled(ColumnPath::from("allocated_unix_ns"), false);
    let out = io::BufWriter::with_capacity(1 << 16, out);
    let mut file = SerializedFileWriter::new(out, rows.schema()?, Arc::new(properties.build()))?;
    for part in rows.chunks(GROUP) {
        let mut group = file.next_row_group()?;
        part.write_to_row_group(&mut group)?;
        group.close()?;
    }
    file.finish()?;
    file.inner_mut().flush()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use culeak::analysis::categories::Categories;
    use culeak::snapshot::{ProcessState, Snapshot};

    use super::*;
    use crate::sample;

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
        store.add(snapshot, &about).expect("written");
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
        let store = Store::open(folder.path()).expect("a dataset");
        for pid in [1, 2] {
            add(&store, "one", &snapshot(pid, ProcessState::Exited, 5));
        }
        add(&store, "two", &snapshot(1, ProcessState::Exited, 5));
        let before = files(folder.path());
        assert_eq!(
            [count(folder.path(), "processes"), count(folder.path(), "stacks")],
            [3, 2]
        );
        let again = Store::open(folder.path()).expect("a dataset");
        add(&again, "one", &snapshot(1, ProcessState::Exited, 5));
        assert!(files(folder.path()) == before);
    }

    #[test]
    fn points_of_a_running_process_are_added_and_the_latest_state_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a dataset");
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
    fn other_folders_and_versions_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let refused = |path: &Path| Store::open(path).expect_err("refused").reason;
        fs::create_dir(at("other")).expect("a folder");
        fs::write(at("other/notes"), "").expect("written");
        assert!(refused(&at("other")).contains("other files (notes)"));
        let store = Store::open(&at("dataset")).expect("a dataset");
        assert!(!at("dataset").exists(), "nothing was added");
        store.create().expect("created");
        let marker = at("dataset").join(MARKER);
        let text = fs::read_to_string(&marker).expect("a file");
        fs::write(&marker, text.replace("\"version\":2", "\"version\":1")).expect("written");
        assert!(refused(&at("dataset")).contains("version 1"));
    }
}
