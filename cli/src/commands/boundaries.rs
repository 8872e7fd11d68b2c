//! `culeak check --at mark:NAME --same-as-last` and `--not-above SIZE`: what a program holds at a mark that it sets again and
//! again.
//!
//! The state at a mark comes from the event log of a recording, or else from the automatic snapshots beside it that were taken
//! at marks of this name.

use clap::Args;
use culeak::analysis::boundaries::{self, Boundary, HeldAt, was_taken_at};
use culeak::analysis::check::{self, BySite, Limit, Measure, Outcome, Rules, Scope, Unseen, Verdict};
use culeak::analysis::filter::mark_time;
use culeak::point::Point;
use culeak::timeline::Timeline;

use super::check::has_ended;
use crate::errors::Failure;
use crate::load::{Loaded, NameArgs, Place, at};
use crate::options::rules::RuleArgs;
use crate::text::units;

/// Compare what is held at a mark that the program sets again and again
#[derive(Debug, Args)]
pub struct BoundaryArgs {
    /// Fail if a call site holds more at the last mark than at the previous mark of this name; with limits, if it is over them
    #[arg(long, requires = "at", group = "boundary", conflicts_with_all = ["update_baseline", "since"])]
    pub same_as_last: bool,
    /// Fail if more than SIZE was held at any mark of this name
    #[arg(
        long, value_name = "SIZE", requires = "at", group = "boundary", value_parser = units::parse_size,
        conflicts_with_all = ["update_baseline", "same_as_last", "since"]
    )]
    pub not_above: Option<u64>,
}

impl BoundaryArgs {
    /// # Errors
    /// There is a baseline too, maybe from the config file, or a limit of objects, or a second one of the total.
    pub fn suits(&self, args: &RuleArgs) -> Result<(), Failure> {
        let is_total = |limit: &Limit| (&limit.of, limit.measure) == (&Scope::All, Measure::Bytes);
        if self.not_above.is_some() && !args.defaults.set.contains("allow") && args.allow.iter().any(is_total) {
            return Err(Failure::new(
                "--not-above and a total in --allow exclude each other; leave out one of them",
            ));
        }
        let is_of_objects = |limit: &Limit| limit.measure == Measure::Objects;
        match (self.is_given(), &args.baseline) {
            (true, Some(path)) => Err(Failure::new(format!(
                "--baseline {}: a baseline holds the leaks of another run, but --same-as-last and --not-above compare marks of \
                 one run; leave out one of them, or pass --no-config if the config file names the baseline",
                path.display()
            ))),
            (true, None) if args.allow.iter().any(is_of_objects) => Err(Failure::new(
                "--allow OBJECT=N: objects are judged at one point, but --same-as-last and --not-above compare memory at several \
                 marks; judge objects in a check of their own, or pass --no-config if the config file limits them",
            )),
            _ => Ok(()),
        }
    }

    pub fn is_given(&self) -> bool {
        self.same_as_last || self.not_above.is_some()
    }

    /// Reads an input as it was at the mark.
    ///
    /// # Errors
    /// It cannot be read, has no such mark, no state of it is known, or call sites are estimates.
    pub fn load(&self, place: &Place, rules: &Rules, names: &NameArgs) -> Result<(Loaded, Rules), Failure> {
        let mark = mark(rules)?;
        let (mut item, timeline) = place.load_with_events()?;
        has_ended(&mut item, rules);
        // Rules match names, which all states share.
        names.name_frames(&mut item);
        let source = item.source.clone();
        if self.same_as_last && item.snapshot.sampling.is_some() {
            return Err(Failure::new(format!(
                "{source}: --same-as-last compares call sites, and the stacks were sampled, so a difference may be chance; record \
                 without --sample, or limit the whole with --not-above"
            )));
        }
        let mut rules = rules.clone();
        if let Some(most) = self.not_above {
            rules.limits.set(Limit::bytes(Scope::All, most));
        }
        let found = match (self.not_above, timeline) {
            (None, Some(timeline)) => same_as_last(&mut item, mark, &timeline, &rules),
            (None, None) => same_as_last_snapshot(&mut item, mark, &rules, names),
            (Some(_), timeline) => worst(&mut item, mark, timeline.as_ref(), &rules, names).map(|worst| (worst, None)),
        };
        let (boundary, previous) = found.map_err(|reason| format!("{source}: {reason}"))?;
        item.snapshot.taken.point = Some(Point::Mark(mark.to_owned()));
        rules.boundary = Some(boundary);
        rules.previous = previous;
        Ok((item, rules))
    }
}

