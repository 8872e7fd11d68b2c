use std::ffi::CString;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::{fs, io};

use culeak::format::{Header, RANK_VARIABLES};
use culeak::recording::{Recording, Session};
use culeak::snapshot::Snapshot;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::file::read_pipe;
use super::process::no_map;
use super::*;
use crate::text::sample::{Sample, leaky, shut_down};

mod inputs;
mod schemas;

/// Loads a file of these bytes.
fn load(bytes: &[u8]) -> Result<Snapshot, String> {
    let file = tempfile::Builder::new()
        .suffix(".culeak")
        .tempfile()
        .expect("a temporary file");
    fs::write(file.path(), bytes).expect("written");
    let result = one(file.path());
    result.map(|loaded| loaded.snapshot).map_err(|failure| {
        let text = failure.to_string();
        assert!(
            text.starts_with(&*file.path().to_string_lossy()),
            "names the file: {text}"
        );
        text
    })
}

/// The error for a snapshot after one change to its JSON.
fn error_after(change: impl FnOnce(&mut Value)) -> String {
    let mut json = serde_json::to_value(leaky()).expect("json");
    change(&mut json);
    load(json.to_string().as_bytes()).expect_err("a failures")
}

#[test]
fn root_is_not_advised_to_become_root() {
    let error = || io::Error::from(io::ErrorKind::PermissionDenied);
    let (root, user) = (no_map(1, &error(), true), no_map(1, &error(), false));
    assert!(
        // It need not have a recording.
        root.contains("--cap-add=SYS_PTRACE or, if it was recorded, name its recording (*.1.culeak)")
            && !root.contains("run culeak as"),
        "{root}"
    );
    assert!(user.contains("run culeak as that user or as root"), "{user}");
}

fn failure(argument: &str) -> String {
    match Sources::of_all(&[argument]).load(Place::load) {
        Ok(_) => panic!("{argument} was read"),
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn a_snapshot_is_read_back_as_written() {
    let snapshot = leaky();
    let json = serde_json::to_vec_pretty(&snapshot).expect("json");
    assert_eq!(load(&json).as_ref(), Ok(&snapshot));
    let spaced = [b" \n\t".as_slice(), &json].concat();
    assert_eq!(load(&spaced), Ok(snapshot));
}

#[test]
fn bad_files_are_reported_in_one_line_with_file_reason_and_remedy() {
    let json = serde_json::to_vec(&leaky()).expect("json");
    let cases: [(&[u8], &str); 9] = [
        (b"", "empty"),
        (b"\0\0\0\0", ""),
        (b"hello", "not a culeak recording"),
        (b"\x7fELF and so on", "a program, not a recording"),
        (b"[1, 2]", "not a culeak recording"),
        (b"CULEAK\r\n", ""),
        (b"{}", "JSON of another program"),
        (b"{\"format\": \"culeak-report\", \"version\": 1}", "not a snapshot"),
        (&json[..json.len() / 2], "ends in the middle"),
    ];
    for (bytes, reason) in cases {
        let text = load(bytes).expect_err("refused");
        assert!(text.contains(reason), "{text}");
        assert!(
            !text.contains('\n') && text.contains(';') | text.contains("make"),
            "{text}"
        );
    }
}

#[test]
fn snapshots_of_other_versions_and_damaged_ones_are_refused() {
    for (version, release) in [(99, "newer"), (1, "older")] {
        let reason =
            format!("version {version}, this build reads version 2; take it again or use the {release} release");
        assert!(error_after(|json| json["version"] = json!(version)).contains(&reason));
    }
    assert!(error_after(|json| json["version"] = json!(-1)).contains("without a valid version"));
    assert!(error_after(|json| json["format"] = json!("heaptrack")).contains("JSON of another program"));
    assert!(
        error_after(|json| json["allocations"]["calls"][0]["thread"] = json!(99))
            .contains("calls: thread of row 0 is 99")
    );
    let place = |row: usize, place: usize, value: Value| {
        error_after(move |json| json["allocations"]["rows"][row][place] = value.clone())
    };
    assert!(place(0, 1, json!(-5)).contains("damaged snapshot"));
    assert!(place(1, 4, json!(99)).contains("allocations: call of row 1 is 99"));
    assert!(place(2, 3, json!(99)).contains("allocations: stack of row 2 is 99"));
    assert!(place(2, 3, json!(u32::MAX)).contains("the index of a stack is too large"));
    assert!(error_after(|json| json["allocations"]["rows"][0] = json!([1, 2])).contains("an array of 5 to 7 numbers"));
    assert!(error_after(|json| json["allocations"]["columns"][1] = json!("weight")).contains("the columns"));
    assert!(error_after(|json| json["stacks"][0]["frames"][0] = json!(u64::MAX)).contains("stacks: frame"));
    assert!(error_after(|json| json["losses"] = Value::Null).contains("damaged snapshot"));
}

/// A few kilobytes that claim billions of frames.
#[test]
fn enormous_stacks_are_refused_before_use() {
    let long = error_after(|json| json["stacks"][0]["frames"] = json!(vec![0; 100_000]));
    assert!(long.contains("stacks: row 0 has") && long.contains("at most"), "{long}");
    let symbol = json!({"function": "f", "file": null, "line": null, "inlined": true});
    let inlined = error_after(|json| {
        json["locations"][0]["symbols"] = json!(vec![symbol; 1_000]);
        json["stacks"][0]["frames"] = json!(vec![0; 1_000]);
    });
    assert!(inlined.contains("stacks: row 0 has"), "{inlined}");
    let few = json!({"function": "f", "file": null, "line": null, "inlined": true});
    let shared = error_after(|json| {
        json["locations"][0]["symbols"] = json!(vec![few; 10_000]);
        json["stacks"] = json!(vec![json!({"frames": [0, 0, 0], "truncated": false}); 1_000]);
    });
    assert!(shared.contains("inlined calls each"), "{shared}");
    let nested = load("{\"format\":".repeat(100_000).as_bytes()).expect_err("refused");
    assert!(nested.contains("recursion limit"), "{nested}");
}

#[test]
fn unknown_fields_of_a_later_minor_version_are_ignored() {
    let mut json = serde_json::to_value(leaky()).expect("json");
    json["moon_phase"] = json!("full");
    json["allocations"]["calls"][0]["colour"] = json!(7);
    assert_eq!(load(json.to_string().as_bytes()), Ok(leaky()));
}

#[test]
fn special_files_are_refused_without_reading_them() {
    assert!(failure("/dev/zero").contains("neither a file nor a pipe"));
    assert!(failure("/no/such/file").contains("no such file or process"));
    let folder = tempfile::tempdir().expect("a folder");
    assert!(failure(&folder.path().display().to_string()).contains("without recordings"));
}

#[test]
fn an_unreadable_file_is_refused_with_advice() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o000)).expect("permissions");
    if fs::File::open(file.path()).is_ok() {
        return; // Root can read every file.
    }
    assert!(failure(&file.path().display().to_string()).contains("permission denied; only the user who"));
}

