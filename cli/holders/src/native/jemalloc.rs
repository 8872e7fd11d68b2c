//! jemalloc 5: its extents, and which pieces of them are in use.
//!
//! ```text
//! table ─► description of an extent: │ bits │ address │ size, number │ … 64: a bit per piece, set if it is free
//! bits, from 5.3:  arena 12 │ slab │ 4 flags │ state 3 │ class 8 │ free pieces 10 │ …     before: 3 flags, state 2
//! ```
//!
//! Entries of the table repeat the class in their upper bits, which shows the version. Extents whose number of free pieces
//! does not agree with their bits are left out, so they count as memory of an unknown allocator.
//!
//! Pieces in a thread's cache count as used in these bits. The caches are in thread-local memory:
//!
//! ```text
//! from 5.3:  │ stack of pointers │ requests │ low ends of: lowest fill, full stack, empty stack │
//! before:    │ lowest count, count │ requests │ end of the array of pointers │
//! ```

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;

use super::pages::{Kind, Pages};
use super::slabs::{Slab, Slabs};
use super::tree::{self, Shape, Tree};
use crate::copy::{Copy, PAGE};
use crate::modules::Modules;

const SHAPE: Shape = Shape {
    top: 30,
    page: 12,
    describes,
};
const BITMAP: u64 = 64;
/// Pieces of a slab.
const MOST_PIECES: u64 = 512;
/// Alignment and unit of the memory that the descriptions are in.
const BASE: u64 = 2 << 20;

/// Lowest bits of the fields, and the width of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    state: u32,
    state_width: u32,
    class: u32,
    free: u32,
}

const LAYOUTS: [Layout; 2] = [
    Layout {
        state: 17,
        state_width: 3,
        class: 20,
        free: 28,
    },
    Layout {
        state: 16,
        state_width: 2,
        class: 18,
        free: 26,
    },
];

/// The address of the description: the upper bits are the class, the lower ones are flags.
fn description(entry: u64) -> u64 {
    entry & ((1 << 48) - 1) & !63
}

fn range_of(copy: &Copy, description: u64) -> Range<u64> {
    let (address, size) = (copy.word(description + 8), copy.word(description + 16));
    let base = address & !(PAGE - 1);
    base..base.saturating_add(size & !(PAGE - 1))
}

fn describes(copy: &Copy, address: u64, entry: u64) -> bool {
    let description = description(entry);
    copy.has(description) && range_of(copy, description).contains(&address)
}

/// The size of the pieces of a class.
fn class_bytes(class: u64) -> u64 {
    let Some(reduced) = class.checked_sub(1) else { return 8 };
    let (group, step) = ((reduced >> 2).min(55), (reduced & 3) + 1);
    match group {
        0 => step << 4,
        _ => (32 << group) + (step << (group + 3)),
    }
}

struct Extent {
    description: u64,
    /// Whole pages.
    range: Range<u64>,
    entry: u64,
}

impl Extent {
    fn field(&self, copy: &Copy, lowest: u32, width: u32) -> u64 {
        copy.word(self.description) >> lowest & ((1 << width) - 1)
    }

    fn is_slab(&self, copy: &Copy) -> bool {
        self.field(copy, 12, 1) != 0
    }

    fn class(&self, copy: &Copy, layout: Layout) -> u64 {
        self.field(copy, layout.class, 8)
    }

    fn is_active(&self, copy: &Copy, layout: Layout) -> bool {
        self.field(copy, layout.state, layout.state_width) == 0
    }

    /// The slab of an active extent, with the number of its pieces that are free.
    fn slab(&self, copy: &Copy, layout: Layout) -> Option<(Slab, u64)> {
        let class = self.class(copy, layout);
        let (mut bytes, mut requested) = (class_bytes(class), class_bytes(class.saturating_sub(1)));
        let start = copy.word(self.description + 8);
        let whole = self.range.end - self.range.start;
        let (count, free) = match self.is_slab(copy) {
            true => (whole / bytes, self.field(copy, layout.free, 10)),
            false => (1, 0),
        };
        if !self.is_slab(copy) && bytes > self.range.end.saturating_sub(start) {
            // From 5.3.1 on, large sizes are multiples of a page. One more page lets the start vary.
            bytes = whole.checked_sub(PAGE).filter(|bytes| *bytes > 0)?;
            requested = bytes.saturating_sub(PAGE);
        }
        let slab = Slab {
            start,
            bytes,
            count,
            requested,
        };
        let end = bytes.checked_mul(count).and_then(|all| start.checked_add(all))?;
        let fits = start.is_multiple_of(8) && end <= self.range.end && (1..=MOST_PIECES).contains(&count);
        fits.then_some((slab, free))
    }

