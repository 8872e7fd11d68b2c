//! One recording looked at again and again: each look takes in what changed since the last one.
//!
//! ```text
//! what was counted            as at the last look ─► no record changed, and none is read
//! state words of records      as at the last look ─► that record says what it said
//!                             another one         ─► out of the sum it was in, into the one it belongs to now
//! tallies.rs                  ─► [`StackSums`]: sums by stack and call
//! ```
//!
//! With a million live allocations of which a busy program changes a few thousand between two looks, most of a look is
//! reading the file. Why nothing is missed: what a record says changes only after it was withdrawn, and its generation with
//! that. (Counts of references change in place; they are in no sum.)
//!
//! On a busy process a sight is of the moment when reading began: what came later is left for the next one, and what went
//! while the records were read may be in it or not. Deliberately absent: single allocations; see [`super::read`].

mod tallies;

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::decode::{self, Order, Places, Renumbered};
use super::elapsed::Elapsed;
use super::records::{CallKey, PIECE, Records, runs, word, words};
use super::stack_sums::{StackSums, Sum};
use super::{Bytes, RawSnapshot, ReadError, Source, Totals};
use crate::analysis::framework::{Watched, owner_of_domain};
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::table::{State, Status};
use crate::snapshot::Snapshot;
use crate::snapshot::allocations::{Row, stack_of};
use tallies::{Changes, NOTHING, StackTallies, StackTally};

/// What the recording had counted.
#[derive(PartialEq)]
struct Counted {
    counters: Bytes,
    losses: Vec<u8>,
}

/// Remembers a recording between looks: 48 bytes a record.
pub struct Follower {
    path: PathBuf,
    /// Device and number of the file.
    file: Option<(u64, u64)>,
    tallies: StackTallies,
    /// Stacks by the row of their innermost frame; `None`: there is no such stack.
    stacks: foldhash::HashMap<u32, Option<u32>>,
    known_stacks: usize,
    /// At the last look, if nothing was going on then.
    counted: Option<Counted>,
}

impl Follower {
    pub fn new(path: &Path) -> Follower {
        Follower {
            path: path.to_path_buf(),
            file: None,
            tallies: StackTallies::default(),
            stacks: foldhash::HashMap::default(),
            known_stacks: 0,
            counted: None,
        }
    }

    /// How it is now.
    ///
    /// # Errors
    /// [`ReadError`], whose text is one line fit for a user. The next look may succeed.
    pub fn read(&mut self) -> Result<StackSums, ReadError> {
        let path = self.path.clone();
        let source = Source::open(&path)?;
        self.must_be_the_same(&source)?;
        let header = source.header()?;
        let began_ns = Elapsed::since_start(&header).latest_ns();
        let before = counted(&source, &header)?;
        let events_before = decode::events(&before.counters);
        if self.counted.as_ref() != Some(&before) {
            self.counted = None;
            // An error on the way leaves nothing to rely on.
            let mut tallies = std::mem::take(&mut self.tallies);
            let mut changes = scan(&mut tallies, &source, &header, began_ns)?;
            if counted(&source, &source.header()?)? != before {
                tallies.leave_for_later(&mut changes);
            } else if !changes.unsettled {
                self.counted = Some(before);
            }
            tallies.settle(&mut changes);
            self.tallies = tallies;
        }
        let fresh = self.fresh_stacks();
        let sections = sections(&source, !fresh.is_empty())?;
        let header = source.header()?;
        let events = decode::events(&source.section(&header, Section::Counters)?);
        let raw = RawSnapshot {
            events_during_read: events.wrapping_sub(events_before),
            header,
            sections,
            records: stand_ins(&fresh),
            began_ns,
        };
        let (_, devices) = raw.devices();
        let domains = raw.domains();
        let mut snapshot = raw.into_snapshot(&path, Order::StandIns, Totals::LeftOut)?;
        let known_stacks = self.known_stacks;
        self.number_stacks(&fresh, &mut snapshot);
        let sums: Vec<Sum> = self.tallies.live().map(|tally| self.sum(tally, &devices)).collect();
        decode::agree(&mut snapshot.counters, &live_by_place(&sums));
        let newest = sums.iter().map(|sum| sum.newest_ns).max();
        snapshot.taken.at_ns = snapshot.taken.at_ns.max(newest.unwrap_or(0));
        let blocks = self.tallies.live().filter(|tally| tally.of.kind == Kind::Block);
        let told = blocks.filter_map(|tally| domains.get(usize::from(tally.of.domain)));
        let mut watched: BTreeSet<String> = told.map(|domain| owner_of_domain(domain).to_owned()).collect();
        watched.extend(Watched::of(&snapshot).names().map(str::to_owned));
        Ok(StackSums {
            snapshot,
            known_stacks,
            sums,
            watched: watched.into_iter().collect(),
        })
    }

    fn sum(&self, tally: &StackTally, devices: &Renumbered) -> Sum {
        let stack = self.stacks.get(&tally.of.stack).copied().flatten();
        Sum {
            stack: stack.map(|stack| stack as usize),
            kind: tally.of.kind,
            device: devices.get(&tally.of.device.into()).copied(),
            carries_blocks: tally.of.carries_blocks,
            tally: tally.tally(),
            oldest_ns: tally.oldest_ns,
            newest_ns: tally.newest_ns,
        }
    }

