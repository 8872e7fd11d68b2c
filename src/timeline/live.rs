//! The blocks that were live at a time: those of the final state that existed by then, and those that were freed later.
//!
//! ```text
//!            the time                  the end
//! ───────────────┼────────────────────────┤
//!   ├────────────┼────────────────────────┤    a row of the final state, allocated by then
//!   ├────────────┼───────┤ free                a free after the time; its lifetime says: allocated by then
//!                │  ├────┤ free                allocated later
//! ├──┤ free … restored ──┼─────────────────    a free that failed: the block was live all the time
//! ```
//!
//! A free repeats what is known of its allocation, and how long ago that was. So the log need not contain the allocation, and
//! the order of events of different threads at the same address does not matter. Lifetimes are exact to 0.1 %: if that
//! leaves open whether the allocation came before the time, the allocation is in the log after the time, or else it came
//! before.

use foldhash::{HashMap, HashSet};

use super::{ADDRESS, Event, Op, Site, Timeline, UNIT};
use crate::format::{lifetime_code, lifetime_ns};
use crate::kind::Kind;
use crate::snapshot::{Call, Snapshot};

/// The blocks that were live at a time.
pub struct Live {
    /// Rows of the final state that were not live: allocated later, or being freed at that time.
    pub absent: Vec<u32>,
    /// Blocks that were freed later, in the order in which they were freed.
    pub freed_later: Vec<Block>,
}

/// A block that was freed after the time.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub address: u64,
    pub bytes: u64,
    pub site: u32,
    /// Exact to 8 ns if the log has the allocation, otherwise to 0.1 % of the lifetime.
    pub allocated_ns: u64,
    pub thread: Option<u32>,
    /// When it was allocated, at the earliest and at the latest.
    earliest_ns: u64,
    latest_ns: u64,
    was_live: bool,
}

impl Block {
    fn of(free: &Event) -> Block {
        // The free happened in the 8 ns that begin at its time.
        let longest = longest_lifetime(free.lifetime_ns);
        Block {
            address: free.address,
            bytes: free.bytes,
            site: free.site,
            allocated_ns: free.time_ns.saturating_sub(free.lifetime_ns),
            thread: None,
            earliest_ns: free.time_ns.saturating_sub(longest) & !UNIT,
            latest_ns: (free.time_ns | UNIT).saturating_sub(free.lifetime_ns),
            was_live: true,
        }
    }

    /// Whether this may be the time at which the block was allocated.
    pub fn may_begin_at(&self, time_ns: u64) -> bool {
        (self.earliest_ns..=self.latest_ns).contains(&time_ns)
    }
}

/// The longest lifetime with the code of this one.
fn longest_lifetime(lifetime: u64) -> u64 {
    match lifetime_code(lifetime).checked_add(1) {
        Some(next) => lifetime_ns(next) - 1,
        None => u64::MAX,
    }
}

/// Kind and allocator: no two live blocks of one class have the same address.
pub struct Classes<'a> {
    numbers: HashMap<(Kind, Option<&'a str>), u32>,
    of_sites: Vec<u32>,
}

/// Class and address of a block.
pub type Place = (u32, u64);

