//! Freed chunks of glibc that look as if they were in use: those in a thread's cache and in fastbins.
//!
//! | version | cache of a thread | mark in its chunks |
//! |---|---|---|
//! | 2.17 to 2.25 | none | |
//! | 2.26 to 2.28 | 64 counts of a byte, 64 lists | none |
//! | 2.29 | the same | address of the cache in the second word |
//! | 2.30 to 2.33 | 64 counts of two bytes, 64 lists | the same |
//! | 2.34 to 2.41 | the same | a random number in the second word |
//! | 2.42 on; 2.43 has no fastbins | 76 numbers of two bytes, 76 lists | the same |
//!
//! Also the memory that libstdc++ keeps for exceptions, in case that malloc has none.
//!
//! Lists from 2.32 on are mangled: a link is combined with its own address. A list is followed only as long as its chunks
//! have the list's size and count as allocated, so it ends, whatever it contains.

use super::{Heaps, SMALLEST};
use crate::copy::Image;
use crate::modules::{Module, Modules, Role};
use crate::native::pages::{Heap, Pages};
use crate::parallel;

/// Sizes of the chunk of a thread's cache.
pub const CACHE_SIZES: [u64; 3] = [0x250, 0x290, 0x300];

/// Number of lists and bytes of each count, by size of the chunk.
fn layout(size: u64) -> (u64, u64) {
    match size {
        0x250 => (64, 1),
        0x290 => (64, 2),
        _ => (76, 2),
    }
}

/// Lists of chunks of one size each; later ones have several sizes.
const LISTS: u64 = 64;
const FASTBINS: u64 = 10;
/// Links of fastbins lead to the header of a chunk.
const LINKED: u64 = 16;
const BINS: u64 = 127;

/// Removes the freed chunks from those that count as allocated.
pub fn remove(copy: &Image, modules: &Modules, pages: &mut Pages, heaps: &Heaps) {
    remove_emergency_pool(copy, modules, pages);
    let mut random: Vec<(u64, u32)> = Vec::new();
    let mut marks: Vec<u64> = Vec::new();
    let has_marks = !has_old_libc(modules);
    for cache in &heaps.caches {
        let Some(lists) = cache_lists(copy, pages, *cache) else {
            continue;
        };
        for (head, size) in lists {
            let mark = copy.word(head + 8);
            if has_marks && mark == *cache {
                marks.push(mark);
            } else if has_marks {
                match random.iter_mut().find(|(known, _)| *known == mark) {
                    Some((_, count)) => *count += 1,
                    None => random.push((mark, 1)),
                }
            }
            remove_list(copy, pages, head, size, 0);
        }
    }
    let states = heaps.arenas.iter().map(|state| *state..*state + 160);
    let tops = states.filter_map(|places| top_pointer(copy, places));
    for top in tops.chain(main_top_pointer(copy, modules)) {
        for list in 0..FASTBINS {
            let head = copy.word(top - (FASTBINS - list) * 8);
            let size = Some(SMALLEST + list * 16);
            remove_list(copy, pages, head.wrapping_add(LINKED), size, LINKED);
        }
    }
    // One number for the whole process, so the most frequent one. The second word of a chunk without a mark can be anything.
    let best = random.iter().max_by_key(|(_, count)| *count);
    if let Some((mark, _)) = best.filter(|(mark, _)| marks.is_empty() && mark >> 48 != 0) {
        marks.push(*mark);
    }
    if !marks.is_empty() {
        let freed = parallel::flat_map(&copy.pieces(), |piece| {
            let mut freed = Vec::new();
            pages.each_start_in(copy, piece, Heap::Glibc, &mut |start| {
                if marks.contains(&copy.word(start + 8)) {
                    freed.push(start);
                }
            });
            freed
        });
        for start in freed {
            pages.remove(copy, start);
        }
    }
}

/// Removes the memory that libstdc++ keeps for exceptions, if none of it is in use. It is never cleared.
///
/// ```text
/// static memory:  │ first free part │ the memory │ bytes │      first free part:  │ bytes │ the next one: 0 │
/// ```
fn remove_emergency_pool(copy: &Image, modules: &Modules, pages: &mut Pages) {
    let has_pool = |(nth, module): &(usize, &Module)| *nth == 0 || module.file_name().starts_with("libstdc++.so");
    let modules = modules.all().iter().enumerate().filter(has_pool);
    // Only what was copied, which is what the process has written.
    let words = modules.flat_map(|(_, module)| module.globals.iter().flat_map(|globals| copy.words(globals.clone())));
    for (place, memory) in words {
        if memory == 0 || memory % 16 != 0 || copy.word(place + 8) != memory {
            continue;
        }
        let bytes = copy.word(place + 16);
        let is_pool = is_listed(copy, pages, memory, None)
            && (copy.word(memory), copy.word(memory + 8)) == (bytes, 0)
            && size_of(copy, memory)
                .checked_sub(bytes)
                .is_some_and(|more| more <= SMALLEST);
        if is_pool {
            pages.remove(copy, memory);
        }
    }
}

