//! Names for stacks, looked up once each, on a separate thread.
//!
//! Reading the debug information of a large library takes seconds. The view shows bytes and counts at once, and names as
//! they arrive. A named stack has what remains of it in facts: its call
//! site, its frames, and the owner of its pool.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use culeak::analysis::site::text::Site;
use culeak::analysis::site::{CallStack, CallStacks, Fingerprint};
use culeak::snapshot::Snapshot;

use super::Message;
use super::sums::{LiveSums, StackKey};
use crate::load::many::Symbols;
use crate::symbolize::{Places, sentences, symbolize};

/// A stack with the names that the view shows.
#[derive(Debug, PartialEq)]
pub struct Named {
    pub site: Site,
    pub stack: Fingerprint,
    /// A caching allocator is on the stack.
    pub pool: bool,
    pub truncated: bool,
    /// The text that a filter matches, in lower case.
    pub words: String,
}

pub type Names = foldhash::HashMap<StackKey, Arc<Named>>;

impl Named {
    fn of(stack: &CallStack) -> Arc<Named> {
        let site = Site::of(stack);
        let mut words = String::new();
        for frame in stack.shown() {
            let place = frame.place().unwrap_or_default();
            words += &format!("{}\n{place}\n{}\n", frame.name(), frame.module);
        }
        Arc::new(Named {
            site,
            stack: stack.fingerprint,
            pool: stack.pool,
            truncated: stack.truncated,
            words: words.to_lowercase(),
        })
    }
}

/// Names every stack of a snapshot with symbols, and memory without a stack.
pub fn all(snapshot: &Snapshot, keys: &[StackKey]) -> Names {
    let stacks = CallStacks::of(snapshot);
    let named = |stack| Named::of(stacks.get(stack));
    let mut names: Names = (0..snapshot.stacks.len())
        .map(|stack| (keys[stack], named(Some(stack))))
        .collect();
    names.insert(StackKey::NONE, named(None));
    names
}

/// Stacks to name, in a snapshot without any other table.
pub struct Unnamed {
    pub snapshot: Snapshot,
    pub keys: Vec<StackKey>,
    pub root: Option<PathBuf>,
}

/// The stacks that were sent to the naming thread.
#[derive(Default)]
pub struct Asked(HashSet<StackKey>);

impl Asked {
    /// Takes the new stacks that hold memory or objects out of a snapshot. `keys`: of its stacks; `sums`: of its records.
    pub fn pick(
        &mut self,
        snapshot: &mut Snapshot,
        keys: &[StackKey],
        sums: &LiveSums,
        root: Option<&PathBuf>,
    ) -> Option<Unnamed> {
        // Every answer names memory without a stack, so the first request is sent even if there is no stack.
        let first = self.0.insert(StackKey::NONE);
        let holding: HashSet<StackKey> = sums.tallies.keys().map(|key| key.stack).collect();
        let is_new = |key: &StackKey| holding.contains(key) && self.0.insert(*key);
        let is_new: Vec<bool> = keys.iter().map(is_new).collect();
        if !first && !is_new.contains(&true) {
            return None;
        }
        let stacks = std::mem::take(&mut snapshot.stacks)
            .into_iter()
            .zip(keys.iter().copied())
            .zip(is_new);
        let (stacks, keys) = stacks.filter_map(|(stack, is_new)| is_new.then_some(stack)).unzip();
        Some(Unnamed {
            keys,
            snapshot: Snapshot {
                stacks,
                taken: snapshot.taken.clone(),
                process: snapshot.process.clone(),
                losses: snapshot.losses.clone(),
                locations: std::mem::take(&mut snapshot.locations),
                modules: std::mem::take(&mut snapshot.modules),
                ..Snapshot::empty()
            },
            root: root.cloned(),
        })
    }
}

/// The naming thread: answers until the sender of requests is gone.
pub fn serve(asked: &Receiver<Unnamed>, answers: &Sender<Message>, places: impl Fn(Option<PathBuf>) -> Places) {
    let (mut symbols, mut known) = (Symbols::default(), HashSet::new());
    while let Ok(mut unnamed) = asked.recv() {
        let (places, mut notes) = (places(unnamed.root.clone()), Vec::new());
        symbols.name_with(&mut unnamed.snapshot, |unknown| {
            notes = symbolize(unknown, &places);
            std::mem::take(unknown)
        });
        notes.retain(|note| known.insert(note.clone()));
        let names = all(&unnamed.snapshot, &unnamed.keys);
        if answers.send(Message::Names(names, sentences(notes))).is_err() {
            return;
        }
    }
}
