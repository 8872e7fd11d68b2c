//! Through which fields the objects of each class lead to blocks.
//!
//! Objects of one class have the same fields. So if many of them lead to their blocks through one field, and at most half as many
//! through memory without a class at another field, that memory more likely has words of an earlier owner.
//!
//! ```text
//! Buffer +16 ─► RawBuffer ─► Memory +16 ─► block      38 of 38
//! Buffer  +8 ─► event       +16 ─► block               1 of 38
//! ```
//!
//! Memory without a class is compared in the same way, word by word, with that at the same field of other objects. And of the words
//! that lead to one block, those count most that are in memory of many objects: elsewhere, a word may equal the address by chance.

use std::hash::Hash;

use super::usual::is_less_usual;
use crate::Map;
use crate::native::ClassId;

#[derive(Default)]
pub(super) struct Fields {
    /// How many objects of a class lead to blocks through a field.
    of_class: Counts<ClassId, u64>,
    /// How many pieces of memory without a class, at this field of objects of a class, lead to blocks through a word.
    of_memory: Counts<(ClassId, u64), u64>,
    /// By a word of memory without a class: how many pieces of memory, at the same field of objects of the class that has it, lead to
    /// blocks through this word.
    alike: Map<(u64, u64), u32>,
}

/// The words that lead to blocks, while they are collected.
#[derive(Default)]
pub(super) struct Words {
    /// A class, the field, and what it leads to.
    of_objects: Vec<(ClassId, u64, u64)>,
    /// By the start of memory without a class.
    of_memory: Map<u64, Vec<u64>>,
}

impl Words {
    /// Adds a word of an owner that leads to a block or to a chunk. Each word is added once.
    pub fn add(&mut self, owner: u64, class: Option<ClassId>, offset: u64, target: u64) {
        match class {
            Some(class) => self.of_objects.push((class, offset, target)),
            None => self.of_memory.entry(owner).or_default().push(offset),
        }
    }

    pub fn count(mut self) -> Fields {
        let mut fields = Fields::default();
        for &(class, field, _) in &self.of_objects {
            fields.of_class.add(class, field);
        }
        // Memory that several objects have counts once. The number of a block is no address of memory.
        self.of_objects.sort_unstable();
        self.of_objects.dedup();
        let each = |see: &mut dyn FnMut((ClassId, u64), u64, u64)| {
            for &(class, field, target) in &self.of_objects {
                for &word in self.of_memory.get(&target).into_iter().flatten() {
                    see((class, field), target, word);
                }
            }
        };
        let Fields { of_memory, alike, .. } = &mut fields;
        each(&mut |field, _, word| of_memory.add(field, word));
        each(&mut |field, memory, word| {
            let known = alike.entry((memory, word)).or_default();
            *known = of_memory.count(field, word).max(*known);
        });
        fields
    }
}

impl Fields {
    /// How many pieces of memory lead to blocks like this word of memory without a class, as far as objects with a class have them.
    pub fn alike(&self, memory: u64, word: u64) -> u32 {
        self.alike.get(&(memory, word)).copied().unwrap_or(0)
    }

    /// Whether objects of this class usually lead to blocks elsewhere than through this word of memory at this field.
    pub fn is_unusual(&self, class: ClassId, field: u64, word: u64) -> bool {
        self.of_class.is_less_usual(class, field) || self.of_memory.is_less_usual((class, field), word)
    }
}

/// How often each variant was seen of something, and the variant that was seen most often.
struct Counts<A, B> {
    each: Map<(A, B), u32>,
    most: Map<A, u32>,
}

impl<A, B> Default for Counts<A, B> {
    fn default() -> Counts<A, B> {
        Counts {
            each: Map::default(),
            most: Map::default(),
        }
    }
}

impl<A: Copy + Eq + Hash, B: Copy + Eq + Hash> Counts<A, B> {
    fn add(&mut self, of: A, variant: B) {
        let count = self.each.entry((of, variant)).or_default();
        *count += 1;
        let most = self.most.entry(of).or_default();
        *most = (*most).max(*count);
    }

    fn count(&self, of: A, variant: B) -> u32 {
        self.each.get(&(of, variant)).copied().unwrap_or(0)
    }

    fn is_less_usual(&self, of: A, variant: B) -> bool {
        let count = self.count(of, variant);
        let most = self.most.get(&of).copied().unwrap_or(0);
        is_less_usual(count, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: ClassId = ClassId(1);

    /// Eight objects that lead to blocks through memory at field 2, one of them through memory at field 1 as well.
    fn words() -> Words {
        let mut words = Words::default();
        for nth in 0..8 {
            let (object, memory) = (0x1000 + nth * 64, 0x9000 + nth * 64);
            words.add(object, Some(BUFFER), 2, memory);
            words.add(memory, None, 1, nth);
        }
        words
    }

    #[test]
    fn a_field_through_which_one_object_leads_to_a_block_is_unusual() {
        let mut words = words();
        words.add(0x1000, Some(BUFFER), 1, 0xa000);
        words.add(0xa000, None, 1, 3);
        let fields = words.count();
        assert!(fields.is_unusual(BUFFER, 1, 1) && fields.is_unusual(BUFFER, 7, 1));
        assert!(!fields.is_unusual(BUFFER, 2, 1));
    }

    #[test]
    fn a_word_of_the_memory_of_one_object_is_unusual() {
        let mut words = words();
        words.add(0x9000, None, 5, 3);
        let fields = words.count();
        assert!(fields.is_unusual(BUFFER, 2, 5) && !fields.is_unusual(BUFFER, 2, 1));
    }

    #[test]
    fn few_objects_show_nothing() {
        let mut words = Words::default();
        for nth in 0..3 {
            words.add(0x1000 + nth * 64, Some(BUFFER), 2, 0x9000 + nth * 64);
        }
        assert!(!words.count().is_unusual(BUFFER, 1, 1));
    }
}
