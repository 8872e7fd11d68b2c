use super::*;
use crate::kind::Kind;
use crate::sample::{FrameText, MAIN, PYTHON, RUNTIME, START, Sample};
use crate::snapshot::Counter;

mod wrappers;

fn only_stack(frames: &[FrameText]) -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(frames);
    sample.holds(Kind::Device, "cudaMalloc", 1, 1, stack);
    sample.finish(1, 0)
}

fn site_of(frames: &[FrameText]) -> String {
    let snapshot = only_stack(frames);
    CallStacks::of(&snapshot)
        .get(Some(0))
        .site()
        .map_or_else(String::new, Frame::name)
}

fn shown(frames: &[FrameText]) -> Vec<String> {
    let snapshot = only_stack(frames);
    CallStacks::of(&snapshot)
        .get(Some(0))
        .shown()
        .map(Frame::name)
        .collect()
}

fn fingerprint(frames: &[FrameText]) -> Fingerprint {
    let snapshot = only_stack(frames);
    CallStacks::of(&snapshot).get(Some(0)).fingerprint
}

fn is_pool(frame: FrameText) -> bool {
    let snapshot = only_stack(&[RUNTIME, frame, MAIN]);
    CallStacks::of(&snapshot).get(Some(0)).pool
}

const USER: FrameText = ("Trainer::step(int)", "/src/train.cu:212", "/opt/app");

#[test]
fn the_site_is_the_users_innermost_frame() {
    assert_eq!(site_of(&[RUNTIME, USER, MAIN, START]), "Trainer::step(int)");
    assert_eq!(
        site_of(&[("cudaMalloc", "", "/opt/app"), USER, MAIN]),
        "Trainer::step(int)"
    );
    assert_eq!(
        site_of(&[("libcudart_static_0123", "", "/opt/app"), USER, MAIN]),
        "Trainer::step(int)"
    );
    assert_eq!(
        site_of(&[
            ("cudarc::driver::result::malloc_sync", "/x.rs:1", "/opt/app"),
            USER,
            MAIN
        ]),
        "Trainer::step(int)"
    );
    let typed = (
        "cudaError cudaMalloc<float>(float**, unsigned long)",
        "/cuda/include/cuda_runtime.h:9",
        "/opt/app",
    );
    assert_eq!(site_of(&[RUNTIME, typed, USER, MAIN]), "Trainer::step(int)");
}

#[test]
fn a_function_of_a_static_runtime_need_not_be_a_hooked_one() {
    let inside = ("libcudart_static_0123", "", "/opt/app");
    let exported = ("cudaGraphInstantiate", "", "/opt/app");
    assert_eq!(site_of(&[inside, exported, USER, MAIN]), "Trainer::step(int)");
    assert_eq!(shown(&[inside, exported, USER, MAIN]), ["Trainer::step(int)", "main"]);
    // The user's, although it is called like one.
    let wrapper = ("cudaGraphInstantiate", "/src/checked.cu:3", "/opt/app");
    assert_eq!(site_of(&[inside, wrapper, USER, MAIN]), "cudaGraphInstantiate");
    let unknown = ("cudaAllocator_grow", "", "/opt/app");
    assert_eq!(site_of(&[RUNTIME, unknown, USER, MAIN]), "cudaAllocator_grow");
    let lower = ("cuda_pool_grow", "", "/opt/app");
    assert_eq!(site_of(&[inside, lower, USER, MAIN]), "cuda_pool_grow");
}

#[test]
fn a_users_function_may_have_the_name_of_a_cuda_function() {
    let wrapper = ("cudaMalloc", "/src/checked.cu:3", "/opt/app");
    assert_eq!(shown(&[RUNTIME, wrapper, USER, MAIN])[0], "cudaMalloc");
    assert_eq!(site_of(&[RUNTIME, wrapper, USER, MAIN]), "Trainer::step(int)");
}

