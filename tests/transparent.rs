//! The loader and the unwinder behave as without the recorder: it holds no lock that others wait for, leaves no error
//! behind, and lets exits other than a return pass through its hooks.

use std::path::{Path, PathBuf};
use std::process::Command;

use culeak::kind::Kind::*;

use crate::lookup::{self, user_of};
use crate::support::claims::Claims;
use crate::support::compile::{executable, reopened_library};
use crate::support::{LIBRARY_FOLDERS, Outcome, Preload, Profile, fake_driver, library, profile, program};

/// A runtime whose symbols all have this version, like those of NVIDIA's.
fn runtime(version: &str) -> PathBuf {
    let file = format!("libcudart.so.{version}");
    lookup::runtime(&file, version, &file, &[])
}

fn bytes(outcome: &Outcome) -> Vec<u64> {
    outcome
        .only_snapshot()
        .of_kind(Device)
        .iter()
        .map(|a| a.bytes)
        .collect()
}

#[test]
fn a_constructor_may_wait_for_a_thread_that_calls_the_driver() {
    let plugin = library("waits", "libwaits.so", &[], &[fake_driver()]);
    let outcome = program(executable("transparent", &["-DLOOKUP_DLSYM"], &[]))
        .arg("opens")
        .arg(plugin)
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(bytes(&outcome), [300]);
}

/// The victim, linked with a runtime.
fn with_runtime(runtime: &Path) -> Profile {
    let user = user_of(runtime, "libuser.so");
    program(executable(
        "transparent",
        &["-DLOOKUP_LINKED", "-Wl,--no-as-needed", "-rdynamic"],
        &[user, runtime.to_owned(), fake_driver()],
    ))
}

#[test]
fn a_constructor_may_wait_for_a_thread_that_calls_the_runtime() {
    let twelve = runtime("12");
    let plugin = library(
        "waits",
        "libwaits_runtime.so",
        &["-DRUNTIME", "-DLOOKUP_DLSYM"],
        std::slice::from_ref(&twelve),
    );
    let outcome = with_runtime(&twelve).arg("opens_after_use").arg(plugin).run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(bytes(&outcome), [100, 300]);
}

#[test]
fn a_callback_about_loaded_libraries_may_wait_for_a_thread_that_allocates() {
    let outcome = profile("transparent").tiny_driver().arg("waits_in_a_callback").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(bytes(&outcome), [300]);
}

#[test]
fn a_lookup_that_succeeds_leaves_no_dlerror() {
    let outcome = program(executable("transparent", &["-DLOOKUP_DLSYM"], &[]))
        .without_driver()
        .arg("looks_up")
        .arg(library("look_alike", "liblook_alike.so", &[], &[]))
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(outcome.stdout.contains("found, dlerror: none"), "{}", outcome.stdout);
}

fn left(behaviour: &str) -> Profile {
    profile("transparent")
        .leaving_hooks_halfway()
        .with_preload(Preload::AfterCuleak, library("leaves", "libleaves.so", &[], &[]))
        .arg(behaviour)
}

#[test]
fn a_thread_that_ends_inside_the_driver_unwinds_through_the_hook() {
    let outcome = left("ends_in_the_driver").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(outcome.stdout.contains("cleaned up\njoined: 1"), "{}", outcome.stdout);
    assert_eq!(bytes(&outcome), [16, 17]);
}

#[test]
fn a_thread_that_ends_inside_a_tensor_allocators_report_unwinds_through_the_hook() {
    let allocator = library("libc10", "libc10.so", &["-DENDS_THREAD=1001"], &[]);
    let outcome = program(executable(
        "unwinds_c10",
        &["-DLOOKUP_LINKED", "-fexceptions"],
        &[allocator, fake_driver()],
    ))
    .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(outcome.stdout.contains("cleaned up\njoined: 1"), "{}", outcome.stdout);
}

#[test]
fn a_call_after_a_jump_out_of_the_runtime_is_recorded_under_its_own_name() {
    let outcome = with_runtime(&runtime("12"))
        .leaving_hooks_halfway()
        .with_preload(Preload::AfterCuleak, library("leaves", "libleaves.so", &[], &[]))
        .arg("jumps_out_of_the_runtime")
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(!outcome.stdout.contains("came back"), "{}", outcome.stdout);
    let snapshot = outcome.only_snapshot();
    let found: Vec<_> = snapshot.of_kind(Device).iter().map(|a| (a.bytes, a.api())).collect();
    assert_eq!(found, [(17, "cuMemAlloc_v2")]);
}

#[test]
fn a_runtime_that_moved_after_256_unloads_is_found_again() {
    let outcome = profile("transparent")
        .arg("reopens")
        .arg(user_of(&runtime("12"), "libuser.so"))
        .arg(library("look_alike", "liblook_alike.so", &[], &[]))
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(
        outcome.stdout.contains("same place"),
        "the plugin was mapped at different addresses: {}",
        outcome.stdout
    );
    assert_eq!(bytes(&outcome), [100, 100]);
}

#[test]
fn a_dlclose_found_through_dlsym_is_recorded() {
    let plugin = |name: &str, bytes: u64| {
        let flags = [format!("-DLEAKS={name}_leaks"), format!("-DBYTES={bytes}")];
        reopened_library(
            "plugin",
            &format!("lib{name}.so"),
            &[&flags[0], &flags[1]],
            &[fake_driver()],
        )
    };
    let outcome = profile("transparent")
        .arg("closes_by_handle")
        .arg(plugin("first", 111))
        .arg(plugin("other", 222))
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(
        outcome.stdout.matches("same place").count(),
        2,
        "the plugins were mapped at different addresses"
    );
    let snapshot = outcome.symbolized();
    let named: Vec<_> = snapshot
        .of_kind(Device)
        .iter()
        .map(|row| snapshot.functions(*row)[0].clone())
        .collect();
    assert_eq!(named, ["first_leaks", "other_leaks"]);
}

