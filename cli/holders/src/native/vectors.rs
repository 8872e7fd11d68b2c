//! Which part of a chunk the elements of a vector or a queue take. The rest is often left from an earlier owner.

use std::ops::Range;

use super::pages::{Chunk, Heap};
use crate::copy::Image;

/// How much of a chunk is in use if a `std::vector` or the like (first, end, limit) has it, given where a pointer to the
/// chunk is. What is behind it is often left from a freed chunk. `None`: the pointer is not the beginning of a vector.
pub fn bytes_of_vector(copy: &Image, place: u64, chunk: &Chunk) -> Option<u64> {
    let limits = chunk.start..=chunk.start + chunk.bytes;
    let (first, end) = (copy.word(place), copy.word(place.wrapping_add(8)));
    let limit = copy.word(place.wrapping_add(16));
    let is_vector =
        first == chunk.start && end <= limit && limit > first && limits.contains(&end) && limits.contains(&limit);
    // The iterators of a `std::deque` (element, first, limit, the pointer to the chunk) are like an empty vector at its first element.
    let is_deque = || end == first && copy.word(copy.word(place.wrapping_add(24))) == first;
    (is_vector && !is_deque()).then(|| end - first)
}

/// The part of a chunk that is in use if a `std::deque` of libstdc++ has it, which is also the memory of a `std::queue` and a
/// `std::stack`, given where a pointer to the chunk is. Elements that were taken out are left in the rest. `None`: no deque has the
/// chunk as its map, its first or its last one. Of an unknown allocator, a chunk may begin anywhere in these and end anywhere.
///
/// ```text
/// deque:     │ map │ length │ begin │ end │         begin, end:  │ element │ first │ limit │ place in the map │
/// ```
pub fn used_of_deque(copy: &Image, place: u64, chunk: &Chunk) -> Option<Range<u64>> {
    let of = |deque: u64| {
        let field = |offset: u64| copy.word(deque.wrapping_add(offset));
        let map = field(0)..field(0).checked_add(field(8).checked_mul(8)?)?;
        let iterator = |at: u64| {
            let [element, first, limit, place] = [0, 8, 16, 24].map(|part| field(at + part));
            let is_valid = (first..limit).contains(&element) && map.contains(&place) && copy.word(place) == first;
            is_valid.then_some((element, first..limit, place))
        };
        let (begin, end) = (iterator(16)?, iterator(48)?);
        let is_one = begin.2 == end.2;
        if begin.2 > end.2 || is_one && begin.0 > end.0 {
            return None;
        }
        let (from, to) = match is_one {
            true => (begin.0, end.0),
            false => (end.1.start, begin.1.end),
        };
        let parts = [
            (map, begin.2..end.2.saturating_add(8)),
            (begin.1, begin.0..to),
            (end.1, from..end.0),
        ];
        let is_of_chunk = |memory: &Range<u64>| match chunk.heap {
            Heap::Unknown => memory.contains(&chunk.start),
            _ => memory.start == chunk.start && memory.end <= chunk.start + chunk.bytes,
        };
        let (_, used) = parts.into_iter().find(|(memory, _)| is_of_chunk(memory))?;
        Some(used.start.saturating_sub(chunk.start)..used.end.saturating_sub(chunk.start))
    };
    // The first pointer to the chunk is one of these fields.
    [0, 16, 24, 40, 48, 56, 72]
        .into_iter()
        .find_map(|field| of(place.wrapping_sub(field)))
}

/// Whether a buffer that begins with these words is that of a short `std::string` of this length.
pub fn is_text(buffer: &[u64], length: u64) -> bool {
    const BYTES: usize = 16;
    let mut bytes = [0; BYTES];
    let words = buffer.iter().take(BYTES / 8);
    let known = words.len() * 8;
    for (bytes, word) in bytes.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    length < BYTES as u64 && bytes[length as usize] == 0 && {
        let text = &bytes[..known.min(length as usize)];
        !text.contains(&0) && std::str::from_utf8(text).is_ok()
    }
}

/// As above, if an `absl::InlinedVector` (twice the number of elements plus one, first, capacity) has it. The size of the
/// chunk shows that of an element.
pub fn bytes_of_inlined_vector(copy: &Image, place: u64, chunk: &Chunk) -> Option<u64> {
    // glibc adds less than this to a request. It rounds up to 16 bytes, and leaves no rest that is too small for a chunk.
    const ROUNDING: u64 = 32;
    let [sizes, first, capacity] = [-8, 0, 8].map(|offset| copy.word(place.wrapping_add_signed(offset)));
    let elements = sizes >> 1;
    if first != chunk.start || sizes & 1 == 0 || !(1..=capacity).contains(&elements) || capacity > chunk.bytes / 8 {
        return None;
    }
    let element = (chunk.bytes / capacity) & !7;
    (chunk.bytes - element * capacity < ROUNDING).then_some(element * elements)
}
