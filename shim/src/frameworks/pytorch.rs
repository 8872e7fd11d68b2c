//! PyTorch's caching allocator, through the two functions by which it informs the profiler.
//!
//! `libc10_cuda` calls `c10::reportMemoryUsageToProfiler` for every block that it hands out or takes back, even if no
//! profiler runs. It calls through the PLT, so our definition comes first: it records, and goes on to PyTorch's own.
//! That one is in a libc10 that was loaded RTLD_LOCAL, so it is found in the ELF tables of the loaded objects, never
//! with `dlsym` or `dlopen`: the allocator's lock is held here, and another thread may hold the loader's lock and wait
//! for it.
//!
//! The mangled name contains the argument types; totals were signed until PyTorch 1.13. If the caching allocator is
//! switched off or replaced by `cudaMallocAsync`, these functions are never called, and each tensor is an allocation of
//! the driver.

use libc::{c_int, c_void};
use std::ffi::CStr;

use crate::recorder::{self, AllocationEvent, Device, current, sampling, tensors};
use crate::resolve::closing::Loaded;
use crate::resolve::loader;
use crate::resolve::memo::Memo;
use crate::resolve::own::is_ours;
use crate::stacks::forward;
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::table::{Entry, Space};
use culeak::recording::{Outcome, Recording, TensorEvent};
use culeak::system::aside;

const ALLOCATOR: Api = Api::of("CUDACachingAllocator");
/// c10::DeviceType::CUDA; ROCm builds use it too.
const CUDA: u8 = 1;
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: c_int = 2;

/// `c10::Device` as it is passed in a register: type in the lowest byte, index in the next.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct DeviceArgument(u64);

impl DeviceArgument {
    /// The ordinal of a CUDA device; `None` for devices of other types.
    fn ordinal(self) -> Option<i32> {
        let index = (self.0 >> 8) as i8;
        (self.0 as u8 == CUDA).then_some(index.into())
    }

    /// The ordinal of a CUDA device; for devices of other types a large number.
    #[inline(always)]
    fn number(self) -> usize {
        (self.0 as u16).wrapping_sub(CUDA.into()).rotate_right(8).into()
    }
}

/// Exports a function of PyTorch: an entry that passes its caller's address to a body as one more argument, in the
/// register that follows those in use.
macro_rules! exports {
    ($( $name:ident = $symbol:literal ($($argument:ident: $type:ty),*) => $record:ident, $x86:literal, $arm:literal
        $(, $first:literal, $($operand:ident = sym $sym:path),*)?; )*) => {$(
        mod $name {
            use super::*;

            pub static NAME: &CStr = match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };

            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(export_name = $symbol)]
            #[unsafe(link_section = ".text.culeak_events")]
            unsafe extern "C-unwind" fn entry() {
                std::arch::naked_asm!("endbr64", concat!("mov ", $x86, ", [rsp]"), $($first,)? "jmp {body}", body = sym body
                    $(, $($operand = sym $sym),*)?)
            }

            // Run in an emulator only (tests/aarch64/).
            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(export_name = $symbol)]
            #[unsafe(link_section = ".text.culeak_events")]
            unsafe extern "C-unwind" fn entry() {
                std::arch::naked_asm!("bti c", concat!("mov ", $arm, ", x30"), "b {body}", body = sym body)
            }

            #[unsafe(link_section = ".text.culeak_events")]
            unsafe extern "C-unwind" fn body($($argument: $type,)* device: DeviceArgument, caller: u64) {
                $record($($argument,)* device, caller, NAME);
            }
        }
    )*};
}

exports! {
    usage = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
        (block: u64, change: i64, live: u64, reserved: u64) => used, "r9", "x5",
        // As `used` does.
        "cmp qword ptr [rip + {mean}], 0\nje {body}\ntest rsi, rsi\njg {allocated}\njl {freed}",
        mean = sym sampling::MEAN, allocated = sym allocated, freed = sym freed;
    usage_signed = "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE"
        (block: u64, change: i64, live: u64, reserved: u64) => used_as_usual, "r9", "x5";
    out = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"
        (bytes: i64, live: u64, reserved: u64) => ran_out, "r8", "x4";
    out_signed = "_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE"
        (bytes: i64, live: u64, reserved: u64) => ran_out, "r8", "x4";
}

