//! Sums of the live records, from which each record can be removed again.
//!
//! Every live record is in one tally. It moves to another one, although it does not change itself, when the first block
//! inside it appears or the last one disappears. When the oldest or newest record of a tally leaves, the next one is
//! searched for.

use foldhash::HashMap;

use crate::analysis::framework::{Block, block_in, can_carry};
use crate::analysis::tally::Tally;
use crate::format::{NONE, RecordValues, UNSAMPLED};
use crate::kind::{Kind, Place};
use crate::lockfree::table::Attributes;
use crate::reader::records::decoded;
use crate::sampling::{self, Weight};
use crate::snapshot::allocations::Row;

/// Bits behind the point of weights.
const UNIT: u32 = 16;

/// The properties that the records of one tally share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TallyKey {
    /// Row of the innermost frame.
    pub stack: u32,
    pub kind: Kind,
    /// Row of the device.
    pub device: u8,
    pub domain: u8,
    pub carries_blocks: bool,
    /// How often the mean distance of sampled stacks was raised.
    pub raised: u8,
}

pub struct StackTally {
    pub key: TallyKey,
    /// Wide enough not to overflow, so that records can be subtracted again.
    bytes: u128,
    count: u64,
    /// The mean distance of sampled stacks; 0: each record has its stack.
    sample_bytes: u64,
    /// What the records stand for: bytes and blocks, in units of 2^-16.
    weights: (u128, u128),
    pub oldest_ns: u64,
    pub newest_ns: u64,
    /// The oldest or newest record has left, and its successor is not known yet.
    stale: bool,
}

/// The changes that one read found.
#[derive(Default)]
pub struct Changes {
    appeared: Vec<Block>,
    /// Address and record of blocks.
    disappeared: Vec<(u64, u32)>,
    /// Records that are newer than the beginning of the read: valid if an event was counted meanwhile, otherwise the clock was
    /// set.
    late: Vec<u32>,
    /// Memory appeared that blocks can lie in.
    carriers: bool,
    /// Something may be different at the next read although no event is counted.
    pub unsettled: bool,
}

/// All tallies, and the tally of every record.
#[derive(Default)]
pub struct StackTallies {
    /// By record: its state word when it was added; 0: it is in no tally.
    states: Vec<u64>,
    /// By record. `call` is the number of its tally.
    rows: Vec<Row>,
    tallies: Vec<StackTally>,
    numbers: HashMap<TallyKey, u32>,
    /// In order of address.
    blocks: Vec<Block>,
    /// As the header of the recording has it.
    pub sample_bytes: u64,
}

pub const NOTHING: Row = Row {
    address: 0,
    bytes: 0,
    requested: 0,
    time_ns: 0,
    stack: NONE,
    call: 0,
};

impl StackTallies {
    /// The tallies that are not empty.
    pub fn live(&self) -> impl Iterator<Item = &StackTally> {
        self.tallies.iter().filter(|tally| tally.count > 0)
    }

    /// Makes room for this number of records.
    pub fn reach(&mut self, records: usize) {
        if self.states.len() < records {
            self.states.resize(records, 0);
            self.rows.resize(records, NOTHING);
        }
    }

    /// The state word with which a record was added; `None`: it is in no tally.
    pub fn state(&self, number: u32) -> Option<u64> {
        Some(self.states[number as usize]).filter(|&state| state != 0)
    }

    /// Adds a live record.
    pub fn add(&mut self, number: u32, record: &RecordValues, began_ns: u64, changes: &mut Changes) {
        let Some((mut row, call)) = decoded(record) else { return };
        let parts = Attributes::parts(call.attributes);
        // The kernel driver's side is not followed.
        let Some(kind) = Kind::from_number(parts.kind).filter(|kind| kind.place() != Place::Segment) else {
            return;
        };
        if row.time_ns > began_ns {
            changes.late.push(number);
        }
        let key = TallyKey {
            stack: row.stack,
            kind,
            device: parts.device,
            domain: call.domain,
            carries_blocks: false,
            raised: parts.raised,
        };
        row.call = self.join(key, &row);
        if kind.place() == Place::Within {
            changes.appeared.push(Block {
                address: row.address,
                bytes: row.bytes,
                row: number,
                call: row.call,
            });
        }
        changes.carriers |= can_carry(kind);
        self.rows[number as usize] = row;
        self.states[number as usize] = record.state;
    }

    /// Removes a record from its tally.
    pub fn remove(&mut self, number: u32, changes: &mut Changes) {
        let row = self.rows[number as usize];
        let tally = &mut self.tallies[row.call as usize];
        tally.leave(&row);
        if tally.key.kind.place() == Place::Within {
            changes.disappeared.push((row.address, number));
        }
        self.states[number as usize] = 0;
    }

