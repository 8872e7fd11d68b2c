//! What changed between two snapshots, row by row, as in Python's tracemalloc.
//!
//! Rows match by module and function, and by line between the sites of one function (see `pairing`), but not by
//! address. The two snapshots may show one process at two times, two runs of one program, or the same program on two
//! machines. Deliberately absent: a verdict on whether a change is bad.

use serde::Serialize;

use crate::analysis::callers::{self, Share};
use crate::analysis::estimate::{Errors, sampled};
use crate::analysis::filter::{Filter, only_objects};
use crate::analysis::groups::Groups;
use crate::analysis::libraries::{self, LibraryChange};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::pairing::{Key, pair, pair_across};
use crate::analysis::program::Program;
use crate::analysis::report::{By, CALLERS_KEPT, Cut, ProcessLine, Row, RowsOfKinds, Sort, process_line};
use crate::analysis::site::{CallStack, CallStacks, Fingerprint, Frame};
use crate::analysis::words::plural;
use crate::point::Point;
use crate::snapshot::{Allocator, Capture, Losses, Snapshot, is_default};
use crate::tally::{Change, Tally};

mod host;
mod objects;

pub use host::{HostChange, HostChanges};
pub use objects::ObjectChanges;

/// The value of [`Diff::format`].
pub const FORMAT: &str = "culeak-diff";
pub const VERSION: u32 = 2;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// [`By::Stack`], [`By::Site`], or [`By::Forward`], with which objects are compared by call site.
    pub by: By,
    /// By call site in place of `by` if libraries have other versions: stacks lead through these, call sites are what both sides have.
    pub sites_across_libraries: bool,
    pub sort: Sort,
    pub top: Option<usize>,
    /// Rows that changed by fewer bytes are cut off.
    pub min_bytes: u64,
    /// Include unchanged rows.
    pub all: bool,
    /// Other memory is left out.
    pub filter: Filter,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Diff<'a> {
    pub format: &'static str,
    pub version: u32,
    pub before: Side<'a>,
    pub after: Side<'a>,
    /// What the records of a row have in common.
    pub by: By,
    /// Both show the same process, so a difference is growth.
    pub same_process: bool,
    /// The libraries that both have, in different versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<LibraryChange>,
    /// The compared kinds of memory; all if empty.
    pub kinds: Vec<&'static str>,
    /// The other conditions of what is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// All of these are kinds of objects without an address, so no memory is compared.
    #[serde(skip)]
    pub only_objects: bool,
    /// Time between the two snapshots, if both show the same process and the first is not the later one. Peaks have no time:
    /// each device has its own.
    pub elapsed_ns: Option<u64>,
    /// The program's own memory before memory of CUDA libraries and pools; in each part growth first, then by change.
    pub rows: Vec<DiffRow<'a>>,
    pub hidden_rows: usize,
    /// `hidden_rows` by option.
    #[serde(skip)]
    pub cut: Cut,
    pub totals: Totals,
    /// Pools of the later snapshot whose blocks were not recorded: what changed in them is unknown.
    pub opaque_pools: Vec<OpaquePool>,
    /// Objects without an address; `None`: not known on both sides.
    pub objects: Option<ObjectChanges<'a>>,
    /// Host memory; absent: it was not asked for on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostChanges>,
    pub warnings: Vec<String>,
}

/// One of the two snapshots.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Side<'a> {
    pub process: ProcessLine<'a>,
    pub taken_unix_ns: u64,
    /// The point in time that the rows describe, if it is not when the snapshot was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub point: Option<&'a Point>,
    pub held: Tally,
    pub losses: &'a Losses,
    #[serde(skip)]
    pub taken: &'a Capture,
    #[serde(skip)]
    pub allocators: &'a [Allocator],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    New,
    Grown,
    Shrunk,
    Gone,
    /// The same bytes and count.
    Unchanged,
}

