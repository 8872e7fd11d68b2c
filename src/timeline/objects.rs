//! The objects without an address, and the segments, that existed at a time.
//!
//! They are those of the final state that are old enough, and those that were destroyed later. A walk over the later events,
//! from the last to the first, finds the latter.

use foldhash::HashMap;

use super::{Event, Log, Op, Site, Timeline};
use crate::kind::{Kind, Place};
use crate::snapshot::at::unknown_thread;
use crate::snapshot::{Allocation, Allocations, Counter, Gathering, Snapshot, Thread};

/// The lowest 48 bits of the handle, and the site, which has the kind.
type Key = (u64, u32);

impl Timeline {
    /// The objects that existed at `at_ns`. Those that were destroyed later have the lowest 48 bits of their handle and the time
    /// of their creation exact to 0.1 % of their age; their thread is not known.
    pub(crate) fn objects_at(&self, snapshot: &Snapshot, threads: &mut Vec<Thread>, at_ns: u64) -> Allocations {
        self.objects.rows_at(&snapshot.objects, threads, at_ns, |_, _| true)
    }
}

impl Log {
    /// The rows that existed at `at_ns`, given those of the final state; of those that ended later, the ones that `wanted`
    /// accepts.
    pub(super) fn rows_at(
        &self,
        last: &Allocations,
        threads: &mut Vec<Thread>,
        at_ns: u64,
        wanted: impl Fn(&Site, &Event) -> bool,
    ) -> Allocations {
        let mut existed = last.clone();
        existed.retain(|row| row.time_ns <= at_ns);
        let mut ended: HashMap<Key, Event> = HashMap::default();
        let mut restored: HashMap<Key, u64> = HashMap::default();
        for event in self.after(at_ns).rev() {
            let key = (event.address, event.site);
            match event.op {
                Op::Allocated => {
                    ended.remove(&key);
                }
                Op::Restored => *restored.entry(key).or_default() += 1,
                // A destruction that failed is undone right after it. So is that of a duplicate which gets its original's bytes.
                Op::Freed if restored.get(&key).is_some_and(|&count| count > 0) => {
                    restored.entry(key).and_modify(|count| *count -= 1);
                    ended.entry(key).and_modify(|later| later.bytes = event.bytes);
                }
                Op::Freed => {
                    ended.insert(key, event);
                }
            }
        }
        ended.retain(|key, event| wanted(&self.sites[key.1 as usize], event));
        if ended.is_empty() {
            return existed;
        }
        let thread = unknown_thread(threads);
        let mut ended_later = Gathering::default();
        for (&(address, site), event) in &ended {
            let site = &self.sites[site as usize];
            ended_later.add(Allocation {
                address,
                bytes: event.bytes,
                requested: event.bytes,
                time_ns: event.time_ns.saturating_sub(event.lifetime_ns).min(at_ns),
                stack: site.stack,
                call: &site.call(thread),
            });
        }
        existed.join(&ended_later.finish());
        existed
    }

    /// Events after this time, in order of time.
    pub(super) fn after(&self, time_ns: u64) -> impl DoubleEndedIterator<Item = Event> {
        let later = self.events.partition_point(|event| event.time_ns <= time_ns);
        self.events[later..].iter().map(|event| event.event())
    }

    /// Undoes the events after `at_ns` in these counters. `rows`: those of that time, which have the live bytes, and all objects
    /// that existed, also while a destruction that failed was under way. Peaks stay as they are.
    pub(super) fn count_back(&self, counters: &mut [Counter], rows: &Allocations, at_ns: u64) {
        let mut numbers: HashMap<(Option<usize>, Kind), usize> = HashMap::default();
        for (number, counter) in counters.iter().enumerate() {
            numbers.insert((counter.device, counter.kind), number);
        }
        let place = |site: &Site| numbers.get(&(site.device, site.kind)).copied();
        let of_sites: Vec<Option<usize>> = self.sites.iter().map(place).collect();
        // A free that failed is undone first.
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
                Place::Object => 0,
                // Duplicates that are gone are in no row.
                _ => counter.total_count.saturating_sub(counter.freed_count),
            };
        }
        for row in rows {
            if let Some(&number) = numbers.get(&(row.device, row.kind)) {
                let counter = &mut counters[number];
                counter.live_bytes = counter.live_bytes.saturating_add(row.bytes);
                counter.live_count += u64::from(row.kind.place() == Place::Object);
            }
        }
        for counter in counters
            .iter_mut()
            .filter(|counter| counter.kind.place() == Place::Object)
        {
            counter.total_count = counter.total_count.max(counter.live_count);
            counter.freed_count = counter.total_count - counter.live_count;
        }
    }
}
