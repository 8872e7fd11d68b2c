//! What a rule speaks of and what was not seen of it.
//!
//! A verdict passes only if everything that its rules speak of was seen and judged. Each rule adds what it lacks: what applies to
//! the whole recording here, limits and the baseline in compare.rs, objects, classes and outliers in the files of these names. Whoever reads an input adds what is missing beside it ([`Verdict::lacks`](super::Verdict::lacks)). Deliberately absent: what no recording
//! can show, such as the memory of a function without a hook; that is a warning.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Rules;
use super::limits::Besides;
use crate::analysis::filter::{mark_time, no_mark};
use crate::analysis::job::member::{Member, ranges};
use crate::analysis::report::is_finished;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::{Lack, Sieve};
use crate::analysis::words::{bytes, plural};
use crate::point::Point;
use crate::snapshot::{ProcessState, READABLE, Snapshot};

/// Something that a rule speaks of and that was not seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Unseen {
    /// The option; empty: every rule.
    pub rule: String,
    /// What was not seen, and why.
    pub what: String,
    /// What to do, so that it is seen.
    pub next: String,
    /// The rest can be judged, which `--allow-losses` accepts.
    pub acceptable: bool,
    /// It lies beside the inputs, so it is about none of several processes that are judged.
    #[serde(skip)]
    pub beside: bool,
}

impl Unseen {
    /// A part of what the rule speaks of.
    pub fn part(rule: impl Into<String>, what: impl Into<String>, next: impl Into<String>) -> Unseen {
        Unseen {
            rule: rule.into(),
            what: what.into(),
            next: next.into(),
            acceptable: true,
            beside: false,
        }
    }

    /// The same, of what lies beside the inputs.
    #[must_use]
    pub fn beside(self) -> Unseen {
        Unseen { beside: true, ..self }
    }

    /// All that the rule speaks of, so that there is nothing to judge.
    pub fn all(rule: impl Into<String>, what: impl Into<String>, next: impl Into<String>) -> Unseen {
        Unseen {
            acceptable: false,
            ..Unseen::part(rule, what, next)
        }
    }

    /// `cannot be judged by --allow site=SIZE: …; record without --sample, or accept it with --allow-losses`.
    pub fn sentence(&self) -> String {
        let by = match self.rule.is_empty() {
            true => String::new(),
            false => format!(" by {}", self.rule),
        };
        let accept = match self.acceptable {
            true => ", or accept it with --allow-losses",
            false => "",
        };
        format!("cannot be judged{by}: {}; {}{accept}", self.what, self.next)
    }
}

/// What to do if stacks were cut off.
pub(super) const LARGER_DEPTH: &str = "record with a larger --depth";
/// What to do if frames have no names.
pub(super) const NAME_FRAMES: &str =
    "check with the programs that ran (--debug-dir names their folder), and record Python frames too";

/// What suppressions exclude although the stacks do not show that they match, if it could break a limit.
pub(super) fn of_suppressions(
    snapshot: &Snapshot,
    sieve: &Sieve,
    stacks: &CallStacks,
    rules: &Rules,
    besides: &Besides,
) -> Vec<Unseen> {
    let python = snapshot.process.python.as_ref();
    let has_python = python.is_none_or(|python| python.no_frames.is_none());
    let judges_objects = rules.limits.of_objects().next().is_some() || rules.compares_objects();
    let doubts = sieve.doubts(stacks, has_python).into_iter();
    let doubts = doubts.filter_map(|doubt| {
        let memory = Some(doubt.tally).filter(|tally| rules.could_be_broken_by(*tally, besides, |_| true));
        let memory =
            memory.map(|tally| format!("{} in {}", bytes(tally.bytes), plural(tally.count, "block", "blocks")));
        let objects = Some(doubt.objects).filter(|&count| count > 0 && judges_objects);
        let objects = objects.map(|count| plural(count, "object", "objects"));
        let excluded: Vec<String> = memory.into_iter().chain(objects).collect();
        let (why, next) = match doubt.lack {
            Lack::Callers => ("their stacks were cut off", LARGER_DEPTH),
            Lack::Names => ("frames of their stacks have no names", NAME_FRAMES),
            Lack::Python => ("their stacks lack the frames of Python", NAME_FRAMES),
        };
        let excluded = excluded.join(" and ");
        let (is_excluded, rule) = (!excluded.is_empty(), doubt.rule);
        let what = match doubt.keep {
            Some(keep) => format!("{rule} excludes {excluded}, which {keep} above it may exempt: {why}"),
            None => format!("{rule} excludes {excluded}, which another call site may have requested: {why}"),
        };
        is_excluded.then(|| Unseen::part("", what, format!("{next}, or leave the rule out")))
    });
    doubts.collect()
}

/// What a recording lacks whose process still runs, unless the user chose a point in time.
pub fn of_running_process() -> Unseen {
    Unseen::part(
        "",
        "the process still runs, so what it leaves is not known",
        "wait for its end, or judge what it holds now with --at exit",
    )
}

