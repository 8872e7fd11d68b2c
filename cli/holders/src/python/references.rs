//! The references of an object.
//!
//! Each counted reference is found exactly once, for the arithmetic of [`garbage`](crate::garbage): a missing one makes a
//! false holder outside Python, an extra one makes false garbage. Words of objects of C extensions are the exception, since
//! their meaning is not known.

use std::ops::Range;

use crate::copy::{Image, PAGE};
use crate::graph::{Edge, EdgeKind};
use crate::python::containers::{DEQUE_NEXT, is_present};
use crate::python::types::{Kind, Sort, TypeId, TypeInfo};
use crate::python::{Python, Reference};

/// The index of the first word of a module's state.
pub const STATE_WORDS: u64 = 1 << 20;
/// The most attributes that are kept in an object instead of a dictionary.
const MOST_VALUES: u64 = 256;
/// Objects of variable size are not searched behind this.
const MOST_BYTES: u64 = 1 << 32;

impl Python {
    /// Appends everything that the object refers to. Each counted reference occurs exactly once, so that their number can be
    /// compared with the count.
    pub fn references(&mut self, copy: &Image, address: u64, of: TypeId, found: &mut Vec<Reference>) {
        let info = &self.types[of];
        if info.is_heap {
            let class = copy.word(address + self.head() - 8);
            refer(found, Edge::new(EdgeKind::Class, 0), class, Sort::Context);
        }
        let o = &self.offsets;
        let is_short = info.kind == Kind::Type && !TypeInfo::is_heap_type(copy.word(address + o.type_flags));
        for field in &info.fields {
            if is_short && field.offset >= o.type_static_bytes {
                break;
            }
            refer(found, field.edge, copy.word(address + field.offset), field.sort);
        }
        self.attributes(copy, address, info, found);
        match info.kind {
            Kind::Dict => self.dict_references(copy, address, found),
            Kind::OrderedDict => {
                self.dict_references(copy, address, found);
                self.ordered_references(copy, address, found);
            }
            Kind::List => {
                let start = copy.word(address + self.offsets.list_items);
                self.element_references(copy, self.elements(copy, start, address), found);
            }
            Kind::Tuple => {
                let start = address + self.offsets.tuple_items;
                self.element_references(copy, self.elements(copy, start, address), found);
            }
            Kind::Set => self.set_references(copy, address, found),
            Kind::Deque => self.deque_references(copy, address, found),
            Kind::Frame => self.frame_object_references(copy, address, found),
            Kind::Generator => self.generator_references(copy, address, found),
            Kind::Module => {
                let state = self.module_state(copy, address).unwrap_or_default();
                words(copy, state, STATE_WORDS, found);
            }
            Kind::Object if info.has_words => {
                let first = info.basic.next_multiple_of(8);
                let range = address + first..(address + self.bytes(copy, address, info)) & !7;
                words(copy, range, first / 8, found);
            }
            Kind::Object | Kind::Leaf | Kind::Type | Kind::Function | Kind::Method | Kind::Code | Kind::Text => {}
        }
    }

    /// The references of a frame, or of the object that is there.
    pub fn references_of(&mut self, copy: &Image, address: u64, is_frame: bool) -> Vec<Reference> {
        let mut found = Vec::new();
        if is_frame {
            self.frame_references(copy, address, &mut found);
        } else if let Some(of) = self.object(copy, address) {
            self.references(copy, address, of, &mut found);
        }
        found
    }

    /// The words of the object whose meaning is not known.
    pub fn words_of(&self, copy: &Image, address: u64, of: TypeId) -> impl Iterator<Item = u64> {
        let fields = self.types[of].fields.iter().filter(|field| field.sort == Sort::Word);
        fields.map(move |field| copy.word(address + field.offset))
    }

    /// The dictionary of an instance, or the attributes in its place, where it is not a field.
    fn attributes(&self, copy: &Image, address: u64, info: &TypeInfo, found: &mut Vec<Reference>) {
        let mut dictionary = |target: u64| refer(found, Edge::new(EdgeKind::Dictionary, 0), target, Sort::Named);
        // Free-threaded builds have no links of the collector in between.
        let before = if self.offsets.is_free_threaded() { 8 } else { 24 };
        if self.minor() >= 11 && info.has_managed_dict() {
            match self.minor() {
                11 => dictionary(copy.word(address - 24)),
                12 if copy.word(address - 24) & 1 == 1 => {}
                _ => dictionary(copy.word(address - before)),
            }
        } else if info.dict_offset < 0 && self.minor() < 12 {
            let end = address + self.bytes(copy, address, info).next_multiple_of(8);
            dictionary(copy.word(end.wrapping_add_signed(info.dict_offset)));
        }
        for (index, at) in self.values(copy, address, info).step_by(8).enumerate() {
            let edge = Edge::new(EdgeKind::Attribute, index as u64);
            refer(found, edge, copy.word(at), Sort::Named);
        }
    }

