//! What prevents `--fail-on growing` from passing.

use super::*;
use crate::snapshot::Sampling;

fn trend_of(summaries: Vec<Summary>) -> Trend {
    let lineages = lineages(summaries);
    assert_eq!(lineages.len(), 1);
    Trend::of(&lineages[0], &all())
}

/// The same program, started again an hour later.
fn restarted(mut summaries: Vec<Summary>) -> Vec<Summary> {
    for summary in &mut summaries {
        summary.instants[0].process.started_unix_ns += 3600 * SECOND;
        summary.instants[0].process.pid = 5000;
    }
    summaries
}

#[test]
fn a_site_grows_if_it_does_in_one_of_the_processes() {
    let line: Vec<u64> = (0..10).map(|nth| 100 + 8 * nth).collect();
    let trend = trend_of([minutes(&[100; 20]), restarted(minutes(&line))].concat());
    assert_eq!((trend.rows[0].class, trend.growing), (Class::Growing, 1));
    assert_eq!((trend.rows[0].agreeing, trend.rows[0].judged), (1, 2));
}

#[test]
fn a_process_with_too_few_snapshots_is_counted() {
    let line: Vec<u64> = (0..7).map(|nth| 100 + 8 * nth).collect();
    let trend = trend_of([minutes(&[100; 20]), restarted(minutes(&line))].concat());
    assert_eq!((trend.growing, trend.short_processes, trend.too_few), (0, 1, false));
}

#[test]
fn a_site_that_rises_since_it_appeared_late_is_not_judged() {
    let late = |values: &[u64]| trend_of(minutes(&[&[0; 20], values].concat())).unjudged;
    let rises = late(&[10, 20, 30, 40]);
    assert!(
        rises.len() == 1
            && rises[0].contains("1 call site may still grow, but too few snapshots show it")
            && rises[0].contains("(step train.py:212)"),
        "{rises:?}"
    );
    assert_eq!(late(&[10, 10, 10, 10]), [""; 0]);
    assert_eq!(late(&[10, 40, 30, 20]), [""; 0]);
    // Growth that is judged.
    assert_eq!(late(&(1..=10).map(|nth| 10 * nth).collect::<Vec<u64>>()), [""; 0]);
}

#[test]
fn a_site_that_rises_late_in_a_process_that_is_not_shown_is_not_judged() {
    let late = |values: &[u64]| {
        let second = restarted(minutes(&[&[0; 20], values].concat()));
        trend_of([minutes(&[100; 30]), second].concat()).unjudged
    };
    let rises = late(&[10, 20, 30, 40]);
    assert!(
        rises.len() == 1 && rises[0].contains("1 call site may still grow, but too few snapshots show it"),
        "{rises:?}"
    );
    assert_eq!(late(&[10, 40, 30, 20]), [""; 0]);
    // A process with too few snapshots is counted as such.
    let few = restarted(minutes(&[0, 0, 0, 10, 20, 30, 40]));
    assert_eq!(trend_of([minutes(&[100; 30]), few].concat()).unjudged, [""; 0]);
}

/// Of which no call site has a stack, or only one that does not grow.
#[test]
fn growth_that_sampled_stacks_hide_is_not_judged() {
    let sampled = |site: &[u64], sum: &[u64], most_bytes: u64| {
        let mut summaries = minutes(site);
        for (summary, sum) in summaries.iter_mut().zip(sum) {
            summary.instants[0].sampling = Some(Sampling {
                bytes: MIB / 2,
                most_bytes,
                left_out: None,
            });
            summary.instants[0].exact = Some(Tally::new(sum * MIB, 1));
        }
        trend_of(summaries)
    };
    let rising: Vec<u64> = (100..112).collect();
    assert_eq!(sampled(&[64; 12], &[64; 12], 0).unjudged, [""; 0]);
    let hidden = sampled(&[64; 12], &rising, 0).unjudged;
    assert!(
        hidden.len() == 1 && hidden[0].starts_with("what a process holds grows, but no call site does"),
        "{hidden:?}"
    );
    let seen = sampled(&rising, &rising, 0);
    assert_eq!((seen.growing, &seen.unjudged[..]), (1, &[][..]));
    let rare = sampled(&[64; 12], &[64; 12], 8 << 30).unjudged;
    assert!(
        rare.len() == 1 && rare[0].contains("one for each 8 GiB, which is more than the 64 MiB"),
        "{rare:?}"
    );
}

