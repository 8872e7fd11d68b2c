//! Names for code addresses: which function, file and line each frame of a snapshot is.
//!
//! Runs where the binaries (or their debug files) lie, and writes the answer into the snapshot, so that everything
//! behind it needs no binary. blazesym reads symbols, DWARF and inlined calls; which file it may read is decided by our
//! own [`locate`], because names out of a file that was rebuilt since would be worse than none. One batch per module,
//! sorted by address. A frame holds a *return* address, so the call is one byte before it.
//!
//! Deliberately absent: anything fatal. What has no name keeps `module+0xoffset`, and a note says why.

mod cache;
mod locate;
mod note;

use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use culeak::snapshot::{Location, Snapshot, Symbol};

pub use cache::folder as cache_folder;
pub use note::{Note, sentences};

use cache::Cached;
use locate::Located;

use crate::progress::{Progress, Unit};

/// Where the distribution puts debug files.
const SYSTEM_DEBUG_DIR: &str = "/usr/lib/debug";
/// Addresses asked for at once; the progress bar moves between batches.
const BATCH: usize = 512;

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Searched before the system's own.
    pub debug_dirs: Vec<PathBuf>,
    /// The file system as the process sees it, when that differs from ours.
    pub root: Option<PathBuf>,
    /// Where names are kept that were looked up before.
    pub cache: Option<PathBuf>,
}

impl Places {
    fn all_debug_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = self.debug_dirs.clone();
        dirs.push(PathBuf::from(SYSTEM_DEBUG_DIR));
        dirs
    }
}

/// Fills in the symbols of every location that has none yet; the notes say which modules could not be read and why.
pub fn symbolize(snapshot: &mut Snapshot, places: &Places) -> Vec<Note> {
    let mut wanted: Vec<usize> = needed(snapshot);
    wanted.sort_by_key(|&location| {
        (
            snapshot.locations[location].module,
            snapshot.locations[location].address,
        )
    });
    let progress = Progress::over("looking up names", wanted.len() as u64, Unit::Of("addresses"));
    let debug_dirs = places.all_debug_dirs();
    let symbolizer = Symbolizer::builder()
        .enable_auto_reload(false)
        .set_debug_dirs(Some(&debug_dirs))
        .build();
    let mut notes = Vec::new();
    let module_of: Vec<Option<usize>> = snapshot.locations.iter().map(|location| location.module).collect();
    for group in wanted.chunk_by(|&a, &b| module_of[a] == module_of[b]) {
        let Some(module) = module_of[group[0]] else { continue };
        let started = snapshot.process.started_unix_ns;
        match locate::locate(&snapshot.modules[module], places, &debug_dirs, started) {
            Ok(located) => {
                notes.extend(located.note.clone());
                let folder = places.cache.as_deref();
                let build_id = &snapshot.modules[module].build_id;
                let mut cached = folder.and_then(|folder| Cached::open(folder, build_id, &located));
                let unknown = name_known(cached.as_ref(), &mut snapshot.locations, group);
                progress.advance((group.len() - unknown.len()) as u64);
                name_group(&symbolizer, &located, &mut snapshot.locations, &unknown, &progress);
                if let Some(cached) = &mut cached {
                    for &location in &unknown {
                        let location = &snapshot.locations[location];
                        cached.add(location.address, &location.symbols);
                    }
                }
                cached.into_iter().for_each(Cached::close);
            }
            Err(note) => {
                notes.push(note);
                progress.advance(group.len() as u64);
            }
        }
    }
    notes
}

/// Locations that lie in a module and have no symbols yet.
fn needed(snapshot: &Snapshot) -> Vec<usize> {
    (0..snapshot.locations.len())
        .filter(|&location| {
            let location = &snapshot.locations[location];
            location.module.is_some() && location.symbols.is_empty()
        })
        .collect()
}

/// Names what is cached, and gives the rest back.
fn name_known(cached: Option<&Cached>, locations: &mut [Location], group: &[usize]) -> Vec<usize> {
    let Some(cached) = cached else { return group.to_vec() };
    let mut unknown = group.to_vec();
    unknown.retain(|&location| {
        let location = &mut locations[location];
        match cached.names.get(&location.address) {
            Some(symbols) => location.symbols.clone_from(symbols),
            None => return true,
        }
        false
    });
    unknown
}

fn name_group(
    symbolizer: &Symbolizer,
    located: &Located,
    locations: &mut [Location],
    group: &[usize],
    progress: &Progress,
) {
    for batch in group.chunks(BATCH) {
        let mut unnamed: Vec<usize> = batch.to_vec();
        // The file with the most detail first; what it does not know, the next one may.
        for (path, debug_info) in located.attempts() {
            if unnamed.is_empty() {
                break;
            }
            let calls: Vec<u64> = unnamed
                .iter()
                .map(|&location| locations[location].address.saturating_sub(1))
                .collect();
            let Ok(found) = lookup(symbolizer, path, debug_info, &calls) else {
                continue;
            };
            unnamed = unnamed
                .into_iter()
                .zip(found)
                .filter_map(|(location, symbols)| {
                    locations[location].symbols = symbols;
                    locations[location].symbols.is_empty().then_some(location)
                })
                .collect();
        }
        progress.advance(batch.len() as u64);
    }
}

fn lookup(symbolizer: &Symbolizer, path: &Path, debug_info: bool, calls: &[u64]) -> blazesym::Result<Vec<Vec<Symbol>>> {
    let mut elf = Elf::new(path);
    elf.debug_syms = debug_info;
    let found = symbolizer.symbolize(&Source::Elf(elf), Input::VirtOffset(calls))?;
    Ok(found
        .into_iter()
        .map(|result| match result {
            Symbolized::Sym(sym) => symbols(&sym),
            Symbolized::Unknown(_) => Vec::new(),
        })
        .collect())
}

/// Inlined calls innermost first, the function that contains them last.
fn symbols(sym: &Sym) -> Vec<Symbol> {
    if sym.name.is_empty() {
        return Vec::new();
    }
    let mut symbols = Vec::with_capacity(sym.inlined.len() + 1);
    for call in sym.inlined.iter().rev() {
        symbols.push(symbol(&call.name, call.code_info.as_ref(), true));
    }
    symbols.push(symbol(&sym.name, sym.code_info.as_deref(), false));
    symbols
}

fn symbol(name: &str, code: Option<&CodeInfo>, inlined: bool) -> Symbol {
    Symbol {
        function: name.to_owned(),
        file: code.map(|code| code.to_path().to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line),
        inlined,
    }
}

#[cfg(test)]
mod tests;
