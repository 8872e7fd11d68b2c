use super::*;
use crate::kind::Kind;
use crate::sample::{FrameText, MAIN, RUNTIME, START, Sample};

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
fn the_site_is_the_innermost_frame_of_the_users_own() {
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
fn a_users_function_with_a_cuda_name_is_the_users() {
    let wrapper = ("cudaMalloc", "/src/checked.cu:3", "/opt/app");
    assert_eq!(site_of(&[RUNTIME, wrapper, USER, MAIN]), "cudaMalloc");
}

#[test]
fn a_stack_without_a_frame_of_the_users_still_has_a_site() {
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
fn inlined_library_code_without_its_name_space_is_known_by_its_file() {
    let header = "/usr/include/c++/12/bits/invoke.h:61";
    let (invoke, run) = (("__invoke_impl", header, "/opt/app"), ("_M_run", header, "/opt/app"));
    let stripped = ("", "", "/usr/lib/libstdc++.so.6");
    assert_eq!(
        shown(&[RUNTIME, invoke, USER, invoke, run, stripped]),
        ["__invoke_impl", "Trainer::step(int)"]
    );
    assert_eq!(site_of(&[RUNTIME, invoke, USER, run, stripped]), "Trainer::step(int)");
    // Where the stack was cut before the thread's start, nothing is guessed.
    assert_eq!(shown(&[RUNTIME, USER, invoke]).len(), 2);
}

#[test]
fn a_users_own_clone_is_not_a_thread_start() {
    let clone = ("clone", "/src/tensor.cu:8", "/opt/app");
    assert_eq!(shown(&[RUNTIME, clone, USER, MAIN]).len(), 3);
}

#[test]
fn fingerprints_survive_another_address_path_and_build() {
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
fn fingerprints_tell_lines_and_callers_apart() {
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
fn code_outside_all_files_does_not_bring_its_random_address() {
    let mut first = only_stack(&[("", "", ""), USER, MAIN]);
    let before = CallStacks::of(&first).get(Some(0)).fingerprint;
    first.locations[0].address = 0x7fff_1234_0000;
    assert_eq!(CallStacks::of(&first).get(Some(0)).fingerprint, before);
}

#[test]
fn caching_allocators_are_known_by_name_or_by_library() {
    assert!(is_pool((
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int)",
        "",
        "/v/libc10_cuda.so"
    )));
    // Caching switched off: the same library, but every tensor is an allocation.
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
