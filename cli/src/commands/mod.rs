//! One file per command: its options, and the order in which it does things. Here: what several of them need.

pub mod after_run;
pub mod check;
pub mod completions;
pub mod demo;
pub mod diff;
pub mod doctor;
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

use culeak::kind::Kind;

use crate::load::Loaded;
use crate::symbolize::{Places, cache_folder, symbolize};
use crate::text::inert::Inert;

/// What was said already: many snapshots of one program miss the same modules.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Looks up the names of all frames, and says which modules have none.
pub fn name_frames(item: &mut Loaded, debug_dirs: &[PathBuf]) {
    let places = Places {
        debug_dirs: debug_dirs.to_vec(),
        root: item.root.clone(),
        cache: cache_folder(),
        quiet: false,
    };
    let notes = symbolize(&mut item.snapshot, &places);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    for note in notes {
        if said.insert(note.clone()) {
            eprintln!("culeak: note: {}", Inert(&note));
        }
    }
}

/// A kind of memory by the name it has in reports.
///
/// # Errors
/// Lists the names there are.
pub fn parse_kind(name: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    Kind::from_name(name).ok_or_else(|| format!("no such kind of memory; there are {}", names()))
}
