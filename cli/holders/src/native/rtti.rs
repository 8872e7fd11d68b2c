//! Classes of C++ objects by their run-time type information.
//!
//! ```text
//! object ─► virtual table ─ -16: offset to the object's top, 0
//!                           -8: type_info ─ +0: virtual table of __cxxabiv1::__class_type_info or a sibling
//!                                           +8: mangled name
//! ```
//!
//! It needs no symbols, so it works for stripped libraries. All of it lies in mapped files, and the type of the type_info
//! itself is checked, so no other memory looks like it.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;

use crate::copy::Copy;
use crate::demangle::written;
use crate::source::Region;

/// Number of a class in [`Classes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u32);

#[derive(Default)]
pub struct Classes {
    /// Memory of mapped files, by address.
    files: Vec<Range<u64>>,
    by_table: HashMap<u64, Option<ClassId>, FixedState>,
    /// By table: what [`Classes::is_of`] found.
    is_of: HashMap<u64, bool, FixedState>,
    by_name: HashMap<String, ClassId, FixedState>,
    names: Vec<String>,
    /// By class: that of a control block of a shared pointer, with the object's offset in it.
    shared: Vec<Option<(u64, ClassId)>>,
}

impl Classes {
    pub fn new(copy: &Copy) -> Classes {
        let mut files: Vec<Range<u64>> = Vec::new();
        for region in copy.regions() {
            if !region.name.starts_with('/') || !region.readable || region.shared {
                continue;
            }
            match files.last_mut() {
                Some(last) if last.end == region.range.start => last.end = region.range.end,
                _ => files.push(region.range.clone()),
            }
        }
        Classes {
            files,
            ..Classes::default()
        }
    }

    pub fn name(&self, of: ClassId) -> &str {
        &self.names[of.0 as usize]
    }

    fn in_file(&self, address: u64) -> bool {
        let place = self.files.partition_point(|range| range.end <= address);
        self.files.get(place).is_some_and(|range| range.start <= address)
    }

    /// The class of the object that starts here.
    #[inline]
    pub fn object(&mut self, copy: &Copy, address: u64) -> Option<ClassId> {
        let table = copy.word(address);
        if table < 0x1000 || !table.is_multiple_of(8) || !self.in_file(table) {
            return None;
        }
        if let Some(known) = self.by_table.get(&table) {
            return *known;
        }
        let found = self.read(copy, table).map(|name| self.intern(name));
        self.by_table.insert(table, found);
        found
    }

    /// Whether an object of a class starts here whose virtual table is in a wanted file. Always called with the same function.
    pub fn is_of(&mut self, copy: &Copy, address: u64, is_wanted: impl Fn(&Region) -> bool) -> bool {
        let table = copy.word(address);
        if table < 0x1000 || !table.is_multiple_of(8) || !self.in_file(table) {
            return false;
        }
        if let Some(known) = self.is_of.get(&table) {
            return *known;
        }
        let found = copy.region(table).is_some_and(is_wanted) && self.object(copy, address).is_some();
        self.is_of.insert(table, found);
        found
    }

    /// As [`Classes::object`]. For the control block of a shared pointer that contains its object: the object's class.
    #[inline]
    pub fn chunk(&mut self, copy: &Copy, start: u64) -> Option<ClassId> {
        let class = self.object(copy, start)?;
        match self.shared[class.0 as usize] {
            None => Some(class),
            Some((offset, declared)) => Some(self.object(copy, start + offset).unwrap_or(declared)),
        }
    }

    fn intern(&mut self, name: String) -> ClassId {
        if let Some(known) = self.by_name.get(&name) {
            return *known;
        }
        let id = ClassId(self.names.len() as u32);
        self.names.push(name.clone());
        self.by_name.insert(name.clone(), id);
        self.shared.push(None);
        let contained = CONTROL_BLOCKS
            .iter()
            .find_map(|(prefix, offset)| Some((*offset, first_argument(name.strip_prefix(prefix)?)?)));
        if let Some((offset, declared)) = contained {
            // A name that contains another is longer, so this ends.
            let declared = self.intern(declared.to_owned());
            self.shared[id.0 as usize] = Some((offset, declared));
        }
        id
    }

    fn read(&self, copy: &Copy, table: u64) -> Option<String> {
        if copy.word(table - 16) != 0 {
            return None;
        }
        let info = copy.word(table - 8);
        let kind = self.mangled(copy, copy.word(self.checked(copy.word(self.checked(info)?))? - 8))?;
        if !kind.starts_with("N10__cxxabiv1") {
            return None;
        }
        demangled(&self.mangled(copy, info)?)
    }

    fn checked(&self, address: u64) -> Option<u64> {
        (address.is_multiple_of(8) && self.in_file(address)).then_some(address)
    }

    /// The name in a type_info.
    fn mangled(&self, copy: &Copy, info: u64) -> Option<String> {
        let name = copy.word(self.checked(info)? + 8);
        if !self.in_file(name) {
            return None;
        }
        const LONGEST: usize = 4096;
        let text = copy.text(name, LONGEST);
        // A star marks a name that is unique to its file.
        let text = text.strip_prefix('*').unwrap_or(&text);
        (!text.is_empty() && text.len() < LONGEST).then(|| text.to_owned())
    }
}

/// Control blocks of shared pointers that contain their object, and at which offset.
const CONTROL_BLOCKS: [(&str, u64); 2] = [
    ("std::_Sp_counted_ptr_inplace<", 16),
    ("std::__1::__shared_ptr_emplace<", 24),
];

/// `Foo<int, 3>` of `Foo<int, 3>, std::allocator<void>, …`.
fn first_argument(arguments: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, letter) in arguments.char_indices() {
        match letter {
            '<' | '(' => depth += 1,
            '>' | ')' | ',' if depth == 0 => return Some(arguments[..at].trim_end()).filter(|name| !name.is_empty()),
            '>' | ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Longest class name that is demangled: a mangled name can refer to its own parts and expand to gigabytes.
const LONGEST_NAME: usize = 4096;

fn demangled(mangled: &str) -> Option<String> {
    let symbol = cpp_demangle::Symbol::new(format!("_ZTS{mangled}")).ok()?;
    let text = written(LONGEST_NAME, |out| symbol.structured_demangle(out, &Default::default()))?;
    let name = text.strip_prefix("typeinfo name for ")?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_are_demangled_and_others_refused() {
        assert_eq!(demangled("N3c1010TensorImplE").as_deref(), Some("c10::TensorImpl"));
        assert_eq!(demangled("3Foo").as_deref(), Some("Foo"));
        assert_eq!(demangled("hello world"), None);
    }

    #[test]
    fn the_object_of_a_control_block_is_its_first_argument() {
        assert_eq!(
            first_argument("Foo<int, 3>, std::allocator<void>, (x)2>"),
            Some("Foo<int, 3>")
        );
        assert_eq!(first_argument("Foo>"), Some("Foo"));
        assert_eq!(first_argument("Foo<"), None);
    }
}