impl<'a> Classes<'a> {
    pub fn of(sites: &'a [Site]) -> Classes<'a> {
        let mut numbers = HashMap::default();
        let of_sites = sites.iter().map(|site| {
            let next = numbers.len() as u32;
            *numbers.entry((site.kind, site.domain.as_deref())).or_insert(next)
        });
        let of_sites = of_sites.collect();
        Classes { numbers, of_sites }
    }

    pub fn place(&self, event: &Event) -> Place {
        (self.of_sites[event.site as usize], event.address)
    }

    /// `None`: no event is about such memory.
    pub fn place_of_row(&self, call: &Call, address: u64) -> Option<Place> {
        let class = self.numbers.get(&(call.kind, call.domain.as_deref()))?;
        Some((*class, address & ADDRESS))
    }

    pub fn place_of_block(&self, block: &Block) -> Place {
        (self.of_sites[block.site as usize], block.address)
    }
}

/// What a free freed, as seen from the time.
enum Freed {
    /// The block with this number, which was live.
    Live(usize),
    /// A block that was being freed: this is a second attempt.
    InFlight,
    /// A block that was allocated later.
    Younger,
}

impl Timeline {
    /// What was live at `at_ns`, which [`Timeline::known`] returned.
    pub(super) fn live_at(&self, snapshot: &Snapshot, classes: &Classes, at_ns: u64) -> Live {
        let later = || self.between(at_ns, u64::MAX);
        let restored: HashSet<Place> = later()
            .filter(|event| event.op == Op::Restored)
            .map(|event| classes.place(&event))
            .collect();
        let mut blocks: Vec<Block> = Vec::new();
        // Of the places in `restored`: what the last free freed, and blocks that were being freed at the time.
        let mut last_free: HashMap<Place, Freed> = HashMap::default();
        let mut in_flight: HashSet<Place> = HashSet::default();
        for event in later() {
            match event.op {
                Op::Allocated => {}
                Op::Freed => {
                    let block = Block::of(&event);
                    let may_be_live = block.earliest_ns <= at_ns;
                    let place = (!restored.is_empty()).then(|| classes.place(&event));
                    let place = place.filter(|place| restored.contains(place));
                    let was_in_flight = place.is_some_and(|place| may_be_live && in_flight.remove(&place));
                    if let Some(place) = place {
                        last_free.insert(
                            place,
                            match (was_in_flight, may_be_live) {
                                (true, _) => Freed::InFlight,
                                (false, true) => Freed::Live(blocks.len()),
                                (false, false) => Freed::Younger,
                            },
                        );
                    }
                    if may_be_live && !was_in_flight {
                        blocks.push(block);
                    }
                }
                Op::Restored => match last_free.remove(&classes.place(&event)) {
                    // A later free, or a row of the final state, accounts for the block.
                    Some(Freed::Live(number)) => blocks[number].was_live = false,
                    Some(Freed::Younger) => {}
                    Some(Freed::InFlight) | None => {
                        in_flight.insert(classes.place(&event));
                    }
                },
            }
        }
        self.exclude_younger(&mut blocks, at_ns);
        blocks.retain(|block| block.was_live);
        self.find_allocations(&mut blocks, at_ns);
        Live {
            absent: absent_rows(snapshot, classes, at_ns, &in_flight),
            freed_later: blocks,
        }
    }

    /// Excludes the blocks whose allocation is in the log after the time.
    fn exclude_younger(&self, blocks: &mut [Block], at_ns: u64) {
        let open = |block: &&mut Block| block.was_live && block.latest_ns > at_ns;
        let Some(latest) = blocks.iter_mut().filter(open).map(|block| block.latest_ns).max() else {
            return;
        };
        let mut by_place: HashMap<(u32, u64), Vec<&mut Block>> = HashMap::default();
        for block in blocks.iter_mut().filter(open) {
            by_place.entry((block.site, block.address)).or_default().push(block);
        }
        for event in self.between(at_ns, latest) {
            if event.op != Op::Allocated {
                continue;
            }
            for block in by_place.get_mut(&(event.site, event.address)).into_iter().flatten() {
                if block.bytes == event.bytes && block.may_begin_at(event.time_ns) {
                    block.was_live = false;
                }
            }
        }
        for block in by_place.into_values().flatten() {
            block.latest_ns = at_ns;
            block.allocated_ns = block.allocated_ns.min(at_ns);
        }
    }

    /// Finds the time and the thread of the allocations that are in the log.
    fn find_allocations(&self, blocks: &mut [Block], at_ns: u64) {
        let Some(earliest) = blocks.iter().map(|block| block.earliest_ns).min() else {
            return;
        };
        let by_place = blocks.iter().enumerate();
        let by_place: HashMap<(u32, u64), u32> = by_place
            .map(|(number, block)| ((block.site, block.address), number as u32))
            .collect();
        for event in self.between(earliest.saturating_sub(1), at_ns) {
            if event.op != Op::Allocated {
                continue;
            }
            let Some(&number) = by_place.get(&(event.site, event.address)) else {
                continue;
            };
            let block = &mut blocks[number as usize];
            if block.bytes == event.bytes && block.may_begin_at(event.time_ns) {
                (block.allocated_ns, block.thread) = (event.time_ns, event.thread);
            }
        }
    }
}

fn absent_rows(snapshot: &Snapshot, classes: &Classes, at_ns: u64, in_flight: &HashSet<Place>) -> Vec<u32> {
    let rows = (0..).zip(&snapshot.allocations);
    let absent = rows.filter(|(_, row)| {
        let place = || classes.place_of_row(row.call, row.address);
        row.time_ns > at_ns || !in_flight.is_empty() && place().is_some_and(|place| in_flight.contains(&place))
    });
    absent.map(|(number, _)| number).collect()
}
