//! Lives: from which event to which event each block was live.
//!
//! A life begins before the log if the log lacks its allocation: its free is in the log, or it is live in the final state.
//! A free that CUDA refused is no free: the record was restored, and both events are left out.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use crate::analysis::categories::Request;
use crate::analysis::filter::{Filter, Filtering};
use crate::analysis::framework::{Watched, can_carry};
use crate::analysis::groups::Level;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::{Sieve, Suppressions};
use crate::format::{lifetime_code, lifetime_ns};
use crate::kind::Place;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Allocations, Snapshot};
use crate::timeline::{Event, Op, Site, Timeline};

/// How memory counts; see [`Level`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// A framework's block, which lies in memory of another layer.
    Block,
    /// Memory from the driver that a framework's blocks lie in.
    Behind,
    /// All other memory, which counts at both levels.
    Other,
}

impl Layer {
    pub const COUNT: usize = 3;
    pub const ALL: [Layer; Layer::COUNT] = [Layer::Block, Layer::Behind, Layer::Other];

    /// Whether it counts at the level of the driver, or else at that of reports, where each byte counts for the block in it.
    pub fn counts(self, driver: bool) -> bool {
        match self {
            Layer::Block => !driver,
            Layer::Behind => driver,
            Layer::Other => true,
        }
    }
}

/// One block, from its allocation to its free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// As in [`crate::timeline::Event::address`].
    pub address: u64,
    pub bytes: u64,
    /// Index into [`Lives::sites`].
    pub site: u32,
    pub layer: Layer,
    /// Index of the event that allocated it; `None`: before the log.
    pub from: Option<u32>,
    /// Index of the event that freed it; `None`: never.
    pub to: Option<u32>,
    /// Index into the final state, if it is live there.
    pub row: Option<u32>,
}

/// An event as a change of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change(u32);

impl Change {
    const NONE: Change = Change(u32::MAX);
    const FREED: u32 = 1 << 31;

    /// Index into [`Lives::lives`]; `None`: the event changed nothing.
    pub fn life(self) -> Option<usize> {
        (self != Change::NONE).then_some((self.0 & !Change::FREED) as usize)
    }

    pub fn op(self) -> Op {
        if self.0 & Change::FREED != 0 {
            Op::Freed
        } else {
            Op::Allocated
        }
    }
}

/// A timeline, and the final state that it was read with.
#[derive(Debug, Clone)]
pub struct Logged {
    pub timeline: Timeline,
    pub last: Allocations,
}

#[derive(Debug, Clone, Default)]
pub struct Lives {
    /// Those of the timeline, then those of memory that the log does not mention.
    pub sites: Vec<Site>,
    pub lives: Vec<Life>,
    /// By event of the timeline.
    pub events: Vec<Change>,
}

/// The lowest bits of an address, which events have.
const ADDRESS: u64 = (1 << 48) - 1;

impl Lives {
    /// `snapshot` has the tables that the timeline was read with, and `last` the final state.
    pub fn of(snapshot: &Snapshot, last: &Allocations, timeline: &Timeline, stacks: &CallStacks) -> Lives {
        let mut lives = Lives {
            sites: timeline.sites.clone(),
            ..Lives::default()
        };
        lives.follow(timeline);
        lives.add_rows(last, timeline);
        lives.find_layers(snapshot, stacks);
        lives
    }

    /// By site, the thread of its first allocation, if known. `last`: the final state.
    pub fn threads(&self, timeline: &Timeline, last: &Allocations) -> Vec<Option<usize>> {
        let mut threads = vec![None; self.sites.len()];
        for life in &self.lives {
            let thread = &mut threads[life.site as usize];
            if thread.is_none() {
                let of_event = life.from.and_then(|event| timeline.at(event as usize).thread);
                let of_row = life.row.map(|row| last.at(row as usize).call.thread);
                *thread = of_event.map(|thread| thread as usize).or(of_row);
            }
        }
        threads
    }

    /// By site, whether it passes a filter, except for its time, and is not suppressed.
    pub fn wanted(
        &self,
        snapshot: &Snapshot,
        stacks: &CallStacks,
        filter: &Filter,
        suppressions: &Suppressions,
        threads: &[Option<usize>],
    ) -> Vec<bool> {
        let (mut filtering, mut sieve) = (Filtering::new(filter, snapshot), Sieve::new(suppressions));
        let passes = |(site, thread): (&Site, &Option<usize>)| {
            let request = Request {
                kind: site.kind,
                domain: site.domain.as_deref(),
                thread: *thread,
            };
            filtering.passes_at_any_time(request, site.device, site.stack, stacks)
                && sieve.rule(site.stack, stacks).is_none()
        };
        self.sites.iter().zip(threads).map(passes).collect()
    }

