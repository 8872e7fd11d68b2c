//! What snapshots do not show of the growth of a program, in sentences `what; what to do`. `--fail-on growing` passes only without.

use super::judge::Class;
use super::{Row, Trend};
use crate::analysis::words::plural;
use crate::facts::Instant;

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

/// All that was not judged, except for processes with too few snapshots.
pub(super) fn unjudged(trend: &Trend, instants: &[Instant]) -> Vec<String> {
    let mut unjudged = in_no_site(instants);
    let knows_objects = |instant: &Instant| instant.objects_known;
    if instants.iter().any(knows_objects) && !instants.iter().all(knows_objects) {
        unjudged.push("some snapshots have no objects, so their growth was not judged; take them again".to_owned());
    }
    let pools = trend.opaque_pools.iter().filter(|pool| pool.remedy.is_some());
    unjudged.extend(pools.map(|pool| pool.sentence(None)));
    let mut late = trend.rows.iter().filter(|row| rises_since_late(row));
    if let Some(first) = late.next() {
        let count = late.count() as u64 + 1;
        let name = [Some(&first.site.label), first.site.place.as_ref()];
        let name: Vec<&str> = name.into_iter().flatten().map(String::as_str).collect();
        unjudged.push(format!(
            "{} appeared too late to judge, and held most in the last snapshot ({}); take snapshots for longer",
            plural(count, "call site", "call sites"),
            name.join(" ")
        ));
    }
    unjudged
}

/// It has risen more than once, the first time when it appeared, and never fallen, and has too few snapshots.
fn rises_since_late(row: &Row) -> bool {
    row.class == Class::TooFew
        && row.judged > 0
        && [&row.bytes, &row.count]
            .iter()
            .any(|evidence| evidence.steps.up > 1 && evidence.steps.down == 0)
}
