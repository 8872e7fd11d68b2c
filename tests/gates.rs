//! Gates: `culeak check` and `culeak trend --fail-on` pass only if everything that their rules speak of was seen. Each rule is kept by a
//! recording that is whole, and has no verdict once a part that it speaks of is missing.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use culeak::format::{DIRECTORY_OFFSET, EventSegment, HEADER_BYTES, Header, Loss, Section, extents};
use tempfile::TempDir;

use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{Lookup, Outcome, culeak, profile, victim};
use crate::why;

/// Rules by what they speak of besides the allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Totals,
    Peak,
    /// What was held at a time before the first mark.
    Time,
    /// What holds the memory.
    Holders,
    /// Which call site allocated what.
    Sites,
    /// What was held at the last mark.
    Mark,
    /// What was held at several marks.
    Marks,
    Since,
    Objects,
    /// Several processes, by call site.
    Job,
    /// What call sites held at snapshots, by time or by marks.
    Growth,
    GrowthByMarks,
}

use Of::*;

const RULES: [(&str, Of); 17] = [
    ("--allow 64MiB", Totals),
    ("--allow count=100", Totals),
    ("--allow device=64MiB", Totals),
    ("--at peak --allow 64MiB", Peak),
    ("--at 0.000001s --allow 64MiB", Time),
    ("--fail-on lost", Holders),
    ("--allow site=4MiB", Sites),
    ("--allow leak:^work$=4MiB", Sites),
    ("--baseline known.json", Sites),
    ("--at mark:m --allow 64MiB", Mark),
    ("--at mark:m --not-above 64MiB", Marks),
    ("--at mark:m --same-as-last", Marks),
    ("--since m --allow 64MiB", Since),
    ("--allow stream=0", Objects),
    ("--fail-on outlier", Job),
    ("--fail-on growing", Growth),
    ("--fail-on growing --against marks", GrowthByMarks),
];

impl Of {
    /// What `culeak trend` judges.
    fn is_growth(self) -> bool {
        matches!(self, Growth | GrowthByMarks)
    }
}

/// Where the state at a mark comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Log,
    Snapshots,
    /// Of a recording with sampled stacks.
    Sampled,
    /// Of a recording with sampled stacks, fewer than their size asks for, since there were too many.
    Limited,
}

impl Source {
    const ALL: [Source; 4] = [Source::Log, Source::Snapshots, Source::Sampled, Source::Limited];

    fn program(self) -> &'static str {
        match self {
            Source::Limited => "limited",
            _ => "rounds",
        }
    }

    /// Of the 1 TiB no block is chosen; of the others more than a thread takes a second.
    fn sample(self) -> Option<&'static str> {
        match self {
            Source::Log | Source::Snapshots => None,
            Source::Sampled => Some("1TiB"),
            Source::Limited => Some("512KiB"),
        }
    }

    /// What the program recorded with so many rounds; its snapshots are of its marks.
    fn recorded(self, rounds: u32, snapshots: bool) -> Outcome {
        let mut run = profile("gates").args(&format!("{} {rounds}", self.program()));
        if self == Source::Log {
            run = run.env("CULEAK_TIMELINE", "16777216");
        }
        if snapshots || self != Source::Log {
            run = run.env("CULEAK_SNAPSHOT_AT_MARK", "1");
        }
        if let Some(size) = self.sample() {
            run = run.setting("CULEAK_SAMPLE", size);
        }
        let outcome = run.run();
        outcome.expect_success();
        outcome
    }
}

type Remove = fn(&Path);

/// A part that is missing: what removes it from the recording at this path, and which rules then have no verdict.
struct Way {
    name: &'static str,
    source: Source,
    remove: Remove,
    touches: fn(Of) -> bool,
}

const BESIDE_SNAPSHOTS: &str = "the recording beside snapshots";