/// Creates an empty recording.
fn record(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let beginning = Session {
        pid: 4_100_007,
        parent_pid: 1,
        depth: 128,
        process_start_ticks: 0,
        executable: b"app",
        command_line: b"app\0",
        host: b"host",
        pid_namespace: 0,
        time_namespace: 0,
        ranks: [None; RANK_VARIABLES.len()],
    };
    assert!(Recording::create(&name, &beginning).is_ok());
}

#[test]
fn a_copy_of_a_recording_counts_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| Place::File(folder.path().join(name));
    let own = folder.path().join("b.culeak");
    record(&own);
    let copy = |name: &str| fs::copy(&own, folder.path().join(name)).expect("copied");
    let counted = || once(places(folder.path()).places);
    // The process has not ended, so the copy may lack something; what two copies lack is not known.
    copy("a.culeak");
    assert_eq!(counted(), [at("b.culeak")]);
    copy("c.culeak");
    assert_eq!(counted(), [at("b.culeak")]);
    let given = ["b.culeak", "a.culeak", "c.culeak"].map(at);
    assert_eq!(once(given.to_vec()), [at("b.culeak")]);
    let early = ["a.culeak", "c.culeak"].map(at);
    assert_eq!(once(early.to_vec()), early);
    let store = |name: &str, offset: usize| {
        let opened = fs::File::options()
            .write(true)
            .open(folder.path().join(name))
            .expect("opened");
        opened
            .write_all_at(&1u64.to_le_bytes(), offset as u64)
            .expect("written");
    };
    store("b.culeak", offset_of!(Header, ended_ns));
    assert_eq!(counted(), [at("b.culeak")]);
    copy("a.culeak");
    assert_eq!(counted(), [at("a.culeak")]);
    // An automatic snapshot is of another time.
    store("c.culeak", offset_of!(Header, dumped_plus_one));
    assert_eq!(counted(), [at("a.culeak"), at("c.culeak")]);
}

#[test]
fn a_recording_can_come_through_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("app.culeak");
    record(&path);
    let bytes = fs::read(&path).expect("the recording");
    let piped = read_pipe(&*bytes, "pipe", &reader::read).expect("a recording");
    assert_eq!(
        (piped.process.pid, piped.process.recording.as_str()),
        (4_100_007, "pipe")
    );
    let cut = read_pipe(&bytes[..bytes.len() / 2], "pipe", &reader::read).expect_err("cut");
    assert!(cut.message.starts_with("pipe: truncated"), "{cut}");
}

