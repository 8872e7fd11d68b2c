//! The agent over recordings made by the real writer, whose process is this test.

use super::*;
use crate::families::PROCESS_LABELS;
use culeak::format::NONE;
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::recording::{Recording, Session};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

const DAY_NS: u64 = 86_400_000_000_000;

/// Reads recordings without names, and counts the reads.
#[derive(Default)]
struct Counting {
    reads: Vec<PathBuf>,
    asked: usize,
    used_bytes: Option<u64>,
    /// Reads fail, though the file is as before.
    no_files: bool,
    stops_after: Option<usize>,
}

impl Inputs for Counting {
    fn read(&mut self, path: &Path) -> Result<Snapshot, String> {
        self.reads.push(path.to_path_buf());
        if self.no_files {
            return Err("too many open files".to_owned());
        }
        reader::read(path).map_err(|error| error.to_string())
    }

    fn ask_driver(&mut self, snapshot: &mut Snapshot) {
        self.asked += 1;
        let device = |used_bytes| DeviceUsage {
            device: 0,
            total_bytes: 1 << 30,
            used_bytes,
            limits: culeak::snapshot::GroupLimits::default(),
            reserved_bytes: 0,
            process_bytes: None,
            others: None,
        };
        snapshot.usage = Some(Usage {
            source: "test".to_owned(),
            devices: self.used_bytes.map(device).into_iter().collect(),
            missing: None,
        });
    }

    fn is_stopping(&mut self) -> bool {
        self.stops_after.is_some_and(|reads| self.reads.len() >= reads)
    }
}

fn record(path: &Path, ticks: u64) -> &'static Recording {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    record_on(host.trim(), path, ticks)
}

fn record_on(host: &str, path: &Path, ticks: u64) -> &'static Recording {
    let session = Session {
        pid: std::process::id(),
        parent_pid: 1,
        depth: 128,
        pid_namespace: 0,
        time_namespace: 0,
        process_start_ticks: ticks,
        executable: b"/usr/bin/trainer",
        command_line: b"trainer\0",
        host: host.as_bytes().to_vec().leak(),
        ranks: [Some(b"3"), None, None, None, None],
    };
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let recording = Recording::create(&path, &session).expect("a recording");
    recording.add_device(0, Some((false, [0xab; 16])), b"Fake H200");
    recording.add_thread(1, b"main\0\0\0\0\0\0\0\0\0\0\0\0");
    recording
}

fn of_this_process(path: &Path) -> &'static Recording {
    record(path, start_ticks(std::process::id()).expect("this process"))
}

fn allocate(recording: &Recording, address: u64, bytes: u64) {
    let entry = Entry {
        bytes,
        requested: bytes,
        time_ns: recording.now(),
        extra: 0,
        pool: 0,
        stack: NONE,
        thread: 0,
        attributes: Attributes {
            kind: Kind::Device,
            space: Space::Pointer,
            flags: 0,
            device: 0,
            api: 5,
            context: 0,
            raised: 0,
        },
    };
    let key = Key {
        space: Space::Pointer,
        address,
    };
    assert!(recording.allocated(key, &entry));
}

fn settings(folder: &Path) -> Settings {
    Settings {
        folders: vec![folder.to_path_buf()],
        files: Vec::new(),
        job_id: "job 7".to_owned(),
        top: 5,
        processes: 10,
        forget: None,
        interval: Duration::from_millis(1),
    }
}

fn pass(agent: &mut Agent, inputs: &mut Counting) -> Update {
    agent.pass(inputs, culeak::system::unix_ns())
}

/// The sum of a metric over all series whose own labels begin with these.
fn sum(update: &Update, of: Name, labels: &[&str]) -> Option<f64> {
    let own = |all: &Vec<Box<str>>| {
        let from = if of.family().of_process {
            PROCESS_LABELS.len()
        } else {
            0
        };
        all[from..].iter().map(|label| label.to_string()).collect::<Vec<_>>()
    };
    let of = &update.page.families[of as usize];
    let found: Vec<f64> = of
        .iter()
        .filter(|(all, _)| own(all).iter().zip(labels).all(|(have, want)| have == want))
        .map(|(_, value)| *value)
        .collect();
    (!found.is_empty()).then(|| found.iter().sum())
}

