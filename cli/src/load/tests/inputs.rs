//! Which files folders, patterns and lists stand for.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use culeak::point::Point;

use crate::load::{Loaded, NameArgs, Place, Sources, at, one, places, places_of_line};
use crate::symbolize::tests::opens_fifo;
use crate::text::sample::Sample;

#[test]
fn a_folder_means_all_its_recordings() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["b.culeak", "a.culeak", "notes.txt"] {
        fs::write(
            folder.path().join(name),
            serde_json::to_vec(&Sample::new().finish(0, 0)).expect("json"),
        )
        .expect("written");
    }
    let path = folder.path().display().to_string();
    let sources: Vec<_> = Sources::of_all(&[&path])
        .load(Place::load)
        .expect("two recordings")
        .items
        .into_iter()
        .map(|loaded| loaded.source)
        .collect();
    assert_eq!(sources, [format!("{path}/a.culeak"), format!("{path}/b.culeak")]);
    assert!(one(&path).is_err_and(|failure| failure.to_string().contains("2 recordings or snapshots; name one")));
}

#[test]
fn a_folder_without_recordings_means_its_snapshots_and_no_other_file_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = serde_json::to_vec(&Sample::new().finish(0, 0)).expect("json");
    for (name, bytes) in [
        ("b.json", json.as_slice()),
        ("a.peak-1.culeak-snapshot", &json),
        ("c.json", b"{}"),
        ("cut.json", &json[..300]),
    ] {
        fs::write(folder.path().join(name), bytes).expect("written");
    }
    let names = || {
        let found = Sources::of_all(&[folder.path()])
            .load(Place::load)
            .expect("a folder with snapshots");
        let name = |item: &Loaded| Path::new(&item.source).file_name().map(OsStr::to_owned);
        let names: Vec<_> = found.items.iter().filter_map(name).collect();
        (names, found.unreadable)
    };
    let opened = opens_fifo(&folder.path().join("fifo.json"), || {
        assert_eq!(names(), (vec!["a.peak-1.culeak-snapshot".into(), "b.json".into()], 1));
    });
    assert!(!opened);
    fs::write(folder.path().join("z.culeak"), &json).expect("written");
    assert_eq!(names(), (vec!["z.culeak".into()], 0));
}

#[test]
fn what_cannot_be_read_of_a_pattern_does_not_spoil_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["rank0", "rank1", "rank2"] {
        fs::create_dir(at(name)).expect("a folder");
    }
    let json = serde_json::to_vec(&Sample::new().finish(0, 0)).expect("json");
    fs::write(at("rank0/a.culeak"), &json).expect("written");
    let opened = opens_fifo(&at("rank2/b.culeak"), || {
        for pattern in ["rank*", "rank?/*"] {
            let found = places(at(pattern));
            let [member, pipe] = &found.places[..] else {
                panic!("{:?}", found.places);
            };
            assert_eq!(*member, Place::File(at("rank0/a.culeak")));
            refused(pipe);
        }
        let empty = &places(at("rank*")).failures[0].to_string();
        assert!(empty.contains("rank1: a folder without recordings"), "{empty}");
        refused(&places_of_line(at("rank2/b.culeak").as_os_str()).places[0]);
    });
    assert!(!opened);
    assert_eq!(places(at("rank2/b.culeak")).places, [Place::Pipe(at("rank2/b.culeak"))]);
}

#[track_caller]
fn refused(place: &Place) {
    let error = place.load().err().expect("a failure").to_string();
    assert!(error.contains(": a pipe, which is read only if"), "{error}");
}

#[test]
fn a_pipe_beside_a_recording_is_no_snapshot_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("a.culeak");
    let snapshot = folder.path().join("a.mark-1.culeak-snapshot");
    let mut sample = Sample::new().finish(0, 0);
    sample.process.recording = recording.display().to_string();
    fs::write(&recording, serde_json::to_vec(&sample).expect("json")).expect("written");
    let opened = opens_fifo(&snapshot, || {
        let mut item = one(&recording).expect("readable");
        let mark = Point::Mark("epoch".to_owned());
        let error = at::show(&mut item, Some(&mark), &NameArgs::default()).expect_err("no snapshot of the mark");
        assert!(
            error.to_string().contains("the program set no mark \"epoch\""),
            "{error}"
        );
        assert_eq!(at::automatic_snapshots(&recording), std::slice::from_ref(&snapshot));
        refused(&Place::File(snapshot.clone()));
    });
    assert!(!opened);
}

#[test]
fn automatic_snapshots_are_those_of_the_recording_whatever_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in [
        "a.culeak",
        "a.1",
        "a.mark-1.culeak-snapshot",
        "a.1.mark-2.culeak-snapshot",
    ] {
        fs::write(at(name), "").expect("written");
    }
    assert_eq!(
        at::automatic_snapshots(&at("a.culeak")),
        [at("a.mark-1.culeak-snapshot")]
    );
    assert_eq!(at::automatic_snapshots(&at("a.1")), [at("a.1.mark-2.culeak-snapshot")]);
    let recording = crate::load::members::recording_beside(&at("a.1.mark-2.culeak-snapshot"));
    assert_eq!(recording, Some(at("a.1")));
}

#[test]
fn a_line_of_a_list_is_an_input_as_on_the_command_line() {
    let own = std::process::id();
    let found = places_of_line(own.to_string().as_ref());
    assert_eq!(found.places, [Place::Process(own)]);
    let text = |line: &str| places_of_line(line.as_ref()).failures[0].to_string();
    assert!(text("-").contains("standard input contains a list"));
    assert!(text("/no/such/folder/*").contains("no file matches this pattern"));
}
