//! The functions behind our hooks.
//!
//! Three questions are answered here. Where is libc's own `dlsym`? (Found without `dlsym`, since that name is ours.)
//! Which exported driver function has which address? (So that an address the driver hands out can be recognised, whatever
//! name and version it was asked for by.) And which function does a call go on to?
//!
//! - A call of our exported function goes on to the **next definition** after ours in the caller's search order: another
//!   interposer's, or the real library's ([`next`], [`crate::resolve::search`]).
//! - A call through a pointer that we handed out in place of the driver's goes on to the driver's own function
//!   ([`driver`]), or to the interposer's for which it was handed out ([`other`]).
//!
//! No call of a hook asks the loader anything that takes the lock under which constructors run.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering::*};

use crate::resolve::loader::{self, Loaded};
use crate::resolve::memo::Memo;
use crate::resolve::search::{self, Found};
use crate::stacks;
use culeak::cuda_functions::{Api, DRIVER_NAMES, RUNTIME_NAMES};
use culeak::lockfree::index::mix;

/// libc's (or the next preload's) `dlsym`; the naked entry jumps through it.
pub static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
pub static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Counts calls of dlclose that unloaded something; what was cached by address before is void.
pub static GENERATION: AtomicU64 = AtomicU64::new(1);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlclose = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// Finds libc's functions. Cheap when done. Our constructor calls it, or a hook that another library's constructor
/// enters before.
#[inline]
pub fn ensure() {
    if DLSYM.load(Relaxed).is_null() {
        find_libc();
    }
}

