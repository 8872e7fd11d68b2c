//! Which loaded module holds an address, and where its unwind tables are.
//!
//! glibc ≥ 2.35 answers with `_dl_find_object`, which takes no lock and works in signal handlers and under the loader's
//! lock. Linking it would keep us from loading on older systems, and `dlsym` takes the loader's lock, so the symbol is
//! read out of the modules' own tables, once, under the short list lock of `dl_iterate_phdr`.
//!
//! Older glibc: a sorted table of our own, built by `dl_iterate_phdr` and rebuilt when an address is in none of its
//! modules. `dl_iterate_phdr` waits for the list lock (as libgcc does there at every frame), never for the one that is
//! held while constructors run.

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};

/// A loaded file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Module {
    pub start: u64,
    pub end: u64,
    /// Address of `.eh_frame_hdr`, 0 if there is none.
    pub index: u64,
}

pub fn containing(address: u64, closing: bool) -> Option<Module> {
    match find_object() {
        Some(find) => {
            let mut found = Found::default();
            // SAFETY: looks the address up, whatever it is, and fills our copy of its result.
            let code = unsafe { find(address as *mut c_void, &mut found) };
            (code == 0).then_some(Module {
                start: found.start,
                end: found.end,
                index: found.eh_frame,
            })
        }
        // While a module goes away, only the loader knows.
        None if closing => search(address),
        None => KNOWN.containing(address),
    }
}

/// The set of modules has changed.
pub fn changed() {
    KNOWN.forget();
}

/// In the child of a fork: a thread that was rebuilding the table is not there to finish.
pub fn forked() {
    KNOWN.building.store(false, Release);
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

type FindObject = unsafe extern "C" fn(*mut c_void, *mut Found) -> i32;

/// 0: not looked for yet; 1: there is none.
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);

fn find_object() -> Option<FindObject> {
    let mut address = FIND_OBJECT.load(Relaxed);
    if address == 0 {
        address = exported(c"_dl_find_object").map_or(1, |found| found.start as usize);
        FIND_OBJECT.store(address, Relaxed);
    }
    // SAFETY: the address of the loader's function of that name, which has this type since it exists.
    (address > 1).then(|| unsafe { std::mem::transmute::<usize, FindObject>(address) })
}

/// As on a system whose loader has no `_dl_find_object`.
#[cfg(test)]
pub fn without_find_object() {
    FIND_OBJECT.store(1, Relaxed);
}

/// Where something that a loaded module exports lies; of several, the one that is found first by everybody else too.
/// Waits for the loader's short list lock.
pub fn exported(wanted: &CStr) -> Option<Range<u64>> {
    let mut found = None;
    each(&mut |loaded| {
        // SAFETY: a loaded module, as long as the callback runs.
        found = unsafe { exported_by(loaded, wanted) };
        found.is_some()
    });
    found
}

/// # Safety
/// The module is loaded: its tables are mapped and follow the ELF format. The dynamic section ends with tag 0, a hash
/// chain with an odd word.
unsafe fn exported_by(loaded: &libc::dl_phdr_info, wanted: &CStr) -> Option<Range<u64>> {
    let bias = loaded.dlpi_addr as usize;
    let dynamic = headers(loaded)
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC)?;
    // glibc relocates addresses in the dynamic section, except where that is not writable.
    let absolute = |value: usize| if value < bias { bias + value } else { value };
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    let mut entry = (bias + dynamic.p_vaddr as usize) as *const [usize; 2];
    // SAFETY: the caller's promise.
    unsafe {
        while (*entry)[0] != 0 {
            match *entry {
                [5, value] => strings = absolute(value),
                [6, value] => symbols = absolute(value),
                [0x6fff_fef5, value] => hash = absolute(value),
                _ => {}
            }
            entry = entry.add(1);
        }
        if strings == 0 || symbols == 0 || hash == 0 {
            return None;
        }
        let hash = hash as *const u32;
        let (buckets, first, bloom_words) = (*hash, *hash.add(1), *hash.add(2));
        let bucket = hash.add(4 + bloom_words as usize * 2);
        let chain = bucket.add(buckets as usize);
        let bytes = wanted.to_bytes().iter();
        let value = bytes.fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let mut index = *bucket.add(value.checked_rem(buckets)? as usize);
        while index >= first {
            let here = *chain.add((index - first) as usize);
            if here | 1 == value | 1 {
                let symbol = &*(symbols as *const libc::Elf64_Sym).add(index as usize);
                let name = CStr::from_ptr((strings + symbol.st_name as usize) as *const _);
                if name == wanted && symbol.st_shndx != 0 {
                    let start = loaded.dlpi_addr.wrapping_add(symbol.st_value);
                    return Some(start..start.wrapping_add(symbol.st_size));
                }
            }
            if here & 1 == 1 {
                break;
            }
            index += 1;
        }
    }
    None
}

fn headers(loaded: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if loaded.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the module's program headers, mapped as long as it is loaded.
    unsafe { std::slice::from_raw_parts(loaded.dlpi_phdr, loaded.dlpi_phnum.into()) }
}

impl Module {
    fn of(loaded: &libc::dl_phdr_info) -> Module {
        let mut module = Module {
            start: u64::MAX,
            end: 0,
            index: 0,
        };
        for header in headers(loaded) {
            let at = loaded.dlpi_addr.wrapping_add(header.p_vaddr);
            match header.p_type {
                libc::PT_LOAD => {
                    module.start = module.start.min(at & !0xfff);
                    module.end = module
                        .end
                        .max(at.wrapping_add(header.p_memsz).wrapping_add(0xfff) & !0xfff);
                }
                libc::PT_GNU_EH_FRAME => module.index = at,
                _ => {}
            }
        }
        module
    }
}

