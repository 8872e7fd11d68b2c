//! What the dynamic loader has mapped, asked of `dl_iterate_phdr` and of the ELF tables in memory.
//!
//! `_dl_find_object` takes no lock. `dl_iterate_phdr` takes only the loader's short list lock, never the one that is held
//! while constructors run, so it is safe where `dlopen`, `dlsym` and `dladdr` could wait for ever, except in a forked
//! child. Either is asked once per module, not per event.

use crate::capture;
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

    /// Where it defines an exported name, found without the loader's help.
    pub fn symbol(&self, name: &CStr) -> Option<*const c_void> {
        let dynamic = self.headers().iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let dynamic = self.bias().wrapping_add(dynamic.p_vaddr) as *const [u64; 2];
        // SAFETY: the dynamic section of an object that is loaded at this bias.
        unsafe { exported(dynamic, self.bias(), name) }
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
            let found = unsafe { exported(entry.dynamic, entry.bias, name) };
            if found.is_some() {
                return found;
            }
        }
        map = entry.next;
    }
    None
}

/// # Safety
/// `dynamic` is the dynamic section of an object loaded at `bias`.
unsafe fn exported(dynamic: *const [u64; 2], bias: u64, name: &CStr) -> Option<*const c_void> {
    // glibc rewrites addresses in the dynamic section to runtime addresses, other loaders do not.
    let absolute = |value: u64| if value < bias { bias + value } else { value };
    let (mut symbols, mut strings, mut hash) = (0, 0, 0);
    let mut entry = dynamic;
    loop {
        // SAFETY: the dynamic section is mapped and ends with a zero tag.
        let [tag, value] = unsafe { *entry };
        match tag {
            0 => break,
            5 => strings = absolute(value),
            6 => symbols = absolute(value),
            0x6fff_fef5 => hash = absolute(value),
            _ => {}
        }
        // SAFETY: as above: not yet at the end.
        entry = unsafe { entry.add(1) };
    }
    if symbols == 0 || strings == 0 || hash == 0 {
        return None;
    }
    // SAFETY: tables of a loaded object, laid out as the GNU hash format says.
    unsafe {
        gnu_lookup(
            hash as *const u32,
            symbols as *const libc::Elf64_Sym,
            strings as *const libc::c_char,
            name,
        )
    }
    .map(|value| bias.wrapping_add(value) as *const c_void)
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

/// # Safety
/// The pointers are the DT_GNU_HASH, DT_SYMTAB and DT_STRTAB tables of one loaded object.
unsafe fn gnu_lookup(
    hash: *const u32,
    symbols: *const libc::Elf64_Sym,
    strings: *const libc::c_char,
    wanted: &CStr,
) -> Option<u64> {
    // SAFETY: the caller vouches for the tables; every index below follows the format's own chain to its end mark.
    unsafe {
        let (buckets, first, bloom_words) = (*hash, *hash.add(1), *hash.add(2));
        let bucket = hash.add(4 + bloom_words as usize * 2);
        let chain = bucket.add(buckets as usize);
        let mut value = 5381u32;
        for byte in wanted.to_bytes() {
            value = value.wrapping_mul(33).wrapping_add((*byte).into());
        }
        if buckets == 0 {
            return None;
        }
        let mut index = *bucket.add((value % buckets) as usize);
        if index < first {
            return None;
        }
        loop {
            let here = *chain.add((index - first) as usize);
            let symbol = &*symbols.add(index as usize);
            let defined = symbol.st_shndx != 0 && symbol.st_value != 0;
            if here | 1 == value | 1 && defined && CStr::from_ptr(strings.add(symbol.st_name as usize)) == wanted {
                return Some(symbol.st_value);
            }
            if here & 1 == 1 {
                return None;
            }
            index += 1;
        }
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

/// How many objects were ever loaded.
pub fn loads() -> u64 {
    find_loaded(|loaded| Some(loaded.info.dlpi_adds)).unwrap_or(0)
}

/// The loaded object that contains an address. glibc from 2.35 on answers without a lock; only where it does not, or
/// where the object's headers are not in its first page, the loader's list is searched.
pub fn find_containing<R>(address: u64, mut then: impl FnMut(&Loaded) -> R) -> Option<R> {
    if let Some(info) = find_object(address) {
        return Some(then(&Loaded { info: &info }));
    }
    if list_is_unsafe() || capture::is_closing_here() {
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

/// Looks for what needs to be looked for once, before threads and forks can be in the way.
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
    // SAFETY: a constant path; the descriptor is closed below.
    let fd = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return b"";
    }
    let mut used = 0;
    let mut found = 0..0;
    'reading: while used < buffer.len() {
        // SAFETY: `fd` is open and the range lies within the buffer.
        let got = unsafe { libc::read(fd, buffer.as_mut_ptr().add(used).cast(), buffer.len() - used) };
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
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
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
