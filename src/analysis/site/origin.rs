//! What requested memory on behalf of the user's line: a CUDA library, or a caching allocator.
//!
//! The first frame outside cudart and the driver identifies memory of cuBLAS, cuDNN or NCCL. These libraries contain a
//! copy of cudart, so the module decides before the function does. A caching allocator keeps the memory that it gets
//! from CUDA and hands out parts of it: its memory is a *pool*, which is cached and not a leak. Deliberately absent:
//! the blocks that a framework hands out of its pool; they have separate records.

use super::{Frame, Role};
use crate::analysis::function_name::plain;

/// CUDA libraries, and the prefixes of their file names (`libcublasLt.so.13`).
const LIBRARIES: &[(&str, &str)] = &[
    ("cuBLAS", "libcublas libnvblas"),
    ("cuDNN", "libcudnn"),
    ("NCCL", "libnccl"),
    ("NVSHMEM", "libnvshmem nvshmem_"),
    ("cuSPARSELt", "libcusparseLt"),
    ("cuSPARSE", "libcusparse"),
    ("cuSOLVER", "libcusolver"),
    ("cuFFT", "libcufft"),
    ("cuRAND", "libcurand"),
    ("cuQuantum", "libcutensornet libcustatevec"),
    ("cuTENSOR", "libcutensor"),
    ("cuDSS", "libcudss"),
    ("cuFile", "libcufile"),
    ("CUPTI", "libcupti"),
    ("TensorRT", "libnvinfer"),
    ("nvJPEG", "libnvjpeg"),
    ("nvJPEG2000", "libnvjpeg2k"),
    ("nvCOMP", "libnvcomp"),
    ("NVRTC", "libnvrtc"),
    ("nvJitLink", "libnvJitLink"),
    ("NPP", "libnpp"),
    ("UCX", "libuct_cuda libucm_cuda libucp"),
    ("MPI", "libmpi"),
];

/// The longest prefix decides.
pub(super) fn library_of_module(module: &str) -> Option<&'static str> {
    let starts = LIBRARIES.iter().flat_map(|(name, starts)| {
        let matching = starts.split_whitespace().filter(|start| module.starts_with(start));
        matching.map(|start| (start.len(), *name))
    });
    starts.max_by_key(|(length, _)| *length).map(|(_, name)| name)
}

/// The prefixes of the functions of CUDA libraries, for libraries that are linked statically into another module.
const FUNCTIONS: &[(&str, &str)] = &[
    ("cuBLAS", "cublasLt cublas"),
    ("cuDNN", "cudnn"),
    ("NCCL", "nccl pnccl"),
    ("NVSHMEM", "nvshmemi_ nvshmem_ nvshmemx_"),
    ("cuSPARSE", "cusparse"),
    ("cuSOLVER", "cusolver"),
    ("cuFFT", "cufft"),
    ("cuRAND", "curand"),
];

/// How the names of the functions end that hand out memory of a pool of PyTorch's. Others request the pool's memory.
const HAND_OUT: [&str; 3] = ["::alloc_found_block", "::malloc", "::allocate"];
/// How the names of PyTorch's functions in `at::cuda` end that request a workspace for cuBLAS.
const WORKSPACES: [&str; 3] = ["Workspace", "WorkspaceForHandle", "CUDABlasHandle"];

/// Whether a tensor is a workspace that PyTorch keeps for cuBLAS, from the first product of matrices on.
fn is_workspace(frames: &[Frame]) -> bool {
    // In backward, the line of the forward pass is the first frame.
    let native = frames.iter().skip_while(|frame| frame.is_python());
    let mut names = native.map_while(|frame| frame.function).map(plain).peekable();
    let is_allocator = |name: &str| name.starts_with("c10::");
    let ends = |name: &str, ends: [&str; 3]| ends.iter().any(|end| name.ends_with(end));
    let first = names.peek();
    first.is_some_and(|name| is_allocator(name) && ends(name, HAND_OUT)) && {
        let requests = names.find(|name| !is_allocator(name));
        requests.is_some_and(|name| name.starts_with("at::cuda::") && ends(&name, WORKSPACES))
    }
}

