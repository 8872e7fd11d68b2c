//! One loaded object, and the iteration over all of them.

use crate::tables::{Name, Tables};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use libc::{Elf64_Phdr, dl_phdr_info, size_t};

pub(crate) const PAGE: u64 = 4096;

/// A loaded object. It borrows the loader's description, which is valid only inside the callback that received it.
pub struct Loaded<'a> {
    info: &'a dl_phdr_info,
}

impl Loaded<'_> {
    /// # Safety
    /// `info` describes an object that stays loaded as long as the result is used.
    pub unsafe fn new(info: &dl_phdr_info) -> Loaded<'_> {
        Loaded { info }
    }

    pub fn info(&self) -> &dl_phdr_info {
        self.info
    }

    /// The path as the loader knows it: empty for the main program, relative if the library was opened by a relative path.
    pub fn name(&self) -> &[u8] {
        if self.info.dlpi_name.is_null() {
            return b"";
        }
        // SAFETY: the loader's string lives as long as the object is loaded.
        unsafe { CStr::from_ptr(self.info.dlpi_name) }.to_bytes()
    }

    pub fn file_name(&self) -> &[u8] {
        after_last_slash(self.name())
    }

    /// Runtime address minus address in the file.
    pub fn bias(&self) -> u64 {
        self.info.dlpi_addr
    }

    fn headers(&self) -> &[Elf64_Phdr] {
        if self.info.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: the program headers are mapped as long as the object is loaded.
        unsafe { core::slice::from_raw_parts(self.info.dlpi_phdr, self.info.dlpi_phnum.into()) }
    }

    /// The runtime addresses of all segments of a type.
    fn segments(&self, kind: u32) -> impl Iterator<Item = Range<u64>> {
        let headers = self.headers().iter().filter(move |header| header.p_type == kind);
        headers.map(|header| {
            let start = self.bias().wrapping_add(header.p_vaddr);
            start..start.wrapping_add(header.p_memsz)
        })
    }

    /// From the first page of the lowest segment to the end of the highest one.
    pub fn bounds(&self) -> (u64, u64) {
        self.segments(libc::PT_LOAD)
            .fold((u64::MAX, 0), |(start, end), segment| {
                (start.min(segment.start & !(PAGE - 1)), end.max(segment.end))
            })
    }

    pub fn contains(&self, address: u64) -> bool {
        self.segments(libc::PT_LOAD).any(|segment| segment.contains(&address))
    }

    /// The address of `.eh_frame_hdr`, the sorted index of the unwind tables.
    pub fn unwind_index(&self) -> Option<u64> {
        self.segments(libc::PT_GNU_EH_FRAME).next().map(|segment| segment.start)
    }

    /// The symbol tables; `None` for an object without a dynamic section.
    pub fn tables(&self) -> Option<Tables> {
        let dynamic = self.segments(libc::PT_DYNAMIC).next()?.start;
        // SAFETY: the dynamic section of an object that is loaded at this bias.
        Some(unsafe { Tables::read(dynamic as *const [u64; 2], self.bias()) })
    }

    /// The address of an exported name that the object defines.
    pub fn symbol(&self, name: &CStr) -> Option<*const c_void> {
        // SAFETY: the object is loaded as long as `self` is borrowed.
        unsafe { self.tables()?.symbol(Name::new(name)) }
    }

    /// The GNU build id, from the mapped notes; empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        self.segments(libc::PT_NOTE)
            .find_map(|segment| {
                let length = segment.end.saturating_sub(segment.start) as usize;
                // SAFETY: a note segment is mapped for its whole length.
                build_id(unsafe { core::slice::from_raw_parts(segment.start as *const u8, length) })
            })
            .unwrap_or(b"")
    }
}

/// The build id among the notes of a segment.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const GNU_BUILD_ID: u32 = 3;
    while let Some(note) = Note::first(notes) {
        if note.kind == GNU_BUILD_ID && note.name == b"GNU\0" {
            return Some(note.content);
        }
        notes = note.rest;
    }
    None
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

/// An entry of the loader's list for debuggers, `struct link_map` of <link.h>.
#[repr(C)]
pub struct LinkMap {
    pub bias: u64,
    pub name: *const c_char,
    dynamic: *const [u64; 2],
    pub next: *const LinkMap,
}

impl LinkMap {
    /// # Safety
    /// The object is loaded.
    pub unsafe fn file_name(&self) -> &[u8] {
        if self.name.is_null() {
            return b"";
        }
        // SAFETY: the loader's string lives as long as the object is loaded.
        after_last_slash(unsafe { CStr::from_ptr(self.name) }.to_bytes())
    }

