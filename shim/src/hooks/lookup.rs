//! Look-ups of functions: `dlsym`, `dlvsym` and the driver's `cuGetProcAddress` return hooks. `dlclose` is hooked here
//! too.
//!
//! The result of `dlsym` depends on its caller's address (RTLD_NEXT, RTLD_DEFAULT), so the entry preserves the caller:
//! it saves the arguments, asks [`decide`], and either returns the decision or jumps to the real function with the
//! stack as it was. `dlopen` is never hooked: the RUNPATH of its caller is searched, and a wrapper would be that
//! caller.
//!
//! Which hook to return is decided by the address that the real look-up returned, never by a table of versions. If that
//! address is another interposer's function, the caller gets a hook that goes on to it.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

use crate::frameworks::{pytorch, xla};
use crate::resolve::loader::LinkMap;
use crate::resolve::own::is_ours;
use crate::resolve::{dl, driver, loader, next, search};
use crate::{hooks, recorder, stacks};
use culeak::cuda_functions::Api;

/// A decision: call the real function.
const PASS: usize = 0;
/// A decision: return NULL (the real function has failed and set `dlerror`).
const NOTHING: usize = 1;

#[cfg(target_arch = "x86_64")]
macro_rules! resolver_entry {
    ($name:ident, $decide:path, $real:path) => {
        /// The exported entry; see the module's documentation.
        ///
        /// # Safety
        /// As the libc function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "endbr64",
                // At entry the stack is 8 bytes off a multiple of 16; three pushes align it for the call.
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rcx, [rsp + 24]",
                "call {decide}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "cmp rax, 1",
                "ja 2f",
                "je 3f",
                "jmp qword ptr [rip + {real}]",
                "3:",
                "xor eax, eax",
                "2:",
                "ret",
                decide = sym $decide,
                real = sym $real,
            )
        }
    };
}

// Run in an emulator only (tests/aarch64/).
#[cfg(target_arch = "aarch64")]
macro_rules! resolver_entry {
    ($name:ident, $decide:path, $real:path) => {
        /// The exported entry; see the module's documentation.
        ///
        /// # Safety
        /// As the libc function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(include_str!("aarch64/resolver.s"), decide = sym $decide, real = sym $real)
        }
    };
}

resolver_entry!(dlsym, decide, dl::DLSYM);
resolver_entry!(dlvsym, decide_version, dl::DLVSYM);

/// Decides `dlsym(handle, name)`: [`PASS`], [`NOTHING`], or the address to return.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char, _: *const c_char, caller: u64) -> usize {
    dl::ensure();
    // SAFETY: the arguments of `dlsym`.
    unsafe { answer(handle, name, caller, |name| dl::dlsym(handle, name)) }
}

/// Decides `dlvsym(handle, name, version)`.
unsafe extern "C" fn decide_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: u64,
) -> usize {
    dl::ensure();
    // SAFETY: the arguments of `dlvsym`.
    unsafe {
        // Preloads find libc's `dlsym` this way: our export has no version, so the look-up skips it. A preload before
        // this library gets our `dlsym`, or its look-ups would bypass the hooks. One after it must get libc's, or the
        // two would call each other.
        if handle == libc::RTLD_NEXT && !name.is_null() && CStr::from_ptr(name) == c"dlsym" && precedes_us(caller) {
            return dlsym as *const () as usize;
        }
        answer(handle, name, caller, |name| dl::dlvsym(handle, name, version))
    }
}

/// Whether the code at `caller` belongs to a preload before this library. The main program does not count.
fn precedes_us(caller: u64) -> bool {
    let mut position = 0;
    loader::find_loaded(|loaded| {
        position += 1;
        if loaded.contains(caller) {
            Some(position > 1)
        } else {
            loaded.contains(decide as *const () as u64).then_some(false)
        }
    })
    .unwrap_or(false)
}

