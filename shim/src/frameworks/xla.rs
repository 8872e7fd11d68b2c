//! XLA buffers, through the table of functions that a PJRT plugin returns. Requires `CULEAK_JAX_BUFFERS`.
//!
//! XLA takes one large slab from CUDA, and none of its allocator's functions can be interposed. But JAX reaches the
//! plugin only through a C interface, `GetPjrtApi`, which it looks up with `dlsym`. The look-up returns a function that
//! returns a copy of the interface's table, in which the functions that create and destroy buffers are replaced.
//!
//! It is off by default because a buffer can end without a call. One that was *donated* to a computation ends when that
//! is enqueued, and its memory becomes part of a result; so after each execution every argument is asked whether it
//! still exists. This, and the size, memory and device of each new buffer, are calls of the plugin that the program did
//! not make. A buffer whose computation fails later stays recorded until it is destroyed. Temporaries are not buffers.
//!
//! The interface grows at its end: a field is used only if the `struct_size` of the table and of the arguments covers
//! it, and nothing is replaced unless the major version is 0. A buffer is identified by its handle. Its address is
//! asked for only if `CULEAK_JAX_BUFFERS` is `addresses`, because the plugin may have to wait for the allocation.
//!
//! Deliberately absent: views of memory that another library owns (`CreateViewOfDeviceBuffer`), aliases, and host
//! memory.

use libc::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

use crate::recorder::{self, AllocationEvent, Device, Held};
use crate::resolve::loader;
use crate::resolve::memo::Memo;
use crate::settings;
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::index::mix;
use culeak::lockfree::table::Space;
use culeak::variables::{self, Value};

/// The arguments of any function of the interface as words: the size of the structure, extensions, then its own.
type Arguments = *mut u64;
/// `PJRT_Error *`; null after success.
type Error = *mut c_void;
type Function = unsafe extern "C-unwind" fn(Arguments) -> Error;
type GetApi = unsafe extern "C-unwind" fn() -> *const u64;

/// The functions of the interface that are used here, each by its byte offset in the table. Those that are wrapped name
/// the verb that does it, with its own arguments; the table of replacements is made from them.
macro_rules! functions {
    (
        asked { $( $asked:ident = $asked_offset:literal; )* }
        wrapped { $( $name:ident = $offset:literal => $verb:ident($($what:expr),*); )* }
    ) => {
        mod at {
            $( pub const $asked: usize = $asked_offset; )*
            $( pub const $name: usize = $offset; )*
        }

        const REPLACEMENTS: &[(usize, Function)] = &[$(
            (at::$name, {
                unsafe extern "C-unwind" fn wrapper(arguments: Arguments) -> Error {
                    // SAFETY: the arguments of the function that this one replaces.
                    unsafe { $verb(at::$name, $($what,)* arguments) }
                }
                wrapper
            })
        ),*];
    };
}

functions! {
    asked {
        ERROR_DESTROY = 40;
        ERROR_GET_CODE = 56;
        LOCAL_HARDWARE_ID = 288;
        MEMORY_KIND = 328;
        EXECUTABLE_DESTROY = 360;
        NUM_OUTPUTS = 392;
        GET_EXECUTABLE = 448;
        BUFFER_SIZE = 552;
        BUFFER_DEVICE = 560;
        BUFFER_MEMORY = 568;
        BUFFER_IS_DELETED = 584;
        UNSAFE_POINTER = 624;
    }
    wrapped {
        // `makes` also takes the index of the argument that receives the new buffer.
        BUFFER_FROM_HOST = 216 => makes(const { Api::of("PJRT_Client_BufferFromHostBuffer") }, 14);
        UNINITIALIZED = 936 => makes(const { Api::of("PJRT_Client_CreateUninitializedBuffer") }, 9);
        COPY_TO_DEVICE = 592 => makes(const { Api::of("PJRT_Buffer_CopyToDevice") }, 4);
        COPY_TO_MEMORY = 776 => makes(const { Api::of("PJRT_Buffer_CopyToMemory") }, 4);
        RETRIEVE_BUFFER = 872 => makes(const { Api::of("PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer") }, 4);
        DONATE = 1040 => donates(const { Api::of("PJRT_Buffer_DonateWithControlDependency") }, 5);
        EXECUTE = 480 => executes(const { Api::of("PJRT_LoadedExecutable_Execute") });
        LOADED_DESTROY = 440 => destroys_executable();
        BUFFER_DESTROY = 504 => ends();
        BUFFER_DELETE = 576 => ends();
    }
}

