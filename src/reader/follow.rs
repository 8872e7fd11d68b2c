//! One recording looked at again and again: each look takes in what changed since the last one.
//!
//! ```text
//! what was counted            as at the last look ─► no record changed, and none is read
//! state words of records      as at the last look ─► that record says what it said
//!                             another one         ─► out of the sum it was in, into the one it belongs to now
//! sums by stack and call      ─► [`Sight`]
//! ```
//!
//! With a million live allocations of which a busy program changes a few thousand between two looks, most of a look is
//! reading the file. Why nothing is missed: what a record says changes only after it was withdrawn, and its generation with
//! that. (Counts of references change in place; they are in no sum.)
//!
//! On a busy process a sight is of the moment when reading began: what came later is left for the next one, and what went
//! while the records were read may be in it or not. Deliberately absent: single allocations; see [`super::read`].

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::picture::{self, Order, Places, Renumbered};
use super::records::{CallKey, PIECE, Records, decoded, runs, word, words};
use super::{Bytes, Picture, ReadError, Source, Totals, header_word};
use crate::census::Census;
use crate::framework::{Block, Watched, block_in, can_carry, owner_of_domain};
use crate::kind::{Kind, Place};
use crate::layout::*;
use crate::quick::Quick;
use crate::share::Share;
use crate::snapshot::Snapshot;
use crate::snapshot::allocations::{Row, stack_of};
use crate::table::{State, Status, What};

/// What a recording shows at one moment.
#[derive(Debug, Clone)]
pub struct Sight {
    /// All but the allocations. Stacks, and the locations of their frames, are those that no sight before had.
    pub snapshot: Snapshot,
    /// Stacks in the sights before; those of this one are numbered from there on.
    pub known_stacks: usize,
    pub sums: Vec<Sum>,
    /// The frameworks whose blocks were recorded.
    pub watched: Vec<String>,
}

/// Live records of one stack that were asked for in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// Numbered over all sights.
    pub stack: Option<usize>,
    pub kind: Kind,
    /// Of the snapshot.
    pub device: Option<usize>,
    /// Blocks that somebody else told of lie in them.
    pub carries_blocks: bool,
    pub share: Share,
    pub oldest_ns: u64,
    pub newest_ns: u64,
}

impl Sight {
    /// Of a snapshot, as the first and only sight.
    pub fn of(snapshot: Snapshot) -> Sight {
        let census = Census::without_stacks(&snapshot);
        let sum = |batch: &crate::census::Batch| Sum {
            stack: batch.stack,
            kind: batch.call.kind,
            device: batch.call.device,
            carries_blocks: batch.owner.is_some(),
            share: batch.share(),
            oldest_ns: batch.oldest_ns,
            newest_ns: batch.newest_ns,
        };
        let sums = census.batches.iter().map(sum).collect();
        let watched = census.watched.names().map(str::to_owned).collect();
        Sight {
            snapshot,
            known_stacks: 0,
            sums,
            watched,
        }
    }
}

/// What records in one sum have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Of {
    /// Row of the innermost frame.
    stack: u32,
    kind: Kind,
    /// Row of the device.
    device: u8,
    domain: u8,
    carries_blocks: bool,
}

struct Tally {
    of: Of,
    /// Exact, so that they can be taken back.
    bytes: u128,
    count: u64,
    oldest_ns: u64,
    newest_ns: u64,
    /// The oldest or the newest has gone, and the next in its place is not known.
    stale: bool,
}

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
    /// By record: the state word it was taken in with; 0: it is in no sum.
    states: Vec<u64>,
    /// By record. What they call `call` is a number of a tally.
    rows: Vec<Row>,
    tallies: Vec<Tally>,
    numbers: Quick<Of, u32>,
    /// In order of address.
    blocks: Vec<Block>,
    /// Stacks by the row of their innermost frame; `None`: there is no such stack.
    stacks: Quick<u32, Option<u32>>,
    known_stacks: usize,
    /// At the last look, if nothing was going on then.
    counted: Option<Counted>,
}

/// What one look came across.
#[derive(Default)]
struct Changes {
    came: Vec<Block>,
    /// Address and record of blocks.
    went: Vec<(u64, u32)>,
    /// Records that say they were made after the look began: true if something was counted meanwhile, else the recording is
    /// of another clock.
    late: Vec<u32>,
    /// Memory came that blocks can lie in.
    carriers: bool,
    /// There was something that may be otherwise the next time without being counted.
    unsettled: bool,
}

impl Follower {
    pub fn new(path: &Path) -> Follower {
        Follower {
            path: path.to_path_buf(),
            file: None,
            states: Vec::new(),
            rows: Vec::new(),
            tallies: Vec::new(),
            numbers: Quick::default(),
            blocks: Vec::new(),
            stacks: Quick::default(),
            known_stacks: 0,
            counted: None,
        }
    }

