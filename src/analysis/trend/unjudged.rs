//! What snapshots do not show of the growth of a program, in sentences `what; what to do`. `--fail-on growing` passes only without.

use super::{Against, Trend};
use crate::analysis::facts::Instant;
use crate::analysis::words::{bytes, plural};

/// Memory that is in no call site, or in one that differs between snapshots of the same line.
pub(super) fn in_no_site(instants: &[Instant]) -> Vec<String> {
    let mut unseen = Vec::new();
    let lost = instants.iter().map(|instant| instant.lost_allocations).max();
    if let Some(lost) = lost.filter(|lost| *lost > 0) {
        let lost = plural(lost, "allocation", "allocations");
        unseen.push(format!(
            "{lost} could not be recorded, so call sites may have grown more than shown; free disk space for the recording"
        ));
    }
    let has_names = |instant: &Instant| !instant.bare;
    if instants.iter().any(has_names) && !instants.iter().all(has_names) {
        unseen.push(
            "some snapshots have no function names, so their call sites do not match those of the others; take them again on the \
             machine that has the binaries"
                .to_owned(),
        );
    }
    unseen
}

/// What sampled stacks do not show of call sites. `sum_grows`: the memory of a process does.
fn in_sampled_sites(trend: &Trend, instants: &[Instant], sum_grows: bool) -> Option<String> {
    const NEXT: &str = "record with a smaller --sample and a larger --stack-rate, or without --sample";
    let distance = instants
        .iter()
        .filter_map(|instant| instant.sampling)
        .map(|sampling| sampling.most());
    let (distance, held) = (
        distance.max()?,
        trend.points.iter().map(|point| point.held.bytes).max()?,
    );
    if distance > held {
        return Some(format!(
            "stacks were sampled, at times one for each {}, which is more than the {} that a process held at most, so a call site may grow \
             unseen; {NEXT}",
            bytes(distance),
            bytes(held)
        ));
    }
    (sum_grows && trend.growing == 0)
        .then(|| format!("what a process holds grows, but no call site does, because stacks were sampled; {NEXT}"))
}

/// Marks and snapshots that the recordings lack.
fn lost(trend: &Trend, instants: &[Instant]) -> Vec<String> {
    let most = |of: fn(&Instant) -> u64| instants.iter().map(of).max().filter(|lost| *lost > 0);
    let marks = most(|instant| instant.lost_marks).filter(|_| trend.against == Against::Marks);
    let marks = marks.map(|lost| {
        format!(
            "{} could not be recorded, so growth after them was not judged; leave out --against marks",
            plural(lost, "mark", "marks")
        )
    });
    let is_automatic = instants.iter().any(|instant| instant.is_automatic);
    let snapshots = most(|instant| instant.lost_snapshots).filter(|_| is_automatic);
    let snapshots = snapshots.map(|lost| {
        format!(
            "{} not written, so growth at these times was not judged; free disk space for them, and take at most 1,000",
            plural(lost, "automatic snapshot was", "automatic snapshots were")
        )
    });
    marks.into_iter().chain(snapshots).collect()
}

/// All that was not judged, except for processes with too few snapshots. `sum_grows`: the memory of a process does.
pub(super) fn unjudged(trend: &Trend, instants: &[Instant], sum_grows: bool) -> Vec<String> {
    let mut unjudged = in_no_site(instants);
    unjudged.extend(lost(trend, instants));
    unjudged.extend(in_sampled_sites(trend, instants, sum_grows));
    let knows_objects = |instant: &Instant| instant.objects_known;
    if instants.iter().any(knows_objects) && !instants.iter().all(knows_objects) {
        unjudged.push("some snapshots have no objects, so their growth was not judged; take them again".to_owned());
    }
    let pools = trend.opaque_pools.iter().filter(|pool| pool.remedy.is_some());
    unjudged.extend(pools.map(|pool| pool.sentence(None)));
    let mut late = trend.rows.iter().filter(|row| row.rises_late);
    if let Some(first) = late.next() {
        let count = late.count() as u64 + 1;
        let name = [Some(&first.site.label), first.site.place.as_ref()];
        let name: Vec<&str> = name.into_iter().flatten().map(String::as_str).collect();
        unjudged.push(format!(
            "{} may still grow, but too few snapshots show it ({}); take snapshots for longer",
            plural(count, "call site", "call sites"),
            name.join(" ")
        ));
    }
    unjudged
}
