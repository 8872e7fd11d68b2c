//! `cuGetProcAddress` and its second ABI: from a base name, a CUDA version and flags to an exported address.
//!
//! The result is always the address of an export, never of an alias, as in every real driver. A base name leads to the
//! newest ABI not newer than the requested version; flag 2 prefers the per-thread-stream variant.

use crate::arguments::{In, Out};
use crate::exports::Export;
use crate::gate::Outcome;
use cudarc::driver::sys::CUresult::*;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The newest version whose functions are implemented.
const NEWEST: c_int = 13040;

/// The reported version: `CULEAK_FAKE_VERSION`, or the newest.
pub fn driver_version() -> c_int {
    static VERSION: OnceLock<c_int> = OnceLock::new();
    *VERSION.get_or_init(|| {
        crate::settings::variable("CULEAK_FAKE_VERSION")
            .and_then(|text| text.parse().ok())
            .unwrap_or(NEWEST)
    })
}

const PER_THREAD_STREAM: u64 = 2;
const FOUND: c_uint = 0;
const NOT_FOUND: c_uint = 1;

/// The version from which a base name means a suffixed export. Names not listed have one ABI, or `_v2` since 3020.
const SINCE: &[(&str, c_int)] = &[
    ("cuGetProcAddress_v2", 12000),
    ("cuMemHostRegister_v2", 6050),
    ("cuIpcOpenMemHandle_v2", 11000),
    ("cuGraphInstantiate_v2", 11000),
    ("cuGraphAddNode_v2", 12030),
    ("cuGraphAddNode_v3", 13040),
    ("cuGraphAddKernelNode_v2", 12000),
    ("cuGraphAddDependencies_v2", 12030),
    ("cuStreamBeginCapture_v2", 10010),
    ("cuStreamGetCaptureInfo_v2", 11030),
    ("cuStreamGetCaptureInfo_v3", 12030),
    ("cuStreamUpdateCaptureDependencies_v2", 12030),
    ("cuStreamDestroy_v2", 4000),
    ("cuStreamGetCtx_v2", 12050),
    ("cuEventDestroy_v2", 4000),
    ("cuEventElapsedTime_v2", 12080),
    ("cuCtxCreate_v2", 3020),
    ("cuCtxCreate_v3", 11040),
    ("cuCtxCreate_v4", 12050),
    ("cuCtxDestroy_v2", 4000),
    ("cuCtxPushCurrent_v2", 4000),
    ("cuCtxPopCurrent_v2", 4000),
    ("cuCtxGetDevice_v2", 13000),
    ("cuCtxSynchronize_v2", 13000),
    ("cuDevicePrimaryCtxRelease_v2", 11000),
    ("cuDevicePrimaryCtxReset_v2", 11000),
    ("cuDevicePrimaryCtxSetFlags_v2", 11000),
    ("cuDeviceGetUuid_v2", 11040),
    ("cuMemAdvise_v2", 12020),
    ("cuMemPrefetchAsync_v2", 12020),
    ("cuMulticastBindMem_v2", 13010),
    ("cuMulticastBindAddr_v2", 13010),
];

/// Base names that did not exist in the first version; requests for older versions find nothing.
const FIRST: &[(&str, c_int)] = &[("cuGetProcAddress", 11030)];

fn tables() -> [&'static [&'static [Export]]; 13] {
    [
        crate::verbs::EXPORTS,
        crate::names::EXPORTS,
        crate::devices::EXPORTS,
        crate::contexts::EXPORTS,
        crate::memory::EXPORTS,
        crate::arrays::EXPORTS,
        crate::streams::EXPORTS,
        crate::pools::EXPORTS,
        crate::graphs::EXPORTS,
        crate::vmm::EXPORTS,
        crate::sharing::EXPORTS,
        crate::modules::EXPORTS,
        crate::copies::EXPORTS,
    ]
}

fn export(name: &str) -> Option<*mut c_void> {
    let found = tables()
        .into_iter()
        .flatten()
        .copied()
        .flatten()
        .find(|export| export.name == name)?;
    Some(found.address.cast_mut().cast())
}

fn since(symbol: &str) -> c_int {
    let listed = SINCE
        .iter()
        .chain(FIRST)
        .find(|(name, _)| *name == symbol)
        .map(|(_, version)| *version);
    listed.unwrap_or(if symbol.ends_with("_v2") { 3020 } else { 0 })
}

fn find(base: &str, version: c_int, flags: u64) -> Option<*mut c_void> {
    // Suffixed names are not base names.
    if base
        .rsplit('_')
        .next()
        .is_some_and(|end| matches!(end, "v2" | "v3" | "v4" | "ptsz" | "ptds"))
    {
        return None;
    }
    // Functions of a newer driver, which nobody calls.
    if base.starts_with("cuNewer") {
        return export("cuGetErrorString");
    }
    let symbols = [
        format!("{base}_v4"),
        format!("{base}_v3"),
        format!("{base}_v2"),
        base.to_string(),
    ];
    let (symbol, address) = symbols
        .iter()
        .filter(|symbol| since(symbol) <= version)
        .find_map(|symbol| {
            // A function of which only the newest ABI exists here is found for old versions too.
            export(symbol).map(|address| (symbol, address))
        })?;
    let variant = |ending: &str| export(&format!("{symbol}{ending}"));
    match flags & PER_THREAD_STREAM {
        0 => Some(address),
        _ => variant("_ptsz").or_else(|| variant("_ptds")).or(Some(address)),
    }
}

/// The 4-argument ABI: not found is an error.
pub fn look_up(symbol: In<c_char>, out: Out<*mut c_void>, version: c_int, flags: u64) -> Outcome {
    out.check()?;
    if version > driver_version() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let name = symbol.text()?;
    let found = find(&name, version, flags);
    if found.is_none() {
        crate::gate::note(&format!("not-found {name} {version} {flags}"));
    }
    out.put(found.unwrap_or(std::ptr::null_mut()))?;
    found.map(|_| ()).ok_or(CUDA_ERROR_NOT_FOUND)
}

/// The 5-argument ABI: not found is success with a null pointer.
pub fn look_up_v2(
    symbol: In<c_char>,
    out: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_uint>,
) -> Outcome {
    match look_up(symbol, out, version, flags) {
        Err(CUDA_ERROR_NOT_FOUND) => status.put_if_wanted(NOT_FOUND),
        other => {
            status.put_if_wanted(FOUND);
            return other;
        }
    }
    Ok(())
}
