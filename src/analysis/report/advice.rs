//! Warnings with advice, and the command to run next.

use super::totals::sum;
use super::{By, Options, Row, Totals};
use crate::analysis::groups::Groups;
use crate::analysis::objects::Objects;
use crate::analysis::opaque::{OpaquePool, recording_command};
use crate::analysis::whatif::{ignored_settings, without_limit};
use crate::analysis::words::{count, plural, quoted, shell_word};
use crate::point::Point;
use crate::snapshot::{EndOf, Losses, ProcessState, Snapshot};
use crate::tally::Tally;

/// What the recording lacks, and settings that had no effect.
pub fn losses(snapshot: &Snapshot) -> Vec<String> {
    let losses = &snapshot.losses;
    let mut warnings: Vec<String> = began_late(losses).into_iter().collect();
    let mut warn = |number: u64, text: &str| {
        if number > 0 {
            let plural = if number == 1 { "" } else { "s" };
            warnings.push(text.replace("{n}", &count(number)).replace("{s}", plural));
        }
    };
    warn(
        losses.lost_allocations,
        "{n} allocation{s} could not be recorded, so the totals are too low; free disk space, raise the program's limits \
         (ulimit -f, -d, -v), or set CULEAK_OUTPUT to a path on another disk",
    );
    warn(
        losses.lost_stacks,
        "{n} allocation{s} recorded without a stack; free disk space in the folder of the recording, or raise the program's \
         limits (ulimit -f, -d, -v)",
    );
    warn(
        losses.lost_python,
        "{n} stack{s} recorded without some or all Python lines, which could not be read or stored",
    );
    warn(
        sum(snapshot.allocators.iter().map(|allocator| allocator.mismatches)),
        "a framework's allocator reported other totals than were recorded, so its tensors may be incomplete; please report a \
         bug and name the framework's version",
    );
    warn(
        losses.vanished,
        "{n} allocation{s} returned an address that was not freed before; the program frees memory with a function that \
         culeak does not hook",
    );
    warn(
        losses.failed_frees,
        "{n} free{s} failed in the driver; look for double frees and wrong pointers",
    );
    warn(
        losses.captured_not_launched,
        "{n} allocation{s} captured into graphs that were never launched; they hold no memory",
    );
    if !losses.unhooked.is_empty() {
        warnings.push(format!(
            "the program looked up {} that culeak does not hook: {}; their memory is not recorded; please report a bug",
            if losses.unhooked.len() == 1 {
                "an allocating function"
            } else {
                "allocating functions"
            },
            losses.unhooked.join(", ")
        ));
    }
    if snapshot.taken.events_during_read > 0 {
        warnings.push(format!(
            "{} happened while the recording was read; the report includes only memory that was live the whole time",
            plural(
                snapshot.taken.events_during_read,
                "allocation or free",
                "allocations and frees"
            )
        ));
    }
    if let Some(python) = &snapshot.process.python
        && let Some(reason) = &python.no_frames
    {
        warnings.push(format!(
            "the stacks contain no lines of Python {}: {reason}",
            python.version
        ));
    }
    warnings.extend(ignored_settings(snapshot).chain(without_limit(snapshot)));
    warnings
}

pub(super) fn warnings(snapshot: &Snapshot, totals: &Totals, groups: &Groups) -> Vec<String> {
    let mut warnings = losses(snapshot);
    match snapshot.process.state {
        ProcessState::Ended if totals.held.total().count > 0 => warnings.extend(ended_early(snapshot)),
        _ if snapshot.taken.is_by_pytorch() => warnings.push(
            "this snapshot shows PyTorch's allocator only: it lacks the memory of other libraries, the peak, and freed memory"
                .to_owned(),
        ),
        ProcessState::Unknown => warnings.push(format!(
            "recorded on host {} or in a container there, so it is unknown whether the process still runs",
            snapshot.process.host
        )),
        _ => {}
    }
    if let Some(depth) = truncated(snapshot, groups) {
        warnings.push(format!(
            "some stacks were cut off at {depth} frames; record with a larger --depth"
        ));
    }
    warnings
}

