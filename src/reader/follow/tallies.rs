//! The live records of a recording in sums, from which each can be taken back.
//!
//! A record is in one tally. Which one may change while the record does not: when the first block is told of that lies in
//! it, or the last is gone. The oldest record of a tally is looked for anew when it went.

use foldhash::HashMap;

use crate::analysis::framework::{Block, block_in, can_carry};
use crate::analysis::tally::Tally;
use crate::format::NONE;
use crate::kind::{Kind, Place};
use crate::lockfree::table::Attributes;
use crate::reader::records::decoded;
use crate::snapshot::allocations::Row;

/// What records in one sum have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Of {
    /// Row of the innermost frame.
    pub stack: u32,
    pub kind: Kind,
    /// Row of the device.
    pub device: u8,
    pub domain: u8,
    pub carries_blocks: bool,
}

pub struct StackTally {
    pub of: Of,
    /// Exact, so that they can be taken back.
    bytes: u128,
    count: u64,
    pub oldest_ns: u64,
    pub newest_ns: u64,
    /// The oldest or the newest has gone, and the next in its place is not known.
    stale: bool,
}

/// What one look came across.
#[derive(Default)]
pub struct Changes {
    came: Vec<Block>,
    /// Address and record of blocks.
    went: Vec<(u64, u32)>,
    /// Records that say they were made after the look began: true if something was counted meanwhile, else the clock was
    /// set.
    late: Vec<u32>,
    /// Memory came that blocks can lie in.
    carriers: bool,
    /// There was something that may be otherwise the next time without being counted.
    pub unsettled: bool,
}

/// All tallies, and which record is in which.
#[derive(Default)]
pub struct StackTallies {
    /// By record: the state word it was taken in with; 0: it is in no tally.
    states: Vec<u64>,
    /// By record. What they call `call` is a number of a tally.
    rows: Vec<Row>,
    tallies: Vec<StackTally>,
    numbers: HashMap<Of, u32>,
    /// In order of address.
    blocks: Vec<Block>,
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
    /// Those with records in them.
    pub fn live(&self) -> impl Iterator<Item = &StackTally> {
        self.tallies.iter().filter(|tally| tally.count > 0)
    }

    /// Makes room for so many records.
    pub fn reach(&mut self, records: usize) {
        if self.states.len() < records {
            self.states.resize(records, 0);
            self.rows.resize(records, NOTHING);
        }
    }

    /// The state word a record is in with.
    pub fn state(&self, number: u32) -> Option<u64> {
        Some(self.states[number as usize]).filter(|&state| state != 0)
    }

    /// Adds a live record.
    pub fn take_in(&mut self, number: u32, words: &[u64; 8], began_ns: u64, changes: &mut Changes) {
        let Some((mut row, key)) = decoded(words) else { return };
        let (kind, _, _, device, ..) = Attributes::parts(key.attributes);
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

    /// Takes a record out that is in.
    pub fn take_out(&mut self, number: u32, changes: &mut Changes) {
        let row = self.rows[number as usize];
        let tally = &mut self.tallies[row.call as usize];
        tally.leave(&row);
        if tally.of.kind.place() == Place::Within {
            changes.went.push((row.address, number));
        }
        self.states[number as usize] = 0;
    }

    /// Takes out what came after the look began; for the next one it is new.
    pub fn leave_for_later(&mut self, changes: &mut Changes) {
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
            self.tallies.push(StackTally::new(of));
        }
        self.tallies[number as usize].join(row);
        number
    }

    /// What follows from the changes: which records carry blocks, and which is the oldest of each tally.
    pub fn settle(&mut self, changes: &mut Changes) {
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
}

impl StackTally {
    fn new(of: Of) -> StackTally {
        StackTally {
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

    pub fn tally(&self) -> Tally {
        Tally {
            bytes: u64::try_from(self.bytes).unwrap_or(u64::MAX),
            count: self.count,
        }
    }
}
