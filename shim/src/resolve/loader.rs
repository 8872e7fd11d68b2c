//! What the dynamic loader has mapped, asked of `dl_iterate_phdr` and of the ELF tables in memory.
//!
//! `_dl_find_object` takes no lock. `dl_iterate_phdr` takes only the loader's short list lock, never the one that is held
//! while constructors run, so it is safe where `dlopen`, `dlsym` and `dladdr` could wait for ever, except in a forked
//! child. Either is asked once per module, not per event.

use crate::resolve::closing;
use culeak::system::Descriptor;
use libc::{c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// A loaded file. Borrowed: good only inside the callback that received it.
pub struct Loaded<'a> {
    info: &'a dl_phdr_info,
}

impl Loaded<'_> {
    /// As the loader spells it: empty for the main program, relative when it was opened so.
    pub fn name(&self) -> &[u8] {
        if self.info.dlpi_name.is_null() {
            return b"";
        }
        // SAFETY: the loader's own string, alive while the object is loaded.
        unsafe { CStr::from_ptr(self.info.dlpi_name) }.to_bytes()
    }

    pub fn file_name(&self) -> &[u8] {
        let name = self.name();
        name.rsplit(|&byte| byte == b'/').next().unwrap_or(name)
    }

    /// Runtime address minus address in the file.
    pub fn bias(&self) -> u64 {
        self.info.dlpi_addr
    }

    fn headers(&self) -> &[libc::Elf64_Phdr] {
        if self.info.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: the loader's program headers, mapped as long as the object is.
        unsafe { std::slice::from_raw_parts(self.info.dlpi_phdr, self.info.dlpi_phnum.into()) }
    }

    /// Lowest and one past the highest address of its segments.
    pub fn bounds(&self) -> (u64, u64) {
        let loads = self.headers().iter().filter(|header| header.p_type == libc::PT_LOAD);
        loads.fold((u64::MAX, 0), |(start, end), header| {
            let from = self.bias().wrapping_add(header.p_vaddr);
            (start.min(from & !0xfff), end.max(from + header.p_memsz))
        })
    }

    pub fn contains(&self, address: u64) -> bool {
        self.headers().iter().any(|header| {
            let from = self.bias().wrapping_add(header.p_vaddr);
            header.p_type == libc::PT_LOAD && (from..from + header.p_memsz).contains(&address)
        })
    }

    /// Its tables of symbols, without the loader's help; `None` for an object that has none.
    pub fn tables(&self) -> Option<Tables> {
        let dynamic = self.headers().iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let dynamic = self.bias().wrapping_add(dynamic.p_vaddr) as *const [u64; 2];
        // SAFETY: the dynamic section of an object that is loaded at this bias.
        Some(unsafe { Tables::read(dynamic, self.bias()) })
    }

    /// Where it defines an exported name.
    pub fn symbol(&self, name: &CStr) -> Option<*const c_void> {
        // SAFETY: the object is loaded as long as `self` is borrowed.
        unsafe { self.tables()?.symbol(Name::new(name)) }
    }

    /// The GNU build id, from the notes in memory.
    pub fn build_id(&self) -> &[u8] {
        for header in self.headers().iter().filter(|header| header.p_type == libc::PT_NOTE) {
            // SAFETY: a note segment lies in memory for p_memsz bytes.
            let mut notes = unsafe {
                let start = self.bias().wrapping_add(header.p_vaddr) as *const u8;
                std::slice::from_raw_parts(start, header.p_memsz as usize)
            };
            while let Some(note) = Note::first(notes) {
                if note.kind == 3 && note.name == b"GNU\0" {
                    return note.content;
                }
                notes = note.rest;
            }
        }
        b""
    }
}

/// The loader's list for debuggers: the only way to look around before anything of libc may be called.
#[repr(C)]
struct DebugList {
    version: c_int,
    first: *const LinkMap,
    breakpoint: u64,
    state: c_int,
    loader_bias: u64,
}

#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const libc::c_char,
    dynamic: *const [u64; 2],
    next: *const LinkMap,
}

unsafe extern "C" {
    #[link_name = "_r_debug"]
    static DEBUG_LIST: DebugList;
}

/// The first definition of a name in the loader's order, found without calling anything. At start-up only.
pub fn first_definition(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the loader fills the list before it runs any code of ours.
    let mut map = unsafe { DEBUG_LIST.first };
    while !map.is_null() {
        // SAFETY: the objects of the start-up stay loaded.
        let entry = unsafe { &*map };
        if !entry.dynamic.is_null() {
            // SAFETY: as above.
            let found = unsafe { Tables::read(entry.dynamic, entry.bias).symbol(Name::new(name)) };
            if found.is_some() {
                return found;
            }
        }
        map = entry.next;
    }
    None
}