/// Ranks of jobs of which no process is judged, each with the number of the process whose verdict lacks them.
pub fn missing_ranks(processes: &[Member]) -> Vec<(usize, Unseen)> {
    missing(processes, |process| Some(("rank", process.rank?, process.world)))
}

/// As [`missing_ranks`], of one node's processes: its own ranks, or all ranks of a job that has one node.
pub fn missing_ranks_here(processes: &[Member]) -> Vec<(usize, Unseen)> {
    missing(processes, |process| match process.local_world {
        Some(_) if process.local_rank.is_some() => Some(("local rank", process.local_rank?, process.local_world)),
        _ => Some((
            "rank",
            process.rank.filter(|_| process.node.is_none())?,
            Some(process.world?),
        )),
    })
}

/// `rank`: what a rank is called, the rank, and the number of them.
fn missing<'p>(
    processes: &'p [Member],
    rank: impl Fn(&'p Member) -> Option<(&'static str, u32, Option<u32>)>,
) -> Vec<(usize, Unseen)> {
    /// More ranks than any job has are a mistake.
    const RANKS_MOST: u32 = 1_000_000;
    const RANGES: usize = 8;
    let mut ranks: BTreeMap<_, Vec<(usize, u32)>> = BTreeMap::new();
    for (number, process) in processes.iter().enumerate() {
        if let Some((noun, rank, world)) = rank(process) {
            let world = world.filter(|world| *world <= RANKS_MOST);
            let node = process.node.filter(|_| noun != "rank");
            let job = (process.job.as_deref(), process.restart, node, noun, world);
            ranks.entry(job).or_default().push((number, rank));
        }
    }
    let mut jobs: BTreeMap<_, (usize, BTreeSet<u32>)> = BTreeMap::new();
    let mut programs: BTreeMap<_, Vec<(u32, &Member)>> = BTreeMap::new();
    for (job, members) in ranks {
        // A process may have set a variable for itself after its recording began, as Lightning's first rank does.
        let have_it = |variable: &&str| {
            members
                .iter()
                .all(|(number, _)| processes[*number].launch.contains_key(*variable))
        };
        let variables: Vec<&str> = processes[members[0].0].launch.keys().copied().filter(have_it).collect();
        for (number, rank) in members {
            let process = &processes[number];
            let launch: Vec<&str> = variables.iter().map(|variable| &*process.launch[variable]).collect();
            jobs.entry((job, launch.clone()))
                .or_insert((number, BTreeSet::new()))
                .1
                .insert(rank);
            programs
                .entry(((job, launch), &process.program))
                .or_default()
                .push((rank, process));
        }
    }
    let next = "name all recordings of the job; culeak doctor --job says why some are missing";
    let subject = |noun: &str, missing: &[u32], world: Option<u32>| {
        let (s, have) = match missing.len() {
            1 => ("", "has no recording"),
            _ => ("s", "have no recordings"),
        };
        let of: String = world.iter().map(|world| format!(" of {world}")).collect();
        format!("{noun}{s} {}{of} {have}", ranges(missing, RANGES))
    };
    let mut lacking = Vec::new();
    for (((_, _, _, noun, world), _), (number, present)) in &jobs {
        // Without a number of ranks, those after the last one are not noticed.
        let ranks = world
            .or(present.last().copied().filter(|last| *last < RANKS_MOST))
            .unwrap_or(0);
        let missing: Vec<u32> = (0..ranks).filter(|rank| !present.contains(rank)).collect();
        if !missing.is_empty() {
            let what = format!("{} here", subject(noun, &missing, *world));
            lacking.push((*number, Unseen::part("", what, next)));
        }
    }
    for ((job, program), members) in programs {
        let (_, _, _, noun, world) = job.0;
        let launches = launches_by_time(members);
        let all: BTreeSet<u32> = launches.iter().flatten().copied().collect();
        let share_ranks = launches.iter().map(BTreeSet::len).sum::<usize>() > all.len();
        // Launches without a number of ranks may have had different ones.
        let are_several = share_ranks && world.is_some();
        let mut partial = launches
            .iter()
            .map(|launch| all.difference(launch).copied().collect::<Vec<u32>>());
        if let Some(missing) = partial.find(|missing| are_several && !missing.is_empty()) {
            let count = launches.len();
            let what = subject(noun, &missing, world);
            let what = format!("{what} of one of the {count} launches of {program} here");
            lacking.push((jobs[&job].0, Unseen::part("", what, next)));
        }
    }
    lacking
}

/// Ranks of one launch run at the same time. The clocks of several hosts may differ.
fn launches_by_time(mut members: Vec<(u32, &Member)>) -> Vec<BTreeSet<u32>> {
    const CLOCKS_DIFFER_NS: u64 = 60_000_000_000;
    let are_of_several_hosts = members.iter().any(|(_, member)| member.host != members[0].1.host);
    let between = if are_of_several_hosts { CLOCKS_DIFFER_NS } else { 0 };
    members.sort_by_key(|(_, member)| member.started_unix_ns);
    let (mut launches, mut ended): (Vec<BTreeSet<u32>>, u64) = (Vec::new(), 0);
    for (rank, member) in members {
        if launches.is_empty() || member.started_unix_ns > ended.saturating_add(between) {
            launches.push(BTreeSet::new());
        }
        launches.last_mut().expect("one at least").insert(rank);
        ended = ended.max(member.started_unix_ns.saturating_add(member.lasted_ns));
    }
    launches
}

