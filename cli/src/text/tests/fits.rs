//! Lines fit a terminal, with names as long as those of templates.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use culeak::analysis::diff::Diff;
use culeak::analysis::profile::tree::{Limits, Tree};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::report::{By, Options, Report};
use culeak::analysis::stats::{self, Sort, Stats};
use culeak::analysis::trend::{self, Summary, Trend};
use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use culeak::timeline::{Event, Op, Site, Timeline};

use super::{from_file, plain};
use crate::document::columns::{width, with_available};
use crate::document::{Document, wrap};
use crate::names::{self, Detail};
use crate::options::view::Shape;
use crate::text;
use crate::text::report::Extent;
use crate::text::sample::{GIB, MAIN, MIB, RUNTIME, START, Sample};

const LONG: &str = "at_native_detail::DistributedFusedLayerNormalizationBackwardKernelLauncher::\
                    launch_with_workspace_and_persistent_buffers_for_every_stream_of_the_device";
const DEEP: &str = "/home/engineer/projects/training/third_party/kernels/src/normalization/\
                    distributed_fused_layer_normalization_backward.cu:1234";

/// Leaks of functions and files with long names, below 12 long callers, and a request that failed.
fn long_names(times: u64) -> Snapshot {
    let mut sample = Sample::new();
    sample.0.usage = None;
    let mut frames = vec![RUNTIME, (LONG, DEEP, "/opt/app")];
    frames.extend(
        [
            (LONG, "", "/opt/app"),
            ("short", DEEP, "/opt/app"),
            (LONG, "/src/a.cu:1", "/opt/app"),
        ]
        .repeat(4),
    );
    frames.extend([MAIN, START]);
    let long = sample.stack(&frames);
    let branch = sample.stack(&[&[RUNTIME, ("step", "/src/train.cu:212", "/opt/app")], &frames[3..]].concat());
    let ready = sample.stack(&[RUNTIME, ("init", "/src/train.cu:9", "/opt/app"), MAIN, START]);
    sample.holds(Kind::Device, "cudaMalloc", 3 * MIB * times, 12, long);
    sample.holds(Kind::Managed, "cudaMallocManaged", MIB * times, 1234, branch);
    sample.holds(Kind::HostPinned, "cudaHostAlloc", MIB, 1, ready);
    sample.fails(70 * GIB, 2, long);
    let mut snapshot = sample.finish(7 * GIB, 12_345);
    snapshot.losses.vanished = 3;
    snapshot.losses.unknown_frees = 12_345;
    snapshot.losses.unhooked = vec!["cuMemBatchDecompressAsync".to_owned(), "cuMemNew".to_owned()];
    snapshot.taken.at_ns += times * 1_000_000_000;
    snapshot.taken.at_unix_ns += times * 1_000_000_000;
    snapshot
}

const NAMES: Detail = Detail {
    signatures: false,
    lines: true,
};

/// Statistics of events of call sites with long names, with wide numbers.
fn statistics(sort: Sort) -> String {
    let snapshot = long_names(1);
    let site = |stack| Site {
        stack: Some(stack),
        kind: Kind::Device,
        device: Some(0),
        domain: None,
        api: "cudaMalloc".to_owned(),
    };
    let events = (0..6000).map(|nth: u64| Event {
        time_ns: 8 * nth,
        op: if nth.is_multiple_of(2) {
            Op::Allocated
        } else {
            Op::Freed
        },
        address: 0x7f00_0000_0000,
        bytes: 1_234_567_890,
        site: (nth / 2 % 3) as u32,
        lifetime_ns: 123_456_789,
        thread: nth.is_multiple_of(2).then_some(0),
    });
    let timeline = Timeline::new(0, 48_000, (0..3).map(site).collect(), events);
    let options = stats::Options {
        sort,
        source: "app.culeak".to_owned(),
        ..stats::Options::default()
    };
    let stats = Stats::of(&snapshot, &timeline, &options).expect("the log is complete");
    plain(|out| wrap::lines(out, |out| text::stats::page(&stats, false).text(out)))
}

