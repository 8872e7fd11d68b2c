//! The memory of two processes over time on one axis, if both have an event log.
//!
//! The axis is the time of the second process. The first is stretched so that its marks lie at the marks of the same names, or, without
//! common marks, its outermost phases at theirs; without either, both begin together.

use std::collections::{BTreeMap, HashMap};

use culeak::analysis::lives::{self, Logged};
use culeak::analysis::over_time::{Classes, Detail, OverTime};
use culeak::analysis::report::place_name;
use culeak::analysis::site::CallStacks;
use culeak::analysis::words::{self, bytes};
use culeak::kind::Place;
use culeak::snapshot::Snapshot;

use crate::document::{Chart, ChartPoint, Document, Form};
use crate::names::Distinct;

/// Points of a curve; each is the most in its part of the time.
const POINTS: u64 = 400;
const DETAIL: Detail = Detail {
    boundaries: 2048,
    spans: usize::MAX,
};

/// A snapshot, and the events that it was read with.
pub type Side<'a> = (&'a Snapshot, Option<&'a Logged>);

/// By place, the begin, the end and the most bytes of each part of the time.
type Curves = BTreeMap<String, Vec<(u64, u64, u64)>>;

/// One chart for each device and for host memory; nothing if a side has no log, or both are of one process, which has one log.
pub fn write([before, after]: [Side; 2], page: &mut Document) {
    let ((old, Some(before)), (new, Some(after))) = (before, after) else {
        return;
    };
    let (what, anchors) = anchors(old, new);
    let moved = |(from, to, most)| (moved(from, &anchors), moved(to, &anchors), most);
    let mut of_before = curves(old, before);
    of_before.values_mut().flatten().for_each(|part| *part = moved(*part));
    let of_after = curves(new, after);
    let mut places: Vec<&String> = of_before.keys().chain(of_after.keys()).collect();
    places.sort();
    places.dedup();
    if !places.is_empty() {
        page.heading("Memory over time");
    }
    for place in places {
        let label = format!("{place}: before (dashed) and after, aligned {what}");
        let parts = |curves: &Curves| curves.get(place).cloned().unwrap_or_default();
        page.chart(chart(label, [&parts(&of_before), &parts(&of_after)]));
    }
}

fn chart(label: String, sides: [&Vec<(u64, u64, u64)>; 2]) -> Chart {
    let end = sides.iter().flat_map(|parts| parts.iter().map(|part| part.1)).max();
    let end = end.unwrap_or(0).max(1);
    let at = |nth: u64| (u128::from(end) * u128::from(nth) / u128::from(POINTS)) as u64;
    let mut points: [Vec<ChartPoint>; 2] = Default::default();
    for nth in 0..POINTS {
        let (from, to) = (at(nth), at(nth + 1));
        let most = sides.map(|parts| {
            let first = parts.partition_point(|part| part.1 <= from);
            let within = parts[first..].iter().take_while(|part| part.0 < to);
            within.map(|part| part.2).max()
        });
        let word = |value: Option<u64>| value.map_or_else(|| "nothing recorded".to_owned(), bytes);
        let name = format!(
            "{}: before {}, after {}",
            words::duration(from),
            word(most[0]),
            word(most[1])
        );
        for (part, value) in most.into_iter().enumerate() {
            points[part].extend(value.map(|value| ChartPoint {
                name: name.clone(),
                x: from as f64,
                value,
                part,
                stands_out: false,
            }));
        }
    }
    Chart {
        label,
        points: points.into_iter().flatten().collect(),
        form: Form::Curves,
        counts: false,
    }
}

fn curves(snapshot: &Snapshot, logged: &Logged) -> Curves {
    let stacks = CallStacks::of(snapshot);
    let lives = lives::of(snapshot, &logged.last, &logged.timeline, &stacks);
    let mut places = Distinct::default();
    let mut of_sites = Classes::default();
    for site in &lives.sites {
        let is_counted = !matches!(site.kind.place(), Place::Nowhere | Place::Object | Place::Segment);
        of_sites.classes.push([is_counted.then_some(0); 2]);
        let place = places.number(place_name(snapshot, site.kind, site.device));
        of_sites.places.push(place as u32);
    }
    let over_time = OverTime::of(&logged.timeline, &lives, &of_sites, &[], DETAIL);
    let boundaries = &over_time.boundaries;
    let held = over_time.curves.iter().filter(|curve| !curve.driver).map(|curve| {
        let parts = boundaries.windows(2).zip(&curve.high);
        let parts = parts.map(|(ends, &high)| (ends[0].time_ns, ends[1].time_ns, high));
        (places.items[curve.place as usize].clone(), parts.collect())
    });
    held.collect()
}

