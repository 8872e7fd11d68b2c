//! Repeated reads of one recording: each read decodes only what changed since the previous one.
//!
//! ```text
//! counters and losses         unchanged ─► no record changed, and none is read
//! state word of a record      unchanged ─► the record is unchanged
//!                             changed   ─► the record leaves its tally and, if it is live, joins the one it belongs to now
//! tallies.rs                  ─► [`StackSums`]: sums by stack and call
//! ```
//!
//! With a million live allocations, of which a busy program changes a few thousand between two reads, most of a read would
//! be decoding. No change is missed: the fields of a record change only after it was withdrawn, and with that its
//! generation. (Reference counts change in place; no sum depends on them.)
//!
//! While the program is busy, a result shows the time at which the read began: later allocations are left for the next
//! read, and allocations freed while the records were read may be included or not. Deliberately absent: individual
//! allocations; see [`super::read`].

mod tallies;

use std::collections::HashMap;
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::counters::{self, Places};
use super::decode::Order;
use super::details::Renumbered;
use super::elapsed::Elapsed;
use super::records::{CallKey, PIECE, Records, runs};
use super::stack_sums::{StackSums, Sum};
use super::{Bytes, RawSnapshot, ReadError, Source, Totals, sections_except_records};
use crate::analysis::framework::Watched;
use crate::format::{Row as _, *};
use crate::kind::Place;
use crate::lockfree::table::{State, Status};
use crate::snapshot::Snapshot;
use crate::snapshot::allocations::{Row, stack_of};
use tallies::{Changes, NOTHING, StackTallies, StackTally};

/// The counters and losses of a recording at one point in time.
#[derive(PartialEq)]
struct Counted {
    counters: Bytes,
    losses: Vec<u8>,
}

/// The state that is kept between reads: 48 bytes per record.
pub struct Follower {
    path: PathBuf,
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
    tallies: StackTallies,
    /// Numbers of stacks by the row of their innermost frame; `None`: there is no such stack.
    stacks: foldhash::HashMap<u32, Option<u32>>,
    known_stacks: usize,
    /// At the previous read, if it was exact.
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

    /// Reads the current state.
    ///
    /// # Errors
    /// [`ReadError`], whose text is one line for the user. The next read may succeed.
    pub fn read(&mut self) -> Result<StackSums, ReadError> {
        let path = self.path.clone();
        let source = Source::open(&path)?;
        self.reset_if_replaced(&source)?;
        let header = source.header()?;
        let began_ns = Elapsed::since_start(&header).latest_ns();
        let before = counted(&source, &header)?;
        let events_before = counters::events(&before.counters);
        if self.counted.as_ref() != Some(&before) {
            self.counted = None;
            // After an error the tallies are incomplete, so they are dropped.
            let mut tallies = std::mem::take(&mut self.tallies);
            tallies.sample_bytes = header.field(offset_of!(Header, sample_bytes));
            let mut changes = scan(&mut tallies, &source, &header, began_ns)?;
            if counted(&source, &source.header()?)? != before {
                tallies.leave_for_later(&mut changes);
            } else if !changes.unsettled {
                self.counted = Some(before);
            }
            tallies.settle(&mut changes);
            self.tallies = tallies;
        }
        let fresh = self.new_stacks();
        let sections = sections(&source, !fresh.is_empty())?;
        let header = source.header()?;
        let events = counters::events(&source.section(&header, Section::Counters)?);
        let raw = RawSnapshot {
            events_during_read: events.wrapping_sub(events_before),
            header,
            sections,
            records: placeholders(&fresh),
            began_ns,
        };
        let (_, devices) = raw.devices();
        let mut snapshot = raw.into_snapshot(&path, Order::Placeholders, Totals::LeftOut)?;
        let known_stacks = self.known_stacks;
        self.number_stacks(&fresh, &mut snapshot);
        let sums: Vec<Sum> = self.tallies.live().map(|tally| self.sum(tally, &devices)).collect();
        let live = live_by_place(&sums);
        counters::agree(&mut snapshot.counters, &live);
        let of_objects = snapshot.object_counters.iter_mut();
        for counter in of_objects.filter(|counter| counter.kind.place() == Place::Object) {
            counters::agree(std::slice::from_mut(counter), &live);
        }
        let newest = sums.iter().map(|sum| sum.newest_ns).max();
        snapshot.taken.at_ns = snapshot.taken.at_ns.max(newest.unwrap_or(0));
        let watched = Watched::of(&snapshot).names().map(str::to_owned).collect();
        Ok(StackSums {
            snapshot,
            known_stacks,
            sums,
            watched,
        })
    }

