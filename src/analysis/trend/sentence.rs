//! A row as one sentence: how the site changes, how fast, on what evidence, and when the device is full.

use super::{Against, Class, Evidence, Measure, POINTS_NEEDED, Point, Row};
use crate::analysis::words::{bytes, duration, mean_of_kind, of_kind, plural};

const NS_PER_HOUR: f64 = 3_600e9;

pub(super) fn sentence(row: &Row, points: &[Point], against: Against) -> String {
    let who = subject(row);
    let evidence = match row.judged_by {
        Measure::Bytes => &row.bytes,
        Measure::Count => &row.count,
    };
    let steps = evidence.steps;
    let of_steps = format!("{} of {} steps", steps.up, steps.up + steps.down + steps.same);
    let since = evidence
        .since
        .map(|at| format!(" since {}", start(at, points, against)));
    let since = since.unwrap_or_default();
    let pace = pace(row, against);
    let shown = row.shown();
    let (least, most) = (row.amount(shown.least), row.amount(shown.most));
    let mut text = match row.class {
        Class::Growing => format!("{who} has grown in {of_steps} by {pace}{since} and has not slowed"),
        Class::FreedOnlyAtExit => {
            let left = evidence.at_end.unwrap_or_default();
            let freed = match row.judged_by {
                Measure::Bytes => bytes(evidence.last.saturating_sub(left)),
                Measure::Count if row.site.object.is_some() => row.amount(evidence.last.saturating_sub(left)),
                Measure::Count => plural(evidence.last.saturating_sub(left), "block", "blocks"),
            };
            format!("{who} grew in {of_steps} by {pace} while the program ran, and freed {freed} only at exit")
        }
        Class::Slowing if evidence.since.is_some() => {
            format!("{who} has grown in {of_steps} by {pace}, but has not slowed further{since}")
        }
        Class::Slowing => format!("{who} has grown in {of_steps} by {pace}, but more and more slowly"),
        Class::GrewThenBounded => {
            let (first, last) = (row.amount(shown.first), row.amount(shown.last));
            format!("{who} grew from {first} to {last} and has stayed there{since}")
        }
        Class::Periodic => {
            let every = evidence
                .period
                .map(|period| format!(", about every {}", against.span(period)));
            format!(
                "{who} rises and falls between {least} and {most}{}",
                every.unwrap_or_default()
            )
        }
        Class::Irregular => format!("{who} moves between {least} and {most} without a trend"),
        Class::Shrinking => format!(
            "{who} has shrunk in {} of {} steps, from {} to {}",
            steps.down,
            steps.up + steps.down + steps.same,
            row.amount(shown.first),
            row.amount(shown.last)
        ),
        Class::Steady if least == most => format!("{who} stays at {most}"),
        Class::Steady => format!("{who} stays between {least} and {most}"),
        Class::TooFew => {
            let all = steps.up + steps.down + steps.same + 1;
            let moved = match (steps.up, steps.down) {
                (0, 0) => format!("stays at {most}"),
                (0, _) => format!(
                    "has shrunk in {} of {} steps to {}",
                    steps.down,
                    all - 1,
                    row.amount(shown.last)
                ),
                _ => format!("has grown in {of_steps} to {}", row.amount(shown.last)),
            };
            let few = if all < POINTS_NEEDED {
                plural(all as u64, "snapshot is", "snapshots are")
            } else {
                "the snapshots since it appeared are".to_owned()
            };
            if evidence.since.is_some() {
                format!("{who} {moved}; the snapshots{since} are too few to judge")
            } else if against == Against::Marks && most_points_of_a_process(points) >= POINTS_NEEDED {
                format!("{who} {moved}; too few marks were set between the snapshots to judge")
            } else {
                format!("{who} {moved}; {few} too few to judge; at least {POINTS_NEEDED} are needed")
            }
        }
    };
    match shown.at_end {
        // The sentence says how much was freed.
        Some(0) if row.class == Class::FreedOnlyAtExit => {}
        Some(0) => text.push_str("; at exit it held nothing"),
        Some(left) => text.push_str(&format!("; at exit it held {}", row.amount(left))),
        None => {}
    }
    if let (Some(device), Some(after)) = (&row.device, row.full_after) {
        text.push_str(&format!("; at this pace {device} is full in {}", against.span(after)));
    }
    if row.class.is_growth() && row.judged > 1 {
        text.push_str(&format!("; the same in {} of {} processes", row.agreeing, row.judged));
    }
    text
}

fn most_points_of_a_process(points: &[Point]) -> usize {
    let processes = points.chunk_by(|a, b| a.process == b.process);
    processes.map(<[Point]>::len).max().unwrap_or(0)
}

impl Row {
    /// What the row is about: bytes, or the number of objects.
    pub fn shown(&self) -> &Evidence {
        match self.site.object {
            Some(_) => &self.count,
            None => &self.bytes,
        }
    }

    /// `96 MiB`, or `40 executable graphs`.
    pub fn amount(&self, of: u64) -> String {
        match self.site.object {
            Some(kind) => of_kind(of, kind),
            None => bytes(of),
        }
    }
}

/// `step train.py:212`.
fn subject(row: &Row) -> String {
    match &row.site.place {
        Some(place) => format!("{} {place}", row.site.label),
        None => row.site.label.clone(),
    }
}

/// `about 96 MiB an hour`, or blocks with their size if the blocks decided the class.
fn pace(row: &Row, against: Against) -> String {
    let unit = match against {
        Against::Time => "an hour",
        Against::Marks => "a mark",
        Against::Runs => "a run",
    };
    let size = |evidence: &Evidence| bytes(evidence.pace.max(0.0) as u64);
    match row.judged_by {
        Measure::Bytes => format!("about {} {unit}", size(&row.bytes)),
        Measure::Count => {
            let things = mean_of_kind(row.count.pace.max(0.0), row.site.object);
            match row.site.object {
                Some(_) => format!("about {things} {unit}"),
                None => format!("about {things} {unit} ({})", size(&row.bytes)),
            }
        }
    }
}

impl Against {
    /// A number of hours, marks or runs as text.
    pub fn span(self, units: f64) -> String {
        let whole = units.max(0.0).round() as u64;
        match self {
            Against::Time => roughly(units),
            Against::Marks => plural(whole, "mark", "marks"),
            Against::Runs => plural(whole, "run", "runs"),
        }
    }
}

/// Hours, rounded as an estimate deserves.
fn roughly(hours: f64) -> String {
    let days = hours / 24.0;
    match hours {
        _ if days >= 1000.0 => "years".to_owned(),
        _ if days >= 10.0 => format!("{} d", days.round()),
        _ if hours >= 10.0 => format!("{} h", hours.round()),
        _ if hours >= 1.0 => format!("{} h", (hours * 2.0).round() / 2.0),
        _ => duration((hours.max(0.0) * NS_PER_HOUR) as u64),
    }
}

/// The point at which growth began or ended.
fn start(at: usize, points: &[Point], against: Against) -> String {
    let point = &points[at];
    match (against, &point.mark) {
        (Against::Marks, Some(mark)) => format!("mark {mark:?}"),
        (Against::Runs, _) => format!("run {}", at + 1),
        _ => format!("{} after it began", duration(point.at_ns)),
    }
}