type Usage = unsafe extern "C-unwind" fn(u64, i64, u64, u64, DeviceArgument);

/// A block was allocated (`change` > 0) or freed; `live` and `reserved` are the allocator's totals afterwards.
#[inline(always)]
fn used(block: u64, change: i64, live: u64, reserved: u64, device: DeviceArgument, caller: u64, name: &CStr) {
    if !sampling::is_on() {
        used_as_usual(block, change, live, reserved, device, caller, name);
    } else if change > 0 {
        allocated(block, change, live, reserved, device, caller);
    } else if change < 0 {
        freed(block, change, live, reserved, device, caller);
    } else {
        used_as_usual(block, change, live, reserved, device, caller, name);
    }
}

/// As `used`, if stacks are sampled. The way of a block without one is short: whatever is rare is a call at its end, with the same
/// arguments in the same registers, so that nothing needs to be kept anywhere.
macro_rules! in_sample {
    ($name:ident, $aside:ident, $allocates:literal) => {
        #[inline(never)]
        #[unsafe(link_section = ".text.culeak_events")]
        extern "C-unwind" fn $name(
            block: u64,
            change: i64,
            live: u64,
            reserved: u64,
            device: DeviceArgument,
            caller: u64,
        ) {
            let Some(of) = tensors::known($allocates, device.number(), caller) else {
                return $aside(block, change, live, reserved, device, caller);
            };
            let event = TensorEvent {
                address: block,
                change,
                live,
                reserved,
            };
            match tensors::$name::<false>(of, &event) {
                // SAFETY: libc10's function of this name, which contains the argument types.
                Outcome::Recorded => unsafe {
                    std::mem::transmute::<u64, Usage>(of.next())(block, change, live, reserved, device)
                },
                Outcome::Rare => $aside(block, change, live, reserved, device, caller),
                Outcome::NotSummed => finish(block, change, live, reserved, device, Outcome::NotSummed),
                Outcome::Mismatched => finish(block, change, live, reserved, device, Outcome::Mismatched),
            }
        }

        #[cold]
        #[inline(never)]
        fn $aside(block: u64, change: i64, live: u64, reserved: u64, device: DeviceArgument, caller: u64) {
            let event = TensorEvent {
                address: block,
                change,
                live,
                reserved,
            };
            let of = tensors::known_code($allocates, device.number(), caller);
            let outcome = of.map_or(Outcome::Rare, |of| {
                tensors::aside(of, &event, tensors::$name::<true>)
            });
            match outcome {
                Outcome::Rare => used_as_usual(block, change, live, reserved, device, caller, usage::NAME),
                outcome => finish(block, change, live, reserved, device, outcome),
            }
        }
    };
}
in_sample!(allocated, allocated_aside, true);
in_sample!(freed, freed_aside, false);

/// Does what is left of an event that was recorded, and goes on to PyTorch's own function.
#[cold]
#[inline(never)]
fn finish(block: u64, change: i64, live: u64, reserved: u64, device: DeviceArgument, outcome: Outcome) {
    let event = TensorEvent {
        address: block,
        change,
        live,
        reserved,
    };
    let of = tensors::finish(device.number(), &event, outcome);
    // SAFETY: as in `in_sample`.
    unsafe { std::mem::transmute::<u64, Usage>(of.next())(block, change, live, reserved, device) }
}

/// As `used`, in the way of all memory.
#[inline(never)]
#[unsafe(link_section = ".text.culeak_events")]
fn used_as_usual(block: u64, change: i64, live: u64, reserved: u64, device: DeviceArgument, caller: u64, name: &CStr) {
    if let Some(ordinal) = device.ordinal() {
        let report = |recording: &Recording, device| recording.allocator_reported(device, change, live, reserved);
        let report_alone = |recording: &Recording| report(recording, current::reported_device(recording, ordinal));
        if change > 0 {
            let event = AllocationEvent {
                space: Space::Tensor,
                device: Device::Reported(ordinal),
                ..AllocationEvent::new(ALLOCATOR, Kind::Tensor, change as u64)
            };
            let insert = |recording: &Recording, shard, key, entry: &Entry| match tensors::reported(
                recording, ALLOCATOR, ordinal, caller,
            ) {
                None => recording.allocated_at(shard, key, entry),
                Some(of) => recording.any_tensor_allocated(of, shard, key, &aside(entry)),
            };
            recorder::allocated_then(block, &event, insert, report);
        } else if change < 0 {
            let withdraw = |recording: &'static Recording, key, shard| match tensors::reported(
                recording, ALLOCATOR, ordinal, caller,
            ) {
                None => recording.withdraw(key, shard),
                Some(of) => recording.withdraw_any_tensor(of, key, shard),
            };
            recorder::freed_then(Space::Tensor, block, withdraw, report_alone);
        } else {
            recorder::quietly(|| recorder::running().map(report_alone));
        }
    }
    let loaded = Loaded::now();
    if let Some(next) = next_definition(name, caller) {
        if sampling::is_on() && std::ptr::eq(name, usage::NAME) {
            tensors::learn(change > 0, device.number(), caller, loaded, next);
        }
        // SAFETY: as in `in_sample`.
        unsafe { std::mem::transmute::<*const c_void, Usage>(next)(block, change, live, reserved, device) }
    }
}

