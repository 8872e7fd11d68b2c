//! Which file a thread-local variable is of.
//!
//! The loader places the thread-local memory of all files that are loaded at the start of a program at a fixed distance from
//! the thread pointer:
//!
//! ```text
//! │ block of the last file │ … │ block of the first file │ ◄ thread pointer
//! ```
//!
//! The distance is in the loader's list of files. Where in an entry it is differs between versions of glibc, which tells
//! debuggers. Memory of files that are loaded later is in chunks, in which variables have no names; the thread's list of blocks has
//! their addresses, by the numbers of the files. Deliberately absent: machines other than x86-64, on which the blocks are above the
//! thread pointer; thread pointers are not found there.

use std::ops::Range;

use crate::copy::Image;
use crate::modules::{Module, Modules, Role};
use crate::starts_with_one;

/// No list of files is longer.
const MOST_FILES: usize = 1 << 16;

/// Distances that are larger are marks for files whose memory is elsewhere.
const FARTHEST: u64 = 1 << 24;

/// The thread-local memory of the files.
#[derive(Debug, Default)]
pub struct Blocks {
    at_start: Vec<Block>,
    /// Files that were loaded later: index of the module, and its number in each thread's list of blocks.
    later: Vec<(usize, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// Index of the module.
    module: usize,
    /// From the thread pointer to the block.
    distance: u64,
    bytes: u64,
}

impl Blocks {
    /// Empty if the C library is not glibc, or does not tell debuggers its structures.
    pub fn of(copy: &Image, modules: &Modules) -> Blocks {
        let mut blocks = Blocks::default();
        let Some(distance_at) = field_offset(copy, modules, "_thread_db_link_map_l_tls_offset") else {
            return blocks;
        };
        let number_at = field_offset(copy, modules, "_thread_db_link_map_l_tls_modid");
        let of_loader = |module: &&Module| module.file_name().starts_with("ld-linux");
        let mut loaders = modules.all().iter().filter(of_loader);
        let list = loaders.find_map(|loader| loader.address_of(copy, "_r_debug"));
        let mut file = list.map_or(0, |list| copy.word(list + 8));
        for _ in 0..MOST_FILES {
            if file == 0 || !copy.has(file) {
                break;
            }
            let (bias, next) = (copy.word(file), copy.word(file + 24));
            let distance = copy.word(file + distance_at);
            let mut same = (modules.all().iter().enumerate()).filter(|(_, module)| module.bias == bias);
            if let (Some((module, _)), None) = (same.next(), same.next())
                && let Some(bytes) = modules.thread_local_bytes(module)
            {
                let number = number_at.map_or(0, |at| copy.word(file + at));
                if (1..FARTHEST).contains(&distance) {
                    blocks.at_start.push(Block {
                        module,
                        distance,
                        bytes,
                    });
                } else if (1..MOST_FILES as u64).contains(&number) {
                    blocks.later.push((module, number));
                }
            }
            file = next;
        }
        blocks
    }

    /// The index of the module whose block contains this address, and where the block begins. `base`: the thread pointer.
    pub fn find(&self, base: u64, address: u64) -> Option<(usize, u64)> {
        self.at_start.iter().find_map(|block| {
            let range = self.of_module(base, block.module)?;
            range.contains(&address).then_some((block.module, range.start))
        })
    }

    /// The indices of the program's own files among those that were loaded at the start.
    pub fn programs_at_start(&self, modules: &Modules) -> impl Iterator<Item = usize> {
        let all = self.at_start.iter().map(|block| block.module);
        all.filter(|module| Role::of(&modules.all()[*module].path) == Role::Program)
    }

    /// The block of this module.
    pub fn of_module(&self, base: u64, module: usize) -> Option<Range<u64>> {
        let block = self.at_start.iter().find(|block| block.module == module)?;
        let start = base.checked_sub(block.distance)?;
        Some(start..start.checked_add(block.bytes)?)
    }

    /// Where the block of this module is that was loaded later, if the thread has used it.
    pub fn of_module_loaded_later(&self, copy: &Image, base: u64, module: usize) -> Option<u64> {
        let (_, number) = self.later.iter().find(|(other, _)| *other == module)?;
        let list = copy.word(base.wrapping_add(8));
        let has_it = *number <= copy.word(list.wrapping_sub(16));
        has_it.then(|| copy.word(list.wrapping_add(number * 16)))
    }
}

/// Where a field is in an entry of the loader's list, by what debuggers are told.
fn field_offset(copy: &Image, modules: &Modules, name: &str) -> Option<u64> {
    let (words, offset) = words_at(copy, modules, name)?;
    (words == 1 && offset.is_multiple_of(8) && offset < 1 << 16).then_some(offset)
}

/// The number of words of a field of glibc's, and its offset in bytes, by what debuggers are told.
pub(super) fn words_at(copy: &Image, modules: &Modules, name: &str) -> Option<(u64, u64)> {
    let at = exported(copy, modules, name)?;
    // Bits of the field, number of elements, offset in bytes.
    let [bits, count, offset] = [0, 4, 8].map(|part| u64::from(copy.half(at + part)));
    (count == 1 && bits.is_multiple_of(64)).then_some((bits / 64, offset))
}

/// The address of a symbol that glibc exports.
pub(super) fn exported(copy: &Image, modules: &Modules, name: &str) -> Option<u64> {
    let is_library = |module: &&Module| starts_with_one(module.file_name(), &["libc.so", "libc-", "libpthread"]);
    let mut libraries = modules.all().iter().filter(is_library);
    libraries.find_map(|library| library.address_of(copy, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_below_the_thread_pointer() {
        let block = |module, distance, bytes| Block {
            module,
            distance,
            bytes,
        };
        let below = Blocks {
            at_start: vec![block(0, 64, 40), block(3, 128, 64)],
            later: Vec::new(),
        };
        assert_eq!(below.find(0x1000, 0x1000 - 64), Some((0, 0x1000 - 64)));
        assert_eq!(below.find(0x1000, 0x1000 - 25), Some((0, 0x1000 - 64)));
        assert_eq!(below.find(0x1000, 0x1000 - 24), None, "padding");
        assert_eq!(below.find(0x1000, 0x1000 - 65), Some((3, 0x1000 - 128)));
        assert_eq!(below.find(0x1000, 0x1000), None);
        assert_eq!(below.find(16, 0), None, "no such thread pointer");
        assert_eq!(below.of_module(0x1000, 3), Some(0x1000 - 128..0x1000 - 64));
        assert_eq!(below.of_module(0x1000, 1), None);
    }
}
