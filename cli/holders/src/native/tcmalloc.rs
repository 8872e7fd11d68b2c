//! tcmalloc of gperftools, 2.9 and later: its spans, and which objects in them are in use.
//!
//! ```text
//! table ─► span: │ first page │ pages │ next │ previous │ free objects │ references, class, place │
//! ```
//!
//! A span of a class is divided into objects. Free objects are in lists, each linked by its first word:
//!
//! * that of the span, which is checked: as many objects as the span has references are in none;
//! * those of the threads' caches: per class │ list │ length … │ size of the objects │;
//! * those in the slots of the central lists, in static memory: per class │ first, last │ of each list.
//!
//! The spans of a torn copy that fail the check count as memory of an unknown allocator. So does everything if the caches or the central
//! lists are not found.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;

use super::pages::{Kind, Pages};
use super::slabs::{Slab, Slabs};
use super::tree::{self, Shape, Tree};
use crate::copy::{Copy, PAGE};
use crate::modules::Modules;

/// Bits of an offset in a page of this allocator.
const PAGE_BITS: u32 = 13;
const SHAPE: Shape = Shape {
    top: 31,
    page: PAGE_BITS,
    describes,
};
/// Bytes of a span's description.
const SPAN: u64 = 48;
/// Of a central list, and in it: the number of its class, lists, and number of lists in use.
const CENTRAL: u64 = 1216;
const CENTRAL_CLASS: u64 = 8;
const CENTRAL_SLOTS: u64 = 128;
const CENTRAL_USED: u64 = 1152;
const MOST_SLOTS: u32 = 64;
/// Of a thread's list, and in it: the length and the size of the objects.
const LIST: u64 = 32;
const LIST_LENGTH: u64 = 8;
const LIST_OBJECT: u64 = 24;
/// Objects of a span: the smallest ones have spans of a few pages.
const MOST_OBJECTS: u64 = 8192;
const FEWEST_CLASSES: usize = 30;
const MOST_CLASSES: usize = 128;

fn span_range(copy: &Copy, span: u64) -> Option<Range<u64>> {
    const MOST_PAGES: u64 = 1 << (48 - PAGE_BITS);
    let (first, pages) = (copy.word(span), copy.word(span + 8));
    let is_span = pages > 0 && first < MOST_PAGES && pages < MOST_PAGES;
    is_span.then(|| first << PAGE_BITS..(first + pages) << PAGE_BITS)
}

fn describes(copy: &Copy, address: u64, entry: u64) -> bool {
    let is_place = entry.is_multiple_of(8) && entry > PAGE && copy.has(entry);
    is_place && span_range(copy, entry).is_some_and(|range| range.contains(&address))
}

struct Span {
    description: u64,
    range: Range<u64>,
}

impl Span {
    fn bits(&self, copy: &Copy) -> u64 {
        copy.word(self.description + 40)
    }

    fn references(&self, copy: &Copy) -> u64 {
        self.bits(copy) & 0xffff
    }

    fn class(&self, copy: &Copy) -> usize {
        (self.bits(copy) >> 16 & 0xff) as usize
    }

    fn is_used(&self, copy: &Copy) -> bool {
        self.bits(copy) >> 24 & 3 == 0
    }

    /// The slab of a span in use, and the free objects in its own list; `None` if both do not agree.
    fn slab(&self, copy: &Copy, classes: &[u64]) -> Option<(Slab, Vec<u64>)> {
        let class = self.class(copy);
        let start = self.range.start;
        if class == 0 {
            let bytes = self.range.end - start;
            let slab = Slab {
                start,
                bytes,
                count: 1,
                requested: bytes - (1 << PAGE_BITS),
            };
            return Some((slab, Vec::new()));
        }
        let bytes = *classes.get(class)?;
        let slab = Slab {
            start,
            bytes,
            count: (self.range.end - start) / bytes,
            requested: classes[class - 1].max(8),
        };
        if slab.count > MOST_OBJECTS {
            return None;
        }
        let mut free = Vec::new();
        let mut at = copy.word(self.description + 32);
        while at != 0 {
            let is_object = (start..slab.end()).contains(&at) && (at - start).is_multiple_of(bytes);
            if !is_object || free.len() as u64 >= slab.count {
                return None;
            }
            free.push(at);
            at = copy.word(at);
        }
        (free.len() as u64 + self.references(copy) == slab.count).then_some((slab, free))
    }
}

/// Finds the objects. `memory`: where they may be.
pub fn find(copy: &Copy, modules: &Modules, pages: &mut Pages, memory: &[Range<u64>], slabs: &mut Slabs) {
    for tree in tree::find(copy, modules, pages, memory, &SHAPE) {
        let Some(classes) = classes(copy, pages, &tree.globals) else {
            continue;
        };
        let Some(central) = central_lists(copy, pages, &tree.globals, classes.len()) else {
            continue;
        };
        let spans = spans(copy, pages, &tree);
        for span in &spans {
            pages.set_kind(copy, span.range.clone(), Kind::Extent);
        }
        let caches = thread_caches(copy, pages, memory, &classes);
        for span in &spans {
            pages.set_kind(copy, span.range.clone(), Kind::Unknown);
        }
        if caches.is_empty() {
            continue;
        }
        let (mut found, mut freed) = (Vec::new(), Vec::new());
        for span in &spans {
            if !span.is_used(copy) {
                pages.set_kind(copy, span.range.clone(), Kind::Extent);
            } else if let Some((slab, free)) = span.slab(copy, &classes) {
                found.push(slab);
                freed.extend(free);
            }
        }
        slabs.add(copy, pages, &found);
        for start in freed {
            slabs.free(copy, start);
        }
        for list in cached_lists(copy, &caches, central, &classes) {
            list.free(copy, slabs);
        }
        let descriptions = spans.iter().map(|span| span.description..span.description + SPAN);
        let of_threads = caches.iter().map(|cache| *cache..cache + MOST_CLASSES as u64 * LIST);
        for range in descriptions.chain(of_threads).chain(tree.memory(copy, &SHAPE)) {
            pages.set_kind(copy, range, Kind::None);
        }
        slabs.records.push(central..central + MOST_CLASSES as u64 * CENTRAL);
        slabs.names.push("tcmalloc");
    }
}

