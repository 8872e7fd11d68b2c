//! Storages of tensors on GPUs, found by their class. For a process whose allocator is not understood, which is another backend
//! (cudaMallocAsync, a pluggable allocator) or an unknown version, or does not cache.
//!
//! ```text
//! c10::StorageImpl: virtual table, references, data, deleter, context, device, bytes
//!   context = data                          memory of PyTorch's allocators
//!   context ─► … data, bytes …              of a pluggable allocator
//!   context ─► … data, deleter, data …      of PyTorch's allocators, sent to another process
//! ```
//!
//! Other contexts belong to memory of other libraries and of other processes, which is left out.

use std::ops::Range;

use crate::budget::{Budget, Deadline, UNFINISHED};
use crate::copy::Image;
use crate::modules::exported_of_loaded;
use crate::pytorch::{LiveBlock, libraries};
use crate::source::{Region, Source};

/// The virtual table of the class, which each library that makes storages exports.
const TABLE: &str = "_ZTVN3c1011StorageImplE";
/// The words of a virtual table before the one that objects point to.
const HEAD: u64 = 16;
/// `c10::DeviceType::CUDA`.
const CUDA: u8 = 1;
/// The words of a context that are read.
const CONTEXT: u64 = 24;
const MOST_REFERENCES: u32 = 1 << 24;
const ADDRESSES: Range<u64> = 0x1000..1 << 47;

/// Their memory, by address.
///
/// # Errors
/// Why they cannot be read, as a sentence.
pub fn storages(source: &dyn Source, regions: &[Region], mut deadline: Deadline) -> Result<Vec<LiveBlock>, String> {
    let mut tables: Vec<u64> = Vec::new();
    for file in libraries(regions) {
        if deadline.is_over() {
            return Err(format!("the storages of its tensors: {UNFINISHED}"));
        }
        tables.extend(exported_of_loaded(source, file.range.start, TABLE).and_then(|table| table.checked_add(HEAD)));
    }
    tables.sort_unstable();
    let (Some(first), Some(last)) = (tables.first(), tables.last()) else {
        return Err("the class of its storages (c10::StorageImpl) was not found".to_owned());
    };
    let copy = Image::take(source, &[]).map_err(|error| error.to_string())?;
    let mut budget = Budget::new(&copy, deadline);
    let mut blocks = Vec::new();
    for run in copy.runs() {
        for (object, word) in copy.words(run.clone()) {
            if (*first..=*last).contains(&word) && tables.contains(&word) {
                blocks.extend(memory_of(&copy, object));
            }
        }
        if !budget.spend((run.end - run.start) / 8) {
            return Err(format!("the storages of its tensors: {UNFINISHED}"));
        }
    }
    blocks.sort_unstable();
    blocks.dedup_by_key(|block| block.address);
    Ok(blocks)
}

/// The memory of a storage. `None`: it has none on a GPU, another library owns it, or the storage was destroyed.
fn memory_of(copy: &Image, object: u64) -> Option<LiveBlock> {
    let word = |nth: u64| copy.word(object.wrapping_add(8 * nth));
    let (data, context, bytes) = (word(2), word(4), word(6));
    let is_used = (1..MOST_REFERENCES).contains(&(word(1) as u32)) && ADDRESSES.contains(&data);
    let [kind, device, ..] = word(5).to_le_bytes();
    let is_on_gpu = kind == CUDA && i8::try_from(device).is_ok() && ADDRESSES.contains(&data.saturating_add(bytes));
    let of_context = |nth: u64| copy.word(context.wrapping_add(8 * nth));
    let is_own = |nth: u64| of_context(nth) == data && (of_context(nth + 1) == bytes || of_context(nth + 2) == data);
    (is_used && is_on_gpu && bytes > 0 && (context == data || (0..CONTEXT).any(is_own)))
        .then(|| LiveBlock::of(data, bytes, bytes, device as i8))
}
