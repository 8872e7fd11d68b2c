//! `--kind segment`: what the kernel driver gave to the process, in the place of the blocks that lie in it.
//!
//! Every form of a report then shows segments as it shows memory, with the driver's exported function as the one that the
//! program called. Other memory lies in segments, so no report adds up both.

use culeak::analysis::ledger;
use culeak::kind::{Kind, Place};
use culeak::point::Point;

use super::names::NameArgs;
use super::{Loaded, at};
use crate::errors::Failure;

fn is_segment(kind: &Kind) -> bool {
    kind.place() == Place::Segment
}

/// Whether these kinds are those of the kernel driver's side.
///
/// # Errors
/// They are of both sides.
pub fn are_wanted(kinds: &[Kind]) -> Result<bool, Failure> {
    let segments = kinds.iter().filter(|kind| is_segment(kind)).count();
    if segments > 0 && segments < kinds.len() {
        return Err(Failure::new(
            "--kind segment, host-segment and channel are what the kernel driver gave, in which all other memory lies; name them \
             without other kinds",
        ));
    }
    Ok(segments > 0)
}

/// As [`at::show`], with the segments in the place of the memory.
///
/// # Errors
/// See [`at::show`]; or the input has no segments of that point.
pub fn show(item: &mut Loaded, point: Option<&Point>, names: &NameArgs) -> Result<(), Failure> {
    swap(item);
    at::show(item, point, names)?;
    // A mark or a time is in another file.
    swap(item);
    if item.snapshot.allocations.is_empty() && item.snapshot.counters.is_empty() {
        let when = if item.snapshot.taken.point.is_some() {
            " of this point"
        } else {
            ""
        };
        return Err(Failure::new(format!(
            "{}: has no record of memory from the kernel driver (segments){when}; record again with this version of culeak, on \
             NVIDIA's driver, or choose another point with --at",
            item.source
        )));
    }
    ledger::name_segments(&mut item.snapshot);
    Ok(())
}

fn swap(item: &mut Loaded) {
    let calls = item.snapshot.allocations.calls().iter();
    let counters = item.snapshot.counters.iter().map(|counter| counter.kind);
    let is_done = calls
        .map(|call| call.kind)
        .chain(counters)
        .all(|kind| is_segment(&kind));
    if !is_done || !item.snapshot.segments.is_empty() || !item.snapshot.object_counters.is_empty() {
        item.snapshot = std::mem::take(&mut item.snapshot).into_segments();
        item.timeline = None;
    }
}
