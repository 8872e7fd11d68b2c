//! The figures of all phases, in one pass over the events.
//!
//! Phases are numbered by their begin, so "allocated since the begin of phase *n*" means "with the number of phases begun then
//! above *n*". Memory is added up by that number:
//!
//! ```text
//! allocated, freed    the series' sums at the end minus those at the begin
//! high-water mark     the highest value since the begin: a stack of values that are higher than all later ones
//! left behind         live memory with a number of *n* or higher: prefix sums in a Fenwick tree
//! freed within        allocated minus left behind
//! ```
//!
//! So an event costs the logarithm of the number of phases, however many of them are open.

use foldhash::HashMap;

use super::series::SeriesOfSites;
use crate::analysis::tally::Tally;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Phase, Snapshot};
use crate::timeline::{Event, Op, Timeline};

/// What happened to a series' memory during a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Figures {
    pub held_at_begin: u64,
    pub held_at_end: u64,
    /// The most that was held at any time of the phase.
    pub high_water: u64,
    pub allocated: Tally,
    pub freed: Tally,
    /// Allocated and freed within the phase.
    pub freed_within: Tally,
    /// Allocated within the phase and live at its end.
    pub left_behind: Tally,
}

/// The figures of the phases.
pub struct Walked {
    /// By phase and series; `None`: the phase began before the log.
    figures: Vec<Option<Figures>>,
    series: usize,
    /// Of the chosen phases: what they left behind at each site.
    pub left: HashMap<usize, Vec<(u32, Tally)>>,
}

impl Walked {
    /// The figures of a phase, by series. `None`: it began before the log.
    pub fn of(&self, phase: usize) -> Option<impl Iterator<Item = Figures>> {
        let start = phase * self.series;
        let all = self.figures.get(start..start + self.series)?;
        all[0]
            .is_some()
            .then(|| all.iter().map(|each| each.unwrap_or_default()))
    }
}

/// The time at which a phase ends; for one that has not ended, the last known time.
pub fn end_of(phase: &Phase, snapshot: &Snapshot, timeline: Option<&Timeline>) -> u64 {
    let last = timeline.map_or(0, |timeline| timeline.until_ns);
    phase
        .end_ns
        .unwrap_or(last.max(snapshot.taken.at_ns).max(phase.begin_ns))
}

/// Times of events are multiples of this.
const UNIT_NS: u64 = 8;

/// Sums and peak of a series.
#[derive(Default)]
struct Sum {
    /// Signed, since a damaged log may free more than it allocates.
    held: i64,
    allocated: Signed,
    freed: Signed,
    /// Values that are higher than all later ones, with the number of phases begun then.
    highest: Vec<(usize, i64)>,
}

#[derive(Clone, Copy, Default)]
struct Signed {
    bytes: i64,
    count: i64,
}

impl Signed {
    fn add(&mut self, bytes: i64, count: i64) {
        self.bytes = self.bytes.wrapping_add(bytes);
        self.count = self.count.wrapping_add(count);
    }

    fn minus(self, other: Signed) -> Signed {
        Signed {
            bytes: self.bytes.wrapping_sub(other.bytes),
            count: self.count.wrapping_sub(other.count),
        }
    }

    fn tally(self) -> Tally {
        Tally {
            bytes: self.bytes.max(0) as u64,
            count: self.count.max(0) as u64,
        }
    }
}

/// Live memory by the number of the phase that began last before it was allocated.
struct ByPhase {
    /// A Fenwick tree.
    tree: Vec<Signed>,
    all: Signed,
}

impl ByPhase {
    fn new(phases: usize) -> ByPhase {
        ByPhase {
            tree: vec![Signed::default(); phases + 1],
            all: Signed::default(),
        }
    }

