//! Stacks through wrappers.

use super::*;

const CHECKED: FrameText = ("checked_malloc(void**, unsigned long)", "/src/alloc.cu:9", "/opt/app");
const ALLOC: FrameText = ("gpu_alloc(unsigned long)", "/src/alloc.cu:20", "/opt/app");

#[test]
fn the_caller_of_a_wrapper_is_the_site_and_no_chain_has_the_wrapper() {
    let through = [RUNTIME, CHECKED, ALLOC, USER, MAIN];
    assert_eq!(site_of(&through), USER.0);
    assert_eq!(shown(&through), [CHECKED.0, ALLOC.0, USER.0, MAIN.0]);
    // Another way to the site is another stack; containers of libraries are no ways.
    assert_ne!(fingerprint(&through), fingerprint(&[RUNTIME, ALLOC, USER, MAIN]));
    let vector = |name| [RUNTIME, (name, "", "/opt/app"), USER, MAIN];
    assert_eq!(
        fingerprint(&vector("std::vector<Layer>::_M_realloc_insert<int>(int)")),
        fingerprint(&vector("std::vector<Layer>::emplace_back<int>(int)"))
    );
    // A wrapper above the site, as a vector that constructs the user's object.
    let grow = ("std::vector<Layer>::_M_realloc_insert<int>(int)", "", "/opt/app");
    let outer = [
        RUNTIME,
        ALLOC,
        USER,
        grow,
        ("build(int)", "/src/net.cu:3", "/opt/app"),
        MAIN,
    ];
    let snapshot = only_stack(&outer);
    let stacks = CallStacks::of(&snapshot);
    let chain: Vec<String> = stacks.get(Some(0)).callers().map(Frame::name).collect();
    assert_eq!(chain, ["build(int)", "main"]);
    // In Python, beside a user's own native wrapper.
    let alloc = ("alloc", "/home/me/gpu.py:12", PYTHON);
    let stack = [&[RUNTIME, ALLOC], &[alloc, STEP, SCRIPT][..], INTERPRETER].concat();
    assert_eq!(site_of(&stack), STEP.0);
    let snapshot = only_stack(&stack);
    let line = CallStacks::of(&snapshot)
        .get(Some(0))
        .python_line()
        .and_then(Frame::short_place);
    assert_eq!(line.as_deref(), Some("train.py:212"));
}

#[test]
fn a_wrapper_that_nothing_of_the_user_calls_is_the_site() {
    let (start, clone) = (
        ("start_thread", "", "/usr/lib/libc.so.6"),
        ("clone3", "", "/usr/lib/libc.so.6"),
    );
    assert_eq!(site_of(&[RUNTIME, ALLOC, start, clone]), ALLOC.0);
    assert_eq!(shown(&[RUNTIME, ALLOC, start, clone]), [ALLOC.0]);
    let alloc = ("alloc", "/home/me/gpu.py:12", PYTHON);
    let run = ("Thread.run", "/usr/lib/python3.12/threading.py:1012", PYTHON);
    let stack = [&TORCH[..1], &[LINEAR, alloc, run][..], INTERPRETER].concat();
    assert_eq!(site_of(&stack), "alloc");
    assert_eq!(shown(&stack), [LINEAR.0, "alloc"]);
}

#[test]
fn stacks_of_one_line_that_differ_in_operators_of_backward_are_several() {
    let other = (
        "torch::autograd::generated::AddBackward0::apply(at::Tensor)",
        "",
        LIBTORCH,
    );
    let of = |operator| fingerprint(&[&TORCH[..4], &[operator, ENGINE, THREAD, ENTRY, EXECUTE, STEP]].concat());
    assert_ne!(of(BACKWARD), of(other));
}