#[cold]
fn find_libc() {
    loader::prepare();
    // dlvsym and dlclose first: a thread that sees DLSYM set may use them all.
    for (name, slot) in [(c"dlvsym", &DLVSYM), (c"dlclose", &DLCLOSE), (c"dlsym", &DLSYM)] {
        if let Some(address) = loader::libc_symbol(name) {
            slot.store(address.cast_mut(), Release);
        }
    }
    // Another preload behind us may define them as well: it comes before libc.
    for (name, slot) in [(c"dlclose", &DLCLOSE), (c"dlsym", &DLSYM)] {
        // SAFETY: libc's dlsym, asked from our own code, so RTLD_NEXT means "after us".
        let next = unsafe { dlsym(libc::RTLD_NEXT, name) };
        if !next.is_null() {
            slot.store(next, Release);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// Asks the loader while nothing else runs, so that no hook has to.
extern "C" fn at_start() {
    ensure();
    search::look_for_other_copies();
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

/// Whether look-ups go on to a `dlsym` that another tool exports.
pub fn dlsym_is_another_tools() -> bool {
    ensure();
    loader::libc_symbol(c"dlsym").is_some_and(|own| own != DLSYM.load(Acquire).cast_const())
}

/// Whether an address is neither ours nor the driver's, and some object's.
pub fn is_another_tools(found: *mut c_void) -> bool {
    let address = found as u64;
    let is_driver = driver_is_loaded() && is_in_driver(address);
    !found.is_null() && !is_ours(address) && !is_driver
}

/// Whether this is the function that our `dlclose` stands before.
pub fn is_dlclose(address: *mut c_void) -> bool {
    ensure();
    address == DLCLOSE.load(Acquire)
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

/// The driver's own addresses by row number, and back: an open-addressing table, filled once.
struct Driver {
    ready: AtomicBool,
    addresses: [AtomicPtr<c_void>; DRIVER],
    queries: [AtomicPtr<c_void>; QUERIES.len()],
    slots: [(AtomicUsize, AtomicU16); SLOTS],
    /// Lowest and one past the highest address of the driver's library.
    bounds: [AtomicU64; 2],
}

static DRIVER_TABLE: Driver = Driver {
    ready: AtomicBool::new(false),
    addresses: [const { AtomicPtr::new(std::ptr::null_mut()) }; DRIVER],
    queries: [const { AtomicPtr::new(std::ptr::null_mut()) }; QUERIES.len()],
    slots: [const { (AtomicUsize::new(0), AtomicU16::new(0)) }; SLOTS],
    bounds: [AtomicU64::new(0), AtomicU64::new(0)],
};

/// Copies a name from the list into a C string on the stack.
fn with_c_name<R>(name: &str, then: impl FnOnce(&CStr) -> R) -> Option<R> {
    let mut buffer = [0u8; 64];
    buffer.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    CStr::from_bytes_until_nul(&buffer).ok().map(then)
}

/// Whether the process has a CUDA driver loaded.
pub fn driver_is_loaded() -> bool {
    DRIVER_TABLE.ready.load(Acquire) || fill_driver()
}

/// Reads the driver's exports out of its own tables: what another interposer would answer is not asked.
#[cold]
fn fill_driver() -> bool {
    if loader::list_is_unsafe() {
        return false;
    }
    let by_name = loader::find_loaded(|loaded| {
        let is_driver = loaded.file_name().starts_with(b"libcuda.so") && loaded.symbol(c"cuInit").is_some();
        is_driver.then(|| fill_from(loaded))
    });
    // A driver under another name is what the program was linked with.
    let found = by_name.or_else(|| {
        let init = search::with_objects(0, |objects| objects.global_behind_us(c"cuInit")).flatten()?;
        loader::find_loaded(|loaded| loaded.contains(init.address as u64).then(|| fill_from(loaded)))
    });
    found.unwrap_or(false)
}

fn fill_from(driver: &Loaded) -> bool {
    let export = |name: &CStr| {
        driver
            .symbol(name)
            .map_or(std::ptr::null_mut(), |found| found.cast_mut())
    };
    for (row, name) in DRIVER_NAMES.iter().enumerate() {
        let address = with_c_name(name, export).unwrap_or(std::ptr::null_mut());
        if address.is_null() {
            continue;
        }
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
        DRIVER_TABLE.queries[query].store(export(name), Relaxed);
    }
    let (start, end) = driver.bounds();
    DRIVER_TABLE.bounds[0].store(start, Relaxed);
    DRIVER_TABLE.bounds[1].store(end, Relaxed);
    // Release: pairs with the Acquire in the readers below.
    DRIVER_TABLE.ready.store(true, Release);
    true
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

/// The driver's own function behind a query; null when this driver has none, and until the program has called or looked
/// up a driver's function: a library that is in the loader's list may not be relocated yet.
pub fn query(query: Query) -> *mut c_void {
    if DRIVER_TABLE.ready.load(Acquire) {
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
pub fn here() -> u64 {
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

/// Whether an address lies in the driver's library.
pub fn is_in_driver(address: u64) -> bool {
    let [start, end] = &DRIVER_TABLE.bounds;
    DRIVER_TABLE.ready.load(Acquire) && (start.load(Relaxed)..end.load(Relaxed)).contains(&address)
}

/// The row whose exported function another library defines at `address`, if it defines any there: an interposer's.
pub fn row_of_interposer(address: *mut c_void) -> Option<Api> {
    if loader::list_is_unsafe() || is_in_driver(address as u64) || is_ours(address as u64) {
        return None;
    }
    loader::find_loaded(|loaded| {
        loaded.contains(address as u64).then(|| {
            DRIVER_NAMES.iter().enumerate().find_map(|(row, name)| {
                let found = with_c_name(name, |name| loaded.symbol(name)).flatten();
                (found == Some(address.cast_const())).then_some(Api(row as u16))
            })
        })
    })
    .flatten()
}

/// Functions of other interposers for which a hook was handed out, one for each row.
static OTHER: [AtomicPtr<c_void>; DRIVER] = [const { AtomicPtr::new(std::ptr::null_mut()) }; DRIVER];

/// The interposer's function behind the hook that was handed out for it.
pub fn other(api: Api) -> *mut c_void {
    OTHER[api.0 as usize].load(Acquire)
}

/// Makes `address` the function behind the hook that is handed out for other interposers' functions; false if it is
/// another one's already.
pub fn adopt(api: Api, address: *mut c_void) -> bool {
    match OTHER[api.0 as usize].compare_exchange(std::ptr::null_mut(), address, AcqRel, Acquire) {
        Ok(_) => true,
        Err(known) => known == address,
    }
}

const CUDA: usize = DRIVER_NAMES.len() + RUNTIME_NAMES.len();
/// The next definition in what was loaded at start-up: the same for all callers, and never unloaded.
static GLOBAL: [AtomicPtr<c_void>; CUDA] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CUDA];
/// An answer for each function. In a forked child, where CUDA does not work and the loader's locks may never be released, it
/// serves every caller.
static LAST: [AtomicPtr<c_void>; CUDA] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CUDA];
/// Not 0 for the driver's functions whose next definition is, for all callers, the driver's own. Read by the entries.
pub static IS_DRIVERS_OWN: [AtomicU8; DRIVER] = [const { AtomicU8::new(0) }; DRIVER];

/// Answers by the address of the call, and by the module that contains it: a program may call from any number of places,
/// but from few modules.
static BY_CALL: Memo<512> = Memo::new();
static BY_MODULE: Memo<512> = Memo::new();

/// To be called when something was unloaded.
pub fn generation_changed() {
    GENERATION.fetch_add(1, AcqRel);
    BY_CALL.clear();
    BY_MODULE.clear();
    crate::frameworks::pytorch::generation_changed();
}

/// The function that the code at `caller` would reach by this row's name without us; null where there is none.
#[inline]
pub fn next(api: Api, caller: u64) -> *mut c_void {
    let global = GLOBAL[api.0 as usize].load(Relaxed);
    if global.is_null() {
        next_by_caller(api, caller)
    } else {
        global
    }
}

#[inline(never)]
fn next_by_caller(api: Api, caller: u64) -> *mut c_void {
    let generation = GENERATION.load(Acquire);
    let key_of = |place: u64| mix(mix(place).wrapping_add(generation) ^ u64::from(api.0) << 48).max(1);
    let by_call = key_of(caller);
    // While something is being unloaded, another module may lie where the caller of an answer did.
    let closing = stacks::are_closing();
    if !closing && let Some(known) = BY_CALL.get(by_call) {
        return known as *mut c_void;
    }
    if loader::list_is_unsafe() {
        let last = LAST[api.0 as usize].load(Relaxed);
        return if last.is_null() && api.is_driver() {
            driver(api)
        } else {
            last
        };
    }
    if fill_global() {
        return next(api, caller);
    }
    let module = loader::find_containing(caller, |loaded| loaded.bias()).unwrap_or(0);
    // The bias alone may be 0, as that of a program at a fixed address is.
    let by_module = key_of(module.wrapping_add(1));
    let known = BY_MODULE.get(by_module).filter(|_| !closing);
    let found = known.map(|known| known as *mut c_void).or_else(|| {
        let kind: &[u8] = if api.is_driver() { b"libcuda.so" } else { b"libcudart" };
        let found: Found = with_c_name(api.name(), |name| search::next(name, caller, kind)).flatten()?;
        BY_MODULE.put(by_module, found.address as u64);
        keep_for_children(api, found.address);
        Some(found.address)
    });
    let Some(found) = found else {
        return std::ptr::null_mut();
    };
    BY_CALL.put(by_call, found as u64);
    found
}

/// Keeps a function, and those beside it in its library: a child may call one that the parent never did.
#[cold]
fn keep_for_children(api: Api, address: *mut c_void) {
    LAST[api.0 as usize].store(address, Relaxed);
    if api.is_driver() {
        return;
    }
    loader::find_loaded(|loaded| {
        loaded.contains(address as u64).then(|| {
            for (row, name) in RUNTIME_NAMES.iter().enumerate() {
                if let Some(found) = with_c_name(name, |name| loaded.symbol(name)).flatten() {
                    // Where there is an answer, it stays.
                    let _ =
                        LAST[DRIVER + row].compare_exchange(std::ptr::null_mut(), found.cast_mut(), Relaxed, Relaxed);
                }
            }
        })
    });
}

/// Looks for the next definitions in what was loaded at start-up, all at once, so that children forked later have them
/// too; false if that was done before.
#[cold]
fn fill_global() -> bool {
    static FILLED: AtomicBool = AtomicBool::new(false);
    if FILLED.swap(true, Relaxed) {
        return false;
    }
    search::with_objects(0, |objects| {
        for row in 0..CUDA {
            let api = Api(row as u16);
            let found = with_c_name(api.name(), |name| objects.global_behind_us(name)).flatten();
            let Some(found) = found.filter(|found| found.is_global) else {
                continue;
            };
            GLOBAL[row].store(found.address, Relaxed);
            if api.is_driver() && found.address == driver(api) {
                IS_DRIVERS_OWN[row].store(1, Relaxed);
            }
        }
    });
    true
}

/// Keeps a library loaded for the life of the process, if it is loaded and could go. For our own `dlclose` alone, where
/// the program is in the loader anyway: what was read out of the library before stays true.
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
        // SAFETY: a C string; RTLD_NOLOAD opens only what is there. The handle is never closed.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

/// Keeps the driver loaded from now on: its addresses are kept here.
pub fn pin_driver() {
    static PINNED: AtomicBool = AtomicBool::new(false);
    if DRIVER_TABLE.ready.load(Acquire) && !PINNED.swap(true, Relaxed) {
        pin(DRIVER_TABLE.bounds[0].load(Relaxed));
    }
}