    /// Removes what appeared after the read began; the next read adds it.
    pub fn leave_for_later(&mut self, changes: &mut Changes) {
        for &number in &changes.late {
            let row = self.rows[number as usize];
            self.tallies[row.call as usize].leave(&row);
            self.states[number as usize] = 0;
        }
        changes.appeared.retain(|block| self.states[block.row as usize] != 0);
    }

    /// Adds a record to its tally, whose number is returned.
    fn join(&mut self, key: TallyKey, row: &Row) -> u32 {
        let next = self.tallies.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.tallies.push(StackTally::new(key, self.sample_bytes));
        }
        self.tallies[number as usize].join(row);
        number
    }

    /// Updates what depends on the changes: which records carry blocks, and the oldest and newest of each tally.
    pub fn settle(&mut self, changes: &mut Changes) {
        let blocks_changed = !changes.appeared.is_empty() || !changes.disappeared.is_empty();
        if blocks_changed {
            let order = |block: &Block| (block.address, block.row);
            changes.appeared.sort_unstable_by_key(order);
            changes.disappeared.sort_unstable();
            let mut disappeared = changes.disappeared.iter().copied().peekable();
            self.blocks.retain(|block| {
                let block = order(block);
                while disappeared.next_if(|other| *other < block).is_some() {}
                disappeared.next_if_eq(&block).is_none()
            });
            self.blocks.append(&mut changes.appeared);
            // Two sorted runs, which this sort detects and merges.
            self.blocks.sort_by_key(order);
        }
        let any_carry = || {
            self.tallies
                .iter()
                .any(|tally| tally.key.carries_blocks && tally.count > 0)
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
            if !can_carry(tally.key.kind) {
                continue;
            }
            let carries_blocks = block_in(&self.blocks, &self.rows, tally.key.kind, &row, &mut behind).is_some();
            if carries_blocks == tally.key.carries_blocks {
                continue;
            }
            tally.leave(&row);
            let key = TallyKey {
                carries_blocks,
                ..tally.key
            };
            row.call = self.join(key, &row);
            self.rows[number] = row;
        }
    }

    /// Computes the oldest and newest record of stale tallies.
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
}

impl StackTally {
    fn new(key: TallyKey, sample_bytes: u64) -> StackTally {
        StackTally {
            key,
            bytes: 0,
            count: 0,
            sample_bytes,
            weights: (0, 0),
            oldest_ns: u64::MAX,
            newest_ns: 0,
            stale: false,
        }
    }

    fn join(&mut self, row: &Row) {
        self.bytes += u128::from(row.bytes);
        self.count += 1;
        let (bytes, count) = self.weight(row);
        self.weights.0 += bytes;
        self.weights.1 += count;
        self.spans(row.time_ns);
    }

    fn leave(&mut self, row: &Row) {
        self.bytes -= u128::from(row.bytes);
        self.count -= 1;
        let (bytes, count) = self.weight(row);
        self.weights.0 -= bytes;
        self.weights.1 -= count;
        self.stale |= row.time_ns == self.oldest_ns || row.time_ns == self.newest_ns;
    }

    fn spans(&mut self, time_ns: u64) {
        self.oldest_ns = self.oldest_ns.min(time_ns);
        self.newest_ns = self.newest_ns.max(time_ns);
    }

    /// What a record adds to `weights`. It depends on the record alone, so that it can be subtracted again.
    fn weight(&self, row: &Row) -> (u128, u128) {
        if self.sample_bytes == 0 || !sampling::may_be_left_out(self.key.kind, row.bytes) {
            return (u128::from(row.bytes) << UNIT, 1 << UNIT);
        }
        let weight = Weight::of(row.bytes, sampling::mean_of(self.sample_bytes, self.key.raised));
        let unit = (1u64 << UNIT) as f64;
        ((weight.bytes * unit) as u128, (weight.count * unit) as u128)
    }

    /// The memory of the stack; an estimate if stacks were sampled.
    pub fn at_stack(&self) -> Tally {
        if self.key.stack == UNSAMPLED {
            return Tally::default();
        }
        let rounded = |sum: u128| u64::try_from((sum + (1 << (UNIT - 1))) >> UNIT).unwrap_or(u64::MAX);
        Tally {
            bytes: rounded(self.weights.0),
            count: rounded(self.weights.1),
        }
    }

    pub fn tally(&self) -> Tally {
        Tally {
            bytes: u64::try_from(self.bytes).unwrap_or(u64::MAX),
            count: self.count,
        }
    }
}
