use proptest::prelude::*;

use super::*;
use crate::analysis::site::CallStacks;
use crate::kind::Kind;
use crate::sample::{FrameText, MAIN, PYTHON, RUNTIME, START, Sample};

fn matches(pattern: &str, text: &str) -> bool {
    Pattern::parse(pattern).expect("a pattern").matches(text)
}

fn takes(rule: &str, frames: &[FrameText]) -> bool {
    let mut sample = Sample::new();
    let stack = sample.stack(frames);
    sample.holds(Kind::Device, "cudaMalloc", 1, 1, stack);
    let snapshot = sample.finish(1, 0);
    let mut suppressions = Suppressions::default();
    suppressions.add(rule, "test.supp").expect("a rule");
    suppressions
        .matching(CallStacks::of(&snapshot).get(Some(0)), Of::Memory)
        .is_some()
}

#[test]
fn patterns_have_the_meaning_of_leak_sanitizer() {
    for (pattern, text) in [
        ("step", "Trainer::step"),
        ("^Trainer", "Trainer::step"),
        ("step$", "Trainer::step"),
        ("^Trainer::step$", "Trainer::step"),
        ("Tr*er*ep", "Trainer::step"),
        ("^Tr*ep$", "Trainer::step"),
        ("*step*", "Trainer::step"),
        ("^*step$", "Trainer::step"),
        ("a*a$", "abaa"),
    ] {
        assert!(matches(pattern, text), "{pattern} {text}");
    }
    for (pattern, text) in [
        ("steps", "Trainer::step"),
        ("^step", "Trainer::step"),
        ("Trainer$", "Trainer::step"),
        ("^Trainer$", "Trainer::step"),
        ("ep*Tr", "Trainer::step"),
        ("^a*a$", "a"),
    ] {
        assert!(!matches(pattern, text), "{pattern} {text}");
    }
}

#[test]
fn rules_match_functions_files_python_files_and_modules_anywhere_in_the_stack() {
    let frames = [
        RUNTIME,
        (
            "void cache<float>::fill(int)",
            "/src/cache.cu:8",
            "/opt/lib/libfancy.so.3",
        ),
        ("step", "/home/me/train.py:212", PYTHON),
        MAIN,
        START,
    ];
    for rule in [
        "leak:cache::fill",
        "leak:^cache::fill$",
        "leak:cache<float>::fill",
        "leak:^libfancy.so",
        "leak:/opt/lib/",
        "leak:^train.py$",
        "leak:cache.cu",
        "leak:train.py:212",
        "leak:^/home/me/train.py:212$",
        "leak:libcudart",
        "  leak:__libc_start*main  ",
    ] {
        assert!(takes(rule, &frames), "{rule}");
    }
    for rule in [
        "leak:^fill",
        "leak:train.py:21",
        "leak:train.py:2120",
        "leak:^rain.py:212",
        "leak:train:212",
    ] {
        assert!(!takes(rule, &frames), "{rule}");
    }
}

#[test]
fn an_invalid_rule_is_reported_with_line_and_column() {
    let error = |text: &str| {
        Suppressions::default()
            .add(text, "my.supp")
            .expect_err("no rule")
            .to_string()
    };
    assert!(error("# fine\n\nleak:ok\nfunction_only").starts_with("my.supp:4:1: expected leak:PATTERN"));
    assert!(error("site:fill").starts_with("my.supp:1:6: expected FUNCTION in FILE"));
    assert!(error("site:fill in *").starts_with("my.supp:1:14: this pattern would match everything"));
    assert!(error("  race:foo").starts_with("my.supp:1:3: no such type of suppression: \"race\""));
    assert!(error("leak:*").starts_with("my.supp:1:6: this pattern would match everything"));
    assert!(error("leak:").starts_with("my.supp:1:6:"));
}

#[test]
fn the_built_in_list_is_valid_and_suppresses_no_plain_allocation() {
    let mut built_in = Suppressions::default();
    built_in.add_built_in();
    assert!(built_in.rules.len() > 10);
    let handle = [
        RUNTIME,
        ("", "", "/v/libcublas.so.13"),
        ("cublasCreate_v2", "", "/v/libcublas.so.13"),
        MAIN,
    ];
    let own = [
        RUNTIME,
        ("Trainer::step(int)", "/src/train.cu:212", "/opt/app"),
        MAIN,
        START,
    ];
    assert!(takes(BUILT_IN, &handle));
    assert!(!takes(BUILT_IN, &own));
}

const TRAINER: FrameText = ("Trainer::step(int)", "/src/train.cu:212", "/opt/app");