    fn add(&mut self, phase: usize, bytes: i64, count: i64) {
        self.all.add(bytes, count);
        let mut at = phase + 1;
        while let Some(node) = self.tree.get_mut(at) {
            node.add(bytes, count);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of all phases from this one on.
    fn since(&self, phase: usize) -> Signed {
        let (mut before, mut at) = (Signed::default(), phase);
        while at > 0 {
            before.add(self.tree[at].bytes, self.tree[at].count);
            at &= at - 1;
        }
        self.all.minus(before)
    }
}

/// Where live memory was allocated.
#[derive(Clone, Copy)]
struct Since {
    /// The phase that began last.
    phase: u32,
    /// The number of chosen phases begun.
    chosen: u32,
}

/// The most chosen phases whose sites are found.
pub const CHOSEN_MAX: usize = if cfg!(test) { 500 } else { 10_000 };

type Key = (u64, u32);

struct Walk<'a> {
    series: &'a SeriesOfSites,
    sums: Vec<Sum>,
    by_phase: Vec<ByPhase>,
    begun: usize,
    live: HashMap<Key, Since>,
    /// Of memory with a free that failed: since when it had been live at its last free.
    failing: HashMap<Key, Option<Since>>,
    /// By the number of chosen phases begun: what is live at each site.
    chosen: Vec<HashMap<u32, Signed>>,
    figures: Vec<Option<Figures>>,
}

/// `chosen`: the phases whose sites are wanted, in order.
pub fn walk(snapshot: &Snapshot, timeline: &Timeline, series: &SeriesOfSites, chosen: &[usize]) -> Walked {
    let phases = &snapshot.phases;
    let count = series.all.len();
    let restored = timeline.all_events().filter(|event| event.op == Op::Restored);
    let mut walk = Walk {
        series,
        sums: (0..count).map(|_| Sum::default()).collect(),
        by_phase: (0..count).map(|_| ByPhase::new(phases.len())).collect(),
        begun: 0,
        live: HashMap::default(),
        failing: restored.map(|event| ((event.address, event.site), None)).collect(),
        chosen: Vec::new(),
        figures: vec![None; phases.len() * count],
    };
    walk.begin_of_log(snapshot, timeline);
    let unit = |time_ns: u64| time_ns / UNIT_NS;
    let mut ends: Vec<(u64, usize)> = (0..phases.len())
        .map(|phase| (unit(end_of(&phases[phase], snapshot, Some(timeline))), phase))
        .collect();
    ends.sort_unstable();
    let mut ends = ends.into_iter().peekable();
    let chosen = &chosen[chosen.len().saturating_sub(CHOSEN_MAX)..];
    let mut left = HashMap::default();
    // All boundaries before this time; at the same time phases begin before events, and end after them.
    let mut boundaries = |walk: &mut Walk, until: Option<u64>| {
        loop {
            let begin = phases.get(walk.begun).map(|phase| unit(phase.begin_ns));
            let begin = begin.filter(|&begin| until.is_none_or(|until| begin <= until));
            let end = ends.peek().copied();
            let end = end.filter(|&(end, _)| until.is_none_or(|until| end < until));
            match (begin, end) {
                (Some(begin), end) if end.is_none_or(|(end, _)| begin <= end) => {
                    let is_chosen = chosen.binary_search(&walk.begun).is_ok();
                    walk.begin(phases[walk.begun].begin_ns >= timeline.since_ns, is_chosen);
                }
                (_, Some((_, phase))) => {
                    ends.next();
                    walk.end(phase);
                    if let Ok(nth) = chosen.binary_search(&phase) {
                        left.insert(phase, walk.left_since(nth));
                    }
                }
                _ => break,
            }
        }
    };
    let events = timeline.len() + timeline.segments.events.len();
    let progress = Progress::over("following phases", events as u64, Unit::Of("events"));
    for (nth, event) in timeline.all_events().enumerate() {
        progress.tick(nth);
        boundaries(&mut walk, Some(unit(event.time_ns)));
        walk.event(&event);
    }
    boundaries(&mut walk, None);
    Walked {
        figures: walk.figures,
        series: count,
        left,
    }
}

impl Walk<'_> {
    /// What was held when the log begins: the final state without its events.
    fn begin_of_log(&mut self, snapshot: &Snapshot, timeline: &Timeline) {
        if timeline.since_ns == 0 {
            return;
        }
        let sites = timeline.sites.iter().enumerate();
        let numbers: HashMap<_, u32> = sites
            .map(|(number, site)| {
                let key = (site.stack, site.kind, site.device, site.domain.as_deref(), &*site.api);
                (key, number as u32)
            })
            .collect();
        // Memory that was freed after the end has its free in the log.
        for allocation in &snapshot.allocations {
            let key = (
                allocation.stack,
                allocation.kind,
                allocation.device,
                allocation.domain(),
                allocation.api(),
            );
            if let Some(&site) = numbers.get(&key) {
                self.series
                    .of_site(site)
                    .for_each(|series| self.sums[series].held += allocation.bytes as i64);
            }
        }
        let of_memory = timeline.sites.len();
        let segments = timeline.segments.sites.iter().enumerate();
        let numbers: HashMap<_, usize> = segments
            .map(|(number, site)| ((site.stack, site.kind, site.device, &*site.api), of_memory + number))
            .collect();
        for row in &snapshot.segments {
            if let Some(&site) = numbers.get(&(row.stack, row.kind, row.device, row.api())) {
                self.series
                    .of_site(site as u32)
                    .for_each(|series| self.sums[series].held += row.bytes as i64);
            }
        }
        for event in timeline.all_events() {
            let bytes = match event.op {
                Op::Freed => event.bytes as i64,
                Op::Allocated | Op::Restored => -(event.bytes as i64),
            };
            self.series
                .of_site(event.site)
                .for_each(|series| self.sums[series].held += bytes);
        }
    }

