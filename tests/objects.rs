//! Objects without an address: each is recorded with its function and stack until it is destroyed, by the program or with its
//! context.

use std::io::{BufRead, BufReader};
use std::process::Command;

use culeak::kind::Kind::{self, *};
use culeak::kind::Place;
use culeak::point::Point;
use culeak::reader::{read, read_timeline};

use crate::support::claims::Claims;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{Lookup, Outcome, Preload, culeak, library, profile};

/// A behaviour of `victims/objects.c`, and the object that it leaves.
const ALL: [(&str, Kind, &str); 20] = [
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
    ("gl_buffer", GraphicsResource, "cuGraphicsGLRegisterBuffer"),
    ("gl_image", GraphicsResource, "cuGraphicsGLRegisterImage"),
    ("egl_image", GraphicsResource, "cuGraphicsEGLRegisterImage"),
    ("vdpau_video", GraphicsResource, "cuGraphicsVDPAURegisterVideoSurface"),
    ("vdpau_output", GraphicsResource, "cuGraphicsVDPAURegisterOutputSurface"),
    ("user_object", UserObject, "cuUserObjectCreate"),
    ("exec", GraphExec, "cuGraphInstantiateWithFlags"),
    ("context", Context, "cuCtxCreate_v2"),
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
fn references_that_the_driver_refuses_to_take_are_not_given_back_in_excess() {
    let outcome = profile("objects")
        .failing("cuUserObjectRelease:1:1")
        .arg("over_released")
        .run();
    let snapshot = outcome.expect_success().only_snapshot();
    assert!(snapshot.objects.is_empty(), "{:#?}", snapshot.objects);
}

#[test]
fn an_object_that_was_never_recorded_is_destroyed_without_a_trace() {
    let leaves = library("leaves", "libleaves.so", &[], &[]);
    let outcome = profile("objects")
        .with_preload(Preload::AfterCuleak, leaves)
        .arg("unseen")
        .run();
    let snapshot = outcome.expect_success().only_snapshot();
    snapshot.expect_nothing_lost();
    let [counter] = &snapshot.object_counters[..] else {
        panic!("{:#?}", snapshot.object_counters);
    };
    let counts = (counter.total_count, counter.freed_count, counter.live_count);
    assert_eq!((counter.kind, counts), (Stream, (1, 0, 1)));
}

/// The last one stays until its handle is used again: its end was seen before its beginning.
#[test]
fn an_object_that_is_destroyed_before_its_creator_returns_is_counted_once() {
    let leaves = library("leaves", "libleaves.so", &[], &[]);
    let outcome = profile("objects")
        .with_preload(Preload::AfterCuleak, leaves)
        .arg("destroyed_early")
        .run();
    let snapshot = outcome.expect_success().only_snapshot();
    snapshot.expect_nothing_lost();
    let counters = snapshot.object_counters.iter();
    let counts = counters.map(|counter| {
        (
            counter.kind,
            counter.total_count,
            counter.freed_count,
            counter.live_count,
        )
    });
    assert_eq!(counts.collect::<Vec<_>>(), [(Event, 100, 99, 1)]);
}

#[test]
fn objects_that_eight_threads_create_and_destroy_for_each_other_are_counted_once() {
    let outcome = profile("objects").arg("exchanged").run();
    let snapshot = outcome.expect_success().only_snapshot();
    snapshot.expect_nothing_lost();
    const CREATED: u64 = 8 * 1500;
    for (kind, created, left) in [
        (Stream, CREATED, 4),
        (Event, CREATED, 4),
        (GraphObject, CREATED + 1, 4),
        (GraphExec, CREATED, 4),
    ] {
        let counters = snapshot.object_counters.iter().filter(|counter| counter.kind == kind);
        let counts = counters.map(|counter| (counter.total_count, counter.freed_count, counter.live_count));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [(created, created - left, left)],
            "{kind:?}"
        );
    }
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

#[test]
fn every_kind_of_object_has_a_victim() {
    for kind in Kind::ALL.iter().filter(|kind| kind.place() == Place::Object) {
        assert!(ALL.iter().any(|of| of.1 == *kind), "no victim leaves {}", kind.name());
    }
}

#[test]
fn an_object_destroyed_by_an_exit_handler_existed_at_the_end() {
    let outcome = profile("objects").arg("destroyed_at_exit").run();
    let snapshot = outcome.only_snapshot();
    assert_eq!((snapshot.objects.len(), snapshot.objects_freed_after_end.len()), (1, 1));
    let end = snapshot.at(&Point::End).expect("an end");
    assert!(end.objects_known && end.objects.len() == 2, "{:#?}", end.objects);
    assert!(!snapshot.at(&Point::Peak).expect("a peak").objects_known);
}

#[test]
fn the_log_knows_the_objects_of_any_time() {
    let outcome = profile("objects")
        .setting("CULEAK_TIMELINE", "1MiB")
        .arg("over_time")
        .run();
    let path = recordings_in(&outcome.out()).pop().expect("a recording");
    let (end, timeline) = read_timeline(&path).expect("readable");
    let timeline = timeline.expect("a log");
    let kinds = |snapshot: &culeak::snapshot::Snapshot| {
        let mut kinds: Vec<Kind> = snapshot.objects.iter().map(|object| object.kind).collect();
        kinds.sort_unstable();
        kinds
    };
    assert_eq!(kinds(&end), [Stream, Event]);
    let event = end
        .objects
        .iter()
        .find(|object| object.kind == Event)
        .expect("an event");
    let state = timeline.state_at(&end, event.time_ns | 7).expect("in the log");
    state.validate().expect("valid");
    assert!(state.objects_known);
    assert_eq!(kinds(&state), [Stream, Stream, Event]);
    assert!(
        state.allocations.is_empty() && timeline.memory.is_empty(),
        "objects are no memory"
    );
    let before = timeline
        .state_at(&end, end.objects.at(0).time_ns - 100)
        .expect("in the log");
    assert!(before.objects.is_empty());
}

fn recording(outcome: &Outcome) -> std::path::PathBuf {
    recordings_in(&outcome.out()).pop().expect("a recording")
}

/// Exit code and output of a command on a recording.
fn command(words: &[&str], outcome: &Outcome) -> (Option<i32>, String) {
    let mut command = Command::new(culeak());
    command.args(&words[..1]).arg(recording(outcome)).args(&words[1..]);
    let output = command.arg("--no-symbol-cache").output().expect("culeak runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

#[test]
fn a_graph_for_each_request_is_named_by_line_and_fails_the_check() {
    let outcome = profile("objects").arg("decodes").run();
    let snapshot = read(&recording(&outcome)).expect("readable");
    assert!(
        snapshot.objects.iter().all(|object| object.nodes == Some(1)),
        "{:#?}",
        snapshot.objects
    );
    let (code, text) = command(&["check", "--allow", "graph-exec=8"], &outcome);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("40 graph-exec objects are 32 over the limit of 8"),
        "{text}"
    );
    assert!(text.contains("40 graph-exec  decode  objects.c:"), "{text}");
    let (code, text) = command(&["check", "--allow", "graph-exec=40", "--allow", "stream=0"], &outcome);
    assert_eq!(code, Some(0), "{text}");
    // A clean program has objects at its end, so they fail by an option only.
    let (code, text) = command(&["check"], &outcome);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = command(&["check", "--at", "peak", "--allow", "stream=0"], &outcome);
    assert!(
        code == Some(2) && text.contains("recordings have no objects of the peak"),
        "{text}"
    );
}

#[test]
fn a_check_of_a_program_fails_by_its_objects() {
    let culeak = culeak();
    let check = |limit: &str| {
        let run = [
            culeak.to_str().expect("UTF-8"),
            "check",
            "--allow",
            limit,
            "-o",
            ".",
            "--",
        ];
        profile("objects").bare().wrapped_in(&run).arg("decodes").run()
    };
    check("graph-exec=40").expect_exit(0);
    let failed = check("graph-exec=39");
    failed.expect_exit(1);
    let text = failed.everything();
    assert!(text.contains("40 graph-exec  decode  objects.c:"), "{text}");
}

#[test]
fn the_objects_of_a_running_process_are_judged() {
    let folder = folder();
    let mut running = profile("objects").arg("decodes_and_waits").start_in(folder.path());
    let mut line = String::new();
    let mut lines = BufReader::new(running.stdout());
    lines.read_line(&mut line).expect("the victim prints a line");
    assert_eq!(line, "ready\n");
    let recording = recordings_in(&folder.path().join("out")).pop().expect("a recording");
    let check = |limit: &str| {
        let mut command = Command::new(culeak());
        command
            .arg("check")
            .arg(&recording)
            .args(["--allow", limit, "--at", "exit", "--no-symbol-cache"]);
        command.output().expect("culeak runs").status.code()
    };
    assert_eq!((check("graph-exec=40"), check("graph-exec=39")), (Some(0), Some(1)));
    running.kill();
    running.finish();
}

#[test]
fn the_driver_is_not_asked_for_nodes_during_a_capture() {
    let outcome = profile("objects").arg("exec_in_capture").run();
    outcome.expect_same_output_as_bare();
    let objects = &outcome.only_snapshot().objects;
    let execs = objects.iter().filter(|object| object.kind == GraphExec);
    assert_eq!(execs.map(|exec| exec.nodes).collect::<Vec<_>>(), [None, Some(0)]);
}