/// Words in the largest table that is copied; the present one has 143.
const WORDS: usize = 512;
/// The copy of the plugin's table.
static TABLE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The plugin's own table, and the function that returns it.
static REAL: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static GET_API: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// For `dlsym(plugin, "GetPjrtApi")`: what to return in place of what was found.
pub fn substitute(found: *mut c_void) -> *mut c_void {
    let wanted = settings::is_set(variables::JAX_BUFFERS)
        && loader::find_containing(found as u64, |loaded| {
            let name = loaded.file_name();
            name.windows(4).any(|part| part == b"cuda")
        })
        .unwrap_or(false);
    // One plugin for CUDA in a process; a second one is returned as it is.
    let first = wanted
        && match GET_API.compare_exchange(std::ptr::null_mut(), found, AcqRel, Acquire) {
            Ok(_) => true,
            Err(known) => known == found,
        };
    if first {
        get_api as *const () as *mut c_void
    } else {
        found
    }
}

unsafe extern "C-unwind" fn get_api() -> *const u64 {
    // SAFETY: set to the plugin's function of this type before this one was returned.
    let real = unsafe { std::mem::transmute::<*mut c_void, GetApi>(GET_API.load(Acquire))() };
    if real.is_null() {
        return real;
    }
    // SAFETY: the table begins with its size in bytes and its version.
    let (bytes, major) = unsafe { (real.read() as usize, real.add(4).cast::<i32>().read()) };
    let words = bytes / 8;
    // The table must reach at least to what is asked about every buffer.
    if major != 0 || words > WORDS || bytes < at::BUFFER_IS_DELETED + 8 {
        return real;
    }
    for (number, word) in TABLE.iter().enumerate().take(words) {
        // SAFETY: within the size that the table states.
        let theirs = unsafe { real.add(number).read() };
        let ours = REPLACEMENTS
            .iter()
            .find(|(offset, _)| *offset == number * 8 && theirs != 0);
        // One store each, so that a concurrent reader never sees another value.
        word.store(ours.map_or(theirs, |(_, function)| *function as usize as u64), Relaxed);
    }
    REAL.store(real.cast_mut(), Release);
    TABLE.as_ptr().cast()
}

/// Calls the plugin's own function; `None` if it has none.
fn real(offset: usize, arguments: Arguments) -> Option<Error> {
    let table = REAL.load(Acquire);
    if table.is_null() {
        return None;
    }
    // SAFETY: the plugin's table begins with its size.
    let bytes = unsafe { table.read() } as usize;
    if offset + 8 > bytes {
        return None;
    }
    // SAFETY: within its size; a null pointer is `None`.
    let function = unsafe { table.add(offset / 8).cast::<Option<Function>>().read() }?;
    // SAFETY: the arguments of this function.
    Some(unsafe { function(arguments) })
}

/// Calls a function of the plugin on `subject` with our own arguments and returns those; `None` if it fails.
fn ask<const WORDS: usize>(offset: usize, subject: u64) -> Option<[u64; WORDS]> {
    let mut arguments = [0u64; WORDS];
    arguments[0] = (WORDS * 8) as u64;
    arguments[2] = subject;
    let error = real(offset, arguments.as_mut_ptr())?;
    if error.is_null() {
        return Some(arguments);
    }
    forget_error(error);
    None
}

/// Destroys an error that the program will not see.
fn forget_error(error: Error) {
    let mut arguments = [24, 0, error as u64];
    real(at::ERROR_DESTROY, arguments.as_mut_ptr());
}

