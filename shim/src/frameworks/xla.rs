//! XLA's buffers, one by one, through the table of functions that a PJRT plugin hands out. Behind `CULEAK_JAX_BUFFERS`.
//!
//! XLA takes one large slab from CUDA and keeps its allocator to itself: no function of it can be preceded. But JAX reaches
//! the plugin through a C interface alone, `GetPjrtApi`, which it asks `dlsym` for. What is handed out here is a copy of
//! that table in which the functions that make and destroy buffers are ours.
//!
//! Why it is behind a switch: a buffer can end without a call. One that was *donated* to a computation is gone once that
//! has been enqueued, and its memory is that of a result; so after each execution every argument is asked whether it still
//! exists. This and the size, memory and device of each new buffer are calls into the plugin that the program did not
//! make. A buffer whose computation fails later stays recorded until it is destroyed. Temporaries are not buffers.
//!
//! The interface grows at the end and says how far it reaches: every field is used only if the table's and the arguments'
//! `struct_size` cover it, and nothing is wrapped when the major version is not 0. A buffer is known by its handle. Where
//! it lies is asked only when `CULEAK_JAX_BUFFERS` is `addresses`: the plugin may have to wait for the allocation.
//!
//! Deliberately absent: views of memory that others own (`CreateViewOfDeviceBuffer`), aliases, and everything on the host.

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

/// Arguments of any function of the interface, word by word: the size of the structure, extensions, then its own.
type Arguments = *mut u64;
/// `PJRT_Error *`; null: success.
type Error = *mut c_void;
type Function = unsafe extern "C-unwind" fn(Arguments) -> Error;
type GetApi = unsafe extern "C-unwind" fn() -> *const u64;

/// Places in the table, in bytes.
mod at {
    pub const ERROR_DESTROY: usize = 40;
    pub const ERROR_GET_CODE: usize = 56;
    pub const BUFFER_FROM_HOST: usize = 216;
    pub const LOCAL_HARDWARE_ID: usize = 288;
    pub const MEMORY_KIND: usize = 328;
    pub const EXECUTABLE_DESTROY: usize = 360;
    pub const NUM_OUTPUTS: usize = 392;
    pub const LOADED_DESTROY: usize = 440;
    pub const GET_EXECUTABLE: usize = 448;
    pub const EXECUTE: usize = 480;
    pub const BUFFER_DESTROY: usize = 504;
    pub const BUFFER_SIZE: usize = 552;
    pub const BUFFER_DEVICE: usize = 560;
    pub const BUFFER_MEMORY: usize = 568;
    pub const BUFFER_DELETE: usize = 576;
    pub const BUFFER_IS_DELETED: usize = 584;
    pub const COPY_TO_DEVICE: usize = 592;
    pub const UNSAFE_POINTER: usize = 624;
    pub const COPY_TO_MEMORY: usize = 776;
    pub const RETRIEVE_BUFFER: usize = 872;
    pub const UNINITIALIZED: usize = 936;
    pub const DONATE: usize = 1040;
}

/// Room for a table of 512 words; this year's has 143.
const WORDS: usize = 512;
/// The copy that is handed out.
static TABLE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The plugin's own table, and the function that hands it out.
static REAL: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static GET_API: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// For `dlsym(plugin, "GetPjrtApi")`: what to hand out in place of what was found.
pub fn substitute(found: *mut c_void) -> *mut c_void {
    let wanted = settings::is_set(variables::JAX_BUFFERS)
        && loader::find_containing(found as u64, |loaded| {
            let name = loaded.file_name();
            name.windows(4).any(|part| part == b"cuda")
        })
        .unwrap_or(false);
    // One plugin for CUDA in a process; a second one goes unwrapped.
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
    // SAFETY: set before this function was handed out, to the plugin's own of this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, GetApi>(GET_API.load(Acquire))() };
    if real.is_null() {
        return real;
    }
    // SAFETY: the table begins with its size in bytes, and then its version.
    let (bytes, major) = unsafe { (real.read() as usize, real.add(4).cast::<i32>().read()) };
    let words = bytes / 8;
    // The first function, and what is asked of every buffer, must be there at least.
    if major != 0 || words > WORDS || bytes < at::BUFFER_IS_DELETED + 8 {
        return real;
    }
    for (number, word) in TABLE.iter().enumerate().take(words) {
        // SAFETY: within the size that the table says it has.
        let theirs = unsafe { real.add(number).read() };
        let ours = OURS.iter().find(|(place, _)| *place == number * 8 && theirs != 0);
        // Once each, so that whoever asks again meanwhile finds nothing else.
        word.store(ours.map_or(theirs, |(_, function)| *function as usize as u64), Relaxed);
    }
    REAL.store(real.cast_mut(), Release);
    TABLE.as_ptr().cast()
}

const OURS: [(usize, Function); 10] = [
    (at::BUFFER_FROM_HOST, buffer_from_host),
    (at::UNINITIALIZED, uninitialized),
    (at::EXECUTE, execute),
    (at::LOADED_DESTROY, loaded_destroy),
    (at::BUFFER_DESTROY, buffer_destroy),
    (at::BUFFER_DELETE, buffer_delete),
    (at::COPY_TO_DEVICE, copy_to_device),
    (at::COPY_TO_MEMORY, copy_to_memory),
    (at::RETRIEVE_BUFFER, retrieve_buffer),
    (at::DONATE, donate),
];