    /// The next phase begins.
    fn begin(&mut self, is_in_log: bool, is_chosen: bool) {
        let phase = self.begun;
        self.begun += 1;
        if is_chosen {
            self.chosen.push(HashMap::default());
        }
        if !is_in_log {
            return;
        }
        let start = phase * self.sums.len();
        for (number, sum) in self.sums.iter().enumerate() {
            // Until the end, the sums at the begin.
            self.figures[start + number] = Some(Figures {
                held_at_begin: sum.held.max(0) as u64,
                allocated: sum.allocated.tally(),
                freed: sum.freed.tally(),
                ..Figures::default()
            });
        }
    }

    fn end(&mut self, phase: usize) {
        let start = phase * self.sums.len();
        for (number, sum) in self.sums.iter().enumerate() {
            let Some(figures) = &mut self.figures[start + number] else {
                return;
            };
            let since = |now: Tally, begin: Tally| Tally {
                bytes: now.bytes.saturating_sub(begin.bytes),
                count: now.count.saturating_sub(begin.count),
            };
            figures.held_at_end = sum.held.max(0) as u64;
            let highest = sum.highest.partition_point(|&(begun, _)| begun <= phase);
            let highest = sum.highest.get(highest).map_or(0, |&(_, held)| held.max(0) as u64);
            figures.high_water = highest.max(figures.held_at_begin);
            figures.allocated = since(sum.allocated.tally(), figures.allocated);
            figures.freed = since(sum.freed.tally(), figures.freed);
            figures.left_behind = self.by_phase[number].since(phase).tally();
            figures.freed_within = since(figures.allocated, figures.left_behind);
        }
    }

    fn event(&mut self, event: &Event) {
        let key = (event.address, event.site);
        let bytes = event.bytes as i64;
        let series = self.series.of_site(event.site);
        match event.op {
            Op::Allocated => {
                let since = self.begun.checked_sub(1).map(|phase| Since {
                    phase: phase as u32,
                    chosen: self.chosen.len() as u32,
                });
                for series in series {
                    let sum = &mut self.sums[series];
                    sum.allocated.add(bytes, 1);
                    sum.rises(bytes, self.begun);
                }
                self.appears(key, since, bytes);
            }
            Op::Freed => {
                let since = self.live.remove(&key);
                self.failing.entry(key).and_modify(|last| *last = since);
                for series in series {
                    let sum = &mut self.sums[series];
                    sum.freed.add(bytes, 1);
                    sum.held -= bytes;
                }
                self.counts(key, since, -bytes, -1);
            }
            Op::Restored => {
                let since = self.failing.get(&key).copied().flatten();
                for series in series {
                    let sum = &mut self.sums[series];
                    sum.freed.add(-bytes, -1);
                    sum.rises(bytes, self.begun);
                }
                self.appears(key, since, bytes);
            }
        }
    }

    fn appears(&mut self, key: Key, since: Option<Since>, bytes: i64) {
        if let Some(since) = since {
            self.live.insert(key, since);
        }
        self.counts(key, since, bytes, 1);
    }

    /// Memory that was allocated then appears or disappears.
    fn counts(&mut self, key: Key, since: Option<Since>, bytes: i64, count: i64) {
        let Some(since) = since else { return };
        for series in self.series.of_site(key.1) {
            self.by_phase[series].add(since.phase as usize, bytes, count);
        }
        let chosen = (since.chosen as usize).checked_sub(1);
        if let Some(sites) = chosen.and_then(|chosen| self.chosen.get_mut(chosen))
            && self.series.is_held(key.1)
        {
            let site = sites.entry(key.1).or_default();
            site.add(bytes, count);
            if site.count == 0 {
                sites.remove(&key.1);
            }
        }
    }

    /// What is live of what was allocated since the chosen phase with this number began, by site.
    fn left_since(&self, chosen: usize) -> Vec<(u32, Tally)> {
        let mut left: HashMap<u32, Tally> = HashMap::default();
        for sites in self.chosen.iter().skip(chosen) {
            for (&site, live) in sites {
                left.entry(site).or_default().join(live.tally());
            }
        }
        left.into_iter().collect()
    }
}

impl Sum {
    fn rises(&mut self, bytes: i64, begun: usize) {
        self.held += bytes;
        while self.highest.last().is_some_and(|&(_, held)| held <= self.held) {
            self.highest.pop();
        }
        self.highest.push((begun, self.held));
    }
}