/// The name of the mark.
fn mark(rules: &Rules) -> Result<&str, Failure> {
    match &rules.at {
        Some(Point::Mark(name)) => Ok(name),
        other => {
            let other = other.as_ref().map_or_else(String::new, ToString::to_string);
            Err(Failure::new(format!(
                "--at {other}: --same-as-last and --not-above compare marks that the program sets again and again; name one \
                 with --at mark:NAME"
            )))
        }
    }
}

/// A boundary, and what was held at the previous one if they are compared.
type Compared = (Boundary, Option<BySite>);

/// The program's state at the last mark, and what it held at the previous one.
fn same_as_last(item: &mut Loaded, mark: &str, timeline: &Timeline, rules: &Rules) -> Result<Compared, String> {
    let boundary = boundaries::last(&item.snapshot, mark)?;
    let previous = boundary.previous_ns.unwrap_or(0);
    if previous < timeline.since_ns {
        return Err(before_log(mark, previous, timeline));
    }
    let (mut before, mut at_mark) = (None, None);
    boundaries::states(
        &item.snapshot,
        timeline,
        &[previous, boundary.time_ns],
        |number, state| match number {
            0 => before = Some(check::judged_by_site(state, rules)),
            _ => at_mark = Some(state.clone()),
        },
    );
    item.snapshot = at_mark.ok_or_else(|| before_log(mark, previous, timeline))?;
    Ok((boundary, before))
}

/// Why the event log does not show this mark.
fn before_log(mark: &str, time_ns: u64, timeline: &Timeline) -> String {
    format!(
        "the mark {mark:?} was set {} after the start, before the event log begins ({}), because the log was full; {LARGER_LOG}",
        units::duration(time_ns),
        units::duration(timeline.since_ns)
    )
}

const LARGER_LOG: &str = "record with a larger --timeline=SIZE";

fn same_as_last_snapshot(item: &mut Loaded, mark: &str, rules: &Rules, names: &NameArgs) -> Result<Compared, String> {
    let known = boundaries::last(&item.snapshot, mark)?;
    let mut found: Vec<Loaded> = Vec::new();
    let unreadable = at_marks(item, mark, names, |at_mark| {
        found.push(at_mark);
        found.sort_by_key(|at_mark| at_mark.snapshot.taken.at_ns);
        // The last two are compared.
        if found.len() > 2 {
            found.remove(0);
        }
    });
    let last = found.pop().ok_or_else(|| no_state(item, mark, &unreadable))?;
    let boundary = boundaries::last(&last.snapshot, mark)?;
    let before = found.pop().ok_or_else(|| {
        format!(
            "what was held at the previous mark {mark:?} is not known: there is only one snapshot of this mark{}; name the \
             recording that it lies beside, or record again with culeak run --timeline",
            at::because(&item.snapshot, &unreadable)
        )
    })?;
    let previous_ns = boundaries::times(&before.snapshot, mark)?.last().copied();
    // The recording may know other marks, of which there is no snapshot.
    if (boundary.time_ns, previous_ns) < (known.time_ns, known.previous_ns) {
        let what = format!(
            "one of the last two marks {mark:?} has no snapshot{}; older ones are compared",
            at::because(&item.snapshot, &unreadable)
        );
        item.unseen.push(Unseen::part("--same-as-last", what, at::RECORD_MARKS));
    }
    let held = check::judged_by_site(&before.snapshot, rules);
    shows(item, last);
    let boundary = Boundary {
        count: known.count.max(boundary.count),
        previous_ns,
        ..boundary
    };
    Ok((boundary, Some(held)))
}

