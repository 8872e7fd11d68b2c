//! Distinguishes the driver's records of blocks from the program's objects that hold them.
//!
//! ```text
//! context (marked) ◄─► main record: the block's address three times or more ◄─► other records of the same block
//!        └──► object with pointers to several records ─► tree of equal chunks, one per block
//! ```
//!
//! 1. The main record of a block contains its address three times or more, and leads to marked memory or to another record.
//! 2. A chunk with the address that leads to a record of the same block is a record.
//! 3. So are chunks of equal form (offset of the address, and how often), most of which lead to records.
//! 4. So are chunks of equal form that are linked with each other, if everything else that leads to them also leads to
//!    records. The records of freed blocks, which the driver's pools keep, may be between them: chunks of their size to which they
//!    lead, with an address at the same place that is near those of blocks.
//!
//! An object of the program with the address of a block has none of these: programs have no pointers to records, only to
//! handles, some of which are marked. A single such pointer may be left from a freed chunk, so it decides nothing beyond its own block. For the same
//! reason nothing is a record because a record leads to it.

use super::{Driver, OfProgram};
use crate::bits::Bits;
use crate::copy::{Image, PAGE};
use crate::native::Native;
use crate::native::pages::{Chunk, Heap};
use crate::{Map, Set};

/// A chunk that contains the address of a block.
#[derive(Debug, Clone, Copy)]
struct Mention {
    chunk: Chunk,
    times: u32,
    /// Of the first time.
    offset: u64,
}

type ByBlock = Map<u64, Vec<Mention>>;

/// Larger chunks are tables, and often contain what was in the memory before.
const LARGEST: u64 = 4096;
/// A block that more chunks mention is not examined.
const MOST: usize = 256;

/// Finds the records of blocks, given their addresses.
pub fn find(driver: &mut Driver, copy: &Image, native: &Native, blocks: &[u64]) {
    /// A record can lead to another one that is found later.
    const PASSES: u32 = 8;
    if driver.records.is_empty() || blocks.is_empty() {
        return;
    }
    let mentions = mentions(copy, native, blocks);
    for _ in 0..PASSES {
        let mut found = Vec::new();
        for of_one in mentions.values() {
            found.extend(of_block(driver, copy, native, of_one));
        }
        found.retain(|chunk| !driver.has(copy, chunk));
        for chunk in &found {
            driver.add(copy, native, *chunk);
        }
        if found.is_empty() {
            break;
        }
    }
    of_equal_form(driver, copy, native, &mentions);
}

/// The chunks that contain the address of each block, by address.
fn mentions(copy: &Image, native: &Native, blocks: &[u64]) -> ByBlock {
    let mut found: ByBlock = blocks.iter().map(|block| (*block, Vec::new())).collect();
    let (Some(first), Some(last)) = (blocks.iter().min(), blocks.iter().max()) else {
        return found;
    };
    let (pages, span) = (&native.pages, *first..=*last);
    let words = copy.search(
        |word| span.contains(&word),
        |place, word| {
            let is_wanted = found.contains_key(&word) && pages.kind_at(copy, place) == Heap::Glibc;
            is_wanted.then_some((word, place))
        },
    );
    let mut program = OfProgram::default();
    for (word, place) in words {
        let Some(of_one) = found.get_mut(&word) else { continue };
        let Some(chunk) = native.around(copy, place) else {
            continue;
        };
        match of_one.last_mut() {
            Some(known) if known.chunk.start == chunk.start => known.times += 1,
            _ if chunk.bytes <= LARGEST && !program.has(copy, native, chunk.start) => of_one.push(Mention {
                chunk,
                times: 1,
                offset: place - chunk.start,
            }),
            _ => {}
        }
    }
    found
}

/// The chunks that a chunk leads to, without itself.
fn targets<'a>(copy: &'a Image, native: &'a Native, chunk: &Chunk) -> impl Iterator<Item = Chunk> + use<'a> {
    let own = chunk.start;
    let places = (own..own + chunk.bytes).step_by(8);
    let found = places.filter_map(|place| native.around(copy, copy.word(place)));
    found.filter(move |target| target.heap == Heap::Glibc && target.start != own)
}

/// Rules 1 and 2.
fn of_block(driver: &Driver, copy: &Image, native: &Native, mentions: &[Mention]) -> Vec<Chunk> {
    const TIMES: u32 = 3;
    if mentions.len() > MOST {
        return Vec::new();
    }
    let chunks = || mentions.iter().map(|mention| mention.chunk);
    let number: Map<u64, usize> = chunks().map(|chunk| chunk.start).zip(0..).collect();
    let mut is_record: Vec<bool> = chunks().map(|chunk| driver.has(copy, &chunk)).collect();
    // Which of them lead to each.
    let mut links = vec![Vec::new(); mentions.len()];
    for (place, mention) in mentions.iter().enumerate() {
        for target in targets(copy, native, &mention.chunk) {
            is_record[place] |= mention.times >= TIMES && driver.has(copy, &target);
            if let Some(&other) = number.get(&target.start) {
                links[other].push(place);
            }
        }
    }
    let mut open: Vec<usize> = (0..mentions.len()).filter(|place| is_record[*place]).collect();
    while let Some(place) = open.pop() {
        for &other in &links[place] {
            if !std::mem::replace(&mut is_record[other], true) {
                open.push(other);
            }
        }
    }
    let found = mentions.iter().zip(is_record).filter(|(_, is_record)| *is_record);
    found.map(|(mention, _)| mention.chunk).collect()
}