/// The address of libc's own `name`, found without calling anything: a sanitizer may have replaced even
/// `dl_iterate_phdr`, and may look up its first names before it is ready to be called.
pub fn libc_symbol(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the loader fills the list before it runs any code of ours.
    let mut map = unsafe { DEBUG_LIST.first };
    while !map.is_null() {
        // SAFETY: entries stay while their object is loaded, and libc always is. Others are only looked at by name.
        let (entry, file) = unsafe { (&*map, CStr::from_ptr((*map).name)) };
        let file = file.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        // glibc before 2.34 keeps the functions we want in libdl.
        if file.starts_with(b"libc.so") || file.starts_with(b"libdl.so") {
            // SAFETY: the dynamic section of a loaded object.
            let found = unsafe { Tables::read(entry.dynamic, entry.bias).symbol(Name::new(name)) };
            if found.is_some() {
                return found;
            }
        }
        map = entry.next;
    }
    None
}

/// Where the tables of a loaded object lie. Plain numbers, so that many can be kept; good while the object is loaded.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Tables {
    dynamic: *const [u64; 2],
    bias: u64,
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
    sysv_hash: u64,
    /// One half word for each symbol: the number of its version.
    versions: u64,
    versions_defined: u64,
    versions_needed: u64,
    /// Offset in the strings; 0: it has no name.
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

/// What an object answers about a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It does not define it.
    Absent,
    /// It defines it, but not in the version that was asked for.
    OtherVersion,
    /// It defines it at this address. `in_any`: so it answers whatever the version.
    Defined { address: *const c_void, in_any: bool },
}

/// A symbol of the right name.
enum Match {
    No,
    OtherVersion,
    Yes { value: u64, in_any: bool },
}