    fn sum(&self, tally: &StackTally, devices: &Renumbered) -> Sum {
        let stack = self.stacks.get(&tally.key.stack).copied().flatten();
        Sum {
            stack: stack.map(|stack| stack as usize),
            kind: tally.key.kind,
            device: devices.get(&tally.key.device.into()).copied(),
            carries_blocks: tally.key.carries_blocks,
            tally: tally.tally(),
            at_stack: tally.at_stack(),
            oldest_ns: tally.oldest_ns,
            newest_ns: tally.newest_ns,
        }
    }

    /// Forgets everything if another file has taken the name: it is another recording.
    fn reset_if_replaced(&mut self, source: &Source) -> Result<(), ReadError> {
        let metadata = source.file.metadata();
        let metadata = metadata.map_err(|error| ReadError::Io(self.path.clone(), error))?;
        let file = Some((metadata.dev(), metadata.ino()));
        if self.file != file {
            *self = Follower {
                file,
                // Callers number the stacks of all reads consecutively.
                known_stacks: self.known_stacks,
                ..Follower::new(&self.path)
            };
        }
        Ok(())
    }

    /// Stacks that hold memory and have no number yet.
    fn new_stacks(&self) -> Vec<u32> {
        let mut fresh: Vec<u32> = self.tallies.live().map(|tally| tally.key.stack).collect();
        fresh.retain(|stack| !self.stacks.contains_key(stack));
        fresh.sort_unstable();
        fresh.dedup();
        fresh
    }

    /// Numbers the stacks of a snapshot whose rows are placeholders for them.
    fn number_stacks(&mut self, fresh: &[u32], snapshot: &mut Snapshot) {
        let rows = std::mem::take(&mut snapshot.allocations).rows;
        for (leaf, row) in fresh.iter().zip(&rows) {
            let number = stack_of(row.stack).map(|stack| (self.known_stacks + stack) as u32);
            self.stacks.insert(*leaf, number);
        }
        // The stacks behind these belong to failed requests.
        let known = rows.iter().filter_map(|row| stack_of(row.stack)).max();
        snapshot.stacks.truncate(known.map_or(0, |last| last + 1));
        snapshot.failed.iter_mut().for_each(|failed| failed.stack = None);
        self.known_stacks += snapshot.stacks.len();
    }
}

/// Compares every record's state with the tallies, and updates those that changed.
fn scan(tallies: &mut StackTallies, source: &Source, header: &Bytes, began_ns: u64) -> Result<Changes, ReadError> {
    let mut changes = Changes::default();
    let mut fresh: Vec<(u32, RecordValues)> = Vec::new();
    let mut buffer = vec![0; PIECE];
    for run in runs(&source.pieces(header, Section::Records)?) {
        tallies.reach(run.first as usize + run.count);
        let bytes = &mut buffer[..run.bytes()];
        source.read_into(run.offset, bytes)?;
        fresh.clear();
        for (number, element) in (run.first..).zip(bytes.chunks_exact(run.element)) {
            let state = state_of(element);
            match tallies.state(number) {
                Some(known) if known == state => continue,
                Some(_) => tallies.remove(number, &mut changes),
                None => {}
            }
            match State::of(state).map(|state| state.status) {
                Some(Status::Live) => fresh.push((number, Record::read(element))),
                // If the free fails, the record becomes live again without a change of the counters.
                Some(Status::Withdrawn) => changes.unsettled = true,
                _ => {}
            }
        }
        if fresh.is_empty() {
            continue;
        }
        // The fields that were copied belong together if the state has not changed since.
        source.read_into(run.offset, bytes)?;
        for (number, record) in &fresh {
            let now = &bytes[(number - run.first) as usize * run.element..];
            if state_of(now) == record.state {
                tallies.add(*number, record, began_ns, &mut changes);
            } else {
                changes.unsettled = true;
            }
        }
    }
    Ok(changes)
}

fn state_of(record: &[u8]) -> u64 {
    Field::read(&record[offset_of!(Record, state)..])
}

/// A row for each of these stacks, so that they become stacks of the snapshot.
fn placeholders(stacks: &[u32]) -> Records {
    let row = |&stack: &u32| Row { stack, ..NOTHING };
    let mut records = Records::default();
    records.rows.extend(stacks.iter().map(row));
    records.calls.push(CallKey::default());
    records
}

/// All sections except records and totals. Frames and codes are empty unless `frames` is set.
fn sections(source: &Source, frames: bool) -> Result<HashMap<u32, Bytes>, ReadError> {
    let mut sections = HashMap::new();
    for section in sections_except_records() {
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

/// The counters and losses, one of which changes with every change of a record.
fn counted(source: &Source, header: &Bytes) -> Result<Counted, ReadError> {
    let losses = offset_of!(Header, losses);
    let mut losses = header.bytes[losses..losses + size_of::<LossCounters>()].to_vec();
    // The recorder's own time is not an event.
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
