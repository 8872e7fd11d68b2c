//! Facts: what processes hold, as rows of numbers, and dictionaries for text.
//!
//! ```text
//! snapshot ─► Facts::by ─► facts of one process at one instant ─► fold ─► facts of many, and the snapshot is dropped
//!
//!             site  stack  point  device │ bytes  count  scatter       site   key (pairing.rs)   text (site/text.rs)
//!  rows:        0     -      0       0   │ 4 MiB      2     0            0    module, function   step   train.py:212
//!               1     -      0       0   │ 1 MiB      1     0            1    module, function   load   data.py:12
//!               0     -      1       0   │ 6 MiB      3     0
//!             └───── dimensions ───────┘ └───── measures ─────┘       point   time, process, marks, devices, losses
//!
//! filter  `retain`       rows that a view is about
//! group   [`group`]      rows with equal dimensions become one, and their measures are added
//! pair    [`pair`]       a site of one side and the same site of the other, whose line may have moved
//! subtract [`subtract`]  the measures of both sides, by site
//! rank    [`rank`]       the order, and the rows that are cut off
//! ```
//!
//! A trend groups by site and point, a job by site and process, and a diff pairs two sides and subtracts. Text is in a dictionary, so
//! a row is a few numbers: folding facts into others keeps a thousand snapshots in memory, and a job keeps no rows of a process at all.
//!
//! Rows and not columns, because each verb reads whole rows. Deliberately absent: queries. After grouping there are thousands of
//! rows, and a view is a loop over them.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;

use foldhash::HashMap;

use crate::analysis::categories::{Categories, Category, Sorter};
use crate::analysis::filter::Filter;
use crate::analysis::function_name::plain;
use crate::analysis::groups::{Groups, Level};
use crate::analysis::objects;
use crate::analysis::pairing::{self, Key};
use crate::analysis::report::{self, By, RowsOfKinds, device_name, is_finished};
use crate::analysis::site::text::Site;
use crate::analysis::site::{CallStacks, is_pool};
use crate::kind::{Kind, Place};
use crate::snapshot::{Call, Sampling, Snapshot};
use crate::tally::{Change, Tally};

mod instant;

pub use instant::{DeviceUse, Instant, Process};

/// The number of a site in a dictionary; held and cached memory of one line are two sites.
pub type SiteId = u32;
/// The number of a stack.
pub type StackId = u32;

/// What is held at a call site: its dimensions, then its measures.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Row {
    pub site: SiteId,
    /// `None`: of all stacks, or of stacks that are not told apart.
    pub stack: Option<StackId>,
    /// Index into [`Facts::instants`].
    pub point: u32,
    /// The device that holds most of it, as an index into [`Facts::devices`].
    pub device: Option<u32>,
    /// `None`: of several kinds.
    pub kind: Option<Kind>,
    /// `None`: of several levels, or of objects.
    pub level: Option<Level>,
    /// `None`: of several categories, or of objects.
    pub category: Option<Category>,
    pub tally: Tally,
    /// The variance for each byte if it is an estimate from sampled stacks; 0 if it is exact.
    pub scatter: f64,
}

impl Row {
    /// What a process holds at a call site, through one stack.
    pub fn at(site: SiteId, stack: Option<StackId>, tally: Tally, scatter: f64) -> Row {
        Row {
            site,
            stack,
            tally,
            scatter,
            ..Row::default()
        }
    }

    /// All dimensions in three words, which are quick to hash; `None` is less than all numbers.
    fn dimensions(&self) -> (u64, u64, u64) {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let number = |number: Option<u32>| number.map_or(0, |number| number.wrapping_add(1));
        let small = |number: Option<u8>| number.map_or(0, |number| u32::from(number) + 1);
        let kind = small(self.kind.map(|kind| kind as u8));
        let level = small(self.level.map(|level| level as u8));
        let category = small(self.category.map(|category| category as u8));
        (
            pair(self.site, number(self.stack)),
            pair(self.point, number(self.device)),
            pair(kind, level << 16 | category),
        )
    }
}

/// The call sites of rows, by number.
#[derive(Debug, Clone, Default)]
pub struct Sites {
    all: Vec<(Key, Site)>,
    numbers: HashMap<(u64, bool), SiteId>,
}

