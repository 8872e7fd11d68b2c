//! The dynamic section of a loaded object: symbols by hash and version, needed libraries, soname.
//!
//! The layouts are those of the System V ABI and of <elf.h>. Every loop follows the format's own end mark.

use core::ffi::{CStr, c_char, c_void};
use core::ops::Range;

/// The addresses of a loaded object's tables. Plain numbers, valid while the object is loaded; all zeros: no tables.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Tables {
    dynamic: u64,
    bias: u64,
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
    sysv_hash: u64,
    /// One half word for each symbol: its version number.
    versions: u64,
    versions_defined: u64,
    versions_needed: u64,
    /// Offset in the strings; 0: none.
    soname: u64,
}

/// A name to look up, and its hash.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    text: &'a CStr,
    gnu_hash: u32,
}

impl<'a> Name<'a> {
    pub fn new(text: &'a CStr) -> Name<'a> {
        let mut gnu_hash = 5381u32;
        for byte in text.to_bytes() {
            gnu_hash = gnu_hash.wrapping_mul(33).wrapping_add((*byte).into());
        }
        Name { text, gnu_hash }
    }
}

/// The result of looking up a name in one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The object does not define it.
    Absent,
    /// The object defines it, but not in the requested version.
    OtherVersion,
    /// The object defines it. `in_any`: whatever the requested version.
    Defined {
        address: *const c_void,
        bytes: u64,
        in_any: bool,
    },
}

/// Tags of entries in a dynamic section.
mod tag {
    pub const END: u64 = 0;
    pub const NEEDED: u64 = 1;
    pub const PLTRELSZ: u64 = 2;
    pub const HASH: u64 = 4;
    pub const STRTAB: u64 = 5;
    pub const SYMTAB: u64 = 6;
    pub const RELA: u64 = 7;
    pub const RELASZ: u64 = 8;
    pub const SONAME: u64 = 14;
    pub const JMPREL: u64 = 23;
    pub const GNU_HASH: u64 = 0x6fff_fef5;
    pub const VERSYM: u64 = 0x6fff_fff0;
    pub const VERDEF: u64 = 0x6fff_fffc;
    pub const VERNEED: u64 = 0x6fff_fffe;
}

impl Tables {
    /// # Safety
    /// `dynamic` is the dynamic section of an object loaded at `bias`.
    pub unsafe fn read(dynamic: *const [u64; 2], bias: u64) -> Tables {
        let mut tables = Tables {
            dynamic: dynamic as u64,
            bias,
            ..Tables::default()
        };
        let absolute = |value| absolute(value, bias);
        // SAFETY: the caller's promise.
        unsafe {
            each_entry(dynamic, |tag, value| match tag {
                tag::STRTAB => tables.strings = absolute(value),
                tag::SYMTAB => tables.symbols = absolute(value),
                tag::GNU_HASH => tables.gnu_hash = absolute(value),
                tag::HASH => tables.sysv_hash = absolute(value),
                tag::VERSYM => tables.versions = absolute(value),
                tag::VERDEF => tables.versions_defined = absolute(value),
                tag::VERNEED => tables.versions_needed = absolute(value),
                tag::SONAME => tables.soname = value,
                _ => {}
            });
        }
        tables
    }

    /// The address of a function or variable that the object defines and exports under this name, in its default version.
    ///
    /// # Safety
    /// The object is loaded.
    pub unsafe fn symbol(&self, name: Name) -> Option<*const c_void> {
        // SAFETY: the caller's promise.
        Some(unsafe { self.extent(name)?.start } as *const c_void)
    }

