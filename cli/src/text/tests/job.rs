//! Golden texts of jobs.

use culeak::analysis::check::{Outcome, Rules, Unseen, verdict};
use culeak::analysis::job::sites::{Keys, ProcessSums, Sites};
use culeak::analysis::job::{Job, JobReport, Options, Unreadable};
use culeak::snapshot::Snapshot;

use super::{expect_golden, plain};
use crate::text::sample::leaky;
use crate::text::{check, job};

/// The report of a job whose ranks are changed copies of one process.
fn report(ranks: u32, options: &Options, change: impl Fn(u32, &mut Snapshot)) -> JobReport {
    let (mut job, mut sites) = (Job::default(), Sites::default());
    for rank in 0..ranks {
        let mut snapshot = leaky();
        let process = &mut snapshot.process;
        process.pid = 4000 + rank;
        process.host = format!("node{}", rank / 4);
        process.ranks.insert("RANK".to_owned(), rank.to_string());
        change(rank, &mut snapshot);
        let keys = Keys::of(&snapshot);
        sites.learn(&snapshot, &keys);
        job.add(
            rank,
            ProcessSums::of(&snapshot, &sites.named(&keys), format!("runs/{rank}.culeak")),
        );
    }
    job.finish(&sites, options)
}

fn shown(report: &JobReport, top: Option<usize>) -> String {
    plain(|out| job::page(report, top, "").text(out))
}

#[test]
fn golden_job_with_a_rank_that_stands_out() {
    let mut report = report(8, &Options::default(), |rank, snapshot| {
        if rank == 5 {
            snapshot.allocations.change(|_, allocation, _| allocation.bytes *= 3);
        }
    });
    report.unreadable = (0..11)
        .map(|nth| Unreadable {
            source: format!("runs/b{nth}.culeak"),
            reason: "empty\u{1b}[31m".to_owned(),
        })
        .collect();
    report.earlier_snapshots = 2;
    expect_golden("job.txt", &shown(&report, Some(20)));
}

#[test]
fn rows_of_sampled_ranks_are_marked_as_estimates_and_exact_sums_are_not() {
    let mut report = report(2, &Options::default(), |_, _| {});
    let exact = shown(&report, None);
    report.sampled = true;
    let sampled = shown(&report, None);
    assert!(!exact.contains('≈'), "{exact}");
    let of = |text: &str, what: &str| text.lines().find(|line| line.contains(what)).map(str::to_owned);
    let row = of(&sampled, "Trainer::step").unwrap_or_else(|| panic!("{sampled}"));
    assert_eq!(row.matches('≈').count(), 4, "{row}");
    assert_eq!(sampled.lines().next(), exact.lines().next());
    report.processes[0].row.held_is_estimated = true;
    let filtered = shown(&report, None);
    assert!(
        filtered.lines().next().is_some_and(|line| line.contains("leak ≈ ")),
        "{filtered}"
    );
}

#[test]
fn golden_job_of_equal_ranks() {
    let options = Options {
        top: Some(2),
        ..Options::default()
    };
    expect_golden("job-equal.txt", &shown(&report(8, &options, |_, _| {}), Some(3)));
}

#[test]
fn golden_job_of_several_programs_without_ranks() {
    let report = report(4, &Options::default(), |rank, snapshot| {
        snapshot.process.ranks.clear();
        snapshot.process.executable = format!("/opt/{}", if rank == 3 { "logger" } else { "trainer" });
        if rank == 3 {
            snapshot.allocations.truncate(2);
        }
    });
    expect_golden("job-programs.txt", &shown(&report, Some(20)));
}

