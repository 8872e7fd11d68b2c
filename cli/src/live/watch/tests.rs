use super::*;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process;

use culeak::format::RANK_VARIABLES;
use culeak::recording::{Recording, Session};
use culeak::snapshot::{DeviceUsage, Usage};

/// An empty recording of a process with these numbers.
fn record(folder: &Path, pid: u32, parent_pid: u32) -> PathBuf {
    let path = folder.join(format!("app.run1.host.{pid}.culeak"));
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let host = culeak::reader::host_name().expect("a name");
    let session = Session {
        pid,
        parent_pid,
        depth: 128,
        pid_namespace: 0,
        time_namespace: 0,
        process_start_ticks: culeak::proc::start_ticks(pid).unwrap_or(0),
        executable: b"app",
        command_line: b"app\0",
        host: host.as_bytes(),
        ranks: [None; RANK_VARIABLES.len()],
    };
    assert!(Recording::create(&name, &session).is_ok());
    path
}

fn found(search: &mut Search, source: &Source, known: &mut Vec<Target>) -> Vec<PathBuf> {
    let found = search.run(source, known);
    let paths = found.iter().map(|target| target.recording.clone()).collect();
    known.extend(found);
    paths
}

#[test]
fn recordings_of_children_are_found_beside_the_parents_and_others_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let parent = record(folder.path(), process::id(), 1);
    let (mut search, mut known) = (Search::default(), Vec::new());
    let source = Source::Path(parent.clone());
    assert_eq!(found(&mut search, &source, &mut known), [parent]);
    let child = record(folder.path(), 4_100_001, process::id());
    record(folder.path(), 4_100_002, 4_100_009);
    fs::write(folder.path().join("x.culeak"), b"").expect("written");
    assert_eq!(found(&mut search, &source, &mut known), [child]);
    let grandchild = record(folder.path(), 4_100_003, 4_100_001);
    assert_eq!(found(&mut search, &source, &mut known), [grandchild]);
    assert!(found(&mut search, &source, &mut known).is_empty());
}

#[test]
fn a_folder_has_all_its_recordings_and_a_run_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_path_buf();
    let all = Source::Path(path.join("later"));
    let (mut search, mut known) = (Search::default(), Vec::new());
    assert!(found(&mut search, &all, &mut known).is_empty());
    assert!(search.waiting(&all).contains("does not exist yet"));
    fs::create_dir(path.join("later")).expect("a folder");
    let first = record(&path.join("later"), 4_200_001, 1);
    let second = record(&path.join("later"), 4_200_002, 1);
    assert_eq!(found(&mut search, &all, &mut known), [first, second]);
    let run = |mark: &str| Source::Run {
        folder: path.join("later"),
        mark: mark.to_owned(),
    };
    assert_eq!(found(&mut Search::default(), &run(".run1."), &mut Vec::new()).len(), 2);
    assert!(found(&mut Search::default(), &run(".run2."), &mut Vec::new()).is_empty());
}

#[test]
fn one_refresh_reads_all_processes_if_there_is_time_and_else_one_in_turn() {
    let targets = || -> Vec<Target> { (0..64).map(|nth| Target::new(format!("{nth}").into())).collect() };
    let mut targets = targets();
    targets[5].ended = true;
    let (mut turns, mut read) = (Turns::default(), Vec::new());
    let mut refresh = |there_is_time: bool| {
        let mut seen = Vec::new();
        let ended = turns.take(
            &mut targets,
            3,
            || there_is_time,
            |target, is_first| {
                seen.push((target.recording.display().to_string(), is_first));
                true
            },
        );
        assert!(!ended && seen[0] == ("3".to_owned(), true), "{seen:?}");
        seen.into_iter().skip(1).map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(refresh(true).len(), 62);
    for _ in 0..62 {
        let others = refresh(false);
        assert_eq!(others.len(), 1);
        read.extend(others);
    }
    read.sort();
    read.dedup();
    assert_eq!(read.len(), 62, "{read:?}");
    assert!(turns.take(&mut targets, 3, || true, |_, is_first| is_first));
}

#[test]
fn the_waiting_text_names_a_process_that_has_ended() {
    let mut search = Search::default();
    let source = Source::Process(4_194_999);
    assert!(found(&mut search, &source, &mut Vec::new()).is_empty());
    assert!(search.waiting(&source).contains("has ended, and no recording"));
}

/// The driver is asked every few seconds, and the recording is read more often.
#[test]
fn figures_of_the_driver_are_paired_with_the_recording_of_the_same_time_and_then_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut names = Names::new(NameArgs::default());
    let mut target = Target::new(record(folder.path(), process::id(), 1));
    let mut read = |target: &mut Target| match target.read(&mut names) {
        Some(Message::Reading(reading)) => reading,
        _ => panic!("no reading"),
    };
    let usage = |devices| {
        let usage = Usage {
            devices: vec![DeviceUsage::default(); devices],
            ..Usage::default()
        };
        Some((vec!["GPU-0".to_owned()], usage))
    };
    target.answered(usage(1));
    assert!(target.is_new);
    let first = read(&mut target);
    assert!(!target.is_new && target.paired.as_ref().is_some_and(|paired| Arc::ptr_eq(paired, &first)));
    // Something was recorded since.
    target.last = None;
    let second = read(&mut target);
    assert!(second.at_ns > first.at_ns && second.ledger_at_ns == first.at_ns);
    target.answered(usage(1));
    let third = read(&mut target);
    assert_eq!(third.ledger_at_ns, third.at_ns, "the same figures are paired again");
    // Without figures there is nothing to pair.
    target.answered(usage(0));
    read(&mut target);
    target.last = None;
    let last = read(&mut target);
    assert!(target.paired.is_none() && last.ledger_at_ns == last.at_ns);
}

#[test]
fn an_empty_recording_is_read_once_it_is_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut names = Names::new(NameArgs::default());
    let empty = folder.path().join("new.culeak");
    fs::write(&empty, b"").expect("written");
    assert!(Target::new(empty).read(&mut names).is_none());
    let whole = record(folder.path(), 4_300_001, 1);
    let read = Target::new(whole).read(&mut names);
    assert!(matches!(read, Some(Message::Reading(reading)) if reading.process.pid == 4_300_001));
    let foreign = folder.path().join("foreign.culeak");
    fs::write(&foreign, b"something else").expect("written");
    let read = Target::new(foreign).read(&mut names);
    assert!(matches!(read, Some(Message::Unreadable(..))));
}
