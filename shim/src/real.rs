//! The real functions behind our hooks.
//!
//! Three questions are answered here: where libc's own `dlsym` is (found without `dlsym`, since that name is ours);
//! which exported driver function has which address (so that an address the driver hands out can be recognised,
//! whatever name and version it was asked by); and which libcudart a caller of a runtime function means. Several can
//! live in one process, and one that was opened RTLD_LOCAL is invisible to RTLD_NEXT, so the caller's own scope is
//! searched first.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU64, AtomicUsize, Ordering::*};

use crate::loader;
use culeak::cuda_functions::{Api, DRIVER_NAMES};
use culeak::index::mix;

/// libc's (or the next preload's) `dlsym`; the naked entry jumps through it.
pub static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Counts calls of dlclose that unloaded something; cached answers from before are void.
pub static GENERATION: AtomicU64 = AtomicU64::new(1);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Finds libc's functions. Cheap when done; anybody may call it first, even a constructor that runs before ours.
#[inline]
pub fn ensure() {
    if DLSYM.load(Relaxed).is_null() {
        find_libc();
    }
}

#[cold]
fn find_libc() {
    loader::prepare();
    // dlvsym and dlclose first: whoever sees DLSYM set may use them all.
    for (name, slot) in [(c"dlvsym", &DLVSYM), (c"dlclose", &DLCLOSE), (c"dlsym", &DLSYM)] {
        if let Some(address) = loader::libc_symbol(name) {
            slot.store(address.cast_mut(), Release);
        }
    }
    // Another preload behind us may hook dlsym as well: it comes before libc.
    // SAFETY: libc's dlsym, asked from our own code, so RTLD_NEXT means "after us".
    let next = unsafe { dlsym(libc::RTLD_NEXT, c"dlsym") };
    if !next.is_null() {
        DLSYM.store(next, Release);
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

/// Driver functions the shim asks itself: the current context and device, and whether a stream is capturing.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Query {
    CtxGetCurrent,
    CtxGetDevice,
    DeviceGetUuid,
    DeviceGetUuidV2,
    DeviceGetName,
    StreamGetCaptureInfo,
    StreamGetCaptureInfoPerThread,
    PrimaryCtxGetState,
}

const QUERIES: [&CStr; 8] = [
    c"cuCtxGetCurrent",
    c"cuCtxGetDevice",
    c"cuDeviceGetUuid",
    c"cuDeviceGetUuid_v2",
    c"cuDeviceGetName",
    c"cuStreamGetCaptureInfo_v2",
    c"cuStreamGetCaptureInfo_v2_ptsz",
    c"cuDevicePrimaryCtxGetState",
];

const DRIVER: usize = DRIVER_NAMES.len();
const SLOTS: usize = 512;
const _: () = assert!(DRIVER * 2 < SLOTS);

/// Real addresses by row number, and back: an open-addressing table, filled once.
struct Driver {
    ready: AtomicBool,
    addresses: [AtomicPtr<c_void>; DRIVER],
    queries: [AtomicPtr<c_void>; QUERIES.len()],
    slots: [(AtomicUsize, AtomicU16); SLOTS],
}

static DRIVER_TABLE: Driver = Driver {
    ready: AtomicBool::new(false),
    addresses: [const { AtomicPtr::new(std::ptr::null_mut()) }; DRIVER],
    queries: [const { AtomicPtr::new(std::ptr::null_mut()) }; QUERIES.len()],
    slots: [const { (AtomicUsize::new(0), AtomicU16::new(0)) }; SLOTS],
};

/// Copies a name from the list into a C string on the stack.
fn with_c_name<R>(name: &str, then: impl FnOnce(&CStr) -> R) -> Option<R> {
    let mut buffer = [0u8; 64];
    buffer.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    CStr::from_bytes_until_nul(&buffer).ok().map(then)
}

/// libcuda, if the process has loaded it. Holding the handle keeps it loaded, so the addresses stay good.
fn libcuda() -> *mut c_void {
    // SAFETY: RTLD_NOLOAD opens only what is there; the name is a constant.
    unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// Whether the process has a CUDA driver loaded.
pub fn driver_is_loaded() -> bool {
    DRIVER_TABLE.ready.load(Acquire) || fill_driver()
}

#[cold]
fn fill_driver() -> bool {
    let handle = libcuda();
    let scope = if handle.is_null() { libc::RTLD_NEXT } else { handle };
    // Without a driver one look-up is enough to know, and programs without one may ask for many names.
    // SAFETY: `scope` is an open handle or RTLD_NEXT.
    if unsafe { dlsym(scope, c"cuInit") }.is_null() {
        return false;
    }
    let mut found = false;
    for (row, name) in DRIVER_NAMES.iter().enumerate() {
        // SAFETY: `scope` is an open handle or RTLD_NEXT.
        let Some(address) = with_c_name(name, |name| unsafe { dlsym(scope, name) }) else {
            continue;
        };
        if address.is_null() {
            continue;
        }
        found = true;
        DRIVER_TABLE.addresses[row].store(address, Relaxed);
        let mut slot = mix(address as u64) as usize;
        loop {
            let (key, value) = &DRIVER_TABLE.slots[slot % SLOTS];
            // Several threads may fill the table at once, with the same values in the same places.
            if key.load(Relaxed) == 0 || key.load(Relaxed) == address as usize {
                value.store(row as u16, Relaxed);
                key.store(address as usize, Release);
                break;
            }
            slot += 1;
        }
    }
    for (query, name) in QUERIES.iter().enumerate() {
        // SAFETY: as above.
        let address = unsafe { dlsym(scope, name) };
        DRIVER_TABLE.queries[query].store(address, Relaxed);
    }
    if found {
        // Release: pairs with the Acquire in the readers below.
        DRIVER_TABLE.ready.store(true, Release);
    }
    found
}

/// The driver's own function of a row; null when this driver has none.
#[inline]
pub fn driver(api: Api) -> *mut c_void {
    if DRIVER_TABLE.ready.load(Acquire) || fill_driver() {
        DRIVER_TABLE.addresses[api.0 as usize].load(Relaxed)
    } else {
        std::ptr::null_mut()
    }
}

/// The driver's own function behind a query; null when this driver has none.
pub fn query(query: Query) -> *mut c_void {
    if DRIVER_TABLE.ready.load(Acquire) || fill_driver() {
        DRIVER_TABLE.queries[query as usize].load(Relaxed)
    } else {
        std::ptr::null_mut()
    }
}

/// Which row of the list an address the driver returned belongs to.
pub fn recognise(address: *mut c_void) -> Option<Api> {
    if !(DRIVER_TABLE.ready.load(Acquire) || fill_driver()) {
        return None;
    }
    let mut slot = mix(address as u64) as usize;
    loop {
        let (key, value) = &DRIVER_TABLE.slots[slot % SLOTS];
        match key.load(Acquire) {
            0 => return None,
            key if key == address as usize => return Some(Api(value.load(Relaxed))),
            _ => slot += 1,
        }
    }
}

/// Address of anything in this library.
fn here() -> u64 {
    static HERE: u8 = 0;
    std::ptr::from_ref(&HERE) as u64
}

/// Lowest and one past the highest address of this library.
pub fn own_bounds() -> (u64, u64) {
    static BOUNDS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    if BOUNDS[1].load(Acquire) == 0 {
        let (start, end) = loader::find_containing(here(), |loaded| loaded.bounds()).unwrap_or((0, 1));
        BOUNDS[0].store(start, Relaxed);
        BOUNDS[1].store(end, Release);
    }
    (BOUNDS[0].load(Relaxed), BOUNDS[1].load(Relaxed))
}

pub fn is_ours(address: u64) -> bool {
    let (start, end) = own_bounds();
    (start..end).contains(&address)
}

const ROUTES: usize = 256;
/// Answers of `runtime`, each readable without a lock: the first word is the key mixed with the second.
static ROUTE: [(AtomicU64, AtomicU64); ROUTES] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; ROUTES];

/// The last answer for each function. In a forked child, where CUDA does not work and the loader's locks may be held for
/// ever, it has to do for every caller.
static LAST_ROUTE: [AtomicPtr<c_void>; Api::COUNT - DRIVER] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; Api::COUNT - DRIVER];

