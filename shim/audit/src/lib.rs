//! The library that `culeak run --record audit` names in `LD_AUDIT`: it leads calls of CUDA to the preload library that do not find it by
//! name.
//!
//! A library that is opened with `RTLD_DEEPBIND`, and everything in a namespace of `dlmopen`, binds to the driver past every preloaded
//! library. The loader asks an audit library about each function of a procedure linkage table (PLT) that it binds, and about each
//! `dlsym` (`la_symbind64`), and takes its answer:
//!
//! ```text
//! the plugin       cuMemAlloc_v2 ──► the loader: the driver's function ──► la_symbind64 ──► culeak_bound(name, address, library)
//! preload library  at start-up looks up its own `culeak_bound`, so that it is seen here; it answers as for `dlsym`
//! ```
//!
//! An audit library lives in a namespace of its own, with its own libc. So here are only comparisons (of libc, `strlen` and `bcmp`) and one
//! call: no thread-local variable, no allocation. The functions behind the answers run in the preload library, with the libc of the
//! program. Bindings are rewritten once, when they are made; calls take no detour, since neither `la_pltenter` nor
//! `la_pltexit` exists here. Deliberately absent: bindings during start-up, before the preload library is initialized (those
//! find it by name), and look-ups other than of CUDA's functions and `dlclose`. Out of reach: calls without a PLT (`-fno-plt`, and
//! Rust's default) and addresses of functions in data, about which the loader does not ask.

use std::ffi::{CStr, c_char, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// `LAV_CURRENT` of glibc 2.35 and newer. Older ones do not ask about libraries that are bound when they are loaded.
const VERSION: c_uint = 2;
/// `LA_FLG_BINDTO` and `LA_FLG_BINDFROM`: the loader asks about bindings to, and from, an object.
const BIND_TO: c_uint = 1;
const BIND_FROM: c_uint = 2;

/// The preload library's `culeak_bound`; null until it is initialized.
static BOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The preload library itself, which must get what it looks up.
static PRELOADED: AtomicPtr<LinkMap> = AtomicPtr::new(std::ptr::null_mut());
type Bound = unsafe extern "C" fn(name: *const c_char, address: *mut c_void, library: *const LinkMap) -> *mut c_void;

/// The beginning of `struct link_map` of <link.h>.
#[repr(C)]
pub struct LinkMap {
    bias: u64,
    name: *const c_char,
}

/// `Elf64_Sym` of <elf.h>.
#[repr(C)]
pub struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

/// The loader asks whether this library suits it.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    // 0: the loader goes on without this library.
    if version >= VERSION { VERSION } else { 0 }
}

/// An object is loaded.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(map: *const LinkMap, _namespace: c_long, _cookie: *mut usize) -> c_uint {
    // SAFETY: the loader's description of the object.
    match unsafe { is_excluded(map) } {
        true => BIND_TO,
        false => BIND_TO | BIND_FROM,
    }
}

/// Whether a library must get the driver's own functions: as `caller_is_excluded` in the preload library.
///
/// # Safety
/// `map` is the loader's description of a loaded object.
unsafe fn is_excluded(map: *const LinkMap) -> bool {
    const EXCLUDED: [&[u8]; 4] = [b"libcuda.so", b"libnvidia", b"libcupti", b"libucm"];
    // SAFETY: by the contract of this function; the name is null or a C string.
    let name = unsafe { (*map).name };
    if name.is_null() {
        return false;
    }
    // SAFETY: as above.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    EXCLUDED.iter().any(|excluded| file.starts_with(excluded))
}

/// A symbol is bound: returns the address to bind it to.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_symbind64(
    symbol: *const Symbol,
    _number: c_uint,
    from: *const *const LinkMap,
    to: *const *const LinkMap,
    _flags: *mut c_uint,
    name: *const c_char,
) -> usize {
    // SAFETY: the loader's symbol, with the address that it has found.
    let found = unsafe { (*symbol).value };
    // SAFETY: a C string.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: the cookie of the library that looks the symbol up, which the loader sets to its description.
    let caller = unsafe { *from };
    if name == c"culeak_bound" {
        // The first copy of the preload library is the one that records.
        let null = std::ptr::null_mut();
        let first = PRELOADED.compare_exchange(null, caller.cast_mut(), Relaxed, Relaxed);
        if first.is_ok() {
            BOUND.store(found as *mut c_void, Release);
        }
        return found;
    }
    if !name.to_bytes().starts_with(b"cu") && name != c"dlclose" {
        return found;
    }
    let bound = BOUND.load(Acquire);
    if bound.is_null() || caller == PRELOADED.load(Relaxed).cast_const() {
        return found;
    }
    // For `dlsym`, the loader asks also if only the library that defines the symbol has asked for its bindings.
    // SAFETY: the loader's description of the caller.
    if unsafe { is_excluded(caller) } {
        return found;
    }
    // SAFETY: the cookie of the library that defines the symbol, as above. The preload library's function of this name has this
    // type, and is never unloaded.
    unsafe { std::mem::transmute::<*mut c_void, Bound>(bound)(name.as_ptr(), found as *mut c_void, *to) as usize }
}
