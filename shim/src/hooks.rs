//! The hooks, one for each row of the function list (`culeak::cuda_functions`), generated from it.
//!
//! The hook of a driver function calls the verb of its row in [`crate::effects`], which records. The hook of a runtime
//! function sets a label, so that the driver call inside it is recorded under the name that the program called; it
//! records an event itself only if the driver layer saw none. A hook has three entries, and the entry decides which
//! function the call goes on to:
//!
//! | entry | reached by | goes on to |
//! |---|---|---|
//! | the exported symbol | its name | the next definition in the caller's search order ([`next`]) |
//! | `body` | a pointer returned in place of the driver's function | the driver's function ([`driver`]) |
//! | `other` | a pointer returned in place of another interposer's function | that interposer's function |
//!
//! The first and the last are a few instructions of assembly that store the caller's address for the body: the next
//! definition depends on it, and a compiled function cannot see it. If a call goes on to another interposer, that
//! interposer's own calls of the driver reach these hooks too. They are part of the call that is being recorded, and
//! are passed through.
//!
//! Everything here is `C-unwind`, and nothing catches: an exception, a cancellation or a jump passes through a hook as
//! it passes through the bare function. (redhook's `hook!` exports plain C functions that catch panics, which would
//! abort there. It exports the client API, which calls no code of the program.)
//!
//! A hook returns CUDA's error code as a plain integer: newer drivers have codes that the bindings lack. If there is no
//! function to go on to, it returns CUDA's error for that.
//!
//! [`lookup`] hooks `dlsym`, `dlvsym`, `cuGetProcAddress` and `dlclose`, and answers the audit library; [`ioctl`](mod@ioctl) hooks `ioctl`.

mod ioctl;
mod lookup;

use libc::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub use ioctl::find_next as find_next_ioctl;
pub use lookup::announce_to_audit;

use crate::recorder::{self, AllocationEvent, FrameWord, Held, Inside, Label, TEARDOWN};
use crate::resolve::{driver, next};
use culeak::cuda_functions::{Api, DRIVER_NAMES};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Space};
use culeak::recording::Recording;
use culeak::system::cold_path;

/// CUDA_ERROR_NOT_FOUND and cudaErrorSymbolNotFound.
const NOT_FOUND: c_int = 500;

/// An enum passed by value, as an integer: newer programs pass values that the bindings' enums lack.
#[allow(type_alias_bounds)]
pub type Enum<T> = <T as AsInteger>::Integer;

pub trait AsInteger {
    type Integer;
}
impl<T> AsInteger for T {
    type Integer = libc::c_uint;
}

type Entry = unsafe extern "C-unwind" fn();

/// What the rows of driver functions name as their verb.
mod verbs {
    pub use super::lookup::looks_up;
    pub use crate::effects::*;
}

