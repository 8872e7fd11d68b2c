//! Option groups that several commands share, and the config file that supplies defaults for some of them.
//!
//! This file contains the options for names and the value parsers. A command flattens a group into its own arguments.
//! Deliberately absent: options of a single command; they are in that command's file, unless a module below the commands reads
//! them, as [`server`].

pub mod categories;
pub mod config;
pub mod display;
pub mod format;
pub mod groups;
pub mod output;
pub mod refusals;
pub mod rules;
pub mod selection;
pub mod server;
pub mod view;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use culeak::analysis::suppressions::Pattern;
use culeak::kind::Kind;
use culeak::point::Point;

use crate::escape::Escaped;
use crate::load::{Loaded, packages};
use crate::progress;
use crate::symbolize::{Note, Places, cache_folder, sentences, symbolize};
use crate::text::units;

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

fn names(kinds: impl Iterator<Item = Kind>) -> String {
    kinds.map(Kind::name).collect::<Vec<_>>().join(", ")
}

/// Reads one of these names.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    names: impl Iterator<Item = &'static str>,
    from_name: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| from_name(&name).ok_or("no such value"))
}

/// Parses a pattern for stacks, as in suppressions.
///
/// # Errors
/// The pattern is invalid; the message names the column.
pub fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|(column, reason)| format!("column {column}: {reason}"))
}

/// Reads a point in time, or what else is read from text.
///
/// # Errors
/// A sentence of its reader.
pub fn parsed<T: FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

/// Parses a moment: a time since the start, a mark, `start`, `end` or `exit`.
///
/// # Errors
/// The text is something else; the message lists what is allowed.
pub fn parse_moment(text: &str) -> Result<Point, String> {
    match text {
        "start" | "0" | "0s" => return Ok(Point::Time(0)),
        _ => {}
    }
    match text.parse() {
        Ok(Point::Peak) | Err(_) => {
            Err("expected a time since the start such as 12.5s, mark:NAME, start, end or exit".to_owned())
        }
        Ok(point) => Ok(point),
    }
}

/// Parses a time between two readings.
///
/// # Errors
/// The text is no time, or one that is not allowed.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(86_400);
    (allowed.contains(&time).then_some(time)).ok_or_else(|| "expected a time from 100ms to 1d".to_owned())
}

/// Reads a file of rules; larger files than any person writes are refused.
///
/// # Errors
/// The file cannot be read or is too large.
pub fn read_rules(path: &Path) -> io::Result<String> {
    const MOST: u64 = 16 << 20;
    let mut text = String::new();
    let read = File::open(path)?.take(MOST + 1).read_to_string(&mut text)?;
    if read as u64 > MOST {
        return Err(io::Error::other("it is larger than 16 MiB; name a file of rules"));
    }
    Ok(text)
}

/// How many rows `--top` allows: 0 allows all; without it, text is limited to 20 rows and everything else is not.
pub fn rows_shown(top: Option<usize>, in_text: bool) -> Option<usize> {
    const ROWS_IN_TEXT: usize = 20;
    match top {
        None => in_text.then_some(ROWS_IN_TEXT),
        Some(top) => (top > 0).then_some(top),
    }
}
