//! From snapshots to rows: each call site has a value at each point, and its series are judged per process.

use std::collections::HashMap;
use std::ops::Range;

use super::judge::{Class, POINTS_NEEDED, Steps, judge};
use super::sentence::sentence;
use super::unjudged::{in_no_site, unjudged};
use super::{
    Against, Classes, DeviceTrend, Evidence, FORMAT, Measure, Options, Point, ProcessSpan, Row, Series, Trend, VERSION,
};
use crate::analysis::estimate::sampled;
use crate::analysis::facts::{self, Facts, Instant, SiteId};
use crate::tally::Tally;

const NS_PER_HOUR: f64 = 3_600e9;

/// A call site and its values so far.
struct Collected {
    site: SiteId,
    device: Option<u32>,
    series: Series,
    is_estimate: bool,
}

/// The points of one process, and the point at its end, if there is one.
struct Segment {
    running: Range<usize>,
    at_end: Option<usize>,
}

impl Trend {
    /// Judges one lineage.
    pub fn of(facts: &Facts, options: &Options) -> Trend {
        let instants = &facts.instants;
        let processes = processes(instants);
        let are_runs = processes.len() > 1 && processes.iter().all(|process| process.points == 1);
        let against = if are_runs { Against::Runs } else { options.against };
        let points = points(facts, against);
        let segments = segments(&points, against);
        let devices = devices(instants);
        let is_sampled = instants.iter().any(|instant| instant.sampling.is_some());
        let sum_grows = is_sampled && sum_grows(&points, &segments, against);
        let rows: Vec<Row> = collect(facts)
            .into_iter()
            .map(|collected| row(facts, collected, &segments, &points, against, &devices))
            .collect();
        let mut classes = Classes::default();
        for row in &rows {
            classes.add(row.class);
        }
        let devices = devices.into_iter().map(|device| device.with_pace_of(&rows)).collect();
        let order = |a: &Row, b: &Row| {
            (a.class.cmp(&b.class))
                .then_with(|| a.site.is_of_library().cmp(&b.site.is_of_library()))
                .then_with(|| b.score.total_cmp(&a.score))
                .then_with(|| b.bytes.most.cmp(&a.bytes.most))
                .then_with(|| a.site.label.cmp(&b.site.label))
                .then_with(|| a.site.fingerprint.cmp(&b.site.fingerprint))
        };
        let moves = |series: &[u64]| series.windows(2).any(|pair| pair[0] != pair[1]);
        let wanted = |row: &Row| {
            row.bytes.most >= options.min_bytes
                && (options.all || moves(&row.series.bytes) || moves(&row.series.counts))
        };
        let too_few = |segment: &&Segment| compared(segment, &points, against).len() < POINTS_NEEDED;
        let short_processes = segments.iter().filter(too_few).count();
        let mut trend = Trend {
            format: FORMAT,
            version: VERSION,
            program: instants
                .last()
                .map_or_else(Default::default, |instant| instant.member.program.clone()),
            against,
            points_needed: POINTS_NEEDED,
            too_few: segments.iter().all(|segment| segment.running.len() < POINTS_NEEDED),
            no_marks: against == Against::Marks && segments.iter().all(|segment| passes_no_mark(segment, &points)),
            too_few_marks: against == Against::Marks && short_processes == segments.len(),
            short_processes,
            unjudged: Vec::new(),
            hidden_rows: 0,
            warnings: warnings(instants, &points, against),
            opaque_pools: (instants.iter().rev())
                .find(|instant| !instant.at_end)
                .or(instants.last())
                .map_or_else(Vec::new, |instant| instant.opaque_pools.clone()),
            processes,
            points,
            rows,
            growing: classes.growing(),
            classes,
            devices,
        };
        trend.unjudged = unjudged(&trend, instants, sum_grows);
        trend.hidden_rows = facts::rank(&mut trend.rows, order, wanted, options.top);
        trend
    }
}

/// Whether all points of a running process lie between the same two marks, so growth cannot be measured against marks.
fn passes_no_mark(segment: &Segment, points: &[Point]) -> bool {
    let points = &points[segment.running.clone()];
    points.windows(2).all(|pair| pair[0].marks == pair[1].marks)
}

