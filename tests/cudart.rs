//! Programs on the CUDA runtime: NVIDIA's own as far as it starts without a GPU, and a stand-in for the rest.
//!
//! NVIDIA's cudart asks the driver to prove its identity, which the fake driver cannot (`fake_driver/README.md`). These
//! claims show that the recorder changes nothing up to that point; `gpu/` shows that allocations through it are recorded.
//! The stand-in calls the same driver functions in the same way, and allocates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use culeak::kind::Kind::{self, *};

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::profile::folder;
use crate::support::{Profile, library, program, sources};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linked {
    Shared,
    Static,
}

/// A victim on the stand-in runtime.
fn on_stand_in(victim: &str, linked: Linked) -> Profile {
    let folder = sources().join("fake_driver/runtime");
    let include = format!("-I{}", folder.display());
    program(match linked {
        Linked::Shared => {
            let script = format!("-Wl,--version-script={}", folder.join("libcudart.map").display());
            let runtime = "../fake_driver/runtime/runtime";
            let shared = library(runtime, "libcudart.so.12", &[&script, "-Wno-unused", &include], &[]);
            executable(victim, &[&include], &[shared])
        }
        Linked::Static => executable(
            victim,
            &[&include, "-fvisibility=hidden", "-Wno-unused"],
            &[folder.join("runtime.c")],
        ),
    })
}

/// What `victims/cudart_leaks.c` leaks: bytes, the runtime call, and the driver function behind it.
const LEAKS: [(Kind, u64, &str, &str); 14] = [
    (Device, 101, "cudaMalloc", "cuMemAlloc_v2"),
    (Pitched, 2 * 512, "cudaMallocPitch", "cuMemAllocPitch_v2"),
    (Pitched, 4 * 512, "cudaMalloc3D", "cuMemAllocPitch_v2"),
    (Managed, 102, "cudaMallocManaged", "cuMemAllocManaged"),
    (HostPinned, 103, "cudaMallocHost", "cuMemHostAlloc"),
    (HostPinned, 104, "cudaHostAlloc", "cuMemHostAlloc"),
    (HostRegistered, 4096, "cudaHostRegister", "cuMemHostRegister_v2"),
    (Array, 8 * 4 * 4, "cudaMallocArray", "cuArray3DCreate_v2"),
    (Array, 8 * 4 * 2 * 4, "cudaMalloc3DArray", "cuArray3DCreate_v2"),
    (
        Mipmapped,
        (64 + 16) * 4,
        "cudaMallocMipmappedArray",
        "cuMipmappedArrayCreate",
    ),
    (Async, 105, "cudaMallocAsync", "cuMemAllocAsync"),
    (Pool, 0, "cudaMemPoolCreate", "cuMemPoolCreate"),
    (Async, 106, "cudaMallocFromPoolAsync", "cuMemAllocFromPoolAsync"),
    (Graph, 107, "cudaMallocAsync", "cuMemAllocAsync"),
];

#[track_caller]
fn every_leak_is_found(linked: Linked) {
    let outcome = on_stand_in("cudart_leaks", linked).run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome.only_snapshot().expect_nothing_lost();
    let snapshot = outcome.symbolized();
    let mut found: Vec<_> = snapshot
        .allocations
        .iter()
        .map(|a| (a.kind, a.bytes, a.api.clone()))
        .collect();
    let mut left: Vec<_> = LEAKS
        .iter()
        .map(|&(kind, bytes, runtime, driver)| {
            (
                kind,
                bytes,
                if linked == Linked::Shared { runtime } else { driver }.to_owned(),
            )
        })
        .collect();
    found.sort();
    left.sort();
    assert_eq!(found, left);
    for row in &snapshot.allocations {
        let functions = snapshot.functions(row);
        assert!(
            functions.contains(&"leak_everything".to_owned()),
            "{}: {functions:?}",
            row.api
        );
    }
}

#[test]
fn leaks_through_a_shared_runtime_have_the_names_of_its_calls() {
    every_leak_is_found(Linked::Shared);
}

#[test]
fn leaks_through_a_static_runtime_are_found_at_the_driver_with_their_stacks() {
    every_leak_is_found(Linked::Static);
}