    /// The same with its size.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn extent(&self, name: Name) -> Option<Range<u64>> {
        // SAFETY: the caller's promise.
        match unsafe { self.look_up(name, None) } {
            Answer::Defined { address, bytes, .. } => Some(address as u64..(address as u64).wrapping_add(bytes)),
            Answer::Absent | Answer::OtherVersion => None,
        }
    }

    /// Resolves a reference to a version by the loader's rules: an object whose symbols have no versions matches all
    /// references, and a reference without a version finds the default one.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn look_up(&self, name: Name, version: Option<&[u8]>) -> Answer {
        // SAFETY: tables of a loaded object, laid out as the format of either hash section requires.
        unsafe {
            match (self.gnu_hash, self.sysv_hash) {
                _ if self.symbols == 0 || self.strings == 0 => Answer::Absent,
                (0, 0) => Answer::Absent,
                (0, _) => self.sysv_lookup(name, version),
                _ => self.gnu_lookup(name, version),
            }
        }
    }

    /// The version of `name` that the object was linked with. `None` if it does not refer to the name, or to no version.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn version_wanted(&self, name: &CStr) -> Option<&[u8]> {
        if self.versions == 0 || self.versions_needed == 0 {
            return None;
        }
        // SAFETY: each symbol has a half word among the versions. The list of needed versions is linked by offsets; the last
        // one is 0.
        unsafe {
            let index = self.reference(name)?;
            let number = *(self.versions as *const u16).add(index as usize) & !HIDDEN_BIT;
            let mut file = self.versions_needed;
            loop {
                // vn_version, vn_cnt: u16; vn_file, vn_aux, vn_next: u32.
                let [_, count] = *(file as *const [u16; 2]);
                let [_, first_version, next] = *((file + 4) as *const [u32; 3]);
                let mut entry = file + u64::from(first_version);
                for _ in 0..count {
                    // vna_hash: u32; vna_flags, vna_other: u16; vna_name, vna_next: u32.
                    let [_, other] = *((entry + 4) as *const [u16; 2]);
                    let [text, next] = *((entry + 8) as *const [u32; 2]);
                    if other == number {
                        return Some(self.string(text.into()));
                    }
                    entry += u64::from(next);
                }
                if next == 0 {
                    return None;
                }
                file += u64::from(next);
            }
        }
    }

    /// The index of the symbol by which the object refers to a name that another object defines.
    unsafe fn reference(&self, name: &CStr) -> Option<u32> {
        // SAFETY: the indexes come from the object's own tables. The older hash section has an entry for each symbol. The GNU
        // section covers only defined symbols and names the first of them; undefined ones come before it. If all its
        // buckets are empty, as in most programs, that first index is meaningless.
        unsafe {
            let is_wanted = |index: u32| {
                let symbol = &*(self.symbols as *const libc::Elf64_Sym).add(index as usize);
                symbol.st_shndx == 0 && self.string(symbol.st_name.into()) == name.to_bytes()
            };
            if self.sysv_hash != 0 {
                let [_, symbols] = *(self.sysv_hash as *const [u32; 2]);
                return (1..symbols).find(|&index| is_wanted(index));
            }
            if self.gnu_hash == 0 {
                return None;
            }
            let hash = self.gnu_hash as *const u32;
            let [buckets, first, bloom_words, _] = *hash.cast::<[u32; 4]>();
            let bucket = hash.add(4 + bloom_words as usize * 2);
            if (0..buckets).any(|number| *bucket.add(number as usize) != 0) {
                return (1..first).find(|&index| is_wanted(index));
            }
            self.relocated(is_wanted)
        }
    }

    /// The first wanted symbol among the object's relocations.
    unsafe fn relocated(&self, is_wanted: impl Fn(u32) -> bool) -> Option<u32> {
        let [mut data, mut data_bytes, mut calls, mut calls_bytes] = [0; 4];
        // SAFETY: the section is mapped as long as the object is, and gives the size of either list.
        unsafe {
            each_entry(self.dynamic as *const [u64; 2], |tag, value| match tag {
                tag::RELA => data = value,
                tag::RELASZ => data_bytes = value,
                tag::JMPREL => calls = value,
                tag::PLTRELSZ => calls_bytes = value,
                _ => {}
            });
            [(calls, calls_bytes), (data, data_bytes)]
                .into_iter()
                .filter(|&(start, _)| start != 0)
                .find_map(|(start, bytes)| {
                    // r_offset, r_info, r_addend: the upper half of r_info is the symbol's index.
                    let first = absolute(start, self.bias) as *const [u64; 3];
                    (0..bytes as usize / size_of::<[u64; 3]>())
                        .map(|place| ((*first.add(place))[1] >> 32) as u32)
                        .find(|&index| index != 0 && is_wanted(index))
                })
        }
    }

    /// The name of the exported function whose code contains an address; of several, the first in alphabetical order. Reads all
    /// symbols.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn function_at(&self, address: u64) -> Option<&[u8]> {
        const FUNCTION: u8 = 2;
        if self.symbols == 0 || self.strings == 0 {
            return None;
        }
        let mut found: Option<&[u8]> = None;
        // SAFETY: the indexes are those of the object's own symbols.
        unsafe {
            for index in 1..self.count() {
                let symbol = &*(self.symbols as *const libc::Elf64_Sym).add(index as usize);
                let offset = address.wrapping_sub(self.bias.wrapping_add(symbol.st_value));
                if symbol.st_shndx != 0 && symbol.st_info & 15 == FUNCTION && offset < symbol.st_size {
                    let name = self.string(symbol.st_name.into());
                    found = Some(found.map_or(name, |other| other.min(name)));
                }
            }
        }
        found
    }

    /// The number of symbols: the last chain of a hash section ends at the last one.
    unsafe fn count(&self) -> u32 {
        // SAFETY: every index below follows the section, whose chains end with an odd word.
        unsafe {
            if self.sysv_hash != 0 {
                let [_, symbols] = *(self.sysv_hash as *const [u32; 2]);
                return symbols;
            }
            if self.gnu_hash == 0 {
                return 0;
            }
            let hash = self.gnu_hash as *const u32;
            let [buckets, first, bloom_words, _] = *hash.cast::<[u32; 4]>();
            let bucket = hash.add(4 + bloom_words as usize * 2);
            let chain = bucket.add(buckets as usize);
            let last = (0..buckets).map(|number| *bucket.add(number as usize)).max();
            let Some(mut index) = last.filter(|&last| last >= first && last != 0) else {
                return 0;
            };
            while *chain.add((index - first) as usize) & 1 == 0 {
                index += 1;
            }
            index + 1
        }
    }

    /// The name of the defined version with this number; `None` for the base version.
    unsafe fn version_defined(&self, number: u16) -> Option<&[u8]> {
        if self.versions_defined == 0 || number <= BASE_VERSION {
            return None;
        }
        let mut entry = self.versions_defined;
        loop {
            // SAFETY: the list of defined versions is linked by offsets; the last one is 0.
            unsafe {
                // vd_version, vd_flags, vd_ndx, vd_cnt: u16; vd_hash, vd_aux, vd_next: u32.
                let [_, _, index, _] = *(entry as *const [u16; 4]);
                let [_, names, next] = *((entry + 8) as *const [u32; 3]);
                if index == number {
                    // vda_name: u32.
                    return Some(self.string((*((entry + u64::from(names)) as *const u32)).into()));
                }
                if next == 0 {
                    return None;
                }
                entry += u64::from(next);
            }
        }
    }

    /// Calls `each` with the name of every library that the object needs.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn for_each_needed(&self, mut each: impl FnMut(&[u8])) {
        if self.strings == 0 {
            return;
        }
        // SAFETY: the section and the string table are mapped as long as the object is.
        unsafe {
            each_entry(self.dynamic as *const [u64; 2], |tag, value| {
                if tag == tag::NEEDED {
                    each(self.string(value));
                }
            });
        }
    }

    pub fn is_loaded_at(&self, bias: u64) -> bool {
        self.bias == bias && self.dynamic != 0
    }

    /// The name by which other objects need this one; empty if there is none.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn soname(&self) -> &[u8] {
        if self.strings == 0 || self.soname == 0 {
            return b"";
        }
        // SAFETY: an offset in the string table.
        unsafe { self.string(self.soname) }
    }

    unsafe fn string(&self, offset: u64) -> &[u8] {
        // SAFETY: the caller read the offset from the object's own tables.
        unsafe { CStr::from_ptr((self.strings + offset) as *const c_char) }.to_bytes()
    }

    /// Whether the symbol at `index` is the wanted definition.
    unsafe fn matches(&self, index: u32, wanted: Name, version: Option<&[u8]>) -> Answer {
        /// Types of symbols whose value is not the address of a function or variable.
        const TLS: u8 = 6;
        const IFUNC: u8 = 10;
        // SAFETY: the index comes from the object's own hash section.
        let (symbol, number) = unsafe {
            let symbol = &*(self.symbols as *const libc::Elf64_Sym).add(index as usize);
            let defined = symbol.st_shndx != 0 && symbol.st_value != 0 && !matches!(symbol.st_info & 15, TLS | IFUNC);
            if !defined || self.string(symbol.st_name.into()) != wanted.text.to_bytes() {
                return Answer::Absent;
            }
            let number = match self.versions {
                0 => BASE_VERSION,
                versions => *(versions as *const u16).add(index as usize),
            };
            (symbol, number)
        };
        let is_hidden = number & HIDDEN_BIT != 0;
        // SAFETY: as above.
        let defined = unsafe { self.version_defined(number & !HIDDEN_BIT) };
        let fits = match (version, defined) {
            (_, None) | (None, _) => !is_hidden,
            (Some(wanted), Some(defined)) => wanted == defined,
        };
        if !fits {
            return Answer::OtherVersion;
        }
        Answer::Defined {
            address: self.bias.wrapping_add(symbol.st_value) as *const c_void,
            bytes: symbol.st_size,
            in_any: defined.is_none(),
        }
    }

    unsafe fn gnu_lookup(&self, wanted: Name, version: Option<&[u8]>) -> Answer {
        let hash = self.gnu_hash as *const u32;
        let value = wanted.gnu_hash;
        let mut result = Answer::Absent;
        // SAFETY: every index below follows the section's chain, whose last word is odd.
        unsafe {
            let [buckets, first, bloom_words, shift] = *hash.cast::<[u32; 4]>();
            if buckets == 0 || bloom_words == 0 {
                return result;
            }
            let bloom = *hash.add(4).cast::<u64>().add((value / 64 % bloom_words) as usize);
            let bits = 1 << (value % 64) | 1 << (value.wrapping_shr(shift) % 64);
            if bloom & bits != bits {
                return result;
            }
            let bucket = hash.add(4 + bloom_words as usize * 2);
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add((value % buckets) as usize);
            if index < first {
                return result;
            }
            loop {
                let here = *chain.add((index - first) as usize);
                if here | 1 == value | 1 {
                    match self.matches(index, wanted, version) {
                        Answer::Absent => {}
                        Answer::OtherVersion => result = Answer::OtherVersion,
                        found => return found,
                    }
                }
                if here & 1 == 1 {
                    return result;
                }
                index += 1;
            }
        }
    }

    /// The System V hash section, for objects without a GNU one.
    unsafe fn sysv_lookup(&self, wanted: Name, version: Option<&[u8]>) -> Answer {
        let hash = self.sysv_hash as *const u32;
        let mut value = 0u32;
        for byte in wanted.text.to_bytes() {
            value = (value << 4).wrapping_add((*byte).into());
            value = (value ^ (value >> 28 << 4)) & 0x0fff_ffff;
        }
        let mut result = Answer::Absent;
        // SAFETY: every index below follows the section's chain, which ends with a 0.
        unsafe {
            let [buckets, _] = *hash.cast::<[u32; 2]>();
            if buckets == 0 {
                return result;
            }
            let mut index = *hash.add(2 + (value % buckets) as usize);
            while index != 0 {
                match self.matches(index, wanted, version) {
                    Answer::Absent => {}
                    Answer::OtherVersion => result = Answer::OtherVersion,
                    found => return found,
                }
                index = *hash.add(2 + buckets as usize + index as usize);
            }
        }
        result
    }
}