/// The points of a running process that are compared: all; against marks, the first after each mark. Later ones, such as
/// those taken while the program idles at its end, show a program that has passed no further mark, not one that has
/// stopped growing.
fn compared(segment: &Segment, points: &[Point], against: Against) -> Vec<usize> {
    let is_first = |at: &usize| {
        against != Against::Marks || *at == segment.running.start || points[*at].marks != points[at - 1].marks
    };
    segment.running.clone().filter(is_first).collect()
}

fn processes(instants: &[Instant]) -> Vec<ProcessSpan> {
    let groups = instants.chunk_by(|a, b| a.process == b.process);
    let span = |group: &[Instant]| ProcessSpan {
        process: group[0].process.clone(),
        member: group[0].member.clone(),
        finished: group.iter().any(|summary| summary.at_end),
        points: group.len(),
    };
    groups.map(span).collect()
}

fn points(facts: &Facts, against: Against) -> Vec<Point> {
    let (instants, held) = (&facts.instants, facts.held());
    let mut process = 0;
    let mut points: Vec<Point> = Vec::with_capacity(instants.len());
    for (nth, instant) in instants.iter().enumerate() {
        process += usize::from(nth > 0 && instant.process != instants[nth - 1].process);
        let since_first = instant.time_unix_ns().saturating_sub(instants[0].time_unix_ns());
        points.push(Point {
            source: instant.source.clone(),
            process,
            at_unix_ns: instant.time_unix_ns(),
            at_ns: instant.at_ns,
            x: match against {
                Against::Time => since_first as f64 / NS_PER_HOUR,
                Against::Marks => instant.marks as f64,
                Against::Runs => nth as f64,
            },
            marks: instant.marks,
            mark: instant.mark.clone(),
            at_end: instant.at_end,
            is_complete: instant.is_complete,
            held: held[nth],
        });
    }
    points
}

/// One segment for each process; against runs, one for all.
fn segments(points: &[Point], against: Against) -> Vec<Segment> {
    if against == Against::Runs {
        return vec![Segment {
            running: 0..points.len(),
            at_end: None,
        }];
    }
    let mut end = 0;
    let of_process = |group: &[Point]| {
        let start = end;
        end += group.len();
        let at_end = group.last().filter(|last| last.at_end).map(|_| end - 1);
        Segment {
            running: start..at_end.unwrap_or(end),
            at_end,
        }
    };
    points.chunk_by(|a, b| a.process == b.process).map(of_process).collect()
}

/// All sites in order of appearance, with a value for each point.
fn collect(facts: &Facts) -> Vec<Collected> {
    let mut all: Vec<Collected> = Vec::new();
    let mut known: HashMap<SiteId, usize> = HashMap::new();
    // A snapshot without objects would show that all of them were destroyed.
    let objects_known = facts.instants.iter().all(|instant| instant.objects_known);
    for (at, rows) in facts.by_point() {
        let rows = rows.iter();
        let rows: Vec<&facts::Row> = rows.filter(|row| objects_known || !facts.is_of_objects(row)).collect();
        if at > 0 && facts.instants[at].process != facts.instants[at - 1].process {
            // Lines may have moved between two runs; later snapshots of this run have these lines.
            let before: Vec<SiteId> = all.iter().map(|collected| collected.site).collect();
            let after: Vec<SiteId> = rows.iter().map(|row| row.site).collect();
            let moved = facts::pair(&before, &after, true, |site| facts.sites.key(site));
            let moved: Vec<(SiteId, usize)> = (moved.into_iter())
                .filter_map(|(before, after)| Some((after, known.remove(&before)?)))
                .collect();
            for (after, index) in moved {
                all[index].site = after;
                known.insert(after, index);
            }
        }
        for row in rows {
            let index = *known.entry(row.site).or_insert_with(|| {
                all.push(Collected {
                    site: row.site,
                    device: None,
                    series: Series::default(),
                    is_estimate: false,
                });
                all.len() - 1
            });
            let collected = &mut all[index];
            collected.is_estimate |= row.scatter > 0.0;
            collected.device = row.device.or(collected.device);
            for (series, value) in [
                (&mut collected.series.bytes, row.tally.bytes),
                (&mut collected.series.counts, row.tally.count),
            ] {
                series.resize(at + 1, 0);
                series[at] += value;
            }
        }
    }
    for collected in &mut all {
        collected.series.bytes.resize(facts.instants.len(), 0);
        collected.series.counts.resize(facts.instants.len(), 0);
    }
    all
}

