//! glibc's `_dl_find_object`, from 2.35 on: the loaded object that contains an address, found without a lock.
//!
//! Its address is looked up at run time: a library that is linked with it cannot be loaded by an older glibc. The caller
//! passes the address to [`prepare`] once, since only the caller knows how to look for it safely at that point.

use crate::loaded::{LinkMap, Loaded, PAGE};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use libc::dl_phdr_info;

/// The function's address.
static FUNCTION: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const MISSING: usize = 1;

/// `struct dl_find_object` of <dlfcn.h>, on 64-bit machines.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ObjectInMemory {
    flags: u64,
    /// Of one segment, if the object is a main program with gaps between its segments.
    pub start: u64,
    pub end: u64,
    link_map: *const LinkMap,
    /// The address of `.eh_frame_hdr`; 0: none.
    pub unwind_index: u64,
    reserved: [u64; 7],
}

/// # Safety
/// `function` is the address of the loader's `_dl_find_object`, if any.
pub unsafe fn prepare(function: Option<*const c_void>) {
    FUNCTION.store(function.map_or(MISSING, |address| address as usize), Relaxed);
}

/// Whether `prepare` has been called.
pub fn is_prepared() -> bool {
    FUNCTION.load(Relaxed) != UNKNOWN
}

/// Whether the loader has the function.
pub fn is_available() -> bool {
    FUNCTION.load(Relaxed) > MISSING
}

/// The loaded object that contains the address. `None` also if the function is missing.
pub fn containing(address: u64) -> Option<ObjectInMemory> {
    type FindObject = unsafe extern "C" fn(u64, *mut ObjectInMemory) -> c_int;
    let function = FUNCTION.load(Relaxed);
    if function <= MISSING {
        return None;
    }
    // SAFETY: integers and a pointer: all zeros is a value.
    let mut found: ObjectInMemory = unsafe { core::mem::zeroed() };
    // SAFETY: `prepare` received this function, whose type is part of glibc's ABI. It accepts any address.
    let code = unsafe { core::mem::transmute::<usize, FindObject>(function)(address, &mut found) };
    (code == 0).then_some(found)
}

impl ObjectInMemory {
    /// The loader's entry of the object.
    pub fn link_map(&self) -> *const LinkMap {
        self.link_map
    }

    /// The description that `dl_iterate_phdr` would give of the object. `None` if the program headers of a library are not in
    /// its first page, the only page that is known to be mapped.
    ///
    /// # Safety
    /// The object is loaded.
    pub unsafe fn info(&self) -> Option<dl_phdr_info> {
        if self.link_map.is_null() {
            return None;
        }
        // SAFETY: the loader's entry exists as long as the object is loaded.
        let map = unsafe { &*self.link_map };
        // A segment may begin within a page, and an object does not.
        let of_object = match self.start.is_multiple_of(PAGE) {
            // SAFETY: the first page is mapped as long as the object is loaded.
            true => unsafe { map.info(self.start) },
            false => None,
        };
        of_object.or_else(|| map.program_info())
    }

    /// Where the object begins and ends, with its unwind tables.
    ///
    /// # Safety
    /// The object is loaded.
    pub unsafe fn bounds(&self) -> (u64, u64) {
        let named = (self.start, self.end);
        if self.unwind_index == 0 || (self.start..self.end).contains(&self.unwind_index) {
            return named;
        }
        // SAFETY: by the contract of this function.
        unsafe { self.info().map_or(named, |info| Loaded::new(&info).bounds()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_loaded;

    #[test]
    fn the_answer_is_what_the_loader_lists() {
        assert!(containing(0).is_none(), "before it was prepared");
        // SAFETY: the loader's own function of that name.
        unsafe { prepare(find_loaded(|loaded| loaded.symbol(c"_dl_find_object"))) };
        assert!(is_prepared());
        // glibc 2.34 and older have no such function.
        // SAFETY: looks up a symbol by name.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        assert_eq!(is_available(), !expected.is_null());
        let address = libc::malloc as *const () as u64;
        let listed = find_loaded(|loaded| {
            let seen = (loaded.bias(), loaded.name().to_vec(), loaded.unwind_index());
            loaded.contains(address).then_some(seen)
        });
        if is_available() {
            let found = containing(address).expect("malloc is in a loaded object");
            assert!((found.start..found.end).contains(&address));
            // SAFETY: libc stays loaded.
            let info = unsafe { found.info() }.expect("libc begins with its headers");
            // SAFETY: as above.
            let loaded = unsafe { Loaded::new(&info) };
            assert_eq!(loaded.unwind_index(), Some(found.unwind_index));
            assert_eq!(
                Some((loaded.bias(), loaded.name().to_vec(), loaded.unwind_index())),
                listed
            );
            assert!(containing(8).is_none());
        }
    }
}