#[test]
fn a_job_begins_with_its_own_call_sites_and_helpers_without_memory_are_counted() {
    let with_helpers = |rank: u32, snapshot: &mut Snapshot| {
        if rank > 1 {
            snapshot.allocations.truncate(0);
            snapshot.device_peaks.clear();
            snapshot.failed.clear();
            snapshot.process.executable = "/opt/helper".to_owned();
        }
        if rank == 3 {
            snapshot.losses.unknown_frees = 0;
        }
    };
    let report = report(4, &Options::default(), with_helpers);
    let text = shown(&report, Some(20));
    let lines: Vec<&str> = text.lines().collect();
    let at = |part: &str| lines.iter().position(|line| line.contains(part)).expect(part);
    let order = [
        "Trainer::step",
        "from Trainer::run < main",
        "libfancy.so",
        "[PyTorch's pool]",
        "rank  host",
    ];
    assert!(order.map(at).is_sorted() && at(order[1]) < 6, "{text}");
    assert!(text.contains("  … and 2 more processes; --top 0 shows all"), "{text}");
    assert!(
        text.contains("1 more call site without memory; --top 0 shows all"),
        "{text}"
    );
    let incomplete = "not recorded in full: 3 of 4 processes; culeak report runs/2.culeak shows what is missing";
    assert!(text.contains(incomplete), "{text}");
    let all = shown(&report, None);
    assert!(all.contains("map_window") && !all.contains("more process"), "{all}");
}

#[test]
fn a_clean_job_takes_three_lines() {
    let report = report(4, &Options::default(), |_, snapshot| {
        snapshot.allocations.truncate(0);
        snapshot.failed.clear();
        snapshot.losses = culeak::snapshot::Losses::default();
    });
    let text = shown(&report, Some(20));
    let expected = "4 processes of app on 1 host leak nothing\nrecorded in full\nnext: culeak report ";
    assert!(text.starts_with(expected) && text.lines().count() == 3, "{text}");
}

#[test]
fn verdicts_of_many_name_ranks_only_if_they_differ_and_show_warnings_of_those_that_passed() {
    let shown = |ranks: u32| {
        let snapshots = (0..12).map(|nth| {
            let mut snapshot = leaky();
            snapshot
                .process
                .ranks
                .insert("RANK".to_owned(), (nth % ranks).to_string());
            snapshot
        });
        let snapshots: Vec<Snapshot> = snapshots.collect();
        let verdicts = snapshots.iter().zip(0..12).map(|(snapshot, nth)| {
            let mut verdict = verdict(snapshot, &Rules::default());
            verdict.outcome = if nth == 7 { Outcome::Failed } else { Outcome::Passed };
            verdict.warnings = match nth {
                1..=3 => vec!["lost\u{1b}".to_owned()],
                7 => vec!["printed below".to_owned()],
                _ => Vec::new(),
            };
            ("runs/x.culeak", verdict)
        });
        let verdicts: Vec<_> = verdicts.collect();
        plain(|out| check::page_of(&verdicts).text(out))
    };
    let own = shown(12);
    let mut lines = own.lines();
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("failed: 1 of 12 processes")),
        "{own}"
    );
    assert_eq!(lines.next(), Some("warning: lost\\u{1b} (3 processes that passed)"));
    assert_eq!(lines.next(), Some("  failed: rank 7"));
    // Two jobs of six ranks.
    assert!(shown(6).contains("  failed: runs/x.culeak\n"), "{}", shown(6));
}

#[test]
fn a_rank_without_a_recording_is_said_once_and_of_no_other_rank() {
    let report = report(2, &Options::default(), |_, snapshot| {
        snapshot.process.ranks.insert("WORLD_SIZE".to_owned(), "3".to_owned());
    });
    let text = shown(&report, None);
    assert!(
        text.contains("not recorded in full: rank 2 of 3 has no recording here; name all"),
        "{text}"
    );
    let snapshots = [leaky(), leaky()];
    let rules = Rules::default();
    let mut verdicts: Vec<_> = snapshots.iter().map(|of| ("x.culeak", verdict(of, &rules))).collect();
    for (_, verdict) in &mut verdicts {
        verdict.breaches.clear();
        verdict.unseen.clear();
        verdict.lacks([]);
    }
    verdicts[0]
        .1
        .lacks([Unseen::part("", "rank 2 of 3 has no recording here", "name it").beside()]);
    let text = plain(|out| check::page_of(&verdicts).text(out));
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("rank") || line.contains("no verdict: x"))
        .collect();
    let sentence = "  cannot be judged: rank 2 of 3 has no recording here; name it, or accept it with --allow-losses";
    assert_eq!(lines, [sentence], "{text}");
}
