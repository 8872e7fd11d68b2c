//! The driver library: the address of each of its functions, which function an address is, and the few functions that
//! culeak calls itself.
//!
//! The driver's exports are read once from its own ELF tables, so no other interposer can answer in its place. A
//! pointer that the driver returns is recognised by its address, under whatever name and version the program asked for
//! it.

use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering::*};

use crate::resolve::loader::{self, LinkMap, Loaded, Name};
use crate::resolve::{dl, next, search};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUgraph, CUgraphNode, CUmemoryPool, CUstream, CUuuid};
use culeak::cuda_functions::{Api, DRIVER_NAMES};
use culeak::lockfree::index::mix;
use culeak::system::cold_path;

pub const ROWS: usize = DRIVER_NAMES.len();
const SLOTS: usize = 512;
const _: () = assert!(ROWS * 2 < SLOTS);

/// What a call of a driver function reads.
#[repr(C)]
pub struct Row {
    address: AtomicPtr<c_void>,
    /// Not 0: the next definition is the driver's own for all callers. Written by [`next`].
    pub is_drivers_own: AtomicU8,
}

impl Row {
    /// The offset of `is_drivers_own` of a row in [`DRIVER_ROWS`], for the assembly entries.
    #[cfg(target_arch = "x86_64")]
    pub const fn own_offset(api: Api) -> usize {
        api.0 as usize * size_of::<Row>() + std::mem::offset_of!(Row, is_drivers_own)
    }
}

/// By row number.
pub static DRIVER_ROWS: [Row; ROWS] = [const {
    Row {
        address: AtomicPtr::new(std::ptr::null_mut()),
        is_drivers_own: AtomicU8::new(0),
    }
}; ROWS];

/// The driver's row numbers by address: an open-addressing table, filled once. Every allocation reads the first query.
#[repr(C, align(64))]
struct Driver {
    ready: AtomicBool,
    queries: [AtomicPtr<c_void>; QUERIES.len()],
    slots: [(AtomicUsize, AtomicU16); SLOTS],
    /// Lowest and one past the highest address of the driver library. The lowest is set first: the others are of that copy of the
    /// driver, and never change again.
    bounds: [AtomicU64; 2],
}

static DRIVER_TABLE: Driver = Driver {
    ready: AtomicBool::new(false),
    queries: [const { AtomicPtr::new(std::ptr::null_mut()) }; QUERIES.len()],
    slots: [const { (AtomicUsize::new(0), AtomicU16::new(0)) }; SLOTS],
    bounds: [AtomicU64::new(0), AtomicU64::new(0)],
};

/// Calls `then` with a name of the function list as a C string. `None` if the name is longer than 63 bytes.
pub fn with_c_name<R>(name: &str, then: impl FnOnce(&CStr) -> R) -> Option<R> {
    let mut buffer = [0u8; 64];
    buffer.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    CStr::from_bytes_until_nul(&buffer).ok().map(then)
}

/// Whether the process has a CUDA driver loaded.
#[inline]
pub fn is_loaded() -> bool {
    DRIVER_TABLE.ready.load(Acquire) || fill()
}

/// The driver's own libraries may use it before the program does.
static IS_LOOKED_UP: AtomicBool = AtomicBool::new(false);

/// A library that gets the driver's own functions looks one up.
pub fn looked_up() {
    IS_LOOKED_UP.store(true, Relaxed);
}

/// Whether the process has called or looked up a function of the driver. Before that, the driver does nothing.
pub fn is_used() -> bool {
    // Acquire: pairs with the Release in `fill_from`.
    DRIVER_TABLE.ready.load(Acquire) || IS_LOOKED_UP.load(Relaxed)
}

/// Reads the driver's exports from its own tables. False if no driver is loaded.
#[cold]
fn fill() -> bool {
    if loader::list_is_unsafe() {
        return false;
    }
    let by_name = loader::find_loaded(|loaded| {
        let is_driver = loaded.file_name().starts_with(b"libcuda.so") && loaded.symbol(c"cuInit").is_some();
        is_driver.then(|| fill_from(loaded))
    });
    // A driver under another name: the one that the program was linked with.
    let found = by_name.or_else(|| {
        let init = search::with_objects(0, |objects| objects.global_behind_us(c"cuInit")).flatten()?;
        loader::find_loaded(|loaded| loaded.contains(init.address as u64).then(|| fill_from(loaded)))
    });
    found.unwrap_or(false)
}

