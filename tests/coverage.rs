//! The list of functions is complete, and the built library exports it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use culeak::cuda_functions::{Api, DRIVER_NAMES, RUNTIME_NAMES};
use object::{Object, ObjectSymbol};

use crate::support::{shim, sources};

/// A line of `data/tier1.txt`.
struct Tier1 {
    name: String,
    /// The driver function that is hooked instead.
    via: Option<String>,
}

fn tier1() -> Vec<Tier1> {
    let text = fs::read_to_string(sources().join("data/tier1.txt")).expect("readable");
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let read = |line: &str| match line.split_once(" via ") {
        Some((name, via)) => Tier1 {
            name: name.to_owned(),
            via: Some(via.to_owned()),
        },
        None => Tier1 {
            name: line.to_owned(),
            via: None,
        },
    };
    lines.map(read).collect()
}

fn exports() -> BTreeSet<String> {
    let bytes = fs::read(shim()).expect("the preload library was built");
    let file = object::File::parse(&bytes[..]).expect("an ELF file");
    let defined = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global());
    defined
        .map(|symbol| symbol.name().expect("a name").to_owned())
        .collect()
}

#[test]
fn every_memory_function_is_in_the_list() {
    let missing: Vec<String> = tier1()
        .into_iter()
        .filter(|row| Api::find(row.via.as_ref().unwrap_or(&row.name).as_bytes()).is_none())
        .map(|row| row.name)
        .collect();
    assert!(missing.is_empty(), "no row in src/cuda_functions.rs for {missing:?}");
}

#[test]
fn every_memory_function_is_exported_by_the_shim() {
    let exports = exports();
    let missing: Vec<String> = tier1()
        .into_iter()
        .map(|row| row.via.unwrap_or(row.name))
        .filter(|name| !exports.contains(name))
        .collect();
    assert!(missing.is_empty(), "the shim does not export {missing:?}");
}

#[test]
fn every_function_of_the_list_is_exported_by_the_shim() {
    let exports = exports();
    let missing: Vec<&&str> = DRIVER_NAMES
        .iter()
        .chain(RUNTIME_NAMES)
        .filter(|name| !exports.contains(**name))
        .collect();
    assert!(missing.is_empty(), "the shim does not export {missing:?}");
}

#[test]
fn a_name_hooked_elsewhere_is_not_hooked_twice() {
    for row in tier1().iter().filter(|row| row.via.is_some()) {
        assert!(
            Api::find(row.name.as_bytes()).is_none(),
            "{} has its own row and needs no `via`",
            row.name
        );
    }
}

#[test]
fn the_list_of_required_functions_is_complete() {
    let names: BTreeSet<String> = tier1().into_iter().map(|row| row.name).collect();
    assert_eq!(
        names.len(),
        219,
        "a line was removed, repeated or added; if it was added, change this number"
    );
    for name in [
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cudaMalloc",
        "cuMemAllocAsync_ptsz",
        "cuMulticastCreate",
        "cuGreenCtxCreate",
        "cuGraphExecDestroy",
    ] {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn the_library_passes_its_gate() {
    let gate = Command::new("bash")
        .arg(sources().join("gate.sh"))
        .arg(shim())
        .output()
        .expect("bash runs");
    assert!(
        gate.status.success(),
        "{}{}",
        String::from_utf8_lossy(&gate.stdout),
        String::from_utf8_lossy(&gate.stderr)
    );
}

#[test]
fn the_gate_rejects_other_libraries() {
    // libc depends on no libc and exports other names: a gate that accepts it accepts everything.
    let maps = fs::read_to_string("/proc/self/maps").expect("readable");
    let libc = maps.lines().find_map(|line| {
        line.split_whitespace()
            .last()
            .filter(|path| path.ends_with("/libc.so.6"))
    });
    let gate = Command::new("bash")
        .arg(sources().join("gate.sh"))
        .arg(libc.expect("we use libc"))
        .output();
    let gate = gate.expect("bash runs");
    let output = String::from_utf8_lossy(&gate.stdout).into_owned();
    assert!(!gate.status.success(), "{output}");
    for claim in [
        "exports every function of the list",
        "exports nothing else",
        "is never unloaded",
    ] {
        assert!(output.contains(&format!("FAILED  {claim}")), "{output}");
    }
}
