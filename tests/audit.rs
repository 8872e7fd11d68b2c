//! Libraries that bind past every preloaded library, recorded with `culeak run --record audit`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use culeak::kind::Kind::*;
use culeak::snapshot::Snapshot;

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::outcome::{read, recordings_in, symbolize};
use crate::support::profile::{fake_driver_folder, folder};
use crate::support::{culeak, fake_driver, library};

/// How the library in `victims/inside.c` finds the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finds {
    /// Its undefined symbols, bound when it is loaded or at the first call.
    Linked,
    LinkedLazily,
    Dlsym,
    ProcAddress,
    /// A runtime that is linked into the library.
    StaticRuntime,
}

const ALL: [Finds; 5] = [
    Finds::Linked,
    Finds::LinkedLazily,
    Finds::Dlsym,
    Finds::ProcAddress,
    Finds::StaticRuntime,
];

fn inside(name: &str, bytes: u64, finds: Finds) -> PathBuf {
    let leaks = format!("-DLEAKS={name}_leaks");
    let bytes = format!("-DBYTES={bytes}");
    let (how, driver): (&[&str], Vec<PathBuf>) = match finds {
        Finds::Linked => (&["-DLOOKUP_LINKED", "-Wl,-z,now"], vec![fake_driver()]),
        Finds::LinkedLazily => (&["-DLOOKUP_LINKED", "-Wl,-z,lazy"], vec![fake_driver()]),
        Finds::Dlsym => (&["-DLOOKUP_DLSYM"], vec![]),
        Finds::ProcAddress => (&["-DLOOKUP_PROC_V2"], vec![]),
        Finds::StaticRuntime => (&["-DRUNTIME", "-fvisibility=hidden", "-Wno-unused"], vec![]),
    };
    let runtime = crate::support::sources().join("fake_driver/runtime");
    let include = format!("-I{}", runtime.display());
    let mut flags = vec![leaks.as_str(), &bytes, &include];
    flags.extend(how);
    library("inside", &format!("lib{name}{finds:?}.so"), &flags, &driver)
}

/// Runs the host with these options of `culeak run`, and returns its output and its recording, if there is one.
fn run(options: &[&str], how: &str, libraries: &[PathBuf], then: impl FnOnce(&Output, Option<&Path>)) {
    run_with_preload("", options, how, libraries, then);
}

/// The same with a library that is preloaded after culeak's.
fn run_with_preload(
    preload: impl AsRef<OsStr>,
    options: &[&str],
    how: &str,
    libraries: &[PathBuf],
    then: impl FnOnce(&Output, Option<&Path>),
) {
    let folder = folder();
    let out = folder.path().join("out");
    let ended = Command::new(culeak())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LC_ALL", "C")
        .env("HOME", folder.path())
        .env("LD_LIBRARY_PATH", fake_driver_folder())
        .env("CULEAK_CACHE_DIR", "")
        .env("LD_PRELOAD", preload)
        .args(["run", "--no-report", "-o"])
        .arg(&out)
        .args(options)
        .arg("--")
        .arg(executable("inside_host", &[], &[]))
        .arg(how)
        .args(libraries)
        .output()
        .expect("culeak runs");
    let is_bypassed = String::from_utf8_lossy(&ended.stderr).contains("a process used CUDA past the preload library");
    let code = if is_bypassed { 2 } else { 0 };
    assert_eq!(ended.status.code(), Some(code), "{how} {libraries:?}: {ended:?}");
    then(&ended, recordings_in(&out).first().map(PathBuf::as_path));
}

fn recorded(how: &str, libraries: &[PathBuf], claims: impl FnOnce(&Snapshot)) {
    run(&["--record", "audit"], how, libraries, |ended, recording| {
        let recording = recording.unwrap_or_else(|| panic!("{how} {libraries:?}: {ended:?}"));
        read(recording).expect_nothing_lost();
        claims(&symbolize(recording));
    });
}

#[test]
fn each_way_to_bypass_a_preload_is_recorded_with_lines() {
    for how in ["plain", "deepbind", "namespace"] {
        for finds in ALL {
            let how = if finds == Finds::LinkedLazily {
                format!("{how}-lazy")
            } else {
                how.to_owned()
            };
            recorded(&how, &[inside("first", 111, finds)], |snapshot| {
                let rows = snapshot.of_kind(Device);
                assert_eq!(
                    rows.iter().map(|row| row.bytes).collect::<Vec<_>>(),
                    [111],
                    "{how} {finds:?}"
                );
                assert!(
                    snapshot.functions(rows[0]).contains(&"first_leaks".to_owned()),
                    "{how} {finds:?}"
                );
                assert_eq!(rows[0].device, Some(0), "{how} {finds:?}");
                assert_eq!(snapshot.losses.unknown_frees, 0, "{how} {finds:?}");
            });
        }
    }
}