#[test]
fn rows_of_statistics_keep_file_and_line() {
    for (columns, sort) in [60, 80, 100]
        .into_iter()
        .flat_map(|columns| Sort::ALL.iter().map(move |&sort| (columns, sort)))
    {
        let text = with_available(columns, || statistics(sort));
        let table: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.contains("call site"))
            .skip(1)
            .take(3)
            .collect();
        for place in ["backward.cu:1234", "train.cu:212", "train.cu:9"] {
            assert!(
                table.iter().any(|line| line.contains(place)),
                "{place}, {columns} columns: {text}"
            );
        }
    }
}

/// Every kind of text, with its name.
fn texts() -> Vec<(&'static str, String)> {
    let (before, after) = (long_names(1), long_names(5));
    let by = |by| Options {
        by,
        ..from_file("app.culeak")
    };
    let report = |by_what| {
        plain(|out| {
            wrap::lines(out, |out| {
                text::report::page(
                    &Report::of(&after, &by(by_what)),
                    Extent {
                        views: &[Shape::Losses],
                        ..Extent::default()
                    },
                )
                .text(out)
            })
        })
    };
    let options = culeak::analysis::diff::Options::default();
    let diff = Diff::of(&before, &after, &options);
    let diff = |stacks| plain(|out| wrap::lines(out, |out| text::diff::page(&diff, stacks, false).text(out)));
    let profile = Profile::of(&after, &profile::Options::default());
    let old = Profile::of(&before, &profile::Options::default());
    let limits = Limits {
        top: None,
        min_bytes: 0,
        all: true,
    };
    let mut tree = Document::default();
    text::tree::write(&profile, &Tree::of(&profile, &limits), NAMES, &mut tree);
    let tree = plain(|out| tree.text(out));
    let (both, frames) = Tree::of_difference(&old, &profile, |frame| names::frame(frame, NAMES), &limits);
    let mut changes = Document::default();
    text::tree::write_difference(&frames, &both, NAMES, &mut changes);
    let changes = plain(|out| changes.text(out));
    let of_trend = trend::Options {
        all: true,
        ..trend::Options::default()
    };
    let summaries = (0..20).map(|nth| {
        let mut snapshot = long_names(1 + nth);
        snapshot.process.state = culeak::snapshot::ProcessState::Running;
        Summary::of(&snapshot, format!("{nth}.json"), &of_trend)
    });
    let facts = Summary::folded(summaries);
    let trend = plain(|out| {
        wrap::lines(out, |out| {
            text::trend::page(&Trend::of(&facts, &of_trend), false, "").text(out)
        })
    });
    vec![
        ("stats", statistics(Sort::Count)),
        ("stats by lifetime", statistics(Sort::Lifetime)),
        ("report", report(By::Site)),
        ("report by stack", report(By::Stack)),
        ("report by kind", report(By::Kind)),
        ("diff", diff(false)),
        ("diff with stacks", diff(true)),
        ("tree", tree),
        ("tree of changes", changes),
        ("trend", trend),
    ]
}

#[test]
fn every_line_fits_a_terminal_and_nothing_is_cut_in_a_file() {
    for columns in [60, 80] {
        for (name, text) in with_available(columns, texts) {
            for line in text.lines() {
                assert!(width(line) <= columns, "{name} on {columns} columns: {line:?}\n{text}");
            }
            assert!(text.contains('…') || name == "report by kind", "{name}: {text}");
        }
    }
    for (name, text) in texts() {
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "/_:".contains(c));
        for (at, ellipsis) in text.match_indices('…') {
            let (before, after) = (text[..at].chars().last(), text[at + ellipsis.len()..].chars().next());
            assert!(!is_part(before) && !is_part(after), "{name}: {text}");
        }
        assert!(text.contains(LONG) || name == "report by kind", "{name}: {text}");
    }
}