/// Tags of a dynamic section, as <elf.h> has them.
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
            dynamic,
            bias,
            symbols: 0,
            strings: 0,
            gnu_hash: 0,
            sysv_hash: 0,
            versions: 0,
            versions_defined: 0,
            versions_needed: 0,
            soname: 0,
        };
        let absolute = |value| absolute(value, bias);
        // SAFETY: the caller vouches for the section.
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
        // SAFETY: the caller vouches for it.
        match unsafe { self.look_up(name, None) } {
            Answer::Defined { address, .. } => Some(address),
            Answer::Absent | Answer::OtherVersion => None,
        }
    }

    /// The same for a reference to a version, by the loader's rules: an object whose symbols have no versions answers
    /// all references, and a reference without a version finds the default one.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn look_up(&self, name: Name, version: Option<&[u8]>) -> Answer {
        if self.symbols == 0 || self.strings == 0 {
            return Answer::Absent;
        }
        // SAFETY: tables of a loaded object, laid out as the format of either hash section says.
        let found = unsafe {
            match (self.gnu_hash, self.sysv_hash) {
                (0, 0) => Match::No,
                (0, _) => self.sysv_lookup(name, version),
                _ => self.gnu_lookup(name, version),
            }
        };
        match found {
            Match::No => Answer::Absent,
            Match::OtherVersion => Answer::OtherVersion,
            Match::Yes { value, in_any } => Answer::Defined {
                address: self.bias.wrapping_add(value) as *const c_void,
                in_any,
            },
        }
    }

    /// The version of `name` that the object was linked with, where it refers to the name and to a version of it.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn version_wanted(&self, name: &CStr) -> Option<&[u8]> {
        if self.versions == 0 || self.versions_needed == 0 {
            return None;
        }
        // SAFETY: each symbol has a half word among the versions. The list of needed versions is chained by offsets that end
        // with a 0.
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

    /// The number of the symbol by which the object refers to a name that others define.
    unsafe fn reference(&self, name: &CStr) -> Option<u32> {
        // SAFETY: the numbers that are asked about below come from the object's own tables. The older hash section has an
        // entry for each symbol; in the other, symbols that the object only refers to come before the first one that it
        // contains. That number means nothing where it contains none, as in most programs.
        unsafe {
            let is_meant = |index: u32| {
                let symbol = &*(self.symbols as *const libc::Elf64_Sym).add(index as usize);
                symbol.st_shndx == 0 && self.string(symbol.st_name.into()) == name.to_bytes()
            };
            if self.sysv_hash != 0 {
                let [_, symbols] = *(self.sysv_hash as *const [u32; 2]);
                return (1..symbols).find(|&index| is_meant(index));
            }
            if self.gnu_hash == 0 {
                return None;
            }
            let hash = self.gnu_hash as *const u32;
            let [buckets, first, bloom_words, _] = *hash.cast::<[u32; 4]>();
            let bucket = hash.add(4 + bloom_words as usize * 2);
            if (0..buckets).any(|number| *bucket.add(number as usize) != 0) {
                return (1..first).find(|&index| is_meant(index));
            }
            self.relocated(is_meant)
        }
    }

    /// The first symbol of the object's relocations that is meant.
    unsafe fn relocated(&self, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let [mut plain, mut plain_bytes, mut of_calls, mut of_calls_bytes] = [0; 4];
        // SAFETY: the section is mapped as long as the object is; either list has as many entries as the section says.
        unsafe {
            each_entry(self.dynamic, |tag, value| match tag {
                tag::RELA => plain = value,
                tag::RELASZ => plain_bytes = value,
                tag::JMPREL => of_calls = value,
                tag::PLTRELSZ => of_calls_bytes = value,
                _ => {}
            });
            [(of_calls, of_calls_bytes), (plain, plain_bytes)]
                .into_iter()
                .filter(|&(start, _)| start != 0)
                .find_map(|(start, bytes)| {
                    // r_offset, r_info, r_addend: the upper half of the second is the number of the symbol.
                    let first = absolute(start, self.bias) as *const [u64; 3];
                    (0..bytes as usize / size_of::<[u64; 3]>())
                        .map(|place| ((*first.add(place))[1] >> 32) as u32)
                        .find(|&index| index != 0 && is_meant(index))
                })
        }
    }

    /// The name of the version with this number that the object defines; `None` for the base version.
    unsafe fn version_defined(&self, number: u16) -> Option<&[u8]> {
        const BASE: u16 = 1;
        if self.versions_defined == 0 || number <= BASE {
            return None;
        }
        let mut entry = self.versions_defined;
        loop {
            // SAFETY: the list of defined versions is chained by offsets that end with a 0.
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

    /// Calls `each` with the name of every library that the object was linked with.
    ///
    /// # Safety
    /// As `symbol`.
    pub unsafe fn for_each_needed(&self, mut each: impl FnMut(&[u8])) {
        if self.strings == 0 {
            return;
        }
        // SAFETY: the section and the string table are mapped as long as the object is.
        unsafe {
            each_entry(self.dynamic, |tag, value| {
                if tag == tag::NEEDED {
                    each(self.string(value));
                }
            });
        }
    }

    pub fn is_loaded_at(&self, bias: u64) -> bool {
        self.bias == bias && !self.dynamic.is_null()
    }

    /// The name under which others are linked with the object.
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
        // SAFETY: the caller has the offset from the object's own tables.
        unsafe { CStr::from_ptr((self.strings + offset) as *const libc::c_char) }.to_bytes()
    }

    /// Whether symbol number `index` is the definition that is looked for.
    unsafe fn matches(&self, index: u32, wanted: Name, version: Option<&[u8]>) -> Match {
        /// Symbols whose value is no address of a function or variable.
        const TLS: u8 = 6;
        const IFUNC: u8 = 10;
        // SAFETY: the index comes from the object's own hash section.
        let (value, number) = unsafe {
            let symbol = &*(self.symbols as *const libc::Elf64_Sym).add(index as usize);
            let defined = symbol.st_shndx != 0 && symbol.st_value != 0 && !matches!(symbol.st_info & 15, TLS | IFUNC);
            if !defined || self.string(symbol.st_name.into()) != wanted.text.to_bytes() {
                return Match::No;
            }
            if self.versions == 0 {
                return Match::Yes {
                    value: symbol.st_value,
                    in_any: true,
                };
            }
            (symbol.st_value, *(self.versions as *const u16).add(index as usize))
        };
        let is_hidden = number & HIDDEN_BIT != 0;
        // SAFETY: as above.
        let defined = unsafe { self.version_defined(number & !HIDDEN_BIT) };
        let fits = match (version, defined) {
            (_, None) | (None, _) => !is_hidden,
            (Some(wanted), Some(defined)) => wanted == defined,
        };
        if fits {
            Match::Yes {
                value,
                in_any: defined.is_none(),
            }
        } else {
            Match::OtherVersion
        }
    }

    unsafe fn gnu_lookup(&self, wanted: Name, version: Option<&[u8]>) -> Match {
        let hash = self.gnu_hash as *const u32;
        let value = wanted.gnu_hash;
        let mut result = Match::No;
        // SAFETY: every index below follows the format's own chain to its end mark.
        unsafe {
            let [buckets, first, bloom_words, shift] = *hash.cast::<[u32; 4]>();
            if buckets == 0 || bloom_words == 0 {
                return result;
            }
            let bloom = *hash.add(4).cast::<u64>().add((value / 64 % bloom_words) as usize);
            let bits = 1 << (value % 64) | 1 << ((value >> shift) % 64);
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
                        Match::No => {}
                        Match::OtherVersion => result = Match::OtherVersion,
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

    /// The older of the two hash sections, for objects that have no other.
    unsafe fn sysv_lookup(&self, wanted: Name, version: Option<&[u8]>) -> Match {
        let hash = self.sysv_hash as *const u32;
        let mut value = 0u32;
        for byte in wanted.text.to_bytes() {
            value = (value << 4).wrapping_add((*byte).into());
            value = (value ^ (value >> 28 << 4)) & 0x0fff_ffff;
        }
        let mut result = Match::No;
        // SAFETY: as above: the chain ends with a 0.
        unsafe {
            let [buckets, _] = *hash.cast::<[u32; 2]>();
            if buckets == 0 {
                return result;
            }
            let mut index = *hash.add(2 + (value % buckets) as usize);
            while index != 0 {
                match self.matches(index, wanted, version) {
                    Match::No => {}
                    Match::OtherVersion => result = Match::OtherVersion,
                    found => return found,
                }
                index = *hash.add(2 + buckets as usize + index as usize);
            }
        }
        result
    }
}

/// glibc rewrites addresses in the dynamic section to runtime addresses, other loaders do not.
fn absolute(value: u64, bias: u64) -> u64 {
    if value < bias { bias + value } else { value }
}

/// Of a symbol's version: only a reference to that version finds it.
const HIDDEN_BIT: u16 = 1 << 15;

/// # Safety
/// `dynamic` is the dynamic section of a loaded object, which ends with a zero tag.
unsafe fn each_entry(dynamic: *const [u64; 2], mut each: impl FnMut(u64, u64)) {
    let mut entry = dynamic;
    loop {
        // SAFETY: not yet at the end.
        let [tag, value] = unsafe { *entry };
        if tag == tag::END {
            return;
        }
        each(tag, value);
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
}

/// One entry of a note segment, and what follows it.
struct Note<'a> {
    name: &'a [u8],
    kind: u32,
    content: &'a [u8],
    rest: &'a [u8],
}

impl Note<'_> {
    fn first(bytes: &[u8]) -> Option<Note<'_>> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (name, content, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let content_at = 12 + name.next_multiple_of(4);
        let rest = content_at.checked_add(content.next_multiple_of(4))?;
        Some(Note {
            name: bytes.get(12..12 + name)?,
            kind,
            content: bytes.get(content_at..content_at + content)?,
            rest: bytes.get(rest..).unwrap_or(b""),
        })
    }
}

