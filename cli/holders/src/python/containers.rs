//! Dictionaries, sets, deques and the state of modules: references that lie outside the object.
//!
//! ```text
//! dict ──► keys: sizes, index table, entries {hash, key, value} or {key, value}
//!      └─► values: a split dictionary has its values apart, in the order of the entries of keys that objects share
//! ```
//!
//! Sizes may be torn: both ends of an array must be present, and large ones must lie in one region. Addresses may be torn,
//! too, so that objects share an array.

use std::ops::Range;

use crate::copy::{Image, PAGE};
use crate::graph::{Edge, EdgeKind};
use crate::python::references::is_address;
use crate::python::types::{Kind, Sort, TypeId};
use crate::python::{Python, Reference};
use culeak::cpython::ABSENT;

/// More than fits into memory.
const MOST_ENTRIES: u64 = 1 << 40;

/// Entries of the keys of a dictionary.
#[derive(Debug, Clone, Copy)]
pub struct Entries {
    pub keys: u64,
    pub first: u64,
    pub count: u64,
    pub step: u64,
    /// Where in an entry the key is. The value is at the end.
    pub key: u64,
    /// Keys may be objects other than strings.
    pub is_general: bool,
}

impl Entries {
    pub fn key(&self, copy: &Image, index: u64) -> u64 {
        if index < self.count {
            copy.word(self.first + index * self.step + self.key)
        } else {
            0
        }
    }

    pub fn value(&self, copy: &Image, index: u64) -> u64 {
        copy.word(self.first + (index + 1) * self.step - 8)
    }

    fn range(&self) -> Range<u64> {
        self.keys..self.first + self.count * self.step
    }
}

/// Whether an array can be where an object claims that it is.
pub fn is_present(copy: &Image, range: &Range<u64>) -> bool {
    let bytes = range.end.saturating_sub(range.start);
    bytes == 0
        || range.start & 7 == 0
            && copy.has(range.start)
            && copy.has(range.end - 8)
            && (bytes <= 16 * PAGE
                || bytes <= copy.copied_bytes()
                    && copy
                        .region(range.start)
                        .is_some_and(|region| region.range.end >= range.end))
}

/// `start`, and `count` elements of `step` bytes behind it.
fn array(start: u64, count: u64, step: u64) -> Option<Range<u64>> {
    if start == 0 || count > MOST_ENTRIES {
        return None;
    }
    Some(start..start.checked_add(count * step)?)
}

fn push(found: &mut Vec<Reference>, kind: EdgeKind, index: u64, target: u64) {
    if target != 0 {
        let (edge, sort) = (Edge::new(kind, index), Sort::Named);
        found.push(Reference { edge, target, sort });
    }
}

