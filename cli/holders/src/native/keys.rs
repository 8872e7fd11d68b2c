//! Which of the data that `pthread_setspecific` stored is CUDA's: that of a key whose destructor is in one of CUDA's files.
//!
//! ```text
//! a thread      number, data  (of 32 keys)  │ pointers to such blocks, the first of which is this one
//! all threads   number, destructor  (of each key)
//! ```
//!
//! glibc tells debuggers where both are. Deliberately absent: the data of further keys, which is in chunks.

use std::ops::Range;

use super::locals::{exported, words_at};
use crate::copy::Image;
use crate::modules::{Modules, Role};

/// Keys of the first block, and blocks.
const KEYS: u64 = 32;
const ENTRY: u64 = 16;

/// The data of CUDA's keys in the descriptor of a thread.
pub(super) fn of_cuda(copy: &Image, modules: &Modules, descriptor: u64) -> Vec<Range<u64>> {
    let Some((keys, first)) = tables(copy, modules, descriptor) else {
        return Vec::new();
    };
    let is_of_cuda = |key: &u64| {
        let (data, destructor) = (first + key * ENTRY, keys + key * ENTRY);
        // Another number: the key was deleted, and perhaps made again.
        copy.word(data) == copy.word(destructor) && is_function_of_cuda(copy, modules, copy.word(destructor + 8))
    };
    let of_cuda = (0..KEYS).filter(is_of_cuda);
    of_cuda
        .map(|key| first + key * ENTRY..first + (key + 1) * ENTRY)
        .collect()
}

/// Where the keys of the process are, and the first block of the thread's data. `None`: this is not glibc as it is known.
fn tables(copy: &Image, modules: &Modules, descriptor: u64) -> Option<(u64, u64)> {
    let keys = exported(copy, modules, "__pthread_keys")?;
    let (pointers, offset) = words_at(copy, modules, "_thread_db_pthread_specific")?;
    let blocks = descriptor.checked_add(offset)?;
    let first = blocks.checked_sub(KEYS * ENTRY)?;
    (pointers == KEYS && copy.word(blocks) == first).then_some((keys, first))
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