/// Warns that the program allocated memory before the recording began, or with functions that are not hooked.
pub fn began_late(losses: &Losses) -> Option<String> {
    let frees = losses.unknown_frees.saturating_add(losses.unknown_blocks);
    (frees > 0).then(|| {
        format!(
            "{frees} free{} for memory whose allocation was not recorded: it was made before the recording began, or with a \
             function that culeak does not hook; start the program with `culeak run` to record everything",
            if frees == 1 { " was" } else { "s were" }
        )
    })
}

/// Warns that the process ended without exit handlers, so it had no chance to free memory.
pub fn ended_early(snapshot: &Snapshot) -> Option<String> {
    let is_last = matches!(snapshot.taken.point, None | Some(Point::Exit | Point::End)) && snapshot.end.is_none();
    (snapshot.process.state == ProcessState::Ended && is_last).then(|| {
        "the process ended without running exit handlers (signal, _exit or exec), so this is what it held then, not what it \
         leaked"
            .to_owned()
    })
}

/// The depth limit, if the stack of a live record reached it.
fn truncated(snapshot: &Snapshot, groups: &Groups) -> Option<u32> {
    let depth = snapshot.process.depth;
    let hit = |stack: usize| {
        let stack = &snapshot.stacks[stack];
        stack.truncated && stack.frames.len() as u64 >= u64::from(depth)
    };
    let mut stacks = groups.all.iter().filter_map(|group| group.stack);
    stacks.any(hit).then_some(depth)
}

/// The option with which a report shows this point or window again.
pub(super) fn at(snapshot: &Snapshot) -> String {
    let taken = &snapshot.taken;
    let default = match snapshot.end {
        Some(end) if end.of == EndOf::Script => Point::End,
        _ => Point::Exit,
    };
    match (taken.after_ns, &taken.point) {
        (Some(from), _) => format!(" --between {} {}", Point::Time(from), Point::Time(taken.at_ns)),
        (None, Some(point)) if *point != default => format!(" --at {}", quoted(&point.to_string())),
        _ => String::new(),
    }
}

pub(super) fn next(
    snapshot: &Snapshot,
    totals: &Totals,
    pools: &[OpaquePool],
    rows: &[Row],
    objects: &Objects,
    options: &Options,
) -> String {
    let pid = snapshot.process.number();
    let source = shell_word(&options.source);
    let at = at(snapshot);
    let selected = at.clone() + &options.filter.options();
    if snapshot.taken.after_ns.is_some() {
        return format!("culeak report {source} --view churn{selected}");
    }
    let by_stack = format!("culeak report {source}{selected} --by stack");
    match options.filter.is_empty() {
        false if rows.is_empty() || options.by == By::Stack => return format!("culeak report {source}{at}"),
        true if snapshot.taken.automatic.is_none() => {}
        _ => return by_stack,
    }
    // Most of what there is to know is not in the recording.
    let unknown = Tally::total(pools.iter().map(|pool| pool.tally));
    if unknown.bytes > totals.held.total().bytes
        && let Some(command) = recording_command(pools, &snapshot.process.command_line)
    {
        return command;
    }
    let has_several = totals.held.total().count > 0 && rows.iter().any(|row| row.stacks_in_all > 1);
    let shows_script_end = snapshot.end.is_some_and(|end| end.of == EndOf::Script);
    match &snapshot.taken.point {
        None | Some(Point::Exit) => {}
        // A report shows the end of a script by default.
        Some(Point::End) if has_several && shows_script_end => return by_stack,
        Some(Point::End) => return format!("culeak check {source} --at end"),
        Some(_) => return by_stack,
    }
    if snapshot.process.state == ProcessState::Running {
        return match (options.is_of_snapshot, options.left.as_deref()) {
            (true, None) => format!("culeak diff {source} {pid}"),
            (true, Some("")) => by_stack,
            (true, Some(recording)) => format!("culeak diff {source} {}", shell_word(recording)),
            (false, _) => {
                format!("culeak snapshot {pid} -o before.json; some time later: culeak diff before.json {pid}")
            }
        };
    }
    if has_several {
        return by_stack;
    }
    // A program that leaks no memory may leak objects.
    let leaves_objects = objects.rows.iter().any(|row| row.library.is_none());
    if totals.held.total().count == 0 && leaves_objects {
        return format!("culeak report {source}{selected} --view objects");
    }
    format!("culeak check {source}{selected}")
}