fn row(
    facts: &Facts,
    collected: Collected,
    segments: &[Segment],
    points: &[Point],
    against: Against,
    devices: &[DeviceTrend],
) -> Row {
    let (site, series) = (facts.sites.text(collected.site).clone(), collected.series);
    let device = collected.device.map(|device| facts.devices[device as usize].clone());
    let bytes = of_all_processes(&series.bytes, segments, points, against);
    let count = of_all_processes(&series.counts, segments, points, against);
    // If blocks have many sizes, their number may show growth that the bytes hide.
    let hidden = count.evidence.class.is_growth() && !bytes.evidence.class.is_growth() && bytes.evidence.pace > 0.0;
    let (judged_by, chosen) = match hidden || site.object.is_some() {
        true => (Measure::Count, &count),
        false => (Measure::Bytes, &bytes),
    };
    let (class, confidence) = (chosen.evidence.class, chosen.evidence.confidence);
    let (agreeing, judged) = (chosen.agreeing, chosen.judged);
    let rises_late = bytes.rises_late || count.rises_late;
    let shown = if site.object.is_some() { &count } else { &bytes };
    let gained = shown.evidence.last.abs_diff(shown.evidence.first);
    let full_after = device
        .as_ref()
        .filter(|_| class.is_growth())
        .and_then(|label| devices.iter().find(|device| device.label == *label))
        .and_then(|device| device.after(bytes.evidence.pace));
    let mut row = Row {
        class,
        judged_by,
        confidence,
        score: confidence * gained as f64,
        agreeing,
        judged,
        bytes: bytes.evidence,
        count: count.evidence,
        device,
        full_after,
        is_estimate: collected.is_estimate,
        rises_late,
        sentence: String::new(),
        series,
        site,
    };
    row.sentence = sentence(&row, points, against);
    row
}

struct Judged {
    evidence: Evidence,
    agreeing: usize,
    judged: usize,
    /// See [`Row::rises_late`].
    rises_late: bool,
}

/// Whether the memory of a process grows, call sites aside.
fn sum_grows(points: &[Point], segments: &[Segment], against: Against) -> bool {
    [|held: &Tally| held.bytes, |held: &Tally| held.count]
        .iter()
        .any(|value| {
            let series: Vec<u64> = points.iter().map(|point| value(&point.held)).collect();
            let judged = of_all_processes(&series, segments, points, against);
            judged.evidence.class.is_growth() || judged.rises_late
        })
}

/// Judges one series in each process. The result is that of a process in which it grows, else of any; of those, of the one with most
/// points; among several, of the last.
fn of_all_processes(series: &[u64], segments: &[Segment], points: &[Point], against: Against) -> Judged {
    let of_segment = |segment: &Segment| {
        let evidence = of_one_process(series, segment, points, against);
        (segment.running.len(), evidence)
    };
    let each: Vec<(usize, Evidence)> = segments.iter().map(of_segment).collect();
    let judged = each.iter().filter(|(length, _)| *length >= POINTS_NEEDED);
    let rises_late = judged.clone().any(|(_, evidence)| {
        let Steps { up, down, same } = evidence.steps;
        let has_points = up + down + same + 1 >= POINTS_NEEDED;
        let rises = up > 1 && down == 0 || evidence.since.is_some();
        match evidence.class {
            Class::TooFew => has_points && rises,
            Class::Slowing => evidence.since.is_some(),
            _ => false,
        }
    });
    let classes: Vec<Class> = judged.map(|(_, evidence)| evidence.class).collect();
    let rank = |of: &(usize, Evidence)| (of.0 >= POINTS_NEEDED && of.1.class.is_growth(), of.0);
    let shown = each.into_iter().max_by_key(rank);
    let (_, evidence) = shown.expect("summaries have at least one process");
    Judged {
        agreeing: classes.iter().filter(|&&class| class == evidence.class).count(),
        judged: classes.len(),
        rises_late,
        evidence,
    }
}

