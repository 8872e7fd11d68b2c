use proptest::prelude::*;

use super::*;
use crate::kind::Kind;
use crate::sample::{FrameText, MAIN, PYTHON, RUNTIME, START, Sample};
use crate::site::CallStacks;

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
    suppressions.matching(CallStacks::of(&snapshot).get(Some(0))).is_some()
}

#[test]
fn patterns_mean_what_leak_sanitizer_means_by_them() {
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
        "leak:libcudart",
        "  leak:__libc_start*main  ",
    ] {
        assert!(takes(rule, &frames), "{rule}");
    }
    assert!(!takes("leak:^fill", &frames));
}

#[test]
fn a_line_that_is_no_rule_is_named_with_line_and_column() {
    let error = |text: &str| {
        Suppressions::default()
            .add(text, "my.supp")
            .expect_err("no rule")
            .to_string()
    };
    assert!(error("# fine\n\nleak:ok\nfunction_only").starts_with("my.supp:4:1: expected leak:PATTERN"));
    assert!(error("  race:foo").starts_with("my.supp:1:3: no such type of suppression: \"race\""));
    assert!(error("leak:*").starts_with("my.supp:1:6: a pattern that would match everything"));
    assert!(error("leak:").starts_with("my.supp:1:6:"));
}

#[test]
fn the_built_in_list_holds_rules_and_hides_no_plain_allocation() {
    let mut built_in = Suppressions::default();
    built_in.add_built_in();
    assert!(built_in.len() > 10);
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_generated_rule_matches_the_stack_it_was_made_for(function in "[ -~]{1,20}|\\PC{1,12}|[\\^\\$\\*a: \\n]{1,9}") {
        let mut sample = Sample::new();
        let stack = sample.stack(&[RUNTIME, (&function, "", "/opt/app"), MAIN]);
        sample.holds(Kind::Device, "cudaMalloc", 1, 1, stack);
        let snapshot = sample.finish(1, 0);
        let stacks = CallStacks::of(&snapshot);
        if let Some(rule) = rule_for(stacks.get(Some(0))) {
            let mut suppressions = Suppressions::default();
            prop_assert_eq!(suppressions.add(&rule, "generated"), Ok(()));
            prop_assert_eq!(suppressions.matching(stacks.get(Some(0))), Some(0), "{}", rule);
        }
    }

    #[test]
    fn any_text_is_survived(text in any::<String>(), name in any::<String>()) {
        let _ = Suppressions::default().add(&text, "any");
        if let Ok(pattern) = Pattern::parse(&text) {
            pattern.matches(&name);
        }
    }
}
