//! Who stands between the user's line and CUDA: a library of CUDA's, or a caching allocator.
//!
//! Memory that cuBLAS, cuDNN or NCCL take for themselves is theirs by the first frame outside cudart and the driver;
//! those libraries carry a cudart of their own, so what counts is the module, not the function. A caching allocator
//! keeps what it got from CUDA and hands out parts of it: its memory is a *pool*, cached and never a leak as such.
//! Deliberately absent: what a framework handed out of its pool; those are records of their own.

use super::{Frame, Role};
use crate::analysis::function_name::plain;

/// Libraries by the beginning of their file names, with or without a version behind (`libcublasLt.so.13`).
const LIBRARIES: &[(&str, &str)] = &[
    ("libcublas", "cuBLAS"),
    ("libnvblas", "cuBLAS"),
    ("libcudnn", "cuDNN"),
    ("libnccl", "NCCL"),
    ("libnvshmem", "NVSHMEM"),
    ("nvshmem_", "NVSHMEM"),
    ("libcusparseLt", "cuSPARSELt"),
    ("libcusparse", "cuSPARSE"),
    ("libcusolver", "cuSOLVER"),
    ("libcufft", "cuFFT"),
    ("libcurand", "cuRAND"),
    ("libcutensornet", "cuQuantum"),
    ("libcustatevec", "cuQuantum"),
    ("libcutensor", "cuTENSOR"),
    ("libcudss", "cuDSS"),
    ("libcufile", "cuFile"),
    ("libcupti", "CUPTI"),
    ("libnvinfer", "TensorRT"),
    ("libnvjpeg", "nvJPEG"),
    ("libnvjpeg2k", "nvJPEG2000"),
    ("libnvcomp", "nvCOMP"),
    ("libnvrtc", "NVRTC"),
    ("libnvJitLink", "nvJitLink"),
    ("libnpp", "NPP"),
    ("libuct_cuda", "UCX"),
    ("libucm_cuda", "UCX"),
    ("libucp", "UCX"),
    ("libmpi", "MPI"),
];

pub(super) fn library_of_module(module: &str) -> Option<&'static str> {
    let matching = LIBRARIES.iter().filter(|(start, _)| module.starts_with(start));
    matching.max_by_key(|(start, _)| start.len()).map(|(_, name)| *name)
}

/// The same for libraries linked statically into another module: their functions begin with the library's name.
const FUNCTIONS: &[(&str, &str)] = &[
    ("cublasLt", "cuBLAS"),
    ("cublas", "cuBLAS"),
    ("cudnn", "cuDNN"),
    ("nccl", "NCCL"),
    ("pnccl", "NCCL"),
    ("nvshmemi_", "NVSHMEM"),
    ("nvshmem_", "NVSHMEM"),
    ("nvshmemx_", "NVSHMEM"),
    ("cusparse", "cuSPARSE"),
    ("cusolver", "cuSOLVER"),
    ("cufft", "cuFFT"),
    ("curand", "cuRAND"),
];

/// `cublasCreate_v2`, but not `cublas_helper` of the user's.
pub(super) fn library_of_function(name: &str) -> Option<&'static str> {
    FUNCTIONS.iter().find_map(|(start, library)| {
        let behind = name.strip_prefix(start)?;
        (start.ends_with('_') || behind.starts_with(|c: char| c.is_ascii_uppercase())).then_some(*library)
    })
}

/// The library that asked CUDA for the memory, by the first frame outside cudart and the driver.
pub(super) fn library(frames: &[Frame]) -> Option<&'static str> {
    for frame in frames {
        let by_module = library_of_module(frame.module_name());
        let by_function = || library_of_function(&plain(frame.function?));
        if let Some(library) = by_module.or_else(by_function) {
            return Some(library);
        }
        if frame.role != Role::Runtime {
            return None;
        }
    }
    None
}

/// What the compiler and the loader call the code that makes static objects before `main`.
const STATIC_CONSTRUCTORS: &[&str] = &[
    "_GLOBAL__sub_I_",
    "_GLOBAL__I_",
    "__static_initialization_and_destruction_",
    "__cxx_global_var_init",
    "__libc_csu_init",
    "call_init",
];

pub(super) fn is_static_constructor(frame: &Frame) -> bool {
    let name = frame.function.unwrap_or_default();
    STATIC_CONSTRUCTORS.iter().any(|start| name.starts_with(start))
}

/// A caching allocator's functions, the module they must be in where the name is anybody's word, and whose it is. Names
/// are those of the caching part alone: PyTorch's allocator with caching off, or XLA's others, hand out what they get.
struct Cache {
    function: &'static str,
    module: &'static str,
    owner: &'static str,
}

const fn cache(function: &'static str, module: &'static str, owner: &'static str) -> Cache {
    Cache {
        function,
        module,
        owner,
    }
}

pub const PYTORCH: &str = "PyTorch";
pub const XLA: &str = "XLA";

const CACHES: &[Cache] = &[
    cache("::DeviceCachingAllocator::", "", PYTORCH),
    cache("CachingHostAllocator", "", PYTORCH),
    cache("BFCAllocator", "tensorflow", "TensorFlow"),
    cache("BFCAllocator", "onnxruntime", "ONNX Runtime"),
    cache("BFCArena", "onnxruntime", "ONNX Runtime"),
    cache("BFCAllocator", "", XLA),
    cache("MemoryPool", "cupy/cuda/memory", "CuPy"),
    cache("rmm::mr::pool_memory_resource", "", "RMM"),
    cache("rmm::mr::arena_memory_resource", "", "RMM"),
];

/// Whose caching allocator a frame belongs to. A recording is often read where the program's libraries are not, so that
/// nothing has a name; then the module must do, if it is known what the module was doing.
pub(super) fn caching_allocator(frame: &Frame, tensors_are_told: bool) -> Option<&'static str> {
    if frame.is_python() {
        return None;
    }
    let Some(function) = frame.function else {
        return by_module(frame, tensors_are_told);
    };
    let cache = CACHES
        .iter()
        .find(|cache| function.contains(cache.function) && frame.module.contains(cache.module))?;
    Some(cache.owner)
}

fn by_module(frame: &Frame, tensors_are_told: bool) -> Option<&'static str> {
    // CuPy's compiled module holds nothing but its allocator.
    let cupy = CACHES
        .iter()
        .find(|cache| cache.module.starts_with("cupy/") && frame.module.contains(cache.module));
    // PyTorch's hands out what it gets when it does not cache, but then it tells of no tensors.
    let pytorch = || tensors_are_told && frame.module_name().starts_with("libc10_cuda");
    cupy.map(|cache| cache.owner).or_else(|| pytorch().then_some(PYTORCH))
}