    /// The numbers of the free pieces of a slab. Bits in further words than those of its pieces are stale.
    fn free_pieces(&self, copy: &Copy, count: u64) -> Vec<u64> {
        let is_free = |number: &u64| copy.word(self.description + BITMAP + number / 64 * 8) >> (number % 64) & 1 != 0;
        (0..count.next_multiple_of(64)).filter(is_free).collect()
    }
}

/// Finds the pieces. `memory`: where they may be; `locals`: the thread-local memory of all threads.
pub fn find(
    copy: &Copy,
    modules: &Modules,
    pages: &mut Pages,
    memory: &[Range<u64>],
    locals: &[Range<u64>],
    slabs: &mut Slabs,
) {
    for tree in tree::find(copy, modules, pages, memory, &SHAPE) {
        let extents = extents(copy, pages, &tree);
        let Some(layout) = layout(copy, &extents) else { continue };
        let stacks = caches(copy, locals, &extents);
        // Without them, it is not known what is in use.
        if stacks.is_empty() {
            continue;
        }
        let (mut found, mut freed) = (Vec::new(), Vec::new());
        for extent in &extents {
            if !extent.is_active(copy, layout) {
                pages.set_kind(copy, extent.range.clone(), Kind::Extent);
                continue;
            }
            let Some((slab, free)) = extent.slab(copy, layout) else {
                continue;
            };
            let free_pieces = match extent.is_slab(copy) {
                true => extent.free_pieces(copy, slab.count),
                false => Vec::new(),
            };
            let is_consistent =
                free_pieces.len() as u64 == free && free_pieces.last().is_none_or(|last| *last < slab.count);
            if is_consistent {
                freed.extend(free_pieces.iter().map(|number| slab.start + number * slab.bytes));
                found.push(slab);
            }
        }
        slabs.add(copy, pages, &found);
        for start in freed {
            slabs.free(copy, start);
        }
        for stack in stacks {
            for place in stack.cached.clone().step_by(8) {
                slabs.free(copy, copy.word(place));
            }
            // The memory of the caches is a piece, too.
            if let Some(own) = slabs.piece(copy, stack.cached.start.saturating_sub(8)) {
                slabs.free(copy, own.start);
            }
        }
        exclude_descriptions(copy, pages, &tree, &extents);
        slabs.names.push("jemalloc");
    }
}

/// All extents whose first and last page lead to them, by address.
fn extents(copy: &Copy, pages: &Pages, tree: &Tree) -> Vec<Extent> {
    let mut firsts: HashMap<u64, (u64, u64), FixedState> = HashMap::default();
    tree.each(copy, pages, &SHAPE, &mut |address, entry| {
        firsts.entry(description(entry)).or_insert((address, entry));
    });
    let extent = |(description_at, (address, entry)): (u64, (u64, u64))| {
        // If this is no table of jemalloc, most of these are other addresses.
        if !copy.has(description_at) {
            return None;
        }
        let range = range_of(copy, description_at);
        let last = || description(tree.entry(copy, &SHAPE, range.end - PAGE));
        let is_extent = range.start == address && range.end > range.start && last() == description_at;
        is_extent.then_some(Extent {
            description: description_at,
            range,
            entry,
        })
    };
    let mut extents: Vec<Extent> = firsts.into_iter().filter_map(extent).collect();
    extents.sort_unstable_by_key(|extent| extent.range.start);
    extents
}

/// The layout by which the classes of nearly all active extents are those of the table.
fn layout(copy: &Copy, extents: &[Extent]) -> Option<Layout> {
    LAYOUTS.into_iter().find(|layout| {
        let active = || extents.iter().filter(|extent| extent.is_active(copy, *layout));
        let agrees = |extent: &&Extent| {
            extent.class(copy, *layout) == extent.entry >> 48 && extent.is_slab(copy) == (extent.entry & 1 != 0)
        };
        let right = active().filter(agrees).count();
        right > 0 && right * 10 >= active().count() * 9
    })
}

/// Pointers to the free pieces in a thread's cache.
struct CacheStack {
    cached: Range<u64>,
}

const CACHE_BYTES: u64 = 24;
/// Caches of a thread, at most.
const MOST_CACHES: u64 = 256;

fn caches(copy: &Copy, locals: &[Range<u64>], extents: &[Extent]) -> Vec<CacheStack> {
    let mut found = Vec::new();
    for range in locals {
        let mut at = range.start.next_multiple_of(8);
        while at + CACHE_BYTES <= range.end {
            let before = found.len();
            let read = stacks_of_thread(copy, at, range.end, &mut found);
            let read = if read > 0 {
                read
            } else {
                arrays_of_thread(copy, at, range.end, extents, &mut found)
            };
            at += read.max(1) * if found.len() > before { CACHE_BYTES } else { 8 };
        }
    }
    found
}

