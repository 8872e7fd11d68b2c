//! Backward passes: the stack of a tensor that autograd's thread requests continues with that of the line that called `backward()`.
//!
//! A library with the engine's exported names stands in for PyTorch's (`victims/libtorch_cpu.c`). Claims about the real one are in
//! `gpu/`.

use std::path::PathBuf;

use culeak::analysis::site::{CallStacks, Role};
use culeak::kind::Kind::Tensor;
use culeak::snapshot::Snapshot;

use crate::interpreters::interpreters;
use crate::support::claims::Claims;
use crate::support::{Outcome, fake_driver, library, profile, program, sources};
use crate::tensors::torch;

fn engine(flags: &[&str]) -> PathBuf {
    let flags: Vec<&str> = flags.iter().copied().chain(["-g0"]).collect();
    library("libtorch_cpu", "libtorch_cpu.so", &flags, &[])
}

fn backward(behaviour: &str, flags: &[&str]) -> Outcome {
    let [cuda, c10] = torch(1, &[]);
    let run = profile("backward").arg(behaviour).arg(cuda).arg(c10).arg(engine(flags));
    let outcome = run.run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome
}

/// Of each tensor but the first, by size: its bytes, its call site, and its named functions of the program, innermost first.
fn tensors(snapshot: &Snapshot) -> Vec<(u64, String, Vec<String>)> {
    let stacks = CallStacks::of(snapshot);
    let mut found: Vec<_> = snapshot
        .of_kind(Tensor)
        .into_iter()
        .filter(|tensor| tensor.bytes != 4096)
        .map(|tensor| {
            let stack = stacks.get(tensor.stack);
            let shown = stack.shown().filter(|frame| frame.role != Role::Library);
            let names = shown.map(|frame| frame.name()).collect();
            (
                tensor.bytes,
                stack.site().map(|site| site.name()).unwrap_or_default(),
                names,
            )
        })
        .collect();
    found.sort();
    found
}

const NODE: &str = "MmBackward0";

#[test]
fn the_call_site_in_backward_is_the_line_that_called_it() {
    for at in ["-DAT=288", "-DAT=40", "-DINTRUSIVE"] {
        let snapshot = backward("passes", &[at]).symbolized();
        snapshot.expect_nothing_lost();
        let expected = [(512, "first_step"), (1024, "second_step"), (1536, "on_the_caller")];
        for ((bytes, site, shown), expected) in tensors(&snapshot).into_iter().zip(expected) {
            assert_eq!((bytes, site.as_str()), expected, "{shown:?}");
            assert_eq!(shown[..3], [NODE, expected.1, "passes"], "{shown:?}");
            assert_eq!(shown.last().map(String::as_str), Some("main"));
        }
    }
}

#[test]
fn a_pass_that_a_node_starts_continues_with_the_outer_one() {
    let snapshot = backward("reentrant", &[]).symbolized();
    let found = tensors(&snapshot);
    assert_eq!(
        found[0].2[..4],
        [NODE, "custom_node", "outer_step", "reentrant"],
        "{found:#?}"
    );
    assert_eq!(
        found[1].2[..4],
        [NODE, "custom_node", "outer_step", "reentrant"],
        "{found:#?}"
    );
    assert_eq!(found.len(), 2);
}

#[test]
fn passes_of_two_threads_are_told_apart() {
    let snapshot = backward("threads", &[]).symbolized();
    let found = tensors(&snapshot);
    assert_eq!(found.len(), 400);
    for (bytes, site, shown) in found {
        let (step, thread) = match bytes {
            512 => ("first_step", "first_thread"),
            _ => ("second_step", "second_thread"),
        };
        assert_eq!(
            (site.as_str(), shown.last().map(String::as_str)),
            (step, Some(thread)),
            "{shown:?}"
        );
    }
}

#[test]
fn a_pass_after_100_that_were_left_halfway_has_its_own_line() {
    let snapshot = backward("left", &[]).symbolized();
    assert_eq!(tensors(&snapshot)[0].1, "second_step");
}

#[test]
fn a_forked_child_reaches_pytorchs_own_engine() {
    let snapshot = backward("forks", &[]).symbolized();
    assert_eq!(tensors(&snapshot)[0].1, "first_step");
}