/// Word `index` of the arguments, if they reach that far.
///
/// # Safety
/// `arguments` is null or begins with its size in bytes.
unsafe fn word(arguments: Arguments, index: usize) -> Option<u64> {
    // SAFETY: the caller vouches for it.
    unsafe {
        let reaches = !arguments.is_null() && arguments.read() as usize >= (index + 1) * 8;
        reaches.then(|| arguments.add(index).read())
    }
}

/// The device of a buffer; `None` if it is not in device memory.
fn device_of(buffer: u64) -> Option<i32> {
    let [.., memory] = ask::<4>(at::BUFFER_MEMORY, buffer)?;
    let [.., kind, length] = ask::<5>(at::MEMORY_KIND, memory)?;
    // SAFETY: the plugin's string of this length, which lives as long as the memory does.
    let kind = unsafe { std::slice::from_raw_parts(kind as *const u8, length as usize) };
    if kind != b"device" {
        return None;
    }
    let [.., device] = ask::<4>(at::BUFFER_DEVICE, buffer)?;
    let [.., ordinal] = ask::<4>(at::LOCAL_HARDWARE_ID, device)?;
    Some(ordinal as i32)
}

fn created(api: Api, buffer: u64) {
    if buffer == 0 {
        return;
    }
    recorder::quietly(|| {
        let ordinal = device_of(buffer)?;
        let [.., bytes] = ask::<4>(at::BUFFER_SIZE, buffer)?;
        let wants_address = settings::value(variables::JAX_BUFFERS) == Some(Value::Word);
        let address = wants_address.then(|| ask::<4>(at::UNSAFE_POINTER, buffer)).flatten();
        let event = AllocationEvent {
            space: Space::Buffer,
            device: Device::Reported(ordinal),
            extra: address.map_or(0, |[.., address]| address),
            ..AllocationEvent::new(api, Kind::Buffer, bytes)
        };
        recorder::allocated(buffer, &event);
        Some(())
    });
}

/// Records an error of XLA if it is RESOURCE_EXHAUSTED, XLA's out-of-memory error. Only its text has the size.
fn failed(api: Api, error: Error) {
    const RESOURCE_EXHAUSTED: i32 = 8;
    const OUT_OF_MEMORY: i32 = 2;
    recorder::quietly(|| {
        let [.., code] = ask::<4>(at::ERROR_GET_CODE, error as u64)?;
        if code as i32 == RESOURCE_EXHAUSTED {
            let event = AllocationEvent {
                space: Space::Buffer,
                device: Device::None,
                ..AllocationEvent::new(api, Kind::Buffer, 0)
            };
            recorder::failed(OUT_OF_MEMORY, &event);
        }
        Some(())
    });
}

/// A function that creates a buffer and writes its handle to word `out` of its arguments.
///
/// # Safety
/// The arguments of that function.
unsafe fn makes(offset: usize, api: Api, out: usize, arguments: Arguments) -> Error {
    let Some(error) = real(offset, arguments) else {
        return std::ptr::null_mut();
    };
    if error.is_null() {
        // SAFETY: arguments that the plugin has just filled in.
        created(api, unsafe { word(arguments, out) }.unwrap_or(0));
    } else {
        failed(api, error);
    }
    error
}

/// A function that frees the memory of the buffer in word 2.
///
/// # Safety
/// The arguments of that function.
unsafe fn ends(offset: usize, arguments: Arguments) -> Error {
    // SAFETY: the caller vouches for it.
    let buffer = unsafe { word(arguments, 2) }.unwrap_or(0);
    let held = withdraw(buffer);
    let error = real(offset, arguments).unwrap_or(std::ptr::null_mut());
    if held.is_something() {
        held.settle((!error.is_null()).into(), buffer);
    }
    error
}