/// The shared library of an interpreter on this machine.
fn libpython() -> PathBuf {
    let script =
        "import sysconfig; print(sysconfig.get_config_var('LIBDIR') + '/' + sysconfig.get_config_var('INSTSONAME'))";
    let output = Command::new("python3").args(["-c", script]).output().expect("python3");
    let own = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let installed = LIBRARY_FOLDERS
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libpython3.") && name.contains(".so") && path.exists()
    };
    std::iter::once(own)
        .chain(installed.map(|entry| entry.path()))
        .find(is_library)
        .expect("a shared libpython: install libpython3-dev")
}

#[test]
#[ignore = "needs the headers and the library of Python"]
fn a_host_that_unloads_an_embedded_python_can_allocate_afterwards() {
    let outcome = profile("transparent").arg("embeds").arg(libpython()).run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(bytes(&outcome), [100, 200]);
}

#[test]
fn a_forked_child_can_call_a_runtime_function_that_its_parent_never_called() {
    let outcome = with_runtime(&runtime("12")).arg("forks_with_runtime").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(outcome.stdout.contains("cudaMallocAsync of 12"), "{}", outcome.stdout);
}

/// A runtime without symbol versions, as other tools' wrappers are, which prints its name.
fn wrapper(name: &str) -> PathBuf {
    let copy = format!("-DCOPY=\"{name}\"");
    library("runtime", &format!("lib{name}.so"), &[&copy], &[])
}

/// The number of calls to this copy.
fn calls(outcome: &Outcome, copy: &str) -> usize {
    outcome.stdout.matches(&format!("cudaMalloc of {copy}\n")).count()
}

#[test]
fn a_plugin_finds_the_library_it_was_linked_with_first() {
    let flags = ["-Wl,--no-as-needed"];
    let linked = [wrapper("wrapper"), user_of(&runtime("12"), "libuser.so")];
    let plugin = library("look_alike", "libplugin.so", &flags, &linked);
    let outcome = profile("transparent").arg("uses").arg(plugin).run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(calls(&outcome, "wrapper"), 2, "{}", outcome.stdout);
}

#[test]
fn a_library_opened_by_a_constructor_is_not_one_the_program_was_linked_with() {
    let opens = format!("-DOPENS=\"{}\"", wrapper("opened").display());
    let early = library("early", "libearly.so", &[&opens], &[]);
    let flags = ["-DLOOKUP_DLSYM", "-Wl,--no-as-needed"];
    let outcome = program(executable("transparent", &flags, &[early]))
        .arg("uses")
        .arg(user_of(&runtime("12"), "libuser.so"))
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(calls(&outcome, "12"), 4, "{}", outcome.stdout);
    assert_eq!(bytes(&outcome), [100, 200]);
}

#[test]
fn a_constructor_that_runs_before_the_recorders_reaches_the_wrapper_behind_it() {
    let twelve = runtime("12");
    let early = library(
        "early",
        "libearly_calls.so",
        &["-DCALLS"],
        std::slice::from_ref(&twelve),
    );
    let outcome = program(executable("calls_runtime", &["-Wl,--no-as-needed"], &[early, twelve]))
        .with_preload(Preload::AfterCuleak, wrapper("wrapper"))
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(calls(&outcome, "wrapper"), 2, "{}", outcome.stdout);
}

#[test]
fn a_program_without_exports_reaches_the_version_it_was_linked_with() {
    for flags in [
        ["-no-pie", "-fno-pie"],
        ["-pie", "-fpie"],
        ["-pie", "-Wl,--hash-style=sysv"],
    ] {
        let outcome = program(executable("calls_runtime", &flags, &[runtime("12")]))
            .with_preload(Preload::AfterCuleak, runtime("11.0"))
            .run();
        outcome.expect_success().expect_same_output_as_bare();
        assert_eq!(calls(&outcome, "12"), 1, "{flags:?}: {}", outcome.stdout);
    }
}

#[test]
fn a_label_on_an_unmapped_stack_is_dropped() {
    let outcome = with_runtime(&runtime("12"))
        .leaving_hooks_halfway()
        .with_preload(Preload::AfterCuleak, library("leaves", "libleaves.so", &[], &[]))
        .arg("gives_a_stack_back")
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    let found: Vec<_> = snapshot.of_kind(Device).iter().map(|a| (a.bytes, a.api())).collect();
    assert_eq!(found, [(17, "cuMemAlloc_v2")]);
}

#[test]
fn a_driver_that_is_still_being_loaded_is_not_called() {
    let resolves = library("resolves", "libresolves.so", &[], &[]);
    let driver = library("tiny_driver", "libcuda.so.1", &["-Wl,--no-as-needed"], &[resolves]);
    let outcome = program(executable("transparent", &["-DLOOKUP_DLSYM", "-rdynamic"], &[]))
        .without_driver()
        .arg("opens_the_driver")
        .arg(driver)
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    assert_eq!(outcome.only_snapshot().of_kind(Block).len(), 1);
}

#[test]
fn locks_on_the_programs_own_files_survive() {
    let outcome = profile("transparent").arg("locks").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(outcome.stdout.contains("locked"), "{}", outcome.stdout);
    assert_eq!(bytes(&outcome).len(), 20_001);
}
