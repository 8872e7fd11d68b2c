//! A groups: ten million live records told as a few thousand groups.
//!
//! Records with the same stack, asked for in the same way and standing at the same level differ in nothing that a report
//! shows but their size, age and address. So they are counted once, by as many threads as are worth it, and everything
//! behind this (reports, diffs, verdicts, most of the ledger) works on the groups.
//!
//! The level is decided here too. There are two in one list: what the driver handed out, and what a framework handed out
//! of that. A reader wants each byte once, at the level that says who holds it. Where a framework's blocks were recorded,
//! they are listed and the pool behind them is not; a pool whose blocks nobody recorded is listed itself, and called cached
//! rather than held, since nobody can tell which part of it is in use.
//!
//! Deliberately absent: ranking; see `report`.

use foldhash::HashMap;

use crate::analysis::framework::{Blocks, Carriers, Watched};
use crate::analysis::site::{CallStack, CallStacks, is_pool};
use crate::analysis::tally::Tally;
use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::allocations::{Row, in_two_threads, stack_of};
use crate::snapshot::{Allocation, Call, Snapshot};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Somebody holds this memory: leaked, once the process is over.
    Held,
    /// A caching allocator holds it, and what of it is in use is not known.
    Cached,
    /// A caching allocator holds it, and its blocks are listed in its place.
    Behind,
    /// Holds no memory: a mapping, an address range, a pool object.
    Claim,
}

impl Level {
    /// The level of a record of this kind; `in_pool`: a caching allocator stands on its stack; `blocks_are_known`: what
    /// that allocator handed out of it is recorded, too.
    pub fn of(kind: Kind, in_pool: bool, blocks_are_known: bool) -> Level {
        match kind.place() {
            Place::Within => Level::Held,
            // Blocks on the host are nowhere recorded, so there the pool is all there is.
            Place::Device | Place::Managed | Place::Nowhere if blocks_are_known => Level::Behind,
            Place::Nowhere => Level::Claim,
            _ if is_pool(kind, in_pool) => Level::Cached,
            _ => Level::Held,
        }
    }

    /// Whether the record stands in the list that people read.
    pub fn is_listed(self) -> bool {
        self != Level::Behind
    }
}

/// Live records that have all in common but size, age and address.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group<'a> {
    pub call: &'a Call,
    pub stack: Option<usize>,
    pub level: Level,
    /// Whose blocks lie in these records.
    pub owner: Option<&'a str>,
    /// All of them together, exactly.
    pub bytes: u128,
    pub count: u64,
    pub smallest: u64,
    pub largest: u64,
    /// When the first of them was made.
    pub oldest_ns: u64,
    /// When the last was.
    pub newest_ns: u64,
}

impl Group<'_> {
    pub fn tally(&self) -> Tally {
        Tally {
            bytes: u64::try_from(self.bytes).unwrap_or(u64::MAX),
            count: self.count,
        }
    }
}

/// All live records of a snapshot.
pub struct Groups<'a> {
    /// In the order of each one's first record; those by size, in any.
    pub all: Vec<Group<'a>>,
    pub watched: Watched<'a>,
    pub(crate) carriers: Carriers<'a>,
    pub(crate) blocks: Blocks<'a>,
}

