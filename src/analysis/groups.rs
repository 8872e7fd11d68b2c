//! Groups: ten million live records summarized as a few thousand groups.
//!
//! Records with the same stack, call and level differ only in size, age and address. They are counted once, in up to
//! two threads with half of the stacks each. Everything that follows (reports, diffs, checks, most of the ledger) works
//! on the groups.
//!
//! # Levels
//!
//! A snapshot lists memory twice: what the driver handed out, and the blocks that a framework handed out from it. A
//! report must count each byte once. The [`Level`] of a record says how it counts:
//!
//! - If a framework's blocks were recorded, the blocks are *held*, and the pool that contains them is *behind* them: it
//!   is not listed.
//! - If a caching allocator's blocks were not recorded, its pool is listed as *cached*: which part of it is in use is
//!   not known.
//! - Mappings, address ranges and pool objects are *claims*: they hold no memory.
//! - All other memory is *held*.
//!
//! Rows of a peak are sums over several blocks: they are counted with their numbers of blocks, and have no sizes.
//!
//! If stacks were sampled, groups hold what was recorded. [`Groups::by_stack`] returns what their stacks stand for instead.
//!
//! Deliberately absent: ranking; see `report`.

use foldhash::HashMap;

use crate::analysis::estimate::{Errors, Estimate, NEVER_UNSEEN, Unchosen};
use crate::analysis::framework::{Blocks, Carriers, Watched};
use crate::analysis::site::{CallStack, CallStacks, is_pool};
use crate::kind::{Kind, Place};
use crate::named;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::allocations::{Row, in_two_threads, stack_of};
use crate::snapshot::{Allocation, Call, Sampling, Snapshot};
use crate::tally::Tally;

named! {
    /// How a record counts in a report. The names are for data for other tools.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum Level {
        /// Memory in use. It is leaked if the process has ended.
        Held = "held",
        /// Memory of a caching allocator whose blocks were not recorded. Which part of it is in use is not known.
        Cached = "cached",
        /// Memory of a caching allocator whose blocks were recorded. The blocks are listed instead of it.
        Behind = "behind",
        /// No memory: a mapping, an address range or a pool object.
        Claim = "claim",
    }
}

impl Level {
    /// The level of a record of this kind. `in_pool`: a caching allocator requested it. `blocks_are_known`: the blocks
    /// in it were recorded.
    pub fn of(kind: Kind, in_pool: bool, blocks_are_known: bool) -> Level {
        match kind.place() {
            Place::Within => Level::Held,
            // Blocks on the host are never recorded, so a pool there is listed itself.
            Place::Device | Place::Managed | Place::Nowhere if blocks_are_known => Level::Behind,
            Place::Nowhere => Level::Claim,
            _ if is_pool(kind, in_pool) => Level::Cached,
            _ => Level::Held,
        }
    }

    /// Whether totals of memory include the record: neither what blocks are listed instead of, nor claims.
    pub fn is_counted(self) -> bool {
        matches!(self, Level::Held | Level::Cached)
    }

    /// Whether reports list the record.
    pub fn is_listed(self) -> bool {
        self != Level::Behind
    }
}

/// Live records that differ only in size, age and address.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group<'a> {
    pub call: &'a Call,
    pub stack: Option<usize>,
    pub level: Level,
    /// The framework whose blocks lie in these records.
    pub owner: Option<&'a str>,
    /// The exact sum, which may exceed 64 bits.
    pub bytes: u128,
    pub count: u64,
    /// 0, as is `largest`, if the sizes of single blocks are unknown.
    pub smallest: u64,
    pub largest: u64,
    /// Time of the first allocation.
    pub oldest_ns: u64,
    /// Time of the last allocation.
    pub newest_ns: u64,
    /// What the records stand for, if stacks were sampled and these have one.
    pub estimate: Option<Estimate>,
    /// Sampling has left out the stacks of these records.
    pub is_left_out: bool,
    /// What separates these records from others that are alike.
    pub apart: u64,
}

impl<'a> Group<'a> {
    pub fn tally(&self) -> Tally {
        Tally::new(u64::try_from(self.bytes).unwrap_or(u64::MAX), self.count)
    }

    /// The group with what its records stand for in place of what they are; `None`: their stacks were left out.
    fn by_stack(&self) -> Option<Group<'a>> {
        let Tally { bytes, count } = self.at_stack();
        (!self.is_left_out).then_some(Group {
            bytes: bytes.into(),
            count,
            ..*self
        })
    }

    /// The memory of the group's stack: exact, or an estimate from the records that have a stack.
    pub fn at_stack(&self) -> Tally {
        match self.estimate {
            _ if self.is_left_out => Tally::default(),
            Some(estimate) => estimate.tally(),
            None => self.tally(),
        }
    }
}