    /// The description that `dl_iterate_phdr` would give of a library whose first segment begins with the ELF header, as the linker
    /// lays libraries out. It exists before the library is relocated. `start`: the address of its first page.
    ///
    /// # Safety
    /// The object is loaded, and its first page is mapped at `start`.
    pub unsafe fn info(&self, start: u64) -> Option<dl_phdr_info> {
        // SAFETY: by the contract of this function.
        let header = unsafe { &*(start as *const libc::Elf64_Ehdr) };
        let table = u64::from(header.e_phnum) * size_of::<Elf64_Phdr>() as u64;
        if !header.e_ident.starts_with(b"\x7fELF") || header.e_phoff.checked_add(table).is_none_or(|end| end > PAGE) {
            return None;
        }
        // SAFETY: integers and pointers: all zeros is a value.
        let mut info: dl_phdr_info = unsafe { core::mem::zeroed() };
        info.dlpi_addr = self.bias;
        info.dlpi_name = self.name;
        info.dlpi_phdr = start.wrapping_add(header.e_phoff) as *const Elf64_Phdr;
        info.dlpi_phnum = header.e_phnum;
        Some(info)
    }

    /// The same of the main program, whose program headers the kernel passes to it. `None` if this is another object.
    pub fn program_info(&self) -> Option<dl_phdr_info> {
        // SAFETY: no preconditions.
        let (headers, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
        // SAFETY: integers and pointers: all zeros is a value.
        let mut info: dl_phdr_info = unsafe { core::mem::zeroed() };
        info.dlpi_addr = self.bias;
        info.dlpi_name = self.name;
        info.dlpi_phdr = headers as *const Elf64_Phdr;
        info.dlpi_phnum = count as u16;
        // SAFETY: the main program is never unloaded.
        let program = unsafe { Loaded::new(&info) };
        // With the bias of another object, the headers would not be where they are.
        let is_program = program.segments(libc::PT_PHDR).any(|segment| segment.start == headers);
        is_program.then_some(info)
    }

    /// # Safety
    /// The object is loaded.
    pub unsafe fn symbol(&self, name: Name) -> Option<*const c_void> {
        if self.dynamic.is_null() {
            return None;
        }
        // SAFETY: the dynamic section of a loaded object.
        unsafe { Tables::read(self.dynamic, self.bias).symbol(name) }
    }
}

fn after_last_slash(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Calls `visit` for every loaded object, in the loader's order, until it returns a value. Takes the loader's short list
/// lock, which the calling thread may already hold.
pub fn find_loaded<R>(mut visit: impl FnMut(&Loaded) -> Option<R>) -> Option<R> {
    let mut result = None;
    for_each_loaded(&mut |loaded| {
        result = visit(loaded);
        result.is_some()
    });
    result
}

fn for_each_loaded(mut visit: &mut dyn FnMut(&Loaded) -> bool) {
    type Visit<'a> = &'a mut dyn FnMut(&Loaded) -> bool;
    unsafe extern "C" fn callback(info: *mut dl_phdr_info, _size: size_t, visit: *mut c_void) -> c_int {
        // SAFETY: the loader's description is valid during the call; `visit` is the reference passed below.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<Visit>()) };
        visit(&Loaded { info }).into()
    }
    // SAFETY: the callback receives what it expects and keeps nothing.
    unsafe { libc::dl_iterate_phdr(Some(callback), core::ptr::from_mut(&mut visit).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, content.len() as u32, kind] {
            bytes.extend(word.to_ne_bytes());
        }
        for part in [name, content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let notes = [
            note(b"GNU\0", 1, b"odd"),
            note(b"Go\0", 3, b"no"),
            note(b"GNU\0", 3, b"id"),
        ]
        .concat();
        assert_eq!(build_id(&notes), Some(&b"id"[..]));
        assert_eq!(build_id(&notes[..notes.len() - 8]), None);
    }

    #[test]
    fn malformed_notes_have_no_build_id() {
        let whole = note(b"GNU\0", 3, b"0123456789");
        for length in 0..26 {
            assert_eq!(build_id(&whole[..length]), None, "{length} bytes");
        }
        for word in 0..2 {
            let mut bytes = whole.clone();
            bytes[4 * word..4 * word + 4].fill(0xff);
            assert_eq!(build_id(&bytes), None);
        }
    }

    #[test]
    fn libc_is_listed_with_its_name_bounds_and_build_id() {
        let malloc = libc::malloc as *const () as u64;
        let seen = find_loaded(|loaded| {
            loaded.contains(malloc).then(|| {
                let (start, end) = loaded.bounds();
                assert!((start..end).contains(&malloc));
                assert_eq!(loaded.symbol(c"malloc"), Some(malloc as *const c_void));
                (
                    loaded.file_name().to_vec(),
                    loaded.build_id().len(),
                    loaded.unwind_index(),
                )
            })
        });
        let (name, build_id, index) = seen.expect("a library defines malloc");
        assert_eq!(name, b"libc.so.6");
        assert_eq!(build_id, 20, "SHA-1");
        assert!(index.is_some());
    }
}
