//! The ways in: exported symbols, `dlsym`/`dlvsym`, and the driver's `cuGetProcAddress`.
//!
//! `dlsym` gives a meaning to its caller's address (RTLD_NEXT, RTLD_DEFAULT), so our entry keeps the caller: it saves
//! the arguments, asks [`decide`], and either returns what that says or jumps to the real function as if we had never
//! been there. `dlopen` is never hooked: a wrapper would become the caller whose RUNPATH is searched.
//!
//! Which function to hand out is decided by the address the real resolver returned, never by a table of versions. Another
//! interposer's answer stays its own: its callers get a hook that goes on to it.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

use crate::frameworks::xla;
use crate::resolve::{loader, real, search};
use crate::{hooks, recorder, stacks};
use culeak::cuda_functions::Api;

/// `decide` says: the real function has the word.
const PASS: usize = 0;
/// `decide` says: return NULL (the real function was asked and has set `dlerror`).
const NOTHING: usize = 1;

#[cfg(target_arch = "x86_64")]
macro_rules! resolver_entry {
    ($name:ident, $decide:path, $real:path) => {
        /// The exported entry; see the module's first paragraph.
        ///
        /// # Safety
        /// As the libc function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "endbr64",
                // Entered with the stack 8 bytes off a multiple of 16; three pushes align it for the call.
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

// Written from the ABI; CI assembles it, nobody has run it.
#[cfg(target_arch = "aarch64")]
macro_rules! resolver_entry {
    ($name:ident, $decide:path, $real:path) => {
        /// The exported entry; see the module's first paragraph.
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

resolver_entry!(dlsym, decide, real::DLSYM);
resolver_entry!(dlvsym, decide_version, real::DLVSYM);

/// What to do about `dlsym(handle, name)`: [`PASS`], [`NOTHING`], or the address to return.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char, _: *const c_char, caller: u64) -> usize {
    real::ensure();
    // SAFETY: the arguments of `dlsym`.
    unsafe { answer(handle, name, caller, |name| real::dlsym(handle, name)) }
}

/// The same about `dlvsym(handle, name, version)`.
unsafe extern "C" fn decide_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: u64,
) -> usize {
    real::ensure();
    // SAFETY: the arguments of `dlvsym`.
    unsafe {
        // Preloads find libc's `dlsym` this way, since a version leads past ours, which has none. One that stands
        // before us would hide the program from us; one behind us must get libc's, or we would call each other.
        if handle == libc::RTLD_NEXT && !name.is_null() && CStr::from_ptr(name) == c"dlsym" && precedes_us(caller) {
            return dlsym as *const () as usize;
        }
        answer(handle, name, caller, |name| real::dlvsym(handle, name, version))
    }
}

/// Whether the code at `caller` belongs to a preload before us. (The main program comes before all of them, but what it
/// looks up for itself is its own affair.)
fn precedes_us(caller: u64) -> bool {
    let mut place = 0;
    loader::find_loaded(|loaded| {
        place += 1;
        if loaded.contains(caller) {
            Some(place > 1)
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
    // SAFETY: a C string; only bytes up to its end are looked at.
    let name = unsafe {
        match *name as u8 {
            b'c' if *name.add(1) as u8 == b'u' => CStr::from_ptr(name),
            b'd' if CStr::from_ptr(name) == c"dlclose" => c"dlclose",
            b'G' if CStr::from_ptr(name) == c"GetPjrtApi" => c"GetPjrtApi",
            _ => return PASS,
        }
    };
    // Not before: an interposer of `dl_iterate_phdr` looks the next one up with `dlsym`, and what follows calls it.
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
        return PASS;
    }
    // What these two mean depends on the caller, so the real function must see it. It would find our export also where
    // there is no other definition, and programs probe for CUDA that way.
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        if handle == libc::RTLD_DEFAULT && api.is_driver() && real::dlsym_is_another_tools() {
            // What that tool answers with need not be exported, so no call would reach our export.
            let found = look_up(name);
            if real::is_another_tools(found) {
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
    } else if real::is_ours(found as u64) {
        // The handle of the main program, whose scope we are in.
        if exists_for(name, 0) { found as usize } else { NOTHING }
    } else if api.is_driver() {
        substitute(found, Some(api)) as usize
    } else {
        // Runtime functions asked of a particular library stay real: only a call by name says which library is meant.
        found as usize
    }
}

/// `dlclose`, where a program takes it by handle: unloads must not pass us by.
fn closing(handle: *mut c_void, caller: u64, look_up: impl FnOnce() -> *mut c_void) -> usize {
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT || real::is_ours(caller) {
        return PASS;
    }
    let found = look_up();
    match found {
        _ if found.is_null() => NOTHING,
        _ if real::is_dlclose(found) => dlclose as *const () as usize,
        _ => found as usize,
    }
}

/// The interface of a plugin for XLA.
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

/// Whether `dlsym(RTLD_DEFAULT)` would find the name without us, asked from `caller`. If not, `dlerror` says so afterwards.
fn exists_for(name: &CStr, caller: u64) -> bool {
    search::with_objects(caller, |objects| {
        objects.is_global_before_us(name, false) || objects.in_scope_of_caller(name).is_some()
    })
    .unwrap_or(false)
        || exists_behind_us(name)
}

/// The same for `dlsym(RTLD_NEXT)`.
fn exists_after(name: &CStr, caller: u64) -> bool {
    let known = search::with_objects(caller, |objects| {
        // Behind us, our export is not in the way.
        !objects.caller_is_before_us() || objects.is_global_before_us(name, true)
    });
    known.unwrap_or(true) || exists_behind_us(name)
}

/// Whether the global scope behind us defines it. The program is in the loader already: its lock may be taken.
fn exists_behind_us(name: &CStr) -> bool {
    // SAFETY: RTLD_NEXT from our code.
    let found = unsafe { real::dlsym(libc::RTLD_NEXT, name) };
    // Another tool's `dlsym` may have answered, and leaves its own definitions out.
    !found.is_null() || search::with_objects(0, |objects| objects.global_behind_us(name).is_some()) == Some(true)
}

/// What to hand out in place of what a look-up has found: our hook for the driver's function or another interposer's, or
/// the address itself. `api` is the row that was asked for, where the name decides that.
pub fn substitute(found: *mut c_void, api: Option<Api>) -> *mut c_void {
    if search::is_second_copy() {
        return found;
    }
    if let Some(api) = real::recognise(found) {
        return hooks::driver_hook(api).cast_mut();
    }
    if real::is_in_driver(found as u64) || real::is_ours(found as u64) {
        return found;
    }
    match api.or_else(|| real::row_of_interposer(found)) {
        Some(api) if real::adopt(api, found) => hooks::other_hook(api).cast_mut(),
        _ => found,
    }
}

/// NVIDIA's own libraries and other interposers work on the real functions: the driver looks itself up, profilers
/// must not see our traffic, and UCX would patch our code in place of the driver's.
fn caller_is_excluded(caller: u64) -> bool {
    const EXCLUDED: [&[u8]; 4] = [b"libcuda.so", b"libnvidia", b"libcupti", b"libucm"];
    real::is_ours(caller)
        || loader::find_containing(caller, |loaded| {
            EXCLUDED.iter().any(|excluded| loaded.file_name().starts_with(excluded))
        })
        .unwrap_or(false)
}

/// After `cuGetProcAddress`: puts our hook in place of the driver's function, or remembers that we have none.
///
/// # Safety
/// `symbol` and `function` are the arguments of a call that succeeded.
pub unsafe fn looked_up(symbol: *const c_char, function: *mut *mut c_void) {
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
            recorder::handed_out_unhooked(name.to_bytes());
        }
    }
}

/// Names of functions that might hand out memory, going by how CUDA names such functions.
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
    const HARMLESS: [&[u8]; 5] = [
        b"Granularity",
        b"GetAllocationProperties",
        b"NodeGetParams",
        b"NodeSetParams",
        b"RetainAllocation",
    ];
    let contains = |word: &&[u8]| name.windows(word.len()).any(|window| window == *word);
    WORDS.iter().any(contains) && !HARMLESS.iter().any(contains)
}

/// `dlclose`, hooked (unlike `dlopen` it gives its caller no meaning): stacks in what goes away were stored with their
/// module, which gets its end here; and what was cached by address is void, since another library may land there.
///
/// # Safety
/// As `dlclose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dlclose(handle: *mut c_void) -> c_int {
    let closing = stacks::Closing::begin();
    // SAFETY: the caller's own handle.
    let result = unsafe { real::dlclose(handle) };
    closing.end();
    result
}
