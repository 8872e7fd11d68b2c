//! Libraries that are opened and closed: a stack in a closed library still names it, and no other one.

use std::path::PathBuf;

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::compile::reopened_library;
use crate::support::{fake_driver, profile};

fn plugin(name: &str, bytes: u64) -> PathBuf {
    let leaks = format!("-DLEAKS={name}_leaks");
    let bytes = format!("-DBYTES={bytes}");
    reopened_library(
        "plugin",
        &format!("lib{name}.so"),
        &[&leaks, &bytes, "-Wl,--build-id"],
        &[fake_driver()],
    )
}

#[test]
fn a_closed_library_is_still_named_after_another_took_its_place() {
    let (first, other) = (plugin("first", 111), plugin("other", 222));
    let outcome = profile("plugin_host")
        .arg("in_turn")
        .arg(&first)
        .arg(&other)
        .arg(&first)
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(
        outcome.stdout.matches("same place").count(),
        3,
        "the plugins were mapped at different addresses: {}",
        outcome.stdout
    );

    let snapshot = outcome.symbolized();
    let rows = snapshot.of_kind(Device);
    assert_eq!(rows.iter().map(|a| a.bytes).collect::<Vec<_>>(), [111, 222, 111]);
    for (row, name) in rows.iter().zip(["first", "other", "first"]) {
        let functions = snapshot.functions(*row);
        assert_eq!(functions[0], format!("{name}_leaks"), "{functions:?}");
        let stack = &snapshot.stacks[row.stack.expect("a stack")];
        let module = snapshot.locations[stack.frames[0]]
            .module
            .expect("its library is known");
        assert!(
            snapshot.modules[module].path.ends_with(&format!("/lib{name}.so")),
            "{:?}",
            snapshot.modules[module]
        );
        assert!(
            snapshot.modules[module].unloaded_ns.is_some(),
            "{:?}",
            snapshot.modules[module]
        );
    }
    let build_ids: Vec<_> = snapshot
        .modules
        .iter()
        .filter(|m| m.path.contains("/libfirst.so"))
        .map(|m| &m.build_id)
        .collect();
    assert!(
        !build_ids.is_empty() && build_ids.iter().all(|id| id.len() == 40),
        "{build_ids:?}"
    );
}

#[test]
fn a_library_opened_and_closed_300_times_is_recorded() {
    let outcome = profile("plugin_host")
        .arg("again_and_again")
        .arg(plugin("first", 111))
        .run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 300, 300 * 111).expect_nothing_lost();
    let snapshot = outcome.symbolized();
    for row in snapshot.of_kind(Device) {
        assert_eq!(snapshot.functions(row)[0], "first_leaks");
    }
}

/// The plugin's calls are not recorded; those of the program are.
#[track_caller]
fn expect_only_the_program_recorded(behaviour: &str) {
    let outcome = profile("plugin_host").arg(behaviour).arg(plugin("first", 111)).run();
    outcome.expect_success().expect_same_output_as_bare();
    let rows = outcome.only_snapshot().of_kind(Device);
    assert_eq!(rows.iter().filter(|a| a.bytes == 5).count(), 1, "{rows:#?}");
}

#[test]
fn a_library_opened_with_deepbind_is_not_recorded_and_runs_unchanged() {
    // RTLD_DEEPBIND: the library's symbols bypass every preloaded library.
    expect_only_the_program_recorded("deepbind");
}

#[test]
fn a_library_opened_with_dlmopen_is_not_recorded_and_runs_unchanged() {
    expect_only_the_program_recorded("own_namespace");
}

#[test]
fn the_readme_lists_the_blind_spots() {
    let readme =
        std::fs::read_to_string(crate::support::sources().join("../README.md")).expect("the project has a README");
    for spot in ["RTLD_DEEPBIND", "dlmopen"] {
        assert!(readme.contains(spot), "README.md does not list {spot} as a blind spot");
    }
}