/// glibc before 2.29 by the name of its file, which has no version from 2.34 on.
fn has_old_libc(modules: &Modules) -> bool {
    let version = |name: &str| -> Option<u32> { name.strip_prefix("libc-2.")?.strip_suffix(".so")?.parse().ok() };
    let mut versions = modules.all().iter().filter_map(|module| version(module.file_name()));
    versions.any(|version| version < 29)
}

fn size_of(copy: &Image, start: u64) -> u64 {
    copy.word(start.wrapping_sub(8)) & !7
}

/// Whether a list of chunks of this size may contain this one.
fn is_listed(copy: &Image, pages: &Pages, start: u64, size: Option<u64>) -> bool {
    start.is_multiple_of(16)
        && start > SMALLEST
        && copy.granule(start).is_some_and(|granule| pages.is_start(granule))
        && size.is_none_or(|size| size_of(copy, start) == size)
}

/// The first chunk of each list of a thread's cache, if this is one.
fn cache_lists(copy: &Image, pages: &Pages, cache: u64) -> Option<Vec<(u64, Option<u64>)>> {
    let (lists, width) = layout(size_of(copy, cache));
    let count = |list: u64| match width {
        1 => u32::from(copy.byte(cache + list)),
        _ => u32::from(copy.byte(cache + list * 2)) | u32::from(copy.byte(cache + list * 2 + 1)) << 8,
    };
    // From 2.42 on, the number is that of chunks that the list can still take; those of empty lists are equal.
    let counts_free = lists > LISTS;
    let empty = (0..lists).map(count).max().filter(|_| counts_free).unwrap_or(0);
    let (mut found, mut wrong) = (Vec::new(), 0);
    for list in 0..lists {
        let head = copy.word(cache + lists * width + list * 8);
        let size = (list < LISTS).then_some(SMALLEST + list * 16);
        let is_empty = head == 0;
        if is_empty != (count(list) == empty) || !is_empty && !is_listed(copy, pages, head, size) {
            wrong += 1;
        } else if !is_empty {
            found.push((head, size));
        }
    }
    // The copy of a running process may be torn.
    (found.len() > wrong * 8).then_some(found)
}

/// Removes the chunks of a list. Its links lead to the memory of a chunk, or `linked` bytes before it.
fn remove_list(copy: &Image, pages: &mut Pages, head: u64, size: Option<u64>, linked: u64) {
    const MOST: usize = 1 << 16;
    let link = |at: u64, is_mangled: bool| copy.word(at) ^ if is_mangled { at >> 12 } else { 0 };
    // A mangled link may be the address of another chunk, so the last one decides: it is 0. A torn list has none.
    let ends = |is_mangled: &bool| {
        let mut at = head;
        let mut links = (0..MOST).map_while(|_| {
            let next = is_listed(copy, pages, at, size).then(|| link(at, *is_mangled))?;
            at = next.wrapping_add(linked);
            Some(next)
        });
        links.any(|next| next == 0)
    };
    let is_mangled = [true, false].into_iter().find(ends);
    let mut at = head;
    while is_listed(copy, pages, at, size) && pages.remove(copy, at) {
        let next = |is_mangled| link(at, is_mangled).wrapping_add(linked);
        at = next(is_mangled.unwrap_or_else(|| !is_listed(copy, pages, next(false), size)));
    }
}

/// Where an arena's state contains the pointer to the top chunk. After it and another word come the bins, which are heads
/// of circular lists; those that are empty point to themselves.
fn top_pointer(copy: &Image, places: impl Iterator<Item = u64>) -> Option<u64> {
    const ENOUGH: usize = 16;
    let empty_bins = |place: u64| {
        let is_empty = |bin: &u64| {
            let at = place + 16 + bin * 16;
            copy.word(at) == at - 16 && copy.word(at + 8) == at - 16
        };
        (0..BINS).filter(is_empty).count()
    };
    let places = places.step_by(8).filter(|place| copy.has(copy.word(*place)));
    let counted = places.map(|place| (empty_bins(place), place));
    // The first of equals: before the bins there are no such words.
    let best = counted.min_by_key(|(empty, _)| std::cmp::Reverse(*empty))?;
    (best.0 >= ENOUGH).then_some(best.1)
}

/// That of the main arena: in libc, or in the program if it is linked statically.
fn main_top_pointer(copy: &Image, modules: &Modules) -> Option<u64> {
    let is_libc = |module: &&Module| Role::of(&module.path) == Role::System;
    let of_libc = modules.all().iter().filter(is_libc).flat_map(|module| &module.globals);
    let of_first = modules.all().iter().take(1).flat_map(|module| &module.globals);
    let mut globals = of_libc.chain(of_first);
    globals.find_map(|globals| top_pointer(copy, globals.clone()))
}
