//! Addresses that Python programs keep as values: in numbers, and in the bytes of `bytes` and `bytearray`.
//!
//! They hold a block only if nothing else does, since a number may equal an address by chance.

use std::ops::Range;

use super::{Pointer, Walk};
use crate::graph::{Edge, EdgeKind, NodeId};
use crate::python::{Number, TypeId};

/// Longer ones are read once, however many references there are.
const SHORT: u64 = 64;
/// In longer ones, only words at multiples of 8 bytes from their beginning are read.
const PACKED: u64 = 256;

impl Walk<'_, '_> {
    /// What the value of this object leads to. The reference is that of its holder.
    #[inline]
    pub(super) fn number(&mut self, from: NodeId, edge: Edge, object: u64, of: TypeId) {
        let Some(python) = self.python.as_deref() else { return };
        let head = python.head();
        match python.number(of) {
            None => {}
            Some(Number::Integer) => {
                if let Some(value) = python.natural_number(self.copy, object) {
                    self.is_value(from, edge, value);
                }
            }
            Some(Number::Float) => {
                if let Some(value) = whole(f64::from_bits(self.copy.word(object + head))) {
                    self.is_value(from, edge, value);
                }
            }
            Some(Number::Bytes(start)) => self.bytes(from, edge, object + start, object, head),
            Some(Number::Buffer(at)) => self.bytes(from, edge, self.copy.word(object + at), object, head),
        }
    }

    /// `head`: where the object has their number.
    fn bytes(&mut self, from: NodeId, edge: Edge, start: u64, object: u64, head: u64) {
        let size = self.copy.word(object + head);
        if size < 8 || size > self.copy.copied_bytes() || start.checked_add(size).is_none() {
            return;
        }
        if size > SHORT && !self.arrays.insert(object) || !self.budget.spend(size / 8) {
            return;
        }
        if size <= PACKED
            && let Some(bytes) = self.copy.slice(start, size)
        {
            for word in bytes.windows(8) {
                let value = word.try_into().map_or(0, u64::from_le_bytes);
                self.is_value(from, edge, value);
            }
            return;
        }
        for at in places(start, size) {
            let value = self.copy.word(at);
            if value != 0 {
                self.is_value(from, edge, value);
            }
        }
    }

    #[inline]
    fn is_value(&mut self, from: NodeId, edge: Edge, value: u64) {
        // Any number may lead into a range.
        let range = self.index.find_reserved(value).filter(|(_, is_inside)| !is_inside);
        let found = [self.index.find(value), range];
        for (block, interior) in found.into_iter().flatten() {
            let known = &mut self.numbers[block];
            // The value stack of a running function has stale references.
            let is_better = |known: &Pointer| known.edge.kind() == EdgeKind::Stack && edge.kind() != EdgeKind::Stack;
            if known.as_ref().is_none_or(is_better) {
                *known = Some(Pointer {
                    node: from,
                    edge,
                    interior,
                    phase: self.phase,
                    weak: true,
                });
            }
        }
    }
}

/// Where words may begin in these bytes, which are at least 8.
fn places(start: u64, size: u64) -> std::iter::StepBy<Range<u64>> {
    let step = if size <= PACKED { 1 } else { 8 };
    (start..start + size - 7).step_by(step)
}

/// The value of a number without a fraction that can be an address.
fn whole(value: f64) -> Option<u64> {
    const ADDRESSES: Range<f64> = 65536.0..281474976710656.0;
    (ADDRESSES.contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_of_the_size_of_addresses_are_addresses() {
        assert_eq!(whole(139_637_976_727_552.0), Some(139_637_976_727_552));
        for value in [0.0, -1e14, 65535.0, 1e14 + 0.5, 1e300, f64::INFINITY, f64::NAN] {
            assert_eq!(whole(value), None, "{value}");
        }
    }

    #[test]
    fn short_bytes_are_read_at_every_place_and_long_ones_at_multiples_of_8() {
        assert_eq!(places(100, 8).collect::<Vec<_>>(), [100]);
        assert_eq!(places(100, 10).collect::<Vec<_>>(), [100, 101, 102]);
        assert_eq!(places(100, 1000).count(), 125);
    }
}