/// Calls `visit` for every loaded object until it returns a value.
pub fn find_loaded<R>(visit: impl FnMut(&Loaded) -> Option<R>) -> Option<R> {
    struct State<F, R> {
        visit: F,
        result: Option<R>,
    }
    extern "C" fn each<F: FnMut(&Loaded) -> Option<R>, R>(
        info: *mut dl_phdr_info,
        _size: size_t,
        state: *mut c_void,
    ) -> c_int {
        // SAFETY: `state` is the State passed below, alive during the call; the loader passes a valid `info`.
        let (state, info) = unsafe { (&mut *state.cast::<State<F, R>>(), &*info) };
        // In a signal handler that interrupted this thread's own dlclose, the list may name an object that is unmapped.
        if closing::is_running_here() && !culeak_walker::read(info.dlpi_phdr as u64, &mut [0u64]) {
            return 0;
        }
        state.result = (state.visit)(&Loaded { info });
        state.result.is_some().into()
    }
    fn callback<F: FnMut(&Loaded) -> Option<R>, R>(
        _: &State<F, R>,
    ) -> unsafe extern "C" fn(*mut dl_phdr_info, size_t, *mut c_void) -> c_int {
        each::<F, R>
    }
    let mut state = State { visit, result: None };
    let callback = callback(&state);
    // SAFETY: the callback matches the state it gets and does not unwind into C (it only compares).
    unsafe { libc::dl_iterate_phdr(Some(callback), std::ptr::from_mut(&mut state).cast()) };
    state.result
}

/// How many objects were ever unloaded, as the loader counts.
pub fn unloads() -> u64 {
    find_loaded(|loaded| Some(loaded.info.dlpi_subs)).unwrap_or(0)
}