#[test]
fn without_the_engines_function_stacks_end_in_autograd_and_one_line_says_so() {
    // A function that is asked is missing, or the one where passes begin.
    for flag in ["-DMUTE", "-DRENAMED"] {
        let outcome = backward("passes", &[flag]);
        let said = outcome.stderr.matches("stacks of backward passes end in autograd");
        assert_eq!(said.count(), 1, "{flag}: {}", outcome.stderr);
        let snapshot = outcome.symbolized();
        let found = tensors(&snapshot);
        assert_eq!(
            (found[0].1.as_str(), found[2].1.as_str()),
            (NODE, "on_the_caller"),
            "{flag}: {found:#?}"
        );
    }
}

/// Of each tensor, in the order of their requests: the Python functions in its stack, innermost first.
fn gradients(flags: &[&str]) -> (Outcome, Vec<Vec<String>>) {
    let [cuda, c10] = torch(1, &[]);
    let python = interpreters().first().expect("an interpreter");
    let run = program(&python.command)
        .arg("-B")
        .arg(sources().join("victims/backward.py"));
    let outcome = run.arg(cuda).arg(c10).arg(engine(flags)).arg(fake_driver()).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    let mut tensors = snapshot.of_kind(Tensor);
    tensors.sort_by_key(|tensor| tensor.bytes);
    let stacks = CallStacks::of(snapshot);
    let functions = tensors.iter().map(|tensor| {
        let frames = stacks.get(tensor.stack).frames.iter().filter(|frame| frame.is_python());
        frames.map(|frame| frame.name()).collect()
    });
    let functions = functions.collect();
    (outcome, functions)
}

#[test]
fn a_gradient_has_the_line_of_its_operator() {
    for flags in [&[][..], &["-DINTRUSIVE"]] {
        expect_lines_of_operators(flags);
    }
}

fn expect_lines_of_operators(flags: &[&str]) {
    let (outcome, found) = gradients(flags);
    assert!(outcome.stdout.contains("uses of a node 1\n"), "{}", outcome.stdout);
    assert_eq!(found.len(), 14);
    assert_eq!(found[1], ["operator", "first_layer", "main", "<module>"]);
    let backward = ["backward", "main", "<module>"];
    for nth in [4, 6] {
        assert_eq!(
            found[nth],
            [&["gradient of operator"], &backward[..]].concat(),
            "the second layer's, {nth}"
        );
        assert_eq!(found[nth + 1], found[nth], "they have the same innermost line, {nth}");
    }
    assert_eq!(found[8], backward, "an unknown number");
    assert_eq!(
        found[10],
        [&["gradient near operator"], &backward[..]].concat(),
        "a view"
    );
    assert_eq!(found[12], backward, "a view that is too far from an allocation");
    assert_eq!(found[13], backward, "a leaf, which is near nothing");
    let snapshot = outcome.only_snapshot();
    let mut forward: Vec<_> = snapshot
        .locations
        .iter()
        .filter(|location| location.is_gradient())
        .collect();
    forward.sort_by_key(|location| location.symbols[1].line);
    let callers: Vec<_> = forward
        .iter()
        .map(|location| location.symbols[1].function.as_str())
        .collect();
    assert_eq!(
        callers,
        [
            "gradient of first_layer",
            "gradient of second_layer",
            "gradient near views"
        ]
    );
}

#[test]
fn nodes_of_another_layout_have_no_line_of_the_forward_pass_and_one_line_says_so() {
    for flag in ["-DODD=1", "-DODD=2"] {
        // That the output is the same also means that nothing was written where the count of references was.
        let (outcome, found) = gradients(&[flag]);
        let said = outcome.stderr.matches("gradients have no line of the forward pass");
        assert_eq!(said.count(), 1, "{flag}: {}", outcome.stderr);
        assert!(
            [&found[4..9], &[found[10].clone(), found[12].clone()]]
                .concat()
                .iter()
                .all(|functions| functions[..] == ["backward", "main", "<module>"]),
            "{flag}: {found:#?}"
        );
    }
}