/// Takes a library as the driver, if it is one and none is known: it may be in another namespace of the loader, where [`fill`] does
/// not see it. Nothing else may have been called in it yet. The loader is binding, so it cannot be asked to keep the library here: see
/// [`pin`].
pub fn look_at(library: &LinkMap) {
    IS_AUDITED.store(true, Relaxed);
    // SAFETY: the audit library passes an object that is being bound to, so it is loaded.
    let is_driver = unsafe { library.file_name() }.starts_with(b"libcuda.so");
    // The bias of a library is the address of its first page; only that of a program at a fixed address is 0.
    if !is_driver || library.bias == 0 || is_loaded() {
        return;
    }
    // SAFETY: as above.
    if let Some(info) = unsafe { library.info(library.bias) } {
        // SAFETY: as above.
        fill_from(&unsafe { Loaded::new(&info) });
    }
}

/// Whether bindings in other namespaces are known.
static IS_AUDITED: AtomicBool = AtomicBool::new(false);

/// Forgets further copies of the driver that were unloaded with their namespaces. The first is one that [`pin`] keeps.
pub fn unloaded() {
    if IS_AUDITED.load(Relaxed) {
        next::forget_unloaded();
    }
}

/// False if another copy of the driver is known, or is just being read on another thread.
fn fill_from(driver: &Loaded) -> bool {
    let (start, end) = driver.bounds();
    let owner = &DRIVER_TABLE.bounds[0];
    if owner
        .compare_exchange(0, start, Relaxed, Relaxed)
        .is_err_and(|known| known != start)
    {
        return false;
    }
    DRIVER_TABLE.bounds[1].store(end, Relaxed);
    let export = |name: &CStr| {
        driver
            .symbol(name)
            .map_or(std::ptr::null_mut(), |found| found.cast_mut())
    };
    for (query, name) in QUERIES.iter().enumerate() {
        DRIVER_TABLE.queries[query].store(export(name), Relaxed);
    }
    for (row, name) in DRIVER_NAMES.iter().enumerate() {
        let address = with_c_name(name, export).unwrap_or(std::ptr::null_mut());
        if address.is_null() {
            continue;
        }
        // Release: pairs with the Acquire in `function`.
        DRIVER_ROWS[row].address.store(address, Release);
        let mut slot = mix(address as u64) as usize;
        loop {
            let (key, value) = &DRIVER_TABLE.slots[slot % SLOTS];
            // Several threads may read the same driver at once: they store the same values in the same slots.
            if key.load(Relaxed) == 0 || key.load(Relaxed) == address as usize {
                value.store(row as u16, Relaxed);
                key.store(address as usize, Release);
                break;
            }
            slot += 1;
        }
    }
    // Release: pairs with the Acquire loads of `ready` in this file, so that the addresses are visible.
    DRIVER_TABLE.ready.store(true, Release);
    true
}

/// The driver's function of a row; null if this driver lacks it.
#[inline]
pub fn function(api: Api) -> *mut c_void {
    // Acquire: pairs with the Release in `fill_from`, so that the queries are known too.
    let address = || DRIVER_ROWS[api.0 as usize].address.load(Acquire);
    let known = address();
    if known.is_null() && is_loaded() {
        cold_path();
        return address();
    }
    known
}