/// What both sides have in common, in words, and its times on both sides, which rise; the first are the starts.
fn anchors(before: &Snapshot, after: &Snapshot) -> (String, Vec<(u64, u64)>) {
    let marks = |snapshot: &Snapshot| {
        let marks = snapshot.marks.iter();
        numbered(marks.map(|mark| (mark.name.clone(), mark.time_ns)))
    };
    let phases = |snapshot: &Snapshot| {
        let outermost = snapshot.phases.iter().filter(|phase| phase.parent.is_none());
        numbered(outermost.map(|phase| (phase.name.clone(), phase.begin_ns)))
    };
    for (one, many, old, new) in [
        ("mark", "marks", marks(before), marks(after)),
        ("phase", "phases", phases(before), phases(after)),
    ] {
        let times: HashMap<_, _> = old.into_iter().collect();
        let mut anchors = vec![(0, 0)];
        let common = new.iter().filter_map(|(name, time)| Some((*times.get(name)?, *time)));
        for (old, new) in common {
            let last = anchors[anchors.len() - 1];
            if last.0 < old && last.1 < new {
                anchors.push((old, new));
            }
        }
        if anchors.len() > 1 {
            let count = words::plural(anchors.len() as u64 - 1, one, many);
            return (format!("at the start and at {count} of both"), anchors);
        }
    }
    ("at the start".to_owned(), vec![(0, 0)])
}

/// Names, each with how often it occurred before.
fn numbered(named: impl Iterator<Item = (String, u64)>) -> Vec<((String, usize), u64)> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let numbered = named.map(|(name, time)| {
        let number = seen.entry(name.clone()).or_default();
        *number += 1;
        ((name, *number), time)
    });
    numbered.collect()
}

/// A time of the first process as one of the second. Behind the last anchor both run equally fast.
fn moved(time: u64, anchors: &[(u64, u64)]) -> u64 {
    let next = anchors.partition_point(|anchor| anchor.0 <= time);
    let (from, to) = anchors[next.saturating_sub(1)];
    let beyond = time.saturating_sub(from);
    match anchors.get(next) {
        Some(next) => to + (u128::from(beyond) * u128::from(next.1 - to) / u128::from(next.0 - from)) as u64,
        None => to.saturating_add(beyond),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use culeak::snapshot::Mark;

    fn marked(marks: &[(&str, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let marks = marks.iter().map(|(name, time_ns)| Mark {
            time_ns: *time_ns,
            name: (*name).to_owned(),
            thread: 0,
        });
        snapshot.marks = marks.collect();
        snapshot
    }

    #[test]
    fn the_first_timeline_is_stretched_to_the_marks_of_the_second() {
        let before = marked(&[("step", 10), ("other", 15), ("step", 20)]);
        let after = marked(&[("step", 20), ("step", 60), ("step", 100)]);
        let (what, anchors) = anchors(&before, &after);
        assert_eq!(what, "at the start and at 2 marks of both");
        assert_eq!(anchors, [(0, 0), (10, 20), (20, 60)]);
        let times = [0, 5, 10, 15, 20, 27].map(|time| moved(time, &anchors));
        assert_eq!(times, [0, 10, 20, 40, 60, 67]);
        assert_eq!(super::anchors(&before, &marked(&[])).0, "at the start");
    }

    #[test]
    fn a_point_has_the_most_of_both_sides_and_a_side_ends_where_its_log_does() {
        let (short, long) = (vec![(0, 100, 7), (100, 200, 3)], vec![(0, 400, 5)]);
        let chart = chart("GPU 0".to_owned(), [&short, &long]);
        let of = |part| chart.points.iter().filter(move |point| point.part == part);
        assert_eq!((of(0).count(), of(1).count()), (200, 400));
        assert_eq!(
            (
                of(0).map(|point| point.value).max(),
                of(1).map(|point| point.value).min()
            ),
            (Some(7), Some(5))
        );
        let names: Vec<&str> = of(1).map(|point| point.name.as_str()).collect();
        assert!(
            names[150].ends_with("before 3 B, after 5 B") && names[300].ends_with("before nothing recorded, after 5 B")
        );
    }
}