impl Sites {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn key(&self, id: SiteId) -> Key {
        self.all[id as usize].0
    }

    pub fn text(&self, id: SiteId) -> &Site {
        &self.all[id as usize].1
    }

    pub(crate) fn text_mut(&mut self, id: SiteId) -> &mut Site {
        &mut self.all[id as usize].1
    }

    pub(crate) fn find(&self, key: Key) -> Option<SiteId> {
        self.numbers.get(&(key.exact.0, key.pool)).copied()
    }

    /// The number of a site, which is added if it is new.
    pub(crate) fn number(&mut self, key: Key, text: Site) -> SiteId {
        if let Some(id) = self.find(key) {
            return id;
        }
        let id = self.all.len() as SiteId;
        self.all.push((key, text));
        self.numbers.insert((key.exact.0, key.pool), id);
        id
    }
}

impl FromIterator<(Key, Site)> for Sites {
    fn from_iter<I: IntoIterator<Item = (Key, Site)>>(sites: I) -> Sites {
        let mut all = Sites::default();
        for (key, text) in sites {
            all.number(key, text);
        }
        all
    }
}

/// What processes hold at instants.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub instants: Vec<Instant>,
    pub sites: Sites,
    /// Labels of devices.
    pub devices: Vec<String>,
    /// By point; memory, then objects.
    pub rows: Vec<Row>,
}

impl Facts {
    /// The facts of a snapshot. `by`: [`By::Site`], [`By::Stack`] or [`By::Forward`], by which objects are rows by call site.
    pub fn by(snapshot: &Snapshot, source: String, by: By, filter: &Filter) -> Facts {
        let stacks = CallStacks::of(snapshot);
        let memory = RowsOfKinds::of(snapshot, &stacks, filter, by);
        let mut instant = Instant::of(snapshot, source);
        instant.bare = !memory.rows.is_empty()
            && (memory.rows.iter()).all(|row| row.site().is_some_and(|site| site.function.is_none()));
        let (total, errors) = memory.total;
        instant.exact = (snapshot.sampling.is_some() && errors.is_none()).then_some(total);
        instant.opaque_pools = memory.opaque_pools;
        let mut facts = Facts {
            instants: vec![instant],
            ..Facts::default()
        };
        memory.rows.iter().for_each(|row| facts.push(row, by));
        let objects = objects::rows(snapshot, &stacks, filter, by);
        objects.iter().for_each(|row| facts.push(row, by.of_objects()));
        facts
    }

    /// The facts of a snapshot with all dimensions of a site: each kind, level, category and device by itself.
    pub fn in_detail(snapshot: &Snapshot, stacks: &CallStacks, groups: &Groups, categories: &Categories) -> Facts {
        let sorter = Sorter::new(categories, snapshot);
        let is_object = |call: &Call, _: Option<usize>, _: u64| call.kind.place() == Place::Object;
        let objects = objects::groups(snapshot, is_object);
        let mut facts = Facts {
            instants: vec![Instant::of(snapshot, String::new())],
            devices: (0..snapshot.devices.len())
                .map(|nth| device_name(snapshot, Some(nth)))
                .collect(),
            ..Facts::default()
        };
        let rows = groups.listed().chain(&objects).map(|group| {
            let (kind, stack) = (group.call.kind, stacks.get(group.stack));
            let key = Key {
                pool: is_pool(kind, stack.pool),
                ..Key::of_call_site(stack)
            };
            let is_object = kind.place() == Place::Object;
            let known = facts.sites.find(key);
            Row {
                site: known.unwrap_or_else(|| {
                    facts.sites.number(
                        key,
                        Site {
                            pool: key.pool,
                            ..Site::of(stack)
                        },
                    )
                }),
                device: kind
                    .place()
                    .counts_against(group.call.device)
                    .map(|device| device as u32),
                kind: Some(kind),
                level: (!is_object).then_some(group.level),
                category: (!is_object).then(|| sorter.category(group.stack, group.call, stacks)),
                tally: group.tally(),
                ..Row::default()
            }
        });
        facts.rows = group(rows);
        facts
    }