impl Python {
    /// The entries of a dictionary's keys; `None` if they are torn.
    pub(super) fn entries(&self, copy: &Image, keys: u64) -> Option<Entries> {
        let o = &self.offsets;
        if !is_address(keys) || keys & 7 != 0 {
            return None;
        }
        let count = copy.word(keys + o.keys_entries);
        let indices = keys + o.keys_indices;
        let (first, is_general) = if self.minor() < 11 {
            let size = copy.word(keys + 8);
            let width = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0xffff_ffff => 4,
                _ => 8,
            };
            if size > MOST_ENTRIES || count > size {
                return None;
            }
            let lookup = copy.word(keys + 16);
            (indices + size * width, lookup != self.plain_lookup || lookup == 0)
        } else {
            let (log_size, log_bytes, kind) = (copy.byte(keys + 8), copy.byte(keys + 9), copy.byte(keys + 10));
            if log_size > 40 || log_bytes > 44 || count > 1 << log_size {
                return None;
            }
            (indices + (1 << log_bytes), kind == 0)
        };
        // From 3.11 on, those whose keys are strings have no hash.
        let has_hash = is_general || self.minor() < 11;
        let (key, step) = if has_hash { (8, 24) } else { (0, 16) };
        let entries = Entries {
            keys,
            first,
            count,
            step,
            key,
            is_general,
        };
        // Shared empty keys may lie in memory that is not writable.
        (count == 0 || is_present(copy, &entries.range())).then_some(entries)
    }

    /// The values of a split dictionary.
    fn split_values(&self, copy: &Image, values: u64, count: u64) -> Option<Range<u64>> {
        let o = &self.offsets;
        if !is_address(values) {
            return None;
        }
        let count = match o.values_embedded {
            ABSENT => count,
            // The first byte is the capacity.
            _ => count.min(copy.byte(values).into()),
        };
        let range = array(values + o.values_first, count, 8)?;
        is_present(copy, &range).then_some(range)
    }

    /// The values of a split dictionary are part of the object whose attributes they are.
    fn is_embedded(&self, copy: &Image, values: u64) -> bool {
        self.offsets.values_embedded != ABSENT
            && is_address(values)
            && copy.byte(values + self.offsets.values_embedded) != 0
    }

    pub(super) fn dict_references(&self, copy: &Image, dict: u64, found: &mut Vec<Reference>) {
        let o = &self.offsets;
        let Some(entries) = self.entries(copy, copy.word(dict + o.dict_keys)) else {
            return;
        };
        let values = copy.word(dict + o.dict_values);
        if values != 0 {
            if !self.is_embedded(copy, values) {
                let values = self.split_values(copy, values, entries.count).unwrap_or_default();
                for (index, at) in values.step_by(8).enumerate() {
                    push(found, EdgeKind::Value, index as u64, copy.word(at));
                }
            }
            return;
        }
        for index in 0..entries.count {
            let value = entries.value(copy, index);
            if value == 0 {
                continue;
            }
            if entries.is_general {
                push(found, EdgeKind::Key, index, entries.key(copy, index));
            }
            push(found, EdgeKind::Value, index, value);
        }
    }

    pub(super) fn dict_arrays(&self, copy: &Image, dict: u64, arrays: &mut Vec<Range<u64>>) {
        let o = &self.offsets;
        let Some(entries) = self.entries(copy, copy.word(dict + o.dict_keys)) else {
            return;
        };
        arrays.push(entries.range());
        let values = copy.word(dict + o.dict_values);
        if values != 0 {
            arrays.extend(self.split_values(copy, values, entries.count));
        }
    }

    /// An `OrderedDict` has a list of nodes {key, hash, next, previous} besides; each counts as a reference to its key.
    pub(super) fn ordered_nodes<'a>(&self, copy: &'a Image, dict: u64) -> impl Iterator<Item = u64> + use<'a> {
        const NEXT: u64 = 16;
        // A torn list may lead back into itself.
        let used = copy.word(dict + self.head()).min(copy.copied_bytes() / 32);
        let mut node = copy.word(dict + self.offsets.dict_bytes);
        (0..used).map_while(move |_| {
            let this = node;
            if this & 7 != 0 || !copy.has(this) {
                return None;
            }
            node = copy.word(this + NEXT);
            Some(this)
        })
    }

    pub(super) fn ordered_references(&self, copy: &Image, dict: u64, found: &mut Vec<Reference>) {
        for (index, node) in self.ordered_nodes(copy, dict).enumerate() {
            push(found, EdgeKind::Key, index as u64, copy.word(node));
        }
    }

    /// The array of a list, or the elements of a tuple.
    pub(super) fn elements(&self, copy: &Image, start: u64, object: u64) -> Option<Range<u64>> {
        array(start, copy.word(object.wrapping_add(self.head())), 8).filter(|range| is_present(copy, range))
    }

    pub(super) fn element_references(&self, copy: &Image, elements: Option<Range<u64>>, found: &mut Vec<Reference>) {
        for (index, at) in elements.unwrap_or_default().step_by(8).enumerate() {
            push(found, EdgeKind::Item, index as u64, copy.word(at));
        }
    }

    /// The address of the array of a list, dictionary or set with many elements.
    pub fn large_array(&self, copy: &Image, object: u64, of: TypeId) -> Option<u64> {
        const MANY: u64 = 1 << 12;
        let o = &self.offsets;
        let word = |offset| copy.word(object + offset);
        // Keys are shared by dictionaries with their own values.
        let (count, array) = match self.types[of].kind {
            Kind::List => (word(self.head()), o.list_items),
            Kind::Dict | Kind::OrderedDict if word(o.dict_values) == 0 => (word(self.head()), o.dict_keys),
            Kind::Dict | Kind::OrderedDict => return None,
            Kind::Set => (word(o.set_mask), o.set_table),
            _ => return None,
        };
        (count >= MANY).then(|| word(array))
    }

    /// The table of a set: {key, hash}.
    pub(super) fn set_table(&self, copy: &Image, set: u64) -> Option<Range<u64>> {
        let slots = copy.word(set + self.offsets.set_mask).checked_add(1)?;
        let range = array(copy.word(set + self.offsets.set_table), slots, 16)?;
        (slots.is_power_of_two() && is_present(copy, &range)).then_some(range)
    }

    pub(super) fn set_references(&self, copy: &Image, set: u64, found: &mut Vec<Reference>) {
        // The hash of a removed entry.
        const REMOVED: u64 = u64::MAX;
        for (index, at) in self.set_table(copy, set).unwrap_or_default().step_by(16).enumerate() {
            if copy.word(at + 8) != REMOVED {
                push(found, EdgeKind::Member, index as u64, copy.word(at));
            }
        }
    }

    /// The blocks of a deque: {previous, 64 elements, next}, and the elements in use: index of the first, number.
    pub(super) fn deque_blocks(&self, copy: &Image, deque: u64) -> (Vec<u64>, u64, u64) {
        let (mut block, first, count) = (
            copy.word(deque + self.head() + 8),
            copy.word(deque + self.head() + 24),
            copy.word(deque + self.head()),
        );
        let mut blocks = Vec::new();
        if first >= DEQUE_BLOCK || count > copy.copied_bytes() / 8 {
            return (blocks, 0, 0);
        }
        for _ in 0..(first + count).div_ceil(DEQUE_BLOCK) {
            if block & 7 != 0 || !copy.has(block) || !copy.has(block + DEQUE_NEXT) {
                break;
            }
            blocks.push(block);
            block = copy.word(block + DEQUE_NEXT);
        }
        (blocks, first, count)
    }

    pub(super) fn deque_references(&self, copy: &Image, deque: u64, found: &mut Vec<Reference>) {
        let (blocks, first, count) = self.deque_blocks(copy, deque);
        for index in 0..count {
            let place = first + index;
            let Some(block) = blocks.get((place / DEQUE_BLOCK) as usize) else {
                break;
            };
            push(
                found,
                EdgeKind::Item,
                index,
                copy.word(block + 8 + place % DEQUE_BLOCK * 8),
            );
        }
    }

    /// What a module written in C keeps for itself.
    pub(super) fn module_state(&self, copy: &Image, module: u64) -> Option<Range<u64>> {
        const MOST_BYTES: u64 = 1 << 20;
        let o = &self.offsets;
        let state = copy.word(module + o.module_state);
        let bytes = match o.module_definition {
            ABSENT => copy.word(module + o.module_state_bytes),
            at => match copy.word(module + at) {
                definition if !is_address(definition) => 0,
                definition => copy.word(definition + o.definition_state_bytes),
            },
        };
        let range = state..state.checked_add(bytes & !7)?;
        (state != 0 && bytes <= MOST_BYTES && is_present(copy, &range)).then_some(range)
    }
}

/// Elements of a block of a deque, and where the next block is.
const DEQUE_BLOCK: u64 = 64;
pub const DEQUE_NEXT: u64 = 8 + DEQUE_BLOCK * 8;
