//! The recorder interposes `dlsym`, `dlvsym` and `cuGetProcAddress`; callers must get the same answers as without it.

use std::path::{Path, PathBuf};

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::{Lookup, Outcome, Preload, fake_driver, library, profile, program};

#[test]
fn a_process_without_libcuda_finds_no_cuda() {
    let outcome = profile("probes")
        .lookup(Lookup::Dlsym)
        .without_driver()
        .arg("without_cuda")
        .run();
    outcome.expect_success().expect_same_output_as_bare().expect_no_file();
    assert!(
        outcome.stdout.contains("default cuMemAlloc_v2: null"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn dlerror_describes_the_last_lookup() {
    let outcome = profile("probes").lookup(Lookup::Dlsym).arg("errors").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(
        outcome.stdout.contains("undefined symbol: no_such_name"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn dlvsym_returns_what_it_returns_without_culeak() {
    profile("probes")
        .lookup(Lookup::Dlsym)
        .arg("versions")
        .run()
        .expect_success()
        .expect_same_output_as_bare();
}

#[test]
fn cu_get_proc_address_returns_what_it_returns_without_culeak() {
    let outcome = profile("probes").lookup(Lookup::Dlsym).arg("proc_addresses").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(
        outcome.stdout.contains("cuMemAlloc 3020 0: 0 found"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn cu_get_proc_address_found_through_itself_has_the_right_number_of_arguments() {
    let outcome = profile("probes")
        .lookup(Lookup::Dlsym)
        .arg("proc_address_of_itself")
        .run();
    let found: Vec<_> = outcome
        .only_snapshot()
        .of_kind(Device)
        .iter()
        .map(|a| a.bytes)
        .collect();
    assert_eq!(found, [40, 50], "through the form with 4 arguments, then with 5");
}

#[test]
fn a_weak_reference_in_a_program_without_libcuda_gets_an_error_and_no_crash() {
    let outcome = program(executable("weak", &[], &[])).without_driver().run();
    outcome.expect_success().expect_same_output_as_bare().expect_no_file();
}

/// A library whose function looks for the next definition of its own name, as OpenMP runtimes do.
fn forwarder() -> PathBuf {
    library("forwarder", "libforwarder.so", &[], &[])
}

#[test]
fn a_weak_forwarder_does_not_find_itself() {
    let forwarded = executable("forwarded", &[], &[forwarder(), fake_driver()]);
    let outcome = program(forwarded).run();
    outcome
        .expect_same_output_as_bare()
        .only_snapshot()
        .expect_live(Device, 1, 100);
    assert!(outcome.stdout.contains("no tool"));
}

#[test]
fn a_preloaded_forwarder_finds_the_next_definition() {
    let forwarded = executable("forwarded", &[], &[forwarder(), fake_driver()]);
    for place in [Preload::BeforeCuleak, Preload::AfterCuleak] {
        let first = library("forwarder", "libfirst_forwarder.so", &[], &[]);
        let outcome = program(forwarded.clone()).with_preload(place, first).run();
        outcome
            .expect_same_output_as_bare()
            .only_snapshot()
            .expect_live(Device, 1, 100);
    }
}

fn with_other_hook(place: Preload, lookup: Lookup) -> Outcome {
    let other = library("other_preload", "libother_preload.so", &[], &[]);
    profile("endings")
        .lookup(lookup)
        .with_preload(place, other)
        .arg("returns")
        .run()
}

#[test]
fn a_dlsym_hook_after_culeak_still_receives_lookups() {
    for lookup in [Lookup::Dlsym, Lookup::ProcV2] {
        let outcome = with_other_hook(Preload::AfterCuleak, lookup);
        outcome.expect_success().expect_same_output_as_bare();
        outcome.only_snapshot().expect_live(Device, 1, 100);
        assert!(
            outcome.stderr.contains("other preload: called"),
            "{lookup:?}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn a_dlsym_hook_before_culeak_does_not_hide_the_program() {
    for lookup in [Lookup::Linked, Lookup::Dlsym, Lookup::ProcV2] {
        let outcome = with_other_hook(Preload::BeforeCuleak, lookup);
        outcome.expect_success().expect_same_output_as_bare();
        outcome.only_snapshot().expect_live(Device, 1, 100);
    }
}

/// A runtime library with its own file name and symbol version, and a plugin that needs exactly that one.
pub fn runtime(file: &str, copy: &str, version: &str, extra: &[&str]) -> PathBuf {
    let script = crate::support::compile::run_folder().join(format!("{file}.map"));
    std::fs::write(&script, format!("{version} {{ global: cuda*; local: *; }};\n")).expect("written");
    let script = format!("-Wl,--version-script={}", script.display());
    let copy = format!("-DCOPY=\"{copy}\"");
    let mut flags = vec![script.as_str(), copy.as_str()];
    flags.extend(extra);
    library("runtime", file, &flags, &[])
}

pub fn user_of(runtime: &Path, file: &str) -> PathBuf {
    library("runtime_user", file, &[], &[runtime.to_owned()])
}

#[test]
fn every_runtime_call_reaches_the_callers_own_runtime() {
    let twelve = runtime("libcudart.so.12", "twelve", "libcudart.so.12", &[]);
    let copy = runtime("libcudart-0a1b2c3d.so.12", "a private copy", "libcudart.so.12", &[]);
    let thirteen = runtime("libcudart.so.13", "thirteen", "libcudart.so.13", &[]);
    let plugins = [
        user_of(&twelve, "libone.so"),
        user_of(&copy, "libtwo.so"),
        user_of(&thirteen, "libthree.so"),
    ];

    let mut hosted = program(executable("runtimes", &[], &[]));
    for plugin in &plugins {
        hosted = hosted.arg(plugin);
    }
    let outcome = hosted.run();
    outcome.expect_success().expect_same_output_as_bare();
    for copy in ["twelve", "a private copy", "thirteen"] {
        let calls = outcome
            .stdout
            .lines()
            .filter(|line| *line == format!("cudaMalloc of {copy}"))
            .count();
        assert_eq!(calls, 4, "{}", outcome.stdout);
    }
    let rows = outcome.only_snapshot().of_kind(Device);
    let found: Vec<_> = rows.iter().map(|a| (a.bytes, a.api())).collect();
    let label = "cudaMalloc";
    assert_eq!(
        found,
        [
            (100, label),
            (200, label),
            (300, label),
            (3000, label),
            (2000, label),
            (1000, label)
        ]
    );
}

#[test]
fn a_programs_runtime_and_a_plugins_runtime_are_not_mixed_up() {
    let own = runtime("libcudart.so.12", "twelve", "libcudart.so.12", &[]);
    let thirteen = runtime("libcudart.so.13", "thirteen", "libcudart.so.13", &[]);
    let with_own = executable(
        "runtimes",
        &["-DWITH_OWN"],
        &[user_of(&own, "libown_user.so"), own.clone()],
    );
    let outcome = program(with_own).arg(user_of(&thirteen, "libthree.so")).run();
    outcome.expect_success().expect_same_output_as_bare();
    let found: Vec<_> = outcome
        .only_snapshot()
        .of_kind(Device)
        .iter()
        .map(|a| a.bytes)
        .collect();
    assert_eq!(found, [1, 100, 1000]);
}

#[test]
fn a_runtime_that_calls_no_driver_function_is_recorded_at_its_own_calls() {
    let hidden = runtime("libcudart.so.12", "hidden", "libcudart.so.12", &["-DWITHOUT_DRIVER"]);
    let outcome = program(executable("runtimes", &[], &[]))
        .arg(user_of(&hidden, "libhidden.so"))
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    let found: Vec<_> = outcome
        .only_snapshot()
        .allocations
        .iter()
        .map(|a| (a.bytes, a.api()))
        .collect();
    assert_eq!(found, [(100, "cudaMalloc"), (1000, "cudaMalloc")]);
}

#[test]
fn runtime_functions_looked_up_by_name_and_version_are_recorded_where_they_reach_the_driver() {
    let twelve = runtime("libcudart.so.12", "twelve", "libcudart.so.12", &[]);
    let outcome = program(executable("runtime_by_name", &["-DLOOKUP_DLSYM"], &[]))
        .arg(&twelve)
        .run();
    outcome.expect_same_output_as_bare();
    let found: Vec<_> = outcome
        .only_snapshot()
        .of_kind(Device)
        .iter()
        .map(|a| (a.bytes, a.api()))
        .collect();
    assert_eq!(found, [(10, "cuMemAlloc_v2"), (20, "cuMemAlloc_v2")]);
}

#[test]
fn programs_bound_at_start_are_recorded_too() {
    for lookup in Lookup::ALL {
        let outcome = profile("kinds")
            .lookup(lookup)
            .env("LD_BIND_NOW", "1")
            .arg("device")
            .run();
        outcome.only_snapshot().expect_live(Device, 1, 1000);
    }
}
