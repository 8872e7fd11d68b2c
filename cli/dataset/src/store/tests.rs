//! Claims about files of a dataset: what a second export replaces, and what an interruption leaves.

use culeak::analysis::categories::Categories;
use culeak::snapshot::{ProcessState, Snapshot};

#[path = "../../../../tests/support/sample.rs"]
mod sample;

use super::merge::MANY;
use super::*;
use crate::take::{self, About};

fn about<'a>(job: &'a str, categories: &'a Categories) -> About<'a> {
    About {
        job: Some(job),
        source: "a.culeak",
        is_running: false,
        blocks: true,
        categories,
        escape: str::to_owned,
    }
}

/// A process with two blocks.
fn snapshot(pid: u32, rank: u32, state: ProcessState, at_ns: u64) -> Snapshot {
    let mut snapshot = sample::leaky();
    snapshot.process.pid = pid;
    snapshot.process.state = state;
    snapshot.process.ranks.insert("RANK".to_owned(), rank.to_string());
    snapshot.taken.at_ns = at_ns;
    snapshot
}

fn batch(job: &str, snapshots: &[Snapshot]) -> Batch {
    let (mut batch, categories) = (Batch::default(), Categories::default());
    snapshots
        .iter()
        .for_each(|snapshot| take::add(&mut batch, snapshot, &about(job, &categories)));
    batch
}

fn store(folder: &Path, partition: &[&str]) -> Store {
    let partition: Vec<String> = partition.iter().map(|&name| name.to_owned()).collect();
    Store::open(folder, Some(&partition)).expect("a dataset")
}

/// Rows by table, and files.
fn contents(store: &Store) -> (Vec<usize>, Vec<usize>) {
    let count = |table: &&'static Table| {
        let files = store.all_files(table, "", table.name).expect("files");
        let rows = files
            .iter()
            .map(|(path, _)| store.read(table, path).expect("rows").len());
        (rows.sum::<usize>(), files.len())
    };
    tables().iter().map(count).unzip()
}

fn ended(pid: u32) -> Snapshot {
    snapshot(pid, pid, ProcessState::Exited, 5)
}

#[test]
fn the_same_process_is_replaced_and_others_stay() {
    for partition in [&["job"][..], &["job", "host", "rank"], &["host"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = store(folder.path(), partition);
        store.add(batch("a", &[ended(1), ended(2), ended(3)])).expect("added");
        let (rows, files) = contents(&store);
        assert_eq!(rows[0], 3, "{partition:?}");
        assert!(rows.iter().take(5).all(|&rows| rows > 0), "{rows:?}");
        store
            .add(batch("a", &[ended(1), ended(2), ended(3)]))
            .expect("added again");
        assert_eq!(contents(&store), (rows.clone(), files), "{partition:?}");
        store.add(batch("a", &[ended(2)])).expect("one again");
        assert_eq!(contents(&store).0, rows, "{partition:?}");
        store.add(batch("b", &[ended(2)])).expect("of another job");
        let both = contents(&store).0;
        assert_eq!(both[0], 4, "{partition:?}");
        // The jobs have equal stacks, each its own rows.
        assert_eq!(both[3], 2 * rows[3], "{partition:?}");
        store.add(batch("a", &[ended(2)])).expect("again");
        assert_eq!(contents(&store).0[0], 4, "{partition:?}");
    }
}

#[test]
fn a_process_that_is_given_twice_counts_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut once = store(&folder.path().join("once"), &["job"]);
    once.add(batch("a", &[ended(1)])).expect("added");
    let mut twice = store(&folder.path().join("twice"), &["job"]);
    twice.add(batch("a", &[ended(1), ended(1)])).expect("added");
    assert_eq!(contents(&twice), contents(&once));
}

#[test]
fn blocks_are_those_of_the_latest_state_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), &["job"]);
    store.add(batch("a", &[ended(1), ended(2)])).expect("added");
    let of_both = contents(&store).0[4];
    let (mut without, categories) = (Batch::default(), Categories::default());
    let about = About {
        blocks: false,
        ..about("a", &categories)
    };
    take::add(&mut without, &ended(1), &about);
    store.add(without).expect("added without blocks");
    assert_eq!(contents(&store).0[4], of_both / 2);
}

#[test]
fn points_of_a_running_process_are_added_and_its_state_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), &["job"]);
    let at = |at_ns| snapshot(1, 0, ProcessState::Running, at_ns);
    for at_ns in [10, 20, 30] {
        store.add(batch("a", &[at(at_ns)])).expect("added");
    }
    let (rows, _) = contents(&store);
    assert_eq!((rows[0], rows[1]), (1, 3));
    let blocks = rows[4];
    // An earlier point changes neither the state nor the blocks.
    store.add(batch("a", &[at(5), at(30)])).expect("added");
    let (rows, _) = contents(&store);
    assert_eq!((rows[0], rows[1], rows[4]), (1, 4, blocks));
    store.add(batch("a", &[at(7)])).expect("added");
    let (rows, _) = contents(&store);
    assert_eq!((rows[0], rows[1], rows[4]), (1, 5, blocks));
}