    /// How it is now.
    ///
    /// # Errors
    /// [`ReadError`], whose text is one line fit for a user. The next look may succeed.
    pub fn look(&mut self) -> Result<Sight, ReadError> {
        let path = self.path.clone();
        let source = Source::open(&path)?;
        self.must_be_the_same(&source)?;
        let header = source.header()?;
        let started = header_word(&header, offset_of!(Header, started_monotonic_ns));
        let began_ns = crate::recording::monotonic_ns().saturating_sub(started);
        let before = counted(&source, &header)?;
        let events_before = picture::events(&before.counters);
        if self.counted.as_ref() != Some(&before) {
            // An error on the way leaves nothing to rely on.
            self.counted = None;
            let mut changes = self.scan(&source, &header, began_ns)?;
            if counted(&source, &source.header()?)? != before {
                self.leave_for_later(&mut changes);
            } else if !changes.unsettled {
                self.counted = Some(before);
            }
            self.settle(&mut changes);
        }
        let fresh = self.fresh_stacks();
        let sections = sections(&source, !fresh.is_empty())?;
        let header = source.header()?;
        let events = picture::events(&source.section(&header, Section::Counters)?);
        let picture = Picture {
            events_during_read: events.wrapping_sub(events_before),
            header,
            sections,
            records: stand_ins(&fresh),
            began_ns,
        };
        let (_, devices) = picture.devices();
        let domains = picture.domains();
        let mut snapshot = picture.into_snapshot(&path, Order::StandIns, Totals::LeftOut)?;
        let known_stacks = self.known_stacks;
        self.number_stacks(&fresh, &mut snapshot);
        let sums: Vec<Sum> = self.live().map(|tally| self.sum(tally, &devices)).collect();
        picture::agree(&mut snapshot.counters, &live_by_place(&sums));
        let newest = sums.iter().map(|sum| sum.newest_ns).max();
        snapshot.taken.at_ns = snapshot.taken.at_ns.max(newest.unwrap_or(0));
        let blocks = self.live().filter(|tally| tally.of.kind == Kind::Block);
        let told = blocks.filter_map(|tally| domains.get(usize::from(tally.of.domain)));
        let mut watched: BTreeSet<String> = told.map(|domain| owner_of_domain(domain).to_owned()).collect();
        watched.extend(Watched::of(&snapshot).names().map(str::to_owned));
        Ok(Sight {
            snapshot,
            known_stacks,
            sums,
            watched: watched.into_iter().collect(),
        })
    }

