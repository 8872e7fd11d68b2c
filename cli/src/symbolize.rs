//! Names for code addresses: which function, file and line each frame of a snapshot is.
//!
//! Runs where the binaries (or their debug files) lie, and writes the answer into the snapshot, so that everything
//! behind it needs no binary. blazesym reads symbols, DWARF and inlined calls; which file it may read is decided by our
//! own [`locate`], because names out of a file that was rebuilt since would be worse than none. One group per module,
//! sorted by address. A frame holds a *return* address, so the call is one byte before it.
//!
//! One function has one name, the qualified one. Debug information with lines alone, and that of lambdas, has the last part
//! of a name; then the ELF symbol says the rest. A function that was inlined has no symbol at that address, and takes the
//! name that it has elsewhere in the same source file.
//!
//! Deliberately absent: anything fatal. What has no name keeps `module+0xoffset`, and a note says why; and what a damaged file
//! does to its reader happens in another process ([`apart`]).

mod apart;
mod cache;
mod demangle;
mod locate;
mod note;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use culeak::analysis::function_name::plain;
use culeak::snapshot::{Location, Snapshot, Symbol};

pub use apart::{COMMAND, answer};
pub use cache::folder as cache_folder;
pub use note::{Note, sentences};

use apart::{Asking, Unanswered};
use cache::Cached;
use locate::Located;

use crate::progress::{Progress, Unit};

/// Where the distribution puts debug files.
const SYSTEM_DEBUG_DIR: &str = "/usr/lib/debug";
/// Addresses asked for at once; the progress bar moves between groups.
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
    let mut asking = Asking::default();
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
                if !name_group(&mut asking, &located, &mut snapshot.locations, &unknown, &progress) {
                    notes.push(Note::Doubtful {
                        module: snapshot.modules[module].path.clone(),
                        problem: "is damaged, or takes too much to be read: names and lines of it may be missing"
                            .to_owned(),
                    });
                }
                if let Some(cached) = &mut cached {
                    for &location in &unknown {
                        let location = &snapshot.locations[location];
                        cached.add(location.address, &location.symbols);
                    }
                }
                cached.into_iter().for_each(Cached::close);
                name_inlined(&mut snapshot.locations, group);
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

/// Names what has no name yet; false when a file was too much for its reader.
fn name_group(
    asking: &mut Asking,
    located: &Located,
    locations: &mut [Location],
    group: &[usize],
    progress: &Progress,
) -> bool {
    let mut survived = true;
    let attempts: Vec<(&Path, bool)> = match group {
        // All was in the cache.
        [] => Vec::new(),
        _ => located
            .attempts()
            .filter(|(path, dwarf)| !dwarf || !locate::leads_astray(path))
            .collect(),
    };
    for group in group.chunks(BATCH) {
        let mut unnamed: Vec<usize> = group.to_vec();
        // The file with the most detail first; what it does not know, the next one may.
        for &(path, debug_info) in &attempts {
            if unnamed.is_empty() {
                break;
            }
            let calls: Vec<u64> = unnamed
                .iter()
                .map(|&location| locations[location].address.saturating_sub(1))
                .collect();
            let mut found = match asking.lookup(path, debug_info, &calls) {
                Ok(found) => found,
                Err(why) => {
                    survived &= why != Unanswered::Died;
                    continue;
                }
            };
            if debug_info {
                qualify(asking, located, &calls, &mut found);
            }
            unnamed = unnamed
                .into_iter()
                .zip(found)
                .filter_map(|(location, symbols)| {
                    locations[location].symbols = symbols;
                    locations[location].symbols.is_empty().then_some(location)
                })
                .collect();
        }
        progress.advance(group.len() as u64);
    }
    survived
}

/// Gives functions whose debug information has only the last part of their name the name of their ELF symbol.
fn qualify(asking: &mut Asking, located: &Located, calls: &[u64], found: &mut [Vec<Symbol>]) {
    let is_short = |symbols: &Vec<Symbol>| symbols.last().is_some_and(|symbol| is_unqualified(&symbol.function));
    // Where a separate debug file is, it has more symbols than the module.
    for path in located.debug.iter().chain(&located.module) {
        let short: Vec<usize> = (0..found.len()).filter(|&nth| is_short(&found[nth])).collect();
        if short.is_empty() {
            return;
        }
        let addresses: Vec<u64> = short.iter().map(|&nth| calls[nth]).collect();
        let Ok(names) = asking.lookup(path, false, &addresses) else {
            continue;
        };
        for (nth, name) in short.into_iter().zip(names) {
            if let (Some(symbol), Some(name)) = (found[nth].last_mut(), name.into_iter().next())
                && is_last_part(&symbol.function, &name.function)
            {
                // Parts that the compiler split off are the function's, too.
                let name = name.function.split(" [clone ").next();
                symbol.function = name.unwrap_or_default().to_owned();
            }
        }
    }
}