#[test]
fn a_process_that_ended_and_one_without_recording_have_different_messages() {
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .expect("sleep runs");
    let pid = child.id();
    assert!(failure(&pid.to_string()).contains("has no recording"));
    child.kill().expect("killed");
    child.wait().expect("reaped");
    assert!(failure(&pid.to_string()).contains("no such process; if it was recorded"));
    assert!(failure("99999999999999").contains("no such file"));
}

/// Replaces the value that `path` leads to (each number picks a child) with another.
fn mutate(json: &mut Value, path: &[usize], value: Value) {
    let Some((&step, rest)) = path.split_first() else {
        *json = value;
        return;
    };
    match json {
        Value::Array(items) if !items.is_empty() => {
            let step = step % items.len();
            mutate(&mut items[step], rest, value);
        }
        Value::Object(fields) if !fields.is_empty() => {
            let step = step % fields.len();
            mutate(fields.values_mut().nth(step).expect("in range"), rest, value);
        }
        leaf => *leaf = value,
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..200).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), json in any::<bool>(), magic in any::<bool>()) {
        let start: &[u8] = if magic { b"CULEAK\r\n" } else if json { b"{\"format\":\"culeak-snapshot\",\"version\":1," } else { b"" };
        let _ = load(&[start, &bytes].concat());
    }

    /// Every accepted snapshot can be reported, compared and judged.
    #[test]
    fn mutated_snapshots_are_refused_or_printable(
        changes in proptest::collection::vec((proptest::collection::vec(0usize..20, 1..5), any_value()), 1..4)
    ) {
        let mut json = serde_json::to_value(leaky()).expect("json");
        for (path, value) in changes {
            mutate(&mut json, &path, value);
        }
        if let Ok(snapshot) = load(json.to_string().as_bytes()) {
            let report = culeak::analysis::report::Report::of(&snapshot, &culeak::analysis::report::Options::default());
            crate::text::report::page(&report, crate::text::report::Extent::ALL).text(&mut std::io::sink())?;
            let other = leaky();
            let diff = culeak::analysis::diff::Diff::of(&snapshot, &other, &culeak::analysis::diff::Options::default());
            crate::text::diff::page(&diff, true, true).text(&mut std::io::sink())?;
            let verdict = culeak::analysis::check::verdict(&snapshot, &culeak::analysis::check::Rules::default());
            crate::text::check::page(&verdict, "x").text(&mut std::io::sink())?;
        }
    }
}

mod schema {
    //! `docs/snapshot.schema.json` matches the model.

    use super::*;

    fn validator() -> jsonschema::Validator {
        let text = include_str!("../../../docs/snapshot.schema.json");
        jsonschema::validator_for(&serde_json::from_str(text).expect("the schema is JSON"))
            .expect("the schema is valid")
    }

    fn problems(snapshot: &Snapshot) -> Vec<String> {
        let json = serde_json::to_value(snapshot).expect("json");
        validator().iter_errors(&json).map(|error| error.to_string()).collect()
    }

    fn add_frameworks(full: &mut Snapshot) {
        full.allocations.change(|nth, _, call| {
            if nth == 0 {
                (call.kind, call.domain) = (culeak::kind::Kind::Tensor, Some("pytorch".to_owned()));
            }
        });
        full.allocators.push(culeak::snapshot::Allocator {
            domain: "pytorch".to_owned(),
            device: Some(0),
            live_bytes: 512,
            reserved_bytes: 2 << 20,
            events: 3,
            mismatches: 0,
            unseen_bytes: 0,
        });
        full.marks.push(culeak::snapshot::Mark {
            time_ns: 1,
            name: "epoch 1".to_owned(),
            thread: 0,
        });
        full.taken.automatic = Some(culeak::snapshot::Automatic {
            reason: culeak::snapshot::Reason::Mark,
            name: Some("epoch 1".to_owned()),
            failed: None,
            limits: culeak::snapshot::GroupLimits {
                limit_bytes: Some(1 << 34),
                soft_limit_bytes: Some(1 << 33),
            },
        });
        full.freed_after_end = full.allocations.clone();
        full.end = Some(culeak::snapshot::End {
            of: culeak::snapshot::EndOf::Script,
            time_ns: 7,
        });
        full.sampling = Some(culeak::snapshot::Sampling {
            bytes: 512 << 10,
            most_bytes: 8 << 20,
            left_out: Some(0),
        });
        full.taken.point = Some(culeak::point::Point::Mark("epoch 1".to_owned()));
        full.at_peaks.push(culeak::snapshot::AtPeak {
            stack: Some(0),
            kind: culeak::kind::Kind::Tensor,
            device: Some(0),
            domain: Some("pytorch".to_owned()),
            api: "CUDACachingAllocator".to_owned(),
            bytes: 3,
            count: 1,
        });
        full.phases.push(culeak::snapshot::Phase {
            name: "epoch 1".to_owned(),
            domain: Some("trainer".to_owned()),
            thread: 0,
            begin_ns: 1,
            end_ns: None,
            parent: None,
        });
        full.usage = Some(culeak::snapshot::Usage {
            source: "NVML 580".to_owned(),
            devices: vec![culeak::snapshot::DeviceUsage {
                device: 0,
                total_bytes: 3,
                used_bytes: 2,
                limits: culeak::snapshot::GroupLimits {
                    limit_bytes: Some(2),
                    soft_limit_bytes: Some(1),
                },
                reserved_bytes: 1,
                process_bytes: Some(1),
                others: Some(culeak::snapshot::OtherProcesses { bytes: 1, count: 1 }),
            }],
            missing: Some("a reason".to_owned()),
        });
    }