/// # Safety
/// `name` is null or a C string, `handle` one of the loader's, and `look_up` asks the real function.
unsafe fn answer(
    handle: *mut c_void,
    name: *const c_char,
    caller: u64,
    look_up: impl FnOnce(&CStr) -> *mut c_void,
) -> usize {
    if name.is_null() {
        return PASS;
    }
    // SAFETY: a C string; only bytes up to its end are read.
    let name = unsafe {
        match *name as u8 {
            b'c' if *name.add(1) as u8 == b'u' => CStr::from_ptr(name),
            b'd' if CStr::from_ptr(name) == c"dlclose" => c"dlclose",
            b'G' if CStr::from_ptr(name) == c"GetPjrtApi" => c"GetPjrtApi",
            _ => return PASS,
        }
    };
    // Other names return above: an interposer of `dl_iterate_phdr` looks up the next definition with `dlsym`, and what
    // follows calls `dl_iterate_phdr`.
    if search::is_second_copy() {
        return PASS;
    }
    match name.to_bytes() {
        b"dlclose" => return closing(handle, caller, || look_up(name)),
        b"GetPjrtApi" => return plugin(handle, caller, || look_up(name)),
        _ => {}
    }
    let Some(api) = Api::find(name.to_bytes()).filter(|api| api.is_cuda()) else {
        return PASS;
    };
    if caller_is_excluded(caller) {
        driver::looked_up();
        return PASS;
    }
    // The result of these two depends on the caller, so the real function must be called by it. It would find our
    // export even if there is no other definition, and programs detect CUDA this way.
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        if handle == libc::RTLD_DEFAULT && api.is_driver() && dl::dlsym_is_another_tools() {
            // The function that this tool returns may not be exported, so no call of it would reach our export.
            let found = look_up(name);
            if is_another_tools(found) {
                return substitute(found, Some(api)) as usize;
            }
        }
        let exists = if handle == libc::RTLD_NEXT {
            exists_after(name, caller)
        } else {
            exists_for(name, caller)
        };
        return if exists { PASS } else { NOTHING };
    }
    let found = look_up(name);
    if found.is_null() {
        NOTHING
    } else if is_ours(found as u64) {
        // The handle of the main program, whose scope includes this library.
        if exists_for(name, 0) { found as usize } else { NOTHING }
    } else if api.is_driver() {
        substitute(found, Some(api)) as usize
    } else {
        // A runtime function of a particular library is returned as it is: its hook goes on by the caller's address,
        // not by this handle.
        found as usize
    }
}

/// `dlclose`, looked up by handle: the hook must see every unload.
fn closing(handle: *mut c_void, caller: u64, look_up: impl FnOnce() -> *mut c_void) -> usize {
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT || is_ours(caller) {
        return PASS;
    }
    let found = look_up();
    match found {
        _ if found.is_null() => NOTHING,
        _ if dl::is_dlclose(found) => dlclose as *const () as usize,
        _ => found as usize,
    }
}

/// Whether an address is outside this library and the driver.
fn is_another_tools(found: *mut c_void) -> bool {
    let address = found as u64;
    let is_driver = driver::is_loaded() && driver::contains(address);
    !found.is_null() && !is_ours(address) && !is_driver
}

/// `GetPjrtApi` of a plugin for XLA.
fn plugin(handle: *mut c_void, caller: u64, look_up: impl FnOnce() -> *mut c_void) -> usize {
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT || caller_is_excluded(caller) {
        return PASS;
    }
    let found = look_up();
    if found.is_null() {
        NOTHING
    } else {
        xla::substitute(found) as usize
    }
}

/// Whether `dlsym(RTLD_DEFAULT)` called at `caller` would find the name without this library. If not, `dlerror` is set.
fn exists_for(name: &CStr, caller: u64) -> bool {
    search::with_objects(caller, |objects| {
        objects.is_global_before_us(name, false) || objects.in_scope_of_caller(name).is_some()
    })
    .unwrap_or(false)
        || exists_behind_us(name)
}

/// Whether `dlsym(RTLD_NEXT)` would. If not, `dlerror` is set.
fn exists_after(name: &CStr, caller: u64) -> bool {
    let known = search::with_objects(caller, |objects| {
        // A caller after this library does not find our export.
        !objects.caller_is_before_us() || objects.is_global_before_us(name, true)
    });
    known.unwrap_or(true) || exists_behind_us(name)
}

/// Whether the global scope after this library defines it. The program is inside the loader already, so its lock may be
/// taken.
fn exists_behind_us(name: &CStr) -> bool {
    // SAFETY: called by this library, so RTLD_NEXT means "after this library".
    let found = unsafe { dl::dlsym(libc::RTLD_NEXT, name) };
    // Another tool's `dlsym` may have answered without its own definitions.
    !found.is_null() || search::with_objects(0, |objects| objects.global_behind_us(name).is_some()) == Some(true)
}

/// What to return in place of what a look-up found: the hook of a driver function, the hook of another interposer's
/// function, or the address itself. `api` is the row of the name, if the caller's name identifies it.
fn substitute(found: *mut c_void, api: Option<Api>) -> *mut c_void {
    if search::is_second_copy() {
        return found;
    }
    if let Some(api) = driver::row_of(found) {
        return hooks::driver_hook(api).cast_mut();
    }
    if driver::contains(found as u64) || is_ours(found as u64) {
        return found;
    }
    match api.or_else(|| next::row_of_interposer(found)) {
        Some(api) if next::adopt(api, found) => hooks::other_hook(api).cast_mut(),
        _ => found,
    }
}

/// Libraries that must get the real functions: the driver looks itself up, profilers must not see this library's calls,
/// and UCX would patch this library's code instead of the driver's.
fn caller_is_excluded(caller: u64) -> bool {
    const EXCLUDED: [&[u8]; 4] = [b"libcuda.so", b"libnvidia", b"libcupti", b"libucm"];
    is_ours(caller)
        || loader::find_containing(caller, |loaded| {
            EXCLUDED.iter().any(|excluded| loaded.file_name().starts_with(excluded))
        })
        .unwrap_or(false)
}

