//! What requested memory on behalf of the user's line: a CUDA library, or a caching allocator.
//!
//! The first frame outside cudart and the driver identifies memory of cuBLAS, cuDNN or NCCL. These libraries contain a
//! copy of cudart, so the module decides before the function does. A caching allocator keeps the memory that it gets
//! from CUDA and hands out parts of it: its memory is a *pool*, which is cached and not a leak. Deliberately absent:
//! the blocks that a framework hands out of its pool; they have separate records.

use super::{Frame, Role};
use crate::analysis::function_name::plain;

/// CUDA libraries by the prefix of their file names (`libcublasLt.so.13`).
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

/// Prefixes of the functions of CUDA libraries, for libraries that are linked statically into another module.
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

/// Accepts `cublasCreate_v2`, but not a user's `cublas_helper`.
pub(super) fn library_of_function(name: &str) -> Option<&'static str> {
    FUNCTIONS.iter().find_map(|(start, library)| {
        let behind = name.strip_prefix(start)?;
        (start.ends_with('_') || behind.starts_with(|c: char| c.is_ascii_uppercase())).then_some(*library)
    })
}

/// The library that requested the memory, by the first frame outside cudart and the driver.
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

/// Names that compilers and the loader give to code that constructs static objects.
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

/// A caching allocator: a part of its functions' names, a part of their module's path if the name is ambiguous, and its
/// owner. Only the caching part of an allocator is listed: PyTorch's without caching and XLA's others keep no memory.
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
    cache("rmm::mr::fixed_size_memory_resource", "", "RMM"),
    // Since 2026 these are handles of the classes that have the memory.
    cache("rmm::mr::detail::pool_memory_resource_impl", "", "RMM"),
    cache("rmm::mr::detail::arena_memory_resource_impl", "", "RMM"),
    cache("rmm::mr::detail::fixed_size_memory_resource_impl", "", "RMM"),
];

/// The owner of the caching allocator that a frame belongs to. A recording is often read where the program's libraries
/// are missing, so frames have no names. The module decides then, if what it did is known.
pub(super) fn caching_allocator(frame: &Frame, tensors_recorded: bool) -> Option<&'static str> {
    if frame.is_python() {
        return None;
    }
    let Some(function) = frame.function else {
        return by_module(frame, tensors_recorded);
    };
    let cache = CACHES
        .iter()
        .find(|cache| function.contains(cache.function) && frame.module.contains(cache.module))?;
    Some(cache.owner)
}

fn by_module(frame: &Frame, tensors_recorded: bool) -> Option<&'static str> {
    // CuPy's compiled module contains only its allocator.
    let cupy = CACHES
        .iter()
        .find(|cache| cache.module.starts_with("cupy/") && frame.module.contains(cache.module));
    // Without caching, PyTorch's module allocates from CUDA for each tensor, but then no tensors are recorded.
    let pytorch = || tensors_recorded && frame.module_name().starts_with("libc10_cuda");
    cupy.map(|cache| cache.owner).or_else(|| pytorch().then_some(PYTORCH))
}
