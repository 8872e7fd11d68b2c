//! The role of a frame, by the names of its function, its source file and its module.
//!
//! The lists below describe other projects' programs and were collected from their stacks. They may be incomplete: an
//! unknown frame counts as the user's, which shows an additional line and hides nothing. Deliberately absent:
//! addresses.

use std::sync::OnceLock;

use super::{Frame, Role, python, wrapper};
use crate::analysis::function_name::plain;
use crate::analysis::site::file_name;
use crate::analysis::suppressions::Pattern;
use crate::cuda_functions::Api;
use crate::snapshot::gradient_of;

/// The role, and whether the program's own code is a wrapper for its name alone.
pub(super) fn of(frame: &Frame) -> (Role, bool) {
    match by_lists(frame) {
        role @ (Role::User | Role::Library | Role::Wrapper) => match named(frame) {
            Some(true) => (Role::Wrapper, false),
            Some(false) if role == Role::Wrapper => (Role::User, false),
            None if role == Role::User && wrapper::is_one(frame) => (Role::Wrapper, true),
            _ => (role, false),
        },
        role => (role, false),
    }
}

/// What the user calls wrappers: code that requests memory for its callers, so that a caller is the call site.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wrappers {
    /// Functions, files and modules.
    pub named: Vec<Pattern>,
    /// Those that are none, whatever their names are.
    pub excepted: Vec<Pattern>,
}

static WRAPPERS_OF_USER: OnceLock<Wrappers> = OnceLock::new();

/// Sets what the user calls wrappers. Once, before any stack is read.
pub fn set_wrappers(wrappers: Wrappers) {
    WRAPPERS_OF_USER.get_or_init(|| wrappers);
}

/// Whether the user calls it a wrapper; `None`: the user does not say.
fn named(frame: &Frame) -> Option<bool> {
    let wrappers = WRAPPERS_OF_USER.get()?;
    let is_of = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches_frame(frame));
    match () {
        () if is_of(&wrappers.excepted) => Some(false),
        () if is_of(&wrappers.named) => Some(true),
        () => None,
    }
}

fn by_lists(frame: &Frame) -> Role {
    if frame.is_python() {
        let function = frame.function.unwrap_or_default();
        let function = gradient_of(function).unwrap_or(function);
        return python::role(function, frame.file.unwrap_or_default());
    }
    let module = frame.module_name();
    if starts_with_any(module, RUNTIME_MODULES) {
        return Role::Runtime;
    }
    // The interpreter's own extension modules, such as `_asyncio`, are in a folder of this name.
    if is_interpreter(module) || frame.module.contains("/lib-dynload/") {
        return Role::Interpreter;
    }
    let inside_framework = is_framework(frame.module) || super::origin::library_of_module(module).is_some();
    // The C and C++ libraries are generic code, whatever their functions are called.
    let own = if super::below_main::is_system(module) {
        Role::Wrapper
    } else {
        Role::User
    };
    let Some(function) = frame.function else {
        return if inside_framework { Role::Framework } else { own };
    };
    let name = plain(function);
    if is_cuda_call(&name, frame.file) || is_static_cudart(&name) {
        Role::Runtime
    } else if is_inside_allocator(&name) {
        Role::Allocator
    } else if is_backward(&name) {
        Role::Operator
    } else if is_interpreter_function(&name) {
        Role::Interpreter
    } else if inside_framework || is_framework_function(&name) || super::origin::library_of_function(&name).is_some() {
        Role::Framework
    } else if is_wrapper(&name) || frame.file.is_some_and(is_library_source) {
        Role::Wrapper
    } else {
        own
    }
}

/// Functions of frameworks' allocators, which request memory for every caller in the same way.
fn is_inside_allocator(name: &str) -> bool {
    const ALLOCATORS: &str = "\
        c10::cuda::CUDACachingAllocator:: CachingHostAllocator ::BFCAllocator:: onnxruntime::BFCArena::";
    ALLOCATORS.split_whitespace().any(|part| name.contains(part))
}

/// Whether a function is an operator of PyTorch's backward pass. It tells what requested the memory, for the line that called
/// `backward()`. Those in Python have lines of their own.
fn is_backward(name: &str) -> bool {
    name.starts_with("torch::autograd::") && name.ends_with("::apply") && !name.ends_with("PyNode::apply")
}

/// `MmBackward0` of `torch::autograd::generated::MmBackward0::apply(…)`, as PyTorch itself names the operator. Other names as they are.
pub(super) fn short(function: &str) -> &str {
    let generated = function.strip_prefix("torch::autograd::generated::");
    let operator = generated.and_then(|name| name.split_once("::apply("));
    operator.map_or(function, |(operator, _)| operator)
}

/// Whether a text starts with one of these words.
fn starts_with_any(text: &str, words: &str) -> bool {
    words.split_whitespace().any(|start| text.starts_with(start))
}

/// The CUDA driver, its runtime and culeak, by the prefix of the file name.
const RUNTIME_MODULES: &str = "libcuda.so libcudart.so libcudart- libculeak libnvidia- libcudadebugger";

/// Frameworks, by the prefixes of their libraries' file names.
const FRAMEWORK_MODULES: &str = "\
    libtorch libc10 libcaffe2 libshm.so libaoti_ xla_cuda_plugin xla_extension libjax_common \
    pjrt_c_api_gpu_plugin libtensorflow _pywrap_tensorflow libonnxruntime librmm.so libtriton";