#[test]
fn a_stack_without_a_users_frame_has_a_site() {
    assert_eq!(site_of(&[RUNTIME]), "libcudart.so.13+0x1234");
    assert_eq!(
        site_of(&[RUNTIME, ("std::function<void()>::operator()()", "", "/opt/app")]),
        "std::function<void()>::operator()()"
    );
    assert_eq!(site_of(&[]), "");
}

#[test]
fn frames_below_main_are_folded() {
    assert_eq!(
        shown(&[RUNTIME, USER, MAIN, START, ("_start", "", "/opt/app")]),
        ["Trainer::step(int)", "main"]
    );
    // Stripped: libc and `_start` have no names.
    let (libc, start) = (("", "", "/usr/lib/libc.so.6"), ("", "", "/opt/app"));
    assert_eq!(shown(&[RUNTIME, USER, libc, libc, start]), ["Trainer::step(int)"]);
    // A C++ thread and a Rust thread.
    let cpp = ("execute_native_thread_routine", "", "/usr/lib/libstdc++.so.6");
    let invoke = (
        "void std::__invoke_impl<void, Work>(std::__invoke_other, Work&&)",
        "/usr/include/invoke.h:1",
        "/opt/app",
    );
    let (begin, clone) = (
        ("start_thread", "", "/usr/lib/libc.so.6"),
        ("clone3", "", "/usr/lib/libc.so.6"),
    );
    assert_eq!(shown(&[USER, invoke, cpp, begin, clone]), ["Trainer::step(int)"]);
    let short = (
        "std::sys::backtrace::__rust_begin_short_backtrace",
        "/rustc/x.rs:1",
        "/opt/app",
    );
    let once = ("core::ops::function::FnOnce::call_once", "/rustc/y.rs:1", "/opt/app");
    assert_eq!(
        shown(&[USER, once, short, ("main", "", "/opt/app"), START]),
        ["Trainer::step(int)"]
    );
}

#[test]
fn inlined_library_code_without_its_name_space_is_recognized_by_its_file() {
    let header = "/usr/include/c++/12/bits/invoke.h:61";
    let (invoke, run) = (("__invoke_impl", header, "/opt/app"), ("_M_run", header, "/opt/app"));
    let stripped = ("", "", "/usr/lib/libstdc++.so.6");
    assert_eq!(
        shown(&[RUNTIME, invoke, USER, invoke, run, stripped]),
        ["__invoke_impl", "Trainer::step(int)"]
    );
    assert_eq!(site_of(&[RUNTIME, invoke, USER, run, stripped]), "Trainer::step(int)");
    // If the start of the thread is missing, no frame is folded.
    assert_eq!(shown(&[RUNTIME, USER, invoke]).len(), 2);
}

#[test]
fn a_users_own_clone_is_not_a_thread_start() {
    let clone = ("clone", "/src/tensor.cu:8", "/opt/app");
    assert_eq!(shown(&[RUNTIME, clone, USER, MAIN]).len(), 3);
}

#[test]
fn fingerprints_do_not_depend_on_address_path_and_build() {
    let here = fingerprint(&[RUNTIME, USER, MAIN, START]);
    let elsewhere = ("Trainer::step(int)", "/home/ci/train.cu:212", "/ci/build/app");
    let main = ("main", "/home/ci/main.cu:12", "/ci/build/app");
    assert_eq!(here, fingerprint(&[elsewhere, main]));
    let mut moved = only_stack(&[RUNTIME, USER, MAIN, START]);
    for (nth, location) in moved.locations.iter_mut().enumerate() {
        location.address += 0x40 * (nth as u64 + 1);
    }
    for module in &mut moved.modules {
        module.bias += 0x7000_0000;
    }
    assert_eq!(CallStacks::of(&moved).get(Some(0)).fingerprint, here);
    let hashed = |hash: &str| fingerprint(&[(&format!("app::step::h{hash}"), "/a.rs:1", "/opt/app")]);
    assert_eq!(hashed("0123456789abcdef"), hashed("fedcba9876543210"));
}

