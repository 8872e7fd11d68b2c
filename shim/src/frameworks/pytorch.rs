//! PyTorch's caching allocator, through the two functions by which it keeps the profiler informed.
//!
//! `libc10_cuda` calls `pytorch::reportMemoryUsageToProfiler` for every block it hands out or takes back, whether a profiler
//! runs or not, and through the PLT: our definition comes first, records, and goes on to the one that was meant. That one
//! lies in a libc10 which was loaded RTLD_LOCAL, so it is looked for in the ELF tables of what is loaded, never with
//! `dlsym` or `dlopen`: the allocator's lock is held here, and the loader's may be held by a thread that waits for it.
//!
//! The function's name carries its argument types; totals were signed until PyTorch 1.13. Without PyTorch nobody calls
//! these names. With the allocator switched off, or replaced by `cudaMallocAsync`, nobody does either, and then each
//! tensor is an allocation of the driver's.

use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::Ordering::*;

use crate::effects::context;
use crate::frameworks::blocks;
use crate::recorder::{self, AllocationEvent, Device};
use crate::resolve::memo::Memo;
use crate::resolve::{loader, real};
use crate::stacks;
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::index::mix;
use culeak::lockfree::table::Space;

const ALLOCATOR: Api = Api::of("CUDACachingAllocator");
/// pytorch::DeviceType::CUDA, also that of ROCm builds.
const CUDA: u8 = 1;
/// What the driver said to the allocator.
const OUT_OF_MEMORY: c_int = 2;

/// `pytorch::Device` as it travels in a register: type in the lowest byte, index in the next.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Place(u64);

impl Place {
    /// The ordinal of a CUDA device; `None` for devices of other types.
    fn ordinal(self) -> Option<i32> {
        let index = (self.0 >> 8) as i8;
        (self.0 as u8 == CUDA).then_some(index.into())
    }
}

/// An entry that adds its caller's address as one more argument and goes on.
macro_rules! entry {
    ($name:ident, $symbol:literal, $body:path, $x86:literal, $arm:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!("endbr64", concat!("mov ", $x86, ", [rsp]"), "jmp {body}", body = sym $body)
        }

        // Written from the ABI; nobody has run it.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!("bti c", concat!("mov ", $arm, ", x30"), "b {body}", body = sym $body)
        }
    };
}

const USAGE: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
const USAGE_SIGNED: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE";
const OUT: &CStr = c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE";
const OUT_SIGNED: &CStr = c"_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE";

entry!(
    usage,
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    usage_body,
    "r9",
    "x5"
);
entry!(
    usage_signed,
    "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE",
    usage_signed_body,
    "r9",
    "x5"
);
entry!(
    out,
    "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
    out_body,
    "r8",
    "x4"
);
entry!(
    out_signed,
    "_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE",
    out_signed_body,
    "r8",
    "x4"
);

unsafe extern "C-unwind" fn usage_body(block: u64, change: i64, live: u64, reserved: u64, place: Place, caller: u64) {
    used(USAGE, block, change, live, reserved, place, caller);
}

unsafe extern "C-unwind" fn usage_signed_body(
    block: u64,
    change: i64,
    live: u64,
    reserved: u64,
    place: Place,
    caller: u64,
) {
    used(USAGE_SIGNED, block, change, live, reserved, place, caller);
}

unsafe extern "C-unwind" fn out_body(bytes: i64, live: u64, reserved: u64, place: Place, caller: u64) {
    ran_out(OUT, bytes, live, reserved, place, caller);
}

unsafe extern "C-unwind" fn out_signed_body(bytes: i64, live: u64, reserved: u64, place: Place, caller: u64) {
    ran_out(OUT_SIGNED, bytes, live, reserved, place, caller);
}

/// A block was handed out (`change` > 0) or taken back; `live` and `reserved` are the allocator's sums after that.
fn used(name: &CStr, block: u64, change: i64, live: u64, reserved: u64, place: Place, caller: u64) {
    if let Some(ordinal) = place.ordinal() {
        if change > 0 {
            let event = AllocationEvent {
                space: Space::Tensor,
                device: Device::Reported(ordinal),
                ..AllocationEvent::new(ALLOCATOR, Kind::Tensor, change as u64)
            };
            blocks::handed_out(block, &event);
        } else if change < 0 {
            blocks::taken_back(Space::Tensor, block);
        }
        recorder::quietly(|| {
            let Some(recording) = recorder::running() else { return };
            recording.allocator_reported(context::reported_device(recording, ordinal), change, live, reserved);
        });
    }
    if let Some(meant) = meant(name, caller) {
        type Usage = unsafe extern "C-unwind" fn(u64, i64, u64, u64, Place);
        // SAFETY: libc10's function of this name, whose argument types the name itself spells out.
        unsafe { std::mem::transmute::<*const c_void, Usage>(meant)(block, change, live, reserved, place) }
    }
}

/// The allocator has given up on a request.
fn ran_out(name: &CStr, bytes: i64, live: u64, reserved: u64, place: Place, caller: u64) {
    if let Some(ordinal) = place.ordinal() {
        let event = AllocationEvent {
            space: Space::Tensor,
            device: Device::Reported(ordinal),
            ..AllocationEvent::new(ALLOCATOR, Kind::Tensor, bytes.max(0) as u64)
        };
        recorder::failed(OUT_OF_MEMORY, &event);
    }
    if let Some(meant) = meant(name, caller) {
        type Out = unsafe extern "C-unwind" fn(i64, u64, u64, Place);
        // SAFETY: as in `used`.
        unsafe { std::mem::transmute::<*const c_void, Out>(meant)(bytes, live, reserved, place) }
    }
}

/// Answers of `meant` for each call site and name.
static MEANT: Memo<256> = Memo::new();

/// To be called when something was unloaded.
pub fn generation_changed() {
    MEANT.clear();
}

/// The definition that the code at `caller` would have reached without ours.
fn meant(name: &CStr, caller: u64) -> Option<*const c_void> {
    let generation = real::GENERATION.load(Acquire);
    let key = mix(mix(caller ^ (name.as_ptr() as u64).rotate_left(32)).wrapping_add(generation)).max(1);
    // While something is being unloaded, another module may lie where the caller of an answer did.
    if !stacks::are_closing()
        && let Some(known) = MEANT.get(key)
    {
        return Some(known as *const c_void);
    }
    // A forked child of a process that was recording: the profiler goes without, since CUDA does not work there anyway.
    if loader::list_is_unsafe() {
        return None;
    }
    let found = recorder::quietly(|| look_for(name, caller)).flatten()?;
    MEANT.put(key, found as u64);
    Some(found)
}

/// Several libc10 may be loaded: the caller means itself, or the one in its own folder, or else whichever there is.
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
        if real::is_ours(found as u64) {
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