const WAYS: [Way; 22] = [
    Way {
        name: "lost allocations",
        source: Source::Log,
        remove: |path| lose(path, Loss::Allocations),
        touches: |_| true,
    },
    Way {
        name: "lost marks",
        source: Source::Log,
        remove: |path| lose(path, Loss::Marks),
        touches: |of| matches!(of, Mark | Marks | Since | GrowthByMarks),
    },
    Way {
        name: "lost marks, with snapshots",
        source: Source::Snapshots,
        remove: |path| lose(path, Loss::Marks),
        touches: |of| matches!(of, Mark | Marks | Since | GrowthByMarks),
    },
    Way {
        name: "lost events",
        source: Source::Log,
        remove: |path| lose(path, Loss::TimelineEvents),
        touches: |of| matches!(of, Mark | Marks | Time),
    },
    Way {
        name: "an overwritten log",
        source: Source::Log,
        remove: overwrite_log,
        touches: |of| matches!(of, Mark | Marks | Time),
    },
    Way {
        name: "lost stacks",
        source: Source::Sampled,
        remove: |_| {},
        touches: |of| matches!(of, Peak | Sites | Job) || of.is_growth(),
    },
    Way {
        name: "samples that a limit left out",
        source: Source::Limited,
        remove: |_| {},
        touches: |of| matches!(of, Sites | Job) || of.is_growth(),
    },
    Way {
        name: "no holders",
        source: Source::Log,
        remove: |path| drop(fs::remove_file(path.with_extension("culeak-why"))),
        touches: |of| of == Holders,
    },
    Way {
        name: "damaged holders",
        source: Source::Log,
        remove: |path| {
            let holders = path.with_extension("culeak-why");
            if holders.exists() {
                cut(&holders);
            }
        },
        touches: |of| of == Holders,
    },
    Way {
        name: "a missing snapshot",
        source: Source::Snapshots,
        remove: |path| fs::remove_file(last_snapshot(path)).expect("removed"),
        touches: |of| matches!(of, Mark | Marks) || of.is_growth(),
    },
    Way {
        name: "a damaged snapshot",
        source: Source::Snapshots,
        remove: |path| cut(&last_snapshot(path)),
        touches: |of| matches!(of, Mark | Marks) || of.is_growth(),
    },
    Way {
        name: "a snapshot that was not written",
        source: Source::Snapshots,
        remove: |path| lose(path, Loss::Snapshots),
        touches: Of::is_growth,
    },
    Way {
        name: "an unreadable member",
        source: Source::Log,
        remove: |path| fs::write(path.with_file_name("other.culeak"), "no recording").expect("written"),
        touches: |_| true,
    },
    Way {
        name: "a truncated file",
        source: Source::Log,
        remove: cut,
        touches: |_| true,
    },
    Way {
        name: "another host",
        source: Source::Log,
        remove: move_to_another_host,
        touches: |_| true,
    },
    Way {
        name: "another host, with snapshots",
        source: Source::Snapshots,
        remove: move_to_another_host,
        touches: |_| true,
    },
    Way {
        name: "an empty directory",
        source: Source::Log,
        remove: |path| change(path, DIRECTORY_OFFSET, &[0; HEADER_BYTES - DIRECTORY_OFFSET]),
        touches: |_| true,
    },
    Way {
        name: "impossible peaks",
        source: Source::Log,
        remove: |path| {
            let (at, bytes) = place(path, Section::Peaks);
            change(path, at, &vec![0x22; bytes]);
        },
        touches: |_| true,
    },
    Way {
        name: "an event that was begun",
        source: Source::Log,
        remove: |path| {
            change(
                path,
                place(path, Section::Events).0 + offset_of!(EventSegment, events),
                &[0; 24],
            )
        },
        touches: |of| matches!(of, Mark | Marks | Time),
    },
    Way {
        name: "a segment of the event log",
        source: Source::Log,
        remove: |path| change(path, place(path, Section::Events).0, &[0; size_of::<EventSegment>()]),
        touches: |of| matches!(of, Mark | Marks | Time),
    },
    Way {
        name: BESIDE_SNAPSHOTS,
        source: Source::Snapshots,
        remove: |path| {
            fs::remove_file(last_snapshot(path)).expect("removed");
            fs::remove_file(path).expect("removed");
        },
        touches: |_| true,
    },
    Way {
        name: "recordings in a folder below",
        source: Source::Log,
        remove: |path| {
            let below = path.with_file_name("rank1");
            fs::create_dir(&below).expect("made");
            fs::copy(path, below.join("leak.culeak")).expect("copied");
        },
        touches: |_| true,
    },
];

fn change(path: &Path, at: usize, bytes: &[u8]) {
    let file = File::options().write(true).open(path).expect("a recording");
    file.write_all_at(bytes, at as u64).expect("written");
}

/// Where the first extent of a section begins, and its length.
fn place(path: &Path, section: Section) -> (usize, usize) {
    let bytes = fs::read(path).expect("a recording");
    let first = extents(&bytes).find(|extent| extent.section == section as u32 && extent.number == 0);
    let first = first.expect("an extent");
    (first.offset as usize, first.bytes as usize)
}

