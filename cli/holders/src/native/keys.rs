//! The data that `pthread_setspecific` stored for CUDA: the destructor of its key is in one of CUDA's files.
//!
//! ```text
//! process       number, destructor   of each key
//! each thread   number, data         of the first keys  │ pointers to blocks of such data; the first leads to this one
//! ```
//!
//! glibc tells debuggers where both are. Deliberately absent: the data of later keys, which is in chunks.

use std::ops::Range;

use super::locals::{exported, words_at};
use crate::copy::Image;
use crate::modules::{Modules, Role};

/// Keys of a block, and blocks of a thread.
const KEYS: u64 = 32;
const ENTRY: u64 = 16;

/// Where such data is in these threads' descriptors.
pub(super) fn of_cuda(copy: &Image, modules: &Modules, descriptors: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let keys = exported(copy, modules, "__pthread_keys");
    let blocks = words_at(copy, modules, "_thread_db_pthread_specific").filter(|(count, _)| *count == KEYS);
    let Some((keys, (_, offset))) = keys.zip(blocks) else {
        return Vec::new();
    };
    let of_cuda = (0..KEYS).map(|key| key * ENTRY);
    let of_cuda = of_cuda.filter(|entry| is_function_of_cuda(copy, modules, copy.word(keys + entry + 8)));
    let of_cuda: Vec<u64> = of_cuda.collect();
    let data = descriptors.filter_map(|descriptor| {
        let pointers = descriptor.checked_add(offset)?;
        let first = pointers.checked_sub(KEYS * ENTRY)?;
        (copy.word(pointers) == first).then_some(first)
    });
    data.flat_map(|first| {
        // Another number: the key was deleted, and perhaps made again.
        let is_its_data = |entry: &&u64| copy.word(first + **entry) == copy.word(keys + **entry);
        let entries = of_cuda.iter().filter(is_its_data);
        entries
            .map(|entry| first + entry..first + entry + ENTRY)
            .collect::<Vec<_>>()
    })
    .collect()
}

fn is_function_of_cuda(copy: &Image, modules: &Modules, address: u64) -> bool {
    let Some(region) = copy.region(address) else {
        return false;
    };
    match Role::of(&region.name) {
        Role::Driver | Role::Library => true,
        // CUDA's runtime may have been linked statically into it.
        Role::Program => modules.is_function_of_runtime(&region.name, address),
        Role::System | Role::Compiler => false,
    }
}