#[test]
fn marks_and_snapshots_that_a_recording_lost_are_said_where_growth_depends_on_them() {
    let lossy = |change: fn(&mut Instant), against: Against| {
        let mut summaries = minutes(&[100; 12]);
        for (nth, summary) in summaries.iter_mut().enumerate() {
            summary.instants[0].marks = nth as u64;
        }
        change(&mut summaries[11].instants[0]);
        let options = Options { against, ..all() };
        Trend::of(&lineages(summaries)[0], &options).unjudged.join("\n")
    };
    let marks: fn(&mut Instant) = |last| last.lost_marks = 3;
    assert!(lossy(marks, Against::Marks).starts_with("3 marks could not be recorded"));
    assert_eq!(lossy(marks, Against::Time), "");
    let snapshots: fn(&mut Instant) = |last| (last.lost_snapshots, last.is_automatic) = (1, true);
    assert!(lossy(snapshots, Against::Time).starts_with("1 automatic snapshot was not written"));
    // The user's own snapshots are all there.
    assert_eq!(lossy(|last| last.lost_snapshots = 1, Against::Time), "");
}

#[test]
fn losses_objects_and_pools_that_are_not_known_are_said() {
    let with = |change: fn(&mut Instant)| {
        let mut summaries = minutes(&[100; 12]);
        change(&mut summaries[11].instants[0]);
        trend_of(summaries).unjudged.join("\n")
    };
    assert_eq!(with(|_| {}), "");
    assert!(with(|last| last.lost_allocations = 3).starts_with("3 allocations could not be recorded"));
    assert!(with(|last| last.bare = true).starts_with("some snapshots have no function names"));
    assert!(with(|last| last.objects_known = false).starts_with("some snapshots have no objects"));
    let pool = |owner| OpaquePool::new(owner, false, Tally::new(8 * MIB, 1));
    let mut summaries = minutes(&[100; 12]);
    summaries[11].instants[0].opaque_pools = vec![pool("CuPy"), pool("own pool")];
    let unjudged = trend_of(summaries).unjudged;
    assert!(
        unjudged.len() == 1 && unjudged[0].starts_with("8 MiB in CuPy's pool: "),
        "{unjudged:?}"
    );
}

/// Growth per snapshot, then a pause with one or two more: no bound was seen, however long the pause.
#[test]
fn a_pause_after_growth_does_not_show_a_bound() {
    let wrong = |absent: u64, floor: u64, growing: u64, idle: u64, pause: u64| {
        let grown = (1..=growing + idle).map(|nth| nth.min(growing));
        let grown = grown.map(|nth| ((floor + 8 * nth) * MIB, nth));
        let values: Vec<(u64, u64)> = std::iter::repeat_n((0, 0), absent as usize).chain(grown).collect();
        let paused = |nth: u64| pause * nth.saturating_sub(absent + growing);
        let times: Vec<u64> = (1..=absent + growing + idle)
            .map(|nth| (nth + paused(nth)) * SECOND)
            .collect();
        let trend = trend_of(summaries_of(&values, &times));
        let row = &trend.rows[0];
        let is_said = trend.unjudged.iter().any(|said| said.contains("may still grow"));
        let passes = !row.class.is_growth() && !is_said;
        passes.then(|| {
            format!(
                "{absent} + {growing} + {idle} from {floor}, {pause}: {} {:.3}",
                row.class.name(),
                row.confidence
            )
        })
    };
    let mut all = Vec::new();
    for absent in [0, 1, 2, 3, 5, 20] {
        for (floor, growing) in [0, 100, 1000]
            .into_iter()
            .flat_map(|floor| [7, 8, 10, 14, 20, 29].map(|growing| (floor, growing)))
        {
            for (idle, pause) in [(1, 0), (1, 5), (1, 1000), (2, 0), (2, 50), (2, 1000)] {
                all.extend(wrong(absent, floor, growing, idle, pause));
            }
        }
    }
    for growing in [5, 6] {
        all.extend(wrong(20, 0, growing, 2, 0));
    }
    assert_eq!(all, [""; 0]);
    // Four snapshots at its bound, and one after memory was freed, show an end.
    let cache: Vec<u64> = (0..20).map(|nth| 8 * nth.min(16)).collect();
    let freed: Vec<u64> = (0..20).map(|nth| 8 * (nth % 19)).collect();
    for values in [cache, freed] {
        let trend = trend_of(minutes(&values));
        assert_eq!(
            (trend.rows[0].class == Class::TooFew, &trend.unjudged[..]),
            (false, &[][..]),
            "{values:?}"
        );
    }
}