/// All live records of a snapshot, in groups.
pub struct Groups<'a> {
    /// In the order of their first records; groups by size are in no particular order.
    pub all: Vec<Group<'a>>,
    pub watched: Watched<'a>,
    pub(crate) carriers: Carriers<'a>,
    pub(crate) blocks: Blocks<'a>,
    sampling: Option<Sampling>,
    /// The records are sums by stack, of a peak.
    pub(crate) is_summed: bool,
    /// The most that blocks without a row may hold, if this is a peak and stacks were sampled.
    unseen: u64,
}

impl<'a> Groups<'a> {
    pub fn of(snapshot: &'a Snapshot, stacks: &CallStacks) -> Groups<'a> {
        Groups::new(snapshot, Some(stacks), |_| 0)
    }

    /// Groups without looking at stacks, so levels take no caching allocators on them into account.
    pub fn without_stacks(snapshot: &'a Snapshot) -> Groups<'a> {
        Groups::new(snapshot, None, |_| 0)
    }

    /// Groups of the records made since this time, with one group per size.
    pub fn with_sizes_apart(snapshot: &'a Snapshot, stacks: &CallStacks, since_ns: u64) -> Groups<'a> {
        let blocks = Blocks::of(&snapshot.allocations);
        let carriers = Carriers::of(&snapshot.allocations, &blocks);
        let counted = count_sizes(snapshot, &carriers, since_ns);
        Groups::of_counted(snapshot, Some(stacks), blocks, carriers, counted)
    }

    /// Groups as those of [`Groups::split_at`], with one for each of the sizes that `apart` accepts.
    pub fn with_these_sizes_apart(
        snapshot: &'a Snapshot,
        stacks: &CallStacks,
        time_ns: u64,
        apart: impl Fn(u64) -> bool + Sync,
    ) -> Groups<'a> {
        Groups::new(snapshot, Some(stacks), |row| match apart(row.bytes) {
            _ if row.time_ns < time_ns => u64::MAX,
            true => row.bytes,
            false => u64::MAX - 1,
        })
    }

    /// Groups that contain either only records made before this time, or only later ones.
    pub fn split_at(snapshot: &'a Snapshot, stacks: &CallStacks, time_ns: u64) -> Groups<'a> {
        Groups::new(snapshot, Some(stacks), |row| (row.time_ns < time_ns).into())
    }

    /// `apart`: separates records that are otherwise alike.
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        stacks: Option<&CallStacks>,
        apart: impl Fn(&Row) -> u64 + Sync,
    ) -> Groups<'a> {
        let blocks = Blocks::of(&snapshot.allocations);
        let carriers = Carriers::of(&snapshot.allocations, &blocks);
        let counted = count(snapshot, &carriers, &apart);
        Groups::of_counted(snapshot, stacks, blocks, carriers, counted)
    }

    fn of_counted(
        snapshot: &'a Snapshot,
        stacks: Option<&CallStacks>,
        blocks: Blocks<'a>,
        carriers: Carriers<'a>,
        counted: Vec<Counted>,
    ) -> Groups<'a> {
        let watched = Watched::of(snapshot);
        let sampling = snapshot.sampling;
        let left_out = sampling.and_then(|sampling| sampling.left_out);
        let missed = sampling.map_or(0.0, |sampling| {
            let mut unchosen = Unchosen::default();
            let rows = snapshot.allocations.rows.iter();
            let without = rows.filter(|row| left_out.is_some() && stack_of(row.stack) == left_out);
            without.for_each(|row| unchosen.add(row.bytes));
            unchosen.blocks_in(sampling.most())
        });
        let groups = counted.into_iter().map(|mut group| {
            group.estimate.lacks(missed);
            let call = &snapshot.allocations.calls[group.key.call as usize];
            let (stack, owner) = (stack_of(group.key.stack), carriers.name(group.key.owner));
            Group {
                call,
                stack,
                level: level(call, stacks.map(|stacks| stacks.get(stack)), owner, &watched),
                owner,
                bytes: group.bytes,
                count: group.count,
                smallest: group.smallest,
                largest: group.largest,
                oldest_ns: group.oldest_ns,
                newest_ns: group.newest_ns,
                is_left_out: left_out.is_some() && stack == left_out,
                apart: group.key.apart,
                estimate: sampling.is_some().then_some(group.estimate),
            }
        });
        Groups {
            all: groups.collect(),
            watched,
            carriers,
            blocks,
            sampling,
            is_summed: snapshot.allocations.is_summed(),
            unseen: sampling.map_or(0, |sampling| {
                let peaks = snapshot.counters.iter().map(|counter| counter.peak_bytes);
                let most = peaks.fold(0, u64::saturating_add);
                most.min(sampling.most().saturating_mul(NEVER_UNSEEN))
            }),
        }
    }

