//! The function that a hook's call goes on to: the **next definition** after this library in the caller's search order,
//! which is another interposer's or the real library's.
//!
//! [`crate::resolve::search`] works the order out; the answers are cached here. No call of a hook makes the loader take
//! the lock under which constructors run.

use libc::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

use crate::resolve::closing::{self, Loaded};
use crate::resolve::driver::{self, DRIVER_ROWS, ROWS, with_c_name};
use crate::resolve::memo::Memo;
use crate::resolve::search::{self, Definition};
use crate::resolve::{loader, own};
use culeak::cuda_functions::{Api, DRIVER_NAMES, RUNTIME_NAMES};

const CUDA: usize = ROWS + RUNTIME_NAMES.len();
/// The next definition among the libraries loaded at start-up: the same for all callers, and never unloaded.
static GLOBAL: [AtomicPtr<c_void>; CUDA] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CUDA];
/// One answer for each function. In a forked child it serves every caller: CUDA does not work there, and the loader's
/// locks may never be released.
static LAST: [AtomicPtr<c_void>; CUDA] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CUDA];

/// Answers by the address of the call, and by the module that contains it: a program calls from many places but from
/// few modules.
static BY_CALL: Memo<512> = Memo::new();
static BY_MODULE: Memo<512> = Memo::new();

/// Voids the cached answers after something was unloaded.
pub fn unloaded() {
    closing::unloaded();
    BY_CALL.clear();
    BY_MODULE.clear();
}

/// The function that the code at `caller` would reach by this row's name without this library; null if there is none.
#[inline]
pub fn definition(api: Api, caller: u64) -> *mut c_void {
    let global = GLOBAL[api.0 as usize].load(Relaxed);
    if global.is_null() {
        by_caller(api, caller)
    } else {
        global
    }
}

#[inline(never)]
fn by_caller(api: Api, caller: u64) -> *mut c_void {
    // While something is being unloaded, another module may be mapped where the caller of a cached answer was.
    let loaded = Loaded::now();
    let key_of = |place: u64| loaded.key(api.0.into(), place);
    let by_call = key_of(caller);
    if let Some(known) = BY_CALL.get(by_call) {
        return known as *mut c_void;
    }
    if loader::list_is_unsafe() {
        let last = LAST[api.0 as usize].load(Relaxed);
        return if last.is_null() && api.is_driver() {
            driver::function(api)
        } else {
            last
        };
    }
    if fill_global() {
        return definition(api, caller);
    }
    let module = loader::find_containing(caller, |loaded| loaded.bias()).unwrap_or(0);
    // + 1, because the bias of a program at a fixed address is 0.
    let by_module = key_of(module.wrapping_add(1));
    let known = BY_MODULE.get(by_module);
    let found = known.map(|known| known as *mut c_void).or_else(|| {
        let kind: &[u8] = if api.is_driver() { b"libcuda.so" } else { b"libcudart" };
        let found: Definition = with_c_name(api.name(), |name| search::next(name, caller, kind)).flatten()?;
        if loaded.is_settled() {
            BY_MODULE.put(by_module, found.address as u64);
        }
        keep_for_children(api, found.address);
        Some(found.address)
    });
    let Some(found) = found else {
        return std::ptr::null_mut();
    };
    if loaded.is_settled() {
        BY_CALL.put(by_call, found as u64);
    }
    found
}

/// Keeps a function for forked children, and the other functions of its library: a child may call one that the parent
/// never called.
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
                    // An existing answer stays.
                    let _ = LAST[ROWS + row].compare_exchange(std::ptr::null_mut(), found.cast_mut(), Relaxed, Relaxed);
                }
            }
        })
    });
}

/// Finds the next definitions among the libraries loaded at start-up, all at once, so that children forked later have
/// them too. False if an earlier call did so.
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
            if api.is_driver() && found.address == driver::function(api) {
                DRIVER_ROWS[row].is_drivers_own.store(1, Relaxed);
            }
        }
    });
    true
}

/// The row of another interposer's function: a library other than the driver defines it at `address` under the row's
/// name.
pub fn row_of_interposer(address: *mut c_void) -> Option<Api> {
    if loader::list_is_unsafe() || driver::contains(address as u64) || own::is_ours(address as u64) {
        return None;
    }
    // In any namespace of the loader.
    loader::find_containing(address as u64, |loaded| {
        DRIVER_NAMES.iter().enumerate().find_map(|(row, name)| {
            let found = with_c_name(name, |name| loaded.symbol(name)).flatten();
            (found == Some(address.cast_const())).then_some(Api(row as u16))
        })
    })
    .flatten()
}

/// Functions of other interposers that a hook was returned for, one for each row.
static INTERPOSED: [AtomicPtr<c_void>; ROWS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ROWS];

/// The interposer's function that the hook [`adopt`]ed.
pub fn interposed(api: Api) -> *mut c_void {
    INTERPOSED[api.0 as usize].load(Acquire)
}

/// Makes `address` the function that the row's hook for other interposers goes on to. False if that hook goes on to
/// another function already.
pub fn adopt(api: Api, address: *mut c_void) -> bool {
    match INTERPOSED[api.0 as usize].compare_exchange(std::ptr::null_mut(), address, AcqRel, Acquire) {
        Ok(_) => true,
        Err(known) => known == address,
    }
}

/// Frees the rows whose function was unloaded, for a function of another namespace.
pub fn forget_unloaded() {
    for row in &INTERPOSED {
        let known = row.load(Acquire);
        if !known.is_null() && loader::find_containing(known as u64, |_| ()).is_none() {
            let _ = row.compare_exchange(known, std::ptr::null_mut(), AcqRel, Relaxed);
        }
    }
}