    fn push(&mut self, row: &report::Row, by: By) {
        let (key, stack) = (Key::by(by, row), row.stack());
        let kinds = row.kinds.keys().copied().collect();
        let text = match by {
            By::Forward => Site {
                kinds,
                ..Site::of_forward(stack)
            },
            _ => Site {
                label: plain(&row.label).into_owned(),
                pool: row.pool,
                allocator: row.allocator,
                library: row.library,
                kinds,
                fingerprint: match by {
                    By::Stack => stack.fingerprint,
                    _ => stack.site_fingerprint,
                },
                object: row.kind_of_objects().map(Kind::name),
                parts_after: (row.callers_in_all > 0).then_some(row.shared_callers),
                ..Site::of(stack)
            },
        };
        let on_gpu = row.devices.iter().filter(|(name, _)| name.starts_with("GPU "));
        let most = on_gpu.max_by_key(|(_, tally)| tally.bytes);
        let row = Row {
            site: self.sites.number(key, text),
            device: most.map(|(name, _)| self.device(name)),
            tally: row.tally(),
            // An estimate stays one even if its error is 0.
            scatter: (row.estimated).map_or(0.0, |errors| errors.scatter(row.bytes).max(f64::MIN_POSITIVE)),
            ..Row::default()
        };
        self.rows.push(row);
    }

    fn device(&mut self, label: &str) -> u32 {
        let known = self.devices.iter().position(|known| known == label);
        known.unwrap_or_else(|| {
            self.devices.push(label.to_owned());
            self.devices.len() - 1
        }) as u32
    }

    /// Without the frames of its sites.
    #[must_use]
    pub fn without_stacks(mut self) -> Facts {
        self.sites.all.iter_mut().for_each(|(_, text)| text.stack = Vec::new());
        self
    }

    /// The facts of all these, in their order.
    pub fn folded(all: impl IntoIterator<Item = Facts>) -> Facts {
        let mut folded = Facts::default();
        all.into_iter().for_each(|facts| folded.fold(facts));
        folded
    }

    /// Adds the instants and rows of others. The text of a site is that of the latest process.
    pub fn fold(&mut self, other: Facts) {
        self.fold_at_most(other, usize::MAX);
    }

    /// Adds the instants and rows of others, without the sites beyond the most.
    pub fn fold_at_most(&mut self, other: Facts, most: usize) {
        let ends = self.instants.last().zip(other.instants.first());
        let is_new_process = ends.is_none_or(|(last, first)| last.process != first.process);
        let mut site = |(key, text): (Key, Site)| match self.sites.find(key) {
            Some(id) => {
                if is_new_process {
                    self.sites.all[id as usize] = (key, text);
                } else {
                    self.sites.all[id as usize].1.join_callers(&text);
                }
                Some(id)
            }
            None => (self.sites.len() < most).then(|| self.sites.number(key, text)),
        };
        let sites: Vec<Option<SiteId>> = other.sites.all.into_iter().map(&mut site).collect();
        let devices: Vec<u32> = other.devices.iter().map(|label| self.device(label)).collect();
        let first = self.instants.len() as u32;
        self.instants.extend(other.instants);
        self.rows.extend(other.rows.into_iter().filter_map(|row| {
            Some(Row {
                site: sites[row.site as usize]?,
                device: row.device.map(|device| devices[device as usize]),
                point: first + row.point,
                ..row
            })
        }));
    }

    /// Adds an instant at which all sites hold what they held at the last one.
    pub fn repeat_last(&mut self, instant: Instant) {
        let last = (self.instants.len() as u32).saturating_sub(1);
        let from = self.rows.partition_point(|row| row.point < last);
        self.instants.push(instant);
        for at in from..self.rows.len() {
            self.rows.push(Row {
                point: last + 1,
                ..self.rows[at]
            });
        }
    }