#[test]
fn a_keep_rule_protects_from_the_rules_after_it_only() {
    let frames = [RUNTIME, ("vendorAlloc", "", "/opt/lib/libvendor.so"), MAIN];
    assert!(takes("leak:^libvendor.so", &frames));
    assert!(!takes("keep:^vendorAlloc$\nleak:^libvendor.so", &frames));
    assert!(takes("leak:^libvendor.so\nkeep:^vendorAlloc$", &frames));
    assert!(takes("keep:^vendorFree$\nleak:^libvendor.so", &frames));
}

#[test]
fn the_built_in_list_suppresses_handles_and_workspaces_of_libraries() {
    let cublas = [
        ("", "", "/v/libcublas.so.13"),
        ("cublasCreate_v2", "", "/v/libcublas.so.13"),
    ];
    let torch = "/v/site-packages/torch/lib/libtorch_cuda.so";
    let handle = ("at::cuda::getCurrentCUDABlasHandle()", "", torch);
    let workspace = ("at::cuda::getCUDABlasLtWorkspace()", "", torch);
    let cudnn = ("cudnnCreate", "", "/v/libcudnn.so.9");
    let nccl = ("", "", "/v/nccl/lib/libnccl.so.2");
    assert!(takes(BUILT_IN, &[RUNTIME, cublas[0], cublas[1], TRAINER]));
    assert!(takes(BUILT_IN, &[RUNTIME, handle, TRAINER]));
    assert!(takes(BUILT_IN, &[RUNTIME, workspace, TRAINER]));
    assert!(takes(BUILT_IN, &[RUNTIME, cudnn, TRAINER]));
    // On a thread of NCCL, without a name.
    assert!(takes(BUILT_IN, &[RUNTIME, nccl, nccl, START]));
}

#[test]
fn the_built_in_list_does_not_suppress_the_programs_memory() {
    let torch = "/v/site-packages/torch/lib/libtorch_cuda.so";
    for frame in [
        // Results of operations that use such a library.
        ("at::cuda::blas::gemm<float>(char, char)", "", torch),
        ("at::native::addmm_out_cuda_impl(at::Tensor&)", "", torch),
        // Pinned memory.
        ("at::native::_pin_memory_cuda(at::Tensor const&)", "", torch),
        ("cublasSgemm_v2", "", "/v/libcublas.so.13"),
        // A user's function with a name like a library's.
        ("cublasCreateWorkspaces(int)", "/src/blas.cu:7", "/opt/app"),
        ("my::at::cuda::getCurrentCUDABlasHandle()", "/src/blas.cu:9", "/opt/app"),
        // Handed out by libraries that also keep memory.
        ("ncclMemAlloc", "", "/v/nccl/lib/libnccl.so.2"),
        ("nvshmem_malloc", "", "/v/libnvshmem_host.so.3"),
    ] {
        let inside = ("", "", frame.2);
        assert!(!takes(BUILT_IN, &[RUNTIME, inside, frame, TRAINER]), "{}", frame.0);
    }
}

#[test]
fn a_rule_for_a_call_site_may_be_of_memory_or_of_objects_alone() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[("fill", "/src/cache.cu:8", "/opt/app")]);
    sample.holds(Kind::Device, "cudaMalloc", 1, 1, stack);
    let snapshot = sample.finish(1, 0);
    let stacks = CallStacks::of(&snapshot);
    let stack = stacks.get(Some(0));
    for (rules, memory, objects) in [
        ("site:fill in cache.cu", Some(0), Some(0)),
        ("site:fill in cache.cu of memory", Some(0), None),
        ("site:fill in cache.cu of objects", None, Some(0)),
        (
            "site:fill in cache.cu of objects\nsite:fill in cache.cu of memory",
            Some(1),
            Some(0),
        ),
        // A part of a name.
        ("site:fill in cache.cu of", None, None),
        ("leak:fill of memory", None, None),
    ] {
        let mut suppressions = Suppressions::default();
        suppressions.add(rules, "rules").expect("valid");
        let found = [Of::Memory, Of::Objects].map(|of| suppressions.matching(stack, of));
        assert_eq!(found, [memory, objects], "{rules}");
    }
    for of in [Of::Memory, Of::Objects] {
        let rule = rule_for(stack, of).expect("a rule");
        let mut suppressions = Suppressions::default();
        suppressions.add(&rule, "generated").expect("valid");
        let found = [Of::Memory, Of::Objects].map(|of| suppressions.matching(stack, of).is_some());
        assert_eq!(found, [of == Of::Memory, of == Of::Objects], "{rule}");
    }
}

/// The rule generated for the first stack, and which of the stacks it matches.
fn generated(stacks: &[&[FrameText]]) -> (String, Vec<bool>) {
    let mut sample = Sample::new();
    for frames in stacks {
        let stack = sample.stack(frames);
        sample.holds(Kind::Device, "cudaMalloc", 1, 1, stack);
    }
    let snapshot = sample.finish(1, 0);
    let read = CallStacks::of(&snapshot);
    let rule = rule_for(read.get(Some(0)), Of::Memory).expect("a rule");
    let mut suppressions = Suppressions::default();
    suppressions.add(&rule, "generated").expect("a rule that can be read");
    let taken = (0..stacks.len()).map(|stack| suppressions.matching(read.get(Some(stack)), Of::Memory).is_some());
    (rule, taken.collect())
}