/// The mark with the worst verdict, whose state the input shows then.
fn worst(
    item: &mut Loaded,
    mark: &str,
    timeline: Option<&Timeline>,
    rules: &Rules,
    names: &NameArgs,
) -> Result<Boundary, String> {
    let mut times = boundaries::times(&item.snapshot, mark)?;
    let mut worst = Worst::default();
    let (missing, why, next) = match timeline {
        Some(timeline) => {
            boundaries::states(&item.snapshot, timeline, &times, |number, state| {
                if worst.add(number, times[number], &check::verdict(state, rules)) {
                    worst.state = Some(Loaded::of(state.clone(), item.source.clone()));
                }
            });
            let begins = units::duration(timeline.since_ns);
            let why = format!(
                "the others are older than the event log, which begins {begins} after the start, because it was full"
            );
            let last = times.last().copied().unwrap_or(0);
            (before_log(mark, last, timeline), why, LARGER_LOG)
        }
        None => {
            if item.snapshot.taken.automatic.is_some() {
                let (what, next) = (
                    "a snapshot shows one of the marks",
                    "name the recording that it lies beside",
                );
                item.unseen.push(Unseen::part("--not-above", what, next));
            }
            let unreadable = at_marks(item, mark, names, |at_mark| {
                // Its mark is the last that it knows; a process that still runs may have set it meanwhile.
                let Some(time_ns) = mark_time(&at_mark.snapshot, mark) else {
                    return;
                };
                let number = times.binary_search(&time_ns).unwrap_or_else(|number| {
                    times.insert(number, time_ns);
                    number
                });
                if worst.add(number, time_ns, &check::verdict(&at_mark.snapshot, rules)) {
                    worst.state = Some(at_mark);
                }
            });
            let because = at::because(&item.snapshot, &unreadable);
            let why = format!("the others have no snapshot{because}");
            (no_state(item, mark, &unreadable), why, at::RECORD_MARKS)
        }
    };
    let state = worst.state.take().ok_or(missing)?;
    let boundary = worst.boundary(item, mark, &times, &why, next);
    shows(item, state);
    Ok(boundary)
}

/// The mark with the worst verdict, of those whose state is known; of equal ones, that at which most was held.
#[derive(Default)]
struct Worst {
    held: Vec<HeldAt>,
    /// Its number, from 0 on, and how bad it is.
    at: Option<(usize, (Outcome, usize, u64))>,
    state: Option<Loaded>,
}

impl Worst {
    /// Whether this mark is worse than those before.
    fn add(&mut self, number: usize, time_ns: u64, verdict: &Verdict) -> bool {
        let tally = verdict.judged;
        self.held.push(HeldAt { time_ns, tally });
        let bad = (verdict.outcome, verdict.unseen.len(), tally.bytes);
        let is_worst = self.at.is_none_or(|(_, worst)| bad > worst);
        if is_worst {
            self.at = Some((number, bad));
        }
        is_worst
    }

    /// `times`: of all marks of the name. `why`, `next`: why not all of them are known, and what to do.
    fn boundary(mut self, item: &mut Loaded, mark: &str, times: &[u64], why: &str, next: &str) -> Boundary {
        self.held.sort_by_key(|held| held.time_ns);
        self.held.dedup_by_key(|held| held.time_ns);
        let (judged, count) = (self.held.len(), times.len());
        if judged < count {
            let of = units::plural(count as u64, "mark", "marks");
            let what = format!("{} of {of} {mark:?} can be judged: {why}", units::count(judged as u64));
            item.unseen.push(Unseen::part("--not-above", what, next));
        }
        let number = self.at.map_or(0, |(number, _)| number);
        Boundary {
            mark: mark.to_owned(),
            number: number + 1,
            count,
            time_ns: times.get(number).copied().unwrap_or(0),
            previous_ns: None,
            held: self.held,
        }
    }
}

/// The input shows the state of this snapshot.
fn shows(item: &mut Loaded, at_mark: Loaded) {
    *item = Loaded {
        unseen: std::mem::take(&mut item.unseen),
        ..at_mark
    };
}

fn no_state(item: &Loaded, mark: &str, unreadable: &[Failure]) -> String {
    let has = match item.snapshot.taken.automatic {
        Some(_) => "was not taken at this mark",
        None => "has no event log, and no automatic snapshot at this mark lies beside it",
    };
    format!(
        "what was held at the mark {mark:?} is not known: this file {has}{}; record again with culeak run --timeline, or with \
         --snapshot mark",
        at::because(&item.snapshot, unreadable)
    )
}

/// Visits the automatic snapshots at marks of this name that lie beside a recording; or the input itself, if it is one. Returns why
/// others cannot be read.
fn at_marks(item: &Loaded, mark: &str, names: &NameArgs, mut visit: impl FnMut(Loaded)) -> Vec<Failure> {
    if was_taken_at(&item.snapshot, mark) {
        visit(Loaded::of(item.snapshot.clone(), item.source.clone()).below(item.root.clone()));
        return Vec::new();
    }
    at::each_at_mark(&item.snapshot, mark, |mut at_mark| {
        names.name_frames(&mut at_mark);
        visit(at_mark);
    })
}