    #[test]
    fn snapshots_from_empty_to_full_are_valid() {
        assert_eq!(problems(&Sample::new().finish(0, 0)), Vec::<String>::new());
        let mut full = leaky();
        full.allocations.change(|nth, allocation, call| match nth {
            0 => call.stream = Some(culeak::snapshot::Stream::Handle(u64::MAX)),
            1 => call.stream = Some(culeak::snapshot::Stream::PerThreadDefault),
            2 => (call.references, call.mappings) = (2, 1),
            3 => (allocation.stack, allocation.requested) = (None, 3),
            _ => {}
        });
        full.modules[0].unloaded_ns = Some(5);
        full.contexts[0].destroyed_ns = Some(6);
        full.contexts[0].device = None;
        full.process.ranks.insert("RANK".to_owned(), "0".to_owned());
        full.losses.unhooked.push("cuMemNew".to_owned());
        full.process.python = Some(culeak::snapshot::Python {
            version: "3.12.1".to_owned(),
            no_frames: Some("a reason".to_owned()),
        });
        add_frameworks(&mut full);
        let named = full.locations.iter().position(|location| location.symbols.len() == 1);
        let python = &mut full.locations[named.expect("a location with one symbol")];
        (python.module, python.language) = (None, culeak::snapshot::Language::Python);
        assert_eq!(problems(&full), Vec::<String>::new());
        let mut objects = crate::text::sample::serving();
        objects.objects_freed_after_end = objects.objects.clone();
        objects.segments = objects.allocations.clone();
        assert_eq!(problems(&objects), Vec::<String>::new());
        let peak = shut_down().at(&culeak::point::Point::Peak).expect("a peak");
        assert!(peak.allocations.is_summed());
        assert_eq!(problems(&peak), Vec::<String>::new());
    }

    #[test]
    fn every_kind_and_state_is_in_the_schema() {
        for &kind in culeak::kind::Kind::ALL {
            let mut snapshot = leaky();
            snapshot.allocations.change_last(|_, call| call.kind = kind);
            assert_eq!(problems(&snapshot), Vec::<String>::new(), "{kind:?}");
        }
        use culeak::snapshot::Reason::*;
        for reason in [OutOfMemory, Peak, Mark, Requested, Every] {
            let mut snapshot = leaky();
            add_frameworks(&mut snapshot);
            snapshot.taken.automatic = snapshot
                .taken
                .automatic
                .map(|kept| culeak::snapshot::Automatic { reason, ..kept });
            assert_eq!(problems(&snapshot), Vec::<String>::new(), "{reason:?}");
        }
        use culeak::snapshot::ProcessState::*;
        for state in [Running, Exited, Ended, Unknown] {
            let mut snapshot = leaky();
            snapshot.process.state = state;
            assert_eq!(problems(&snapshot), Vec::<String>::new(), "{state:?}");
        }
    }

    #[test]
    fn holders_are_in_the_schema() {
        use culeak::snapshot::Class;
        use culeak::snapshot::RootKind::*;
        for &class in Class::ALL {
            for root in [
                Module,
                Frame,
                ThreadLocal,
                Context,
                Exception,
                Interpreter,
                Global,
                Stack,
                Heap,
                None,
            ] {
                let mut snapshot = crate::text::sample::held();
                let path = &mut snapshot.holders.as_mut().expect("searched").paths[0];
                (path.class, path.root, path.interior) = (class, root, true);
                assert_eq!(problems(&snapshot), Vec::<String>::new(), "{class:?} {root:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The schema accepts everything that the reader accepts.
        #[test]
        fn what_the_reader_accepts_the_schema_accepts(
            path in proptest::collection::vec(0usize..20, 1..5), value in any_value()
        ) {
            let mut json = serde_json::to_value(leaky()).expect("json");
            mutate(&mut json, &path, value);
            if load(json.to_string().as_bytes()).is_ok() {
                let problems: Vec<_> = validator().iter_errors(&json).map(|error| error.to_string()).collect();
                prop_assert!(problems.is_empty(), "{problems:?}");
            }
        }
    }
}
