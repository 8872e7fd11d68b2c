//! Names for stacks, looked up once each, on a separate thread.
//!
//! Reading the debug information of a large library takes seconds. The view shows bytes and counts at once, and names as
//! they arrive; the largest stacks of each reading are named first. A named stack has what the report shows of it: its
//! call site, its frames, and the owner of its pool.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use culeak::analysis::function_name::plain;
use culeak::analysis::site::{CallStack, CallStacks, Fingerprint, Frame, NO_STACK, Role};
use culeak::snapshot::{Location, Snapshot, Stack, Symbol};

use super::Message;
use super::reading::Reading;
use super::sums::StackKey;
use crate::escape::Escaped;
use crate::symbolize::{Note, Places, sentences, symbolize};
use crate::text::parts;

/// A stack with the names that the view shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// Groups stacks as the report does.
    pub site: Fingerprint,
    pub fingerprint: Fingerprint,
    /// Function, and file with line.
    pub label: Arc<str>,
    pub place: Arc<str>,
    pub pool: bool,
    pub allocator: Option<&'static str>,
    pub library: Option<&'static str>,
    /// Innermost first. Thousands of stacks share their frames.
    pub frames: Vec<Arc<NamedFrame>>,
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedFrame {
    pub name: String,
    pub place: String,
    /// Part of the default view.
    pub shown: bool,
    pub users_own: bool,
    /// The text that a filter matches, in lower case.
    pub words: String,
}

pub type Names = foldhash::HashMap<StackKey, Named>;

/// Interned frames.
#[derive(Default)]
struct Frames(HashSet<Arc<NamedFrame>>);

impl Frames {
    fn keep(&mut self, frame: NamedFrame) -> Arc<NamedFrame> {
        match self.0.get(&frame) {
            Some(known) => Arc::clone(known),
            None => {
                let frame = Arc::new(frame);
                self.0.insert(Arc::clone(&frame));
                frame
            }
        }
    }

    fn named(&mut self, stack: &CallStack) -> Named {
        let site = stack.site();
        let shown: Vec<*const Frame> = stack.shown().map(std::ptr::from_ref).collect();
        let frames = stack.frames.iter();
        Named {
            site: stack.site_fingerprint,
            fingerprint: stack.fingerprint,
            label: site
                .map_or_else(|| NO_STACK.to_owned(), |site| parts::short_name(&site.name()))
                .into(),
            place: site
                .and_then(Frame::short_place)
                .map_or_else(String::new, |place| Escaped(&place).to_string())
                .into(),
            pool: stack.pool,
            allocator: stack.allocator,
            library: stack.library,
            frames: frames
                .map(|frame| self.keep(named_frame(frame, shown.contains(&std::ptr::from_ref(frame)))))
                .collect(),
            truncated: stack.truncated,
        }
    }

    /// Names every stack of a snapshot, and memory without a stack.
    fn name_all(&mut self, snapshot: &Snapshot, keys: &[StackKey]) -> Names {
        let stacks = CallStacks::of(snapshot);
        let mut names: Names = (0..snapshot.stacks.len())
            .map(|stack| (keys[stack], self.named(stacks.get(Some(stack)))))
            .collect();
        names.insert(StackKey::NONE, self.named(stacks.get(None)));
        names
    }
}

fn named_frame(frame: &Frame, shown: bool) -> NamedFrame {
    let place = parts::long_place(frame);
    let inlined = if frame.inlined { " (inlined)" } else { "" };
    let name = frame.name();
    NamedFrame {
        words: format!("{name}\n{place}\n{}", frame.module).to_lowercase(),
        name: Escaped(&plain(&name)).to_string(),
        place: format!("{place}{inlined}"),
        shown,
        users_own: frame.role == Role::User,
    }
}

/// Names every stack of a snapshot at once, for tests.
#[cfg(test)]
pub fn all(snapshot: &Snapshot, keys: &[StackKey]) -> Names {
    Frames::default().name_all(snapshot, keys)
}

/// Stacks to name, the largest first, in a snapshot without any other table.
pub struct Unnamed {
    pub snapshot: Snapshot,
    pub keys: Vec<StackKey>,
    pub root: Option<PathBuf>,
}

/// The stacks that were sent to the naming thread.
#[derive(Default)]
pub struct Asked(HashSet<StackKey>);

