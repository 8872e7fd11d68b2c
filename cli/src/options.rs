//! Option groups that several commands share, and the config file that supplies defaults for some of them.
//!
//! This file holds the options for names and the value parsers. Each group stands in for the code it configures: a command
//! flattens it into its own arguments. Deliberately absent: options of a single command; they are in that command's file.

pub mod config;
pub mod format;
pub mod rules;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use culeak::analysis::suppressions::Pattern;
use culeak::kind::Kind;

use crate::escape::Escaped;
use crate::load::Loaded;
use crate::progress;
use crate::symbolize::{Note, Places, cache_folder, sentences, symbolize};

/// What was said already: many snapshots of one program miss the same modules.
static SAID: Mutex<BTreeSet<Note>> = Mutex::new(BTreeSet::new());

/// How names for addresses are found. Flattened into the arguments of every command that shows names.
#[derive(Debug, Clone, Default, Args)]
pub struct NameArgs {
    /// Also look for debug files here (holding .build-id/, as in /usr/lib/debug); repeatable
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
    /// Look up all names again, and cache none
    #[arg(long)]
    pub no_symbol_cache: bool,
}

impl NameArgs {
    /// Where names of a process are looked for that sees its files under `root`.
    pub fn places(&self, root: Option<PathBuf>) -> Places {
        Places {
            debug_dirs: self.debug_dir.clone(),
            root,
            cache: if self.no_symbol_cache { None } else { cache_folder() },
        }
    }

    /// Looks up the names of all frames, and says which modules have none.
    pub fn name_frames(&self, item: &mut Loaded) {
        let notes = symbolize(&mut item.snapshot, &self.places(item.root.clone()));
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        let new = notes.into_iter().filter(|note| said.insert(note.clone()));
        for note in sentences(new) {
            progress::say(format_args!("note: {}", Escaped(&note)));
        }
    }
}

/// A kind of memory by the name it has in reports.
///
/// # Errors
/// Lists the names there are.
pub fn parse_kind(name: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    Kind::from_name(name).ok_or_else(|| format!("unknown kind of memory; expected one of: {}", names()))
}

/// The same for options; completions offer the names.
pub fn kind_parser() -> impl TypedValueParser<Value = Kind> {
    let names = Kind::ALL.iter().map(|kind| kind.name());
    PossibleValuesParser::new(names).try_map(|name| parse_kind(&name))
}

/// A pattern for stacks, as in suppressions.
///
/// # Errors
/// Says what is wrong with it, and in which column.
pub fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|(column, reason)| format!("column {column}: {reason}"))
}

/// How many rows `--top` allows: 0 allows all; without it, text is limited to 20 rows and everything else is not.
pub fn rows_shown(top: Option<usize>, in_text: bool) -> Option<usize> {
    const ROWS_IN_TEXT: usize = 20;
    match top {
        None => in_text.then_some(ROWS_IN_TEXT),
        Some(top) => (top > 0).then_some(top),
    }
}