/// Neither a name space nor parameters: what debug information says without a linkage name.
fn is_unqualified(function: &str) -> bool {
    let bare = plain(function);
    let behind = function.strip_prefix(bare.as_ref());
    !bare.contains("::") && behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('<'))
}

/// Whether the longer name is one of a function that is called so.
fn is_last_part(short: &str, long: &str) -> bool {
    let (short, long) = (plain(short), plain(long));
    long == short
        || long
            .strip_suffix(short.as_ref())
            .is_some_and(|before| before.ends_with("::"))
}

/// Inlined functions of Rust take the qualified name that one function of their source file has elsewhere. Only there has
/// debug information names without name spaces; in C++ a short name is that of a function outside all of them.
fn name_inlined(locations: &mut [Location], group: &[usize]) {
    let key = |symbol: &Symbol| {
        let file = symbol.file.as_ref().filter(|file| file.ends_with(".rs"))?;
        // Closures are numbered in each function, so their names say nothing.
        Some((file.clone(), last_part(&symbol.function))).filter(|(_, name)| !name.starts_with('{'))
    };
    let mut known: HashMap<(String, String), Option<String>> = HashMap::new();
    let symbols = group.iter().flat_map(|&location| &locations[location].symbols);
    for symbol in symbols.filter(|symbol| !is_unqualified(&symbol.function)) {
        let Some(key) = key(symbol) else { continue };
        let entry = known.entry(key).or_insert_with(|| Some(symbol.function.clone()));
        // Of several with that last part, none is meant.
        entry.take_if(|name| *name != symbol.function);
    }
    for &location in group {
        for symbol in &mut locations[location].symbols {
            if is_unqualified(&symbol.function)
                && let Some(Some(name)) = key(symbol).and_then(|key| known.get(&key))
            {
                symbol.function.clone_from(name);
            }
        }
    }
}

fn last_part(function: &str) -> String {
    let bare = plain(function);
    bare.rsplit("::").next().unwrap_or_default().to_owned()
}

/// The symbols at each of some addresses; none where nothing is known.
type Names = Vec<Vec<Symbol>>;

/// Reads names out of files.
struct Reader(Symbolizer);

impl Reader {
    fn new() -> Reader {
        let builder = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_demangling(false)
            // Debug files were located before; of those that a file's own links name, see `locate`.
            .set_debug_dirs::<[&Path; 0], &Path>(Some([]));
        Reader(builder.build())
    }

    /// `None`: the file cannot be read so.
    fn lookup(&self, path: &Path, debug_info: bool, calls: &[u64]) -> Option<Names> {
        let mut elf = Elf::new(path);
        elf.debug_syms = debug_info;
        let found = self.0.symbolize(&Source::Elf(elf), Input::VirtOffset(calls)).ok()?;
        let names = found.into_iter().map(|result| match result {
            Symbolized::Sym(sym) => symbols(&sym),
            Symbolized::Unknown(_) => Vec::new(),
        });
        Some(names.collect())
    }
}

/// Inlined calls innermost first, the function that contains them last.
fn symbols(sym: &Sym) -> Vec<Symbol> {
    if sym.name.is_empty() {
        return Vec::new();
    }
    // More calls inlined into each other than any compiler writes.
    const INLINED: usize = 256;
    let inlined = &sym.inlined[sym.inlined.len().saturating_sub(INLINED)..];
    let mut symbols = Vec::with_capacity(inlined.len() + 1);
    for call in inlined.iter().rev() {
        symbols.push(symbol(&call.name, call.code_info.as_ref(), true));
    }
    symbols.push(symbol(&sym.name, sym.code_info.as_deref(), false));
    symbols
}

fn symbol(name: &str, code: Option<&CodeInfo>, inlined: bool) -> Symbol {
    Symbol {
        function: demangle::demangled(name),
        file: code.map(|code| code.to_path().to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line),
        inlined,
    }
}

#[cfg(test)]
pub mod tests;