fn lose(path: &Path, loss: Loss) {
    let at = offset_of!(Header, losses) + loss as usize * size_of::<u64>();
    change(path, at, &7u64.to_le_bytes());
}

/// The oldest event that is left is younger than every mark.
fn overwrite_log(path: &Path) {
    let marks = culeak::reader::read(path).expect("readable").marks;
    let last = marks.last().expect("a mark").time_ns;
    change(
        path,
        offset_of!(Header, timeline_since_ns),
        &(last + 1000).to_le_bytes(),
    );
}

fn cut(path: &Path) {
    let file = File::options().write(true).open(path).expect("a file");
    let length = file.metadata().expect("a length").len();
    file.set_len(length / 2).expect("truncated");
}

/// The process did not end, as far as this file knows, and ran elsewhere.
fn move_to_another_host(path: &Path) {
    let bytes = fs::read(path).expect("a recording");
    let text = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let at = offset_of!(Header, host);
    // The name becomes shorter.
    let length = text(at + 4);
    assert!(length > 1, "the name of this host");
    change(path, at + 4, &(length - 1).to_le_bytes());
    change(path, offset_of!(Header, ended_ns), &0u64.to_le_bytes());
}

fn last_snapshot(recording: &Path) -> PathBuf {
    let folder = recording.parent().expect("a folder");
    let entries = fs::read_dir(folder).expect("readable").flatten();
    let paths = entries.map(|entry| entry.path());
    let snapshots = paths.filter(|path| path.extension().is_some_and(|end| end == "culeak-snapshot"));
    snapshots.max().expect("a snapshot")
}

/// What `culeak run --why` leaves.
fn held(source: Source) -> TempDir {
    let mut options = vec!["--no-report"];
    match source.sample() {
        Some(size) => options.extend(["--sample", size]),
        None if source == Source::Log => options.push("--timeline=16MiB"),
        None => options.extend(["--snapshot", "mark"]),
    }
    let (folder, program) = (folder(), victim("gates", Lookup::Linked));
    let command = [program.to_str().expect("a path"), source.program(), "3"];
    let mut run = why::run(&options, folder.path(), &command);
    assert!(run.status().expect("culeak starts").success());
    folder
}

/// A folder with a copy of what the program recorded; a job is two processes, of which only the header of the second differs. The path
/// is that of the first.
fn copied(out: &Path, of: Of) -> (TempDir, PathBuf) {
    let folder = folder();
    for entry in fs::read_dir(out).expect("readable").flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
    }
    let recording = recordings_in(folder.path()).remove(0);
    if of == Job {
        let second = folder.path().join("second.culeak");
        fs::copy(&recording, &second).expect("copied");
        change(&second, offset_of!(Header, pid), &1u32.to_le_bytes());
    }
    (folder, recording)
}