    /// By site, the layers that its memory is in.
    pub fn layers(&self) -> Vec<[bool; Layer::COUNT]> {
        let mut layers = vec![[false; Layer::COUNT]; self.sites.len()];
        for life in &self.lives {
            layers[life.site as usize][life.layer as usize] = true;
        }
        layers
    }

    fn follow(&mut self, timeline: &Timeline) {
        let undone = timeline.undone();
        let mut open = Open::default();
        let progress = Progress::over("following blocks", timeline.len() as u64, Unit::Of("events"));
        self.events.reserve_exact(timeline.len());
        for (nth, event) in timeline.events().enumerate() {
            progress.tick(nth);
            let number = self.lives.len() as u32;
            let known = event.site < self.sites.len() as u32;
            // Half of the numbers mark frees.
            if !known || undone.contains(&nth) || number >= Change::FREED - 1 {
                self.events.push(Change::NONE);
                continue;
            }
            let mut life = Life {
                address: event.address,
                bytes: event.bytes,
                site: event.site,
                layer: Layer::Other,
                from: None,
                to: None,
                row: None,
            };
            let change = if event.op == Op::Freed {
                life.to = Some(nth as u32);
                match open.take(&event) {
                    Some(known) => {
                        self.lives[known as usize].to = life.to;
                        Change(known | Change::FREED)
                    }
                    None => {
                        self.lives.push(life);
                        Change(number | Change::FREED)
                    }
                }
            } else {
                life.from = Some(nth as u32);
                self.lives.push(life);
                open.add(&event, number);
                Change(number)
            };
            self.events.push(change);
        }
    }

    /// Adds what is live in the final state and was allocated before the log, and connects the rest to its rows.
    fn add_rows(&mut self, last: &Allocations, timeline: &Timeline) {
        let mut open: HashMap<(u64, u32), u32> = HashMap::default();
        for (nth, life) in self.lives.iter().enumerate().filter(|(_, life)| life.to.is_none()) {
            open.insert((life.address, life.site), nth as u32);
        }
        let logged_until = timeline
            .len()
            .checked_sub(1)
            .map_or(0, |last| timeline.at(last).time_ns);
        let mut numbers: HashMap<Site, u32> = HashMap::default();
        for (nth, site) in self.sites.iter().enumerate() {
            numbers.entry(site.clone()).or_insert(nth as u32);
        }
        let mut known: HashMap<(Option<usize>, usize), u32> = HashMap::default();
        for (row, allocation) in last.iter().enumerate() {
            let call = last.call_of(row);
            let site = *known.entry((allocation.stack, call)).or_insert_with(|| {
                let site = Site {
                    stack: allocation.stack,
                    kind: allocation.kind,
                    device: allocation.device,
                    domain: allocation.call.domain.clone(),
                    api: allocation.call.api.clone(),
                };
                *numbers.entry(site).or_insert_with_key(|site| {
                    self.sites.push(site.clone());
                    self.sites.len() as u32 - 1
                })
            });
            let address = allocation.address & ADDRESS;
            match open.get(&(address, site)) {
                Some(&life) => self.lives[life as usize].row = Some(row as u32),
                // The process went on after the log was read.
                None if allocation.time_ns > logged_until && allocation.time_ns > timeline.since_ns => {}
                None => self.lives.push(Life {
                    address,
                    bytes: allocation.bytes,
                    site,
                    layer: Layer::Other,
                    from: None,
                    to: None,
                    row: Some(row as u32),
                }),
            }
        }
    }

    fn find_layers(&mut self, snapshot: &Snapshot, stacks: &CallStacks) {
        let watched = Watched::of(snapshot);
        let mut by_site: Vec<Layer> = Vec::with_capacity(self.sites.len());
        for site in &self.sites {
            let allocator = stacks.get(site.stack).allocator;
            let blocks_are_known = allocator.is_some_and(|allocator| watched.contains(allocator));
            let level = Level::of(site.kind, allocator.is_some(), blocks_are_known);
            by_site.push(match level {
                _ if site.kind.place() == Place::Within => Layer::Block,
                Level::Behind => Layer::Behind,
                _ => Layer::Other,
            });
        }
        for life in &mut self.lives {
            life.layer = by_site[life.site as usize];
        }
        self.find_carriers();
    }

