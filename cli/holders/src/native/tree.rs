//! Tables of two levels, by which an allocator finds its description of a page.
//!
//! ```text
//! address:  │ unused │ top │ page │ offset │
//! root: one word per value of top ─► leaf: one word per page, which contains the address of a description
//! ```
//!
//! The root is in static memory, under a name that is usually not exported. It is recognised by what it leads to: a leaf at
//! the place of addresses that the process has, whose entries lead to descriptions of just these addresses.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use foldhash::fast::FixedState;

use super::pages::Pages;
use crate::copy::{Copy, PAGE};
use crate::modules::Modules;
use crate::parallel;

/// Bits of an address that the tables distinguish.
const ADDRESS_BITS: u32 = 48;

/// How an allocator divides addresses, and what an entry must lead to.
pub struct Shape {
    /// Lowest bit of an address that selects an entry of the root.
    pub top: u32,
    /// Lowest bit that selects an entry of a leaf.
    pub page: u32,
    /// Whether an entry leads to a description that includes this address.
    pub describes: fn(&Copy, u64, u64) -> bool,
}

impl Shape {
    fn root_bytes(&self) -> u64 {
        8 << (ADDRESS_BITS - self.top)
    }

    fn leaf_bytes(&self) -> u64 {
        8 << (self.top - self.page)
    }
}

/// A table that was found.
pub struct Tree {
    root: u64,
    /// The static memory around the root.
    pub globals: Range<u64>,
    /// Values of the top bits that occur.
    tops: Vec<u64>,
}

/// The tables of this shape in the static memory of all files. `memory`: where the described pages may be.
pub fn find(copy: &Copy, modules: &Modules, pages: &Pages, memory: &[Range<u64>], shape: &Shape) -> Vec<Tree> {
    let runs = memory.iter().flat_map(|range| pages.present(range.clone()));
    let tops: HashSet<u64, FixedState> = runs
        .flat_map(|run| run.start >> shape.top..=(run.end - 1) >> shape.top)
        .collect();
    let mut tops: Vec<u64> = tops.into_iter().collect();
    tops.sort_unstable();
    let all = modules.all().iter().flat_map(|module| &module.globals);
    let large = all.filter(|globals| globals.end - globals.start >= shape.root_bytes());
    let large: Vec<&Range<u64>> = large.collect();
    let roots = find_roots(copy, pages, &large, &tops, shape);
    (large.into_iter().zip(roots))
        .filter_map(|(globals, root)| {
            Some(Tree {
                root: root?,
                globals: globals.clone(),
                tops: tops.clone(),
            })
        })
        .collect()
}

/// Words of static memory that are tried as pointers to a leaf.
const MOST: usize = 100_000;

/// The table in each of these ranges, if it has one.
fn find_roots(copy: &Copy, pages: &Pages, ranges: &[&Range<u64>], tops: &[u64], shape: &Shape) -> Vec<Option<u64>> {
    /// Pages that a thread looks at in a row.
    const PIECE: usize = 64;
    // An allocator writes its root, so that is not in memory that became read-only once the loader had written it.
    let is_writable = |page: &u64| copy.region(*page).is_some_and(|region| region.writable);
    let mut pieces: Vec<(usize, Vec<u64>)> = Vec::new();
    for (number, range) in ranges.iter().enumerate() {
        let present: Vec<u64> = pages
            .addresses((*range).clone())
            .into_iter()
            .filter(is_writable)
            .collect();
        pieces.extend(present.chunks(PIECE).map(|piece| (number, piece.to_vec())));
    }
    let tried = parallel::map(&pieces, |(number, piece)| {
        find_root(copy, pages, ranges[*number], piece, tops, shape)
    });
    let mut roots = vec![None; ranges.len()];
    let mut sums = vec![0; ranges.len()];
    for ((number, _), (tried, root)) in pieces.iter().zip(tried) {
        // In the order of the addresses, up to the limit.
        if roots[*number].is_none() {
            sums[*number] += tried;
            roots[*number] = root.filter(|_| sums[*number] <= MOST);
        }
    }
    roots
}

/// The table that one of these pages leads to, and the number of words that were tried.
fn find_root(
    copy: &Copy,
    pages: &Pages,
    globals: &Range<u64>,
    piece: &[u64],
    tops: &[u64],
    shape: &Shape,
) -> (usize, Option<u64>) {
    /// Leaves begin at multiples of this.
    const ALIGNMENT: u64 = 64;
    let mut tried = 0;
    // By leaf and place: many words have the same value.
    let mut known: HashMap<(u64, u64), bool, FixedState> = HashMap::default();
    let mut writable = Writable::default();
    let last_root = globals.end.saturating_sub(shape.root_bytes());
    for page in piece.iter().copied() {
        let Some(words) = copy.page(page) else { continue };
        for (leaf, at) in words.iter().zip((page..).step_by(8)) {
            if *leaf < PAGE || !leaf.is_multiple_of(ALIGNMENT) {
                continue;
            }
            let roots = tops.iter().filter_map(|top| Some((*top, at.checked_sub(top * 8)?)));
            let mut roots = roots
                .filter(|(_, root)| (globals.start..=last_root).contains(root))
                .peekable();
            // A leaf may extend over several mappings.
            if roots.peek().is_none() || !writable.contains(copy, *leaf) {
                continue;
            }
            tried += 1;
            if tried > MOST {
                return (tried, None);
            }
            for (top, root) in roots {
                let is_table = || is_table(copy, pages, *leaf, top, shape);
                if *known.entry((*leaf, top)).or_insert_with(is_table) {
                    return (tried, Some(root));
                }
            }
        }
    }
    (tried, None)
}

