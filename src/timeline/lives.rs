//! Lives: from which event to which event each block was live.
//!
//! ```text
//!      the log begins                the end
//! ───────────┼──────────────────────────┤
//!            │    ├─────────┤ free           both events are in the log
//!   ├────────┼────────┤ free                 the log lacks the allocation
//!   ├────────┼──────────────────────────┤    a row of the final state without an event
//!            │         ├────────────────┤    a row of the final state with its allocation
//! ```
//!
//! A free repeats what is known of its allocation, and how long ago that was, exact to 0.1 %. So the log need not contain the
//! allocation, and the order of events of different threads at the same address does not matter. What was live at a time
//! follows from the log that begins then: its lives that lack an allocation, and old rows of the final state.

use std::ops::Range;

use foldhash::HashMap;

use super::{Event, Log, Op, Site, UNIT};
use crate::format::{ADDRESS, lifetime_code, lifetime_ns};
use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::at::unknown_thread;
use crate::snapshot::{Allocation, Allocations, Call, Counter, Gathering, Thread};

/// One block, from its allocation to its free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// As in [`Event::address`].
    pub address: u64,
    pub bytes: u64,
    /// Index into [`Lives::sites`].
    pub site: u32,
    from: u32,
    /// The event that freed it, or else the row of the final state.
    end: u32,
    is_freed: bool,
    /// Blocks of a framework lay in it, which count instead of it.
    pub behind: bool,
}
const _: () = assert!(size_of::<Life>() == 32, "a log may have twenty-five million");

/// There is no such event or row.
const NONE: u32 = u32::MAX;

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

    pub fn is_free(self) -> bool {
        self.0 & Change::FREED != 0
    }
}

#[derive(Debug, Clone, Default)]
pub struct Lives {
    /// Those of the log, then those of memory that the log does not mention.
    pub sites: Vec<Site>,
    pub lives: Vec<Life>,
    /// By event of the log.
    pub events: Vec<Change>,
}

impl Lives {
    /// The lives of a log that begins at `since_ns`, and of the final state.
    pub fn of(log: &Log, since_ns: u64, last: &Allocations) -> Lives {
        let mut lives = Lives::follow(log, 0..log.len());
        lives.add_rows(last, since_ns, log.last_ns());
        lives
    }

    /// By event: the number of the event, its change and its life.
    pub fn changes(&self) -> impl Iterator<Item = (usize, Change, &Life)> {
        let numbered = self.events.iter().enumerate();
        numbered.filter_map(|(nth, &change)| Some((nth, change, &self.lives[change.life()?])))
    }

    /// What was live when the log begins.
    pub fn at_begin(&self) -> impl Iterator<Item = (usize, &Life)> {
        self.lives.iter().enumerate().filter(|(_, life)| life.from().is_none())
    }

    /// By site, the thread of its first allocation, if known. `last`: the final state.
    pub fn threads(&self, log: &Log, last: &Allocations) -> Vec<Option<usize>> {
        let mut threads = vec![None; self.sites.len()];
        for life in &self.lives {
            let thread = &mut threads[life.site as usize];
            if thread.is_none() {
                *thread = life.began(log, last).1;
            }
        }
        threads
    }

    fn follow(log: &Log, events: Range<usize>) -> Lives {
        let mut lives = Lives {
            sites: log.sites.clone(),
            ..Lives::default()
        };
        let mut open = Open::default();
        let progress = Progress::over("following blocks", events.len() as u64, Unit::Of("events"));
        lives.events.reserve_exact(events.len());
        for nth in events {
            progress.tick(nth);
            let event = log.at(nth);
            let number = lives.lives.len() as u32;
            let known = event.site < lives.sites.len() as u32;
            // Half of the numbers mark frees.
            if !known || number >= Change::FREED - 1 {
                lives.events.push(Change::NONE);
                continue;
            }
            let is_free = event.op == Op::Freed;
            let begun = if is_free { open.take(&event) } else { None };
            match begun {
                Some(begun) => lives.lives[begun as usize].freed_by(nth as u32),
                None => lives.lives.push(Life {
                    address: event.address,
                    bytes: event.bytes,
                    site: event.site,
                    from: if is_free { NONE } else { nth as u32 },
                    end: if is_free { nth as u32 } else { NONE },
                    is_freed: is_free,
                    behind: false,
                }),
            }
            if !is_free {
                open.add(&event, number);
            }
            let free = if is_free { Change::FREED } else { 0 };
            lives.events.push(Change(begun.unwrap_or(number) | free));
        }
        lives
    }