/// A request failed, even after the allocator freed its cache.
fn ran_out(bytes: i64, live: u64, reserved: u64, device: DeviceArgument, caller: u64, name: &CStr) {
    if let Some(ordinal) = device.ordinal() {
        let event = AllocationEvent {
            space: Space::Tensor,
            device: Device::Reported(ordinal),
            ..AllocationEvent::new(ALLOCATOR, Kind::Tensor, bytes.max(0) as u64)
        };
        recorder::failed(OUT_OF_MEMORY, &event);
    }
    if let Some(next) = next_definition(name, caller) {
        type Out = unsafe extern "C-unwind" fn(i64, u64, u64, DeviceArgument);
        // SAFETY: as in `in_sample`.
        unsafe { std::mem::transmute::<*const c_void, Out>(next)(bytes, live, reserved, device) }
    }
}

/// Answers of `next_definition` by caller and name.
static NEXT: Memo<256> = Memo::new();

/// Voids the cached answers after something was unloaded.
pub fn unloaded() {
    NEXT.clear();
}

/// The definition that the code at `caller` would reach without ours.
#[unsafe(link_section = ".text.culeak_events")]
pub fn next_definition(name: &CStr, caller: u64) -> Option<*const c_void> {
    // While something is being unloaded, another module may be mapped where the caller of a cached answer was.
    let loaded = Loaded::now();
    let key = loaded.key(name.as_ptr() as u64, caller);
    match NEXT.get(key) {
        Some(known) => Some(known as *const c_void),
        None => find_next(name, caller, (loaded, key)),
    }
}

#[cold]
#[inline(never)]
fn find_next(name: &CStr, caller: u64, (loaded, key): (Loaded, u64)) -> Option<*const c_void> {
    // In a forked child the profiler is not informed; CUDA does not work there.
    if loader::list_is_unsafe() {
        return None;
    }
    let found = recorder::quietly(|| look_for(name, caller)).flatten()?;
    if loaded.is_settled() {
        NEXT.put(key, found as u64);
    }
    forward::prepare(|name| {
        let theirs = |found: &*const c_void| !is_ours(*found as u64);
        loader::find_loaded(|loaded| loaded.symbol(name).filter(theirs)).map(|found| found as usize)
    });
    Some(found)
}

/// Several libc10 may be loaded. The caller's own library comes first, then one in the caller's folder, then any other.
fn look_for(name: &CStr, caller: u64) -> Option<*const c_void> {
    let mut folder = [0u8; 4096];
    let length = loader::find_containing(caller, |loaded| {
        let path = loaded.name();
        let end = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let end = end.min(folder.len());
        folder[..end].copy_from_slice(&path[..end]);
        end
    });
    let folder = &folder[..length.unwrap_or(0)];
    let mut best: Option<(u8, *const c_void)> = None;
    loader::find_loaded(|loaded| {
        let found = loaded.symbol(name)?;
        if is_ours(found as u64) {
            return None;
        }
        let path = loaded.name();
        let beside = !folder.is_empty() && path.starts_with(folder) && !path[folder.len()..].contains(&b'/');
        let fitness = match (loaded.contains(caller), beside) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => 0,
        };
        if best.is_none_or(|(before, _)| fitness > before) {
            best = Some((fitness, found));
        }
        None::<()>
    });
    best.map(|(_, found)| found)
}