type Visit<'a> = dyn FnMut(&libc::dl_phdr_info) -> bool + 'a;

/// Calls `visit` for every loaded object until it says true.
fn each(visit: &mut Visit) {
    unsafe extern "C" fn callback(info: *mut libc::dl_phdr_info, _: usize, visit: *mut c_void) -> i32 {
        // SAFETY: the loader's own, valid during the call; `visit` is the reference passed below.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<&mut Visit>()) };
        visit(info).into()
    }
    let mut visit = visit;
    // SAFETY: the callback gets what it expects and neither unwinds nor keeps anything.
    unsafe { libc::dl_iterate_phdr(Some(callback), std::ptr::from_mut(&mut visit).cast()) };
}

fn search(address: u64) -> Option<Module> {
    let mut found = None;
    each(&mut |loaded| {
        let module = Module::of(loaded);
        if (module.start..module.end).contains(&address) {
            found = Some(module);
        }
        found.is_some()
    });
    found
}

const MODULES: usize = 2048;

/// Two copies: one is read while the other is rebuilt, and `version` says which. It changes whenever the copies swap
/// roles or all is forgotten, and never takes a value twice; a reader that finds it changed may have read a mixture and
/// asks again.
///
/// ```text
/// version  ┌ count of changes ┬ copy ┬ valid ┐
/// ```
struct ModuleTable {
    version: AtomicU64,
    building: AtomicBool,
    copies: [Listing; 2],
}

struct Listing {
    count: AtomicUsize,
    rows: [[AtomicU64; 3]; MODULES],
}

static KNOWN: ModuleTable = ModuleTable {
    version: AtomicU64::new(0),
    building: AtomicBool::new(false),
    copies: [const {
        Listing {
            count: AtomicUsize::new(0),
            rows: [const { [const { AtomicU64::new(0) }; 3] }; MODULES],
        }
    }; 2],
};

impl ModuleTable {
    fn containing(&self, address: u64) -> Option<Module> {
        if let Some(found) = self.look_up(address) {
            return Some(found);
        }
        self.rebuild();
        // Another thread may be rebuilding or may have made us forget.
        self.look_up(address).or_else(|| search(address))
    }

    fn look_up(&self, address: u64) -> Option<Module> {
        for _ in 0..4 {
            // Acquire: pairs with the Release in `rebuild`, so the copy is complete.
            let version = self.version.load(Acquire);
            if version & 1 == 0 {
                return None;
            }
            let copy = &self.copies[(version >> 1 & 1) as usize];
            let rows = copy.rows.get(..copy.count.load(Relaxed))?;
            let after = rows.partition_point(|row| row[0].load(Relaxed) <= address);
            let found = after.checked_sub(1).map(|at| {
                let [start, end, index] = &rows[at];
                Module {
                    start: start.load(Relaxed),
                    end: end.load(Relaxed),
                    index: index.load(Relaxed),
                }
            });
            // Pairs with the fence in `rebuild`: who has read a row of a later rebuild also reads a later version.
            fence(Acquire);
            if self.version.load(Relaxed) == version {
                return found.filter(|module| address < module.end);
            }
        }
        None
    }

    /// One thread at a time; the others, and a signal handler in the middle of it, do with what is there.
    fn rebuild(&self) {
        // Acquire: pairs with the Release at the end, so the version is the last rebuild's.
        if self.building.swap(true, Acquire) {
            return;
        }
        let version = self.version.load(Relaxed);
        let other = !version >> 1 & 1;
        let copy = &self.copies[other as usize];
        fence(Release);
        let mut count = 0;
        each(&mut |loaded| {
            let module = Module::of(loaded);
            // Sorted as they come: a loader lists hundreds, not millions.
            let mut at = count;
            while at > 0 && copy.rows[at - 1][0].load(Relaxed) > module.start {
                for field in 0..3 {
                    copy.rows[at][field].store(copy.rows[at - 1][field].load(Relaxed), Relaxed);
                }
                at -= 1;
            }
            for (field, value) in [module.start, module.end, module.index].into_iter().enumerate() {
                copy.rows[at][field].store(value, Relaxed);
            }
            count += 1;
            count == MODULES
        });
        copy.count.store(count, Relaxed);
        // Fails when all was forgotten meanwhile: what was listed may be gone.
        let next = ((version >> 2) + 1) << 2 | other << 1 | 1;
        let _ = self.version.compare_exchange(version, next, Release, Relaxed);
        self.building.store(false, Release);
    }

    fn forget(&self) {
        let next = |version: u64| Some(((version >> 2) + 1) << 2 | version & 2);
        let _ = self.version.fetch_update(AcqRel, Relaxed, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_table_says_what_the_loader_says() {
        let addresses = [search as *const () as u64, libc::malloc as *const () as u64];
        assert!(exported(c"_dl_find_object").is_some() || exported(c"gnu_get_libc_version").is_some());
        assert_eq!(exported(c"no such function"), None);
        for address in addresses {
            let theirs = containing(address, false).unwrap();
            let listed = search(address).unwrap();
            let ours = KNOWN.containing(address).unwrap();
            assert_eq!(ours, listed);
            assert_eq!(ours.index, theirs.index);
            assert!((ours.start..ours.end).contains(&address));
        }
        KNOWN.forget();
        assert_eq!(KNOWN.look_up(addresses[0]), None);
        assert!(KNOWN.containing(addresses[0]).is_some());
        assert_eq!(KNOWN.containing(8), None);
    }
}