    /// The memory of the listed groups that `wanted` accepts, of groups that are not by stack: exact, also if stacks were sampled.
    /// Only sums of a peak are estimates, with these errors.
    pub fn total(&self, wanted: impl Fn(&Group) -> bool) -> (Tally, Option<Errors>) {
        let groups = || self.listed().filter(|group| wanted(group));
        let total = Tally::total(groups().map(Group::tally));
        if self.sampling.is_none() || !self.is_summed {
            return (total, None);
        }
        let mut estimate = Estimate::default();
        groups()
            .filter_map(|group| group.estimate)
            .for_each(|of_group| estimate.join(&of_group));
        // No block was chosen, or each for certain: the others have no row.
        let missed = Errors {
            bytes_error: self.unseen,
            count_error: None,
        };
        let errors = estimate.errors().or((self.unseen > 0).then_some(missed));
        (total, errors)
    }

    /// The groups for sums by stack: with sampled stacks, what they stand for. Otherwise the groups as they are.
    pub fn by_stack(mut self) -> Groups<'a> {
        if self.sampling.is_some() {
            self.all = self.estimated();
        }
        self
    }

    /// As [`Groups::by_stack`], beside the groups as they are. The whole numbers of one stack's groups add up to its rounded sum.
    pub fn estimated(&self) -> Vec<Group<'a>> {
        let mut groups: Vec<Group> = self.all.iter().filter_map(Group::by_stack).collect();
        // In an order that does not depend on how the groups were found.
        groups.sort_by_key(|group| (group.stack, group.largest, group.oldest_ns));
        let mut before: HashMap<Option<usize>, Estimate> = HashMap::default();
        for group in &mut groups {
            if let Some(estimate) = group.estimate {
                let Tally { bytes, count } = estimate.part(before.entry(group.stack).or_default());
                (group.bytes, group.count) = (bytes.into(), count);
            }
        }
        groups
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

    /// The groups that reports list.
    pub fn listed(&self) -> impl Iterator<Item = &Group<'a>> {
        self.all.iter().filter(|group| group.level.is_listed())
    }

    pub(crate) fn of_place(&self, place: Place) -> impl Iterator<Item = &Group<'a>> {
        self.all.iter().filter(move |group| group.call.kind.place() == place)
    }

    /// Frees the memory of data that only the ledger needs.
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
    /// From [`Carriers::number`].
    owner: u32,
    /// Separates records that are otherwise alike.
    apart: u64,
}

/// A group under construction.
struct Counted {
    key: Key,
    /// The next group of the same stack.
    next: u32,
    /// Number of the first record.
    first: u32,
    count: u64,
    bytes: u128,
    smallest: u64,
    largest: u64,
    oldest_ns: u64,
    newest_ns: u64,
    /// 0 unless stacks were sampled.
    estimate: Estimate,
}

/// The end of a list of groups.
const END: u32 = u32::MAX;
/// The most groups of a stack that are searched linearly.
const CHAIN: usize = 8;

/// Records that are looked at together.
const AHEAD: usize = 16;

/// Groups in the order of their first records. A stack may have millions of records, so groups are found by the number
/// of the stack, without hashing. If a stack has many groups, those after the first few are in a map.
struct Counter {
    groups: Vec<Counted>,
    /// The first group of each stack; the last element is for records without a stack.
    first: Vec<u32>,
    behind: HashMap<Key, u32>,
}

impl Counter {
    fn new(stacks: usize) -> Counter {
        Counter {
            groups: Vec::new(),
            first: vec![END; stacks + 1],
            behind: HashMap::default(),
        }
    }

    fn stack(&self, number: u32) -> usize {
        (number as usize).min(self.first.len() - 1)
    }

    /// Reads the groups that these records will be compared with, so that they are in the cache. These reads need not wait
    /// for one another, as those of [`Counter::join`] must.
    fn look_ahead<'r>(&self, rows: impl Iterator<Item = &'r Row>) {
        let mut places = [END; AHEAD];
        for (place, row) in places.iter_mut().zip(rows) {
            *place = self.first[self.stack(row.stack)];
        }
        for _ in 0..3 {
            for place in &mut places {
                *place = self.groups.get(*place as usize).map_or(END, |group| group.next);
            }
        }
        std::hint::black_box(places);
    }

    fn join(&mut self, group: Counted) {
        let stack = self.stack(group.key.stack);
        let (mut place, mut last) = (self.first[stack], END);
        for _ in 0..CHAIN {
            let Some(known) = self.groups.get_mut(place as usize) else {
                let added = self.groups.len() as u32;
                match self.groups.get_mut(last as usize) {
                    Some(last) => last.next = added,
                    None => self.first[stack] = added,
                }
                return self.groups.push(group);
            };
            if known.key == group.key {
                return known.join(&group);
            }
            (last, place) = (place, known.next);
        }
        let added = self.groups.len() as u32;
        let place = *self.behind.entry(group.key).or_insert(added);
        match self.groups.get_mut(place as usize) {
            Some(known) => known.join(&group),
            None => self.groups.push(group),
        }
    }
}