#[test]
fn without_the_option_they_run_unrecorded() {
    for how in ["deepbind", "namespace"] {
        run(&[], how, &[inside("first", 111, Finds::Linked)], |ended, recording| {
            assert_eq!(recording, None, "{how}: {ended:?}");
        });
    }
}

#[test]
fn the_program_behaves_as_without_it() {
    for how in ["plain", "deepbind", "namespace", "namespace-thread-closes"] {
        let libraries = [
            inside("first", 111, Finds::ProcAddress),
            inside("other", 222, Finds::Linked),
        ];
        let output = |options: &[&str]| {
            let mut output = Vec::new();
            run(options, how, &libraries, |ended, _| output.clone_from(&ended.stdout));
            String::from_utf8_lossy(&output).into_owned()
        };
        assert_eq!(output(&["--record", "audit"]), output(&[]), "{how}");
    }
}

#[test]
fn several_namespaces_with_a_driver_each_are_recorded() {
    let libraries = [inside("first", 111, Finds::Linked), inside("other", 222, Finds::Linked)];
    recorded("namespace-thread", &libraries, |snapshot| {
        let mut bytes: Vec<u64> = snapshot.of_kind(Device).iter().map(|row| row.bytes).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, [111, 111, 222, 222]);
    });
}

#[test]
fn a_driver_that_is_unloaded_with_its_namespace_makes_room_for_the_next() {
    let libraries = [1, 2, 3, 4].map(|number| inside(&format!("number{number}"), 100 + number, Finds::Linked));
    run(
        &["--record", "audit"],
        "namespace-closes-counts",
        &libraries,
        |ended, recording| {
            let snapshot = read(recording.unwrap_or_else(|| panic!("{ended:?}")));
            // The memory of a driver that is gone may have given its addresses to the next.
            let rows = snapshot.of_kind(Device);
            assert!(rows.iter().any(|row| row.bytes == 104), "{rows:#?}");
            assert!(snapshot.losses.unhooked.is_empty(), "{:#?}", snapshot.losses);
            // The first is kept, because culeak calls it.
            let output = String::from_utf8_lossy(&ended.stdout);
            assert!(output.contains("drivers: 1\n"), "{output}");
        },
    );
    run(&[], "namespace-closes-counts", &libraries, |ended, _| {
        let output = String::from_utf8_lossy(&ended.stdout);
        assert!(output.contains("drivers: 0\n"), "{output}");
    });
}

#[test]
fn a_preload_that_looks_dlclose_up_at_its_first_call_gets_the_next_one() {
    let preload = library("wraps_dlclose", "libwraps_dlclose.so", &[], &[]);
    for how in ["deepbind-closes", "namespace-closes"] {
        let libraries = [inside("first", 111, Finds::Linked)];
        run_with_preload(&preload, &["--record", "audit"], how, &libraries, |ended, recording| {
            let output = String::from_utf8_lossy(&ended.stdout);
            assert!(output.contains("looked up\n"), "{how}: {ended:?}");
            read(recording.unwrap_or_else(|| panic!("{how}: {ended:?}"))).expect_live(Device, 1, 111);
        });
    }
}

#[test]
fn libraries_that_must_get_the_drivers_own_functions_get_them() {
    for how in ["deepbind", "namespace"] {
        for finds in [Finds::Linked, Finds::Dlsym] {
            run(
                &["--record", "audit"],
                how,
                &[inside("cupti", 111, finds)],
                |ended, recording| {
                    assert_eq!(recording, None, "{how} {finds:?}: {ended:?}");
                },
            );
        }
    }
}

#[test]
fn copies_of_the_driver_beyond_the_second_are_reported() {
    let libraries = [1, 2, 3].map(|number| inside(&format!("number{number}"), 100 + number, Finds::Linked));
    run(&["--record", "audit"], "namespace", &libraries, |ended, recording| {
        let snapshot = read(recording.unwrap_or_else(|| panic!("{ended:?}")));
        let bytes: Vec<u64> = snapshot.of_kind(Device).iter().map(|row| row.bytes).collect();
        assert_eq!(bytes, [101, 102]);
        let unhooked = &snapshot.losses.unhooked;
        assert!(unhooked.iter().any(|name| name == "cuMemAlloc_v2"), "{unhooked:?}");
    });
}