#[test]
fn what_has_not_changed_is_not_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.culeak");
    let recording = of_this_process(&path);
    allocate(recording, 0x1000, 100);
    let (mut agent, mut inputs) = (Agent::new(settings(folder.path())), Counting::default());
    let update = pass(&mut agent, &mut inputs);
    assert_eq!(sum(&update, Name::Held, &["device"]), Some(100.0));
    assert_eq!(sum(&update, Name::ProcessUp, &[]), Some(1.0));
    for _ in 0..3 {
        assert_eq!(
            sum(&pass(&mut agent, &mut inputs), Name::Held, &["device"]),
            Some(100.0)
        );
    }
    assert_eq!(inputs.reads.len(), 1);
    allocate(recording, 0x2000, 11);
    assert_eq!(
        sum(&pass(&mut agent, &mut inputs), Name::Held, &["device"]),
        Some(111.0)
    );
    assert_eq!(inputs.reads.len(), 2);
    fs::remove_file(&path).expect("removed");
    assert_eq!(sum(&pass(&mut agent, &mut inputs), Name::Held, &[]), None);
}

/// An agent that has seen a process of this recording grow, and its last update.
fn grown(folder: &Path, recording: &Recording, inputs: &mut Counting) -> (Agent, Update) {
    // Points that are far apart, compared with a pass: between two passes that take longer, a process counts as one that rests.
    let settings = Settings {
        interval: Duration::from_millis(100),
        ..settings(folder)
    };
    let mut agent = Agent::new(settings);
    inputs.used_bytes = Some(1 << 29);
    let mut update = pass(&mut agent, inputs);
    let (began, mut blocks) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(60) {
        // As many blocks as milliseconds, so that the pace is even however long a pass takes on a busy machine.
        let wanted = (began.elapsed().as_millis() as u64).max(blocks + 1);
        for address in blocks + 1..=wanted {
            allocate(recording, address << 20, 1 << 10);
        }
        blocks = wanted;
        std::thread::sleep(Duration::from_millis(100));
        update = pass(&mut agent, inputs);
        let is_judged = sum(&update, Name::GrowthPoints, &[]) >= Some(30.0);
        if is_judged && sum(&update, Name::GrowingSites, &[]) == Some(1.0) {
            break;
        }
    }
    assert_eq!(sum(&update, Name::GrowingSites, &[]), Some(1.0));
    (agent, update)
}

#[test]
fn a_process_that_grows_is_said_to_with_the_time_until_its_device_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = of_this_process(&folder.path().join("a.culeak"));
    let mut inputs = Counting::default();
    let (_, update) = grown(folder.path(), recording, &mut inputs);
    let pace = sum(&update, Name::Growth, &["0"]).expect("judged");
    let full = sum(&update, Name::UntilFull, &["0"]).expect("the driver was asked");
    assert!(
        pace > 0.0 && (full * pace / (1u64 << 29) as f64 - 1.0).abs() < 1e-6,
        "{pace} {full}"
    );
    assert_eq!(inputs.asked, 1, "the driver is asked once a minute");
    assert_eq!(
        sum(&update, Name::GpuUsed, &[]),
        Some((1u64 << 29) as f64),
        "its figures stay"
    );
}

#[test]
fn series_of_growth_end_with_their_process() {
    const OF_GROWTH: [Name; 5] = [
        Name::GrowthPoints,
        Name::GrowingSites,
        Name::Growth,
        Name::UntilFull,
        Name::SiteGrowth,
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let recording = of_this_process(&folder.path().join("a.culeak"));
    let mut inputs = Counting::default();
    let (mut agent, update) = grown(folder.path(), recording, &mut inputs);
    assert!(OF_GROWTH.iter().all(|of| sum(&update, *of, &[]).is_some()));
    recording.end();
    let update = pass(&mut agent, &mut inputs);
    assert_eq!(sum(&update, Name::ProcessUp, &[]), Some(0.0));
    assert!(sum(&update, Name::Leaked, &[]) > Some(0.0), "its leaks are shown");
    assert_eq!(OF_GROWTH.map(|of| sum(&update, of, &[])), [None; 5]);
}

#[test]
fn a_process_whose_end_is_not_seen_has_series_of_growth_while_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = record_on("elsewhere", &folder.path().join("a.culeak"), 1);
    allocate(recording, 0x1000, 100);
    let (mut agent, mut inputs) = (Agent::new(settings(folder.path())), Counting::default());
    let points = |update: &Update| sum(update, Name::GrowthPoints, &[]);
    assert_eq!(points(&pass(&mut agent, &mut inputs)), Some(1.0));
    for target in agent.targets.values_mut() {
        target.read_at = Instant::now().checked_sub(GROWS_FOR);
    }
    assert_eq!(points(&pass(&mut agent, &mut inputs)), None);
    allocate(recording, 0x2000, 11);
    assert!(points(&pass(&mut agent, &mut inputs)).is_some());
}

