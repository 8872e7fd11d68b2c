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

use std::ops::Range;
use std::sync::OnceLock;

use super::kinds::{Kind, kind_of_class};
use crate::Map;
use crate::copy::Image;
use crate::copy::selection::{append, containing};
use crate::demangle::written;
use crate::source::Region;

/// Number of a class in [`Classes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub(crate) u32);

struct Name {
    mangled: String,
    /// Empty if the name cannot be demangled. Few names are needed.
    plain: OnceLock<String>,
    kind: OnceLock<Kind>,
}

#[derive(Default)]
pub struct Classes {
    /// Memory of mapped files, by address.
    files: Vec<Range<u64>>,
    /// The part of it where virtual tables may be.
    tables: Vec<Range<u64>>,
    by_table: Map<u64, Option<ClassId>>,
    /// By the mangled name, or the name of a class that only the name of another one mentions.
    by_name: Map<String, ClassId>,
    names: Vec<Name>,
    /// By class: that of a control block of a shared pointer, with the object's offset in it.
    shared: Vec<Option<(u64, ClassId)>>,
}

impl Classes {
    pub fn new(copy: &Image) -> Classes {
        let (mut files, mut tables): (Vec<Range<u64>>, Vec<Range<u64>>) = Default::default();
        for region in copy.regions() {
            if !region.name.starts_with('/') || !region.readable || region.shared {
                continue;
            }
            append(&mut files, region.range.clone());
            if !region.executable || region.range.end <= FIXED {
                append(&mut tables, region.range.clone());
            }
        }
        Classes {
            files,
            tables,
            ..Classes::default()
        }
    }

    /// Empty if it cannot be demangled.
    pub fn name(&self, of: ClassId) -> &str {
        let name = &self.names[of.0 as usize];
        name.plain.get_or_init(|| demangled(&name.mangled).unwrap_or_default())
    }

    /// It contains all identifiers of the name.
    pub fn mangled_name(&self, of: ClassId) -> &str {
        &self.names[of.0 as usize].mangled
    }

    pub fn kind(&self, of: ClassId) -> Kind {
        let name = &self.names[of.0 as usize];
        *(name.kind).get_or_init(|| kind_of_class(&name.mangled, || self.name(of)))
    }

    fn in_file(&self, address: u64) -> bool {
        containing(&self.files, address, Range::clone).is_some()
    }

    /// Whether a virtual table may be here.
    pub fn may_be_table(&self, table: u64) -> bool {
        table >= 0x1000 && table.is_multiple_of(8) && containing(&self.tables, table, Range::clone).is_some()
    }

    /// The class of the object that starts here.
    #[inline]
    pub fn object(&mut self, copy: &Image, address: u64) -> Option<ClassId> {
        if let Some(known) = self.known_object(copy, address) {
            return known;
        }
        let table = copy.word(address);
        let found = self.read(copy, table).map(|name| self.intern(name));
        self.by_table.insert(table, found);
        found
    }

    /// The virtual table of the object that starts here, if its file is wanted. What was found before is in `known`.
    pub fn is_of(
        &self,
        copy: &Image,
        address: u64,
        known: &mut Map<u64, bool>,
        is_wanted: impl Fn(&Region) -> bool,
    ) -> bool {
        let table = copy.word(address);
        self.may_be_table(table)
            && *known
                .entry(table)
                .or_insert_with(|| copy.region(table).is_some_and(is_wanted) && self.read(copy, table).is_some())
    }

    /// As [`Classes::object`]. For the control block of a shared pointer that contains its object: the object's class.
    #[inline]
    pub fn chunk(&mut self, copy: &Image, start: u64) -> Option<ClassId> {
        let class = self.object(copy, start)?;
        match self.shared[class.0 as usize] {
            None => Some(class),
            Some((offset, declared)) => Some(self.object(copy, start + offset).unwrap_or(declared)),
        }
    }