/// Against every loss of records.
pub(super) const ROOM: &str = "free disk space for the recording, or raise the program's limits (ulimit -f, -d, -v)";

/// What the recording lacks for these rules.
pub(super) fn of_recording(snapshot: &Snapshot, rules: &Rules) -> Vec<Unseen> {
    let mut unseen = Vec::new();
    let losses = &snapshot.losses;
    if losses.lost_allocations > 0 {
        let lost = plural(losses.lost_allocations, "allocation", "allocations");
        unseen.push(Unseen::part("", format!("{lost} could not be recorded"), ROOM));
    }
    if snapshot.taken.is_of_unrecorded() {
        unseen.push(Unseen::all(
            "",
            format!("the process was not recorded, so only the live blocks of the allocators of {READABLE} are known"),
            "start the program with `culeak run`",
        ));
    }
    unseen.extend(without_rows(snapshot));
    if rules.at == Some(Point::Peak) && rules.limits.since.is_some() {
        unseen.push(Unseen::all(
            "--since",
            "the peak is known by call site and not by block, so what of it was allocated after the mark is unknown",
            "judge another point (--at), or the whole peak",
        ));
    }
    let ended = match rules.at {
        Some(Point::Exit) => true,
        _ => snapshot.taken.point == Some(Point::End) && snapshot.end.is_some(),
    };
    if snapshot.process.state == ProcessState::Unknown && !ended {
        unseen.push(Unseen::part(
            "",
            format!(
                "it was recorded on host {} or in a container there, so it is unknown whether the process has ended",
                snapshot.process.host
            ),
            "judge it there, or judge its last known state with --at exit",
        ));
    }
    if is_of_log(snapshot) && losses.lost_events > 0 {
        let lost = plural(losses.lost_events, "event", "events");
        unseen.push(Unseen::part(
            "--at",
            format!("the event log lacks {lost}, so what was held at that point is not known exactly"),
            ROOM,
        ));
    }
    unseen.extend(lost_marks(snapshot, rules));
    unseen.extend(
        rules
            .limits
            .since
            .as_deref()
            .and_then(|name| without_mark(snapshot, name)),
    );
    unseen
}

/// Memory that the counters have and the rows of a process that has ended lack.
fn without_rows(snapshot: &Snapshot) -> Option<Unseen> {
    if !is_finished(snapshot) {
        return None;
    }
    let counted = snapshot.counters.iter().map(|counter| {
        let left = counter.total_count.saturating_sub(counter.freed_count);
        left.max(counter.live_count)
    });
    let counted = counted.fold(0u64, u64::saturating_add);
    let missing = counted.saturating_sub(snapshot.allocations.len() as u64);
    let blocks = plural(missing, "block", "blocks");
    match missing {
        0 => None,
        _ if missing <= snapshot.taken.in_flight => Some(Unseen::part(
            "",
            format!("the process ended while it freed {blocks}, and whether the driver did so is unknown"),
            "let the program end by itself",
        )),
        _ => Some(Unseen::part(
            "",
            format!("the recording counts {blocks} more than it has, so it is damaged or was cut"),
            "record again, or check an undamaged copy",
        )),
    }
}

/// Whether the rows follow from the event log.
fn is_of_log(snapshot: &Snapshot) -> bool {
    let is_moment = matches!(snapshot.taken.point, Some(Point::Mark(_) | Point::Time(_)));
    is_moment && snapshot.taken.automatic.is_none()
}

/// Marks that were lost may have the name of which a rule speaks.
fn lost_marks(snapshot: &Snapshot, rules: &Rules) -> Option<Unseen> {
    let rule = match (&rules.limits.since, &rules.at) {
        (Some(_), _) => "--since",
        (None, Some(Point::Mark(_))) => "--at",
        _ => return None,
    };
    let lost = snapshot.losses.lost_marks;
    (lost > 0).then(|| {
        Unseen::part(
            rule,
            format!(
                "{} could not be recorded, and may have this name",
                plural(lost, "mark", "marks")
            ),
            "set at most 1,048,576 marks, and free disk space for the recording",
        )
    })
}

/// The program set no mark of the name that `--since` gives.
fn without_mark(snapshot: &Snapshot, name: &str) -> Option<Unseen> {
    let (what, next) = no_mark(snapshot, name);
    mark_time(snapshot, name)
        .is_none()
        .then(|| Unseen::all("--since", what, next))
}

/// Why what was allocated since the mark of `--since` is not known.
pub fn unknown_since(snapshot: &Snapshot, rules: &Rules) -> Option<Unseen> {
    let name = rules.limits.since.as_deref()?;
    let lost = || lost_marks(snapshot, rules).filter(|_| !rules.limits.allow_losses);
    without_mark(snapshot, name).or_else(lost)
}