#[test]
fn ended_processes_are_shown_for_a_while_and_read_once() {
    let folder = tempfile::tempdir().expect("a folder");
    // As if by an earlier process with the same pid.
    let recording = record(&folder.path().join("a.culeak"), 1);
    allocate(recording, 0x1000, 100);
    let settings = Settings {
        forget: Some(Duration::from_secs(3600)),
        ..settings(folder.path())
    };
    let (mut agent, mut inputs) = (Agent::new(settings.clone()), Counting::default());
    let update = pass(&mut agent, &mut inputs);
    assert_eq!(sum(&update, Name::Leaked, &[]), Some(100.0));
    assert_eq!(sum(&update, Name::ProcessUp, &[]), Some(0.0));
    let mut later = Agent::new(settings);
    for _ in 0..2 {
        let update = later.pass(&mut inputs, culeak::system::unix_ns() + DAY_NS);
        assert_eq!(sum(&update, Name::Leaked, &[]), None);
        assert_eq!(sum(&update, Name::Recordings, &["left_out"]), Some(1.0));
    }
    assert_eq!(inputs.reads.len(), 2);
}

#[test]
fn what_cannot_be_read_is_reported_once_and_does_not_spoil_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    allocate(of_this_process(&folder.path().join("a.culeak")), 0x1000, 100);
    fs::write(folder.path().join("b.culeak"), "no recording at all").expect("a file");
    fs::write(folder.path().join("c.culeak"), "").expect("a file");
    let (mut agent, mut inputs) = (Agent::new(settings(folder.path())), Counting::default());
    let update = pass(&mut agent, &mut inputs);
    assert_eq!(update.failures.len(), 1, "{:?}", update.failures);
    assert_eq!(sum(&update, Name::Recordings, &["unreadable"]), Some(1.0));
    assert_eq!(sum(&update, Name::Held, &["device"]), Some(100.0));
    let reads = inputs.reads.len();
    assert!(pass(&mut agent, &mut inputs).failures.is_empty());
    assert_eq!(inputs.reads.len(), reads);
}

#[test]
fn a_read_that_failed_is_tried_again_though_the_file_is_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = of_this_process(&folder.path().join("a.culeak"));
    allocate(recording, 0x1000, 100);
    let (mut agent, mut inputs) = (Agent::new(settings(folder.path())), Counting::default());
    let now = culeak::system::unix_ns();
    let mut at = |inputs: &mut Counting, seconds: u64| agent.pass(inputs, now + seconds * 1_000_000_000);
    at(&mut inputs, 0);
    allocate(recording, 0x2000, 11);
    inputs.no_files = true;
    let update = at(&mut inputs, 1);
    assert_eq!(update.failures.len(), 1, "{:?}", update.failures);
    assert_eq!(sum(&update, Name::Recordings, &["unreadable"]), Some(1.0));
    assert_eq!(
        sum(&update, Name::Held, &["device"]),
        Some(100.0),
        "as of the last read"
    );
    assert!(at(&mut inputs, 2).failures.is_empty(), "it is reported once");
    inputs.no_files = false;
    let update = at(&mut inputs, 32);
    assert_eq!(sum(&update, Name::Held, &["device"]), Some(111.0));
    assert_eq!(sum(&update, Name::Recordings, &["unreadable"]), Some(0.0));
}

#[test]
fn a_pass_ends_when_the_caller_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a", "b", "c"] {
        of_this_process(&folder.path().join(format!("{name}.culeak")));
    }
    let mut agent = Agent::new(settings(folder.path()));
    let mut inputs = Counting {
        stops_after: Some(1),
        ..Counting::default()
    };
    pass(&mut agent, &mut inputs);
    assert_eq!(inputs.reads.len(), 1);
}
