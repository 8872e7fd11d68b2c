//! What C++ programs hold: `victims/holders/native.cpp`. The same program with `malloc` in place of the driver runs under
//! LeakSanitizer, which must agree.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use culeak::snapshot::{Class, RootKind};

use crate::support::compile::{executable, library};
use crate::support::holders::{Waiting, path_of, says, start, text};
use crate::support::{Preload, Profile, fake_driver, installed, program};

const FLAGS: [&str; 2] = ["-std=c++17", "-fno-omit-frame-pointer"];

/// Two copies of the plugin: one is unloaded.
fn plugins() -> [PathBuf; 2] {
    ["libplugin.so", "libunloaded.so"].map(|file| library("holders/library", file, &["-std=c++17"], &[]))
}

fn victim() -> Profile {
    let program_file = executable("holders/native", &FLAGS, &[fake_driver()]);
    let [plugin, unloaded] = plugins();
    program(program_file).arg(plugin).arg(unloaded)
}

/// What the program printed about a block.
struct Expected {
    name: String,
    bytes: u64,
    address: u64,
    class: Class,
    roots: Vec<RootKind>,
    texts: Vec<String>,
}

fn expected(line: &str) -> Option<Expected> {
    let words: Vec<&str> = line.strip_prefix("BLOCK\t")?.split('\t').collect();
    let class = |name: &str| serde_json::from_value(name.into()).expect("a class");
    let root = |name: &str| serde_json::from_value(name.into()).expect("a root");
    Some(Expected {
        name: words[0].to_owned(),
        bytes: words[1].parse().expect("bytes"),
        address: words[2].parse().expect("an address"),
        class: class(words[3]),
        roots: words[4].split('|').map(root).collect(),
        texts: words[5..]
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| (*text).to_owned())
            .collect(),
    })
}

fn all_expected(victim: &Waiting) -> Vec<Expected> {
    let found: Vec<Expected> = victim.printed.iter().filter_map(|line| expected(line)).collect();
    assert!(found.len() >= 30, "{} holders", found.len());
    found
}

/// What must be right beside the classes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    /// Roots and the texts of paths.
    Symbols,
    /// Only the classes.
    Classes,
    /// As above, but the chunks of the allocator are not known: a lost block may be held by heap memory, and the path says so.
    NoChunks,
}

#[track_caller]
fn expect_classes(profile: &Profile, precision: Precision) {
    let victim = start(profile);
    let holders = victim.search().expect("an answer");
    let mut wrong = Vec::new();
    assert_eq!(holders.search.stopped, None);
    for one in all_expected(&victim) {
        let path = path_of(&holders, one.address).expect("a path for each block");
        let all = text(path);
        let right_root = one.class == Class::Lost || one.roots.contains(&path.root);
        let may_be_heap = precision == Precision::NoChunks && one.class == Class::Lost;
        if may_be_heap && path.class == Class::Held && path.possibly {
            continue;
        }
        if path.class != one.class {
            wrong.push(format!(
                "{}: {:?}, expected {:?}: {all}",
                one.name, path.class, one.class
            ));
        } else if precision != Precision::Classes && !(right_root && says(&all, &one.texts)) {
            let wanted = format!("{:?} {:?}", one.roots, one.texts);
            wrong.push(format!("{}: {:?} {all}, expected {wanted}", one.name, path.root));
        }
        let certain = match one.name.as_str() {
            "behind the end of a vector" | "taken out of a queue" => Some(false),
            "queue in an object" | "left in a queue" | "the last of a queue" => Some(true),
            _ => None,
        };
        if precision == Precision::Symbols && certain == Some(path.possibly) {
            wrong.push(format!("{}: possibly is {}: {all}", one.name, path.possibly));
        }
        let interior = ["interior", "tagged"].contains(&one.name.as_str());
        if path.class == Class::Held && path.interior != interior {
            wrong.push(format!("{}: interior is {}: {all}", one.name, path.interior));
        }
    }
    victim.kill();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs g++"]
fn every_native_holder_is_classed_and_named() {
    expect_classes(&victim(), Precision::Symbols);
}

#[test]
fn what_the_last_word_of_an_object_leads_to_is_held() {
    expect_classes(
        &program(executable("holders/last_word", &[], &[fake_driver()])),
        Precision::Symbols,
    );
}

#[test]
#[ignore = "needs g++"]
fn in_a_stripped_program_the_classes_are_the_same() {
    let [plugin, unloaded] = plugins();
    let stripped = executable("holders/native", &["-std=c++17", "-s"], &[fake_driver()]);
    expect_classes(&program(stripped).arg(plugin).arg(unloaded), Precision::Classes);
}

#[test]
#[ignore = "needs jemalloc, tcmalloc and mimalloc"]
fn with_other_allocators_what_is_held_has_the_same_names() {
    for allocator in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        let victim = victim().with_preload(Preload::AfterCuleak, installed(allocator));
        expect_classes(&victim, Precision::NoChunks);
    }
}

#[test]
#[ignore = "needs g++"]
fn leak_sanitizer_agrees() {
    let flags = [
        "-std=c++17",
        "-fno-omit-frame-pointer",
        "-DHOST_MEMORY",
        "-fsanitize=leak",
    ];
    let [plugin, unloaded] = plugins();
    let output = Command::new(executable("holders/native", &flags, &[]))
        .args([plugin, unloaded])
        .env("LSAN_OPTIONS", "report_objects=1")
        .output()
        .expect("the program starts");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(report.contains("LeakSanitizer: detected memory leaks"), "{output:?}");
    // `0x626000009000 (10304 bytes)`
    let leaked: Vec<u64> = report
        .lines()
        .filter(|line| line.starts_with("0x"))
        .filter_map(|line| line.split(['(', ' ']).nth(2)?.parse().ok())
        .collect();
    let mut differ = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some(one) = expected(line) else { continue };
        let leaks = leaked.contains(&one.bytes);
        if leaks != (one.class == Class::Lost) {
            differ.insert(one.name, leaks);
        }
    }
    // LeakSanitizer does not search memory from mmap that it was not given; a stale word may lead to what is there.
    differ.retain(|name, leaks| !(*leaks && ["arena", "arena below a stack"].contains(&name.as_str())));
    assert!(differ.is_empty(), "{differ:?}\n{report}");
}

#[test]
#[ignore = "needs g++"]
fn what_a_global_holds_is_retained_by_it_whatever_stale_words_a_stack_has() {
    let victim = start(&victim());
    let holders = victim.search().expect("an answer");
    let of_globals = holders.blocks.iter().filter(|block| {
        let path = &holders.paths[block.path];
        (path.class, path.root, path.possibly) == (Class::Held, RootKind::Global, false)
    });
    assert!(of_globals.clone().count() >= 8);
    for block in of_globals {
        let origin = &holders.paths[block.path].origin;
        let mut at = block.retainer;
        let mut outermost = None;
        while let Some(retainer) = at.map(|nth| &holders.retainers[nth]) {
            outermost = Some(retainer);
            at = retainer.parent;
        }
        let outermost = outermost.unwrap_or_else(|| panic!("{origin} retains nothing: {:#?}", holders.retainers));
        let names = [&outermost.name].into_iter().chain(&outermost.also);
        assert!(
            names.clone().any(|name| name.starts_with(origin.as_str())),
            "{origin}: {outermost:?}"
        );
        assert!(
            !names.clone().any(|name| name.contains("stack of thread")),
            "{outermost:?}"
        );
    }
    victim.quit();
}
