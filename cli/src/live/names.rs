//! Names for stacks, looked up once each and remembered, on a thread of their own.
//!
//! Reading debug information of a large library takes seconds; the view shows bytes and counts at once, and names as they
//! come. The largest stacks of each look are named first. What comes out is what the report shows of a stack: its site,
//! its frames, whose pool it is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use culeak::analysis::function_name::plain;
use culeak::analysis::site::{CallStack, CallStacks, Fingerprint, Frame, Role};
use culeak::snapshot::{Location, Snapshot, Stack, Symbol};

use super::Message;
use super::reading::Reading;
use super::sums::StackKey;
use crate::escape::Escaped;
use crate::symbolize::{Note, Places, sentences, symbolize};
use crate::text::parts;

/// A stack as people read it.
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
    /// Innermost first. Thousands of stacks share them.
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
    /// What a filter matches, in small letters.
    pub words: String,
}

pub type Names = foldhash::HashMap<StackKey, Named>;

/// Equal frames, kept once.
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
                .map_or_else(|| "(no stack)".to_owned(), |site| parts::short_name(&site.name()))
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

    /// Names every stack of a snapshot, and memory that was recorded without one.
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
    let place = match frame.place() {
        Some(place) => place,
        None if frame.function.is_some() => frame.module_name().to_owned(),
        None => String::new(),
    };
    let inlined = if frame.inlined { " (inlined)" } else { "" };
    let name = frame.name();
    NamedFrame {
        words: format!("{name}\n{place}\n{}", frame.module).to_lowercase(),
        name: Escaped(&plain(&name)).to_string(),
        place: format!("{}{inlined}", Escaped(&place)),
        shown,
        users_own: frame.role == Role::User,
    }
}

/// Names every stack of a snapshot at once, for tests.
#[cfg(test)]
pub fn all(snapshot: &Snapshot, keys: &[StackKey]) -> Names {
    Frames::default().name_all(snapshot, keys)
}

/// Stacks nobody has asked about yet, the largest first, in a snapshot with nothing else in it.
pub struct Unnamed {
    pub snapshot: Snapshot,
    pub keys: Vec<StackKey>,
    pub root: Option<PathBuf>,
}

/// Remembers which stacks were handed to the thread that names them.
#[derive(Default)]
pub struct Asked(HashSet<StackKey>);

impl Asked {
    /// The stacks of a snapshot that are new; `keys`: of these.
    pub fn pick(
        &mut self,
        snapshot: &mut Snapshot,
        keys: &[StackKey],
        reading: &Reading,
        root: Option<&PathBuf>,
    ) -> Option<Unnamed> {
        // The name of memory without a stack is an answer to any question, the first one too if there is no stack at all.
        let first = self.0.insert(StackKey::NONE);
        let mut fresh: Vec<usize> = (0..keys.len()).filter(|&stack| self.0.insert(keys[stack])).collect();
        if fresh.is_empty() && !first {
            return None;
        }
        let mut sizes: HashMap<StackKey, u64> = HashMap::new();
        for (key, amount) in &reading.sums.sums {
            *sizes.entry(key.stack).or_default() += amount.tally.bytes;
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

/// So many stacks are named before the view hears of them: few at first, since somebody is waiting.
const FIRST: usize = 32;
const REST: usize = 4096;

/// The naming thread: answers until nobody asks any more.
pub fn serve(asked: &Receiver<Unnamed>, answers: &Sender<Message>, places: impl Fn(Option<PathBuf>) -> Places) {
    let mut book = Book::default();
    while let Ok(unnamed) = asked.recv() {
        let places = places(unnamed.root.clone());
        let keys = &unnamed.keys;
        let (mut from, mut group) = (0, FIRST);
        loop {
            let to = keys.len().min(from + group);
            let (names, notes) = book.name(&unnamed, from..to, &places);
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

/// Symbols that were looked up, by module (path and build id) and address. Nothing is looked up twice, nor is what has none.
#[derive(Default)]
struct Book {
    modules: BTreeMap<(String, String), u32>,
    symbols: HashMap<(u32, u64), Vec<Symbol>>,
    notes: HashSet<Note>,
    frames: Frames,
}

impl Book {
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
        // Locations of these stacks alone, numbered anew.
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