/// The function of this name in the libcudart that the code at `caller` would reach without us.
pub fn runtime(api: Api, caller: u64) -> *mut c_void {
    let key = mix(caller ^ u64::from(api.0) << 48 ^ GENERATION.load(Acquire) << 56).max(1);
    let (check, target) = &ROUTE[key as usize % ROUTES];
    let cached = target.load(Relaxed);
    // Both words belong together only if they give the key: a torn pair does not.
    if cached != 0 && check.load(Relaxed) ^ cached == key {
        return cached as *mut c_void;
    }
    let last = &LAST_ROUTE[api.0 as usize - DRIVER];
    let before = last.load(Relaxed);
    if loader::list_is_unsafe() && !before.is_null() {
        return before;
    }
    let found = with_c_name(api.name(), |name| find_runtime(name, caller)).unwrap_or(std::ptr::null_mut());
    if !found.is_null() {
        last.store(found, Relaxed);
        target.store(found as u64, Relaxed);
        check.store(found as u64 ^ key, Relaxed);
    }
    found
}

fn find_runtime(name: &CStr, caller: u64) -> *mut c_void {
    let acceptable = |address: *mut c_void| !address.is_null() && !is_ours(address as u64);
    // 1. The caller's own scope: itself and what it was linked with.
    let mut path = [0u8; 4096];
    let length = loader::find_containing(caller, |loaded| {
        let name = loaded.name();
        let length = name.len().min(path.len() - 1);
        path[..length].copy_from_slice(&name[..length]);
        length
    });
    if length.is_some_and(|length| length > 0) {
        let found = in_scope_of(&path, name);
        if acceptable(found) {
            return found;
        }
    }
    // 2. The global scope after us, where the main program's libraries are.
    // SAFETY: RTLD_NEXT needs no handle.
    let found = unsafe { dlsym(libc::RTLD_NEXT, name) };
    if acceptable(found) {
        return found;
    }
    // 3. Any libcudart there is.
    let length = loader::find_loaded(|loaded| {
        loaded.file_name().starts_with(b"libcudart").then(|| {
            let name = loaded.name();
            let length = name.len().min(path.len() - 1);
            path[..length].copy_from_slice(&name[..length]);
            path[length] = 0;
        })
    });
    let found = if length.is_some() {
        in_scope_of(&path, name)
    } else {
        std::ptr::null_mut()
    };
    if acceptable(found) { found } else { std::ptr::null_mut() }
}

/// Looks a name up as `dlsym` would with a handle of the loaded library at `path` (a C string in a buffer).
fn in_scope_of(path: &[u8], name: &CStr) -> *mut c_void {
    let Ok(path) = CStr::from_bytes_until_nul(path) else {
        return std::ptr::null_mut();
    };
    // SAFETY: a C string; RTLD_NOLOAD opens only what is there.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return handle;
    }
    // SAFETY: an open handle, closed once; the library stays loaded for whoever loaded it.
    unsafe {
        let found = dlsym(handle, name);
        dlclose(handle);
        found
    }
}
