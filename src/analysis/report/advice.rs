//! What a report advises: warnings that say what to do, and the next thing to type.

use super::*;
use crate::analysis::words::plural;
use crate::snapshot::BY_PYTORCH;

pub(super) fn warnings(snapshot: &Snapshot, totals: &Totals, groups: &Groups, filter: &Filter) -> Vec<String> {
    let losses = &snapshot.losses;
    let mut warnings: Vec<String> = began_late(losses).into_iter().collect();
    let mut warn = |count: u64, text: &dyn Fn(&str) -> String| {
        if count > 0 {
            warnings.push(text(if count == 1 { "" } else { "s" }));
        }
    };
    warn(losses.lost_allocations, &|s| {
        format!(
            "{} allocation{s} could not be recorded, so the totals are too low; free disk space or set CULEAK_OUTPUT to \
             another disk",
            losses.lost_allocations
        )
    });
    warn(losses.lost_stacks, &|s| {
        format!(
            "{} allocation{s} recorded without a stack; free disk space in the recording's folder",
            losses.lost_stacks
        )
    });
    warn(losses.lost_python, &|s| {
        format!(
            "{} stack{s} with lines of Python missing, which could not be read or kept",
            losses.lost_python
        )
    });
    warn(
        sum(snapshot.allocators.iter().map(|allocator| allocator.mismatches)),
        &|_| {
            "a framework's allocator counts other bytes than were recorded of it, so its tensors may be incomplete; please \
         report it with the framework's version"
            .to_owned()
        },
    );
    warn(losses.vanished, &|s| {
        format!(
            "{} address{} handed out again without a free that was seen; something frees memory by a way not watched",
            losses.vanished,
            if s.is_empty() { " was" } else { "es were" }
        )
    });
    warn(losses.failed_frees, &|s| {
        format!(
            "{} free{s} failed by the driver; look for double frees and wrong pointers",
            losses.failed_frees
        )
    });
    warn(losses.captured_not_launched, &|s| {
        format!(
            "{} allocation{s} captured into graphs that were never launched hold no memory",
            losses.captured_not_launched
        )
    });
    if !losses.unhooked.is_empty() {
        warnings.push(format!(
            "the program was given {} that culeak does not watch: {}; please report it",
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
            "{} happened during the read; the rows are those that were live throughout",
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
        warnings.push(format!("no lines of Python {} in the stacks: {reason}", python.version));
    }
    if let Some(name) = filter.since.as_deref()
        && mark_time(snapshot, name).is_none()
    {
        warnings.push(format!(
            "the program set no mark {name:?}, so --since leaves nothing out; culeak report --json lists its marks"
        ));
    }
    match snapshot.process.state {
        ProcessState::Ended if totals.held.total().count > 0 => warnings.extend(ended_early(snapshot)),
        _ if snapshot.taken.by == BY_PYTORCH => warnings.push(
            "this is what PyTorch's allocator tells of itself: memory of other libraries, the peak and what was freed are \
             not in it"
                .to_owned(),
        ),
        ProcessState::Unknown => warnings.push(format!(
            "recorded on host {} or in a container there, so whether the process is still running is not known here",
            snapshot.process.host
        )),
        _ => {}
    }
    if let Some(depth) = truncated(snapshot, groups) {
        warnings.push(format!(
            "some stacks were cut at {depth} frames; record with --depth to keep more"
        ));
    }
    warnings
}

/// That the program allocated memory before it was recorded, or by a way that is not watched.
pub fn began_late(losses: &Losses) -> Option<String> {
    let frees = losses.unknown_frees.saturating_add(losses.unknown_blocks);
    (frees > 0).then(|| {
        format!(
            "not all of the program was recorded: {frees} free{} of memory that was allocated before the recording began \
             or by a way that is not watched; start the program with `culeak run` to see it",
            if frees == 1 { " was" } else { "s were" }
        )
    })
}

/// That a process which was killed had no chance to free anything.
pub fn ended_early(snapshot: &Snapshot) -> Option<String> {
    (snapshot.process.state == ProcessState::Ended).then(|| {
        "the process ended without its exit handlers (signal, _exit or exec), so this is what it held at that moment"
            .to_owned()
    })
}

/// The depth limit, when a live record's stack hit it.
fn truncated(snapshot: &Snapshot, groups: &Groups) -> Option<u32> {
    let depth = snapshot.process.depth;
    let hit = |stack: usize| {
        let stack = &snapshot.stacks[stack];
        stack.truncated && stack.frames.len() as u64 >= u64::from(depth)
    };
    let mut stacks = groups.all.iter().filter_map(|group| group.stack);
    stacks.any(hit).then_some(depth)
}

pub(super) fn next(snapshot: &Snapshot, totals: &Totals, rows: &[Row], source: &str) -> String {
    let pid = snapshot.process.number();
    let is_snapshot = source.ends_with(".json");
    let source = shell_word(source);
    if snapshot.taken.automatic.is_some() {
        return format!("culeak report {source} --by stack");
    }
    if snapshot.process.state == ProcessState::Running {
        return if is_snapshot {
            format!("culeak diff {source} {pid}")
        } else {
            format!("culeak snapshot {pid} -o before.json; some time later: culeak diff before.json {pid}")
        };
    }
    if totals.held.total().count == 0 {
        return format!("culeak check {source}");
    }
    if rows.iter().any(|row| row.stacks_in_all > 1) {
        return format!("culeak report {source} --by stack");
    }
    format!("culeak check {source}")
}

/// A name as it can be pasted into a shell.
pub fn shell_word(source: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=@%,".contains(c);
    if !source.is_empty() && source.chars().all(plain) {
        source.to_owned()
    } else {
        format!("'{}'", source.replace('\'', r"'\''"))
    }
}