#[test]
fn a_program_that_frees_everything_leaks_nothing_through_either_runtime() {
    for linked in [Linked::Shared, Linked::Static] {
        let outcome = on_stand_in("cudart_smoke", linked).run();
        outcome.expect_success().expect_same_output_as_bare();
        assert!(outcome.stdout.ends_with("all ok\n"), "{}", outcome.stdout);
        outcome.only_snapshot().expect_clean();
    }
}

#[test]
fn a_failed_request_through_a_runtime_has_the_name_of_its_call() {
    let outcome = on_stand_in("cudart_smoke", Linked::Shared).run();
    let failed: Vec<_> = outcome
        .only_snapshot()
        .failed
        .iter()
        .map(|row| (row.api.as_str(), row.bytes, row.error))
        .collect();
    assert!(failed.contains(&("cudaMalloc", 64 << 40, 2)), "{failed:?}");
}

/// NVIDIA's runtimes and the headers of NVTX, downloaded once into the target folder.
pub fn cudart() -> &'static Path {
    static FETCHED: OnceLock<PathBuf> = OnceLock::new();
    FETCHED.get_or_init(|| {
        let folder = match std::env::var_os("CULEAK_CUDART") {
            Some(folder) => PathBuf::from(folder),
            None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("cudart"),
        };
        let fetch = Command::new("sh")
            .arg(sources().join("fake_driver/fetch_cudart.sh"))
            .arg(&folder)
            .output();
        let fetch = fetch.expect("sh runs");
        assert!(
            fetch.status.success(),
            "cannot download NVIDIA's cudart and NVTX, which these claims need: allow network and pip once, or set CULEAK_CUDART to \
             its folder\n{}",
            String::from_utf8_lossy(&fetch.stderr)
        );
        folder
    })
}

/// The smoke test on NVIDIA's runtime, with the fake driver logging every call.
fn on_nvidias(version: &str, linked: Linked, log: &Path) -> Profile {
    let root = cudart().join(version);
    let include = format!("-I{}", root.join("include").display());
    let rpath = format!("-Wl,-rpath,{}", root.join("lib").display());
    let file = match linked {
        Linked::Shared => format!("libcudart.so.{version}"),
        Linked::Static => "libcudart_static.a".to_owned(),
    };
    let flags = [include.as_str(), rpath.as_str(), "-Wno-unused", "-lrt"];
    program(executable("cudart_smoke", &flags, &[root.join("lib").join(file)])).env("CULEAK_FAKE_LOG", log)
}

/// Runs to the end, or as far as this runtime gets, exactly as without the recorder: same output, same driver calls.
#[track_caller]
fn starts_unchanged(version: &str, linked: Linked) {
    let logs = folder();
    let (with, without) = (logs.path().join("with"), logs.path().join("without"));
    let outcome = on_nvidias(version, linked, &with).run();
    let bare = on_nvidias(version, linked, &without).bare().run();
    assert_eq!(outcome.stdout, bare.stdout, "with the recorder (left) and without");
    assert_eq!(outcome.status, bare.status);
    let calls = |log: &Path| fs::read_to_string(log).expect("the driver was called");
    assert!(calls(&with).contains("cuInit 0"), "{}", calls(&with));
    if outcome.status.success() {
        outcome.only_snapshot().expect_clean();
    } else {
        outcome.expect_exit(77);
        assert_eq!(
            calls(&with),
            calls(&without),
            "what reaches the driver with the recorder (left) and without"
        );
    }
}

#[test]
#[ignore = "needs pip"]
fn nvidias_cudart_12_starts_unchanged() {
    starts_unchanged("12", Linked::Shared);
}

#[test]
#[ignore = "needs pip"]
fn nvidias_cudart_12_linked_statically_starts_unchanged() {
    starts_unchanged("12", Linked::Static);
}

#[test]
#[ignore = "needs pip"]
fn nvidias_cudart_13_starts_unchanged() {
    starts_unchanged("13", Linked::Shared);
}

#[test]
#[ignore = "needs pip"]
fn nvidias_cudart_13_linked_statically_starts_unchanged() {
    starts_unchanged("13", Linked::Static);
}
