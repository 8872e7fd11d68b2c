//! The driver's records of blocks, told from the program's objects that hold them.
//!
//! ```text
//! context (marked) ◄─► main record: the block's address three times or more ◄─► other records of the same block
//!        └──► object with pointers to several records ─► tree of equal chunks, one per block
//! ```
//!
//! 1. The main record of a block contains its address three times or more, and leads to marked memory or to another record.
//! 2. A chunk with the address is a record if it and a record of the same block are linked, in either direction.
//! 3. So are chunks of equal form (size, and offset of the address), most of which lead to records.
//! 4. So are chunks of equal form that are linked with each other, if a chunk leads to one of them and to several records.
//!
//! An object of the program with the address of a block has none of these: programs have no pointers to records, only to
//! handles. A single such pointer may be left from a freed chunk, so it decides nothing beyond its own block.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use super::{Driver, is_of_program};
use crate::copy::Copy;
use crate::native::pages::{Bits, Kind};
use crate::native::{Chunk, Heap, Native};

/// A chunk that contains the address of a block.
#[derive(Debug, Clone, Copy)]
struct Mention {
    chunk: Chunk,
    times: u32,
    /// Of the first time.
    offset: u64,
}

type ByBlock = HashMap<u64, Vec<Mention>, FixedState>;

/// Larger chunks are tables, and often contain what was in the memory before.
const LARGEST: u64 = 4096;
/// A block that more chunks mention is not examined.
const MOST: usize = 256;

pub fn find(driver: &mut Driver, copy: &Copy, native: &mut Native, blocks: &[u64]) {
    /// A record can lead to another one that is found later.
    const PASSES: u32 = 8;
    if driver.records.is_empty() {
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
fn mentions(copy: &Copy, native: &mut Native, blocks: &[u64]) -> ByBlock {
    let mut found: ByBlock = blocks.iter().map(|block| (*block, Vec::new())).collect();
    let (Some(first), Some(last)) = (blocks.iter().min(), blocks.iter().max()) else {
        return found;
    };
    for page in native.pages.addresses(0..u64::MAX) {
        if native.pages.kind_at(copy, page) != Kind::Glibc {
            continue;
        }
        let Some(words) = copy.page(page) else { continue };
        for (word, place) in words.iter().zip((page..).step_by(8)) {
            if !(first..=last).contains(&word) {
                continue;
            }
            let Some(of_one) = found.get_mut(word) else { continue };
            let Some(chunk) = native.around(copy, place) else { continue };
            match of_one.last_mut() {
                Some(known) if known.chunk.start == chunk.start => known.times += 1,
                _ if chunk.bytes <= LARGEST && !is_of_program(copy, native, chunk.start) => of_one.push(Mention {
                    chunk,
                    times: 1,
                    offset: place - chunk.start,
                }),
                _ => {}
            }
        }
    }
    found
}

/// The chunks that a chunk leads to, without itself.
fn targets<'a>(copy: &'a Copy, native: &'a Native, chunk: &Chunk) -> impl Iterator<Item = Chunk> + use<'a> {
    let own = chunk.start;
    let places = (own..own + chunk.bytes).step_by(8);
    let found = places.filter_map(|place| native.around(copy, copy.word(place)));
    found.filter(move |target| target.heap == Heap::Glibc && target.start != own)
}

/// Rules 1 and 2.
fn of_block(driver: &Driver, copy: &Copy, native: &Native, mentions: &[Mention]) -> Vec<Chunk> {
    const TIMES: u32 = 3;
    if mentions.len() > MOST {
        return Vec::new();
    }
    let number: HashMap<u64, usize, FixedState> =
        mentions.iter().enumerate().map(|(place, mention)| (mention.chunk.start, place)).collect();
    let mut is_record: Vec<bool> = mentions.iter().map(|mention| driver.has(copy, &mention.chunk)).collect();
    let mut links = vec![Vec::new(); mentions.len()];
    for (place, mention) in mentions.iter().enumerate() {
        for target in targets(copy, native, &mention.chunk) {
            is_record[place] |= mention.times >= TIMES && driver.has(copy, &target);
            if let Some(&other) = number.get(&target.start) {
                links[place].push(other);
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
fn of_equal_form(driver: &mut Driver, copy: &Copy, native: &Native, mentions: &ByBlock) {
    /// Fewer may be a coincidence.
    const FEWEST: usize = 3;
    let mut forms: HashMap<(u64, u64), Vec<Chunk>, FixedState> = HashMap::default();
    for mention in mentions.values().filter(|of_one| of_one.len() <= MOST).flatten() {
        if !driver.has(copy, &mention.chunk) {
            let form = (mention.chunk.bytes, mention.offset);
            forms.entry(form).or_default().push(mention.chunk);
        }
    }
    let mut linked: HashMap<u64, Vec<Chunk>, FixedState> = HashMap::default();
    for chunks in forms.into_values() {
        let leads = |chunk: &Chunk| targets(copy, native, chunk).any(|target| driver.has(copy, &target));
        let (leading, others): (Vec<Chunk>, Vec<Chunk>) = chunks.iter().partition(|chunk| leads(chunk));
        if leading.len() >= others.len() {
            for chunk in leading {
                driver.add(copy, native, chunk);
            }
        }
        let own: HashSet<u64, FixedState> = others.iter().map(|chunk| chunk.start).collect();
        if own.len() < FEWEST {
            continue;
        }
        for chunk in &others {
            for target in targets(copy, native, chunk).filter(|target| own.contains(&target.start)) {
                linked.entry(chunk.start).or_default().push(target);
                linked.entry(target.start).or_default().push(*chunk);
            }
        }
    }
    if linked.is_empty() {
        return;
    }
    let mut open = led_to_by_driver(driver, copy, native, &linked);
    while let Some(start) = open.pop() {
        // Each is taken out once.
        for chunk in linked.remove(&start).unwrap_or_default() {
            driver.add(copy, native, chunk);
            open.push(chunk.start);
        }
    }
}

/// Those of these chunks to which a chunk leads that also leads to several records.
fn led_to_by_driver(
    driver: &Driver,
    copy: &Copy,
    native: &Native,
    chunks: &HashMap<u64, Vec<Chunk>, FixedState>,
) -> Vec<u64> {
    const SEVERAL: usize = 2;
    let mut starts = Bits::new(copy.granules());
    for start in chunks.keys() {
        if let Some(granule) = copy.granule(*start) {
            starts.set(granule);
        }
    }
    let mut found = Vec::new();
    for page in native.pages.addresses(0..u64::MAX) {
        if native.pages.kind_at(copy, page) != Kind::Glibc {
            continue;
        }
        let Some(words) = copy.page(page) else { continue };
        for (word, place) in words.iter().zip((page..).step_by(8)) {
            let is_start = word % 16 == 0 && copy.granule(*word).is_some_and(|granule| starts.get(granule));
            if !is_start {
                continue;
            }
            let Some(parent) = native.around(copy, place).filter(|parent| parent.bytes <= LARGEST) else { continue };
            if chunks.contains_key(&parent.start) {
                continue;
            }
            let records: HashSet<u64, FixedState> = targets(copy, native, &parent)
                .filter(|target| driver.has(copy, target))
                .map(|target| target.start)
                .collect();
            if driver.has(copy, &parent) || records.len() >= SEVERAL {
                found.push(*word);
            }
        }
    }
    found
}