    /// Attributes that are not in a dictionary, in the order of the type's keys.
    fn values(&self, copy: &Image, address: u64, info: &TypeInfo) -> Range<u64> {
        if self.minor() < 11 || !info.has_managed_dict() {
            return 0..0;
        }
        let first = match self.minor() {
            11 => copy.word(address - 32),
            12 => match copy.word(address - 24) {
                word if word & 1 == 1 => word.wrapping_add(1),
                _ => 0,
            },
            _ if info.has_inline_values() => {
                let values = address + info.basic;
                let is_valid = copy.byte(values + self.offsets.values_valid) != 0;
                if is_valid {
                    values + self.offsets.values_first
                } else {
                    0
                }
            }
            _ => 0,
        };
        if !is_address(first) {
            return 0..0;
        }
        let keys = copy.word(info.address + self.offsets.type_cached_keys);
        let entries = self.entries(copy, keys);
        let mut count = entries.map_or(0, |entries| entries.count.min(MOST_VALUES));
        if self.minor() >= 13 {
            count = count.min(copy.byte(address + info.basic).into());
        }
        let range = first..first + count * 8;
        if is_present(copy, &range) { range } else { 0..0 }
    }

    /// Bytes from the object's head to its end, without what is in front of it.
    pub(super) fn bytes(&self, copy: &Image, address: u64, info: &TypeInfo) -> u64 {
        let more = match info.kind {
            Kind::Text => self.text_bytes(copy, address),
            // Their size is not in the object.
            Kind::Frame | Kind::Generator if self.minor() >= 11 => self.frame_slots(copy, address, info.kind) * 8,
            _ if info.item == 0 => 0,
            _ => {
                let size = copy.word(address + self.head());
                let count = match info.is_number() {
                    true if self.minor() >= 12 => size >> 3,
                    _ => (size as i64).unsigned_abs(),
                };
                count.saturating_mul(info.item)
            }
        };
        // A torn size counts as 0.
        let behind = address + info.basic;
        let is_sane = more <= MOST_BYTES && is_present(copy, &(behind & !7..(behind + more).next_multiple_of(8)));
        info.basic + if is_sane { more } else { 0 }
    }

    /// Bytes in front of objects of this type that belong to them.
    pub fn header_bytes(&self, of: TypeId) -> u64 {
        self.types[of].header_bytes(&self.offsets)
    }

    /// The object's memory: from before its header for the collector to its end.
    pub fn extent(&self, copy: &Image, address: u64, of: TypeId) -> Range<u64> {
        let info = &self.types[of];
        let mut end = address + self.bytes(copy, address, info);
        if self.minor() >= 13 && info.has_inline_values() {
            let capacity = u64::from(copy.byte(address + info.basic));
            end = address + info.basic + self.offsets.values_first + capacity * 8;
        }
        address - self.header_bytes(of)..end.next_multiple_of(8)
    }

    /// Ranges other than the object itself that its references are read from: the array of a list, the keys of a
    /// dictionary.
    pub fn arrays(&mut self, copy: &Image, address: u64, of: TypeId) -> Vec<Range<u64>> {
        let info = &self.types[of];
        let mut arrays = Vec::new();
        match info.kind {
            Kind::Dict => self.dict_arrays(copy, address, &mut arrays),
            Kind::OrderedDict => {
                self.dict_arrays(copy, address, &mut arrays);
                arrays.extend(self.ordered_nodes(copy, address).map(|node| node..node + 32));
            }
            Kind::List => {
                let start = copy.word(address + self.offsets.list_items);
                arrays.extend(self.elements(copy, start, address));
            }
            Kind::Set => arrays.extend(self.set_table(copy, address)),
            Kind::Deque => {
                let blocks = self.deque_blocks(copy, address).0.into_iter();
                arrays.extend(blocks.map(|block| block..block + DEQUE_NEXT + 8));
            }
            Kind::Module => arrays.extend(self.module_state(copy, address)),
            _ => {}
        }
        let values = self.values(copy, address, info);
        if !self.extent(copy, address, of).contains(&values.start) {
            arrays.push(values);
        }
        arrays.retain(|range| !range.is_empty());
        arrays
    }
}

/// Whether a word can be an address at all.
pub fn is_address(word: u64) -> bool {
    // User space has 47 bits on x86-64 and 48 on aarch64, unless a program asks for more.
    (PAGE..1 << 48).contains(&word)
}

/// Appends a reference, if the word can be an address.
#[inline]
pub fn refer(found: &mut Vec<Reference>, edge: Edge, target: u64, sort: Sort) {
    if is_address(target) {
        found.push(Reference { edge, target, sort });
    }
}

/// Words whose meaning is not known. `first` is the index of the first one.
pub fn words(copy: &Image, range: Range<u64>, first: u64, found: &mut Vec<Reference>) {
    for (index, at) in range.step_by(8).enumerate() {
        refer(found, Edge::word(first + index as u64), copy.word(at), Sort::Word);
    }
}