/// Free objects of one class.
struct List {
    first: u64,
    last: Option<u64>,
    most: u64,
    bytes: u64,
}

impl List {
    fn free(&self, copy: &Copy, slabs: &mut Slabs) {
        let mut at = self.first;
        for _ in 0..self.most {
            let is_of_class = slabs.piece(copy, at).is_some_and(|piece| piece.bytes == self.bytes);
            if !is_of_class || slabs.free(copy, at).is_none() || self.last == Some(at) {
                return;
            }
            at = copy.word(at);
        }
    }
}

/// The lists of the threads and of the central lists' slots.
fn cached_lists(copy: &Copy, caches: &[u64], central: u64, classes: &[u64]) -> Vec<List> {
    /// Objects of a slot.
    const MOST: u64 = 1 << 16;
    let mut lists = Vec::new();
    for (class, &bytes) in (0..).zip(classes).skip(1) {
        for cache in caches {
            let own = cache + class * LIST;
            lists.push(List {
                first: copy.word(own),
                last: None,
                most: u64::from(copy.half(own + LIST_LENGTH)),
                bytes,
            });
        }
        let own = central + class * CENTRAL;
        for slot in 0..u64::from(copy.half(own + CENTRAL_USED).min(MOST_SLOTS)) {
            let slot = own + CENTRAL_SLOTS + slot * 16;
            lists.push(List {
                first: copy.word(slot),
                last: Some(copy.word(slot + 8)),
                most: MOST,
                bytes,
            });
        }
    }
    lists
}

/// The spans whose first and last page lead to them.
fn spans(copy: &Copy, pages: &Pages, tree: &Tree) -> Vec<Span> {
    let mut firsts: HashMap<u64, u64, FixedState> = HashMap::default();
    tree.each(copy, pages, &SHAPE, &mut |address, span| {
        let is_first = describes(copy, address, span) && copy.word(span) << PAGE_BITS == address;
        if is_first {
            firsts.insert(span, address);
        }
    });
    let span = |description: u64| {
        let range = span_range(copy, description)?;
        let last = tree.entry(copy, &SHAPE, range.end - (1 << PAGE_BITS));
        (last == description).then_some(Span { description, range })
    };
    firsts.into_keys().filter_map(span).collect()
}

/// The sizes of the classes: numbers of four bytes that rise from 0 to the size of the largest object.
fn classes(copy: &Copy, pages: &Pages, globals: &Range<u64>) -> Option<Vec<u64>> {
    const LARGEST: u64 = 32 << 10;
    for page in pages.addresses(globals.clone()) {
        for at in (page..page + PAGE).step_by(4) {
            if copy.half(at) != 0 || !matches!(copy.half(at + 4), 8 | 16) {
                continue;
            }
            let mut sizes: Vec<u64> = vec![0];
            for place in (at + 4..).step_by(4).take(MOST_CLASSES - 1) {
                let size = u64::from(copy.half(place));
                if size <= *sizes.last()? || !size.is_multiple_of(8) {
                    break;
                }
                sizes.push(size);
            }
            if sizes.len() >= FEWEST_CLASSES && *sizes.last()? >= LARGEST {
                return Some(sizes);
            }
        }
    }
    None
}

/// The first central list: that of class 0.
fn central_lists(copy: &Copy, pages: &Pages, globals: &Range<u64>, classes: usize) -> Option<u64> {
    let is_list = |first: u64, class: u64| {
        let at = first + class * CENTRAL;
        let (used, limits) = (copy.half(at + CENTRAL_USED), copy.word(at + CENTRAL_USED + 4));
        let (limit, most) = (limits as u32, (limits >> 32) as u32);
        copy.word(at + CENTRAL_CLASS) == class && used <= limit && limit <= most && most <= MOST_SLOTS
    };
    let places = pages
        .addresses(globals.clone())
        .into_iter()
        .flat_map(|page| (page..page + PAGE).step_by(8));
    let mut firsts = places.filter(|at| copy.word(at + CENTRAL_CLASS + CENTRAL) == 1);
    firsts.find(|first| (1..classes as u64).all(|class| is_list(*first, class)))
}

/// The caches of all threads, in memory that no span describes.
fn thread_caches(copy: &Copy, pages: &Pages, memory: &[Range<u64>], classes: &[u64]) -> Vec<u64> {
    let mut found = Vec::new();
    let own_size = |cache: u64, class: usize| u64::from(copy.half(cache + class as u64 * LIST + LIST_OBJECT));
    for range in memory {
        for page in pages.addresses(range.clone()) {
            if pages.kind_at(copy, page) != Kind::Unknown {
                continue;
            }
            for cache in (page..page + PAGE).step_by(8) {
                let is_cache = own_size(cache, 1) == classes[1]
                    && (2..classes.len()).all(|class| own_size(cache, class) == classes[class])
                    && is_list(copy, cache + LIST);
                if is_cache {
                    found.push(cache);
                }
            }
        }
    }
    found
}

/// Whether a list is empty if its length is 0.
fn is_list(copy: &Copy, list: u64) -> bool {
    (copy.word(list) == 0) == (copy.half(list + LIST_LENGTH) == 0)
}