/// The exit code of a check of this folder, and what it says.
fn check(folder: &Path, rule: &str, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(culeak());
    let judges = if rule.starts_with("--fail-on growing") {
        "trend"
    } else {
        "check"
    };
    command.args([judges, "."]).args(rule.split(' ')).args(more);
    command.current_dir(folder).env("CULEAK_CACHE_DIR", "");
    let output = command.output().expect("culeak starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn no_rule_passes_unless_all_that_it_speaks_of_was_seen() {
    // A trend needs eight snapshots, and these are no more.
    let of_marks = Source::ALL.map(|source| source.recorded(3, false));
    let of_growth = Source::ALL.map(|source| source.recorded(8, true));
    let of_holders = Source::ALL.map(held);
    let of = |source: Source, kind: Of| match kind {
        Growth | GrowthByMarks => of_growth[source as usize].out(),
        Holders => of_holders[source as usize].path().to_owned(),
        _ => of_marks[source as usize].out(),
    };
    let whole = copied(&of(Source::Log, Totals), Totals).0;
    let update = check(whole.path(), "--baseline known.json", &["--update-baseline"]);
    assert_eq!(update.0, Some(0), "{}", update.1);
    let baseline = whole.path().join("known.json");
    let prepared = |source: Source, kind: Of| {
        let (folder, recording) = copied(&of(source, kind), kind);
        fs::copy(&baseline, folder.path().join("known.json")).expect("copied");
        (folder, recording)
    };
    for source in [Source::Log, Source::Snapshots] {
        for (rule, kind) in RULES {
            let (folder, _) = prepared(source, kind);
            let (code, text) = check(folder.path(), rule, &[]);
            // Times are in the event log alone.
            let expected = if kind == Time && source != Source::Log { 2 } else { 0 };
            assert_eq!(code, Some(expected), "{rule}, {source:?}: {text}");
        }
    }
    for way in WAYS {
        for (rule, kind) in RULES {
            let (folder, recording) = prepared(way.source, kind);
            (way.remove)(&recording);
            let (code, text) = check(folder.path(), rule, &[]);
            // A snapshot of a mark, by itself, shows what a call site held for a while.
            if way.name == BESIDE_SNAPSHOTS && code == Some(1) {
                assert!(text.contains("failed: 9 MiB in 9 blocks held, "), "{rule}: {text}");
                continue;
            }
            // Call sites of marks are not compared if stacks were sampled.
            let is_touched = (way.touches)(kind)
                || way.source.sample().is_some() && rule.contains("--same-as-last")
                || way.source != Source::Log && kind == Time;
            // Which few blocks were chosen is chance, and the exact sum at the peak may decide without them.
            if way.source == Source::Limited && (is_touched || kind == Peak) {
                let allowed = if kind == Peak { &[0, 2][..] } else { &[2] };
                assert!(
                    code.is_some_and(|code| allowed.contains(&code)),
                    "{rule}, {}: {code:?} {text}",
                    way.name
                );
                continue;
            }
            let expected = if is_touched { Some(2) } else { Some(0) };
            assert_eq!(code, expected, "{rule}, {}: {text}", way.name);
            let is_said = text.contains("no verdict") || text.contains("error: ");
            assert_eq!(is_said, is_touched, "{rule}, {}: {text}", way.name);
        }
    }
}

#[test]
fn what_was_seen_is_judged_if_the_user_accepts_the_rest() {
    let (log, snapshots) = (Source::Log.recorded(3, false), Source::Snapshots.recorded(3, false));
    let accepted: [(&Outcome, Remove, &str, &str); 4] = [
        (
            &log,
            |path| lose(path, Loss::Allocations),
            "--allow 8MiB",
            "7 allocations",
        ),
        (
            &log,
            |path| lose(path, Loss::Marks),
            "--at mark:m --not-above 9MiB",
            "7 marks",
        ),
        (
            &snapshots,
            |path| cut(&last_snapshot(path)),
            "--at mark:m --not-above 9MiB",
            "2 of 3 marks",
        ),
        (
            &snapshots,
            |path| cut(&last_snapshot(path)),
            "--at mark:m --allow 9MiB",
            "an older one is shown",
        ),
    ];
    for (outcome, remove, rule, what) in accepted {
        let (folder, recording) = copied(&outcome.out(), Totals);
        remove(&recording);
        let (code, text) = check(folder.path(), rule, &[]);
        assert!(
            code == Some(2) && text.starts_with("no verdict: ") && text.contains(what),
            "{rule}: {text}"
        );
        assert!(text.contains("or accept it with --allow-losses"), "{rule}: {text}");
        let (code, text) = check(folder.path(), rule, &["--allow-losses"]);
        assert!(
            code == Some(0) && text.starts_with("passed: ") && text.contains(what),
            "{rule}: {text}"
        );
        // A leak that was seen fails in any case.
        let strict = rule.replace("8MiB", "3MiB").replace("9MiB", "3MiB");
        let (code, text) = check(folder.path(), &strict, &[]);
        assert!(code == Some(1) && text.contains(what), "{strict}: {text}");
    }
}

#[test]
fn what_a_process_leaves_is_not_known_while_it_runs() {
    let folder = folder();
    let mut running = profile("endings").arg("waits").start_in(folder.path());
    let mut line = String::new();
    let mut from = BufReader::new(running.stdout());
    from.read_line(&mut line).expect("the victim prints a line");
    let out = folder.path().join("out");
    let (code, text) = check(&out, "--allow 64MiB", &[]);
    assert!(code == Some(2) && text.contains("the process still runs"), "{text}");
    assert_eq!(check(&out, "--allow 64MiB", &["--at", "exit"]).0, Some(0));
    assert_eq!(check(&out, "--allow 64MiB", &["--allow-losses"]).0, Some(0));
    assert_eq!(check(&out, "--allow 1KiB", &[]).0, Some(1));
    // Its peak may rise, and a copy of the recording is no less early.
    let (code, text) = check(&out, "--allow 64MiB", &["--at", "peak"]);
    assert!(code == Some(2) && text.contains("the process still runs"), "{text}");
    let recording = recordings_in(&out).remove(0);
    let early = crate::support::profile::folder();
    fs::copy(&recording, early.path().join("copy.culeak")).expect("copied");
    let piped = || {
        let mut command = Command::new(culeak());
        command.args(["check", "-", "--allow", "64MiB"]);
        let output = command.stdin(File::open(&recording).expect("a recording")).output();
        output.expect("culeak starts").status.code()
    };
    assert_eq!(piped(), Some(2));
    drop(running.child.stdin.take());
    assert!(running.finish().status.success());
    assert_eq!(check(&out, "--allow 64MiB", &[]).0, Some(0));
    for at in ["end", "peak", "exit"] {
        let (code, text) = check(early.path(), "--allow 64MiB", &["--at", at]);
        assert!(
            code == Some(2) && text.contains("made before the process ended"),
            "{at}: {text}"
        );
    }
}

/// The limit of the total is not the only one.
#[test]
fn every_limit_applies_at_every_mark() {
    for source in ["CULEAK_TIMELINE", "CULEAK_SNAPSHOT_AT_MARK"] {
        let value = if source == "CULEAK_TIMELINE" { "8388608" } else { "1" };
        let outcome = profile("gates").args("many").env(source, value).run();
        outcome.expect_success();
        let (folder, _) = copied(&outcome.out(), Totals);
        let at_marks = |limits: &str| {
            check(
                folder.path(),
                &format!("--at mark:m --not-above 1GiB --allow {limits}"),
                &[],
            )
        };
        assert_eq!(at_marks("count=3").0, Some(0));
        for broken in ["count=2", "leak:^work$=2MiB"] {
            let (code, text) = at_marks(broken);
            assert!(
                code == Some(1) && text.contains("number 1 of 2"),
                "{source}, {broken}: {text}"
            );
        }
    }
}

#[test]
fn a_mark_that_the_event_log_no_longer_has_is_not_below_a_limit() {
    let outcome = profile("gates")
        .args("highest 120000")
        .env("CULEAK_TIMELINE", "8388608")
        .run();
    outcome.expect_success();
    let (folder, _) = copied(&outcome.out(), Totals);
    let (code, text) = check(folder.path(), "--at mark:m --not-above 10MiB", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(" of 4 marks \"m\" can be judged"), "{text}");
    assert!(text.contains("larger --timeline=SIZE"), "{text}");
}

#[test]
fn leaks_whose_stacks_a_limit_of_stacks_left_out_do_not_pass() {
    let outcome = profile("gates")
        .args("burst 50000")
        .setting("CULEAK_SAMPLE", "524288")
        .run();
    outcome.expect_success();
    let (folder, _) = copied(&outcome.out(), Totals);
    fs::copy(
        &Source::Log.recorded(3, false).recordings[0],
        folder.path().join("clean"),
    )
    .expect("copied");
    for rule in ["--allow site=10MiB", "--allow leak:^keep$=10MiB", "--baseline clean"] {
        let (code, text) = check(folder.path(), rule, &["--force"]);
        assert!(code != Some(0), "{rule}: {text}");
    }
}

/// The limit on the number of marks is 1,048,576.
#[test]
fn marks_beyond_their_limit_are_counted_as_marks() {
    let outcome = profile("gates")
        .args("marks 1048600")
        .env("CULEAK_TIMELINE", "16777216")
        .run();
    outcome.expect_success();
    let losses = &outcome.only_snapshot().losses;
    assert_eq!((losses.lost_marks, losses.lost_details), (24, 0));
    let (folder, _) = copied(&outcome.out(), Totals);
    for rule in ["--at mark:m --allow 10MiB", "--since m"] {
        let (code, text) = check(folder.path(), rule, &[]);
        assert!(
            code == Some(2) && text.contains("24 marks could not be recorded"),
            "{rule}: {text}"
        );
    }
}

#[test]
fn a_report_at_a_mark_without_its_snapshot_says_that_it_shows_an_older_one() {
    let (folder, recording) = copied(&Source::Snapshots.recorded(3, false).out(), Totals);
    let report = || {
        let mut command = Command::new(culeak());
        command.arg("report").arg(&recording).args(["--at", "mark:m"]);
        let output = command.output().expect("culeak starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(!report().contains("older"), "{}", report());
    let damaged = last_snapshot(&recording);
    cut(&damaged);
    let name = damaged.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(
        report().contains("an older one is shown") && report().contains(&name),
        "{}",
        report()
    );
    drop(folder);
}
