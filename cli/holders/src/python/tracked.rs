//! The collector's lists, and its header in front of the objects that it tracks.
//!
//! The header is two words: the next object of the list and the previous one, with flags in their low bits. A list in the
//! copy of a running process usually breaks off; what it yields until then is a bonus.
//!
//! Free-threaded builds have no lists, and bits in the head of each object in place of the header.

use crate::copy::Image;
use crate::modules::{Module, Modules};
use crate::python::references::is_address;
use crate::python::types::{Kind, READY, TRACKED, TypeId, TypeInfo};
use crate::python::{LOCAL, Python};
use crate::starts_with_one;
use culeak::cpython::ABSENT;

const HEADER: u64 = 16;
const FLAGS: u64 = 3;
/// Three generations and those that the collector leaves alone.
const GENERATIONS: u64 = 3;
/// Bits of the collector in free-threaded builds: the object is tracked, or frozen.
const IS_TRACKED: u64 = 1;
const FROZEN: u64 = 8;
const MOST_INTERPRETERS: usize = 1000;

impl Python {
    /// The states of all interpreters, the main one last.
    pub(super) fn interpreters(&self, copy: &Image) -> Vec<u64> {
        let mut found = Vec::new();
        let mut interpreter = copy.word(self.runtime + self.offsets.runtime_interpreters);
        while is_address(interpreter) && copy.has(interpreter) && found.len() < MOST_INTERPRETERS {
            found.push(interpreter);
            interpreter = copy.word(interpreter + self.offsets.interpreter_next);
        }
        found
    }

    fn collectors(&self, copy: &Image) -> Vec<u64> {
        match self.offsets.runtime_gc {
            ABSENT => (self.interpreters(copy).into_iter())
                .map(|state| state + self.offsets.interpreter_gc)
                .collect(),
            at => vec![self.runtime + at],
        }
    }

    /// Objects that `gc.freeze()` keeps from being freed.
    pub fn frozen(&mut self, copy: &Image) -> Vec<u64> {
        if self.offsets.is_free_threaded() {
            return self.with_bits(copy, IS_TRACKED | FROZEN);
        }
        let mut frozen = Vec::new();
        for collector in self.collectors(copy) {
            let head = collector + self.offsets.gc_permanent;
            self.list(copy, head, false, &mut |object| frozen.push(object));
        }
        frozen
    }

    /// Objects that the collector tracks: its lists as far as they can be walked.
    pub fn tracked(&mut self, copy: &Image, see: &mut dyn FnMut(u64)) {
        let o = self.offsets;
        if o.is_free_threaded() {
            return self.with_bits(copy, IS_TRACKED).into_iter().for_each(see);
        }
        for collector in self.collectors(copy) {
            let generations = (0..GENERATIONS).map(|number| o.gc_generations + number * o.gc_generation_bytes);
            // A collection keeps counts where the previous object is.
            let is_collecting = copy.half(collector + o.gc_collecting) != 0;
            for head in generations.chain([o.gc_permanent]) {
                self.list(copy, collector + head, is_collecting, see);
            }
        }
    }

    /// Whether the collector follows the references of this object.
    pub fn is_tracked(&self, copy: &Image, address: u64, of: TypeId) -> bool {
        let info = &self.types[of];
        // Static types have no header.
        let has_header = info.is_tracked
            && (info.kind != Kind::Type || TypeInfo::is_heap_type(copy.word(address + self.offsets.type_flags)));
        match self.offsets.is_free_threaded() {
            true => self.gc_bits(copy, address) & IS_TRACKED != 0,
            false => has_header && copy.word(address.wrapping_sub(HEADER)) & !FLAGS != 0,
        }
    }

    /// Free-threaded builds: the collector's bits of an object.
    pub(super) fn gc_bits(&self, copy: &Image, address: u64) -> u64 {
        copy.word(address.wrapping_add(LOCAL)) >> 24 & 0xff
    }

    /// Free-threaded builds: the objects with these bits, which are in no list, so that all copied memory is searched. Freed objects
    /// have lost them.
    fn with_bits(&mut self, copy: &Image, bits: u64) -> Vec<u64> {
        let o = self.offsets;
        let is_type = |of: u64| copy.has(of) && copy.word(of + o.type_flags) & (READY | TRACKED) == READY | TRACKED;
        let found = copy.search(
            |value| value & 7 == 0 && is_address(value),
            |place, value| {
                let object = place.checked_sub(o.head() - 8)?;
                (object & 15 == 0 && self.gc_bits(copy, object) & bits == bits && is_type(value)).then_some(object)
            },
        );
        found
            .into_iter()
            .filter(|object| self.object(copy, *object).is_some())
            .collect()
    }

    fn list(&mut self, copy: &Image, head: u64, is_collecting: bool, see: &mut dyn FnMut(u64)) {
        let (mut previous, mut at) = (head, copy.word(head) & !FLAGS);
        // A list that leads back into itself ends after as many objects as the copy can contain.
        let mut left = copy.copied_bytes() / 32;
        while at != head && left > 0 && copy.has(at) {
            if !is_collecting && copy.word(at + 8) & !FLAGS != previous {
                return;
            }
            if self.object(copy, at + HEADER).is_some() {
                see(at + HEADER);
            }
            (previous, at) = (at, copy.word(at) & !FLAGS);
            left -= 1;
        }
    }

    /// The places in a chunk where an object with the collector's header in front of it may be.
    pub fn places_of_tracked(&self, copy: &Image, start: u64, bytes: u64) -> impl Iterator<Item = u64> {
        // A dictionary and weak references may lie in front of the header.
        [HEADER, HEADER + 16].into_iter().filter_map(move |before| {
            // Free-threaded builds have no links.
            if bytes < before + 16 || !is_address(start) || self.offsets.is_free_threaded() {
                return None;
            }
            let address = start + before;
            if !self.is_counted(copy, address) {
                return None;
            }
            let (next, previous) = (copy.word(address - HEADER) & !FLAGS, copy.word(address - 8) & !FLAGS);
            let are_links = is_address(next) && is_address(previous) && copy.has(next) && copy.has(previous);
            are_links.then_some(address)
        })
    }

    /// The tracked object in a chunk, if it contains one.
    pub fn tracked_in(&mut self, copy: &Image, start: u64, bytes: u64) -> Option<u64> {
        let places: Vec<u64> = self.places_of_tracked(copy, start, bytes).collect();
        places.into_iter().find_map(|address| {
            let before = address - start;
            let of = self
                .types
                .get(copy, &self.offsets, copy.word(address + self.head() - 8))?;
            let info = &self.types[of];
            let fits = info.is_tracked && info.header_bytes(&self.offsets) == before && before + info.basic <= bytes;
            fits.then_some(address)
        })
    }

    /// The static memory of the interpreter's own file, where older versions have their lists of free objects.
    pub fn globals(&self, modules: &Modules) -> Vec<std::ops::Range<u64>> {
        // A program with its own name may contain the interpreter, among much else.
        let is_own = |module: &&Module| starts_with_one(module.file_name(), &["python", "libpython"]);
        let file = modules.with_global(self.runtime).filter(is_own);
        file.map_or_else(Vec::new, |file| file.globals.clone())
    }

    /// The interpreter's state, which is searched for words last.
    pub fn states(&self, copy: &Image) -> Vec<std::ops::Range<u64>> {
        let bytes = self.offsets.interpreter_bytes;
        let state = |interpreter| interpreter..interpreter + bytes;
        self.interpreters(copy).into_iter().map(state).collect()
    }
}