    /// Adds what is live in the final state and was allocated before the log, and connects the rest to its rows.
    fn add_rows(&mut self, last: &Allocations, since_ns: u64, logged_until: u64) {
        let mut open: HashMap<(u64, u32), u32> = HashMap::default();
        for (nth, life) in self.lives.iter().enumerate().filter(|(_, life)| !life.is_freed) {
            open.insert((life.address, life.site), nth as u32);
        }
        let mut numbers: HashMap<Site, u32> = HashMap::default();
        for (nth, site) in self.sites.iter().enumerate() {
            numbers.entry(site.clone()).or_insert(nth as u32);
        }
        let mut known: HashMap<(Option<usize>, usize), u32> = HashMap::default();
        for (row, allocation) in last.iter().enumerate() {
            let site = *known.entry((allocation.stack, last.call_of(row))).or_insert_with(|| {
                *numbers.entry(Site::of_row(&allocation)).or_insert_with_key(|site| {
                    self.sites.push(site.clone());
                    self.sites.len() as u32 - 1
                })
            });
            let address = allocation.address & ADDRESS;
            match open.get(&(address, site)) {
                Some(&life) => self.lives[life as usize].end = row as u32,
                // The process went on after the log was read.
                None if allocation.time_ns > logged_until && allocation.time_ns > since_ns => {}
                None => self.lives.push(Life {
                    address,
                    bytes: allocation.bytes,
                    site,
                    from: NONE,
                    end: row as u32,
                    is_freed: false,
                    behind: false,
                }),
            }
        }
    }
}

impl Life {
    /// Index of the event that allocated it; `None`: before the log.
    pub fn from(&self) -> Option<u32> {
        (self.from != NONE).then_some(self.from)
    }

    /// Index of the event that freed it; `None`: never.
    pub fn to(&self) -> Option<u32> {
        self.is_freed.then_some(self.end)
    }

    /// Index into the final state, if it is live there.
    pub fn row(&self) -> Option<u32> {
        (!self.is_freed && self.end != NONE).then_some(self.end)
    }

    fn freed_by(&mut self, event: u32) {
        (self.end, self.is_freed) = (event, true);
    }

