//! Data types and sizes of the tensors that lead to blocks.
//!
//! ```text
//! TensorImpl: storage … number of dimensions | up to 5 sizes, 5 strides; else a pointer to all | first element | elements | type, device …
//! ```
//!
//! Where this begins differs between versions. It is where the most tensors of the process have sizes whose product is the number of
//! elements, and whose elements are inside the block.

use culeak::snapshot::HeldTensor;

use super::names::{Kind, Names};
use crate::Map;
use crate::copy::Image;
use crate::findings::Explanation;

/// Words of a `TensorImpl` where the number of dimensions is looked for.
const PLACES: u64 = 12;
/// Words of sizes and strides, and how many dimensions have them there.
const WORDS: u64 = 10;
const INLINE: u64 = 5;
const MOST_DIMENSIONS: u64 = 64;

/// `c10::ScalarType`: name and bytes of an element. Types of parts of a byte, and quantized ones, are left out.
const TYPES: [(u64, &str, u64); 22] = [
    (0, "uint8", 1),
    (1, "int8", 1),
    (2, "int16", 2),
    (3, "int32", 4),
    (4, "int64", 8),
    (5, "float16", 2),
    (6, "float32", 4),
    (7, "float64", 8),
    (8, "complex32", 4),
    (9, "complex64", 8),
    (10, "complex128", 16),
    (11, "bool", 1),
    (15, "bfloat16", 2),
    (23, "float8_e5m2", 1),
    (24, "float8_e4m3fn", 1),
    (25, "float8_e5m2fnuz", 1),
    (26, "float8_e4m3fnuz", 1),
    (27, "uint16", 2),
    (28, "uint32", 4),
    (29, "uint64", 8),
    (44, "float8_e8m0fnu", 1),
    (45, "float4_e2m1fn_x2", 1),
];

/// The tensors on the paths of one copy.
#[derive(Default)]
pub(super) struct Tensors {
    found: Vec<OnPath>,
}

/// A tensor that leads to a block.
struct OnPath {
    block: usize,
    /// The bytes of the block.
    bytes: u64,
    address: u64,
}

impl Tensors {
    /// The tensor that the path goes through before it comes to the storage of a block of `bytes`.
    pub fn add(&mut self, names: &mut Names, block: usize, found: Explanation, bytes: u64) {
        let storage = found.last.0;
        if storage.is_none() || found.interior || names.kind(storage) != Kind::Storage {
            return;
        }
        let parent = names.searched.graph.parent(storage);
        let Some((tensor, _)) = parent.filter(|(node, _)| names.kind(*node) == Kind::Tensor) else {
            return;
        };
        let address = names.searched.graph.address(tensor);
        self.found.push(OnPath { block, bytes, address });
    }

    /// The blocks with their tensors, if most are understood in the same way.
    pub fn finish(self, copy: &Image) -> Map<usize, HeldTensor> {
        let at = |place: u64, of: &OnPath| read(copy, of.address.wrapping_add(8 * place), of.bytes);
        let count = |place| self.found.iter().filter(|of| at(place, of).is_some()).count();
        let counts = (0..PLACES).map(|place| (count(place), place));
        let best = counts.max().filter(|(count, _)| count * 2 > self.found.len());
        let Some((_, best)) = best else { return Map::default() };
        let blocks = self.found.iter();
        blocks.filter_map(|of| Some((of.block, at(best, of)?))).collect()
    }
}

/// The tensor whose number of dimensions is at `at`. `None`: nothing there is understood as one.
fn read(copy: &Image, at: u64, bytes: u64) -> Option<HeldTensor> {
    let word = |nth: u64| copy.word(at.wrapping_add(8 * nth));
    let dimensions = word(0);
    if dimensions > MOST_DIMENSIONS {
        return None;
    }
    let (_, dtype, size) = *TYPES.iter().find(|(number, ..)| *number == word(3 + WORDS) & 0xffff)?;
    let sizes = match dimensions <= INLINE {
        true => at.wrapping_add(8),
        false => word(1),
    };
    let size_of = |nth: u64| copy.word(sizes.wrapping_add(8 * nth));
    let shape: Vec<u64> = (0..dimensions).map(size_of).collect();
    let strides = sizes.wrapping_add(8 * dimensions.max(INLINE));
    let (first, elements) = (word(1 + WORDS), word(2 + WORDS));
    let (mut product, mut last) = (1u64, first);
    for (nth, size) in (0u64..).zip(&shape) {
        product = product.checked_mul(*size)?;
        let stride = copy.word(strides.wrapping_add(8 * nth));
        last = last.checked_add(size.checked_sub(1)?.checked_mul(stride)?)?;
    }
    let fits = |elements: u64| elements.checked_mul(size).is_some_and(|used| used <= bytes);
    (elements > 0 && product == elements && fits(elements) && fits(last.checked_add(1)?)).then(|| HeldTensor {
        dtype: dtype.to_owned(),
        shape,
    })
}