#[test]
fn small_files_are_merged_without_losing_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), &["job"]);
    for pid in 1..MANY as u32 {
        store.add(batch("a", &[ended(pid)])).expect("added");
    }
    let (rows, files) = contents(&store);
    assert_eq!(files[0], MANY - 1);
    assert_eq!(store.merge(false).expect("too few to merge"), 0);
    assert!(store.merge(true).expect("merged") > 0);
    let (merged, files) = contents(&store);
    assert_eq!((merged, files[0]), (rows.clone(), 1));
    store.add(batch("a", &[ended(3)])).expect("one again");
    assert_eq!(contents(&store).0, rows);
}

#[test]
fn an_interrupted_step_is_completed_or_has_done_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), &["job"]);
    store.add(batch("a", &[ended(1)])).expect("added");
    let before = contents(&store);
    // Written, and no list.
    let mut step = Step::default();
    store.write_all(&batch("a", &[ended(2)]), &mut step).expect("written");
    store.recover().expect("nothing to do");
    assert_eq!(contents(&store), before);
    assert!(
        step.appear
            .iter()
            .all(|(temporary, _)| !folder.path().join(temporary).exists())
    );
    // Written, with the list, and one file renamed.
    let mut step = Step::default();
    store.write_all(&batch("a", &[ended(2)]), &mut step).expect("written");
    fs::write(store.step_path(), serde_json::to_vec(&step).expect("JSON")).expect("a list");
    let (temporary, name) = &step.appear[0];
    fs::rename(folder.path().join(temporary), folder.path().join(name)).expect("renamed");
    store.recover().expect("completed");
    assert_eq!(contents(&store).0[0], 2);
    assert!(!store.step_path().exists());
}

#[test]
fn other_folders_versions_and_partitions_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes"), "").expect("written");
    let refused =
        |folder: &Path, partition: &[String]| Store::open(folder, Some(partition)).expect_err("refused").reason;
    let job = ["job".to_owned()];
    assert!(refused(folder.path(), &job).contains("other files (notes)"));
    let inner = folder.path().join("dataset");
    store(&inner, &["job"]);
    let all = ["job", "host"].map(str::to_owned);
    assert!(refused(&inner, &all).contains("partitioned by job, not by job,host"));
    fs::write(
        inner.join(MARKER),
        r#"{"format":"culeak-dataset","version":9,"partition":["job"]}"#,
    )
    .expect("written");
    assert!(refused(&inner, &job).contains("version 9"));
    fs::write(inner.join(MARKER), "{").expect("written");
    refused(&inner, &job);
    let names = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    assert!(crate::marker::partition(&names("job,rank")).is_ok());
    assert!(crate::marker::partition(&names("rank,job")).is_err() && crate::marker::partition(&names("pid")).is_err());
}

#[test]
fn hostile_names_stay_in_their_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), &["job", "host", "rank"]);
    let mut hostile = ended(1);
    hostile.process.host = "../x=y/z%".to_owned();
    hostile.process.ranks.clear();
    for job in ["../../evil", "a=b/c", ".", "..", "null"] {
        store.add(batch(job, &[hostile.clone()])).expect("added");
        store.add(batch(job, &[hostile.clone()])).expect("added again");
    }
    assert_eq!(contents(&store).0[0], 5);
    let path = &store.files(&schema::PROCESSES, "a=b/c").expect("files")[0].0;
    let rows = store.read(&schema::PROCESSES, path).expect("rows");
    assert_eq!(
        (rows.text(0, 0), rows.text(1, 0), rows.value(2, 0)),
        ("a=b/c", "../x=y/z%", Value::Null)
    );
}

#[test]
fn the_peak_of_an_older_snapshot_does_not_replace_a_later_one() {
    let at_peak = |state: ProcessState, at_ns: u64, bytes: u64| {
        let running = snapshot(1, 1, state, at_ns);
        let mut peak = running.clone();
        peak.taken.point = Some(culeak::point::Point::Peak);
        peak.allocations.change(|_, allocation, _| allocation.bytes = bytes);
        [running, peak]
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), &["job"]);
    let peaks = |store: &Store| -> Vec<i64> {
        let files = store.all_files(&schema::POINTS, "", "points").expect("files");
        let mut peaks = Vec::new();
        for (path, _) in files {
            let rows = store.read(&schema::POINTS, &path).expect("rows");
            let column = |name| rows.table.column(name).expect("a column");
            for row in (0..rows.len()).filter(|&row| rows.text(column("point"), row) == "peak") {
                let Value::Number(bytes) = rows.value(column("held_bytes"), row) else {
                    panic!("no size")
                };
                peaks.push(bytes);
            }
        }
        peaks
    };
    let mut sizes = Vec::new();
    for (at_ns, bytes) in [(1 << 40, 100), (2 << 40, 200)] {
        store
            .add(batch("a", &at_peak(ProcessState::Running, at_ns, bytes)))
            .expect("added");
        sizes.push(peaks(&store));
    }
    assert!(sizes[0].len() == 1 && sizes[1][0] == 2 * sizes[0][0], "{sizes:?}");
    store
        .add(batch("a", &at_peak(ProcessState::Running, 1 << 40, 100)))
        .expect("added");
    assert_eq!(peaks(&store), sizes[1]);
}
