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
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Phase, Snapshot};
use crate::tally::{SignedTally, Tally};
use crate::timeline::lives::{Change, Life, Lives};
use crate::timeline::{Log, Op, Timeline, UNIT};

/// What happened to a series' memory during a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// Sums and peak of a series.
#[derive(Default)]
struct Running {
    /// SignedTally, since a damaged log may free more than it allocates.
    held: i64,
    allocated: SignedTally,
    freed: SignedTally,
    /// Values that are higher than all later ones, with the number of phases begun then.
    highest: Vec<(usize, i64)>,
}

/// Live memory by the number of the phase that began last before it was allocated.
struct ByPhase {
    /// A Fenwick tree.
    tree: Vec<SignedTally>,
    all: SignedTally,
}

impl ByPhase {
    fn new(phases: usize) -> ByPhase {
        ByPhase {
            tree: vec![SignedTally::default(); phases + 1],
            all: SignedTally::default(),
        }
    }

    fn add(&mut self, phase: usize, bytes: u64, sign: i64) {
        self.all.add(bytes, sign);
        let mut at = phase + 1;
        while let Some(node) = self.tree.get_mut(at) {
            node.add(bytes, sign);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of all phases from this one on.
    fn since(&self, phase: usize) -> SignedTally {
        let (mut before, mut at) = (SignedTally::default(), phase);
        while at > 0 {
            before.join(self.tree[at]);
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

struct Walk<'a> {
    series: &'a SeriesOfSites,
    sums: Vec<Running>,
    by_phase: Vec<ByPhase>,
    begun: usize,
    /// By life of memory, then of segments.
    since: Vec<Option<Since>>,
    /// Of segments that ended, by address and site: a duplicate that gets its original's bytes begins again.
    ended: HashMap<(u64, u32), Option<Since>>,
    /// By the number of chosen phases begun: what is live at each site.
    chosen: Vec<HashMap<u32, SignedTally>>,
    figures: Vec<Option<Figures>>,
}

/// An event of memory, or of a segment, whose sites and lives follow those of memory.
struct Step {
    time_ns: u64,
    op: Op,
    life: usize,
    site: u32,
    address: u64,
    bytes: u64,
    is_segment: bool,
}

/// All events, in order of time. What memory lies in comes first.
fn steps(timeline: &Timeline, [memory, segments]: [&Lives; 2]) -> impl Iterator<Item = Step> {
    let of = |log: &Log, (nth, change, life): (usize, Change, &Life), before: Option<&Lives>| Step {
        time_ns: log.time_ns(nth),
        op: log.at(nth).op,
        life: change.life().unwrap_or_default() + before.map_or(0, |before| before.lives.len()),
        site: life.site + before.map_or(0, |before| before.sites.len() as u32),
        address: life.address,
        bytes: life.bytes,
        is_segment: before.is_some(),
    };
    let segments = segments.changes();
    let mut segments = segments
        .map(move |change| of(&timeline.segments, change, Some(memory)))
        .peekable();
    let mut memory = memory
        .changes()
        .map(move |change| of(&timeline.memory, change, None))
        .peekable();
    std::iter::from_fn(move || {
        let next_ns = memory.peek().map_or(u64::MAX, |step| step.time_ns);
        segments
            .next_if(|step| step.time_ns <= next_ns)
            .or_else(|| memory.next())
    })
}

/// `lives`: of memory and of segments; `chosen`: the phases whose sites are wanted, in order.
pub fn walk(
    snapshot: &Snapshot,
    timeline: &Timeline,
    lives: [&Lives; 2],
    series: &SeriesOfSites,
    chosen: &[usize],
) -> Walked {
    let phases = &snapshot.phases;
    let count = series.all.len();
    let [memory, segments] = lives;
    let mut walk = Walk {
        series,
        sums: (0..count).map(|_| Running::default()).collect(),
        by_phase: (0..count).map(|_| ByPhase::new(phases.len())).collect(),
        begun: 0,
        since: vec![None; memory.lives.len() + segments.lives.len()],
        ended: HashMap::default(),
        chosen: Vec::new(),
        figures: vec![None; phases.len() * count],
    };
    if timeline.since_ns > 0 {
        for (lives, before) in [(memory, 0), (segments, memory.sites.len() as u32)] {
            for (_, life) in lives.at_begin() {
                let series = series.of_site(life.site + before);
                series.for_each(|series| walk.sums[series].held += life.bytes as i64);
            }
        }
    }
    // All times of one unit are the same time.
    let unit = |time_ns: u64| time_ns | UNIT;
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
    let events = timeline.memory.len() + timeline.segments.len();
    let progress = Progress::over("following phases", events as u64, Unit::Of("events"));
    for (nth, step) in steps(timeline, lives).enumerate() {
        progress.tick(nth);
        boundaries(&mut walk, Some(unit(step.time_ns)));
        walk.event(&step);
    }
    boundaries(&mut walk, None);
    Walked {
        figures: walk.figures,
        series: count,
        left,
    }
}

impl Walk<'_> {
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
            figures.held_at_end = sum.held.max(0) as u64;
            let highest = sum.highest.partition_point(|&(begun, _)| begun <= phase);
            let highest = sum.highest.get(highest).map_or(0, |&(_, held)| held.max(0) as u64);
            figures.high_water = highest.max(figures.held_at_begin);
            figures.allocated = sum.allocated.tally().less(figures.allocated);
            figures.freed = sum.freed.tally().less(figures.freed);
            figures.left_behind = self.by_phase[number].since(phase).tally();
            figures.freed_within = figures.allocated.less(figures.left_behind);
        }
    }

    fn event(&mut self, step: &Step) {
        let bytes = step.bytes;
        let series = self.series.of_site(step.site);
        if step.op == Op::Freed {
            let since = self.since[step.life];
            for series in series {
                let sum = &mut self.sums[series];
                sum.freed.add(bytes, 1);
                sum.held -= bytes as i64;
            }
            if step.is_segment {
                self.ended.insert((step.address, step.site), since);
            }
            return self.counts(step.site, since, bytes, -1);
        }
        let is_new = step.op == Op::Allocated;
        let since = match is_new {
            true => self.begun.checked_sub(1).map(|phase| Since {
                phase: phase as u32,
                chosen: self.chosen.len() as u32,
            }),
            false => self.ended.get(&(step.address, step.site)).copied().flatten(),
        };
        for series in series {
            let sum = &mut self.sums[series];
            match is_new {
                true => sum.allocated.add(bytes, 1),
                false => sum.freed.add(bytes, -1),
            }
            sum.rises(bytes as i64, self.begun);
        }
        self.since[step.life] = since;
        self.counts(step.site, since, bytes, 1);
    }

    /// Memory that was allocated then appears or disappears.
    fn counts(&mut self, site: u32, since: Option<Since>, bytes: u64, sign: i64) {
        let Some(since) = since else { return };
        for series in self.series.of_site(site) {
            self.by_phase[series].add(since.phase as usize, bytes, sign);
        }
        let chosen = (since.chosen as usize).checked_sub(1);
        if let Some(sites) = chosen.and_then(|chosen| self.chosen.get_mut(chosen))
            && self.series.is_held(site)
        {
            let live = sites.entry(site).or_default();
            live.add(bytes, sign);
            if live.count == 0 {
                sites.remove(&site);
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

impl Running {
    fn rises(&mut self, bytes: i64, begun: usize) {
        self.held += bytes;
        while self.highest.last().is_some_and(|&(_, held)| held <= self.held) {
            self.highest.pop();
        }
        self.highest.push((begun, self.held));
    }
}