/// Buffers on the host, deleted ones and donated ones are not recorded, which is no loss.
fn withdraw(buffer: u64) -> Held {
    if buffer == 0 {
        Held::NOTHING
    } else {
        recorder::withdraw(Space::Buffer, buffer)
    }
}

/// A function that creates a buffer, as [`makes`], out of the one in word 2.
///
/// # Safety
/// The arguments of that function.
unsafe fn donates(offset: usize, api: Api, out: usize, arguments: Arguments) -> Error {
    // SAFETY: the caller vouches for it.
    let given = unsafe { word(arguments, 2) }.unwrap_or(0);
    // SAFETY: as above.
    let error = unsafe { makes(offset, api, out, arguments) };
    if error.is_null() {
        end_if_deleted(given);
    }
    error
}

fn end_if_deleted(buffer: u64) {
    recorder::quietly(|| {
        let [.., deleted] = ask::<4>(at::BUFFER_IS_DELETED, buffer)?;
        if deleted as u8 != 0 {
            let held = withdraw(buffer);
            if held.is_something() {
                held.settle(0, buffer);
            }
        }
        Some(())
    });
}

/// An execution: some of its arguments may be donated, and its results are new buffers.
///
/// # Safety
/// The arguments of that function.
unsafe fn executes(offset: usize, api: Api, arguments: Arguments) -> Error {
    let Some(error) = real(offset, arguments) else {
        return std::ptr::null_mut();
    };
    if !error.is_null() {
        failed(api, error);
        return error;
    }
    // SAFETY: the arguments of this function, which has succeeded.
    let known = unsafe {
        let [executable, inputs, devices, count, outputs] = [2, 4, 5, 6, 7].map(|index| word(arguments, index));
        (|| Some((executable?, inputs?, devices? as usize, count? as usize, outputs?)))()
    };
    let Some((executable, inputs, devices, count, outputs)) = known else {
        return error;
    };
    // Inputs first: a donated buffer is part of a result.
    // SAFETY: a list of lists of handles, `devices` times `count`.
    unsafe { for_each(inputs, devices, count, end_if_deleted) };
    if outputs != 0
        && let Some(results) = results_of(executable)
    {
        // SAFETY: as above, `devices` times the number of results of this executable.
        unsafe { for_each(outputs, devices, results, |buffer| created(api, buffer)) };
    }
    error
}

/// # Safety
/// `lists` is null or the address of `outer` lists of `inner` handles.
unsafe fn for_each(lists: u64, outer: usize, inner: usize, each: impl Fn(u64)) {
    if lists == 0 || inner == 0 {
        return;
    }
    for list in 0..outer {
        // SAFETY: the caller vouches for it.
        let list = unsafe { (lists as *const *const u64).add(list).read() };
        for index in (0..inner).filter(|_| !list.is_null()) {
            // SAFETY: as above.
            match unsafe { list.add(index).read() } {
                0 => {}
                handle => each(handle),
            }
        }
    }
}

/// The number of results of an executable, + 1.
static RESULTS: Memo<256> = Memo::new();

fn results_of(executable: u64) -> Option<usize> {
    let key = mix(executable).max(1);
    if let Some(known) = RESULTS.get(key) {
        return Some(known as usize - 1);
    }
    recorder::quietly(|| {
        let [.., unloaded] = ask::<4>(at::GET_EXECUTABLE, executable)?;
        let results = ask::<4>(at::NUM_OUTPUTS, unloaded);
        ask::<3>(at::EXECUTABLE_DESTROY, unloaded);
        let [.., results] = results?;
        RESULTS.put(key, results + 1);
        Some(results as usize)
    })
    .flatten()
}

/// The handle of a destroyed executable may return as another's.
///
/// # Safety
/// The arguments of that function.
unsafe fn destroys_executable(offset: usize, arguments: Arguments) -> Error {
    // SAFETY: the arguments of this function.
    let executable = unsafe { word(arguments, 2) }.unwrap_or(0);
    RESULTS.forget(mix(executable).max(1));
    real(offset, arguments).unwrap_or(std::ptr::null_mut())
}