    /// Another file of that name is another recording.
    fn must_be_the_same(&mut self, source: &Source) -> Result<(), ReadError> {
        let metadata = source.file.metadata();
        let metadata = metadata.map_err(|error| ReadError::Io(self.path.clone(), error))?;
        let file = Some((metadata.dev(), metadata.ino()));
        if self.file != file {
            *self = Follower {
                file,
                // What those who number stacks have seen, they have seen.
                known_stacks: self.known_stacks,
                ..Follower::new(&self.path)
            };
        }
        Ok(())
    }

    /// Stacks that hold memory and have no number yet.
    fn fresh_stacks(&self) -> Vec<u32> {
        let mut fresh: Vec<u32> = self.tallies.live().map(|tally| tally.of.stack).collect();
        fresh.retain(|stack| !self.stacks.contains_key(stack));
        fresh.sort_unstable();
        fresh.dedup();
        fresh
    }

    /// Numbers the stacks of a snapshot whose rows stand for them.
    fn number_stacks(&mut self, fresh: &[u32], snapshot: &mut Snapshot) {
        let rows = std::mem::take(&mut snapshot.allocations).rows;
        for (leaf, row) in fresh.iter().zip(&rows) {
            let number = stack_of(row.stack).map(|stack| (self.known_stacks + stack) as u32);
            self.stacks.insert(*leaf, number);
        }
        // Behind these are stacks of refused calls.
        let known = rows.iter().filter_map(|row| stack_of(row.stack)).max();
        snapshot.stacks.truncate(known.map_or(0, |last| last + 1));
        snapshot.failed.iter_mut().for_each(|failed| failed.stack = None);
        self.known_stacks += snapshot.stacks.len();
    }
}

/// Looks at every record's state, and takes in those that changed.
fn scan(tallies: &mut StackTallies, source: &Source, header: &Bytes, began_ns: u64) -> Result<Changes, ReadError> {
    let mut changes = Changes::default();
    let mut fresh: Vec<(u32, [u64; 8])> = Vec::new();
    let mut buffer = vec![0; PIECE];
    for run in runs(&source.pieces(header, Section::Records)?) {
        tallies.reach(run.first as usize + run.count);
        let bytes = &mut buffer[..run.bytes()];
        source.read_into(run.offset, bytes)?;
        fresh.clear();
        for (number, element) in (run.first..).zip(bytes.chunks_exact(run.element)) {
            let state = word(element, 0);
            match tallies.state(number) {
                Some(known) if known == state => continue,
                Some(_) => tallies.take_out(number, &mut changes),
                None => {}
            }
            match State::of(state).map(|state| state.status) {
                Some(Status::Live) => fresh.push((number, words(element))),
                // It may be put back, and then nothing of it was counted.
                Some(Status::Withdrawn) => changes.unsettled = true,
                _ => {}
            }
        }
        if fresh.is_empty() {
            continue;
        }
        // Still in the state in which it was copied: then the copied words belong together.
        source.read_into(run.offset, bytes)?;
        for (number, words) in &fresh {
            let now = &bytes[(number - run.first) as usize * run.element..];
            if word(now, 0) == words[0] {
                tallies.take_in(*number, words, began_ns, &mut changes);
            } else {
                changes.unsettled = true;
            }
        }
    }
    Ok(changes)
}

/// A row for each of these stacks, so that they become stacks of the snapshot.
fn stand_ins(stacks: &[u32]) -> Records {
    let row = |&stack: &u32| Row { stack, ..NOTHING };
    let mut records = Records::default();
    records.rows.extend(stacks.iter().map(row));
    records.calls.push(CallKey::default());
    records
}

/// Sections of a recording: all but records and totals, and those that tell of frames only if wanted.
fn sections(source: &Source, frames: bool) -> Result<HashMap<u32, Bytes>, ReadError> {
    let mut sections = HashMap::new();
    for section in super::SECTIONS_BESIDE_RECORDS {
        let wanted = match section {
            Section::Totals => false,
            Section::Frames | Section::Codes => frames,
            _ => true,
        };
        let bytes = match wanted {
            true => source.section(&source.header()?, section)?,
            false => Bytes::none(section),
        };
        sections.insert(section as u32, bytes);
    }
    Ok(sections)
}

/// Everything that tells whether a record changed.
fn counted(source: &Source, header: &Bytes) -> Result<Counted, ReadError> {
    let losses = offset_of!(Header, losses);
    let mut losses = header.bytes[losses..losses + size_of::<LossCounters>()].to_vec();
    // Time goes on of itself.
    let clock = Loss::RecorderNs as usize * 8;
    losses[clock..clock + 8].fill(0);
    let counters = source.section(header, Section::Counters)?;
    Ok(Counted { counters, losses })
}

fn live_by_place(sums: &[Sum]) -> Places {
    let mut places = Places::new();
    for sum in sums {
        let place = places.entry((sum.device, sum.kind)).or_default();
        *place = (place.0 + sum.tally.count, place.1.saturating_add(sum.tally.bytes));
    }
    places
}

#[cfg(test)]
mod tests;