    /// Whether this is the control block of shared pointers to an object that no pointer owns any more. Its destructor has begun.
    /// If it is over, weak pointers keep the memory, with the words that it left.
    #[inline]
    pub fn is_destroyed(&mut self, copy: &Image, start: u64) -> bool {
        const ELSEWHERE: [&str; 2] = ["St19_Sp_counted_deleterI", "St15_Sp_counted_ptrI"];
        let Some(class) = self.object(copy, start) else {
            return false;
        };
        let is_libstdcxx = || ELSEWHERE.iter().any(|name| self.mangled_name(class).starts_with(name));
        match self.shared[class.0 as usize] {
            Some((IN_LIBCXX, _)) => copy.word(start + 8) == u64::MAX,
            None if !is_libstdcxx() => false,
            _ => copy.word(start + 8) & u64::from(u32::MAX) == 0,
        }
    }

    /// As [`Classes::chunk`], of what was asked for before; `None` if this was not.
    pub fn known(&self, copy: &Image, start: u64) -> Option<Option<ClassId>> {
        let Some(class) = self.known_object(copy, start)? else {
            return Some(None);
        };
        match self.shared[class.0 as usize] {
            None => Some(Some(class)),
            Some((offset, declared)) => Some(Some(self.known_object(copy, start + offset)?.unwrap_or(declared))),
        }
    }

    /// As [`Classes::object`], of what was asked for before; `None` if this was not.
    #[inline]
    fn known_object(&self, copy: &Image, address: u64) -> Option<Option<ClassId>> {
        let table = copy.word(address);
        match self.may_be_table(table) {
            true => self.by_table.get(&table).copied(),
            false => Some(None),
        }
    }

    fn intern(&mut self, mangled: String) -> ClassId {
        if let Some(known) = self.by_name.get(&mangled) {
            return *known;
        }
        let is_control_block = CONTROL_BLOCKS.iter().any(|(part, ..)| mangled.contains(part));
        let id = self.add(mangled, OnceLock::new());
        if is_control_block {
            let name = self.name(id);
            let contained = CONTROL_BLOCKS
                .iter()
                .find_map(|(_, prefix, offset)| Some((*offset, first_argument(name.strip_prefix(prefix)?)?)));
            if let Some((offset, declared)) = contained {
                let declared = declared.to_owned();
                let known = self.by_name.get(&declared).copied();
                let declared = known.unwrap_or_else(|| self.add(declared.clone(), OnceLock::from(declared)));
                self.shared[id.0 as usize] = Some((offset, declared));
            }
        }
        id
    }

    fn add(&mut self, mangled: String, plain: OnceLock<String>) -> ClassId {
        let id = ClassId(self.names.len() as u32);
        self.by_name.insert(mangled.clone(), id);
        let kind = OnceLock::new();
        self.names.push(Name { mangled, plain, kind });
        self.shared.push(None);
        id
    }

    /// The mangled name of the class with this virtual table.
    fn read(&self, copy: &Image, table: u64) -> Option<String> {
        if copy.word(table - 16) != 0 {
            return None;
        }
        let info = copy.word(table - 8);
        let kind = self.mangled(copy, copy.word(self.checked(copy.word(self.checked(info)?))? - 8))?;
        if !kind.starts_with("N10__cxxabiv1") {
            return None;
        }
        self.mangled(copy, info)
    }

    fn checked(&self, address: u64) -> Option<u64> {
        (address.is_multiple_of(8) && self.in_file(address)).then_some(address)
    }

    /// The name in a type_info.
    fn mangled(&self, copy: &Image, info: u64) -> Option<String> {
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

/// Files that are not loaded below this address are relocated, so their virtual tables, which contain addresses, are not
/// among their code.
const FIXED: u64 = 1 << 32;

/// Control blocks of shared pointers that contain their object: a part of the mangled name, the name, and at which offset the
/// object is. Before it are the numbers of owners and of weak pointers: of 4 bytes each in libstdc++, and in libc++ of 8 and less
/// one.
const CONTROL_BLOCKS: [(&str, &str, u64); 2] = [
    ("_Sp_counted_ptr_inplace", "std::_Sp_counted_ptr_inplace<", 16),
    ("__shared_ptr_emplace", "std::__1::__shared_ptr_emplace<", IN_LIBCXX),
];
const IN_LIBCXX: u64 = 24;

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