impl Counted {
    fn join(&mut self, other: &Counted) {
        self.bytes += other.bytes;
        self.count += other.count;
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.newest_ns = self.newest_ns.max(other.newest_ns);
        self.estimate.join(&other.estimate);
    }
}

/// Below this number of records, a second thread costs more than it saves.
const MANY: usize = 1 << 16;

fn count(snapshot: &Snapshot, carriers: &Carriers, apart: &(impl Fn(&Row) -> u64 + Sync)) -> Vec<Counted> {
    let allocations = &snapshot.allocations;
    let progress = Progress::over("adding up", allocations.len() as u64, Unit::Of("records"));
    let summed = allocations.is_summed();
    let estimate = |row: &Row, count: u64| match snapshot.sampling {
        None => Estimate::default(),
        Some(sampling) => {
            let call = &allocations.calls[row.call as usize];
            match summed {
                true => Estimate::of_sum(sampling, call, Tally::new(row.bytes, count)),
                false => Estimate::of_block(sampling, call, row.bytes),
            }
        }
    };
    let rows = &allocations.rows;
    // Counts the records of each `parts`th stack.
    let count = |part: u32, parts: u32| {
        let mut counter = Counter::new(snapshot.stacks.len());
        let is_mine = |row: &Row| row.stack % parts == part;
        for (nth, row) in rows.iter().enumerate() {
            if part == 0 {
                progress.tick(nth);
            }
            if nth.is_multiple_of(AHEAD) {
                counter.look_ahead(rows[nth..].iter().take(AHEAD).filter(|row| is_mine(row)));
            }
            if !is_mine(row) {
                continue;
            }
            let size = if summed { 0 } else { row.bytes };
            counter.join(Counted {
                key: Key {
                    stack: row.stack,
                    call: row.call,
                    owner: carriers.number(row.address, allocations.calls[row.call as usize].kind),
                    apart: apart(row),
                },
                next: END,
                first: nth as u32,
                bytes: row.bytes.into(),
                count: allocations.count(nth),
                smallest: size,
                largest: size,
                oldest_ns: row.time_ns,
                newest_ns: row.time_ns,
                estimate: estimate(row, allocations.count(nth)),
            });
        }
        counter.groups
    };
    if rows.len() < MANY {
        return count(0, 1);
    }
    let (mut groups, others) = std::thread::scope(|scope| {
        let others = scope.spawn(|| count(1, 2));
        (count(0, 2), others.join())
    });
    match others {
        Ok(others) => groups.extend(others),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    groups.sort_by_key(|group| group.first);
    groups
}

/// Counts with a group for each size. There may be as many groups as records, and finding each in a large table would cost several
/// cache misses. The records are sorted instead.
fn count_sizes(snapshot: &Snapshot, carriers: &Carriers, since_ns: u64) -> Vec<Counted> {
    struct Sized {
        stack: u32,
        call: u32,
        owner: u32,
        bytes: u64,
        time_ns: u64,
    }
    let allocations = &snapshot.allocations;
    // Sums have no sizes.
    if allocations.is_summed() {
        return count(snapshot, carriers, &|_| 0);
    }
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
    let estimate = |alike: &[Sized]| {
        let mut sum = Estimate::default();
        if let Some(sampling) = snapshot.sampling {
            let of = |each: &Sized| Estimate::of_block(sampling, &allocations.calls[each.call as usize], each.bytes);
            alike.iter().for_each(|each| sum.join(&of(each)));
        }
        sum
    };
    let counted = |alike: &[Sized]| Counted {
        key: Key {
            stack: alike[0].stack,
            call: alike[0].call,
            owner: alike[0].owner,
            apart: alike[0].bytes,
        },
        next: END,
        first: 0,
        count: alike.len() as u64,
        bytes: alike.iter().map(|each| u128::from(each.bytes)).sum(),
        smallest: alike[0].bytes,
        largest: alike[0].bytes,
        oldest_ns: alike.iter().map(|each| each.time_ns).min().unwrap_or(0),
        newest_ns: alike.iter().map(|each| each.time_ns).max().unwrap_or(0),
        estimate: estimate(alike),
    };
    sized.chunk_by(|a, b| key(a) == key(b)).map(counted).collect()
}

#[cfg(test)]
mod tests;
