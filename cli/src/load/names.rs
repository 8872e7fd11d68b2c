//! Names of addresses in loaded snapshots: the options for them, the look-up, and its messages.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::Args;

use super::loaded::Loaded;
use super::packages;
use crate::escape::Escaped;
use crate::progress;
use crate::symbolize::{Note, Places, cache_folder, sentences, symbolize};

/// Notes already printed: many snapshots of one program miss the same modules.
static PRINTED: Mutex<BTreeSet<Note>> = Mutex::new(BTreeSet::new());

/// Prints notes again from now on: each question of `culeak mcp` has its own.
pub fn forget_notes() {
    PRINTED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// The folders of debug files that the config file names.
static DEBUG_DIRS: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Sets the folders that replace a missing `--debug-dir`; once, before the command runs.
pub fn set_debug_dirs(folders: Vec<PathBuf>) {
    DEBUG_DIRS.get_or_init(|| folders);
}

fn folder(path: &str) -> Result<PathBuf, &'static str> {
    Some(PathBuf::from(path))
        .filter(|path| path.is_dir())
        .ok_or("no such folder")
}

/// How names of addresses are looked up, for every command that shows names.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Names")]
pub struct NameArgs {
    /// Also search this folder for debug files (laid out like /usr/lib/debug); repeatable
    #[arg(long, value_name = "DIR", value_parser = folder)]
    pub debug_dir: Vec<PathBuf>,
    /// Neither read nor write the cache of names
    #[arg(long)]
    pub no_symbol_cache: bool,
}

impl NameArgs {
    /// Where to look up names; `root` is where the process sees its files.
    pub fn places(&self, root: Option<PathBuf>) -> Places {
        let debug_dirs = match self.debug_dir.is_empty() {
            true => DEBUG_DIRS.get().cloned().unwrap_or_default(),
            false => self.debug_dir.clone(),
        };
        Places {
            debug_dirs,
            root,
            cache: if self.no_symbol_cache { None } else { cache_folder() },
        }
    }

    /// Looks up the names of all frames, and prints a note for modules without names. Returns whether no module needs one.
    pub fn name_frames(&self, item: &mut Loaded) -> bool {
        let places = self.places(item.root.clone());
        progress::detail(format_args!(
            "{}: names from {} modules, debug files {}, {}",
            Escaped(&item.source),
            item.snapshot.modules.len(),
            match places.debug_dirs.as_slice() {
                [] => "in the usual folders".to_owned(),
                folders => format!("also in {}", Escaped(&listed(folders))),
            },
            match &places.cache {
                Some(folder) => format!("cache {}", Escaped(&folder.display().to_string())),
                None => "no cache".to_owned(),
            },
        ));
        let missing = places.debug_dirs.iter().filter(|folder| !folder.is_dir());
        let missing = missing.map(|folder| Note::Doubtful {
            module: format!("debug-dirs of the config file: {}", folder.display()),
            problem: "no such folder".to_owned(),
        });
        let notes = symbolize(&mut item.snapshot, &places);
        packages::add(&mut item.snapshot, item.root.as_deref());
        let is_whole = notes.is_empty();
        let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
        let new = missing.chain(notes).filter(|note| printed.insert(note.clone()));
        for note in sentences(new) {
            progress::note(format_args!("note: {}", Escaped(&note)));
        }
        is_whole
    }
}

fn listed(folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    folders.join(", ")
}