/// Accepts `cublasCreate_v2`, but not a user's `cublas_helper`.
pub(super) fn library_of_function(name: &str) -> Option<&'static str> {
    let is_of = |start: &str| {
        let behind = name.strip_prefix(start);
        behind.is_some_and(|behind| start.ends_with('_') || behind.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    let found = FUNCTIONS
        .iter()
        .find(|(_, starts)| starts.split_whitespace().any(is_of));
    found.map(|(library, _)| *library)
}

/// The library that requested the memory, by the first frame outside cudart and the driver; that of a workspace, although PyTorch
/// keeps it.
pub(super) fn library(frames: &[Frame]) -> Option<&'static str> {
    if is_workspace(frames) {
        return Some("cuBLAS");
    }
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
const STATIC_CONSTRUCTORS: &str = "\
    _GLOBAL__sub_I_ _GLOBAL__I_ __static_initialization_and_destruction_ __cxx_global_var_init __libc_csu_init call_init";

pub(super) fn is_static_constructor(frame: &Frame) -> bool {
    let name = frame.function.unwrap_or_default();
    STATIC_CONSTRUCTORS
        .split_whitespace()
        .any(|start| name.starts_with(start))
}

pub const PYTORCH: &str = "PyTorch";
pub const XLA: &str = "XLA";

/// Caching allocators: a part of their functions' names, a part of their module's path if the name is ambiguous, and their owner. Only
/// the caching part of an allocator is listed: PyTorch's without caching and XLA's others keep no memory.
const CACHES: &[(&str, &str, &str)] = &[
    ("::DeviceCachingAllocator::", "", PYTORCH),
    ("CachingHostAllocator", "", PYTORCH),
    ("BFCAllocator", "tensorflow", "TensorFlow"),
    ("BFCAllocator", "onnxruntime", "ONNX Runtime"),
    ("BFCArena", "onnxruntime", "ONNX Runtime"),
    ("BFCAllocator", "", XLA),
    ("MemoryPool", CUPY, "CuPy"),
    ("rmm::mr::pool_memory_resource", "", "RMM"),
    ("rmm::mr::arena_memory_resource", "", "RMM"),
    ("rmm::mr::fixed_size_memory_resource", "", "RMM"),
    // Since 2026 these are handles of the classes that have the memory.
    ("rmm::mr::detail::pool_memory_resource_impl", "", "RMM"),
    ("rmm::mr::detail::arena_memory_resource_impl", "", "RMM"),
    ("rmm::mr::detail::fixed_size_memory_resource_impl", "", "RMM"),
];

/// CuPy's compiled module contains only its allocator.
const CUPY: &str = "cupy/cuda/memory";

/// The owner of the caching allocator that a frame belongs to. A recording is often read where the program's libraries
/// are missing, so frames have no names. The module decides then, if what it did is known.
pub(super) fn caching_allocator(frame: &Frame, tensors_recorded: bool) -> Option<&'static str> {
    if frame.is_python() {
        return None;
    }
    let Some(function) = frame.function else {
        return by_module(frame, tensors_recorded);
    };
    let of_function =
        |(part, module, _): &&(&str, &str, &str)| function.contains(part) && frame.module.contains(module);
    CACHES.iter().find(of_function).map(|(.., owner)| *owner)
}

fn by_module(frame: &Frame, tensors_recorded: bool) -> Option<&'static str> {
    // Without caching, PyTorch's module allocates from CUDA for each tensor, but then no tensors are recorded.
    let pytorch = || tensors_recorded && frame.module_name().starts_with("libc10_cuda");
    match frame.module.contains(CUPY) {
        true => Some("CuPy"),
        false => pytorch().then_some(PYTORCH),
    }
}