/// Rises at equal distances, between which nothing changes: the last of them is no bound, and nothing falls.
#[test]
fn growth_in_steps_passes_only_if_it_has_stayed_longer_than_between_them() {
    let passes = |values: &[u64]| {
        let trend = trend_of(minutes(values));
        let is_said = |said: &String| said.contains("may still grow");
        !trend.rows[0].class.is_growth() && !trend.unjudged.iter().any(is_said)
    };
    for (floor, every) in [0, 10, 100]
        .iter()
        .flat_map(|floor| [3, 4, 5, 7, 10, 14, 19].map(|every| (floor, every)))
    {
        for snapshots in 3 * every + 1..6 * every {
            let values: Vec<u64> = (0..snapshots).map(|nth| floor + 10 * (nth / every)).collect();
            assert!(!passes(&values), "{floor}, every {every}th of {snapshots}");
        }
    }
    let ever_later: Vec<u64> = (2..8).flat_map(|nth| vec![10 * nth; nth as usize]).collect();
    assert!(!passes(&ever_later));
    let stays: Vec<u64> = (0..40).map(|nth| 10 * (nth / 5).min(3)).collect();
    assert!(passes(&stays));
}

#[test]
fn growth_that_begins_late_or_only_slows_does_not_pass_and_what_ended_does() {
    let may_grow = |values: &[u64]| {
        let trend = trend_of(minutes(values));
        let is_said = trend.unjudged.iter().any(|said| said.contains("may still grow"));
        (
            trend.rows[0].class.is_growth() || is_said,
            trend.rows[0].sentence.clone(),
        )
    };
    let rises: Vec<u64> = (1..=6).map(|nth| 500 + 8 * nth).collect();
    let (grows, sentence) = may_grow(&[&[500; 30], &rises[..]].concat());
    assert!(grows, "{sentence}");
    assert!(
        sentence.ends_with(
            "has grown in 6 of 35 steps to 548 MiB; the snapshots since 30 m 0 s after it began are too few to judge"
        ),
        "{sentence}"
    );
    // A warm-up, then one MiB each minute.
    let slow: Vec<u64> = (0..40).map(|nth| 50 * nth.min(10) + nth).collect();
    let (grows, sentence) = may_grow(&slow);
    assert!(grows, "{sentence}");
    assert!(
        sentence.contains("has grown in 39 of 39 steps") && sentence.ends_with("are too few to judge"),
        "{sentence}"
    );
    // Few snapshots, most of them of a warm-up, and then a steady pace.
    for (steps, pace, rises) in [(3, 5, 10), (2, 10, 12), (13, 5, 9)] {
        let warm = (0..=steps).map(|nth| 500 * nth / steps);
        let values: Vec<u64> = warm.chain((1..=rises).map(|nth| 500 + pace * nth)).collect();
        let (grows, sentence) = may_grow(&values);
        assert!(grows, "{sentence}");
    }
    let wave: Vec<u64> = (0..40).map(|nth| 100 + 10 * (nth % 8)).collect();
    let warm: Vec<u64> = (0..40).map(|nth| 50 * nth.min(10)).collect();
    let slower: Vec<u64> = (0..40).map(|nth| 4000 - 4000 / (1 + nth * nth)).collect();
    let jump = [&[100; 30][..], &[200; 4]].concat();
    for values in [wave, warm, slower, jump] {
        let (grows, sentence) = may_grow(&values);
        assert!(!grows, "{sentence}");
    }
}