/// Rules 3 and 4.
fn of_equal_form(driver: &mut Driver, copy: &Image, native: &Native, mentions: &ByBlock) {
    /// Fewer may be a coincidence.
    const FEWEST: usize = 3;
    /// How far from the blocks freed ones may have been.
    const NEAR: u64 = 1 << 30;
    /// By how much pieces of memory for equal objects differ: malloc does not cut off less.
    const REST: u64 = 16;
    /// Records of freed blocks that are looked at.
    const GAPS: usize = 1 << 16;
    let mut forms: Map<(u64, u32), Vec<Chunk>> = Map::default();
    for mention in mentions.values().filter(|of_one| of_one.len() <= MOST).flatten() {
        if !driver.has(copy, &mention.chunk) {
            let form = (mention.offset, mention.times);
            forms.entry(form).or_default().push(mention.chunk);
        }
    }
    let mut linked: Map<u64, Vec<Chunk>> = Map::default();
    let (first, last) = (mentions.keys().min().copied(), mentions.keys().max().copied());
    let near = first.unwrap_or(0).saturating_sub(NEAR)..last.unwrap_or(0).saturating_add(NEAR);
    let mut left = GAPS;
    for ((offset, _), chunks) in forms {
        let leads = |chunk: &Chunk| targets(copy, native, chunk).any(|target| driver.has_record(copy, &target));
        let (leading, others): (Vec<Chunk>, Vec<Chunk>) = chunks.iter().partition(|chunk| leads(chunk));
        if leading.len() >= others.len() {
            for chunk in leading {
                driver.add(copy, native, chunk);
            }
        }
        let mut own: Set<u64> = others.iter().map(|chunk| chunk.start).collect();
        if own.len() < FEWEST {
            continue;
        }
        let mut open = others;
        while let Some(chunk) = open.pop() {
            for target in targets(copy, native, &chunk) {
                let is_like =
                    || target.bytes.abs_diff(chunk.bytes) <= REST && near.contains(&copy.word(target.start + offset));
                if !own.contains(&target.start) {
                    if left == 0 || !is_like() || driver.has(copy, &target) {
                        continue;
                    }
                    left -= 1;
                    own.insert(target.start);
                    open.push(target);
                }
                linked.entry(chunk.start).or_default().push(target);
                linked.entry(target.start).or_default().push(chunk);
            }
        }
    }
    let components = components(&linked);
    let owners = owners(driver, copy, native, &components);
    for (component, owner) in components.iter().zip(owners) {
        if owner.driver && !owner.other {
            for chunk in component.values() {
                driver.add(copy, native, *chunk);
            }
        }
    }
}

/// The chunks that are linked with each other, by their starts.
fn components(linked: &Map<u64, Vec<Chunk>>) -> Vec<Map<u64, Chunk>> {
    let mut seen: Set<u64> = Set::default();
    let mut found = Vec::new();
    for start in linked.keys() {
        let mut component = Map::default();
        let mut open = vec![*start];
        while let Some(start) = open.pop() {
            for chunk in linked.get(&start).into_iter().flatten() {
                if seen.insert(chunk.start) {
                    component.insert(chunk.start, *chunk);
                    open.push(chunk.start);
                }
            }
        }
        if !component.is_empty() {
            found.push(component);
        }
    }
    found
}

/// What leads to linked chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Owner {
    driver: bool,
    other: bool,
}

/// What leads to each component.
fn owners(driver: &Driver, copy: &Image, native: &Native, components: &[Map<u64, Chunk>]) -> Vec<Owner> {
    /// Only so much of a larger chunk is examined.
    const MOST_BYTES: u64 = 1 << 20;
    let mut owners = vec![Owner::default(); components.len()];
    if components.is_empty() {
        return owners;
    }
    let starts = components.iter().flat_map(|component| component.keys());
    let starts = Bits::of(copy.granules(), starts.filter_map(|start| copy.granule(*start)));
    let mut known: Map<u64, bool> = Map::default();
    let pointers = copy.search(
        |word| word % 16 == 0 && word >= PAGE,
        |place, word| {
            starts.get(copy.granule(word)?).then_some(())?;
            let component = components.iter().position(|own| own.contains_key(&word))?;
            Some((place, component))
        },
    );
    for (place, component) in pointers {
        let is_driver = match native.around(copy, place) {
            Some(parent) if components[component].contains_key(&parent.start) => continue,
            Some(mut parent) => *known.entry(parent.start).or_insert_with(|| {
                parent.bytes = parent.bytes.min(MOST_BYTES);
                driver.has(copy, &parent)
                    || targets(copy, native, &parent).any(|target| driver.has_record(copy, &target))
            }),
            // A chunk that was freed, or the unused part of a stack.
            None if native.pages.kind_at(copy, place) != Heap::None || !native.is_root(place) => continue,
            None => false,
        };
        owners[component].driver |= is_driver;
        owners[component].other |= !is_driver;
    }
    owners
}