#[test]
fn fingerprints_distinguish_lines_and_callers() {
    let other_line = ("Trainer::step(int)", "/src/train.cu:213", "/opt/app");
    assert_ne!(fingerprint(&[USER, MAIN]), fingerprint(&[other_line, MAIN]));
    assert_ne!(fingerprint(&[USER, MAIN]), fingerprint(&[USER, USER, MAIN]));
    let loose = |frames: &[FrameText]| {
        let snapshot = only_stack(frames);
        CallStacks::of(&snapshot).get(Some(0)).loose_fingerprint
    };
    assert_eq!(loose(&[USER, MAIN]), loose(&[other_line, MAIN]));
}

#[test]
fn fingerprints_ignore_addresses_outside_all_files() {
    let mut first = only_stack(&[("", "", ""), USER, MAIN]);
    let before = CallStacks::of(&first).get(Some(0)).fingerprint;
    first.locations[0].address = 0x7fff_1234_0000;
    assert_eq!(CallStacks::of(&first).get(Some(0)).fingerprint, before);
}

#[test]
fn caching_allocators_are_recognized_by_function_or_module() {
    assert!(is_pool((
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int)",
        "",
        "/v/libc10_cuda.so"
    )));
    // Without caching: the same library, but each tensor is a CUDA allocation.
    assert!(!is_pool((
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
        "",
        "/v/torch/lib/libc10_cuda.so"
    )));
    assert!(is_pool(("", "", "/v/cupy/cuda/memory.cpython-312.so")));
    assert!(is_pool((
        "tsl::BFCAllocator::Extend(unsigned long)",
        "",
        "/v/xla_cuda_plugin.so"
    )));
    assert!(is_pool((
        "__pyx_f_4cupy_4cuda_6memory_MemoryPool_malloc",
        "",
        "/v/cupy/cuda/memory.cpython-312.so"
    )));
    assert!(!is_pool(("my::MemoryPool::get()", "/src/pool.cu:1", "/opt/app")));
    assert!(!is_pool((
        "c10::cuda::getDefaultCUDAStream(signed char)",
        "",
        "/v/libc10_cuda.so"
    )));
    assert!(!is_pool(USER));
}

#[test]
fn without_names_recorded_tensors_identify_pytorchs_segments() {
    let mut snapshot = only_stack(&[RUNTIME, ("", "", "/v/torch/lib/libc10_cuda.so"), USER]);
    let is_pool = |snapshot: &Snapshot| CallStacks::of(snapshot).is_pool(Kind::Device, Some(0));
    // If no tensor was recorded, caching may be off.
    assert!(!is_pool(&snapshot));
    snapshot.counters.push(Counter {
        device: Some(0),
        kind: Kind::Tensor,
        live_count: 0,
        live_bytes: 0,
        peak_bytes: 512,
        peak_ns: 0,
        total_count: 1,
        total_bytes: 512,
        freed_count: 1,
        failed_count: 0,
    });
    assert!(is_pool(&snapshot));
    let mut own = only_stack(&[RUNTIME, USER]);
    own.counters = snapshot.counters;
    assert!(!is_pool(&own));
}