/// Frameworks, by the Python package that contains their compiled parts.
const FRAMEWORK_PACKAGES: &str = "\
    torch torchvision torchaudio functorch cupy cupy_backends jaxlib jax_plugins jax_cuda12_plugin \
    jax_cuda13_plugin numba numba_cuda llvmlite triton cuda rmm cudf pylibraft tensorflow onnxruntime nvidia \
    numpy";

fn is_framework(module: &str) -> bool {
    let package = python::package_of(module);
    starts_with_any(file_name(module), FRAMEWORK_MODULES)
        || package.is_some_and(|package| FRAMEWORK_PACKAGES.split_whitespace().any(|known| known == package))
}

/// Whether a file is of CUDA, of a framework or of another package of Python, and so no part of the program itself.
pub(in crate::analysis) fn is_library_module(path: &str) -> bool {
    let file = file_name(path);
    let is_known = starts_with_any(file, RUNTIME_MODULES) || super::origin::library_of_module(file).is_some();
    let is_one = is_known || is_framework(path) || python::package_of(path).is_some();
    is_one && !file.starts_with("libculeak")
}

/// Name spaces of frameworks, for their templates and generated code in other modules.
const FRAMEWORK_FUNCTIONS: &str = "\
    c10:: at:: torch:: caffe2:: pybind11:: nanobind:: THPVariable_ THPFunction_ THPModule_ THPEngine_ xla:: \
    tsl:: stream_executor:: pjrt:: tensorflow:: __pyx_";

fn is_framework_function(name: &str) -> bool {
    starts_with_any(name, FRAMEWORK_FUNCTIONS)
}

/// `libpython3.12.so.1.0`, `python3.12`, `python3`, and the libraries that ctypes and cffi call through.
fn is_interpreter(module: &str) -> bool {
    let executable = module.strip_prefix("python").is_some_and(|version| {
        let version = version.trim_end_matches(['t', 'd', 'm', 'u']);
        version.chars().all(|c| c.is_ascii_digit() || c == '.')
    });
    executable || starts_with_any(module, "libpython3 _ctypes. libffi.so libffi- _cffi_backend.")
}

/// Functions of an interpreter that is linked into the program.
fn is_interpreter_function(name: &str) -> bool {
    const STARTS: &str = "\
        _PyEval_ _PyObject_ _PyFunction_ PyObject_ PyEval_ PyRun_ Py_RunMain Py_BytesMain pymain_ PyVectorcall_";
    const NAMES: &str =
        "method_vectorcall slot_tp_call slot_tp_init type_call cfunction_call run_mod run_eval_code_obj";
    starts_with_any(name, STARTS) || NAMES.split_whitespace().any(|known| known == name)
}

/// Name spaces of generic code that requests memory for its caller.
const WRAPPERS: &str = "\
    thrust:: cub:: cuda:: rmm:: culeak::rmm_adaptor:: std:: __gnu_cxx:: core:: alloc:: cudarc:: cust::";

fn is_wrapper(name: &str) -> bool {
    name.starts_with("operator new") || starts_with_any(name.strip_prefix('<').unwrap_or(name), WRAPPERS)
}

/// Sources of the standard libraries. DWARF often names functions inlined from there without their name space.
fn is_library_source(file: &str) -> bool {
    const FOLDERS: &str = "/include/c++/ /c++/v1/ /rustc/ /include/thrust/ /include/cub/ /include/cuda/std/";
    FOLDERS.split_whitespace().any(|folder| file.contains(folder))
}

/// A CUDA function, or its typed overload in a CUDA header, but not a user's function of that name.
fn is_cuda_call(name: &str, file: Option<&str>) -> bool {
    Api::find(name.as_bytes()).is_some() && file.is_none_or(|file| file_name(file).starts_with("cuda"))
}

/// Internal names of the statically linked runtime.
fn is_static_cudart(name: &str) -> bool {
    starts_with_any(name, "cudart:: libcudart_static_ __cudart")
}

/// Functions of a statically linked runtime that culeak does not hook (`cudaGraphInstantiate`, `cudaSetDevice`): such a function
/// directly encloses the runtime's internal ones. Those that are hooked are known by name.
pub(super) fn fold_static_cudart(frames: &mut [Frame]) {
    for inner in 0..frames.len().saturating_sub(1) {
        let is_inside = frames[inner]
            .function
            .is_some_and(|name| is_static_cudart(&plain(name)));
        let outer = &mut frames[inner + 1];
        let is_exported = |name: &str| {
            name.strip_prefix("cuda")
                .is_some_and(|rest| rest.starts_with(char::is_uppercase))
        };
        if is_inside && outer.file.is_none() && outer.function.is_some_and(|name| is_exported(&plain(name))) {
            outer.role = Role::Runtime;
        }
    }
}

/// Whether the innermost frame belongs to a statically linked CUDA runtime. Without a function name, the module
/// decides: it is if the module is the user's own and the program has a runtime.
pub(super) fn is_static_runtime(innermost: &Frame, program_has_runtime: bool) -> bool {
    match innermost.function {
        Some(function) => is_static_cudart(&plain(function)),
        None => program_has_runtime && innermost.role == Role::User && !innermost.module.is_empty(),
    }
}