/// cuGetProcAddress.
///
/// # Safety
/// The arguments of cuGetProcAddress.
pub unsafe fn looks_up(
    _: Api,
    real: impl FnOnce() -> c_int,
    symbol: *const c_char,
    function: *mut *mut c_void,
) -> c_int {
    let result = real();
    if result == 0 {
        // SAFETY: the call succeeded with these arguments.
        recorder::quietly(|| unsafe { looked_up(symbol, function) });
    }
    result
}

/// After `cuGetProcAddress`: replaces the driver's function by its hook, or records the name if it has none.
///
/// # Safety
/// `symbol` and `function` are the arguments of a call that succeeded.
unsafe fn looked_up(symbol: *const c_char, function: *mut *mut c_void) {
    if function.is_null() {
        return;
    }
    // SAFETY: the driver has just written there.
    let found = unsafe { *function };
    if found.is_null() {
        return;
    }
    let ours = substitute(found, None);
    if ours != found {
        // SAFETY: as above.
        unsafe { *function = ours };
    } else if !symbol.is_null() {
        // SAFETY: the driver read it as a C string.
        let name = unsafe { CStr::from_ptr(symbol) };
        if looks_like_an_allocator(name.to_bytes()) {
            recorder::returned_unhooked(name.to_bytes());
        }
    }
}

/// Whether a function may allocate memory, by how CUDA names such functions.
fn looks_like_an_allocator(name: &[u8]) -> bool {
    const WORDS: [&[u8]; 9] = [
        b"Alloc",
        b"MemCreate",
        b"MemMap",
        b"ArrayCreate",
        b"PoolCreate",
        b"ImportExternalMemory",
        b"OpenMemHandle",
        b"HostRegister",
        b"MulticastCreate",
    ];
    const HARMLESS: [&[u8]; 6] = [
        b"AllocationClass",
        b"Granularity",
        b"GetAllocationProperties",
        b"NodeGetParams",
        b"NodeSetParams",
        b"RetainAllocation",
    ];
    let contains = |word: &&[u8]| name.windows(word.len()).any(|window| window == *word);
    WORDS.iter().any(contains) && !HARMLESS.iter().any(contains)
}

/// The audit library reports a binding of `name` to `address` that bypasses this library (`shim/audit`): returns what to bind instead.
///
/// # Safety
/// `name` is a C string, `address` that of a function of this name in the loaded `library`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn culeak_bound(
    name: *const c_char,
    address: *mut c_void,
    library: *const LinkMap,
) -> *mut c_void {
    let decide = || {
        // SAFETY: by the contract of this function.
        let name = unsafe { CStr::from_ptr(name) };
        if is_ours(address as u64) || search::is_second_copy() {
            return address;
        }
        if name == c"dlclose" {
            // SAFETY: by the contract of this function.
            let is_libcs = unsafe { (*library).file_name() }.starts_with(b"libc.so");
            return if is_libcs && dl::leads_past_us(address) {
                dlclose as *const () as *mut c_void
            } else {
                address
            };
        }
        match Api::find(name.to_bytes()).filter(|api| api.is_driver()) {
            Some(api) => {
                // SAFETY: by the contract of this function.
                driver::look_at(unsafe { &*library });
                let bound = substitute(address, Some(api));
                // One more copy of the driver than there are entries for.
                if bound == address && looks_like_an_allocator(name.to_bytes()) {
                    recorder::returned_unhooked(name.to_bytes());
                }
                bound
            }
            None => address,
        }
    };
    recorder::quietly(decide).unwrap_or(address)
}

/// Lets the audit library, if there is one, see [`culeak_bound`]: the loader asks it about this look-up.
pub fn announce_to_audit() {
    if crate::settings::variable(c"LD_AUDIT").is_some() {
        // SAFETY: a pseudo handle of the loader, which must see a call from this library: the result is used after it, so that the
        // call is no jump.
        std::hint::black_box(unsafe { dl::dlsym(libc::RTLD_DEFAULT, c"culeak_bound") });
    }
}

/// `dlclose`. (Unlike that of `dlopen`, its effect does not depend on its caller, so it can be hooked.) Modules that
/// were unloaded end in the recording, and everything that was cached by address is void, since another library may be
/// mapped there.
///
/// # Safety
/// As `dlclose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dlclose(handle: *mut c_void) -> c_int {
    let closing = stacks::Closing::begin();
    // SAFETY: the caller's own handle.
    let result = unsafe { dl::dlclose(handle) };
    if closing.has_unloaded() {
        driver::unloaded();
        stacks::unloaded(recorder::running());
        pytorch::unloaded();
    }
    closing.end();
    result
}