/// PyTorch's frames between a Python line and CUDA, innermost first, shortened from a real stack.
const TORCH: &[FrameText] = &[
    RUNTIME,
    (
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_block(int)",
        "",
        "/venv/lib/python3.12/site-packages/torch/lib/libc10_cuda.so",
    ),
    (
        "at::native::empty_cuda(long)",
        "",
        "/venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so",
    ),
    (
        "at::_ops::matmul::call(at::Tensor const&)",
        "",
        "/venv/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so",
    ),
    (
        "torch::autograd::THPVariable_matmul(_object*, _object*, _object*)",
        "",
        "/venv/lib/python3.12/site-packages/torch/lib/libtorch_python.so",
    ),
    ("method_vectorcall_VARARGS_KEYWORDS", "", "/usr/bin/python3.12"),
    ("_PyEval_EvalFrameDefault", "", "/usr/bin/python3.12"),
];
const LINEAR: FrameText = (
    "Linear.forward",
    "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:125",
    PYTHON,
);
const CALL: FrameText = (
    "Module._call_impl",
    "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py:1773",
    PYTHON,
);
const STEP: FrameText = ("training_step", "/home/me/train.py:212", PYTHON);
const SCRIPT: FrameText = ("<module>", "/home/me/train.py:300", PYTHON);
const RUNPY: FrameText = ("_run_code", "<frozen runpy>:88", PYTHON);
const INTERPRETER: &[FrameText] = &[
    ("_PyEval_EvalFrameDefault", "", "/usr/bin/python3.12"),
    ("Py_BytesMain", "", "/usr/bin/python3.12"),
    START,
    ("_start", "", "/usr/bin/python3.12"),
];