    /// When and by which thread it was allocated. The time is exact to 0.1 % of the lifetime, and the thread is not known, if
    /// the log lacks the allocation and the memory was freed.
    pub fn began(&self, log: &Log, last: &Allocations) -> (u64, Option<usize>) {
        match (self.from(), self.row(), self.to()) {
            (Some(event), ..) => {
                let event = log.at(event as usize);
                (event.time_ns, event.thread.map(|thread| thread as usize))
            }
            (None, Some(row), _) => {
                let row = last.at(row as usize);
                (row.time_ns, Some(row.thread))
            }
            (None, None, Some(free)) => {
                let free = log.at(free as usize);
                (free.time_ns.saturating_sub(free.lifetime_ns), None)
            }
            (None, None, None) => (0, None),
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
    /// `None`: it is older than the event, which gave it other bytes.
    time_ns: Option<u64>,
}

impl Open {
    fn add(&mut self, event: &Event, life: u32) {
        let key = (event.address, event.site);
        let time_ns = (event.op == Op::Allocated).then_some(event.time_ns);
        if let Some(before) = self.latest.insert(key, Opened { life, time_ns }) {
            self.earlier.entry(key).or_default().push(before);
        }
    }

    /// The life that this free ends; `None`: one from before the log.
    fn take(&mut self, free: &Event) -> Option<u32> {
        let key = (free.address, free.site);
        let began = may_have_begun(free);
        let belongs = |opened: &Opened| opened.time_ns.is_none_or(|time_ns| began.contains(&time_ns));
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

/// When memory with this free may have been allocated. Times are exact to 8 ns, lifetimes to 0.1 %.
fn may_have_begun(free: &Event) -> Range<u64> {
    let code = lifetime_code(free.lifetime_ns);
    let longest = code.checked_add(1).map_or(u64::MAX, |next| lifetime_ns(next) - 1);
    let earliest = free.time_ns.saturating_sub(longest) & !UNIT;
    let latest = (free.time_ns | UNIT).saturating_sub(lifetime_ns(code));
    earliest..latest + 1
}

/// A block that was live at a time and freed later.
pub(super) struct Ended {
    pub free: Event,
    /// Exact to 8 ns if the log has the allocation, otherwise to 0.1 % of the lifetime.
    allocated_ns: u64,
    thread: Option<u32>,
}

impl Log {
    /// The rows at `at_ns`, given those of the final state and of what was freed `after_end`: those that existed by then, and
    /// those that were freed later, if `wanted` accepts their events. The latter have the lowest 48 bits of their address,
    /// neither context nor stream nor pool, and no size requested beyond their bytes, unless they are in `after_end`.
    pub(crate) fn rows_at(
        &self,
        at_ns: u64,
        [last, after_end]: [&Allocations; 2],
        threads: &mut Vec<Thread>,
        wanted: impl Fn(&Site, &Event) -> bool,
    ) -> Allocations {
        let mut ended = self.ended_after(at_ns);
        ended.retain(|ended| wanted(&self.sites[ended.free.site as usize], &ended.free));
        if ended.is_empty() {
            let mut existed = last.clone();
            existed.retain(|row| row.time_ns <= at_ns);
            return existed;
        }
        let mut rows = Gathering::default();
        last.iter()
            .filter(|row| row.time_ns <= at_ns)
            .for_each(|row| rows.add(row));
        let mut known: HashMap<(Kind, u64), Vec<Allocation>> = HashMap::default();
        for row in after_end {
            known.entry((row.kind, row.address & ADDRESS)).or_default().push(row);
        }
        let mut calls: HashMap<(u32, Option<u32>), Call> = HashMap::default();
        for Ended {
            free,
            allocated_ns,
            thread,
        } in ended
        {
            let site = &self.sites[free.site as usize];
            let same = |row: &&Allocation| {
                row.bytes == free.bytes
                    && row.domain() == site.domain.as_deref()
                    && may_have_begun(&free).contains(&(row.time_ns & !UNIT))
            };
            let candidates = known.get(&(site.kind, free.address));
            if let Some(row) = candidates.and_then(|rows| rows.iter().find(same)) {
                rows.add(*row);
                continue;
            }
            let call = calls
                .entry((free.site, thread))
                .or_insert_with(|| site.call(thread_of(threads, thread.map(|thread| thread as usize))));
            rows.add(Allocation {
                address: free.address,
                bytes: free.bytes,
                requested: free.bytes,
                time_ns: allocated_ns,
                stack: site.stack,
                call,
            });
        }
        rows.finish()
    }

    /// Blocks that were live at `at_ns` and freed later, in the order of their frees.
    pub(super) fn ended_after(&self, at_ns: u64) -> Vec<Ended> {
        let lives = Lives::follow(self, self.count_until(at_ns)..self.len()).lives;
        let before = lives.iter().filter(|life| life.from().is_none());
        let mut ended: Vec<Ended> = before
            .filter_map(|life| Some(self.at(life.to()? as usize)))
            .map(|free| Ended {
                allocated_ns: free.time_ns.saturating_sub(free.lifetime_ns).min(at_ns),
                thread: None,
                free,
            })
            .collect();
        let mut by_place: HashMap<(u64, u32), u32> = HashMap::default();
        for (number, ended) in ended.iter().enumerate() {
            by_place.insert((ended.free.address, ended.free.site), number as u32);
        }
        let earliest = ended.iter().map(|ended| may_have_begun(&ended.free).start).min();
        for event in self.between(earliest.unwrap_or(at_ns).saturating_sub(1), at_ns) {
            if let Some(&number) = by_place.get(&(event.address, event.site))
                && let Ended {
                    free,
                    allocated_ns,
                    thread,
                } = &mut ended[number as usize]
                && (event.op, event.bytes) == (Op::Allocated, free.bytes)
                && may_have_begun(free).contains(&event.time_ns)
            {
                (*allocated_ns, *thread) = (event.time_ns, event.thread);
            }
        }
        ended
    }

    /// Undoes the events after `at_ns` in these counters. `rows`: those of that time, which have the live bytes. Peaks stay as
    /// they are.
    pub(super) fn count_back(&self, counters: &mut [Counter], rows: &Allocations, at_ns: u64) {
        let mut numbers: HashMap<(Option<usize>, Kind), usize> = HashMap::default();
        for (number, counter) in counters.iter().enumerate() {
            numbers.insert((counter.device, counter.kind), number);
        }
        let place = |site: &Site| numbers.get(&(site.device, site.kind)).copied();
        let of_sites: Vec<Option<usize>> = self.sites.iter().map(place).collect();
        for event in self.after(at_ns).rev() {
            let Some(counter) = of_sites[event.site as usize].map(|number| &mut counters[number]) else {
                continue;
            };
            match event.op {
                Op::Allocated => {
                    counter.total_bytes = counter.total_bytes.saturating_sub(event.bytes);
                    counter.total_count = counter.total_count.saturating_sub(1);
                }
                Op::Freed => counter.freed_count = counter.freed_count.saturating_sub(1),
                Op::Restored => counter.freed_count = counter.freed_count.saturating_add(1),
            }
        }
        for counter in counters.iter_mut() {
            counter.live_bytes = 0;
            counter.live_count = match counter.kind.place() {
                // Duplicates that are gone are in no row.
                Place::Segment => counter.total_count.saturating_sub(counter.freed_count),
                _ => 0,
            };
        }
        for row in rows {
            if let Some(&number) = numbers.get(&(row.device, row.kind)) {
                let counter = &mut counters[number];
                counter.live_bytes = counter.live_bytes.saturating_add(row.bytes);
                counter.live_count += u64::from(row.kind.place() != Place::Segment);
            }
        }
    }
}

/// The thread, or the row of an unknown thread.
pub(crate) fn thread_of(threads: &mut Vec<Thread>, thread: Option<usize>) -> usize {
    let known = thread.filter(|&known| known < threads.len());
    known.unwrap_or_else(|| unknown_thread(threads))
}