/// glibc rewrites addresses in a writable dynamic section to runtime addresses; other loaders do not.
fn absolute(value: u64, bias: u64) -> u64 {
    if value < bias { bias.wrapping_add(value) } else { value }
}

/// Set in a symbol's version number: only a reference to that version finds the symbol.
const HIDDEN_BIT: u16 = 1 << 15;
/// The version number of a symbol without a named version.
const BASE_VERSION: u16 = 1;

/// # Safety
/// `dynamic` is the dynamic section of a loaded object.
unsafe fn each_entry(dynamic: *const [u64; 2], mut each: impl FnMut(u64, u64)) {
    let mut entry = dynamic;
    loop {
        // SAFETY: the section ends with tag 0, which was not reached yet.
        let [tag, value] = unsafe { *entry };
        if tag == tag::END {
            return;
        }
        each(tag, value);
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_loaded;
    use std::vec::Vec;

    fn of_libc() -> Tables {
        find_loaded(|loaded| {
            loaded
                .file_name()
                .starts_with(b"libc.so")
                .then(|| loaded.tables())
                .flatten()
        })
        .expect("libc is loaded")
    }

    #[test]
    fn symbols_are_where_dlsym_finds_them() {
        let tables = of_libc();
        for name in [c"malloc", c"environ", c"dl_iterate_phdr", c"no such function"] {
            // SAFETY: looks up a name.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: libc stays loaded.
            let found = unsafe { tables.symbol(Name::new(name)) };
            assert_eq!(found.unwrap_or(core::ptr::null()), expected.cast_const(), "{name:?}");
        }
    }

    #[test]
    fn a_function_has_an_extent() {
        // SAFETY: libc stays loaded.
        let extent = unsafe { of_libc().extent(Name::new(c"malloc")) }.expect("libc defines malloc");
        assert_eq!(extent.start, libc::malloc as *const () as u64);
        assert!((16..1 << 16).contains(&(extent.end - extent.start)));
    }

    #[test]
    fn an_address_within_a_function_has_its_name() {
        let start = libc::malloc as *const () as u64;
        let tables = of_libc();
        // SAFETY: libc stays loaded.
        unsafe {
            let extent = tables.extent(Name::new(c"malloc")).expect("libc defines malloc");
            // Its other names sort before it or after it.
            let name = tables.function_at(start).expect("a name");
            assert_eq!(tables.function_at(start + 5), Some(name));
            assert_eq!(tables.function_at(extent.end - 1), Some(name));
            assert!([&b"__libc_malloc"[..], b"malloc"].contains(&name));
            assert_ne!(tables.function_at(extent.end), Some(name));
            assert_eq!(tables.function_at(0), None);
        }
    }

    #[test]
    fn both_hash_sections_count_the_same_symbols() {
        let mut compared = 0;
        find_loaded(|loaded| {
            let tables = loaded.tables()?;
            if tables.gnu_hash != 0 && tables.sysv_hash != 0 {
                let gnu = Tables { sysv_hash: 0, ..tables };
                // SAFETY: loaded during the callback.
                unsafe { assert_eq!(gnu.count(), tables.count()) };
                compared += 1;
            }
            None::<()>
        });
        assert!(compared > 0, "the kernel's vdso or a library of libc has both");
    }

    #[test]
    fn a_reference_finds_its_own_version_only() {
        let name = c"malloc";
        // The test program refers to a version of malloc that libc defines.
        let wanted = find_loaded(|loaded| {
            let tables = loaded.tables()?;
            // SAFETY: loaded during the callback.
            unsafe { tables.version_wanted(name) }.map(<[u8]>::to_vec)
        })
        .expect("a loaded object refers to malloc");
        assert!(wanted.starts_with(b"GLIBC_2."));
        let tables = of_libc();
        let is_malloc = |answer| matches!(answer, Answer::Defined { address, in_any: false, .. } if address == libc::malloc as *const c_void);
        // SAFETY: libc stays loaded.
        unsafe {
            assert!(is_malloc(tables.look_up(Name::new(name), Some(&wanted))));
            assert!(is_malloc(tables.look_up(Name::new(name), None)));
            assert_eq!(
                tables.look_up(Name::new(name), Some(b"GLIBC_9.9")),
                Answer::OtherVersion
            );
            assert_eq!(
                tables.look_up(Name::new(c"no such function"), Some(&wanted)),
                Answer::Absent
            );
        }
    }

    #[test]
    fn the_soname_and_needed_libraries_are_listed() {
        let tables = of_libc();
        let mut needed = Vec::new();
        // SAFETY: libc stays loaded.
        unsafe {
            assert_eq!(tables.soname(), b"libc.so.6");
            tables.for_each_needed(|name| needed.push(name.to_vec()));
        }
        assert!(needed.iter().any(|name| name.starts_with(b"ld-linux")), "{needed:?}");
    }

    #[test]
    fn empty_tables_define_nothing() {
        let empty = Tables::default();
        // SAFETY: there is nothing to read.
        unsafe {
            assert!(empty.symbol(Name::new(c"malloc")).is_none());
            assert!(empty.version_wanted(c"malloc").is_none());
            assert!(empty.function_at(0).is_none());
            assert_eq!(empty.soname(), b"");
        }
    }
}