impl State {
    /// Of a row that is on both sides.
    pub fn between(before: Tally, after: Tally) -> State {
        match after.cmp(&before) {
            std::cmp::Ordering::Less => State::Shrunk,
            std::cmp::Ordering::Equal => State::Unchanged,
            std::cmp::Ordering::Greater => State::Grown,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiffRow<'a> {
    pub state: State,
    pub label: String,
    pub before: Tally,
    pub after: Tally,
    pub bytes_delta: i128,
    pub count_delta: i128,
    /// How many records of either side hold no memory.
    #[serde(skip)]
    pub claims: [u64; 2],
    /// The row is from sampled stacks: the standard errors of the two differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<Errors>,
    /// Kinds of the records on either side.
    pub kinds: Vec<&'static str>,
    pub pool: bool,
    /// The nearest callers at which the stacks of a call site part, on both sides together, the largest change first; at most
    /// [`CALLERS_KEPT`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<CallerChange<'a>>,
    /// Number of all these callers.
    #[serde(skip_serializing_if = "is_default")]
    pub callers_in_all: usize,
    /// From the later snapshot, if the row is in both.
    pub stack: CallStack<'a>,
    /// What the row is: a call site, a stack, or a forward line, which its label names.
    #[serde(skip)]
    pub by: By,
}

/// What changed through one caller of a call site.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CallerChange<'a> {
    #[serde(flatten)]
    pub change: Change,
    /// `None`: the stacks that end where the others have a caller.
    pub caller: Option<Frame<'a>>,
}

impl<'a> DiffRow<'a> {
    /// Both sides without their claims, unless the row has nothing else.
    pub fn blocks(&self) -> [Tally; 2] {
        let has_blocks = self.claims != [self.before.count, self.after.count];
        let without =
            |side: Tally, claims: u64| Tally::new(side.bytes, side.count - if has_blocks { claims } else { 0 });
        [
            without(self.before, self.claims[0]),
            without(self.after, self.claims[1]),
        ]
    }

    /// The call site, unless the label names the whole row.
    pub fn site(&self) -> Option<&Frame<'a>> {
        self.stack.site().filter(|_| self.by != By::Forward)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Totals {
    pub before: Tally,
    pub after: Tally,
    pub bytes_delta: i128,
    pub count_delta: i128,
    /// The standard errors of the two differences, if one side is an estimate: a peak with sampled stacks. Other totals are exact,
    /// so rows from sampled stacks need not add up to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<Errors>,
    pub new: usize,
    pub grown: usize,
    pub shrunk: usize,
    pub gone: usize,
    pub unchanged: usize,
}

impl<'a> Diff<'a> {
    pub fn of(before: &'a Snapshot, after: &'a Snapshot, options: &Options) -> Diff<'a> {
        let same_process = same_process(before, after);
        let libraries = libraries::changes(before, after);
        let moved = match same_process {
            true => Moved::Nothing,
            false if libraries.is_empty() => Moved::Lines,
            false => Moved::Libraries,
        };
        let by = match moved {
            Moved::Libraries if options.sites_across_libraries => By::Site,
            _ => options.by,
        };
        let options = &Options { by, ..options.clone() };
        let stacks = [CallStacks::of(before), CallStacks::of(after)];
        let side_rows = |side, stacks| RowsOfKinds::of(side, stacks, &options.filter, options.by);
        let (old, new) = (side_rows(before, &stacks[0]), side_rows(after, &stacks[1]));
        let bare = [(before, &old.groups), (after, &new.groups)].map(|(side, groups)| (side, is_bare(side, groups)));
        let opaque_pools = new.opaque_pools;
        let mut rows = compared((old.rows, new.rows), &stacks, options.by, moved);
        let totals = totals(&rows, [old.total, new.total]);
        let change = |row: &DiffRow| match options.sort {
            Sort::Count => (row.count_delta.abs(), row.bytes_delta.abs(), row.after.bytes),
            Sort::Bytes | Sort::Age => (row.bytes_delta.abs(), row.count_delta.abs(), row.after.bytes),
        };
        let grows = |row: &DiffRow| match options.sort {
            Sort::Count => (row.count_delta, row.bytes_delta) > (0, 0),
            Sort::Bytes | Sort::Age => (row.bytes_delta, row.count_delta) > (0, 0),
        };
        let group = |row: &DiffRow| (row.pool || row.stack.library.is_some(), !grows(row));
        rows.sort_by(|a, b| {
            (group(a).cmp(&group(b)))
                .then_with(|| change(b).cmp(&change(a)))
                .then_with(|| name(a).cmp(&name(b)))
        });
        let cut = cut(&mut rows, options, options.min_bytes);
        Diff {
            format: FORMAT,
            version: VERSION,
            before: side(before, totals.before),
            after: side(after, totals.after),
            by: options.by,
            same_process,
            libraries,
            filter: Some(Filter {
                kinds: Vec::new(),
                ..options.filter.clone()
            })
            .filter(|filter| !filter.is_empty()),
            kinds: options.filter.kinds.iter().map(|kind| kind.name()).collect(),
            only_objects: only_objects(&options.filter.kinds),
            elapsed_ns: elapsed(before, after).filter(|_| same_process),
            hidden_rows: cut.rows(),
            cut,
            rows,
            totals,
            opaque_pools,
            objects: objects::changes(before, after, options, moved),
            host: host::changes(before.holders.as_ref(), after.holders.as_ref(), options),
            warnings: objects::not_compared(before, after, options)
                .into_iter()
                .chain(warnings(bare, same_process))
                .collect(),
        }
    }
}

/// Whether the stacks have no names at all.
fn is_bare(snapshot: &Snapshot, groups: &Groups) -> bool {
    let is_bare = |stack: usize| {
        let frames = &snapshot.stacks[stack].frames;
        !frames.is_empty() && frames.iter().all(|&frame| snapshot.locations[frame].symbols.is_empty())
    };
    let mut known = groups.all.iter().filter_map(|group| group.stack).peekable();
    known.peek().is_some() && known.all(is_bare)
}

/// What may differ between the code of the two.
#[derive(Clone, Copy)]
enum Moved {
    /// Nothing within one process.
    Nothing,
    Lines,
    Libraries,
}

/// The rows of both sides.
fn compared<'a>(
    (old, new): (Vec<Row<'a>>, Vec<Row<'a>>),
    stacks: &[CallStacks<'a>; 2],
    by: By,
    moved: Moved,
) -> Vec<DiffRow<'a>> {
    let whole = |rows: &[Row]| rows.iter().map(|row| Key::by(by, row)).collect::<Vec<Key>>();
    let both = |row: &Row| [Key::by(by, row), Key::own(by, row)];
    let both = |rows: &[Row]| rows.iter().map(both).collect::<Vec<[Key; 2]>>();
    let partners = match moved {
        Moved::Libraries => pair_across(&both(&old), &both(&new)),
        Moved::Nothing | Moved::Lines => pair(&whole(&old), &whole(&new), matches!(moved, Moved::Lines)),
    };
    let mut old: Vec<Option<Row>> = old.into_iter().map(Some).collect();
    let pairs = new.into_iter().zip(partners);
    let pairs = pairs.map(|(row, partner)| (partner.and_then(|partner| old[partner].take()), Some(row)));
    let mut both: Vec<_> = pairs.collect();
    both.extend(old.into_iter().filter(Option::is_some).map(|row| (row, None)));
    both.into_iter()
        .map(|(old, new)| diff_row(old, new, stacks, by))
        .collect()
}