fn of_one_process(series: &[u64], segment: &Segment, points: &[Point], against: Against) -> Evidence {
    let mut at_end = segment.at_end.map(|at| series[at]);
    let compared = compared(segment, points, against);
    let xs: Vec<f64> = compared.iter().map(|&at| points[at].x).collect();
    let mut values: Vec<u64> = compared.iter().map(|&at| series[at]).collect();
    let judge_first = |count: usize| {
        let ys: Vec<f64> = values[..count].iter().map(|&value| value as f64).collect();
        judge(&xs[..count], &ys)
    };
    let mut judgement = judge_first(values.len());
    if let (Against::Marks, None, &[.., before, last]) = (against, at_end, values.as_slice())
        && last <= before / 2
    {
        // The program may have set the last mark at its end, after it freed its memory.
        let without = judge_first(values.len() - 1);
        if without.class == Class::Growing {
            (judgement, at_end) = (without, Some(last));
            values.pop();
        }
    }
    if against == Against::Marks && passes_no_mark(segment, points) {
        judgement.class = Class::TooFew;
    }
    judgement.since = judgement.since.map(|at| compared[at]);
    let last = values.last().copied().unwrap_or_default();
    if judgement.class == Class::Growing && at_end.is_some_and(|left| left <= last / 2) {
        judgement.class = Class::FreedOnlyAtExit;
    }
    Evidence {
        judgement,
        first: values.first().copied().unwrap_or_default(),
        last,
        least: values.iter().copied().min().unwrap_or_default(),
        most: values.iter().copied().max().unwrap_or_default(),
        at_end,
    }
}

impl Class {
    pub fn is_growth(self) -> bool {
        matches!(self, Class::Growing | Class::FreedOnlyAtExit)
    }
}

/// All devices, each with the last figures of the driver.
fn devices(instants: &[Instant]) -> Vec<DeviceTrend> {
    let mut devices: Vec<DeviceTrend> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for device in instants.iter().flat_map(|instant| &instant.usage) {
        let index = *known.entry(&device.label).or_insert_with(|| {
            devices.push(DeviceTrend {
                label: device.label.clone(),
                name: device.name.clone(),
                ..DeviceTrend::default()
            });
            devices.len() - 1
        });
        if let Some((total, used)) = device.total_and_used {
            (devices[index].total_bytes, devices[index].used_bytes) = (Some(total), Some(used));
        }
    }
    devices.sort_by(|a, b| (a.label.len(), &a.label).cmp(&(b.label.len(), &b.label)));
    devices
}

impl DeviceTrend {
    fn after(&self, pace: f64) -> Option<f64> {
        let free = self.total_bytes?.saturating_sub(self.used_bytes?);
        (pace > 0.0).then(|| free as f64 / pace)
    }

    fn with_pace_of(self, rows: &[Row]) -> DeviceTrend {
        let pace_of = |class: Class| {
            let of_class = |row: &&Row| row.class == class && row.device.as_ref() == Some(&self.label);
            let paces = rows.iter().filter(of_class).map(|row| row.bytes.pace);
            // The sum of no floating-point numbers is -0.0.
            paces.fold(0.0, |sum, pace| sum + pace)
        };
        let (pace, pace_until_exit) = (pace_of(Class::Growing), pace_of(Class::FreedOnlyAtExit));
        DeviceTrend {
            pace,
            pace_until_exit,
            full_after: self.after(pace + pace_until_exit),
            ..self
        }
    }
}

fn warnings(instants: &[Instant], points: &[Point], against: Against) -> Vec<String> {
    let mut warnings = Vec::new();
    let sampling = instants.iter().filter_map(|instant| instant.sampling);
    if let Some(sampling) = sampling.max_by_key(|sampling| sampling.most()) {
        warnings.push(sampled("of some or all snapshots", sampling));
    }
    if against == Against::Marks && points.iter().all(|point| point.marks == 0) {
        warnings.push("the program set no marks (culeak_mark), so growth cannot be measured against them; leave out --against marks".to_owned());
    }
    warnings.extend(in_no_site(instants));
    warnings
}
