//! A window of time as a snapshot: what was allocated in it and is alive at its end, with everything allocated in it as totals.
//!
//! So every format of stacks can show a window.

use std::collections::HashMap;

use culeak::point::Point;
use culeak::snapshot::{Snapshot, Total};
use culeak::timeline::{Op, Timeline};

use crate::load::timeline::time_of;

/// The window between two points, without the first instant and with the last. `snapshot`: the final state.
///
/// # Errors
/// The points are not in the log or in the wrong order; the message says what to do.
pub fn of(snapshot: &Snapshot, timeline: &Timeline, [from, to]: [&Point; 2]) -> Result<Snapshot, String> {
    let [from_ns, to_ns] = [time_of(snapshot, timeline, from)?, time_of(snapshot, timeline, to)?];
    let left = timeline.left_by(snapshot, from_ns, to_ns);
    let mut window = left.map_err(|unknown| unknown.to_string())?;
    let mut made: HashMap<u32, (u64, u64)> = HashMap::new();
    let events = timeline.memory.between(from_ns, to_ns);
    for event in events.filter(|event| event.op == Op::Allocated) {
        let (bytes, count) = made.entry(event.site).or_default();
        (*bytes, *count) = (bytes.saturating_add(event.bytes), *count + 1);
    }
    let total = |(site, (bytes, count)): (u32, (u64, u64))| {
        let site = &timeline.memory.sites[site as usize];
        Total {
            stack: site.stack,
            kind: site.kind,
            device: site.device,
            bytes,
            count,
        }
    };
    window.totals = made.into_iter().map(total).collect();
    window
        .totals
        .sort_by_key(|total| (std::cmp::Reverse(total.bytes), total.stack, total.kind));
    Ok(window)
}