/// The regions that were asked for last, with whether they are writable: words that follow each other point to a few regions.
#[derive(Default)]
struct Writable {
    recent: [(Range<u64>, bool); 4],
    next: usize,
}

impl Writable {
    fn contains(&mut self, copy: &Copy, address: u64) -> bool {
        if let Some((_, known)) = self.recent.iter().find(|(range, _)| range.contains(&address)) {
            return *known;
        }
        let regions = copy.regions();
        let place = regions.partition_point(|region| region.range.end <= address);
        let found = match regions.get(place) {
            Some(region) if region.range.start <= address => (region.range.clone(), region.writable),
            // Between two regions.
            next => {
                let before = place.checked_sub(1).map_or(0, |before| regions[before].range.end);
                (before..next.map_or(u64::MAX, |next| next.range.start), false)
            }
        };
        let is_writable = found.1;
        self.recent[self.next] = found;
        self.next = (self.next + 1) % self.recent.len();
        is_writable
    }
}

/// Whether the first entries of a leaf describe the addresses of this place in the root.
fn is_table(copy: &Copy, pages: &Pages, leaf: u64, top: u64, shape: &Shape) -> bool {
    const ENOUGH: u32 = 16;
    const FEWEST: u32 = 2;
    const MOST: u32 = 1024;
    let (mut right, mut wrong) = (0, 0);
    let mut count = |address: u64, entry: u64| {
        if (shape.describes)(copy, address, entry) {
            right += 1;
        } else {
            wrong += 1;
        }
        // Entries of pages that were merged are stale: at some places, many in a row.
        let is_decided = right >= ENOUGH && right > wrong || right == 0 && wrong >= ENOUGH;
        !is_decided && right + wrong < MOST
    };
    each_of_leaf(copy, pages, leaf, top, shape, &mut count);
    right >= FEWEST && right > wrong
}

/// Calls `see` with the address and the entry of each page that has one, until `see` returns `false`.
fn each_of_leaf(copy: &Copy, pages: &Pages, leaf: u64, top: u64, shape: &Shape, see: &mut dyn FnMut(u64, u64) -> bool) {
    let end = leaf.saturating_add(shape.leaf_bytes());
    for page in pages.present(leaf..end).flat_map(|run| run.step_by(PAGE as usize)) {
        let Some(words) = copy.page(page) else { continue };
        for (entry, at) in words.iter().zip((page..).step_by(8)) {
            if *entry == 0 || !(leaf..end).contains(&at) {
                continue;
            }
            let number = (at - leaf) / 8;
            if !see((top << shape.top) + (number << shape.page), *entry) {
                return;
            }
        }
    }
}

impl Tree {
    /// Calls `see` with the address and the entry of each page that has one, by address.
    pub fn each(&self, copy: &Copy, pages: &Pages, shape: &Shape, see: &mut dyn FnMut(u64, u64)) {
        for (top, leaf) in self.leaves(copy) {
            each_of_leaf(copy, pages, leaf, top, shape, &mut |address, entry| {
                see(address, entry);
                true
            });
        }
    }

    /// The entry of the page with this address; 0 if it has none.
    pub fn entry(&self, copy: &Copy, shape: &Shape, address: u64) -> u64 {
        let leaf = copy.word(self.root + (address >> shape.top) * 8);
        let place = (address >> shape.page) & ((1 << (shape.top - shape.page)) - 1);
        match leaf {
            0 => 0,
            _ => copy.word(leaf.wrapping_add(place * 8)),
        }
    }

    /// The memory of all leaves.
    pub fn memory(&self, copy: &Copy, shape: &Shape) -> Vec<Range<u64>> {
        let range = |(_, leaf): (u64, u64)| leaf..leaf.saturating_add(shape.leaf_bytes());
        self.leaves(copy).map(range).collect()
    }

    fn leaves<'t>(&'t self, copy: &'t Copy) -> impl Iterator<Item = (u64, u64)> + use<'t> {
        let leaf = |top: &u64| (*top, copy.word(self.root + top * 8));
        self.tops.iter().map(leaf).filter(|(_, leaf)| *leaf != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Victim, pages as fresh_pages};

    const SHAPE: Shape = Shape {
        top: 30,
        page: 12,
        describes: |_, address, entry| address == entry,
    };
    const TOP: u64 = 5;

    #[test]
    fn a_table_is_found_although_many_entries_are_stale() {
        // The first entries of a leaf: whether each is right.
        let few = [true; 1];
        let stale = [vec![true], vec![false; 12], vec![true; 40]].concat();
        for (entries, is_found) in [(&stale[..], true), (&few[..], false), (&[false; 40][..], false)] {
            let root = fresh_pages(512);
            let leaf = fresh_pages(512);
            root[TOP as usize] = leaf.as_ptr() as u64;
            for (place, is_right) in entries.iter().enumerate() {
                let address = (TOP << 30) + ((place as u64) << 12);
                leaf[place] = if *is_right { address } else { 1 };
            }
            let victim = Victim::fork();
            let process = victim.process();
            let copy = Copy::take(&process, &[]).unwrap();
            let start = root.as_ptr() as u64;
            let globals = start..start + SHAPE.root_bytes();
            let found = find_roots(&copy, &Pages::new(&copy), &[&globals], &[TOP], &SHAPE);
            assert_eq!(found, [is_found.then_some(start)], "{entries:?}");
        }
    }
}
