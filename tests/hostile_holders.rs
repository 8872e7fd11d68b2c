//! Heaps and processes that are hard to search: the search ends with an answer or an error, never with a hang or a crash.

use std::process::{Command, Stdio};

use culeak::snapshot::Class;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::interpreters::recorded;
use crate::support::holders::{Waiting, path_of, start, text};
use crate::support::{culeak, program, sources};

/// A case of `victims/holders/hostile.py`: its class, and its blocks.
fn hostile(case: &str) -> (Waiting, Class, Vec<u64>) {
    of_python(&recorded()[0].command, case)
}

fn of_python(command: &std::path::Path, case: &str) -> (Waiting, Class, Vec<u64>) {
    let profile = program(command);
    let script = sources().join("victims/holders/hostile.py");
    let victim = start(&profile.arg("-B").arg(script).arg(case));
    let (class, blocks) = serde_json::from_str(&victim.printed[0]).expect("a class and addresses");
    (victim, class, blocks)
}

#[track_caller]
fn expect_class(victim: Waiting, class: Class, blocks: &[u64]) {
    let holders = victim.search().expect("an answer");
    for &block in blocks {
        let path = path_of(&holders, block).expect("a path for each block");
        let shown: String = text(path).chars().take(500).collect();
        assert_eq!(path.class, class, "{block:#x}: {shown}");
        assert!(
            path.steps.len() < 1000,
            "a path of {} steps is not collapsed",
            path.steps.len()
        );
    }
    victim.quit();
}

#[test]
fn large_and_deep_heaps_are_searched_to_the_end() {
    for case in [
        "long_cycle",
        "long_list",
        "large_dictionaries",
        "nested",
        "everything_refers_to_everything",
        "shared_arrays",
    ] {
        let (victim, class, blocks) = hostile(case);
        expect_class(victim, class, &blocks);
    }
}

#[test]
fn a_block_that_changes_its_holder_all_the_time_is_held() {
    // With the machine to itself, the program often hides a block from four copies.
    const COPIES: u32 = 32;
    let (victim, _, blocks) = hostile("moving");
    for _ in 0..3 {
        let holders = victim.search_copies(COPIES).expect("an answer");
        for &block in &blocks {
            let path = path_of(&holders, block).expect("a path for each block");
            assert_eq!(path.class, Class::Held, "{}", text(path));
        }
    }
    victim.kill();
}

#[test]
fn blocks_beside_a_training_loop_are_retained_by_their_variable() {
    let (victim, _, blocks) = hostile("steps");
    for turn in 0..6 {
        let holders = victim.search().expect("an answer");
        let kept = holders.blocks.iter().filter(|block| blocks.contains(&block.address));
        for block in kept.clone().filter(|block| !holders.paths[block.path].changed) {
            let mut names = Vec::new();
            let mut at = block.retainer;
            while let Some(retainer) = at.map(|nth| &holders.retainers[nth]) {
                names.push(retainer.name.as_str());
                at = retainer.parent;
            }
            let is_held = |name: &&&str| name.starts_with("__main__.held (list of 50)");
            assert!(
                names.iter().find(is_held).is_some(),
                "turn {turn}, {:#x}: {names:?}",
                block.address
            );
        }
        assert_eq!(kept.count(), blocks.len());
        let outermost = holders.retainers.iter().filter(|retainer| retainer.parent.is_none());
        let retained: u64 = outermost.map(|retainer| retainer.bytes).sum();
        let in_tree = holders.blocks.iter().filter(|block| block.retainer.is_some());
        assert_eq!(retained, in_tree.map(|block| block.bytes).sum::<u64>(), "turn {turn}");
    }
    victim.kill();
}

#[test]
fn what_the_state_of_a_thread_refers_to_has_one_holder() {
    for python in recorded() {
        let (victim, _, blocks) = of_python(&python.command, "threads");
        let holders = victim.search().expect("an answer");
        assert_eq!(blocks.len(), 4);
        for block in holders.blocks.iter().filter(|block| blocks.contains(&block.address)) {
            let shown = text(&holders.paths[block.path]);
            let retainer = block.retainer.map(|nth| &holders.retainers[nth]);
            let retainer = retainer.unwrap_or_else(|| panic!("{:?}: nothing alone frees {shown}", python.command));
            let is_root = ["context variable", "exception being handled", "profile function"]
                .iter()
                .any(|root| retainer.name.contains(root));
            assert!(
                is_root && retainer.also.is_empty() && retainer.also_unnamed == 0,
                "{:?}: {shown}: {retainer:?}",
                python.command
            );
        }
        victim.kill();
    }
}

#[test]
fn a_number_is_held_by_a_variable_rather_than_a_value_stack() {
    for python in recorded() {
        let (victim, class, blocks) = of_python(&python.command, "numbers");
        let holders = victim.search().expect("an answer");
        let path = path_of(&holders, blocks[0]).expect("a path");
        let shown = text(path);
        assert_eq!(path.class, class, "{:?}: {shown}", python.command);
        assert!(shown.contains("__main__.view"), "{:?}: {shown}", python.command);
        victim.kill();
    }
}

#[test]
fn memory_that_looks_like_objects_leads_nowhere() {
    for python in recorded() {
        let (victim, class, blocks) = of_python(&python.command, "look_alikes");
        expect_class(victim, class, &blocks);
    }
}

#[test]
fn a_stopped_process_is_searched_and_stays_stopped() {
    let (victim, class, blocks) = hostile("quiet");
    let pid = Pid::from_raw(victim.pid as i32);
    kill(pid, Signal::SIGSTOP).expect("the victim is ours");
    let holders = victim.search().expect("an answer");
    let path = path_of(&holders, blocks[0]).expect("a path");
    assert_eq!(path.class, class);
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the victim lives");
    assert!(status.contains(") T "), "{status}");
    kill(pid, Signal::SIGCONT).expect("the victim is ours");
    victim.quit();
}

/// `culeak why` with these words: its exit code and what it said.
fn why(words: &[&str]) -> (Option<i32>, String) {
    let command = Command::new(culeak())
        .arg("why")
        .args(words)
        .env("CULEAK_CACHE_DIR", "")
        .stdin(Stdio::null())
        .output();
    let output = command.expect("the CLI starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_process_that_ends_during_the_search_gives_an_answer_or_an_error() {
    for turn in 0..20 {
        let (victim, _, _) = hostile("quiet");
        let pid = victim.pid.to_string();
        let search = std::thread::spawn(move || why(&[&pid]));
        // Other instants on every turn, whatever the speed of the machine.
        for _ in 0..turn * 20_000 {
            std::hint::spin_loop();
        }
        victim.kill();
        let (code, said) = search.join().expect("no panic");
        assert!([Some(0), Some(2)].contains(&code), "{code:?}\n{said}");
        assert!(!said.contains("panicked") && !said.trim().is_empty(), "{said}");
    }
}

#[test]
fn a_process_that_ended_is_named_in_the_error() {
    let (victim, _, _) = hostile("quiet");
    let pid = victim.pid.to_string();
    victim.kill();
    let (code, said) = why(&[&pid]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&pid), "{said}");
}
