//! Names for code addresses: function, file and line of each frame of a snapshot.
//!
//! Runs where the binaries (or their debug files) are, and writes the names into the snapshot, so that later stages need no
//! binary. blazesym reads symbols, DWARF and inlined calls; [`locate`] decides which files it may read, because names from a
//! rebuilt file would be wrong. Addresses are grouped by module and sorted. A frame holds a *return* address, so the call is
//! one byte before it.
//!
//! Every function has one name, the qualified one. Debug information with line tables only, and that of lambdas, contains only
//! the last part of a name; the ELF symbol supplies the rest. An inlined function has no symbol at that address, and takes the
//! name that it has elsewhere in the same source file.
//!
//! Deliberately absent: fatal errors. An address without a name is shown as `module+0xoffset`, and a note says why. Files are
//! read in a child process ([`child`]), since a damaged one may crash its reader.

mod cache;
mod child;
pub mod jit;
pub mod locate;
mod note;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use culeak::analysis::function_name::plain;
use culeak::snapshot::{Location, Module, Snapshot, Symbol};

pub use cache::{folder as cache_folder, usual_folder as usual_cache_folder};
pub use child::{COMMAND, answer};
pub use locate::Places;
pub use note::{Note, sentences};

use cache::Cached;
use child::{ChildReader, Unanswered};
use locate::Located;

use crate::progress::{Progress, Unit};

/// Where distributions install debug files.
const SYSTEM_DEBUG_DIR: &str = "/usr/lib/debug";
/// Addresses per request; the progress bar moves between requests.
const BATCH: usize = 512;

/// Whether call sites in this file have lines; `None` if it is no ELF file.
pub fn has_lines(file: &Path, debug_dirs: &[PathBuf]) -> Option<bool> {
    locate::has_lines(file, &with_system(debug_dirs))
}

/// The separate debug file of the file with this build id.
pub fn debug_file(path: &Path, build_id: &str, debug_dirs: &[PathBuf]) -> Option<PathBuf> {
    let module = Module {
        path: path.to_str()?.to_owned(),
        build_id: build_id.to_owned(),
        bias: 0,
        start: 0,
        end: 0,
        first_seen_ns: 0,
        unloaded_ns: None,
        bare: false,
    };
    let located = locate::locate(&module, &Places::default(), &with_system(debug_dirs), 0);
    located.ok()?.debug
}

fn with_system(debug_dirs: &[PathBuf]) -> Vec<PathBuf> {
    [debug_dirs, &[SYSTEM_DEBUG_DIR.into()]].concat()
}

