//! What a word may point to, and which memory holds what.

use crate::copy::Image;
use crate::native::{Chunk, Heap, Native, vectors};
use crate::python::{Python, TypeId};

/// Of a `c10::StorageImpl`: up to and including its pointer to the data. Of a `c10::TensorImpl`: up to and including those to
/// its storage and to what autograd keeps of it. What follows may be uninitialised.
pub const FIRST_BYTES: u64 = 40;

/// Bytes before an object in its chunk: none, the collector's header or the pointers to its attributes, or both.
const HEADERS: [u64; 3] = [0, 16, 32];

/// The Python object that a chunk was allocated for.
pub fn object_in(copy: &Image, python: &mut Python, chunk: Chunk) -> Option<u64> {
    HEADERS.into_iter().find_map(|header| {
        let address = chunk.start + header;
        let of = python.object(copy, address)?;
        let extent = python.extent(copy, address, of);
        // The last word of a chunk of glibc may lie behind its limits.
        (extent.start == chunk.start && extent.end <= chunk.start + chunk.bytes + 8).then_some(address)
    })
}

/// Whether an object of this type may begin at this address: behind its own header, and no other one. The memory of a module
/// or of a library may begin like an object, with a small address and that of a type.
pub fn is_place_of_object(copy: &Image, python: &Python, native: &Native, address: u64, of: TypeId) -> bool {
    let start = address.wrapping_sub(python.header_bytes(of));
    match native.chunk(copy, address) {
        Some(chunk) => chunk.heap == Heap::Unknown || chunk.start == start,
        // Behind a header in Python's heap, or in static memory.
        None => {
            native.chunk(copy, start).is_some_and(|chunk| chunk.start == start)
                || copy.region(address).is_some_and(|region| region.name.starts_with('/'))
        }
    }
}

/// Whether a word of this value can be a pointer to the memory of the chunk. Free chunks of glibc link to each other by
/// addresses 16 bytes before their memory, so 8 before the end of the previous chunk.
pub fn points_into(chunk: Chunk, value: u64) -> bool {
    match chunk.heap {
        Heap::Python | Heap::Unknown | Heap::None => value == chunk.start,
        Heap::Glibc => value == chunk.start || value - chunk.start + 8 != chunk.bytes,
    }
}

/// Whether the word lies in the buffer of a short `std::string`, of which the unused part is uninitialised: the string points
/// to its buffer, which follows the length, and holds a text that ends with its first zero byte. Vectors with room for a few
/// elements have the same form. `first`: where the memory of this owner begins. What is before it is the memory of another
/// one, and may have been text once.
pub fn is_short_text(page: &[u64; 512], first: usize, place: usize, address: u64) -> bool {
    let is_text = |string: usize| {
        let buffer = string + 2;
        page[string] == address + buffer as u64 * 8 && vectors::is_text(&page[buffer..], page[string + 1])
    };
    (place >= first + 2 && is_text(place - 2)) || (place >= first + 3 && is_text(place - 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_length_and_an_end_is_a_short_text() {
        let mut page = [0; 512];
        // At words 10, 20 and 30, pointers to the second word behind them.
        (page[10], page[11], page[12]) = (0x1000 + 12 * 8, 5, u64::from_le_bytes(*b"text.\0\x7f\0"));
        (page[20], page[21], page[22]) = (0x1000 + 22 * 8, 0x7f00_0000_0100, 0x7f00_0000_0000);
        (page[30], page[31], page[32]) = (0x1000 + 32 * 8, 0, 0x7f00_0000_0010);
        assert!(is_short_text(&page, 0, 12, 0x1000) && is_short_text(&page, 10, 13, 0x1000));
        assert!(!is_short_text(&page, 0, 22, 0x1000) && !is_short_text(&page, 0, 23, 0x1000));
        assert!(!is_short_text(&page, 0, 32, 0x1000) && !is_short_text(&page, 0, 33, 0x1000));
        // A vector with room for its elements: of one, of six, and of eight.
        for (length, first) in [(1, 0x7f00_0000_0000), (6, 0x55d1_f2a3_b490), (8, 0x7f12_3456_7890)] {
            (page[31], page[32], page[33]) = (length, first, 0x7f00_0000_0300);
            assert!(
                !is_short_text(&page, 0, 32, 0x1000) && !is_short_text(&page, 0, 33, 0x1000),
                "{length}"
            );
        }
        page[31] = 0;
        // The first words of a chunk, and in front of it what is left of a text.
        assert!(!is_short_text(&page, 13, 13, 0x1000) && !is_short_text(&page, 12, 12, 0x1000));
    }

    #[test]
    fn links_between_free_chunks_do_not_point_into_allocated_ones() {
        let chunk = |heap| Chunk {
            start: 1024,
            bytes: 24,
            heap,
        };
        assert!(points_into(chunk(Heap::Glibc), 1024) && points_into(chunk(Heap::Glibc), 1032));
        assert!(!points_into(chunk(Heap::Glibc), 1040));
        assert!(points_into(chunk(Heap::Python), 1024) && !points_into(chunk(Heap::Python), 1040));
    }
}
