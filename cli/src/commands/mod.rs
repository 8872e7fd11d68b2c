//! One file per command: its options, and the order in which it does things. Here: what several of them need.

pub mod after_run;
pub mod check;
pub mod completions;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod environment;
pub mod export;
pub mod list;
pub mod live;
pub mod man;
pub mod record;
pub mod report;
pub mod rules;
pub mod run;
pub mod shim_path;
pub mod snapshot;
pub mod trend;

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