    /// Drops the other points and their rows.
    pub fn keep_points(&mut self, wanted: impl Fn(usize) -> bool) {
        let mut left = 0;
        let all = 0..self.instants.len();
        let numbers: Vec<Option<u32>> = all
            .map(|point| {
                wanted(point).then(|| {
                    left += 1;
                    left - 1
                })
            })
            .collect();
        let mut numbers_of_instants = numbers.iter();
        self.instants
            .retain(|_| numbers_of_instants.next().is_some_and(Option::is_some));
        self.rows.retain_mut(|row| {
            let number = numbers[row.point as usize];
            row.point = number.unwrap_or(row.point);
            number.is_some()
        });
    }

    /// The rows of each point that has some.
    pub fn by_point(&self) -> impl Iterator<Item = (usize, &[Row])> {
        let points = self.rows.chunk_by(|a, b| a.point == b.point);
        points.map(|rows| (rows[0].point as usize, rows))
    }

    pub fn is_of_objects(&self, row: &Row) -> bool {
        self.sites.text(row.site).object.is_some()
    }

    /// The memory at each point.
    pub fn held(&self) -> Vec<Tally> {
        let mut sums = vec![Tally::default(); self.instants.len()];
        for row in self.rows.iter().filter(|row| !self.is_of_objects(row)) {
            sums[row.point as usize].join(row.tally);
        }
        let exact = self.instants.iter().map(|instant| instant.exact);
        exact.zip(sums).map(|(exact, sum)| exact.unwrap_or(sum)).collect()
    }
}

/// One row for each set of dimensions: tallies are added, and the largest scatter stays. Rows are in the order of dimensions.
pub fn group(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let mut sums: HashMap<(u64, u64, u64), Row> = HashMap::default();
    for row in rows {
        match sums.entry(row.dimensions()) {
            Entry::Vacant(entry) => _ = entry.insert(row),
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                sum.tally.join(row.tally);
                sum.scatter = sum.scatter.max(row.scatter);
            }
        }
    }
    let mut rows: Vec<Row> = sums.into_values().collect();
    rows.sort_unstable_by_key(Row::dimensions);
    rows
}

/// Each site once, with the memory of all its stacks. `rows`: by site.
pub fn by_site(rows: &[Row]) -> impl Iterator<Item = Row> {
    let sites = rows.chunk_by(|a, b| a.site == b.site);
    sites.map(|rows| Row {
        stack: None,
        tally: Tally::total(rows.iter().map(|row| row.tally)),
        scatter: rows.iter().map(|row| row.scatter).fold(0.0, f64::max),
        ..rows[0]
    })
}

/// The number after of each site before that has another one, because its line moved.
pub fn pair(before: &[SiteId], after: &[SiteId], moved: bool, key: impl Fn(SiteId) -> Key) -> HashMap<SiteId, SiteId> {
    let keys = |ids: &[SiteId]| ids.iter().map(|&id| key(id)).collect::<Vec<Key>>();
    let partners = pairing::pair(&keys(before), &keys(after), moved);
    let pairs = after.iter().zip(partners);
    let pairs = pairs.filter_map(|(after, partner)| Some((before[partner?], *after)));
    pairs.filter(|(before, after)| before != after).collect()
}

/// The sites of both sides, and the variance of each difference in bytes: 0 if it is exact. `moved`: those before that have another
/// number after, from [`pair`].
pub fn subtract(
    before: impl IntoIterator<Item = Row>,
    after: impl IntoIterator<Item = Row>,
    moved: &HashMap<SiteId, SiteId>,
) -> HashMap<SiteId, (Change, f64)> {
    let mut changes: HashMap<SiteId, (Change, f64)> = HashMap::default();
    let mut add = |site, row: &Row, side: fn(&mut Change) -> &mut Tally| {
        let (change, variance) = changes.entry(site).or_default();
        side(change).join(row.tally);
        *variance += row.tally.bytes as f64 * row.scatter;
    };
    for row in before {
        let site = moved.get(&row.site).copied().unwrap_or(row.site);
        add(site, &row, |change| &mut change.before);
    }
    for row in after {
        add(row.site, &row, |change| &mut change.after);
    }
    changes
}