    fn sum(&self, tally: &Tally, devices: &Renumbered) -> Sum {
        let stack = self.stacks.get(&tally.of.stack).copied().flatten();
        Sum {
            stack: stack.map(|stack| stack as usize),
            kind: tally.of.kind,
            device: devices.get(&tally.of.device.into()).copied(),
            carries_blocks: tally.of.carries_blocks,
            share: tally.share(),
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

    fn live(&self) -> impl Iterator<Item = &Tally> {
        self.tallies.iter().filter(|tally| tally.count > 0)
    }

    /// Looks at every record's state, and takes in those that changed.
    fn scan(&mut self, source: &Source, header: &Bytes, began_ns: u64) -> Result<Changes, ReadError> {
        let mut changes = Changes::default();
        let mut fresh: Vec<(u32, [u64; 8])> = Vec::new();
        let mut buffer = vec![0; PIECE];
        for run in runs(&source.pieces(header, Section::Records)?) {
            let end = run.first as usize + run.count;
            if self.states.len() < end {
                self.states.resize(end, 0);
                self.rows.resize(end, NOTHING);
            }
            let bytes = &mut buffer[..run.bytes()];
            source.read_into(run.offset, bytes)?;
            fresh.clear();
            for (number, element) in (run.first..).zip(bytes.chunks_exact(run.element)) {
                let known = self.states[number as usize];
                let state = word(element, 0);
                if state == known && known != 0 {
                    continue;
                }
                if known != 0 {
                    self.take_out(number, &mut changes);
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
                    self.take_in(*number, words, began_ns, &mut changes);
                } else {
                    changes.unsettled = true;
                }
            }
        }
        Ok(changes)
    }

    fn take_in(&mut self, number: u32, words: &[u64; 8], began_ns: u64, changes: &mut Changes) {
        let Some((mut row, key)) = decoded(words) else { return };
        let (kind, _, _, device, ..) = What::parts(key.what);
        let Some(kind) = Kind::from_number(kind) else { return };
        if row.time_ns > began_ns {
            changes.late.push(number);
        }
        let of = Of {
            stack: row.stack,
            kind,
            device,
            domain: key.domain,
            carries_blocks: false,
        };
        row.call = self.join(of, &row);
        if kind.place() == Place::Within {
            changes.came.push(Block {
                address: row.address,
                bytes: row.bytes,
                row: number,
                call: row.call,
            });
        }
        changes.carriers |= can_carry(kind);
        self.rows[number as usize] = row;
        self.states[number as usize] = words[0];
    }

    fn take_out(&mut self, number: u32, changes: &mut Changes) {
        let row = self.rows[number as usize];
        let tally = &mut self.tallies[row.call as usize];
        tally.leave(&row);
        if tally.of.kind.place() == Place::Within {
            changes.went.push((row.address, number));
        }
        self.states[number as usize] = 0;
    }

    /// Takes out what came after the look began; for the next one it is new.
    fn leave_for_later(&mut self, changes: &mut Changes) {
        for &number in &changes.late {
            let row = self.rows[number as usize];
            self.tallies[row.call as usize].leave(&row);
            self.states[number as usize] = 0;
        }
        changes.came.retain(|block| self.states[block.row as usize] != 0);
    }

    /// Adds a record to its tally, whose number is returned.
    fn join(&mut self, of: Of, row: &Row) -> u32 {
        let next = self.tallies.len() as u32;
        let number = *self.numbers.entry(of).or_insert(next);
        if number == next {
            self.tallies.push(Tally::new(of));
        }
        self.tallies[number as usize].join(row);
        number
    }

    /// What follows from the changes: which records carry blocks, and which is the oldest of each tally.
    fn settle(&mut self, changes: &mut Changes) {
        let blocks_changed = !changes.came.is_empty() || !changes.went.is_empty();
        if blocks_changed {
            let order = |block: &Block| (block.address, block.row);
            changes.came.sort_unstable_by_key(order);
            changes.went.sort_unstable();
            let mut went = changes.went.iter().copied().peekable();
            self.blocks.retain(|block| {
                let block = order(block);
                while went.next_if(|went| *went < block).is_some() {}
                went.next_if_eq(&block).is_none()
            });
            self.blocks.append(&mut changes.came);
            // Two runs in order, which this sort finds and merges.
            self.blocks.sort_by_key(order);
        }
        let any_carry = || {
            self.tallies
                .iter()
                .any(|tally| tally.of.carries_blocks && tally.count > 0)
        };
        if blocks_changed || changes.carriers && (!self.blocks.is_empty() || any_carry()) {
            self.find_carriers();
        }
        if self.tallies.iter().any(|tally| tally.stale) {
            self.find_oldest();
        }
    }

    fn find_carriers(&mut self) {
        let mut behind = 0;
        for number in 0..self.rows.len() {
            let mut row = self.rows[number];
            if self.states[number] == 0 {
                continue;
            }
            let tally = &mut self.tallies[row.call as usize];
            if !can_carry(tally.of.kind) {
                continue;
            }
            let carries_blocks = block_in(&self.blocks, tally.of.kind, &row, &mut behind).is_some();
            if carries_blocks == tally.of.carries_blocks {
                continue;
            }
            tally.leave(&row);
            let of = Of {
                carries_blocks,
                ..tally.of
            };
            row.call = self.join(of, &row);
            self.rows[number] = row;
        }
    }

    /// Of tallies whose oldest or newest record went.
    fn find_oldest(&mut self) {
        for tally in self.tallies.iter_mut().filter(|tally| tally.stale) {
            (tally.oldest_ns, tally.newest_ns) = (u64::MAX, 0);
        }
        for (row, _) in self.rows.iter().zip(&self.states).filter(|(_, state)| **state != 0) {
            let tally = &mut self.tallies[row.call as usize];
            if tally.stale {
                tally.spans(row.time_ns);
            }
        }
        self.tallies.iter_mut().for_each(|tally| tally.stale = false);
    }

    /// Stacks that hold memory and have no number yet.
    fn fresh_stacks(&self) -> Vec<u32> {
        let mut fresh: Vec<u32> = self.live().map(|tally| tally.of.stack).collect();
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
        snapshot.refused.iter_mut().for_each(|refused| refused.stack = None);
        self.known_stacks += snapshot.stacks.len();
    }
}

const NOTHING: Row = Row {
    address: 0,
    bytes: 0,
    requested: 0,
    time_ns: 0,
    stack: NONE,
    call: 0,
};

impl Tally {
    fn new(of: Of) -> Tally {
        Tally {
            of,
            bytes: 0,
            count: 0,
            oldest_ns: u64::MAX,
            newest_ns: 0,
            stale: false,
        }
    }

    fn join(&mut self, row: &Row) {
        self.bytes += u128::from(row.bytes);
        self.count += 1;
        self.spans(row.time_ns);
    }

    fn leave(&mut self, row: &Row) {
        self.bytes -= u128::from(row.bytes);
        self.count -= 1;
        self.stale |= row.time_ns == self.oldest_ns || row.time_ns == self.newest_ns;
    }

    fn spans(&mut self, time_ns: u64) {
        self.oldest_ns = self.oldest_ns.min(time_ns);
        self.newest_ns = self.newest_ns.max(time_ns);
    }

    fn share(&self) -> Share {
        Share {
            bytes: u64::try_from(self.bytes).unwrap_or(u64::MAX),
            count: self.count,
        }
    }
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
    let mut losses = header.bytes[losses..losses + size_of::<Losses>()].to_vec();
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
        *place = (place.0 + sum.share.count, place.1.saturating_add(sum.share.bytes));
    }
    places
}

#[cfg(test)]
mod tests;