impl Asked {
    /// Takes the new stacks out of a snapshot. `keys`: the keys of its stacks.
    pub fn pick(
        &mut self,
        snapshot: &mut Snapshot,
        keys: &[StackKey],
        reading: &Reading,
        root: Option<&PathBuf>,
    ) -> Option<Unnamed> {
        // Every answer names memory without a stack, so the first request is sent even if there is no stack.
        let first = self.0.insert(StackKey::NONE);
        let mut fresh: Vec<usize> = (0..keys.len()).filter(|&stack| self.0.insert(keys[stack])).collect();
        if fresh.is_empty() && !first {
            return None;
        }
        let mut sizes: HashMap<StackKey, u64> = HashMap::new();
        for (key, live) in &reading.sums.tallies {
            *sizes.entry(key.stack).or_default() += live.tally.bytes;
        }
        fresh.sort_by_key(|&stack| std::cmp::Reverse(sizes.get(&keys[stack]).copied()));
        let stacks: Vec<Stack> = fresh
            .iter()
            .map(|&stack| std::mem::replace(&mut snapshot.stacks[stack], EMPTY))
            .collect();
        let picked = Snapshot {
            locations: std::mem::take(&mut snapshot.locations),
            modules: std::mem::take(&mut snapshot.modules),
            stacks,
            ..nothing(snapshot)
        };
        Some(Unnamed {
            keys: fresh.iter().map(|&stack| keys[stack]).collect(),
            snapshot: picked,
            root: root.cloned(),
        })
    }
}

const EMPTY: Stack = Stack {
    frames: Vec::new(),
    truncated: false,
};

/// A snapshot of the same process without any tables.
fn nothing(of: &Snapshot) -> Snapshot {
    Snapshot {
        taken: of.taken.clone(),
        process: of.process.clone(),
        losses: of.losses.clone(),
        ..Snapshot::empty()
    }
}

/// Stacks per answer: few in the first one, so that the view shows names early.
const FIRST: usize = 32;
const REST: usize = 4096;

/// The naming thread: answers until the sender of requests is gone.
pub fn serve(asked: &Receiver<Unnamed>, answers: &Sender<Message>, places: impl Fn(Option<PathBuf>) -> Places) {
    let mut symbols = SymbolCache::default();
    while let Ok(unnamed) = asked.recv() {
        let places = places(unnamed.root.clone());
        let keys = &unnamed.keys;
        let (mut from, mut group) = (0, FIRST);
        loop {
            let to = keys.len().min(from + group);
            let (names, notes) = symbols.name(&unnamed, from..to, &places);
            if answers.send(Message::Names(names, notes)).is_err() {
                return;
            }
            if to == keys.len() {
                break;
            }
            (from, group) = (to, REST);
        }
    }
}

/// Symbols by module (path and build id) and address. Misses are cached too.
#[derive(Default)]
struct SymbolCache {
    modules: BTreeMap<(String, String), u32>,
    symbols: HashMap<(u32, u64), Vec<Symbol>>,
    notes: HashSet<Note>,
    frames: Frames,
}

impl SymbolCache {
    fn name(&mut self, unnamed: &Unnamed, which: std::ops::Range<usize>, places: &Places) -> (Names, Vec<String>) {
        let all = &unnamed.snapshot;
        let modules: Vec<u32> = all
            .modules
            .iter()
            .map(|module| {
                let next = self.modules.len() as u32;
                *self
                    .modules
                    .entry((module.path.clone(), module.build_id.clone()))
                    .or_insert(next)
            })
            .collect();
        let mut part = Snapshot {
            modules: all.modules.clone(),
            ..nothing(all)
        };
        // Only the locations of these stacks, renumbered.
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        for stack in &all.stacks[which.clone()] {
            let frames = stack.frames.iter().map(|&frame| {
                *numbers.entry(frame).or_insert_with(|| {
                    part.locations.push(all.locations[frame].clone());
                    part.locations.len() - 1
                })
            });
            let frames = frames.collect();
            part.stacks.push(Stack {
                frames,
                truncated: stack.truncated,
            });
        }
        let page = |location: &Location| Some((modules[location.module?], location.address));
        let mut unknown = Snapshot {
            modules: std::mem::take(&mut part.modules),
            ..nothing(all)
        };
        let is_unknown = |location: &&Location| page(location).is_some_and(|page| !self.symbols.contains_key(&page));
        unknown.locations = part.locations.iter().filter(is_unknown).cloned().collect();
        let mut notes = symbolize(&mut unknown, places);
        notes.retain(|note| self.notes.insert(note.clone()));
        for location in std::mem::take(&mut unknown.locations) {
            if let Some(page) = page(&location) {
                self.symbols.insert(page, location.symbols);
            }
        }
        for location in &mut part.locations {
            if let Some(symbols) = page(location).and_then(|page| self.symbols.get(&page)) {
                location.symbols.clone_from(symbols);
            }
        }
        part.modules = unknown.modules;
        (self.frames.name_all(&part, &unnamed.keys[which]), sentences(notes))
    }
}
