//! The real `dlsym`, `dlvsym` and `dlclose`: libc's, or those of a preload that comes after this library.
//!
//! libc's own are read from its ELF tables, because this library exports these names itself.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use crate::resolve::loader;
use culeak_elf::find_object;

/// The real `dlsym`; the assembly entry jumps through it.
pub static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlclose = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// Finds the real functions once. The library's constructor calls it, or a hook that another library's constructor
/// enters earlier.
#[inline]
pub fn ensure() {
    if DLSYM.load(Relaxed).is_null() {
        find_libc();
    }
}

#[cold]
fn find_libc() {
    loader::prepare();
    // DLSYM last: a thread that sees it set may use all three.
    for (name, slot) in [(c"dlvsym", &DLVSYM), (c"dlclose", &DLCLOSE), (c"dlsym", &DLSYM)] {
        if let Some(address) = loader::libc_symbol(name) {
            slot.store(address.cast_mut(), Release);
        }
    }
    // A preload after this library may define them too; its definitions precede libc's.
    for (name, slot) in [(c"dlclose", &DLCLOSE), (c"dlsym", &DLSYM)] {
        // SAFETY: libc's dlsym, called by this library, so RTLD_NEXT means "after this library".
        let next = unsafe { dlsym(libc::RTLD_NEXT, name) };
        if !next.is_null() {
            slot.store(next, Release);
        }
    }
}

/// The real `dlsym`, called from here: RTLD_NEXT means "after this library".
///
/// # Safety
/// As `dlsym`: `handle` is one of the loader's or a pseudo handle.
pub unsafe fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    ensure();
    let address = DLSYM.load(Acquire);
    if address.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: found under this name in libc or through it; the caller vouches for the handle.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address)(handle, name.as_ptr()) }
}

/// The real `dlvsym`.
///
/// # Safety
/// As `dlvsym`; `version` may be null where `dlvsym` takes that.
pub unsafe fn dlvsym(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    ensure();
    let address = DLVSYM.load(Acquire);
    if address.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: found under this name in libc; the caller vouches for the arguments.
    unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(address)(handle, name.as_ptr(), version) }
}

/// Whether another tool exports a `dlsym` that the real look-ups go through.
pub fn dlsym_is_another_tools() -> bool {
    ensure();
    loader::libc_symbol(c"dlsym").is_some_and(|own| own != DLSYM.load(Acquire).cast_const())
}

/// Whether this is the function that our `dlclose` wraps.
pub fn is_dlclose(address: *mut c_void) -> bool {
    ensure();
    address == DLCLOSE.load(Acquire)
}

/// Whether a call of this `dlclose` of a libc comes to an unload without ours: our `dlclose` goes on to it, or it is in another
/// namespace of the loader. That of our own namespace, if ours goes on to another preload, is what that preload goes on to: it must
/// get it, or the two would call each other.
pub fn leads_past_us(address: *mut c_void) -> bool {
    is_dlclose(address) || loader::libc_symbol(c"dlclose").is_some_and(|own| own != address.cast_const())
}

/// The real `dlclose`.
///
/// # Safety
/// As `dlclose`.
pub unsafe fn dlclose(handle: *mut c_void) -> c_int {
    ensure();
    let address = DLCLOSE.load(Acquire);
    if address.is_null() {
        return -1;
    }
    // SAFETY: found under this name in libc; the caller vouches for the handle.
    unsafe { std::mem::transmute::<*mut c_void, Dlclose>(address)(handle) }
}

/// Keeps a library loaded for the life of the process, if it is loaded and could be unloaded. Only our own `dlclose`
/// calls it: the program is already inside the loader there. What was read out of the library before stays valid.
/// It may be in another namespace of the loader.
pub fn pin(address: u64) {
    let mut path = [0u8; 1024];
    let length = loader::find_containing(address, |loaded| {
        let name = loaded.name();
        let room = name.len().min(path.len() - 1);
        path[..room].copy_from_slice(&name[..room]);
        if room == name.len() { room } else { 0 }
    });
    if length.is_some_and(|length| length > 0)
        && let Ok(path) = CStr::from_bytes_until_nul(&path)
    {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        let map = find_object::containing(address).map_or(std::ptr::null(), |found| found.link_map());
        let mut namespace: libc::Lmid_t = libc::LM_ID_BASE;
        // SAFETY: a C string; RTLD_NOLOAD opens only what is loaded already. The handle is never closed. In glibc, the description of
        // a loaded library is a handle of it, and RTLD_DI_LMID writes a namespace.
        unsafe {
            if map.is_null()
                || libc::dlinfo(map.cast_mut().cast(), libc::RTLD_DI_LMID, (&raw mut namespace).cast()) != 0
            {
                libc::dlopen(path.as_ptr(), flags);
            } else {
                libc::dlmopen(namespace, path.as_ptr(), flags);
            }
        }
    }
}