/// What changed through each caller at which the stacks of both sides part, without claims unless the row has nothing else.
fn callers<'a>(
    old: Option<&Row<'a>>,
    new: Option<&Row<'a>>,
    [before, after]: &[CallStacks<'a>; 2],
) -> Vec<CallerChange<'a>> {
    let has_blocks = old.into_iter().chain(new).any(Row::has_blocks);
    let old = old.into_iter().flat_map(|row| row.by_stack(has_blocks));
    let old = old.map(|(stack, tally)| (before.get(stack), Change::of(tally, Tally::default())));
    let new = new.into_iter().flat_map(|row| row.by_stack(has_blocks));
    let new = new.map(|(stack, tally)| (after.get(stack), Change::of(Tally::default(), tally)));
    let all: Vec<_> = new.chain(old).collect();
    let (_, shares) = callers::shares(&all, false, Change::join);
    let change = |(caller, change): Share<'a, Change>| CallerChange { change, caller };
    let mut changes: Vec<CallerChange> = shares.into_iter().map(change).collect();
    changes.sort_by_key(|of| std::cmp::Reverse(of.change.size()));
    changes
}

/// Cuts off rows that did not change, changed by less than `min_bytes`, or are beyond the most.
fn cut(rows: &mut Vec<DiffRow>, options: &Options, min_bytes: u64) -> Cut {
    rows.retain(|row| options.all || row.state != State::Unchanged);
    let enough = |row: &DiffRow| row.bytes_delta.unsigned_abs() >= u128::from(min_bytes);
    Cut::off(rows, enough, options.top).0
}

/// By what rows of equal changes are sorted.
fn name<'r>(row: &'r DiffRow) -> (&'r str, Fingerprint) {
    (&row.label, row.stack.fingerprint)
}