/// From 5.3 on. Returns the number of caches.
fn stacks_of_thread(copy: &Copy, first: u64, end: u64, found: &mut Vec<CacheStack>) -> u64 {
    /// In front of the first stack.
    const JUNK: u64 = 0x7a7a_7a7a_7a7a_7a7a;
    let mut previous = None;
    for number in 0..MOST_CACHES {
        let at = first + number * CACHE_BYTES;
        let (head, ends) = (copy.word(at), copy.word(at + 16));
        if at + CACHE_BYTES > end || head < PAGE || !head.is_multiple_of(8) || !copy.has(head) {
            return number;
        }
        let (full, empty) = (ends >> 16 & 0xffff, ends >> 32 & 0xffff);
        let full = head - (head.wrapping_sub(full) & 0xffff);
        let empty = head + (empty.wrapping_sub(head) & 0xffff);
        let follows = match previous {
            None => copy.word(full.wrapping_sub(8)) == JUNK,
            Some(previous) => full == previous,
        };
        if !follows || !empty.is_multiple_of(8) {
            return number;
        }
        previous = Some(empty);
        found.push(CacheStack { cached: head..empty });
    }
    MOST_CACHES
}

/// Before 5.3. Returns the number of caches.
fn arrays_of_thread(copy: &Copy, first: u64, end: u64, extents: &[Extent], found: &mut Vec<CacheStack>) -> u64 {
    /// Fewer may be a coincidence.
    const FEWEST: u64 = 4;
    const MOST: u64 = 1 << 14;
    let mut all: Vec<CacheStack> = Vec::new();
    let mut previous = 0;
    for number in 0..MOST_CACHES {
        let at = first + number * CACHE_BYTES;
        let (lowest, count) = (copy.half(at) as i32, u64::from(copy.half(at + 4)));
        let array = copy.word(at + 16);
        let is_near = previous == 0 || (1..=MOST * 8).contains(&array.wrapping_sub(previous));
        let is_cache = at + CACHE_BYTES <= end
            && (-1..=count as i64).contains(&i64::from(lowest))
            && count <= MOST
            && array > PAGE
            && array.is_multiple_of(8)
            && copy.has(array - 8)
            && is_near
            && array - count * 8 >= previous;
        if !is_cache {
            break;
        }
        previous = array;
        all.push(CacheStack {
            cached: array - count * 8..array,
        });
    }
    let pieces = all.iter().flat_map(|stack| stack.cached.clone().step_by(8));
    let are_pieces = |mut places: Box<dyn Iterator<Item = u64> + '_>| {
        places.all(|place| {
            let piece = copy.word(place);
            let before = extents.partition_point(|extent| extent.range.start <= piece);
            before > 0 && extents[before - 1].range.contains(&piece)
        })
    };
    let count = all.len() as u64;
    if count < FEWEST || all.iter().all(|stack| stack.cached.is_empty()) || !are_pieces(Box::new(pieces)) {
        return 0;
    }
    found.extend(all);
    count
}

/// The memory of descriptions and tables holds nothing.
fn exclude_descriptions(copy: &Copy, pages: &mut Pages, tree: &Tree, extents: &[Extent]) {
    /// Memory of a larger block is not recognised.
    const MOST_UNITS: u64 = 64;
    let mut known: Vec<Range<u64>> = Vec::new();
    let leaves = tree.memory(copy, &SHAPE);
    let places = extents.iter().map(|extent| extent.description);
    for place in places.chain(leaves.iter().map(|leaf| leaf.start)) {
        if known.last().is_some_and(|range| range.contains(&place)) || known.iter().any(|range| range.contains(&place))
        {
            continue;
        }
        let own = place & !(BASE - 1);
        let block = (0..MOST_UNITS)
            .map_while(|back| own.checked_sub(back * BASE))
            .find(|base| {
                let size = copy.word(*base);
                size >= BASE
                    && size.is_multiple_of(BASE)
                    && (place - base) < size
                    && (*base..=base.saturating_add(size)).contains(&copy.word(base + 24))
            });
        known.push(match block {
            Some(base) => base..base.saturating_add(copy.word(base)),
            None => place & !(PAGE - 1)..(place & !(PAGE - 1)) + PAGE,
        });
    }
    for range in known.into_iter().chain(leaves) {
        pages.set_kind(copy, range, Kind::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_classes() {
        let sizes: Vec<u64> = (0..14).map(class_bytes).collect();
        assert_eq!(sizes, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
        assert_eq!(class_bytes(35), 14 << 10);
        assert!(class_bytes(255) > 1 << 60);
    }
}