/// The row of the driver function at an address that the driver returned.
pub fn row_of(address: *mut c_void) -> Option<Api> {
    if !is_loaded() {
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

/// Whether an address is in the driver library.
pub fn contains(address: u64) -> bool {
    let [start, end] = &DRIVER_TABLE.bounds;
    DRIVER_TABLE.ready.load(Acquire) && (start.load(Relaxed)..end.load(Relaxed)).contains(&address)
}

/// Whether a copy of the driver has been initialized whose calls no hook sees: any, in a process that called no function of it through a
/// hook (`is_recorded` is false), and those in namespaces of `dlmopen`, unless an audit library reports their bindings. Only when the
/// process exits: a library that is just being loaded is not relocated yet. Asks the loader alone, since every process asks that
/// uses no CUDA.
pub fn is_initialized_unseen(is_recorded: bool) -> bool {
    const FUNCTION: &CStr = c"cuCtxGetCurrent";
    let is_driver = |name: &[u8]| name.starts_with(b"libcuda.so");
    let usual =
        || loader::find_loaded(|loaded| is_driver(loaded.file_name()).then(|| loaded.symbol(FUNCTION)).flatten());
    let elsewhere = || {
        let name = Name::new(FUNCTION);
        loader::find_in_namespaces(|loaded| {
            // SAFETY: an object of the loader's lists is loaded.
            unsafe { is_driver(loaded.file_name()).then(|| loaded.symbol(name)).flatten() }
        })
    };
    let is_initialized = |function: *const c_void| {
        const NOT_INITIALIZED: c_int = 3;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver's function of this name has this signature, as in `queries`, and the pointer is valid for one context.
        let function: unsafe extern "C" fn(*mut CUcontext) -> c_int = unsafe { std::mem::transmute(function) };
        // SAFETY: as above.
        unsafe { function(&raw mut context) != NOT_INITIALIZED }
    };
    !is_recorded && usual().is_some_and(is_initialized)
        || !IS_AUDITED.load(Relaxed) && elsewhere().is_some_and(is_initialized)
}

/// Keeps the driver loaded from now on, because its addresses are cached here.
pub fn pin() {
    static PINNED: AtomicBool = AtomicBool::new(false);
    if DRIVER_TABLE.ready.load(Acquire) && !PINNED.swap(true, Relaxed) {
        dl::pin(DRIVER_TABLE.bounds[0].load(Relaxed));
    }
}

/// Calls of the driver that culeak makes itself. Each row becomes a function of its name, with the signature that
/// cudarc's binding has (`none`: cudarc has no binding of it for this CUDA version). It returns [`ABSENT`] if the
/// driver lacks the function.
macro_rules! queries {
    ($( $name:ident = $binding:ident ($($argument:ident : $type:ty),*); )*) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Query { $($name),* }

        const QUERIES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        ),*];

        $(
            /// # Safety
            /// As the driver function of this name.
            #[allow(non_snake_case)]
            #[inline]
            pub unsafe fn $name($($argument: $type),*) -> c_int {
                let function = query(Query::$name);
                if function.is_null() {
                    return ABSENT;
                }
                // SAFETY: the driver's function of this name, with the signature of its row; the caller vouches for the
                // arguments.
                unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(function)($($argument),*) }
            }
        )*

        /// The rows against cudarc's bindings. Never called: compiling it is the check.
        #[allow(dead_code, non_snake_case)]
        mod signatures {
            use super::*;
            $( check!($name $binding ($($type),*)); )*
        }
    };
}
macro_rules! check {
    ($name:ident none $types:tt) => {};
    ($name:ident $binding:ident ($($type:ty),*)) => {
        fn $name() {
            let _: unsafe fn($($type),*) -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$binding;
        }
    };
}

/// The result of a query whose function the driver lacks.
pub const ABSENT: c_int = -1;

queries! {
    cuCtxGetCurrent = cuCtxGetCurrent (context: *mut CUcontext);
    cuCtxGetDevice = cuCtxGetDevice (device: *mut CUdevice);
    cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool (pool: *mut CUmemoryPool, device: CUdevice);
    // The binding of the newer version has the same signature.
    cuDeviceGetUuid = cuDeviceGetUuid_v2 (uuid: *mut CUuuid, device: CUdevice);
    cuDeviceGetUuid_v2 = cuDeviceGetUuid_v2 (uuid: *mut CUuuid, device: CUdevice);
    cuDeviceGetName = cuDeviceGetName (name: *mut c_char, length: c_int, device: CUdevice);
    cuDevicePrimaryCtxGetState = cuDevicePrimaryCtxGetState (device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    // Without an array it writes the number of nodes.
    cuGraphGetNodes = cuGraphGetNodes (graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuMemGetAddressRange_v2 = cuMemGetAddressRange_v2 (base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
    // The status is an enum: newer drivers may write values that the binding lacks.
    cuStreamGetCaptureInfo_v2 = none (stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
    cuStreamGetCaptureInfo_v2_ptsz = none (stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
}

/// The driver's function behind a query. Null if this driver lacks it, and until the program has called or looked up a
/// driver function: [`fill_from`] stores it, and a library in the loader's list may not be relocated yet.
#[inline]
fn query(query: Query) -> *mut c_void {
    DRIVER_TABLE.queries[query as usize].load(Relaxed)
}
