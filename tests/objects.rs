//! Objects without an address: each is recorded with its function and stack until it is destroyed, by the program or with its
//! context.

use culeak::kind::Kind::{self, *};

use crate::support::{Lookup, profile};

/// A behaviour of `victims/objects.c`, and the object that it leaves.
const ALL: [(&str, Kind, &str); 14] = [
    ("stream", Stream, "cuStreamCreate"),
    ("stream_with_priority", Stream, "cuStreamCreateWithPriority"),
    ("event", Event, "cuEventCreate"),
    ("module", Module, "cuModuleLoadData"),
    ("library", Library, "cuLibraryLoadData"),
    ("linker", Linker, "cuLinkCreate_v2"),
    ("graph", GraphObject, "cuGraphCreate"),
    ("green_context", GreenContext, "cuGreenCtxCreate"),
    ("texture", Texture, "cuTexObjectCreate"),
    ("surface", Surface, "cuSurfObjectCreate"),
    ("semaphore", ExternalSemaphore, "cuImportExternalSemaphore"),
    ("user_object", UserObject, "cuUserObjectCreate"),
    ("exec", GraphExec, "cuGraphInstantiateWithFlags"),
    ("captured", GraphObject, "cuStreamEndCapture"),
];

#[track_caller]
fn every_object_through(lookup: Lookup) {
    let mut wrong = Vec::new();
    for (behaviour, kind, api) in ALL {
        let left = profile("objects").lookup(lookup).arg(behaviour).run();
        let snapshot = left.only_snapshot();
        let found: Vec<_> = snapshot.objects.iter().collect();
        let api = match (lookup, behaviour) {
            (Lookup::ProcPtsz, "captured") => "cuStreamEndCapture_ptsz",
            _ => api,
        };
        match found[..] {
            [object] if object.kind == kind && object.api() == api && object.bytes == 0 && object.stack.is_some() => {}
            _ => wrong.push(format!("{behaviour}: one {kind:?} by {api}, not {found:#?}")),
        }
        if !snapshot.allocations.is_empty() {
            wrong.push(format!(
                "{behaviour}: an object is no memory: {:#?}",
                snapshot.allocations
            ));
        }
        let freed = profile("objects").lookup(lookup).args(behaviour).arg("free").run();
        let snapshot = freed.only_snapshot();
        let counted = snapshot.object_counters.iter().find(|counter| counter.kind == kind);
        if !snapshot.objects.is_empty() || counted.is_none_or(|counter| counter.freed_count == 0) {
            wrong.push(format!(
                "{behaviour}: left once destroyed: {:#?}, {counted:?}",
                snapshot.objects
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_object_is_recorded_through_exported_symbols() {
    every_object_through(Lookup::Linked);
}

#[test]
fn every_object_is_recorded_through_dlsym() {
    every_object_through(Lookup::Dlsym);
}

#[test]
fn every_object_is_recorded_through_cu_get_proc_address() {
    every_object_through(Lookup::ProcV2);
}

#[test]
fn every_object_behaves_the_same_without_the_recorder() {
    for (behaviour, ..) in ALL {
        let outcome = profile("objects").arg(behaviour).run();
        outcome.expect_success().expect_same_output_as_bare();
    }
}

#[test]
fn a_user_object_that_a_graph_took_over_is_not_the_programs() {
    let outcome = profile("objects").arg("given_user_object").run();
    let snapshot = outcome.only_snapshot();
    assert!(snapshot.objects.is_empty(), "{:#?}", snapshot.objects);
}

#[test]
fn objects_of_a_destroyed_context_are_gone_and_libraries_stay() {
    let outcome = profile("objects").arg("in_context").run();
    let snapshot = outcome.only_snapshot();
    let kinds: Vec<Kind> = snapshot.objects.iter().map(|object| object.kind).collect();
    assert_eq!(kinds, [Library]);
}

#[test]
fn objects_that_come_and_go_do_not_let_the_recording_grow() {
    let size = |turns: &str| {
        let outcome = profile("objects").args("churn").arg(turns).run();
        let snapshot = outcome.only_snapshot();
        assert!(snapshot.objects.is_empty());
        std::fs::metadata(&snapshot.process.recording)
            .expect("the recording")
            .len()
    };
    assert_eq!(size("10"), size("20000"));
}

#[test]
fn a_stream_for_each_request_is_one_call_site() {
    let outcome = profile("objects").arg("requests").run();
    let snapshot = outcome.only_snapshot();
    let stacks: std::collections::BTreeSet<_> = snapshot.objects.iter().map(|object| object.stack).collect();
    assert_eq!((snapshot.objects.len(), stacks.len()), (40, 1));
}
