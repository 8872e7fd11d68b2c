//! Error numbers and their names, which work before `cuInit` and after exit.

use crate::arguments::Out;
use crate::exports::early_exports;
use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::*;
use std::ffi::{CStr, c_char, c_uint};

macro_rules! results {
    ($( $name:ident )*) => {
        const RESULTS: &[(CUresult, &str)] = &[ $( ($name, concat!(stringify!($name), "\0")) ),* ];
    };
}

results! {
    CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_NOT_INITIALIZED
    CUDA_ERROR_DEINITIALIZED CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_DEVICE CUDA_ERROR_INVALID_IMAGE
    CUDA_ERROR_INVALID_CONTEXT CUDA_ERROR_MAP_FAILED CUDA_ERROR_UNMAP_FAILED CUDA_ERROR_ALREADY_MAPPED
    CUDA_ERROR_NOT_MAPPED CUDA_ERROR_UNSUPPORTED_LIMIT CUDA_ERROR_PEER_ACCESS_UNSUPPORTED CUDA_ERROR_INVALID_SOURCE
    CUDA_ERROR_FILE_NOT_FOUND CUDA_ERROR_OPERATING_SYSTEM CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_ILLEGAL_STATE
    CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_READY CUDA_ERROR_ILLEGAL_ADDRESS CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    CUDA_ERROR_LAUNCH_TIMEOUT CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE CUDA_ERROR_CONTEXT_IS_DESTROYED
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED CUDA_ERROR_LAUNCH_FAILED
    CUDA_ERROR_NOT_PERMITTED CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED CUDA_ERROR_STREAM_CAPTURE_UNMATCHED CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY CUDA_ERROR_UNKNOWN
}

/// The result with this number.
pub fn result(number: c_uint) -> Option<CUresult> {
    RESULTS
        .iter()
        .find(|(result, _)| *result as c_uint == number)
        .map(|(result, _)| *result)
}

fn name(number: c_uint) -> Result<&'static CStr, CUresult> {
    let text = RESULTS
        .iter()
        .find(|(result, _)| *result as c_uint == number)
        .map(|(_, text)| *text);
    text.and_then(|text| CStr::from_bytes_with_nul(text.as_bytes()).ok())
        .ok_or(CUDA_ERROR_INVALID_VALUE)
}

early_exports! {
    fn cuGetErrorName(error: c_uint, out: Out<*const c_char>) { out.put(name(error)?.as_ptr()) }
    fn cuGetErrorString(error: c_uint, out: Out<*const c_char>) { out.put(name(error)?.as_ptr()) }
    fn cuDriverGetVersion(out: Out<std::ffi::c_int>) { out.put(crate::lookups::driver_version()) }
}