#[test]
fn names_in_full_stacks_are_whole_on_a_terminal() {
    let snapshot = long_names(1);
    let text = with_available(60, || {
        plain(|out| {
            wrap::lines(out, |out| {
                text::report::page(&Report::of(&snapshot, &from_file("app.culeak")), Extent::ALL).text(out)
            })
        })
    });
    assert!(text.contains(LONG) && text.contains(DEEP), "{text}");
}

#[test]
fn a_diff_in_reverse_has_no_duration() {
    let (earlier, later) = (long_names(1), long_names(5));
    let options = culeak::analysis::diff::Options::default();
    let headline = |before, after| {
        let diff = Diff::of(before, after, &options);
        let text = plain(|out| text::diff::page(&diff, false, false).text(out));
        text.lines().next().unwrap_or_default().to_owned()
    };
    assert!(headline(&earlier, &later).ends_with(" in 4 s"));
    let reversed = headline(&later, &earlier);
    assert!(
        reversed.contains("shrank by") && !reversed.contains(" in "),
        "{reversed}"
    );
}

#[test]
fn only_losses_are_listed_as_not_recorded() {
    let mut snapshot = long_names(1);
    let allocator = |domain: &str, mismatches| culeak::snapshot::Allocator {
        domain: domain.to_owned(),
        device: None,
        live_bytes: 0,
        reserved_bytes: 0,
        events: 40,
        mismatches,
        unseen_bytes: 0,
    };
    snapshot.allocators = vec![allocator("exact", 0), allocator("lossy", 2)];
    let report = Report::of(&snapshot, &from_file("app.culeak"));
    let rows = text::report::sums::losses(&report, true);
    let starts: Vec<usize> = (0..rows.len()).filter(|&nth| !rows[nth].0.is_empty()).collect();
    let titles: Vec<&str> = starts.iter().map(|&nth| rows[nth].0).collect();
    assert_eq!(titles, ["not recorded", "compared", "recorder"]);
    let title_of = |text: &str| {
        let at = rows.iter().position(|row| row.1.starts_with(text)).expect("a row");
        rows[..=at].iter().rev().find(|row| !row.0.is_empty()).map(|row| row.0)
    };
    assert_eq!(title_of("lossy: 40 events"), Some("not recorded"));
    assert_eq!(title_of("exact: 40 events"), Some("compared"));
}

/// `CULEAK_BLESS=1` rewrites the page.
#[test]
fn the_page_lists_every_count_of_losses_with_its_meaning_and_what_to_do() {
    crate::commands::help::tests::expect_table("limits.md", "losses", &text::report::sums::losses_table());

    let mut snapshot = long_names(1);
    snapshot.losses.lost_allocations = 2;
    let report = Report::of(&snapshot, &from_file("app.culeak"));
    let first = |all| text::report::sums::losses(&report, all)[0].1.clone();
    assert_eq!(first(false), "2 allocations: the totals are too low");
    assert_eq!(
        first(true),
        "2 allocations: the totals are too low; free disk space, raise the program's limits (`ulimit -f`, `-d`, `-v`), or record \
         to another disk"
    );
}

/// A signal interrupts every other write.
#[derive(Default)]
struct Interrupted {
    text: Rc<RefCell<Vec<u8>>>,
    writes: usize,
}

impl Write for Interrupted {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.writes.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.text.borrow_mut().extend(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_text_that_signals_interrupt_is_written_once() {
    let stream = Interrupted::default();
    let text = stream.text.clone();
    let plain = anstream::StripStream::new(Box::new(stream) as Box<dyn Write>);
    let mut out = io::BufWriter::new(super::super::Whole(plain));
    let written = writeln!(out, "one \x1b[1mtwo\x1b[0m three").and_then(|()| out.flush());
    written.expect("signals are no errors");
    assert_eq!(String::from_utf8_lossy(&text.borrow()), "one two three\n");
}
