//! Small files of a folder, put together.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foldhash::HashSet;

use super::{Problem, Step, Store};
use crate::file::Keys;
use crate::rows::Rows;
use crate::schema::{Keep, Table, tables};

/// Rows of a merged file, about.
const LARGE: usize = 1 << 20;
/// The number of small files in a folder from which on they are merged without `--merge`.
pub(super) const MANY: usize = 32;

impl Store {
    /// Puts small files of a folder together. `all`: wherever there are two; otherwise where there are many. Returns the number of
    /// files that disappeared.
    ///
    /// # Errors
    /// As [`Store::add`].
    pub fn merge(&mut self, all: bool) -> Result<usize, Problem> {
        let _lock = self.lock()?;
        self.recover()?;
        let mut fewer = 0;
        for table in tables() {
            let mut by_folder: BTreeMap<String, Vec<(PathBuf, usize)>> = BTreeMap::new();
            let mut files = self.all_files(table, "", table.name)?;
            files.retain(|(path, _)| path.extension().is_some_and(|extension| extension == "parquet"));
            for (path, folder) in files {
                let rows = self.footer(&path)?.rows;
                if rows < LARGE / 2 {
                    by_folder.entry(folder).or_default().push((path, rows));
                }
            }
            for (folder, small) in by_folder {
                if small.len() < if all { 2 } else { MANY } {
                    continue;
                }
                let mut part: Vec<PathBuf> = Vec::new();
                let mut rows = 0;
                for (nth, (path, count)) in small.iter().enumerate() {
                    part.push(path.clone());
                    rows += count;
                    if rows >= LARGE || nth + 1 == small.len() {
                        fewer += part.len().saturating_sub(1);
                        self.merge_files(table, &folder, &std::mem::take(&mut part))?;
                        rows = 0;
                    }
                }
            }
        }
        Ok(fewer)
    }

    fn merge_files(&mut self, table: &'static Table, folder: &str, paths: &[PathBuf]) -> Result<(), Problem> {
        if paths.len() < 2 {
            return Ok(());
        }
        let (mut rows, mut keys) = (Rows::new(table), Keys::new());
        let mut stacks: HashSet<(String, String)> = HashSet::default();
        for path in paths {
            let part = self.read(table, path)?;
            keys.extend(self.footer(path)?.keys);
            match table.keep {
                Keep::Forever => {
                    let fresh: Vec<bool> = (0..part.len())
                        .map(|row| stacks.insert((part.text(0, row).to_owned(), part.text(1, row).to_owned())))
                        .collect();
                    rows.extend(&part, |row| fresh[row]);
                }
                _ => rows.extend(&part, |_| true),
            }
        }
        let mut step = Step::default();
        let written = self.write(&rows, folder, &keys, &mut step);
        let relative = |path: &PathBuf| path.strip_prefix(&self.folder).unwrap_or(path).to_owned();
        let name = step.appear.first().map(|(_, name)| name.clone());
        step.disappear = paths
            .iter()
            .map(relative)
            .filter(|path| Some(path) != name.as_ref())
            .collect();
        self.finish(written, step)
    }
}