/// The loaded object that contains an address. glibc from 2.35 on answers without a lock; only where it does not, or
/// where the object's headers are not in its first page, the loader's list is searched.
pub fn find_containing<R>(address: u64, mut then: impl FnMut(&Loaded) -> R) -> Option<R> {
    if let Some(info) = find_object(address) {
        return Some(then(&Loaded { info: &info }));
    }
    if list_is_unsafe() || closing::is_running_here() {
        return None;
    }
    find_loaded(|loaded| loaded.contains(address).then(|| then(loaded)))
}

/// Set in a child forked from a process that was recording: the thread that held the list's lock may not exist here.
static LIST_IS_UNSAFE: AtomicBool = AtomicBool::new(false);

pub fn list_is_unsafe() -> bool {
    LIST_IS_UNSAFE.load(Relaxed)
}

pub fn forked() {
    LIST_IS_UNSAFE.store(true, Relaxed);
}

/// glibc's `_dl_find_object`; 0 where it has none.
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);

/// The bias of the loader itself.
pub fn loader_bias() -> u64 {
    // SAFETY: the loader writes it before it runs any code of ours, and never again.
    unsafe { DEBUG_LIST.loader_bias }
}

/// Looks for what needs to be looked for once, at start-up, before threads and forks can be in the way.
pub fn prepare() {
    let found = libc_symbol(c"_dl_find_object").map_or(0, |address| address as usize);
    FIND_OBJECT.store(found, Relaxed);
}

/// `struct dl_find_object` of <dlfcn.h>, on 64-bit machines.
#[repr(C)]
#[derive(Default)]
struct Found {
    flags: u64,
    start: u64,
    end: u64,
    link_map: u64,
    eh_frame: u64,
    reserved: [u64; 7],
}

fn find_object(address: u64) -> Option<dl_phdr_info> {
    const PAGE: u64 = 4096;
    let find = FIND_OBJECT.load(Relaxed);
    if find == 0 {
        return None;
    }
    let mut found = Found::default();
    // SAFETY: the loader's function of that name has had this type since it exists, and takes any address.
    let code = unsafe {
        let find = std::mem::transmute::<usize, unsafe extern "C" fn(u64, *mut Found) -> c_int>(find);
        find(address, &mut found)
    };
    if code != 0 || found.link_map == 0 {
        return None;
    }
    // SAFETY: the first page of a loaded object is mapped, and begins with its ELF header if anything does.
    let header = unsafe { &*(found.start as *const libc::Elf64_Ehdr) };
    let table = u64::from(header.e_phnum) * size_of::<libc::Elf64_Phdr>() as u64;
    if header.e_ident[..4] != *b"\x7fELF" || header.e_phoff.checked_add(table).is_none_or(|end| end > PAGE) {
        return None;
    }
    // SAFETY: the loader's entry for an object that stays loaded while code of it is being looked at.
    let map = unsafe { &*(found.link_map as *const LinkMap) };
    // SAFETY: integers and pointers: all zeros is a value.
    let mut info: dl_phdr_info = unsafe { std::mem::zeroed() };
    info.dlpi_addr = map.bias;
    info.dlpi_name = map.name;
    info.dlpi_phdr = (found.start + header.e_phoff) as *const libc::Elf64_Phdr;
    info.dlpi_phnum = header.e_phnum;
    Some(info)
}

/// The absolute path of the file mapped at `address`, from /proc/self/maps: for names that are relative or empty. It
/// lies in `buffer`, which must hold the longest line; empty when there is none.
pub fn mapped_path(address: u64, buffer: &mut [u8]) -> &[u8] {
    let Ok(file) = Descriptor::open(c"/proc/self/maps", libc::O_RDONLY) else {
        return b"";
    };
    let mut used = 0;
    let mut found = 0..0;
    'reading: while used < buffer.len() {
        // SAFETY: the range lies within the buffer.
        let got = unsafe { libc::read(file.number(), buffer.as_mut_ptr().add(used).cast(), buffer.len() - used) };
        if got <= 0 {
            break;
        }
        used += got as usize;
        let mut line = 0;
        while let Some(length) = buffer[line..used].iter().position(|&byte| byte == b'\n') {
            if let Some(path) = path_if_containing(&buffer[line..line + length], address) {
                found = line + length - path.len()..line + length;
                break 'reading;
            }
            line += length + 1;
        }
        buffer.copy_within(line..used, 0);
        used -= line;
    }
    &buffer[found]
}

/// The path at the end of a line of /proc/self/maps that covers `address`.
fn path_if_containing(line: &[u8], address: u64) -> Option<&[u8]> {
    let mut fields = line.splitn(2, |&byte| byte == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let slash = line.iter().position(|&byte| byte == b'/')?;
    (start..end).contains(&address).then(|| &line[slash..])
}