/// Sorts rows and cuts off those that are not wanted and those beyond `top`. The result is the number of rows cut off.
pub fn rank<T>(
    rows: &mut Vec<T>,
    order: impl Fn(&T, &T) -> Ordering,
    wanted: impl Fn(&T) -> bool,
    top: Option<usize>,
) -> usize {
    let all = rows.len();
    rows.retain(wanted);
    rows.sort_by(order);
    rows.truncate(top.unwrap_or(usize::MAX));
    all - rows.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{FrameText, MAIN, RUNTIME, Sample, leaky};

    fn facts(pid: u32, bytes: u64) -> Facts {
        let mut snapshot = leaky();
        snapshot.process.pid = pid;
        snapshot.allocations.rows[0].bytes += bytes;
        Facts::by(&snapshot, String::new(), By::Site, &Filter::default())
    }

    fn row(site: SiteId, bytes: u64) -> Row {
        Row::at(site, None, Tally { bytes, count: 1 }, 0.0)
    }

    #[test]
    fn folded_facts_have_each_site_once_and_the_rows_of_all_points() {
        let (first, second) = (facts(1, 0), facts(2, 4096));
        let held = [first.held()[0], second.held()[0]];
        let sites = first.sites.len();
        let all = Facts::folded([first, second]);
        assert_eq!(all.sites.len(), sites);
        assert_eq!(all.rows.len(), 2 * sites);
        assert_eq!(all.held(), held);
        assert_eq!(held[1].bytes - held[0].bytes, 4096);
    }

    #[test]
    fn a_dropped_point_takes_its_rows_along() {
        let mut all = Facts::folded([facts(1, 0), facts(1, 4096), facts(1, 8192)]);
        let held = all.held();
        all.keep_points(|nth| nth != 1);
        assert_eq!(all.held(), [held[0], held[2]]);
        all.repeat_last(all.instants[1].clone());
        assert_eq!(all.held(), [held[0], held[2], held[2]]);
    }

    #[test]
    fn sites_beyond_the_most_are_left_out() {
        let mut all = Facts::default();
        all.fold_at_most(facts(1, 0), 1);
        assert_eq!((all.sites.len(), all.rows.len()), (1, 1));
    }

    #[test]
    fn grouped_rows_are_by_site_and_stack_and_add_up() {
        let of = |stack| Row::at(1, stack, Tally { bytes: 8, count: 1 }, 2.0);
        let rows = group([of(Some(7)), row(0, 4), of(None), of(Some(7))]);
        let found: Vec<_> = rows.iter().map(|row| (row.site, row.stack, row.tally.bytes)).collect();
        assert_eq!(found, [(0, None, 4), (1, None, 8), (1, Some(7), 16)]);
        let sites: Vec<u64> = by_site(&rows).map(|row| row.tally.bytes).collect();
        assert_eq!(sites, [4, 24]);
    }

    /// Of which one snapshot shows one caller, and the next another one.
    #[test]
    fn stacks_of_a_site_part_where_those_of_any_snapshot_do() {
        let of = |callers: &[FrameText]| {
            let mut sample = Sample::new();
            for caller in callers {
                let make = ("make(int)", "/src/tensor.cpp:12", "/opt/app");
                let stack = sample.stack(&[RUNTIME, make, *caller, MAIN]);
                sample.holds(Kind::Device, "cudaMalloc", 1 << 20, 1, stack);
            }
            Facts::by(&sample.finish(0, 0), String::new(), By::Site, &Filter::default())
        };
        let parts = |all: [Facts; 2]| Facts::folded(all).sites.text(0).parts_after;
        let put = ("put(int)", "/src/cache.cpp:19", "/opt/app");
        let step = ("step(int)", "/src/train.cpp:31", "/opt/app");
        assert_eq!(parts([of(&[put]), of(&[put])]), None);
        assert_eq!(parts([of(&[put]), of(&[step])]), Some(0));
        assert_eq!(parts([of(&[put, step]), of(&[put, step])]), Some(0));
    }

    #[test]
    fn a_site_whose_line_moved_is_one_site_when_sides_are_subtracted() {
        let moved = HashMap::from_iter([(1, 2)]);
        let changes = subtract([row(1, 10), row(3, 5)], [row(2, 30)], &moved);
        let bytes = |site| changes.get(&site).map(|(change, _)| change.bytes());
        assert_eq!((bytes(1), bytes(2), bytes(3)), (None, Some(20), Some(-5)));
    }
}