fn training(python: &[FrameText<'static>]) -> Vec<FrameText<'static>> {
    [TORCH, python, INTERPRETER].concat()
}

#[test]
fn the_site_of_a_python_program_is_the_users_innermost_line() {
    let stack = training(&[LINEAR, CALL, STEP, SCRIPT, RUNPY]);
    assert_eq!(site_of(&stack), "training_step");
    assert_eq!(shown(&stack), ["Linear.forward", "training_step", "<module>"]);
    let snapshot = only_stack(&stack);
    let stacks = CallStacks::of(&snapshot);
    let line = stacks.get(Some(0)).python_line().and_then(Frame::short_place);
    assert_eq!(line.as_deref(), Some("train.py:212"));
}

#[test]
fn a_users_extension_is_shown_and_its_caller_is_the_site() {
    let extension = ("fill_cache(at::Tensor)", "/home/me/fill.cpp:9", "/home/me/fill.so");
    let glue = ("pybind11::cpp_function::dispatcher(_object*)", "", "/home/me/fill.so");
    let stack = [&[RUNTIME, extension, glue], &[STEP, SCRIPT][..], INTERPRETER].concat();
    assert_eq!(site_of(&stack), "training_step");
    assert_eq!(shown(&stack), ["fill_cache(at::Tensor)", "training_step", "<module>"]);
}

#[test]
fn library_python_is_the_site_only_without_a_users_line() {
    assert_eq!(site_of(&training(&[CALL, LINEAR, RUNPY])), "Linear.forward");
}

#[test]
fn extension_modules_of_the_interpreter_are_no_callers() {
    const ASYNCIO: &str = "/usr/lib/python3.11/lib-dynload/_asyncio.cpython-311-x86_64-linux-gnu.so";
    let tasks = [("task_step_impl", "_asynciomodule.c:2690", ASYNCIO), ("", "", ASYNCIO)];
    let stack = [&TORCH[..4], &[STEP], &tasks, &[SCRIPT], INTERPRETER].concat();
    assert_eq!(shown(&stack), ["training_step", "<module>"]);
}

const LIBTORCH: &str = "/v/site-packages/torch/lib/libtorch_cpu.so";
const BACKWARD: FrameText = (
    "torch::autograd::generated::MulBackward0::apply(at::Tensor)",
    "",
    LIBTORCH,
);
const ENGINE: FrameText = ("torch::autograd::Engine::thread_main(int)", "", LIBTORCH);
const THREAD: FrameText = ("clone3", "", "/usr/lib/libc.so.6");
const ENTRY: FrameText = (
    "torch::autograd::python::PythonEngine::execute_with_graph_task(int)",
    "",
    LIBTORCH,
);
const EXECUTE: FrameText = ("torch::autograd::Engine::execute(int)", "", LIBTORCH);

#[test]
fn without_python_a_frameworks_purpose_is_the_site() {
    let stack = [&TORCH[..4], &[BACKWARD, ENGINE, THREAD]].concat();
    assert_eq!(site_of(&stack), "MulBackward0");
    assert_eq!(shown(&stack), ["MulBackward0"]);
    // A line of the C++ program is preferred, as always.
    assert_eq!(site_of(&[TORCH, &[USER, MAIN]].concat()), "Trainer::step(int)");
    assert_eq!(shown(&[TORCH, &[USER, MAIN]].concat()), ["Trainer::step(int)", "main"]);
}

#[test]
fn an_operator_of_backward_is_shown_and_the_line_that_called_backward_is_the_site() {
    let called = [&[ENTRY, EXECUTE, STEP, SCRIPT][..], INTERPRETER].concat();
    let stripped = ("", "", "/usr/lib/libstdc++.so.6");
    let native = [&TORCH[..4], &[BACKWARD, ENGINE, stripped, THREAD], &called].concat();
    assert_eq!(site_of(&native), "training_step");
    assert_eq!(shown(&native), ["MulBackward0", "training_step", "<module>"]);
    let nameless = ("", "", "/usr/lib/libc.so.6");
    let without_symbols = [&TORCH[..4], &[BACKWARD, ENGINE, nameless, nameless], &called].concat();
    assert_eq!(shown(&without_symbols), ["MulBackward0", "training_step", "<module>"]);
    // The line of the forward pass is shown, and is no call.
    let gradient = ("gradient of Net.forward", "/home/me/model.py:31", PYTHON);
    let with_forward = [&[gradient], &native[..]].concat();
    assert_eq!(site_of(&with_forward), "training_step");
    assert_eq!(shown(&with_forward)[..2], [gradient.0, "MulBackward0"]);
    // A function in Python keeps its line, and the caller's is below it.
    let custom = ("Double.backward", "/home/me/model.py:10", PYTHON);
    let own = [&TORCH[..4], &[custom, ENGINE, THREAD]].concat();
    let stack = [&own[..], &called].concat();
    assert_eq!(site_of(&stack), "Double.backward");
    assert_eq!(shown(&stack), ["Double.backward", "training_step", "<module>"]);
    let snapshot = only_stack(&stack);
    assert_eq!(CallStacks::of(&snapshot).get(Some(0)).own, own.len() - 1);
    // A pass within a pass, each with a thread.
    let inner = [&own[..], &[ENTRY, EXECUTE, custom, ENGINE, THREAD], &called].concat();
    assert_eq!(
        shown(&inner),
        ["Double.backward", "Double.backward", "training_step", "<module>"]
    );
    // Of a thread of the program the end is as before.
    let thread = [&TORCH[..4], &[BACKWARD, EXECUTE, USER, THREAD]].concat();
    assert_eq!(shown(&thread), ["MulBackward0", USER.0]);
}

#[test]
fn no_function_of_an_allocator_is_a_site() {
    let allocator = [
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_found_block(int)",
        "at::CachingHostAllocatorImpl<int>::allocate(unsigned long)",
        "tsl::BFCAllocator::AllocateRaw(unsigned long)",
        "onnxruntime::BFCArena::Alloc(unsigned long)",
    ];
    for function in allocator {
        let inside = (function, "", LIBTORCH);
        assert_eq!(site_of(&[inside, ENGINE, THREAD]), ENGINE.0);
        assert_eq!(
            site_of(&[inside, ("at::empty(int)", "", LIBTORCH), THREAD]),
            "at::empty(int)"
        );
        assert_eq!(site_of(&[inside, THREAD]), THREAD.0);
    }
}

#[test]
fn a_python_function_named_main_does_not_end_the_stack() {
    let main = ("main", "/home/me/train.py:250", PYTHON);
    assert_eq!(
        shown(&training(&[STEP, main, SCRIPT])),
        ["training_step", "main", "<module>"]
    );
}

#[test]
fn python_fingerprints_do_not_depend_on_folder_and_interpreter() {
    let here = fingerprint(&training(&[LINEAR, STEP, SCRIPT]));
    let linear = (
        "Linear.forward",
        "/opt/py/lib/python3.11/site-packages/torch/nn/modules/linear.py:125",
        PYTHON,
    );
    let (step, script) = (
        ("training_step", "/ci/train.py:212", PYTHON),
        ("<module>", "/ci/train.py:300", PYTHON),
    );
    let elsewhere = [
        &[RUNTIME],
        &[linear, step, script][..],
        &[("", "", "/usr/bin/python3.11")],
    ]
    .concat();
    assert_eq!(fingerprint(&elsewhere), here);
    let moved = ("training_step", "/ci/train.py:219", PYTHON);
    let loose = |frames: &[FrameText]| {
        let snapshot = only_stack(frames);
        let stacks = CallStacks::of(&snapshot);
        (
            stacks.get(Some(0)).loose_site_fingerprint,
            stacks.get(Some(0)).loose_fingerprint,
        )
    };
    assert_ne!(fingerprint(&training(&[LINEAR, moved, SCRIPT])), here);
    assert_eq!(
        loose(&training(&[LINEAR, moved, SCRIPT])),
        loose(&training(&[LINEAR, STEP, SCRIPT]))
    );
}

#[test]
fn memory_of_cuda_libraries_has_the_library_as_origin() {
    let library = |frames: &[FrameText]| {
        let snapshot = only_stack(frames);
        CallStacks::of(&snapshot).get(Some(0)).library
    };
    for (module, name) in [
        ("/v/site-packages/nvidia/cublas/lib/libcublasLt.so.13", "cuBLAS"),
        ("/usr/local/cuda/lib64/libcublas.so.12", "cuBLAS"),
        ("/v/libcudnn_engines_precompiled.so.9", "cuDNN"),
        ("/v/site-packages/nvidia/nccl/lib/libnccl.so.2", "NCCL"),
        ("/v/libnvshmem_host.so.3", "NVSHMEM"),
        ("/v/libcusparse.so.12", "cuSPARSE"),
        ("/v/libcusparseLt.so.0", "cuSPARSELt"),
        ("/v/libcufft.so.12", "cuFFT"),
    ] {
        // Their copy of cudart is in the same module.
        let inside = ("libcudart_static_0123", "", module);
        assert_eq!(
            library(&[RUNTIME, inside, ("", "", module), USER, MAIN]),
            Some(name),
            "{module}"
        );
        assert_eq!(
            site_of(&[RUNTIME, inside, ("", "", module), USER, MAIN]),
            "Trainer::step(int)"
        );
    }
    assert_eq!(
        library(&[RUNTIME, ("cublasCreate_v2", "", "/opt/app"), USER, MAIN]),
        Some("cuBLAS")
    );
    assert_eq!(library(&[RUNTIME, ("cublas_helper", "", "/opt/app"), MAIN]), None);
    let torch = "/v/site-packages/torch/lib/libtorch_cuda.so";
    let cache = |name| (name, "", "/v/site-packages/torch/lib/libc10_cuda.so");
    let tensor = cache("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_found_block(int)");
    let allocate = cache("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)");
    let expandable = cache("c10::cuda::CUDACachingAllocator::Native::ExpandableSegment::map(int)");
    let segment = cache("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_block(int)");
    for (name, of) in [
        ("at::cuda::getCUDABlasLtWorkspace()", Some("cuBLAS")),
        (
            "at::cuda::(anonymous namespace)::setWorkspaceForHandle(int)",
            Some("cuBLAS"),
        ),
        ("at::cuda::getCurrentCUDABlasHandle(bool)", Some("cuBLAS")),
        ("at::native::addmm_out_cuda_impl(at::Tensor&)", None),
    ] {
        let of_tensor = [tensor, allocate, (name, "", torch), USER, MAIN];
        assert_eq!(library(&of_tensor), of, "{name}");
        let forward = ("gradient of Net.forward", "/home/me/net.py:9", PYTHON);
        let in_backward: Vec<FrameText> = [forward].into_iter().chain(of_tensor).collect();
        assert_eq!(library(&in_backward), of, "{name}");
        // Memory of the pool, whose segments may be expandable.
        for inner in [&[RUNTIME, segment][..], &[expandable, segment]] {
            let outer = [allocate, (name, "", torch), USER, MAIN];
            assert_eq!(library(&[inner, &outer].concat()), None, "{name}");
        }
    }
    assert_eq!(
        library(&[RUNTIME, USER, ("", "", "/v/libcublas.so.12"), MAIN]),
        None,
        "a callback is the user's"
    );
    let (by_library, by_user) = (
        fingerprint(&[RUNTIME, ("", "", "/v/libcublas.so.12"), USER, MAIN]),
        fingerprint(&[RUNTIME, USER, MAIN]),
    );
    assert_ne!(by_library, by_user, "one line, two causes");
}

#[test]
fn caching_allocators_have_names() {
    let allocator = |frames: &[FrameText]| {
        let snapshot = only_stack(frames);
        CallStacks::of(&snapshot).get(Some(0)).allocator
    };
    assert_eq!(allocator(TORCH), Some("PyTorch"));
    let bfc = "tsl::BFCAllocator::Extend(unsigned long)";
    assert_eq!(
        allocator(&[(bfc, "", "/v/jax_plugins/xla_cuda13/xla_cuda_plugin.so")]),
        Some("XLA")
    );
    assert_eq!(
        allocator(&[(bfc, "", "/v/tensorflow/libtensorflow_framework.so.2")]),
        Some("TensorFlow")
    );
    assert_eq!(allocator(&[USER]), None);
}

#[test]
fn the_site_of_a_thread_without_names_is_in_the_users_module() {
    let run = "std::thread::_State_impl<std::thread::_Invoker<std::tuple<main::{lambda()#1}> > >::_M_run()";
    let (thread, start) = (("", "", "/usr/lib/libstdc++.so.6"), ("", "", "/usr/lib/libc.so.6"));
    assert_eq!(site_of(&[RUNTIME, (run, "", "/opt/app"), thread, start, start]), run);
    // A callback from the C library: the function that it calls is the user's.
    let once = ("__pthread_once_slow", "", "/usr/lib/libc.so.6");
    assert_eq!(site_of(&[RUNTIME, once, USER, MAIN]), "Trainer::step(int)");
}

#[test]
fn runs_of_a_librarys_lines_are_one_line_beside_the_users_own() {
    let package = |file: &str| format!("/venv/lib/python3.12/site-packages/{file}");
    let lines: Vec<String> = [
        "torch/_dynamo/a.py:1",
        "torch/_dynamo/b.py:2",
        "torch/_inductor/c.py:3",
        "flax/d.py:4",
        "flax/e.py:5",
    ]
    .iter()
    .map(|file| package(file))
    .collect();
    let mut sample = Sample::new();
    let library: Vec<_> = lines.iter().map(|line| ("call", line.as_str(), PYTHON)).collect();
    let step = ("step", "/home/me/train.py:9", PYTHON);
    let with_user = sample.stack(&[&library[..], &[step]].concat());
    let without = sample.stack(&library);
    let snapshot = sample.finish(0, 0);
    let stacks = CallStacks::of(&snapshot);
    let shown = |stack| {
        let lines = stacks.get(Some(stack)).folded();
        let text = |line: &Line<&Frame>| match line {
            Line::Frame(frame) => frame.short_place().unwrap_or_default(),
            Line::Folded { library, frames } => format!("{library} {frames}"),
        };
        lines.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(shown(with_user), ["torch 3", "d.py:4", "e.py:5", "train.py:9"]);
    assert_eq!(shown(without).len(), 5, "nothing else says where the memory comes from");
}