fn diff_row<'a>(old: Option<Row<'a>>, new: Option<Row<'a>>, stacks: &[CallStacks<'a>; 2], by: By) -> DiffRow<'a> {
    let mut callers = match by {
        By::Site => callers(old.as_ref(), new.as_ref(), stacks),
        _ => Vec::new(),
    };
    let callers_in_all = callers.len();
    callers.truncate(CALLERS_KEPT);
    let tally = |row: &Option<Row>| row.as_ref().map(Row::tally).unwrap_or_default();
    let (before, after) = (tally(&old), tally(&new));
    let state = match (&old, &new) {
        (None, _) => State::New,
        (_, None) => State::Gone,
        _ => State::between(before, after),
    };
    let mut kinds: Vec<_> = [&old, &new]
        .into_iter()
        .flatten()
        .flat_map(|row| row.kinds.keys().copied())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    let pool = [&old, &new].into_iter().flatten().any(|row| row.pool);
    let claims = [&old, &new].map(|row| row.as_ref().map_or(0, |row| row.claims));
    let errors = |row: &Option<Row>| row.as_ref().and_then(|row| row.estimated);
    let estimated = Errors::of_difference(errors(&old), errors(&new));
    let (label, stack) = match new.or(old) {
        Some(mut row) => (row.label, row.stacks.swap_remove(0).stack),
        None => unreachable!("a pair was made for a row"),
    };
    DiffRow {
        state,
        label,
        before,
        after,
        bytes_delta: i128::from(after.bytes) - i128::from(before.bytes),
        count_delta: i128::from(after.count) - i128::from(before.count),
        claims,
        estimated,
        kinds,
        pool,
        callers,
        callers_in_all,
        stack,
        by,
    }
}

fn totals(rows: &[DiffRow], [before, after]: [(Tally, Option<Errors>); 2]) -> Totals {
    let ((before, before_errors), (after, after_errors)) = (before, after);
    let mut totals = Totals {
        before,
        after,
        bytes_delta: i128::from(after.bytes) - i128::from(before.bytes),
        count_delta: i128::from(after.count) - i128::from(before.count),
        estimated: Errors::of_difference(before_errors, after_errors),
        ..Totals::default()
    };
    for row in rows {
        *match row.state {
            State::New => &mut totals.new,
            State::Grown => &mut totals.grown,
            State::Shrunk => &mut totals.shrunk,
            State::Gone => &mut totals.gone,
            State::Unchanged => &mut totals.unchanged,
        } += 1;
    }
    totals
}

fn has_time(snapshot: &Snapshot) -> bool {
    snapshot.taken.point != Some(Point::Peak)
}

pub(crate) fn elapsed(before: &Snapshot, after: &Snapshot) -> Option<u64> {
    let elapsed = after.taken.at_ns.checked_sub(before.taken.at_ns);
    elapsed.filter(|_| has_time(before) && has_time(after))
}

pub(crate) fn side(snapshot: &Snapshot, held: Tally) -> Side<'_> {
    Side {
        process: process_line(snapshot),
        taken_unix_ns: snapshot.taken.at_unix_ns,
        point: snapshot.taken.point.as_ref(),
        held,
        losses: &snapshot.losses,
        taken: &snapshot.taken,
        allocators: &snapshot.allocators,
    }
}

/// Whether both snapshots show the same process. A pid alone may be reused, so start time and host must be equal too.
/// Not reflexive: a snapshot with pid 0 is of an unknown process, which equals no process, not even itself.
pub fn same_process(a: &Snapshot, b: &Snapshot) -> bool {
    let identity = |s: &Snapshot| (s.process.pid, s.process.started_unix_ns, s.process.host.clone());
    a.process.pid != 0 && identity(a) == identity(b)
}

pub(crate) fn warnings(sides: [(&Snapshot, bool); 2], same_process: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let [(before, _), (after, _)] = sides;
    if same_process && [before, after].iter().all(|side| has_time(side)) && before.taken.at_ns > after.taken.at_ns {
        warnings.push("the first snapshot is the later one; swap the two to see growth".to_owned());
    }
    for (which, (snapshot, bare)) in ["first", "second"].into_iter().zip(sides) {
        if snapshot.losses.lost_allocations > 0 {
            warnings.push(format!(
                "{} missing from the {which} snapshot, because they could not be recorded",
                plural(snapshot.losses.lost_allocations, "allocation is", "allocations are")
            ));
        }
        if let Some(sampling) = snapshot.sampling {
            warnings.push(sampled(&format!("of the {which} snapshot"), sampling));
        }
        if bare {
            warnings.push(format!(
                "the {which} snapshot has no function names, so its rows match only if both are from the same binaries"
            ));
        }
    }
    let (old, new) = (Program::of(before), Program::of(after));
    if !same_process && !old.is_like(&new) {
        warnings.push(format!("the two snapshots show different programs: {old} and {new}"));
    }
    if before.taken.by != after.taken.by {
        warnings.push(format!(
            "the first snapshot was made by {}, the second by {}; the rows of a function do not match if the two \
             name it differently",
            maker(&before.taken),
            maker(&after.taken)
        ));
    }
    warnings
}

/// What made a snapshot: a version of culeak, or the allocator that it is of.
fn maker(taken: &Capture) -> String {
    match taken.covers_allocators_only() {
        true => taken.by.clone(),
        false => format!("culeak {}", taken.by),
    }
}

#[cfg(test)]
mod tests;