#[test]
fn a_generated_rule_matches_only_its_call_site() {
    let run = ("run", "/src/runner/job.cu:8", "/opt/runner");
    let lambda = (
        "main::{lambda(float*)#1}::operator()(float*) const",
        "/src/a.cu:3",
        "/opt/app",
    );
    let cublas = ("cublasCreate_v2", "", "/v/libcublas.so.13");
    let (rule, taken) = generated(&[
        &[RUNTIME, run, MAIN],
        // A path that contains the name; a function that it calls; a longer name; another file.
        &[RUNTIME, TRAINER, ("main", "/src/runner/main.cu:1", "/opt/runner")],
        &[RUNTIME, TRAINER, run, MAIN],
        &[RUNTIME, ("rerun", run.1, run.2), MAIN],
        &[RUNTIME, ("run", "/src/plan.cu:8", run.2), MAIN],
        // Memory of a library.
        &[RUNTIME, cublas, run, MAIN],
        // Built elsewhere; another line of the function.
        &[RUNTIME, ("run", "/ci/7/job.cu:8", "/home/me/runner"), MAIN],
        &[RUNTIME, ("run", "/src/runner/job.cu:88", "/opt/runner"), MAIN],
    ]);
    assert_eq!(rule, "site:^run$ in ^job.cu:8$ of memory");
    assert_eq!(taken, [true, false, false, false, false, false, true, false]);
    let linear = (
        "Linear.forward",
        "/venv/lib/python3.12/site-packages/torch/nn/linear.py:8",
        PYTHON,
    );
    let (rule, taken) = generated(&[&[RUNTIME, linear], &[RUNTIME, (linear.0, "/src/linear.py:8", PYTHON)]]);
    assert_eq!(rule, "site:^Linear.forward$ in ^torch/nn/linear.py:8$ of memory");
    assert_eq!(taken, [true, false]);
    let (rule, taken) = generated(&[
        &[RUNTIME, lambda, MAIN],
        &[
            RUNTIME,
            (
                "main::{lambda(float**)#1}::operator()(float*) const",
                lambda.1,
                lambda.2,
            ),
            MAIN,
        ],
        &[RUNTIME, (lambda.0, "/src/b.cu:3", lambda.2), MAIN],
    ]);
    assert_eq!(
        rule,
        r"site:^main::{lambda(float\*)#1}::operator()(float\*) const$ in ^a.cu:3$ of memory"
    );
    assert_eq!(taken, [true, false, false]);
    let (rule, taken) = generated(&[&[RUNTIME, cublas, TRAINER, MAIN], &[RUNTIME, TRAINER, MAIN]]);
    assert_eq!(
        (rule.ends_with(" by ^cuBLAS$ of memory"), taken),
        (true, vec![true, false])
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_generated_rule_matches_the_stack_it_was_made_for(function in "[ -~]{1,20}|\\PC{1,12}|[\\^\\$\\*a: \\n]{1,9}") {
        let mut sample = Sample::new();
        let stack = sample.stack(&[RUNTIME, (&function, "", "/opt/app"), MAIN]);
        sample.holds(Kind::Device, "cudaMalloc", 1, 1, stack);
        let snapshot = sample.finish(1, 0);
        let stacks = CallStacks::of(&snapshot);
        if let Some(rule) = rule_for(stacks.get(Some(0)), Of::Memory) {
            let mut suppressions = Suppressions::default();
            prop_assert_eq!(suppressions.add(&rule, "generated"), Ok(()));
            prop_assert_eq!(suppressions.matching(stacks.get(Some(0)), Of::Memory), Some(0), "{}", rule);
        }
    }

    #[test]
    fn a_generated_rule_matches_no_other_name(
        one in r"[a-c\\* ^$]{1,6}( in | by )?[a-c\\* ^$]{0,6}",
        other in r"[a-c\\* ^$]{1,6}( in | by )?[a-c\\* ^$]{0,6}",
    ) {
        let place = "/src/a in b.cu:1";
        prop_assume!(!one.trim().is_empty());
        let (rule, taken) = generated(&[&[RUNTIME, (&one, place, "/opt/app")], &[RUNTIME, (&other, place, "/opt/app")]]);
        prop_assert_eq!(taken, [true, one == other], "{}", rule);
    }

    #[test]
    fn no_text_panics(text in any::<String>(), name in any::<String>()) {
        let _ = Suppressions::default().add(&text, "any");
        if let Ok(pattern) = Pattern::parse(&text) {
            pattern.matches(&name);
        }
    }
}