    /// Memory that a block lay in at any time is behind blocks, even if its stack does not show that.
    fn find_carriers(&mut self) {
        let sites = &self.sites;
        let may_carry = |life: &Life| life.layer == Layer::Other && can_carry(sites[life.site as usize].kind);
        if !self.lives.iter().any(|life| life.layer == Layer::Block) || !self.lives.iter().any(may_carry) {
            return;
        }
        let mut by_address: BTreeMap<u64, u32> = BTreeMap::new();
        let mut carriers: HashSet<u32> = HashSet::default();
        let mut begin = |number: u32, life: &Life, by_address: &mut BTreeMap<u64, u32>| {
            if may_carry(life) {
                by_address.insert(life.address, number);
            } else if life.layer == Layer::Block
                && let Some((_, &other)) = by_address.range(..=life.address).next_back()
            {
                let around: &Life = &self.lives[other as usize];
                if life.address < around.address.saturating_add(around.bytes) {
                    carriers.insert(other);
                }
            }
        };
        let before = |life: &&Life| life.from.is_none();
        // Memory first, then the blocks in it.
        for blocks in [false, true] {
            for (number, life) in self.lives.iter().enumerate().filter(|(_, life)| before(life)) {
                if (life.layer == Layer::Block) == blocks {
                    begin(number as u32, life, &mut by_address);
                }
            }
        }
        for event in &self.events {
            let Some(number) = event.life() else { continue };
            let life = &self.lives[number];
            match event.op() {
                Op::Freed if by_address.get(&life.address) == Some(&(number as u32)) => {
                    by_address.remove(&life.address);
                }
                Op::Freed => {}
                _ => begin(number as u32, life, &mut by_address),
            }
        }
        for carrier in carriers {
            self.lives[carrier as usize].layer = Layer::Behind;
        }
    }
}

/// Blocks whose free has not been met yet, by address and site.
///
/// Threads write their events independently, so the next allocation at an address may be met before the free of the one
/// before it. The lifetime tells which allocation a free belongs to, also if the log lacks that allocation.
#[derive(Default)]
struct Open {
    latest: HashMap<(u64, u32), Opened>,
    /// Those that a later allocation replaced in `latest`.
    earlier: HashMap<(u64, u32), Vec<Opened>>,
}

#[derive(Clone, Copy)]
struct Opened {
    life: u32,
    time_ns: u64,
}

impl Open {
    fn add(&mut self, event: &Event, life: u32) {
        let key = (event.address, event.site);
        let time_ns = event.time_ns;
        if let Some(before) = self.latest.insert(key, Opened { life, time_ns }) {
            self.earlier.entry(key).or_default().push(before);
        }
    }

    /// The life that this free ends; `None`: one from before the log.
    fn take(&mut self, free: &Event) -> Option<u32> {
        let key = (free.address, free.site);
        let belongs = |opened: &Opened| may_begin_at(free, opened.time_ns);
        if let Some(earlier) = self.earlier.get_mut(&key)
            && let Some(nth) = earlier.iter().position(belongs)
        {
            return Some(earlier.remove(nth).life);
        }
        let latest = self.latest.get(&key).copied().filter(belongs)?;
        self.latest.remove(&key);
        if let Some(before) = self.earlier.get_mut(&key).and_then(Vec::pop) {
            self.latest.insert(key, before);
        }
        Some(latest.life)
    }
}

/// Whether memory with this free may have been allocated at a time. Times are exact to 8 ns, lifetimes to 0.1 %.
fn may_begin_at(free: &Event, time_ns: u64) -> bool {
    const UNIT: u64 = 7;
    let next = lifetime_code(free.lifetime_ns).checked_add(1);
    let longest = next.map_or(u64::MAX, |next| lifetime_ns(next) - 1);
    let earliest = free.time_ns.saturating_sub(longest) & !UNIT;
    let latest = (free.time_ns | UNIT).saturating_sub(lifetime_ns(lifetime_code(free.lifetime_ns)));
    (earliest..=latest).contains(&time_ns)
}