impl<'a> Groups<'a> {
    pub fn of(snapshot: &'a Snapshot, stacks: &CallStacks) -> Groups<'a> {
        Groups::new(snapshot, Some(stacks), |_| 0)
    }

    /// The same before stacks were read, so that no level knows of a caching allocator on one.
    pub fn without_stacks(snapshot: &'a Snapshot) -> Groups<'a> {
        Groups::new(snapshot, None, |_| 0)
    }

    /// The same of records made since a moment, those of different size in groups of their own.
    pub fn with_sizes_apart(snapshot: &'a Snapshot, stacks: &CallStacks, since_ns: u64) -> Groups<'a> {
        Groups::by_size(snapshot, stacks, since_ns, |_| true)
    }

    /// The same for some sizes; records of any other size are not told apart by it.
    pub fn with_these_sizes_apart(
        snapshot: &'a Snapshot,
        stacks: &CallStacks,
        since_ns: u64,
        apart: impl Fn(u64) -> bool + Sync,
    ) -> Groups<'a> {
        Groups::by_size(snapshot, stacks, since_ns, apart)
    }

    /// The same with records made before a moment apart from those made since.
    pub fn parted(snapshot: &'a Snapshot, stacks: &CallStacks, moment_ns: u64) -> Groups<'a> {
        Groups::new(snapshot, Some(stacks), |row| (row.time_ns < moment_ns).into())
    }

    fn new(snapshot: &'a Snapshot, stacks: Option<&CallStacks>, apart: impl Fn(&Row) -> u64 + Sync) -> Groups<'a> {
        let blocks = Blocks::of(&snapshot.allocations);
        let carriers = Carriers::of(&snapshot.allocations, &blocks);
        let sums = count(snapshot, &carriers, &apart);
        Groups::of_sums(snapshot, stacks, blocks, carriers, sums)
    }

    fn by_size(snapshot: &'a Snapshot, stacks: &CallStacks, since_ns: u64, apart: impl Fn(u64) -> bool) -> Groups<'a> {
        let blocks = Blocks::of(&snapshot.allocations);
        let carriers = Carriers::of(&snapshot.allocations, &blocks);
        let sums = count_sizes(snapshot, &carriers, since_ns, apart);
        Groups::of_sums(snapshot, Some(stacks), blocks, carriers, sums)
    }

    fn of_sums(
        snapshot: &'a Snapshot,
        stacks: Option<&CallStacks>,
        blocks: Blocks<'a>,
        carriers: Carriers<'a>,
        sums: Vec<Sum>,
    ) -> Groups<'a> {
        let watched = Watched::of(snapshot);
        let groups = sums.into_iter().map(|sum| {
            let call = &snapshot.allocations.calls[sum.key.call as usize];
            let (stack, owner) = (stack_of(sum.key.stack), carriers.name(sum.key.owner));
            Group {
                call,
                stack,
                level: level(call, stacks.map(|stacks| stacks.get(stack)), owner, &watched),
                owner,
                bytes: sum.bytes,
                count: sum.count,
                smallest: sum.smallest,
                largest: sum.largest,
                oldest_ns: sum.oldest_ns,
                newest_ns: sum.newest_ns,
            }
        });
        Groups {
            all: groups.collect(),
            watched,
            carriers,
            blocks,
        }
    }

    /// The level of one record.
    pub fn level(&self, allocation: &Allocation, stacks: &CallStacks) -> Level {
        let owner = self.carriers.number(allocation.address, allocation.kind);
        let owner = self.carriers.name(owner);
        level(
            allocation.call,
            Some(stacks.get(allocation.stack)),
            owner,
            &self.watched,
        )
    }

    /// Batches of records that stand in the list that people read.
    pub fn listed(&self) -> impl Iterator<Item = &Group<'a>> {
        self.all.iter().filter(|group| group.level.is_listed())
    }

    /// Gives back what only the ledger needs.
    pub(crate) fn forget_blocks(&mut self) {
        self.blocks = Blocks::default();
    }
}

fn level(call: &Call, stack: Option<&CallStack>, owner: Option<&str>, watched: &Watched) -> Level {
    let allocator = stack.and_then(|stack| stack.allocator);
    let blocks_are_known = owner.is_some() || allocator.is_some_and(|allocator| watched.contains(allocator));
    Level::of(call.kind, allocator.is_some(), blocks_are_known)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    stack: u32,
    call: u32,
    /// As [`Carriers::number`] says.
    owner: u32,
    apart: u64,
}

struct Sum {
    key: Key,
    /// The next sum of the same stack.
    next: u32,
    count: u64,
    bytes: u128,
    smallest: u64,
    largest: u64,
    oldest_ns: u64,
    newest_ns: u64,
}

/// No sum.
const END: u32 = u32::MAX;
/// So many sums of a stack are looked through before the map is asked.
const CHAIN: usize = 8;

/// Sums in the order in which they are met first. Records come millions to a stack, so a sum is found by its stack's
/// number without hashing; a stack with many sums has those behind the first few in a map.
struct Sums {
    sums: Vec<Sum>,
    /// By stack; the last place is for records without one.
    first: Vec<u32>,
    behind: HashMap<Key, u32>,
}

impl Sums {
    fn new(stacks: usize) -> Sums {
        Sums {
            sums: Vec::new(),
            first: vec![END; stacks + 1],
            behind: HashMap::default(),
        }
    }

    fn join(&mut self, sum: Sum) {
        let stack = (sum.key.stack as usize).min(self.first.len() - 1);
        let (mut place, mut last) = (self.first[stack], END);
        for _ in 0..CHAIN {
            let Some(known) = self.sums.get_mut(place as usize) else {
                let added = self.sums.len() as u32;
                match self.sums.get_mut(last as usize) {
                    Some(last) => last.next = added,
                    None => self.first[stack] = added,
                }
                return self.sums.push(sum);
            };
            if known.key == sum.key {
                return known.join(&sum);
            }
            (last, place) = (place, known.next);
        }
        let added = self.sums.len() as u32;
        let place = *self.behind.entry(sum.key).or_insert(added);
        match self.sums.get_mut(place as usize) {
            Some(known) => known.join(&sum),
            None => self.sums.push(sum),
        }
    }
}

impl Sum {
    fn join(&mut self, other: &Sum) {
        self.bytes += other.bytes;
        self.count += other.count;
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.newest_ns = self.newest_ns.max(other.newest_ns);
    }
}

/// Below so many records a second thread costs more than it saves.
const MANY: usize = 1 << 16;

fn count(snapshot: &Snapshot, carriers: &Carriers, apart: &(impl Fn(&Row) -> u64 + Sync)) -> Vec<Sum> {
    let allocations = &snapshot.allocations;
    let progress = Progress::over("adding up", allocations.len() as u64, Unit::Of("records"));
    let count = |rows: &[Row]| {
        let mut sums = Sums::new(snapshot.stacks.len());
        for (nth, row) in rows.iter().enumerate() {
            progress.tick(nth);
            sums.join(Sum {
                key: Key {
                    stack: row.stack,
                    call: row.call,
                    owner: carriers.number(row.address, allocations.calls[row.call as usize].kind),
                    apart: apart(row),
                },
                next: END,
                bytes: row.bytes.into(),
                count: 1,
                smallest: row.bytes,
                largest: row.bytes,
                oldest_ns: row.time_ns,
                newest_ns: row.time_ns,
            });
        }
        sums
    };
    let rows = &allocations.rows;
    if rows.len() < MANY {
        return count(rows).sums;
    }
    let (earlier, later) = rows.split_at(rows.len() / 2);
    let (mut sums, others) = std::thread::scope(|scope| {
        let others = scope.spawn(|| count(later));
        (count(earlier), others.join())
    });
    match others {
        Ok(others) => others
            .sums
            .into_iter()
            .for_each(|sum| sums.join(Sum { next: END, ..sum })),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    sums.sums
}

/// The same with a sum for each size that is wanted apart. There may be as many sums as records, and looking for each in a
/// large table would be a cache miss or four; so the records are sorted instead.
fn count_sizes(snapshot: &Snapshot, carriers: &Carriers, since_ns: u64, apart: impl Fn(u64) -> bool) -> Vec<Sum> {
    struct Sized {
        stack: u32,
        call: u32,
        owner: u32,
        bytes: u64,
        time_ns: u64,
    }
    let allocations = &snapshot.allocations;
    let mut sized: Vec<Sized> = Vec::with_capacity(allocations.len());
    let progress = Progress::over("adding up", allocations.len() as u64, Unit::Of("records"));
    for (nth, row) in allocations.rows.iter().enumerate() {
        progress.tick(nth);
        if row.time_ns < since_ns {
            continue;
        }
        sized.push(Sized {
            stack: row.stack,
            call: row.call,
            owner: carriers.number(row.address, allocations.calls[row.call as usize].kind),
            bytes: row.bytes,
            time_ns: row.time_ns,
        });
    }
    let key = |each: &Sized| (each.stack, each.call, each.owner, each.bytes);
    in_two_threads(&mut sized, &|part| part.sort_unstable_by_key(key), &|all, middle| {
        all.select_nth_unstable_by_key(middle, key);
    });
    let together = |a: &Sized, b: &Sized| {
        let alike = (a.stack, a.call, a.owner) == (b.stack, b.call, b.owner);
        alike && (a.bytes == b.bytes || !apart(a.bytes) && !apart(b.bytes))
    };
    let sum = |alike: &[Sized]| Sum {
        key: Key {
            stack: alike[0].stack,
            call: alike[0].call,
            owner: alike[0].owner,
            apart: alike[0].bytes,
        },
        next: END,
        count: alike.len() as u64,
        bytes: alike.iter().map(|each| u128::from(each.bytes)).sum(),
        smallest: alike[0].bytes,
        largest: alike[alike.len() - 1].bytes,
        oldest_ns: alike.iter().map(|each| each.time_ns).min().unwrap_or(0),
        newest_ns: alike.iter().map(|each| each.time_ns).max().unwrap_or(0),
    };
    sized.chunk_by(together).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{leaky, training};

    #[test]
    fn a_batch_is_all_records_of_one_stack_and_call() {
        let snapshot = leaky();
        let stacks = CallStacks::of(&snapshot);
        let groups = Groups::of(&snapshot, &stacks);
        let counts: Vec<u64> = groups.all.iter().map(|group| group.count).collect();
        assert_eq!(counts.iter().sum::<u64>(), snapshot.allocations.len() as u64);
        let first = &groups.all[0];
        assert_eq!((first.count, first.smallest, first.largest), (128, 9 << 20, 9 << 20));
        assert!(first.oldest_ns < first.newest_ns);
    }

    #[test]
    fn a_stack_with_many_sorts_of_records_has_a_batch_for_each() {
        let mut snapshot = leaky();
        let (mut nth, kinds) = (0, 40);
        snapshot.allocations.change(|_, allocation, call| {
            (allocation.stack, allocation.bytes, call.pool) = (Some(0), nth, Some(nth % kinds));
            nth += 1;
        });
        let stacks = CallStacks::of(&snapshot);
        let calls: std::collections::HashSet<_> = snapshot.allocations.iter().map(|a| a.call).collect();
        let groups = Groups::of(&snapshot, &stacks);
        assert!(calls.len() > 4 * CHAIN && groups.all.len() == calls.len());
        for group in &groups.all {
            let members: Vec<_> = snapshot.allocations.iter().filter(|a| a.call == group.call).collect();
            let bytes = members.iter().map(|a| u128::from(a.bytes)).sum::<u128>();
            assert_eq!((group.count, group.bytes), (members.len() as u64, bytes));
        }
        assert_eq!(Groups::with_sizes_apart(&snapshot, &stacks, 0).all.len() as u64, nth);
    }

    #[test]
    fn two_threads_count_as_one_does() {
        let mut snapshot = training().finish(0, 0);
        let few = snapshot.allocations.clone();
        while snapshot.allocations.len() < 2 * MANY {
            snapshot.allocations.rows.extend_from_slice(&few.rows);
        }
        let times = (snapshot.allocations.len() / few.len()) as u64;
        let stacks = CallStacks::of(&snapshot);
        let many = Groups::of(&snapshot, &stacks).all;
        let once = training().finish(0, 0);
        let one = Groups::of(&once, &stacks).all;
        assert_eq!(one.len(), many.len());
        for (one, many) in one.iter().zip(many) {
            let (bytes, count) = (one.bytes * u128::from(times), one.count * times);
            assert_eq!(many, Group { bytes, count, ..*one });
        }
    }
}