/// Adds symbols to every location that has none; the notes say which modules could not be read, and why.
pub fn symbolize(snapshot: &mut Snapshot, places: &Places) -> Vec<Note> {
    for calls in [snapshot.objects.calls_mut(), snapshot.segments.calls_mut()] {
        for kernel in calls.iter_mut().filter_map(|call| call.kernel.as_mut()) {
            *kernel = culeak_holders::demangle::demangled(kernel);
        }
    }
    let mut wanted: Vec<usize> = needed(snapshot);
    wanted.sort_by_key(|&location| {
        (
            snapshot.locations[location].module,
            snapshot.locations[location].address,
        )
    });
    let progress = Progress::over("looking up names", wanted.len() as u64, Unit::Of("addresses"));
    let debug_dirs = with_system(&places.debug_dirs);
    let mut reader = ChildReader::default();
    let mut notes = jit::name(snapshot, places);
    let module_of: Vec<Option<usize>> = snapshot.locations.iter().map(|location| location.module).collect();
    for group in wanted.chunk_by(|&a, &b| module_of[a] == module_of[b]) {
        let Some(module) = module_of[group[0]] else { continue };
        let started = snapshot.process.started_unix_ns;
        match locate::locate(&snapshot.modules[module], places, &debug_dirs, started) {
            Ok(located) => {
                notes.extend(located.note.clone());
                snapshot.modules[module].bare = located.bare;
                let folder = places.cache.as_deref();
                let build_id = &snapshot.modules[module].build_id;
                let mut cached = folder.and_then(|folder| Cached::open(folder, build_id, &located));
                let unknown = name_known(cached.as_ref(), &mut snapshot.locations, group);
                progress.advance((group.len() - unknown.len()) as u64);
                let problem = name_group(&mut reader, &located, &mut snapshot.locations, &unknown, &progress);
                notes.extend(problem.iter().map(|problem| Note::Doubtful {
                    module: snapshot.modules[module].path.clone(),
                    problem: format!("{problem}; its names and lines may be missing"),
                }));
                // What is missing may be there next time: its reader may have had too little memory.
                if let Some(cached) = cached.as_mut().filter(|_| problem.is_none()) {
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

/// Locations in a module that have no symbols yet.
fn needed(snapshot: &Snapshot) -> Vec<usize> {
    (0..snapshot.locations.len())
        .filter(|&location| {
            let location = &snapshot.locations[location];
            location.module.is_some() && location.symbols.is_empty()
        })
        .collect()
}

/// Adds cached symbols, and returns the locations without any.
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

const DEADLY: &str = "is damaged, or needs too much time or memory to read";

/// Looks up the symbols of locations; returns why some may be missing.
fn name_group(
    reader: &mut ChildReader,
    located: &Located,
    locations: &mut [Location],
    group: &[usize],
    progress: &Progress,
) -> Option<String> {
    let mut problem = None;
    let mut is_safe = |path: &Path| {
        locate::has_unsafe_links(path).map_or_else(
            |error| {
                problem = Some(format!("its links to debug files cannot be read ({error})"));
                false
            },
            |unsafe_links| !unsafe_links,
        )
    };
    let attempts: Vec<(&Path, bool)> = match group {
        // All symbols were cached.
        [] => Vec::new(),
        _ => located
            .attempts()
            .filter(|(path, dwarf)| !dwarf || is_safe(path))
            .collect(),
    };
    for group in group.chunks(BATCH) {
        let mut unnamed: Vec<usize> = group.to_vec();
        // The file with the most detail comes first; the next may have names that it lacks.
        for &(path, debug_info) in &attempts {
            if unnamed.is_empty() {
                break;
            }
            let calls: Vec<u64> = unnamed
                .iter()
                .map(|&location| locations[location].address.saturating_sub(1))
                .collect();
            let mut found = match reader.lookup(path, debug_info, &calls) {
                Ok(found) => found,
                Err(why) => {
                    problem = problem.or_else(|| (why == Unanswered::Died).then(|| DEADLY.to_owned()));
                    continue;
                }
            };
            if debug_info {
                qualify(reader, located, &calls, &mut found);
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
    problem
}

/// Replaces names of which debug information has only the last part by those of the ELF symbols.
fn qualify(reader: &mut ChildReader, located: &Located, calls: &[u64], found: &mut [Vec<Symbol>]) {
    let is_short = |symbols: &Vec<Symbol>| symbols.last().is_some_and(|symbol| is_unqualified(&symbol.function));
    // A separate debug file has more symbols than the module.
    for path in located.debug.iter().chain(&located.module) {
        let short: Vec<usize> = (0..found.len()).filter(|&nth| is_short(&found[nth])).collect();
        if short.is_empty() {
            return;
        }
        let addresses: Vec<u64> = short.iter().map(|&nth| calls[nth]).collect();
        let Ok(names) = reader.lookup(path, false, &addresses) else {
            continue;
        };
        for (nth, name) in short.into_iter().zip(names) {
            if let (Some(symbol), Some(name)) = (found[nth].last_mut(), name.into_iter().next())
                && is_last_part(&symbol.function, &name.function)
            {
                // Parts that the compiler split off belong to the function.
                let name = name.function.split(" [clone ").next();
                symbol.function = name.unwrap_or_default().to_owned();
            }
        }
    }
}

/// Whether a name has neither namespace nor parameters, as in debug information without linkage names.
fn is_unqualified(function: &str) -> bool {
    let bare = plain(function);
    let rest = function.strip_prefix(bare.as_ref());
    !bare.contains("::") && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('<'))
}

/// Whether `short` is the last part of `long`.
fn is_last_part(short: &str, long: &str) -> bool {
    let (short, long) = (plain(short), plain(long));
    long == short
        || long
            .strip_suffix(short.as_ref())
            .is_some_and(|before| before.ends_with("::"))
}

/// Gives inlined Rust functions the qualified name that the function has elsewhere in its source file. Only Rust's debug
/// information omits namespaces; in C++ a short name means a function in the global namespace.
fn name_inlined(locations: &mut [Location], group: &[usize]) {
    let key = |symbol: &Symbol| {
        let file = symbol.file.as_ref().filter(|file| file.ends_with(".rs"))?;
        // Closures are numbered per function, so their names are ambiguous.
        Some((file.clone(), last_part(&symbol.function))).filter(|(_, name)| !name.starts_with('{'))
    };
    let mut known: HashMap<(String, String), Option<String>> = HashMap::new();
    let symbols = group.iter().flat_map(|&location| &locations[location].symbols);
    for symbol in symbols.filter(|symbol| !is_unqualified(&symbol.function)) {
        let Some(key) = key(symbol) else { continue };
        let entry = known.entry(key).or_insert_with(|| Some(symbol.function.clone()));
        // Several functions have that last part, so the name is ambiguous.
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

/// The symbols at each of several addresses; empty if unknown.
type Names = Vec<Vec<Symbol>>;

/// Reads names from files.
struct Reader(Symbolizer);

impl Reader {
    fn new() -> Reader {
        let builder = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_demangling(false)
            // `locate` has found the debug files, and checked those that a file links to.
            .set_debug_dirs::<[&Path; 0], &Path>(Some([]));
        Reader(builder.build())
    }

    /// `None` if the file cannot be read.
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
    // More nested inlined calls than any compiler generates.
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
        function: culeak_holders::demangle::demangled(name),
        file: code.map(|code| code.to_path().to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line),
        inlined,
    }
}

#[cfg(test)]
pub mod tests;