/// Places the hooks of the most frequent events beside the functions that record them, in `.text.culeak_events`. Between two events
/// a program evicts this code from the caches and the TLB, so it should be on few adjacent pages.
macro_rules! placed {
    (cuMemAlloc_v2 $($item:tt)*) => { placed! { @beside $($item)* } };
    (cuMemFree_v2 $($item:tt)*) => { placed! { @beside $($item)* } };
    (cuMemAllocAsync $($item:tt)*) => { placed! { @beside $($item)* } };
    (cuMemFreeAsync $($item:tt)*) => { placed! { @beside $($item)* } };
    (cudaMalloc $($item:tt)*) => { placed! { @beside $($item)* } };
    (cudaFree $($item:tt)*) => { placed! { @beside $($item)* } };
    (cudaMallocAsync $($item:tt)*) => { placed! { @beside $($item)* } };
    (cudaFreeAsync $($item:tt)*) => { placed! { @beside $($item)* } };
    (@beside $($item:tt)*) => { #[unsafe(link_section = ".text.culeak_events")] $($item)* };
    ($other:ident $($item:tt)*) => { $($item)* };
}

macro_rules! driver_hooks {
    ($( $name:ident = $checked:ident ( $($argument:ident : $type:ty),* ) => $verb:ident ( $($what:tt)* ); )*) => {
        $(
            #[allow(non_snake_case, unsafe_op_in_unsafe_fn, unused_variables, unused_imports)]
            #[allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, clippy::too_many_arguments)]
            #[allow(static_mut_refs, clippy::missing_transmute_annotations, clippy::useless_transmute)]
            #[allow(unused_unsafe, clippy::not_unsafe_ptr_arg_deref, private_interfaces)]
            mod $name {
                use super::*;
                use crate::effects::arrays::{Array3dDescriptorV1, ArrayDescriptorV1};
                use crate::effects::{CURRENT_POOL, Legacy, PerThread};
                use cudarc::driver::sys::*;
                use culeak::kind::Kind::*;
                use libc::{c_char, c_int, c_uint, c_void};

                const API: Api = Api::of(stringify!($name));

                placed! { $name
                    /// The driver function of this name.
                    #[unsafe(naked)]
                    #[unsafe(no_mangle)]
                    pub unsafe extern "C-unwind" fn $name() {
                        driver_entry!(body, API)
                    }
                }

                /// In place of another interposer's function of this name.
                #[unsafe(naked)]
                pub unsafe extern "C-unwind" fn other() {
                    other_entry!(body)
                }

                placed! { $name
                    pub unsafe extern "C-unwind" fn body($($argument: $type),*) -> c_int {
                        let Some(target) = Target::of(API) else {
                            return NOT_FOUND;
                        };
                        let real = move || {
                            // The function of this name, with the signature of its row.
                            let function = std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> c_int>(target.function);
                            if !target.is_interposers {
                                return function($($argument),*);
                            }
                            cold_path();
                            let mut word = FrameWord::new();
                            let inside = Inside::enter(&mut word);
                            let result = function($($argument),*);
                            inside.leave(&mut word);
                            result
                        };
                        if target.passes_through {
                            cold_path();
                            return real();
                        }
                        verbs::$verb(API, real, $($what)*)
                    }
                }

                // Only stored and compared as an address: callers cast it back.
                pub const BODY: Entry =
                    unsafe { std::mem::transmute(body as unsafe extern "C-unwind" fn($($type),*) -> c_int) };
            }
        )*

        /// The hook of a driver row, to return in place of the driver's function.
        pub fn driver_hook(api: Api) -> *const c_void {
            static HOOKS: [Entry; DRIVER_NAMES.len()] = [$( $name::BODY ),*];
            HOOKS[api.0 as usize] as *const c_void
        }

        /// The hook of a driver row, to return in place of another interposer's function.
        pub fn other_hook(api: Api) -> *const c_void {
            static HOOKS: [Entry; DRIVER_NAMES.len()] = [$( $name::other ),*];
            HOOKS[api.0 as usize] as *const c_void
        }
    };
}

/// Calls `note_caller` ($set puts its argument into rdi after the pushes) and jumps to the body, with all arguments in
/// place, also those on the stack.
#[cfg(target_arch = "x86_64")]
macro_rules! noting_entry {
    ($body:path, $set:literal $(, $before:literal, $($operand:tt)*)?) => {
        std::arch::naked_asm!(
            "endbr64",
            $($before,)?
            // At entry the stack is 8 bytes off a multiple of 16; six pushes and 8 bytes align it for the call.
            "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
            "sub rsp, 8",
            $set,
            "call {note}",
            "add rsp, 8",
            "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
            "jmp {body}",
            note = sym recorder::note_caller,
            body = sym $body,
            $($($operand)*)?
        )
    };
}

/// The exported entry of a runtime function: stores the caller's address.
#[cfg(target_arch = "x86_64")]
macro_rules! runtime_entry {
    ($body:path) => {
        noting_entry!($body, "mov rdi, [rsp + 56]")
    };
}

/// The exported entry of a driver function. Stores no address if every caller goes on to the driver's own function.
#[cfg(target_arch = "x86_64")]
macro_rules! driver_entry {
    ($body:path, $api:expr) => {
        noting_entry!(
            $body,
            "mov rdi, [rsp + 56]",
            "cmp byte ptr [rip + {rows} + {own}], 0\njne {body}",
            rows = sym crate::resolve::driver::DRIVER_ROWS,
            own = const driver::Row::own_offset($api),
        )
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! other_entry {
    ($body:path) => {
        noting_entry!($body, "mov edi, 1")
    };
}

// Run in an emulator only (tests/aarch64/).
#[cfg(target_arch = "aarch64")]
macro_rules! runtime_entry {
    ($body:path) => {
        std::arch::naked_asm!(include_str!("hooks/aarch64/runtime.s"), note = sym recorder::note_caller, body = sym $body)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! driver_entry {
    ($body:path, $api:expr) => {
        runtime_entry!($body)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! other_entry {
    ($body:path) => {
        std::arch::naked_asm!(include_str!("hooks/aarch64/other.s"), note = sym recorder::note_caller, body = sym $body)
    };
}

/// Stored by [`other_entry`] in place of an address; no caller has this address.
const OTHER: u64 = 1;

/// What the call of a driver hook goes on to.
struct Target {
    function: *mut c_void,
    /// It is another interposer's function: calls of the driver inside it are part of this call.
    is_interposers: bool,
    /// The call comes from inside such a function, and is recorded there.
    passes_through: bool,
}

impl Target {
    /// Chosen by the address that the entry stored. `None` if there is no function to go on to.
    #[inline]
    fn of(api: Api) -> Option<Target> {
        let own = driver::function(api);
        let (caller, passes_through) = recorder::take_caller_and_nesting();
        let function = match caller {
            0 => own,
            OTHER => {
                cold_path();
                next::interposed(api)
            }
            caller => next::definition(api, caller),
        };
        let target = Target {
            function,
            is_interposers: function != own,
            passes_through,
        };
        (!function.is_null()).then_some(target)
    }
}

macro_rules! runtime_hooks {
    ($( $name:ident = $checked:ident ( $($argument:ident : $type:ty),* ) => $verb:ident ( $($what:tt)* ); )*) => {
        $(
            #[allow(non_snake_case, unused_variables, unused_imports, clippy::missing_safety_doc, private_interfaces)]
            #[allow(clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn, unused_unsafe)]
            mod $name {
                use super::*;
                use crate::effects::arrays::channel_bytes;
                use cudarc::runtime::sys::*;
                use libc::{c_char, c_int, c_uint, c_void};

                placed! { $name
                    /// The runtime function of this name.
                    #[unsafe(naked)]
                    #[unsafe(no_mangle)]
                    pub unsafe extern "C-unwind" fn $name() {
                        runtime_entry!(body)
                    }
                }

                placed! { $name
                    unsafe extern "C-unwind" fn body($($argument: $type),*) -> c_int {
                        const API: Api = Api::of(stringify!($name));
                        let caller = recorder::take_caller();
                        let real = move || {
                            let function = next::definition(API, caller);
                            if function.is_null() {
                                return NOT_FOUND;
                            }
                            // The function of this name, with the signature of its row.
                            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> c_int>(function)(
                                $($argument),*
                            )
                        };
                        runtime_hooks!(@ $verb real ($($what)*))
                    }
                }
            }
        )*
    };
    (@ labels $real:ident ()) => {
        super::labels(API, $real)
    };
    (@ labels_allocation $real:ident ($kind:ident, $address:block, $bytes:block)) => {
        super::labels_allocation(API, Kind::$kind, $real, || unsafe { $address }, || unsafe { $bytes })
    };
    (@ labels_free $real:ident ($space:ident, $address:ident)) => {
        super::labels_free(API, Space::$space, $address as u64, $real)
    };
}

culeak::driver_functions!(driver_hooks);
culeak::runtime_functions!(runtime_hooks);

fn labels(api: Api, real: impl FnOnce() -> c_int) -> c_int {
    let mut word = FrameWord::new();
    let label = Label::set(api, &mut word);
    let result = real();
    label.end(&mut word);
    result
}

fn space_of(kind: Kind) -> Space {
    match kind {
        Kind::Array | Kind::Mipmapped => Space::Array,
        Kind::Pool => Space::Pool,
        Kind::External => Space::External,
        Kind::HostRegistered => Space::Registered,
        _ => Space::Pointer,
    }
}

/// Whether a runtime hook has ever recorded an allocation itself. Usually none has, and a free then looks at no record. Relaxed: a
/// thread that frees such memory has its address from the thread that allocated it.
static HAS_BACKED_UP: AtomicBool = AtomicBool::new(false);

/// `address` and `bytes` are evaluated after success only: they read what the call wrote.
fn labels_allocation(
    api: Api,
    kind: Kind,
    real: impl FnOnce() -> c_int,
    address: impl FnOnce() -> u64,
    bytes: impl FnOnce() -> u64,
) -> c_int {
    let mut word = FrameWord::new();
    let label = Label::set(api, &mut word);
    let result = real();
    // A runtime that failed before it reached the driver (for lack of a device, say) failed no request for memory.
    if result == 0 && !label.was_recorded() {
        let address = address();
        if address != 0 {
            // The runtime has just used the driver, so the driver can be asked for the current context.
            driver::is_loaded();
            HAS_BACKED_UP.store(true, Relaxed);
            let event = AllocationEvent {
                space: space_of(kind),
                flags: Attributes::BACKED_UP,
                ..AllocationEvent::new(api, kind, bytes())
            };
            recorder::allocated(address, &event);
        }
    }
    label.end(&mut word);
    result
}

fn labels_free(api: Api, space: Space, address: u64, real: impl FnOnce() -> c_int) -> c_int {
    let mut word = FrameWord::new();
    let label = Label::set(api, &mut word);
    let is_backed_up = |recording: &Recording| {
        let entry = recording.table(0).get(recorder::key(space, address));
        entry.is_some_and(|entry| entry.attributes.flags & Attributes::BACKED_UP != 0)
    };
    let ours = HAS_BACKED_UP.load(Relaxed) && recorder::running().is_some_and(is_backed_up);
    let held = if ours {
        recorder::withdraw(space, address)
    } else {
        Held::NOTHING
    };
    let result = real();
    if ours {
        held.settle(result, address);
    } else if result == TEARDOWN && !label.was_recorded() {
        // The runtime is shutting down and did not call the driver: the memory is gone with it.
        recorder::withdraw(space, address).settle(result, address);
    }
    label.end(&mut word);
    result
}

/// The signature of every row against cudarc's binding of the same function. Never called: compiling it is the check.
mod signatures {
    #![allow(dead_code, non_snake_case, unused_imports, clippy::type_complexity, unused_macros)]
    use crate::effects::arrays::{Array3dDescriptorV1, ArrayDescriptorV1};
    use libc::{c_char, c_int, c_uint, c_void};

    /// In the bindings an enum is passed as itself.
    type Enum<T> = T;

    macro_rules! check_driver {
        ($( $name:ident = $checked:ident ( $($argument:ident : $type:ty),* ) => $verb:ident ( $($what:tt)* ); )*) => {
            $( check!(driver $name $checked ($($type),*)); )*
        };
    }
    macro_rules! check_runtime {
        ($( $name:ident = $checked:ident ( $($argument:ident : $type:ty),* ) => $verb:ident ( $($what:tt)* ); )*) => {
            $( check!(runtime $name $checked ($($type),*)); )*
        };
    }
    macro_rules! check {
        ($layer:ident $name:ident none $types:tt) => {};
        (driver $name:ident $checked:ident ($($type:ty),*)) => {
            fn $name() {
                use cudarc::driver::sys::*;
                let _: unsafe fn($($type),*) -> CUresult = cudarc::driver::sys::$checked;
            }
        };
        (runtime $name:ident $checked:ident ($($type:ty),*)) => {
            fn $name() {
                use cudarc::runtime::sys::*;
                let _: unsafe fn($($type),*) -> cudaError_t = cudarc::runtime::sys::$checked;
            }
        };
    }
    culeak::driver_functions!(check_driver);
    culeak::runtime_functions!(check_runtime);
}
