//! What Python programs hold: the zoo in `victims/holders/zoo.py`, under every installed interpreter.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;

use culeak::snapshot::{Class, Holders, Retainer, RootKind};
use serde::Deserialize;
use serde_json::json;

use crate::interpreters::{Python, recorded};
use crate::support::compile::library;
use crate::support::holders::{Waiting, path_of, says, start, text};
use crate::support::random::Random;
use crate::support::{Preload, installed, program, sources};

/// What a reader expects of one block.
#[derive(Debug, Deserialize)]
struct Expected {
    name: String,
    /// In decimal: the program must not keep the number.
    address: String,
    class: Vec<Class>,
    texts: Vec<String>,
}

impl Expected {
    fn address(&self) -> u64 {
        self.address.parse().expect("an address")
    }
}

/// `allocator`: a library that replaces malloc.
fn zoo(python: &Python, allocator: Option<&str>) -> (Waiting, Vec<Expected>) {
    let mut profile = program(&python.command)
        .arg("-B")
        .arg(sources().join("victims/holders/zoo.py"))
        .env(
            "HOLDERS_LIBRARY",
            library("holders/library", "libheld.so", &["-std=c++17"], &[]),
        );
    if let Some(allocator) = allocator {
        profile = profile.with_preload(Preload::AfterCuleak, installed(allocator));
    }
    let victim = start(&profile);
    let expected = serde_json::from_str(&victim.printed[0]).expect("the list of holders");
    (victim, expected)
}

#[test]
#[ignore = "needs g++"]
fn every_holder_of_the_zoo_is_classed_and_named_as_a_reader_expects() {
    expect_zoo(&recorded().iter().collect::<Vec<_>>(), None);
}

/// Large objects of Python, and all memory of libraries, come from malloc.
#[test]
#[ignore = "needs jemalloc, tcmalloc and mimalloc"]
fn with_other_allocators_the_answers_about_the_zoo_are_the_same() {
    let newest = recorded()
        .iter()
        .max_by_key(|python| python.minor)
        .expect("an interpreter");
    for allocator in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        println!("{allocator}");
        expect_zoo(&[newest], Some(allocator));
    }
}

fn expect_zoo(interpreters: &[&Python], allocator: Option<&str>) {
    let mut stories = Vec::new();
    for &python in interpreters {
        let (mut victim, expected) = zoo(python, allocator);
        assert!(expected.len() >= 90, "{} holders", expected.len());
        let holders = victim.search().expect("an answer");
        let (mut unexpected, mut failed) = (0, false);
        for one in &expected {
            let path = path_of(&holders, one.address()).expect("a path for each block");
            let all = text(path);
            let mut remarks = Vec::new();
            // In other allocators, the end of a full vector is the address of the next piece.
            let may_be_end = allocator.is_some() && path.class == Class::Held && path.possibly;
            if may_be_end && one.class.contains(&Class::Lost) {
                continue;
            }
            if !one.class.contains(&path.class) {
                failed = true;
                remarks.push(format!("class {:?}, expected {:?}", path.class, one.class));
            } else if !says(&all, &one.texts) {
                unexpected += 1;
                remarks.push(format!("expected {:?}", one.texts));
            }
            let steps: Vec<[&str; 2]> = path.steps.iter().map(|step| [&*step.via, &*step.holder]).collect();
            let class = serde_json::to_value(path.class).expect("a name");
            let verdict = victim.ask(&json!(["walk", one.address(), class, path.origin, steps]));
            if verdict != "ok" {
                failed = true;
                remarks.push(format!("wrong path: {verdict}"));
            }
            if !remarks.is_empty() {
                stories.push(format!(
                    "{} {}: {all}\n    {}",
                    python.version,
                    one.name,
                    remarks.join("; ")
                ));
            }
        }
        let enough = (expected.len() - unexpected) * 100 >= expected.len() * 95;
        if failed || !enough {
            stories.push(format!("{}: FAILED, {unexpected} unexpected paths", python.version));
        }
        victim.quit();
    }
    let failed = stories.iter().any(|story| story.contains("FAILED"));
    println!("{}", stories.join("\n"));
    assert!(!failed, "see the list above");
}

/// The addresses and bytes that an action freed.
fn freed(answer: serde_json::Value) -> BTreeMap<u64, u64> {
    serde_json::from_value::<Vec<(u64, u64)>>(answer)
        .expect("pairs of address and bytes")
        .into_iter()
        .collect()
}

fn of_class(holders: &Holders, class: Class) -> BTreeSet<u64> {
    let blocks = holders.blocks.iter();
    blocks
        .filter(|block| holders.paths[block.path].class == class)
        .map(|block| block.address)
        .collect()
}

#[test]
#[ignore = "needs g++"]
fn what_is_said_to_be_freed_is_freed() {
    for python in recorded() {
        let (mut victim, _) = zoo(python, None);
        let holders = victim.search().expect("an answer");
        let collected = freed(victim.ask(&json!(["collect"])));
        let cycles = of_class(&holders, Class::Cycle);
        assert!(cycles.len() >= 8, "{}: {cycles:?}", python.version);
        assert_eq!(
            collected.keys().copied().collect::<BTreeSet<_>>(),
            cycles,
            "{}: freed by gc.collect() (left) and classed as cycles (right)",
            python.version
        );
        // A global that is the only reference to its value: to drop it frees what it retains, whatever was dropped before.
        let is_alone = |of: &&Retainer| of.parent.is_none() && of.root == RootKind::Module && !of.is_shared();
        let mut retainers: Vec<&Retainer> = holders.retainers.iter().filter(is_alone).collect();
        let seed = env::var("ORDER_SEED")
            .map_or_else(|_| RandomState::new().hash_one(0), |seed| seed.parse().expect("a seed"));
        let random = Random::new(seed);
        for end in (1..retainers.len()).rev() {
            retainers.swap(end, random.below(end + 1));
        }
        let mut dropped = 0;
        for retainer in retainers {
            let name = retainer.name.split(" (").next().expect("a name");
            let answer = victim.ask(&json!(["drop", name]));
            if answer.is_null() {
                continue;
            }
            let freed = freed(answer);
            let bytes: u64 = freed.values().sum();
            assert_eq!(
                (freed.len() as u64, bytes),
                (retainer.count, retainer.bytes),
                "{}: blocks and bytes freed by dropping {} (left) and retained (right), after {dropped} others by ORDER_SEED={seed}",
                python.version,
                retainer.name
            );
            dropped += 1;
        }
        assert!(
            dropped >= 40,
            "{}: {dropped} globals in {:#?}",
            python.version,
            holders.retainers
        );
        // The harness hides what passing tests print by macros.
        let _ = writeln!(
            std::io::stderr(),
            "Python {}: dropped {dropped} holders one by one, ORDER_SEED={seed}",
            python.version
        );
        victim.quit();
    }
}