/// Calls the plugin's own function; `None` where it has none.
fn real(place: usize, arguments: Arguments) -> Option<Error> {
    let table = REAL.load(Acquire);
    if table.is_null() {
        return None;
    }
    // SAFETY: the plugin's table begins with its size.
    let bytes = unsafe { table.read() } as usize;
    if place + 8 > bytes {
        return None;
    }
    // SAFETY: within its size; a null pointer is no function.
    let function = unsafe { table.add(place / 8).cast::<Option<Function>>().read() }?;
    // SAFETY: arguments for this very function.
    Some(unsafe { function(arguments) })
}

/// Asks the plugin something about `subject`, with arguments of our own; `None` when it does not say.
fn ask<const WORDS: usize>(place: usize, subject: u64) -> Option<[u64; WORDS]> {
    let mut arguments = [0u64; WORDS];
    arguments[0] = (WORDS * 8) as u64;
    arguments[2] = subject;
    let error = real(place, arguments.as_mut_ptr())?;
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

/// Word `index` of the arguments, if they reach so far.
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

/// Device of a buffer in device memory; `None` for one elsewhere.
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

fn made(api: Api, buffer: u64) {
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

/// RESOURCE_EXHAUSTED, which is how XLA says that memory ran out. How much was wanted, only its message tells.
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

/// A function whose result is a new buffer, in word `out` of its arguments.
///
/// # Safety
/// The arguments of that function.
unsafe fn makes(place: usize, api: Api, out: usize, arguments: Arguments) -> Error {
    let Some(error) = real(place, arguments) else {
        return std::ptr::null_mut();
    };
    if error.is_null() {
        // SAFETY: arguments that the plugin has just filled in.
        made(api, unsafe { word(arguments, out) }.unwrap_or(0));
    } else {
        failed(api, error);
    }
    error
}

/// A function after which the buffer in word 2 has no memory any more.
///
/// # Safety
/// The arguments of that function.
unsafe fn ends(place: usize, arguments: Arguments) -> Error {
    // SAFETY: the caller vouches for it.
    let buffer = unsafe { word(arguments, 2) }.unwrap_or(0);
    let held = withdraw(buffer);
    let error = real(place, arguments).unwrap_or(std::ptr::null_mut());
    if held.is_something() {
        held.settle((!error.is_null()).into(), buffer);
    }
    error
}

/// Buffers on the host, deleted ones and donated ones are not there, and that is no loss.
fn withdraw(buffer: u64) -> Held {
    if buffer == 0 {
        Held::NOTHING
    } else {
        recorder::withdraw(Space::Buffer, buffer)
    }
}

macro_rules! wrapped {
    ($( $name:ident: $verb:ident($($what:expr),*); )*) => { $(
        unsafe extern "C-unwind" fn $name(arguments: Arguments) -> Error {
            // SAFETY: the arguments of the function that this stands for.
            unsafe { $verb($($what,)* arguments) }
        }
    )* };
}

wrapped! {
    buffer_from_host: makes(at::BUFFER_FROM_HOST, const { Api::of("PJRT_Client_BufferFromHostBuffer") }, 14);
    uninitialized: makes(at::UNINITIALIZED, const { Api::of("PJRT_Client_CreateUninitializedBuffer") }, 9);
    copy_to_device: makes(at::COPY_TO_DEVICE, const { Api::of("PJRT_Buffer_CopyToDevice") }, 4);
    copy_to_memory: makes(at::COPY_TO_MEMORY, const { Api::of("PJRT_Buffer_CopyToMemory") }, 4);
    retrieve_buffer: makes(at::RETRIEVE_BUFFER, const { Api::of("PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer") }, 4);
    buffer_destroy: ends(at::BUFFER_DESTROY);
    buffer_delete: ends(at::BUFFER_DELETE);
}

/// The buffer goes over into a new one.
unsafe extern "C-unwind" fn donate(arguments: Arguments) -> Error {
    const API: Api = Api::of("PJRT_Buffer_DonateWithControlDependency");
    // SAFETY: the arguments of this function.
    let given = unsafe { word(arguments, 2) }.unwrap_or(0);
    // SAFETY: as above.
    let error = unsafe { makes(at::DONATE, API, 5, arguments) };
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

unsafe extern "C-unwind" fn execute(arguments: Arguments) -> Error {
    const API: Api = Api::of("PJRT_LoadedExecutable_Execute");
    let Some(error) = real(at::EXECUTE, arguments) else {
        return std::ptr::null_mut();
    };
    if !error.is_null() {
        failed(API, error);
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
    // Inputs first: what was donated is part of a result.
    // SAFETY: a list of lists of handles, `devices` times `count`.
    unsafe { for_each(inputs, devices, count, end_if_deleted) };
    if outputs != 0
        && let Some(results) = results_of(executable)
    {
        // SAFETY: as above, `devices` times the number of results of this executable.
        unsafe { for_each(outputs, devices, results, |buffer| made(API, buffer)) };
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
        for place in (0..inner).filter(|_| !list.is_null()) {
            // SAFETY: as above.
            match unsafe { list.add(place).read() } {
                0 => {}
                handle => each(handle),
            }
        }
    }
}

/// How many results an executable has, + 1.
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

/// Its handle may come back as another one's.
unsafe extern "C-unwind" fn loaded_destroy(arguments: Arguments) -> Error {
    // SAFETY: the arguments of this function.
    let executable = unsafe { word(arguments, 2) }.unwrap_or(0);
    RESULTS.forget(mix(executable).max(1));
    real(at::LOADED_DESTROY, arguments).unwrap_or(std::ptr::null_mut())
}
